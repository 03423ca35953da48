"""Describes the program's own Python environment on disk: finds its folder, checks whether the install is complete, and
gives the variables for processes inside it.

An install ends by writing a stamp with the hash of the requirements, the Python version, the build of torch and the
packages. If the stamp is missing or differs, the install has to be done or repaired. Reading the stamp takes
milliseconds and no network. This module installs nothing itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.core.settings import CHECKOUT, data_folder

FOLDER_NAME = ".venv"
NOTES_NAME = ".trifold"  # folder next to the environment, with the install's log and lock file

# Variables that are not passed to processes inside the environment, because the user set them for other programs. Those
# for pip would make pip install into another folder, or refuse to install. The other variables would change from where
# Python imports packages.
_FOREIGN_VARIABLES = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSAFEPATH",
    "__PYVENV_LAUNCHER__",
    "VIRTUAL_ENV",
    "PIP_USER",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_REQUIRE_VIRTUALENV",
    "PIP_REQUIRE_HASHES",
)


class PackageSet:
    """A set of packages in the environment. It has its own requirements file and its own stamp."""

    def __init__(self, name: str, requirements: Path) -> None:
        self.name = name
        self.requirements = requirements

    def fingerprint(self) -> str:
        """Hash of the requirements file. Line endings are ignored, because git may change them."""
        content = self.requirements.read_bytes().replace(b"\r\n", b"\n")
        return hashlib.sha256(content).hexdigest()


PROGRAM = PackageSet("program", CHECKOUT / "requirements.txt")
TESTS = PackageSet("tests", CHECKOUT / "tests" / "requirements.txt")


class Environment:
    """A Python environment in the folder ``home``/.venv. The stamps are in this folder. The install's log and lock file
    are in ``home``/.trifold.

    ``program``: the set of packages that the environment is made for. Other package sets are installed later, when a
    command needs them.
    """

    def __init__(self, home: Path, program: PackageSet = PROGRAM) -> None:
        self.home = home
        self.program = program
        self.folder = home / FOLDER_NAME
        self.notes = home / NOTES_NAME
        self.log = self.notes / "install.log"
        self.lock = self.notes / "install.lock"

    @property
    def python(self) -> Path:
        return self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def is_running(self) -> bool:
        """Whether this process runs inside the environment."""
        return os.path.normcase(os.path.realpath(sys.prefix)) == os.path.normcase(os.path.realpath(self.folder))

    def is_usable(self) -> bool:
        """Whether all packages of the last complete install still exist. If so, further packages can be installed into
        the environment, even if the requirements have changed since.
        """
        return self._is_whole(self.read_stamp(self.program))

    def is_ready(self, package_set: PackageSet) -> bool:
        """Whether all packages of the set's current requirements were installed and still exist."""
        stamp = self.read_stamp(package_set)
        return stamp.get("requirements") == package_set.fingerprint() and self._is_whole(stamp)

    def read_stamp(self, package_set: PackageSet) -> dict[str, Any]:
        try:
            stamp = json.loads(self.stamp_file(package_set).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return stamp if isinstance(stamp, dict) else {}

    def write_stamp(self, package_set: PackageSet, torch: str, python: str) -> None:
        """Record that a set of packages is installed. The stamp is written under another name and renamed, so it is
        never incomplete.
        """
        stamp = {
            "requirements": package_set.fingerprint(),
            "python": python,
            "torch": torch,
            "packages": self.packages(),
        }
        fresh = self.stamp_file(package_set).with_suffix(".new")
        fresh.write_text(json.dumps(stamp, indent=1), encoding="utf-8")
        os.replace(fresh, self.stamp_file(package_set))

    def remove_stamp(self, package_set: PackageSet) -> None:
        self.stamp_file(package_set).unlink(missing_ok=True)

    def stamp_file(self, package_set: PackageSet) -> Path:
        return self.folder / f"trifold-{package_set.name}.json"

    def packages(self) -> list[str]:
        """Names of the installed packages and modules. Metadata of packages, and what pip leaves of a removed package,
        are left out.
        """
        names = []
        for site in self._site_folders():
            for name in os.listdir(site):
                if not name.startswith(("_", "~", ".")) and not name.endswith((".dist-info", ".pth", ".egg-info")):
                    names.append(name)
        return sorted(names)

    def _site_folders(self) -> list[Path]:
        if os.name == "nt":
            candidates = [self.folder / "Lib" / "site-packages"]
        else:
            candidates = sorted((self.folder / "lib").glob("python3*/site-packages"))
        return [path for path in candidates if path.is_dir()]

    def _is_whole(self, stamp: dict[str, Any]) -> bool:
        return (
            bool(stamp)
            and self.python.exists()
            and self._has_base()
            and self._is_same_python(stamp)
            and set(stamp.get("packages", ())) <= set(self.packages())
        )

    def _has_base(self) -> bool:
        """Whether the Python that the environment was made with still exists. On Windows the environment's python.exe
        only starts that Python, so it stays when that Python is uninstalled. Elsewhere it is a link.
        """
        if sys.platform != "win32":
            return True
        try:
            lines = (self.folder / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            return True  # the environment's own Python says what is wrong
        named = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
        # an update of the Store's Python changes the path of the program, but not the folder of its starters
        places = (Path(named.get("home", ""), "python.exe"), Path(named.get("executable", "")))
        return any(os.path.lexists(place) for place in places)

    def _is_same_python(self, stamp: dict[str, Any]) -> bool:
        """Whether the environment's Python still has the version that it had at the install."""
        if os.path.realpath(self.python) != os.path.realpath(sys.executable) and not self.is_running():
            # This process runs on another Python and does not know the version of the environment's Python. The
            # environment counts as unchanged.
            return True
        return stamp.get("python") == running_version()


def running_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def find_environment() -> Environment:
    """Find the environment of this checkout. It is in the checkout or, if the checkout is read-only and has no
    environment, in the user's data folder.

    If the environment variable ``TRIFOLD_HOME`` is set, its value is the folder that holds the environment.
    """
    named = os.environ.get("TRIFOLD_HOME")
    if named:
        return Environment(Path(named).expanduser().absolute())
    beside = Environment(CHECKOUT)
    if beside.stamp_file(PROGRAM).exists() or _is_writable(CHECKOUT):
        return beside
    mark = hashlib.sha256(str(CHECKOUT).encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return Environment(data_folder() / f"environment-{mark}")


def _is_writable(folder: Path) -> bool:
    """Whether a folder can be written to. The function creates a file there, because permission bits are unreliable on
    Windows, on network drives and for the administrator.
    """
    probe = folder / f".trifold-can-write-{os.getpid()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True


def child_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables for processes inside the Python environment: those of this process without
    ``_FOREIGN_VARIABLES``, and two that set up Python.
    """
    kept = {name: value for name, value in environ.items() if name not in _FOREIGN_VARIABLES}
    return {**kept, "PYTHONNOUSERSITE": "1", "PYTHONUTF8": "1"}
