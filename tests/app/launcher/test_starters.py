"""The files for a double click, as each system runs them: from anywhere, in a folder with spaces in its name."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

STARTERS = Path(__file__).resolve().parents[3] / "assets" / "launchers"
POSIX = pytest.mark.skipif(os.name == "nt", reason="shell scripts")

# Says how it was started, and ends as it is told.
STAND_IN = """
import os, sys
print(os.getcwd() == os.path.dirname(os.path.abspath(__file__)), sys.argv[1:])
sys.exit(int(os.environ.get("STATUS", "0")))
"""


@pytest.fixture
def starters(tmp_path: Path) -> Path:
    """The starters in a checkout whose name has spaces, with a stand-in for the program."""
    checkout = tmp_path / "My Trifold's folder"
    shutil.copytree(STARTERS, checkout / "assets" / "launchers")
    (checkout / "launch.py").write_text(STAND_IN, encoding="utf-8")
    return checkout / "assets" / "launchers"


def run(command: list[str], elsewhere: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "STATUS": str(status)}
    return subprocess.run(
        command, cwd=elsewhere, env=variables, input="\n", capture_output=True, text=True, timeout=60, check=False
    )


@POSIX
@pytest.mark.parametrize(("name", "told"), [("Start", []), ("Repair", ["--repair"])])
def test_a_double_click_runs_the_program_in_its_folder(starters: Path, tmp_path: Path, name: str, told: list) -> None:
    done = run([str(starters / f"{name}.command")], tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, f"True {told}")


@POSIX
def test_what_went_wrong_stays_on_the_screen(starters: Path, tmp_path: Path) -> None:
    done = run([str(starters / "Start.command")], tmp_path, status=2)
    assert done.returncode == 2
    assert done.stdout.count("True []") == 1, "another Python would not mend what the program says"
    assert "Press Enter to close." in done.stdout


@POSIX
@pytest.mark.parametrize(("group", "told"), [("Desktop Entry", []), ("Desktop Action repair", ["--repair"])])
def test_the_desktop_entry_finds_its_neighbours(starters: Path, tmp_path: Path, group: str, told: list) -> None:
    entry = configparser.RawConfigParser(strict=True)
    entry.optionxform = str  # type: ignore[assignment, method-assign]
    file = starters / "trifold.desktop"
    entry.read(file, encoding="utf-8")
    # Two layers of escapes, as the specification of desktop entries has it: of a value, and of a quoted argument.
    value = entry[group]["Exec"].replace("\\\\", "\\")
    command = [part.replace("\\$", "$") for part in shlex.split(value)]
    done = run([str(file) if part == "%k" else part for part in command], tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, f"True {told}"), done.stderr


@pytest.mark.parametrize("name", ["Start.bat", "Repair.bat"])
def test_windows_gets_its_own_line_ends(name: str) -> None:
    """cmd.exe reads a file with bare line feeds, and loses its place in it now and then."""
    lines = (STARTERS / name).read_bytes().split(b"\n")
    assert lines[-1] == b""
    assert all(line.endswith(b"\r") for line in lines[:-1])


@POSIX
def test_a_python_that_only_offers_developers_tools_is_none(starters: Path, tmp_path: Path) -> None:
    """On macOS without Python, python3 is such a program, and its window said nothing but to press Enter."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sh", "dirname"):
        (programs / name).symlink_to(str(shutil.which(name)))
    (programs / "python3").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    (programs / "python3").chmod(0o755)
    done = subprocess.run(
        [str(starters / "Start.command")], env={"PATH": str(programs)}, input="\n", capture_output=True, text=True
    )
    assert done.returncode == 127
    assert "Python is missing" in done.stdout


def test_a_crash_stays_on_the_screen_of_windows() -> None:
    """Its exit status is negative there, and ``if errorlevel 1`` asks for a positive one."""
    assert (STARTERS / "Start.bat").read_bytes().endswith(b"if not %errorlevel%==0 pause\r\n")
