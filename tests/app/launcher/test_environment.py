"""When an install counts as whole, when it is mended, and that two never run at once.

The environments are real ones without a pip of their own (as on a Debian that packs it apart), made in a second.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from app.launcher import environment, install, lock
from app.launcher import install as pip
from app.launcher.console import LaunchError
from app.launcher.environment import Environment, PackageSet, child_variables, running_version
from tests.tiny_package import make_wheel, write_requirements


def make_part(folder: Path, name: str, *packages: str) -> PackageSet:
    for package in packages:
        make_wheel(folder / "wheels", package)
    write_requirements(folder / f"{name}.txt", folder / "wheels", *packages)
    return PackageSet(name, folder / f"{name}.txt")


@pytest.fixture(autouse=True)
def without_own_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip, "brings_pip", lambda: False)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "a home é"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with an environment in it, made once."""
    folder = tmp_path_factory.mktemp("pattern")
    env = Environment(folder, make_part(folder, "program", "tinybook"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pip, "brings_pip", lambda: False)
        install.ensure(env, [env.program])
    return folder


@pytest.fixture
def made(home: Path, pattern: Path) -> Environment:
    """A copy of that environment, to be damaged by a test."""
    shutil.copytree(pattern, home, symlinks=True, dirs_exist_ok=True)
    return Environment(home, PackageSet("program", home / "program.txt"))


def test_install_leaves_a_ready_environment_and_does_it_once(
    made: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    assert made.is_ready(made.program)
    assert "tinybook" in made.packages()
    stamp = made.read_stamp(made.program)
    assert stamp["python"] == running_version()
    assert stamp["torch"] == "plain"
    capsys.readouterr()
    install.ensure(made, [made.program])
    assert capsys.readouterr().err == ""


def test_another_part_goes_on_top_and_stays_when_it_is_asked_for_again(made: Environment, home: Path) -> None:
    extra = make_part(home, "tests", "tinytest")
    assert not made.is_ready(extra)
    install.ensure(made, [made.program, extra])
    assert made.is_ready(extra)
    assert made.is_ready(made.program)
    assert {"tinybook", "tinytest"} <= set(made.packages())


def test_lost_package_makes_the_environment_afresh_with_all_its_parts(made: Environment, home: Path) -> None:
    extra = make_part(home, "tests", "tinytest")
    install.ensure(made, [made.program, extra])
    shutil.rmtree(next(made.folder.rglob("tinybook/__init__.py")).parent)
    assert not made.is_ready(made.program)
    assert not made.is_usable()
    install.ensure(made, [made.program, extra])
    assert made.is_ready(made.program)
    assert made.is_ready(extra)


def test_changed_requirements_are_noticed_but_line_ends_are_not(made: Environment) -> None:
    requirements = made.program.requirements
    unix = requirements.read_bytes()
    requirements.write_bytes(unix.replace(b"\n", b"\r\n"))
    assert made.is_ready(made.program)
    requirements.write_bytes(unix + b"# more\n")
    assert not made.is_ready(made.program)
    assert made.is_usable()


def test_missing_python_or_damaged_stamp_is_not_ready(made: Environment) -> None:
    stamp = made.stamp_file(made.program)
    whole = stamp.read_text(encoding="utf-8")
    for damaged in ("", "{", "[]", whole[: len(whole) // 2]):
        stamp.write_text(damaged, encoding="utf-8")
        assert not made.is_ready(made.program)
        assert not made.is_usable()
    stamp.write_text(whole, encoding="utf-8")
    assert made.is_ready(made.program)
    made.python.unlink()
    assert not made.is_ready(made.program)


def test_replaced_python_version_is_noticed(made: Environment) -> None:
    stamp = made.read_stamp(made.program)
    made.stamp_file(made.program).write_text(json.dumps({**stamp, "python": "3.9"}), encoding="utf-8")
    assert not made.is_ready(made.program)
    assert not made.is_usable()


def test_failed_install_leaves_no_stamp(made: Environment) -> None:
    made.program.requirements.write_text("--no-index\nno-such-package-at-all==1\n", encoding="utf-8")
    with pytest.raises(LaunchError, match="no fitting version"):
        install.ensure(made, [made.program])
    assert made.read_stamp(made.program) == {}


def test_repair_begins_again(made: Environment) -> None:
    leftover = made.folder / "leftover"
    leftover.touch()
    install.ensure(made, [made.program], rebuild=True)
    assert made.is_ready(made.program)
    assert not leftover.exists()


def test_two_installs_exclude_each_other(home: Path) -> None:
    env = Environment(home)
    env.notes.mkdir()
    with install._lock(env), env.lock.open("ab") as second:
        assert not lock.take(second)
    with env.lock.open("ab") as second:
        assert lock.take(second)


def test_environment_is_beside_the_program_or_where_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkout: Path, data_folder: Path
) -> None:
    monkeypatch.delenv("TRIFOLD_HOME", raising=False)
    monkeypatch.setattr(environment, "CHECKOUT", tmp_path)
    assert environment.find_environment().folder == tmp_path / ".venv"
    monkeypatch.setattr(environment, "CHECKOUT", tmp_path / "gone")  # where nothing can be written
    elsewhere = environment.find_environment().folder
    assert elsewhere.is_relative_to(data_folder)
    monkeypatch.setenv("TRIFOLD_HOME", str(tmp_path / "named"))
    assert environment.find_environment().folder == tmp_path / "named" / ".venv"


def test_folder_that_cannot_be_written_is_not_writable(tmp_path: Path) -> None:
    assert environment._is_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert not environment._is_writable(tmp_path / "absent")


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError(<pip._vendor.urllib3>: Failed to "
            "establish a new connection: [Errno -2] Name or service not known)'\n"
            "ERROR: Could not find a version that satisfies the requirement torch==2.13.0 (from versions: none)",
            "Check the internet connection",
        ),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]", "certificate"),
        ("ERROR: Could not install packages due to an OSError: [WinError 5] Access is denied: 'x.pyd'", "Close every"),
        ("ERROR: No matching distribution found for torch==2.13.0", "another supported Python"),
        (
            "HINT: This error might have occurred since this system does not have Windows Long Path support",
            "short path",
        ),
        ("something never seen before", "--repair"),
    ],
)
def test_pip_failure_becomes_a_cause_and_a_remedy(output: str, words: str) -> None:
    message = str(pip.diagnose(output, Path("the.log")))
    assert words in message
    assert "the.log" in message


def test_pip_progress_in_a_persons_words() -> None:
    progress = pip.PipProgress()
    said = []
    for line in (
        "Collecting torch==2.13.0 (from -r requirements.txt (line 2))",
        "  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (180.5 MB)",
        "Collecting filelock (from torch==2.13.0)",
        "Installing collected packages: filelock, torch",
    ):
        progress.hear(line)
        said.append(str(progress))
    assert said[1] == "package 1, torch, 180.5 MB"
    assert said[2] == "package 2, filelock"
    assert said[3].startswith("unpacking 2 packages")


def test_variables_of_another_python_stay_outside() -> None:
    outside = {"PYTHONPATH": "x", "PYTHONHOME": "y", "PIP_TARGET": "z", "PIP_INDEX_URL": "kept", "PATH": "kept"}
    inside = child_variables(outside)
    assert inside == {"PIP_INDEX_URL": "kept", "PATH": "kept", "PYTHONNOUSERSITE": "1", "PYTHONUTF8": "1"}


def test_an_uninstalled_python_is_noticed_on_windows(made: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the environment's python.exe stays, and says that there is no Python."""
    monkeypatch.setattr(sys, "platform", "win32")
    settings = made.folder / "pyvenv.cfg"
    assert made.is_ready(made.program)
    gone = made.home / "Python 3.11 ü"
    settings.write_text(f"home = {gone}\nexecutable = {gone / 'python.exe'}\n", encoding="utf-8")
    assert not made.is_ready(made.program)
    assert not made.is_usable()
    gone.mkdir()
    (gone / "python.exe").touch()  # the Store's starter stays where it is, while the program moves with each update
    settings.write_text(f"home = {gone}\nexecutable = {gone}.1\\python.exe\n", encoding="utf-8")
    assert made.is_ready(made.program)
