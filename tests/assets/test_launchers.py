"""The starters for a double click, from a folder with spaces, accents and quotes in its name."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LAUNCHERS = Path(__file__).resolve().parents[2] / "assets" / "launchers"
# Stands where launch.py stands, and tells how it was called; that one is tested in tests/test_launch.py.
TELLS = "import os, sys; print(os.path.basename(os.getcwd()), sys.argv[1:])"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="these starters are for other systems")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The starters in another checkout's place."""
    checkout = tmp_path / "My Books é" / "Anna's $HOME `x` trifold"
    shutil.copytree(LAUNCHERS, checkout / "assets" / "launchers")
    (checkout / "launch.py").write_text(TELLS, encoding="utf-8")
    return checkout / "assets" / "launchers"


def run(command: list[str], cwd: Path) -> str:
    # As a desktop starts it: from somewhere else, and with nothing but the system's own variables.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.defpath])
    done = subprocess.run(command, cwd=cwd, env={"PATH": path}, input="\n", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("starter", "options"), [("Start.command", "[]"), ("Repair.command", "['--repair']")])
def test_a_starter_calls_launch_in_its_own_checkout(copied: Path, tmp_path: Path, starter: str, options: str) -> None:
    assert run([str(copied / starter)], tmp_path) == f"{copied.parents[1].name} {options}"


def test_options_are_passed_on_as_they_are(copied: Path, tmp_path: Path) -> None:
    said = run([str(copied / "Start.command"), "--model", "a b/ç"], tmp_path)
    assert said.endswith("['--model', 'a b/ç']")


@pytest.mark.parametrize(("section", "options"), [("Desktop Entry", "[]"), ("Desktop Action repair", "['--repair']")])
def test_the_desktop_entry_finds_the_starter_beside_it(
    copied: Path, tmp_path: Path, section: str, options: str
) -> None:
    entry = configparser.RawConfigParser()
    entry.optionxform = str  # type: ignore[assignment, method-assign]
    entry.read(copied / "trifold.desktop", encoding="utf-8")
    # Desktop Entry Specification: first the escapes of a string value, then the quotes of Exec (where shlex keeps the
    # one before a dollar), then the field codes.
    value = entry[section]["Exec"].replace("\\\\", "\\")
    words = [word.replace("\\$", "$") for word in shlex.split(value)]
    command = [str(copied / "trifold.desktop") if word == "%k" else word for word in words]
    assert run(command, tmp_path) == f"{copied.parents[1].name} {options}"


def test_the_starters_for_windows_quote_their_folder() -> None:
    start = (LAUNCHERS / "Start.bat").read_bytes()
    assert b'cd /d "%~dp0..\\.."' in start
    assert b"%*" in start
    assert b'call "%~dp0Start.bat" --repair' in (LAUNCHERS / "Repair.bat").read_bytes()
