"""The state of the desk as one frozen record, and a book's way onto it as something that can be called off.

Owns the names of the stages. Knows neither the keeper, who changes it, nor any page.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from app.books import Book
from app.chats import Trouble
from engine.document import Document
from engine.events import BookRead, Figures, ReadingProgress


class Stage(str, Enum):
    """How far the book on the desk has come."""

    EMPTY = "empty"  # there is none
    OPENING = "opening"  # its file is being taken apart
    LOCKED = "locked"  # it needs a password
    CHOOSING = "choosing"  # it does not fit: the person chooses pages
    WAITING = "waiting"  # it waits for the model to be loaded
    READING = "reading"  # the model reads it
    READY = "ready"  # questions are answered
    FAILED = "failed"  # see ``trouble``


class Action(str, Enum):
    """The button that mends a trouble."""

    OPEN_AGAIN = "open-again"
    READ_AGAIN = "read-again"
    OTHER_BOOK = "other-book"
    PASSWORD = "password"
    NONE = ""


@dataclass(frozen=True)
class Desk:
    """A snapshot. ``fit`` is what the engine measured; ``whole`` is the book before pages were chosen.

    ``paused``: the reading stands still at the end of a page, while a question about what was read is answered.
    """

    stage: Stage = Stage.EMPTY
    book: Book | None = None
    whole: Document | None = None
    document: Document | None = None
    fit: Any = None
    progress: ReadingProgress | None = None
    read: BookRead | None = None
    paused: bool = False
    trouble: Trouble | None = None
    action: Action = Action.NONE
    chat: str = ""
    asking: bool = False
    figures: Figures | None = None
    scores: tuple[float, ...] = field(default=())
    pace: tuple[tuple[float, float, float], ...] = field(default=())


class Job:
    """One book on its way to being read; cancelled once and for all, or paused for a question."""

    def __init__(self) -> None:
        self.cancelled = False
        self.paused = False
        self.ended = threading.Event()
        self._request: Any = None

    def cancel(self) -> None:
        self.cancelled = True
        if self._request is not None:
            self._request.cancel()

    def pause(self) -> None:
        self.paused = True
        if self._request is not None:
            self._request.cancel()

    def follow(self, request: Any) -> Any:
        """The request, cancelled at once if the job already was."""
        self._request = request
        if self.cancelled or self.paused:
            request.cancel()
        return request
