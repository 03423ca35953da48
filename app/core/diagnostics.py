"""Collects facts about this machine and this installation, and makes a report for finding faults.

Gives no advice. Functions that use torch run in a child process (``ChildProcess``), so that a crash or a hang of torch
does no harm. The report holds versions, machine, model and the end of the log, but no private content: no words of
documents, questions or answers, no names of people in paths, no keys. Parts of log messages that could quote content
are cut off (``_said``). Of an error, the report has the type and the places in the code, but not the message.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import multiprocessing
import os
import platform
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from app.core.format import size
from app.core.settings import LOG_NAME
from app.launcher.torch_build import Gpu, find_amd_gpus, find_gpus, find_intel_gpus
from engine import Status
from engine.version import VERSION

PACKAGES = ("torch", "transformers", "tokenizers", "gradio", "pypdf", "pypdfium2", "flash-attn")
# Chromium without windows, made for tests, comes first: it takes an eighth less processor time for the same pages.
BROWSERS = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
)
"""Names of the browsers that the tests of the page drive; nothing else needs one."""
_PROBE_TIMEOUT_S = 180
LOG_LINES = 200
_MOST_LOG_BYTES = 200_000  # maximum bytes that are read from the end of the log file

_ENTRY = re.compile(r"(\d{4}-\d\d-\d\d [\d:,]+ [A-Z]+ )([\w.]+)(: )(.*)")
_PLACE = re.compile(r'\s+File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<function>[\w<>]+)')
_KIND = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Warning|Interrupt|Exit|Busy|Closed))\b")
_TRACEBACK = "Traceback (most recent call last):"
_KEYS = re.compile(r"\b(sk-|hf_)[\w-]{8,}|((?:token|key)=)[^\s&]+", re.IGNORECASE)

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Machine:
    """The hardware and the system. Sizes are in bytes. ``gpus``: the NVIDIA GPUs. ``amd_gpus``: the architectures of
    the AMD GPUs, such as "gfx1100". ``intel_gpus``: the PCI device numbers of the Intel GPUs.
    """

    system: str
    python: str
    python_path: str
    processor: str
    cores: int
    usable_cores: int
    memory_total: int
    memory_available: int
    disk_free: int
    disk_of: str
    gpus: tuple[Gpu, ...]
    browser: str | None
    amd_gpus: tuple[str, ...] = ()
    intel_gpus: tuple[str, ...] = ()


class ProbeFailed(Exception):
    """Raised when the child process that uses torch crashes or takes too long. The message is a sentence for a
    person.
    """


def look_around(data: Path) -> Machine:
    """Return the facts about this machine that are found without torch.

    Args:
        data: the data folder, for the free space of its disk.
    """
    import psutil

    memory = psutil.virtual_memory()
    existing = next(folder for folder in (data, *data.parents) if folder.exists())
    return Machine(
        system=platform.platform(),
        python=platform.python_version(),
        python_path=sys.executable,
        processor=processor_name(),
        cores=psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        usable_cores=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        memory_total=memory.total,
        memory_available=memory.available,
        disk_free=shutil.disk_usage(existing).free,
        disk_of=str(existing),
        gpus=tuple(find_gpus()),
        browser=next((found for name in BROWSERS if (found := shutil.which(name))), None),
        amd_gpus=tuple(find_amd_gpus()),
        intel_gpus=tuple(find_intel_gpus()),
    )


def package_versions() -> dict[str, str | None]:
    """The installed versions of ``PACKAGES``, keyed by package; None for a package that is not installed."""
    return {name: _version(name) for name in PACKAGES}


def processor_name() -> str:
    """The name of the processor. On Linux it is read from /proc/cpuinfo, because ``platform.processor`` finds it only
    on some systems.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


class ChildProcess:
    """A separate process that runs functions one after another. Use it in a ``with`` statement.

    The process is killed at the end of the statement, and when this program ends. After a failed call, the next call
    gets a new process.
    """

    def __enter__(self) -> ChildProcess:
        self._process: BaseProcess | None = None
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def call(self, function: Callable[..., _Answer], *arguments: Any) -> _Answer:
        """Call a function in the child process, and return its result.

        Raises:
            ProbeFailed: the process crashed, or took longer than ``_PROBE_TIMEOUT_S``.
            Exception: any exception that the function raised.
        """
        if self._process is None:
            fresh = multiprocessing.get_context("spawn")
            self._pipe, theirs = fresh.Pipe()
            self._process = fresh.Process(target=_answer_calls, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._pipe.send((function, arguments))
            if not self._pipe.poll(_PROBE_TIMEOUT_S):
                self._end()
                raise ProbeFailed(f"torch did not answer within {_PROBE_TIMEOUT_S} s.")
            answer, error = self._pipe.recv()
        except (EOFError, OSError) as broken:
            self._end()
            raise ProbeFailed("torch crashed while it was asked about this machine.") from broken
        if error is not None:
            raise error
        result: _Answer = answer
        return result

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._process = None


def _answer_calls(pipe: Connection) -> None:
    """Run the calls that arrive through a pipe, and send back each result or exception. This is the main function of
    the child process.
    """
    # Ctrl-C is ignored here, because it ends the main program, which then ends this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError):
        while True:
            function, arguments = pipe.recv()
            told: tuple[Any, Exception | None]
            try:
                told = function(*arguments), None
            except Exception as error:  # noqa: BLE001 - the caller raises it
                told = None, error
            pipe.send(told)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# The report ----------------------------------------------------------------------------------------------------------


def report(data: Path, facts: Sequence[str]) -> str:
    """Return the report as text, without private content.

    Args:
        data: the folder with the logs.
        facts: lines about this machine and this program.
    """
    lines = ["Trifold: diagnostics. Nothing in here comes from a book or a chat.", "", *facts, "", "Log:"]
    lines += log_tail(data / "logs" / LOG_NAME) or ["(empty)"]
    return anonymous("\n".join(lines)) + "\n"


def facts_of(data: Path, status: Status) -> list[str]:
    """Lines about this machine, this program and the loaded model. Collecting them is quick, because torch is not
    asked.
    """
    here = look_around(data)
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items() if version)
    nvidia = (f"{gpu.name} (driver {gpu.driver}, capability {gpu.capability})" for gpu in here.gpus)
    others = [*(f"AMD {target}" for target in here.amd_gpus), *(f"Intel {number}" for number in here.intel_gpus)]
    gpus = ", ".join([*nvidia, *others]) or "none"
    return [
        f"Trifold    {VERSION}",
        f"System     {here.system}",
        f"Python     {here.python} at {here.python_path}",
        f"Processor  {here.processor}, {here.usable_cores} of {here.cores} cores usable",
        f"Memory     {size(here.memory_available)} of {size(here.memory_total)} free",
        f"Disk       {size(here.disk_free)} free at {here.disk_of}",
        f"GPUs       {gpus}",
        f"Packages   {versions}",
        f"Engine     {status.state}{': ' + status.detail if status.detail else ''}",
        *_model_lines(status),
    ]


def _model_lines(status: Status) -> list[str]:
    if status.model is None:
        return []
    model = status.model
    draft = f"{model.draft_parameters:,} parameters" if model.draft_parameters else "none"
    lines = [
        f"Model      {model.name}: {model.architecture}, {model.parameters:,} parameters, {model.dtype} on "
        f"{model.device}, window {model.context_limit:,}, {model.kv_bytes_per_token:,} bytes of cache per token"
        f"{model.kv_note and f' ({model.kv_note})'}{model.weights_note and f' ({model.weights_note})'}",
        f"Draft      {draft}",
    ]
    if status.book is not None:  # the report says how much of the book was read, but not which book it is
        book = status.book
        lines.append(f"Book       {book.tokens:,} of {book.tokens_total:,} tokens read, {book.pages_total:,} pages")
    return lines


def log_tail(path: Path) -> list[str]:
    """The last ``LOG_LINES`` lines of the log, after ``harmless`` has removed private content."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _MOST_LOG_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return list(harmless(text.splitlines()))[-LOG_LINES:]


def harmless(lines: Iterable[str]) -> Iterable[str]:
    """Yield the messages and tracebacks of a log without anything that could quote a document. Lines of other kinds are
    left out.
    """
    for line in lines:
        if entry := _ENTRY.fullmatch(line):
            said = _said(entry[2].split(".")[0], entry[4])
            yield f"{entry[1]}{entry[2]}: {said}"
        elif place := _PLACE.match(line):
            yield f"  {_short(place['file'])}:{place['line']} in {place['function']}"
        elif line.strip() == _TRACEBACK:
            yield line
        elif not line.startswith(" ") and (kind := _KIND.match(line)):
            yield kind[1]


def _said(package: str, message: str) -> str:
    """Shorten a message of the log. Messages of the engine contain only numbers and stay whole. A message of the app is
    cut at its first colon, because names and errors follow the colon. Messages of other packages are left out.
    """
    if package == "engine":
        return message
    return message.partition(": ")[0] if package == "app" else "(left out)"


def anonymous(text: str, home: Path | None = None) -> str:
    """Remove access keys from a text, and shorten the home folder in paths to "~", because it contains the person's
    name.
    """
    home = home or Path.home()
    text = _KEYS.sub(lambda found: f"{found[1] or found[2]}(left out)", text)
    for spelled in {str(home), home.as_posix(), str(home).replace("\\", "\\\\")}:
        if len(spelled) > 1:
            text = re.sub(re.escape(spelled) + r"(?![\w.-])", "~", text)
    return text


def _short(file: str) -> str:
    """Shorten a source file's path to its last three parts. The first parts only tell where Python or the program is
    installed.
    """
    parts = re.split(r"[\\/]", file)
    return "/".join(parts[-3:])
