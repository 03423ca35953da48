"""What helps somebody else to find a fault: versions, machine, model, the end of the log. Never what people read.

Owns what is left out: words of documents, questions and answers; names of people in paths; keys. Of the log's lines
only our own modules' are kept, since those say nothing of content; an error keeps its kind and its places in the
code, and loses its message, which may quote anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from app import machine
from engine import Status

LOG_LINES = 200
_LOG_NAME = "trifold.log"
_MOST_LOG_BYTES = 200_000

_ENTRY = re.compile(r"(\d{4}-\d\d-\d\d [\d:,]+ [A-Z]+ )([\w.]+)(: )(.*)")
_PLACE = re.compile(r'\s+File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<function>[\w<>]+)')
_KIND = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Warning|Interrupt|Exit|Busy|Closed))\b")
_TRACEBACK = "Traceback (most recent call last):"
_KEYS = re.compile(r"\b(sk-|hf_)[\w-]{8,}|((?:token|key)=)[^\s&]+", re.IGNORECASE)


def report(data: Path, facts: Sequence[str]) -> str:
    """The whole text.

    Args:
        data: the folder with the logs.
        facts: lines about this machine and this program.
    """
    lines = ["Trifold: diagnostics. Nothing in here comes from a book or a chat.", "", *facts, "", "Log:"]
    lines += log_tail(data / "logs" / _LOG_NAME) or ["(empty)"]
    return anonymous("\n".join(lines)) + "\n"


def facts_of(data: Path, status: Status) -> list[str]:
    """What the running program knows without asking anybody: quick, and without effect on an answer."""
    here = machine.look_around(data)
    versions = ", ".join(f"{name} {version}" for name, version in machine.package_versions().items() if version)
    gpus = ", ".join(f"{gpu.name} (driver {gpu.driver}, capability {gpu.capability})" for gpu in here.gpus) or "none"
    return [
        f"System     {here.system}",
        f"Python     {here.python} at {here.python_path}",
        f"Processor  {here.processor}, {here.usable_cores} of {here.cores} cores usable",
        f"Memory     {here.memory_available / 1e9:.1f} of {here.memory_total / 1e9:.1f} GB free",
        f"Disk       {here.disk_free / 1e9:.1f} GB free at {here.disk_of}",
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
        f"{model.kv_note and f' ({model.kv_note})'}",
        f"Draft      {draft}",
    ]
    if status.book is not None:  # how much, not what
        book = status.book
        lines.append(f"Book       {book.tokens:,} of {book.tokens_total:,} tokens read, {book.pages_total:,} pages")
    return lines


def log_tail(path: Path) -> list[str]:
    """The last lines of the log that may be shown."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _MOST_LOG_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return list(harmless(text.splitlines()))[-LOG_LINES:]


def harmless(lines: Iterable[str]) -> Iterable[str]:
    """Log lines without anything that could come from a document."""
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
    """The app's own messages quote names and errors behind a colon; the engine's quote numbers."""
    if package == "engine":
        return message
    return message.partition(": ")[0] if package == "app" else "(left out)"


def anonymous(text: str, home: Path | None = None) -> str:
    """A text without keys and without the name of the person in paths."""
    home = home or Path.home()
    text = _KEYS.sub(lambda found: f"{found[1] or found[2]}(left out)", text)
    for spelled in {str(home), home.as_posix(), str(home).replace("\\", "\\\\")}:
        if len(spelled) > 1:
            text = re.sub(re.escape(spelled) + r"(?![\w.-])", "~", text)
    return text


def _short(file: str) -> str:
    """A source file by its last folders: where Python is installed says nothing about a fault."""
    parts = re.split(r"[\\/]", file)
    return "/".join(parts[-3:])
