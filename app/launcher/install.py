"""Makes or repairs the program's Python environment: makes its folder, installs the build of torch for this machine and
the pinned packages, and last writes the stamp, a file that marks a complete install.

After a failure there is no stamp, so the next start installs what is missing. If the program is started twice at once,
the second start waits for the first. pip's output goes to the log. Important lines of the output are also shown, as
progress or as an error with a remedy.

pip is used because it comes with Python. uv 0.13 was tried and made the whole environment in 26 seconds. But uv is a
program of 38 MB that has to be downloaded first, and like pip it cannot resume a broken download. Most of this module
would still be needed for detecting GPUs, testing torch, and explaining errors.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import queue
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from app.launcher import lock, torch_build
from app.launcher.console import LaunchError, ProgressLine, say
from app.launcher.environment import Environment, PackageSet, child_variables, running_version

_PROBE_TIMEOUT_S = 6
_LOCK_POLL_S = 0.5
# Imports that try out a new environment (``_try_out``). ``status`` is the expression of the exit status. Python stores
# the modules that it compiles, even if an environment variable forbids it.
_TRIAL = """
import sys
sys.dont_write_bytecode = False
import torch
status = {status}
try:
    import gradio, transformers, transformers.generation, transformers.models.llama.modeling_llama
except Exception as error:
    print(error)
sys.exit(status)
"""
_NO_GPU = 10  # exit status of the test import (``_try_out``) if torch finds no GPU
_TICK_S = 0.5
_LOG_TAIL_CHARACTERS = 200_000
# Characters of the longest path within the environment, rounded up: a licence in torch's folder.
_LONGEST_PATH = 200
_SHORT_PATH = (
    "A path of the environment is too long for Windows.",
    "Move Trifold to a folder with a short path, such as C:\\Trifold, or set TRIFOLD_HOME to one, and start again.",
)

# Patterns of pip's messages about problems outside Trifold, each with a cause and a remedy for the user. The first
# pattern that matches is used.
_DIAGNOSES = (
    (
        r"No space left on device|not enough space on the disk|Errno 28\b",
        "The disk is full.",
        "Free some gigabytes, or set TRIFOLD_HOME to a folder on another disk, and start again.",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError",
        "The package index cannot be reached safely: its certificate is not accepted.",
        "Check the date of this computer, or ask who runs your network for its certificate (pip: --cert).",
    ),
    (
        r"ProxyError|407 Proxy",
        "The proxy of this network refuses the download.",
        "Set HTTPS_PROXY to the right address and start again.",
    ),
    (
        r"NewConnectionError|ConnectTimeoutError|ReadTimeoutError|name resolution|ConnectionError|ProtocolError"
        r"|IncompleteRead|Connection (aborted|reset|refused)|Read timed out|getaddrinfo|unreachable",
        "The packages cannot be downloaded: the package index does not answer.",
        "Check the internet connection and start again; what has been downloaded is kept.",
    ),
    (
        r"Permission denied|Access is denied|WinError 5\b|WinError 32\b",
        "A file of the environment cannot be replaced.",
        "Close every running Trifold, or set TRIFOLD_HOME to a folder that you may write to, and start again.",
    ),
    (r"Windows Long Path support", *_SHORT_PATH),
    (
        r"No matching distribution found|Could not find a version|ResolutionImpossible",
        "The package index has no fitting version for this Python and system.",
        "Try another supported Python version; the log names the package.",
    ),
)
# Matches pip's messages that no version of torch fits this machine.
_NO_TORCH = r"No matching distribution found for torch==|Cannot install torch=="


def ensure(environment: Environment, package_sets: Sequence[PackageSet], rebuild: bool = False) -> None:
    """Install the package sets that are missing or incomplete.

    Args:
        environment: the environment.
        package_sets: the sets to install, beginning with the program's.
        rebuild: whether to delete the environment and begin again.

    Raises:
        LaunchError: the install failed. The next call installs the rest.
    """
    _make_folder(environment.notes)
    with _lock(environment):
        if rebuild:
            say(f"Removing the environment in {environment.folder} to make it afresh.")
            _remove(environment)
        missing = [package_set for package_set in package_sets if not environment.is_ready(package_set)]
        # nothing is missing, because another start has installed the sets while this one waited for the lock
        if not missing:
            return
        environment.log.write_text("", encoding="utf-8")
        begin = time.monotonic()
        # each set is checked again here, because making the environment anew deletes all sets
        for package_set in package_sets:
            if environment.is_ready(package_set):
                continue
            if package_set is environment.program:
                _install_program(environment)
            else:
                _install_more(environment, package_set)
        say(f"Ready after {time.monotonic() - begin:.0f} s. The next start is immediate.")


def _install_program(environment: Environment) -> None:
    mends = environment.is_usable()
    if mends:
        say("The list of packages has changed since the last start: bringing the environment up to date.")
        environment.remove_stamp(environment.program)
    else:
        _say_what_comes(environment)
    build = _reachable_build(environment)
    if not mends:
        _check_disk(environment, build.name)
        _check_paths(environment)
        _remove(environment)
        _create(environment)
    torch = _install_torch(environment, build)
    _install_packages(environment, environment.program, "Fetching and unpacking the packages")
    if _pinned_torch(environment.program):
        _try_out(environment, torch)
    environment.write_stamp(environment.program, torch, running_version())


def _install_more(environment: Environment, package_set: PackageSet) -> None:
    lost = environment.read_stamp(package_set).get("requirements") == package_set.fingerprint()
    environment.remove_stamp(package_set)
    _install_packages(
        environment, package_set, f"Fetching what the {package_set.name} need", ["--force-reinstall"] if lost else []
    )
    environment.write_stamp(package_set, "", running_version())


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
        say(f"It goes to {environment.folder} and needs about 1.8 GB, 6 to 20 GB with a GPU.")


def _check_disk(environment: Environment, build: str) -> None:
    pinned = _pinned_torch(environment.program)
    free, needed = shutil.disk_usage(environment.notes).free, torch_build.disk_bytes(build, platform.system())
    if pinned and free < needed:
        raise LaunchError(
            f"There are {free / 1e9:.1f} GB free on the disk, and the install with this torch needs "
            f"{needed / 1e9:.0f} GB.",
            "Free some space, or set TRIFOLD_HOME to a folder on another disk, and start again. The build for "
            "processors is the smallest: TRIFOLD_TORCH=cpu asks for it.",
        )


def _check_paths(environment: Environment) -> None:
    """On Windows, check that a file with the longest path of the environment can be made. Windows limits a path to 260
    characters, unless the administrator has lifted the limit.

    Raises:
        LaunchError: the path is too long.
    """
    if platform.system() != "Windows" or not _pinned_torch(environment.program):
        return
    probe = environment.notes / ("x" * _LONGEST_PATH)
    try:
        probe.touch()
        probe.unlink()
    except FileNotFoundError as error:
        raise LaunchError(*_SHORT_PATH) from error
    except OSError:  # another program holds the file, whose path is short enough
        return


def _create(environment: Environment) -> None:
    options = [] if brings_pip() else ["--without-pip"]
    python = getattr(sys, "_base_executable", None) or sys.executable
    if options and not _has_pip():
        raise LaunchError("This Python comes without pip.", "On Debian or Ubuntu: sudo apt install python3-venv.")
    with (
        ProgressLine(f"Making a Python {running_version()} environment") as shown,
        environment.log.open("a", encoding="utf-8") as log,
    ):
        status = run_logged([python, "-m", "venv", *options, str(environment.folder)], log)
        if status != 0 or not environment.python.exists():
            hint = "On Debian or Ubuntu: sudo apt install python3-venv. " if platform.system() == "Linux" else ""
            raise LaunchError(
                f"Python could not make an environment in {environment.folder}.", f"{hint}Details: {environment.log}"
            )
        shown.done()


def _reachable_build(environment: Environment) -> torch_build.TorchBuild:
    """Return the build of torch for this machine. If the package index of that build does not answer, or if the
    requirements do not pin torch, return the usual build instead.
    """
    build = _wanted_build() if _pinned_torch(environment.program) else torch_build.TorchBuild(torch_build.PLAIN, "")
    if build.reason:
        say(build.reason)
    if build.index_url is None or _answers(f"{build.index_url}/torch/"):
        return build
    say(f"{torch_build.INDEX_URL} does not answer; taking the usual build of torch, which can be larger.")
    return build._replace(name=torch_build.PLAIN)


def _install_torch(environment: Environment, build: torch_build.TorchBuild) -> str:
    """Install torch from the package index of its build.

    Returns:
        The name of the build for the stamp. ``PLAIN`` if the build has no index of its own or cannot be downloaded;
            torch is then installed with the other packages.
    """
    pinned = _pinned_torch(environment.program)
    if build.index_url is None or not pinned:
        return torch_build.PLAIN
    try:
        with ProgressLine(f"Fetching torch from {build.index_url}") as shown:
            run_pip(environment, build.pip_arguments(pinned), shown)
            shown.done()
    except LaunchError as error:
        say(f"{error} Taking the build of torch that the usual index has instead.")
        return torch_build.PLAIN
    return build.name


def _wanted_build() -> torch_build.TorchBuild:
    """The build of torch that the environment variable ``TRIFOLD_TORCH`` names. If the variable is not set, the build
    for this machine's GPUs.
    """
    named = os.environ.get("TRIFOLD_TORCH")
    if not named:
        others = torch_build.find_amd_gpus(), torch_build.find_intel_gpus()
        return torch_build.choose_build(torch_build.find_gpus(), platform.system(), *others)
    return torch_build.TorchBuild(named, f"TRIFOLD_TORCH asks for the build of torch named {named}.")


def _install_packages(
    environment: Environment, package_set: PackageSet, title: str, options: Sequence[str] = ()
) -> None:
    with ProgressLine(title) as shown:
        run_pip(environment, [*options, "-r", str(package_set.requirements)], shown)
        shown.done()


def _try_out(environment: Environment, torch: str) -> None:
    """Import torch once, to detect a missing system library or a GPU that torch cannot use, and explain the problem
    during the install. Import the other large packages too, so that Python compiles their modules now and not at the
    first start. If such a package cannot be imported, the start reports the error.
    """
    wants_gpu, kind = torch in torch_build.FOR_GPUS, "xpu" if torch == torch_build.XPU else "cuda"
    code = _TRIAL.format(status=f"{_NO_GPU} if {wants_gpu} and not torch.{kind}.is_available() else 0")
    with ProgressLine("Trying it out") as shown, environment.log.open("a", encoding="utf-8") as log:
        status = run_logged([str(environment.python), "-c", code], log)
        if status == _NO_GPU:
            shown.done("torch works, but not on the GPU; python launch.py doctor says more")
        elif status != 0:
            hint = "install the Microsoft Visual C++ Redistributable, then " if os.name == "nt" else ""
            raise LaunchError("torch is installed but does not start.", f"Please {hint}see {environment.log}.")
        else:
            shown.done("torch works")


def _pinned_torch(package_set: PackageSet) -> str | None:
    """The line of the requirements that pins torch, such as ``torch==2.13.0``; None if there is no such line."""
    match = re.search(r"^torch==\S+", package_set.requirements.read_text(encoding="utf-8"), re.MULTILINE)
    return match[0] if match else None


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
    """Let only one install run at a time. The operating system releases the lock even if the process crashes."""
    with environment.lock.open("ab") as file:
        if not lock.take(file):
            say("Another start is preparing the environment; waiting for it.")
            while not lock.take(file):
                time.sleep(_LOCK_POLL_S)
        yield


def _delete_read_only(remove_again: Callable[[str], Any], path: str, _error: object) -> None:
    """Make a file writable and try again to delete it, because Windows refuses to delete read-only files."""
    os.chmod(path, stat.S_IWRITE)
    remove_again(path)


# Running pip ---------------------------------------------------------------------------------------------------------


def pip_command(environment: Environment) -> list[str]:
    """The command that runs pip for the environment. The command runs the environment's own pip. If new environments
    come without pip, it runs the pip of this process's Python.
    """
    if brings_pip():
        return [str(environment.python), "-m", "pip"]
    return [sys.executable, "-m", "pip", "--python", str(environment.python)]


def brings_pip() -> bool:
    """Whether new environments contain pip. On Debian, they do so only if the package python3-venv is installed."""
    return importlib.util.find_spec("ensurepip") is not None


def run_pip(environment: Environment, arguments: Sequence[str], progress_line: ProgressLine) -> None:
    """Run ``pip install`` with some arguments.

    Raises:
        LaunchError: pip failed. The error has the cause that pip's output shows, and a remedy.
    """
    options = ["install", "--no-user", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    # Most modules of the packages are never imported, so Python compiles a module when it is first imported
    # (``_try_out``). Compiling all of them took 29 of 87 s.
    command = [*pip_command(environment), *options, "--no-compile", "--retries", "2", *arguments]
    environment.notes.mkdir(parents=True, exist_ok=True)
    with environment.log.open("a", encoding="utf-8") as log:
        begin = log.tell()
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        status = run_logged(command, log, progress_line)
    if status != 0:
        said = environment.log.read_bytes()[begin:].decode("utf-8", "replace")
        raise diagnose(said[-_LOG_TAIL_CHARACTERS:], environment.log)


def run_logged(command: Sequence[str], log: IO[str], progress_line: ProgressLine | None = None) -> int:
    """Run a command, log its output and show its progress. If this process is interrupted, the command is stopped.
    Returns the command's exit status.
    """
    process = subprocess.Popen(
        command,
        env=child_variables(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_forward_lines, args=(process, lines), daemon=True).start()
    progress = PipProgress()
    try:
        while (line := _next_line(lines)) is not None:
            if line:
                log.write(line)
                progress.hear(line)
            if progress_line:
                progress_line.update(str(progress))
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        log.flush()


class PipProgress:
    """Describes what pip is doing, from the lines of its output."""

    def __init__(self) -> None:
        self._fetched = 0
        self._doing = "starting"

    def hear(self, line: str) -> None:
        words = line.split()
        if re.match(r"\s*(Collecting|Processing) ", line):
            self._fetched += 1
            self._doing = f"package {self._fetched}, {Path(words[1]).name.split('-')[0]}"
        elif size := re.match(r"\s*Downloading (\S+?)-\S+ \(([\d.]+ [MG]B)\)", line):
            self._doing = f"package {self._fetched}, {size[1]}, {size[2]}"
        elif line.startswith("Installing collected packages"):
            self._doing = f"unpacking {line.count(',') + 1} packages, which takes a minute or two"

    def __str__(self) -> str:
        return self._doing


def diagnose(output: str, log: Path) -> LaunchError:
    """Turn the output of a failed pip into a cause and a remedy."""
    if re.search(_NO_TORCH, output) and (missing := _why_torch_is_missing()):
        return LaunchError(missing.cause, f"{missing.remedy} Details: {log}")
    for pattern, cause, remedy in _DIAGNOSES:
        if re.search(pattern, output, re.IGNORECASE):
            return LaunchError(cause, f"{remedy} Details: {log}")
    return LaunchError("Installing the packages failed.", f"Start with --repair to install them again. Details: {log}")


def _why_torch_is_missing() -> torch_build.Missing | None:
    system = platform.system()
    # Windows' own answer is the processor, which also runs a Python for other processors
    machine = sysconfig.get_platform().rpartition("-")[2] if system == "Windows" else platform.machine()
    return torch_build.why_missing(system, machine, platform.mac_ver()[0], sys.maxsize)


def _forward_lines(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    if process.stdout:
        for line in process.stdout:
            lines.put(line)
    lines.put(None)


def _next_line(lines: queue.Queue[str | None]) -> str | None:
    """The next line of output; None after the last line. If no line comes for ``_TICK_S`` seconds, an empty line is
    returned, so that the caller can update the elapsed time.
    """
    try:
        return lines.get(timeout=_TICK_S)
    except queue.Empty:
        return ""
