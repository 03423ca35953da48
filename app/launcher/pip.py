"""Runs pip for the environment: its noise goes to the log, and what a person wants to know becomes progress.

Knows how pip words its output; does not know what is installed or why.
"""

from __future__ import annotations

import importlib.util
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from app.launcher.environment import Environment
from app.launcher.speech import LaunchError, Stage
from app.launcher.variables import child_variables

_TICK_S = 0.5
_LOG_TAIL_CHARACTERS = 200_000

# What pip says when something outside the program is wrong, and what a person can do. The first that matches counts.
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
    (
        r"No matching distribution found|Could not find a version",
        "The package index has no fitting version for this Python and system.",
        "Try another supported Python version; the log names the package.",
    ),
)


def pip_command(environment: Environment) -> list[str]:
    """pip inside the environment, or this Python's own pip where the system brings none for environments."""
    if brings_pip():
        return [str(environment.python), "-m", "pip"]
    return [sys.executable, "-m", "pip", "--python", str(environment.python)]


def brings_pip() -> bool:
    """Whether new environments come with pip. Debian packs that apart, as python3-venv."""
    return importlib.util.find_spec("ensurepip") is not None


def install(environment: Environment, arguments: Sequence[str], stage: Stage) -> None:
    """Run ``pip install`` with some arguments.

    Raises:
        LaunchError: pip failed; says why as far as its output tells.
    """
    options = ["install", "--no-user", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    command = [*pip_command(environment), *options, "--retries", "2", *arguments]
    environment.notes.mkdir(parents=True, exist_ok=True)
    with environment.log.open("a", encoding="utf-8") as log:
        begin = log.tell()
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        status = run_logged(command, log, stage)
    if status != 0:
        said = environment.log.read_bytes()[begin:].decode("utf-8", "replace")
        raise diagnose(said[-_LOG_TAIL_CHARACTERS:], environment.log)


def run_logged(command: Sequence[str], log: IO[str], stage: Stage | None = None) -> int:
    """Run a command with its output in the log, one stage line as its progress. Ctrl-C ends it. Returns its status."""
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
            if stage:
                stage.update(str(progress))
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        log.flush()


class PipProgress:
    """Counts what pip says it does."""

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
    for pattern, cause, remedy in _DIAGNOSES:
        if re.search(pattern, output, re.IGNORECASE):
            return LaunchError(cause, f"{remedy} Details: {log}")
    return LaunchError("Installing the packages failed.", f"Start with --repair to do it afresh. Details: {log}")


def _forward_lines(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    if process.stdout:
        for line in process.stdout:
            lines.put(line)
    lines.put(None)


def _next_line(lines: queue.Queue[str | None]) -> str | None:
    """The next line, or an empty one after a moment of silence so that the clock on the screen moves."""
    try:
        return lines.get(timeout=_TICK_S)
    except queue.Empty:
        return ""
