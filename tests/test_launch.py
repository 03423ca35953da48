"""The launcher as a person meets it: launch.py of a copy of the tree, started in processes of their own.

The copy has a requirements file with one tiny package, so that an install takes seconds, and a command that says
where it runs. Its path has a space and an accent in it.
"""

from __future__ import annotations

import ast
import ctypes
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.tiny_package import make_wheel, write_requirements

PROBE = """
import json, os, sys
import tinybook

def run(options, settings):
    print(json.dumps({"prefix": sys.prefix, "cwd": os.getcwd(), "version": tinybook.VERSION, "path": sys.path}))
    return 7
"""
PROBE_STATUS = 7
DEAD_INDEX = "http://127.0.0.1:9/simple"  # the discard port: nothing listens there
INSTALL_LIMIT_S = 180

Run = Callable[..., subprocess.CompletedProcess[str]]


def require(tree: Path, version: str) -> None:
    write_requirements(tree / "requirements.txt", tree / "wheels", f"tinybook=={version}")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> Path:
    """A copy of the program with one tiny requirement, in a folder with an awkward name."""
    root = tmp_path_factory.mktemp("My Books é") / "trifold ü"
    code_only = shutil.ignore_patterns("__pycache__", "page", "*.js", "*.css")
    for package_set in ("app", "engine"):
        shutil.copytree(checkout / package_set, root / package_set, ignore=code_only)
    shutil.copy(checkout / "launch.py", root)
    (root / "app" / "cli" / "doctor.py").write_text(PROBE, encoding="utf-8")
    for version in ("1.0", "2.0"):
        make_wheel(root / "wheels", "tinybook", version)
    require(root, "1.0")
    return root


@pytest.fixture(scope="module")
def run(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs launch.py from another folder, with variables of a Python that is not ours, and no network."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "app.py").write_text("raise SystemExit('the wrong app')\n", encoding="utf-8")

    def start(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if name != "TRIFOLD_HOME"}
        environ.update(PYTHONPATH=str(elsewhere), PIP_INDEX_URL=DEAD_INDEX, **variables)
        command = [sys.executable, str(tree / "launch.py"), *arguments]
        return subprocess.run(
            command,
            cwd=elsewhere,
            env=environ,
            capture_output=True,
            encoding="utf-8",
            timeout=INSTALL_LIMIT_S,
            check=False,
        )

    return start


def stamp_of(tree: Path) -> Path:
    return tree / ".venv" / "trifold-program.json"


@pytest.fixture(scope="module")
def first(tree: Path, run: Run) -> subprocess.CompletedProcess[str]:
    """The first start, which makes the environment."""
    return run("doctor")


def test_first_start_makes_the_environment_and_runs_the_command(
    tree: Path, first: subprocess.CompletedProcess[str]
) -> None:
    assert first.returncode == PROBE_STATUS, first.stderr
    said = json.loads(first.stdout)  # what the launcher says goes elsewhere
    assert Path(said["prefix"]).samefile(tree / ".venv")
    assert Path(said["cwd"]).name.startswith("elsewhere")
    assert said["version"] == "1.0"
    assert said["path"][0] == str(tree)
    assert not any("elsewhere" in path for path in said["path"])
    assert "once" in first.stderr
    assert "Collecting" not in first.stderr
    assert "tinybook" in (tree / ".trifold" / "install.log").read_text(encoding="utf-8")


def test_unchanged_start_says_nothing_installs_nothing_and_is_quick(
    tree: Path, run: Run, first: subprocess.CompletedProcess[str]
) -> None:
    stamp = stamp_of(tree).stat()
    log = (tree / ".trifold" / "install.log").stat()
    begin = time.perf_counter()
    again = run("doctor")
    whole = time.perf_counter() - begin
    begin = time.perf_counter()
    bare = [str(tree / ".venv" / "bin" / "python"), str(tree / "launch.py"), "doctor"]
    if os.name != "nt":
        subprocess.run(bare, capture_output=True, check=False, env={**os.environ, "PYTHONNOUSERSITE": "1"})
        assert whole - (time.perf_counter() - begin) < 1.0  # measured: under 0.1 s on an idle machine
    assert (again.returncode, again.stderr) == (PROBE_STATUS, "")
    assert stamp_of(tree).stat().st_mtime_ns == stamp.st_mtime_ns
    assert (tree / ".trifold" / "install.log").stat().st_mtime_ns == log.st_mtime_ns


def test_changed_requirements_bring_the_environment_up_to_date(
    tree: Path, run: Run, first: subprocess.CompletedProcess[str]
) -> None:
    require(tree, "2.0")
    try:
        changed = run("doctor")
        assert json.loads(changed.stdout)["version"] == "2.0"
        assert "up to date" in changed.stderr
    finally:
        require(tree, "1.0")
    assert json.loads(run("doctor").stdout)["version"] == "1.0"


def test_failing_install_says_what_to_do_and_the_next_start_mends_it(
    tree: Path, run: Run, first: subprocess.CompletedProcess[str]
) -> None:
    (tree / "requirements.txt").write_text("tinybook==3.0\n", encoding="utf-8")
    try:
        # No settings of this machine's pip: the one index that is left does not answer.
        failed = run("doctor", PIP_CONFIG_FILE=os.devnull, PIP_FIND_LINKS="")
        assert failed.returncode == 2
        assert "Check the internet connection and start again" in failed.stderr
        assert "Traceback" not in failed.stderr
        assert failed.stdout == ""
        assert not stamp_of(tree).exists()
    finally:
        require(tree, "1.0")
    assert run("doctor").returncode == PROBE_STATUS
    assert stamp_of(tree).exists()


@pytest.mark.slow
def test_killed_install_is_repaired_by_the_next_start(
    tree: Path, run: Run, first: subprocess.CompletedProcess[str]
) -> None:
    shutil.rmtree(tree / ".venv")
    process = subprocess.Popen(
        [sys.executable, str(tree / "launch.py"), "doctor"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + INSTALL_LIMIT_S
    while not (tree / ".venv" / "pyvenv.cfg").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    if os.name == "nt":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not stamp_of(tree).exists()
    repaired = run("doctor")
    assert repaired.returncode == PROBE_STATUS, repaired.stderr
    assert "not whole" in repaired.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["aks", "book.txt", "Who?"], 2, "Did you mean 'ask'?"),
        (["ask"], 2, "FILE and QUESTION"),
        (["ask", "book.txt", "Who?", "--budgt", "9"], 2, "Did you mean '--budget'?"),
        (["--port", "0"], 2, "between 1 and 65535"),
        (["ask", "--help"], 0, "FILE ...] QUESTION"),
    ],
)
def test_wrong_line_or_help_needs_no_install(
    tmp_path: Path, run: Run, arguments: list[str], status: int, words: str
) -> None:
    done = run(*arguments, TRIFOLD_HOME=str(tmp_path / "home"))
    assert done.returncode == status
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "home").exists()


def test_place_that_cannot_be_used_gets_a_sentence(tmp_path: Path, run: Run) -> None:
    (tmp_path / "home").write_text("a file where the folder should be", encoding="utf-8")
    done = run("doctor", TRIFOLD_HOME=str(tmp_path / "home"))
    assert done.returncode == 2
    assert "TRIFOLD_HOME" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_refusals_and_the_doctor_load_the_standard_library_only(checkout: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(checkout)!r})\n"
        "import app.cli.main, app.launcher.start, app.launcher.install, app.core.settings\n"
        "from app.cli.arguments import is_complete\n"
        "assert is_complete(['ask', 'a', 'b']) and not is_complete(['aks'])\n"
        "import app.cli.models, app.cli.doctor\n"  # the doctor's line names the packages that are missing
    )
    # -S leaves every installed package out, as on a machine where nothing is installed yet.
    done = subprocess.run([sys.executable, "-S", "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def launch(checkout: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("launch", checkout / "launch.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_unsupported_python_gets_a_sentence(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "OLDEST", (3, 90))
    monkeypatch.setattr(launch, "NEWEST", (3, 91))
    assert launch.main() == 2
    said = capsys.readouterr().err
    assert "needs Python 3.90 to 3.91" in said
    assert "python.org" in said


def test_ctrl_c_waits_for_the_other_python(launch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed while it saved what it had read."""

    class Other:
        def __init__(self, command: list[str]) -> None:
            self._ends: list[BaseException | int] = [KeyboardInterrupt(), KeyboardInterrupt(), 7]

        def wait(self) -> int:
            end = self._ends.pop(0)
            if isinstance(end, BaseException):
                raise end
            return end

    monkeypatch.setattr(launch, "find_supported_python", lambda: ["python3.12"])
    monkeypatch.setattr(subprocess, "Popen", Other)
    assert launch.use_another_python() == 7


def test_launch_file_can_be_parsed_by_very_old_pythons(checkout: Path) -> None:
    """It has to run at least as far as the sentence about the version."""
    source = (checkout / "launch.py").read_text(encoding="utf-8")
    newer = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.AsyncFunctionDef, ast.Starred)
    for node in ast.walk(ast.parse(source)):
        assert not isinstance(node, newer), ast.dump(node)
        if isinstance(node, ast.FunctionDef):
            assert node.returns is None
            assert all(argument.annotation is None for argument in node.args.args)
    assert source.isascii()  # Python 2 refuses anything else without a declaration


def test_the_file_without_its_neighbours_says_so(checkout: Path, tmp_path: Path) -> None:
    """Windows opens a file in an archive by itself."""
    shutil.copy(checkout / "launch.py", tmp_path)
    done = subprocess.run([sys.executable, str(tmp_path / "launch.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Unpack the whole archive" in done.stderr
    assert "Traceback" not in done.stderr


class Console:
    """``kernel32`` of Windows as far as ``has_own_window`` needs it: the programs of the processes of a console."""

    def __init__(self, *programs: str) -> None:
        def list_processes(numbers: Any, length: int) -> int:
            numbers[: len(programs)] = range(1, len(programs) + 1)
            return len(programs)

        def name_of(handle: Any, flags: int, name: Any, length: Any) -> int:
            name.value = programs[handle.value - 1]
            return 1

        self.GetConsoleProcessList = list_processes
        self.OpenProcess = lambda rights, inherits, number: number
        self.QueryFullProcessImageNameW = name_of
        self.CloseHandle = lambda handle: 1


@pytest.mark.parametrize(
    ("programs", "status", "waits"),
    [
        ((r"C:\Windows\py.exe", r"C:\Python313\python.exe"), 2, True),
        ((r"C:\Windows\py.exe", r"C:\Python313\python.exe"), 0, False),
        ((r"C:\Windows\py.exe", r"C:\Python313\python.exe"), 130, False),
        ((r"C:\Windows\System32\cmd.exe", r"C:\Python313\python.exe"), 2, False),
        ((), 2, False),
    ],
)
def test_a_failure_stays_in_a_window_that_would_close(
    programs: tuple[str, ...],
    status: int,
    waits: bool,
    launch: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A double click on Windows opens a window that closed before anybody could read why."""
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=Console(*programs)), raising=False)
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    monkeypatch.setattr(launch, "main", lambda: status)
    assert launch.run() == status
    assert ("Press Enter" in capsys.readouterr().err) == waits
    assert launch.run() == status  # another launch.py has started this one, and waits
    assert "Press Enter" not in capsys.readouterr().err
