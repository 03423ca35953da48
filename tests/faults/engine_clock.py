"""When the engine delivers each event and when it is asked to stop, by the clock of its own process, in a file.

``time.perf_counter`` of Linux and macOS counts alike in all processes, so that a test can compare it with its own.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

FILE = "TRIFOLD_ENGINE_CLOCK"


@dataclass(frozen=True)
class Moment:
    """``what`` is the kind of an event, or "cancel" before one of a request that was stopped; ``request`` names it."""

    seconds: float
    request: str
    what: str


def install() -> None:
    """Note down from now on, in the file that ``FILE`` names."""
    from engine.worker import Request

    path, lock = Path(os.environ[FILE]), threading.Lock()
    put = Request.put

    def note(request: Request, what: str) -> None:
        now = time.perf_counter()
        with lock, path.open("a", encoding="ascii") as file:
            file.write(f"{now!r} {id(request)} {what}\n")

    def noted_put(self: Request, event: object) -> None:
        if self.cancelled:
            note(self, "cancel")
        note(self, type(event).__name__)
        put(self, event)  # type: ignore[arg-type]

    Request.put = noted_put  # type: ignore[method-assign]


def moments(path: Path) -> list[Moment]:
    """What was noted so far, in order."""
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    return [Moment(float(seconds), request, what) for seconds, request, what in (line.split() for line in lines)]
