"""What the launcher says while it works: plain lines on stderr, so that stdout stays the command's own."""

from __future__ import annotations

import sys
import time

_REDRAW_S = 0.2


class LaunchError(Exception):
    """The environment cannot be made. Both parts are sentences for the person."""

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause} {remedy}")


def say(sentence: str) -> None:
    sys.stderr.write(sentence + "\n")
    sys.stderr.flush()


class Stage:
    """One line of progress: redrawn in place in a terminal, written once where the output is kept."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._begin = time.monotonic()
        self._drawn = 0.0
        self._width = 0
        self._live = sys.stderr.isatty()
        if not self._live:
            say(title + " ...")

    def update(self, detail: str) -> None:
        now = time.monotonic()
        if self._live and now - self._drawn >= _REDRAW_S:
            self._drawn = now
            self._draw(f"{self._title}: {detail} ({now - self._begin:.0f} s)")

    def done(self, result: str = "done") -> None:
        seconds = time.monotonic() - self._begin
        if self._live:
            self._draw(f"{self._title}: {result} ({seconds:.0f} s)")
            sys.stderr.write("\n")
        else:
            say(f"    {result} ({seconds:.0f} s)")

    def failed(self) -> None:
        if self._live and self._width:
            sys.stderr.write("\n")

    def _draw(self, line: str) -> None:
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)
