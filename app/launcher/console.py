"""Writes to the terminal. The launcher's progress goes to stderr in plain lines, so that stdout has only the output of
the command. Control characters are removed from text of a file or a model, because they could control the terminal.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import Any

from engine.errors import CONTROLS, on_one_line, plain

_REDRAW_S = 0.2  # minimum seconds between two updates of the progress line in a terminal
_REPEAT_S = 20  # minimum seconds between two progress lines if the output is no terminal


class LaunchError(Exception):
    """Raised if the environment cannot be made. ``cause`` and ``remedy`` are sentences for the user."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause} {remedy}")


def say(sentence: str) -> None:
    sys.stderr.write(plain(sentence) + "\n")
    sys.stderr.flush()


def write(text: str) -> None:
    """Write the command's output to stdout."""
    sys.stdout.write(plain(text))
    sys.stdout.flush()


def json_text(value: Any, indent: int | None = None) -> str:
    """Return JSON in which all control characters are escaped, also those outside ASCII, which ``json.dumps`` leaves as
    they are.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return text.translate({sign: f"\\u{sign:04x}" for sign in CONTROLS})


def write_json(value: Any, indent: int | None = None) -> None:
    """Write one complete JSON value to stdout."""
    sys.stdout.write(json_text(value, indent) + "\n")
    sys.stdout.flush()


class ProgressLine:
    """Shows the progress of one task on stderr. In a terminal, the line is overwritten. In other output, such as a
    file, a new line is written at most every ``_REPEAT_S`` seconds.

    Use it in a ``with`` statement, so that the next output starts on a new line even after an error.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._begin = self._told = time.monotonic()
        self._width = 0
        self._live = sys.stderr.isatty()
        self._show("...")

    def update(self, detail: str) -> None:
        if time.monotonic() - self._told >= (_REDRAW_S if self._live else _REPEAT_S):
            self._show(f"{detail} ({self._seconds()} s)")

    def done(self, result: str = "done") -> None:
        self._show(f"{result} ({self._seconds()} s)")

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            sys.stderr.write("\n")

    def _seconds(self) -> int:
        return round(time.monotonic() - self._begin)

    def _show(self, text: str) -> None:
        self._told = time.monotonic()
        line = on_one_line(f"{self._title}: {text}")
        if self._live:
            line = line[: shutil.get_terminal_size().columns - 1]
            sys.stderr.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()
