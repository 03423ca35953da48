"""Makes or mends the environment: a fresh folder, the right torch, the pinned packages, the stamp last.

Whatever goes wrong on the way, no stamp is left, and the next start does the rest. Two starts at once wait for each
other. Says each stage in a line.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from app.launcher import pip, torch_build
from app.launcher.environment import Environment, Part, running_version
from app.launcher.speech import LaunchError, Stage, say

DISK_NEED_BYTES = 3_000_000_000  # 1.5 GB measured for the processor build on Linux, and as much for the downloads
_PROBE_TIMEOUT_S = 6
_LOCK_POLL_S = 0.5
_NO_GPU = 10  # exit status of the trial


def ensure(environment: Environment, parts: Sequence[Part], afresh: bool = False) -> None:
    """Make the environment hold these parts, whole. Returns at once when it does.

    Args:
        environment: where.
        parts: what, the program first.
        afresh: delete what is there and begin again.

    Raises:
        LaunchError: it cannot be done; nothing half-done will be taken for done.
    """
    _make_folder(environment.notes)
    with _lock(environment):
        if afresh:
            say(f"Removing the environment in {environment.folder} to make it afresh.")
            _remove(environment)
        missing = [part for part in parts if not environment.is_ready(part)]
        if not missing:  # another start has done it meanwhile
            return
        environment.log.write_text("", encoding="utf-8")
        begin = time.monotonic()
        for part in parts:  # asked again: making the environment afresh for one part takes the other one away
            if not environment.is_ready(part):
                _install_program(environment) if part is environment.program else _install_part(environment, part)
        say(f"Ready after {time.monotonic() - begin:.0f} s. The next start is immediate.")


def _install_program(environment: Environment) -> None:
    if environment.is_usable():
        say("The list of packages has changed since the last start: bringing the environment up to date.")
        environment.remove_stamp(environment.program)
    else:
        _say_what_comes(environment)
        _remove(environment)
        _create(environment)
    torch = _install_torch(environment)
    _install_packages(environment, environment.program, "Fetching and unpacking the packages")
    if _pinned_torch(environment.program):
        _try_out(environment, torch)
    environment.write_stamp(environment.program, torch, running_version())


def _install_part(environment: Environment, part: Part) -> None:
    lost = environment.read_stamp(part).get("requirements") == part.fingerprint()
    environment.remove_stamp(part)
    _install_packages(environment, part, f"Fetching what the {part.name} need", ["--force-reinstall"] if lost else [])
    environment.write_stamp(part, "", running_version())


def _remove(environment: Environment) -> None:
    if not environment.folder.exists():
        return
    environment.remove_stamp(environment.program)
    try:
        shutil.rmtree(environment.folder, onerror=_delete_read_only)
    except OSError as error:
        raise LaunchError(
            f"The old environment cannot be removed: {error}.",
            f"Close every running Trifold, delete the folder {environment.folder}, and start again.",
        ) from error


def _say_what_comes(environment: Environment) -> None:
    if environment.folder.exists():
        say(f"The environment in {environment.folder} is not whole: making it afresh. Downloads are reused.")
    else:
        say("Making Trifold's own environment. This happens once and takes some minutes.")
        say(f"It goes to {environment.folder} and needs about 1.5 GB, several GB with CUDA.")
    free = shutil.disk_usage(environment.notes).free
    if free < DISK_NEED_BYTES:
        raise LaunchError(
            f"There are {free / 1e9:.1f} GB free on the disk, and the install needs {DISK_NEED_BYTES / 1e9:.0f} GB.",
            "Free some space, or set TRIFOLD_HOME to a folder on another disk, and start again.",
        )


def _create(environment: Environment) -> None:
    options = [] if pip.brings_pip() else ["--without-pip"]
    python = getattr(sys, "_base_executable", None) or sys.executable
    if options and not _has_pip():
        raise LaunchError("This Python comes without pip.", "On Debian or Ubuntu: sudo apt install python3-venv.")
    with (
        Stage(f"Making a Python {running_version()} environment") as stage,
        environment.log.open("a", encoding="utf-8") as log,
    ):
        status = pip.run_logged([python, "-m", "venv", *options, str(environment.folder)], log)
        if status != 0 or not environment.python.exists():
            raise LaunchError(
                f"Python could not make an environment in {environment.folder}.",
                f"On Debian or Ubuntu: sudo apt install python3-venv. Details: {environment.log}",
            )
        stage.done()


def _install_torch(environment: Environment) -> str:
    """Install the build of torch that fits this machine. Returns its name for the stamp."""
    pinned = _pinned_torch(environment.program)
    if not pinned:
        return torch_build.PLAIN
    build = _wanted_build()
    say(build.reason)
    if build.index_url is None:
        return torch_build.PLAIN
    if not _answers(f"{build.index_url}/torch/"):
        say(f"{torch_build.INDEX_URL} does not answer; taking the usual build of torch, which can be larger.")
        return torch_build.PLAIN
    try:
        with Stage(f"Fetching torch from {build.index_url}") as stage:
            pip.install(environment, [pinned, "--index-url", build.index_url], stage)
            stage.done()
    except LaunchError as error:
        say(f"{error} Taking the build of torch that the usual index has instead.")
        return torch_build.PLAIN
    return build.name


def _wanted_build() -> torch_build.TorchBuild:
    """``TRIFOLD_TORCH`` names a build where the choice should not be made by looking at the machine."""
    named = os.environ.get("TRIFOLD_TORCH")
    if not named:
        return torch_build.choose_build(torch_build.find_gpus(), platform.system())
    return torch_build.TorchBuild(named, f"TRIFOLD_TORCH asks for the build of torch named {named}.")


def _install_packages(environment: Environment, part: Part, title: str, options: Sequence[str] = ()) -> None:
    with Stage(title) as stage:
        pip.install(environment, [*options, "-r", str(part.requirements)], stage)
        stage.done()


def _try_out(environment: Environment, torch: str) -> None:
    """Import torch once: a missing system library shows here, with a sentence, and not in the middle of the work."""
    wants_gpu = torch in (torch_build.CUDA_12, torch_build.CUDA_13)
    code = f"import sys, torch; sys.exit({_NO_GPU} if {wants_gpu} and not torch.cuda.is_available() else 0)"
    with Stage("Trying it out") as stage, environment.log.open("a", encoding="utf-8") as log:
        status = pip.run_logged([str(environment.python), "-c", code], log)
        if status == _NO_GPU:
            stage.done("torch works, but not on the GPU; python launch.py doctor says more")
        elif status != 0:
            hint = "install the Microsoft Visual C++ Redistributable, then " if os.name == "nt" else ""
            raise LaunchError("torch is installed but does not start.", f"Please {hint}see {environment.log}.")
        else:
            stage.done("torch works")


def _pinned_torch(part: Part) -> str | None:
    """The line of the requirements that pins torch, such as ``torch==2.13.0``."""
    found = re.search(r"^torch==\S+", part.requirements.read_text(encoding="utf-8"), re.MULTILINE)
    return found[0] if found else None


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=_PROBE_TIMEOUT_S):
            return True
    except (OSError, ValueError):
        return False


def _has_pip() -> bool:
    return subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode == 0


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(
            f"The folder {folder} cannot be made: {error.strerror}.",
            "Set TRIFOLD_HOME to a folder that you may write to, and start again.",
        ) from error


@contextlib.contextmanager
def _lock(environment: Environment) -> Iterator[None]:
    """One install at a time. The system frees the lock when its process ends, however it ends."""
    with environment.lock.open("a+", encoding="utf-8") as handle:
        if not _try_lock(handle):
            say("Another start is preparing the environment; waiting for it.")
            while not _try_lock(handle):
                time.sleep(_LOCK_POLL_S)
        yield


def _try_lock(handle: IO[str]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            handle.seek(0)
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _delete_read_only(remove_again: Callable[[str], Any], path: str, _error: object) -> None:
    """Windows refuses to delete read-only files; make them writable and try once more."""
    os.chmod(path, stat.S_IWRITE)
    remove_again(path)
