"""One piece of work in the engine thread, seen from both sides: events to take, and a way to stop it.

The caller iterates or polls; the engine thread puts events and looks whether it was cancelled. A request ends with
exactly one final event.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from engine.errors import Busy
from engine.events import AnswerDone, BookRead, Event, Failed
from engine.status import State

if TYPE_CHECKING:
    from engine.session import Session

FINAL = (BookRead, AnswerDone, Failed)
"""Kinds of events that end a request."""


class Request:
    """One piece of work in the engine thread: iterate over its events, or poll them; cancel it at any time.

    A request that nobody iterates any more still runs to its end unless it is cancelled.
    """

    def __init__(self, state: State, work: Callable[[Session], Iterator[Event]]) -> None:
        self.state = state
        self.work = work
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._cancelled = threading.Event()
        self._delivered_all = False

    def cancel(self) -> None:
        """Ask the engine to stop; the final event follows within about a second."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    @property
    def finished(self) -> bool:
        """Whether the final event has been taken."""
        return self._delivered_all

    def busy(self, reading: str = "a book is being read") -> Busy:
        """The error that refuses other work while this is under way; ``reading`` says what reading is here."""
        doing = reading if self.state == "reading" else "a question is being answered"
        return Busy(f"One thing at a time: {doing}.", "Wait for it to end, or stop it.")

    def put(self, event: Event) -> None:
        """Engine side: deliver an event."""
        self._events.put(event)

    def next_event(self, timeout: float | None = None) -> Event | None:
        """The next event, or None if none came within ``timeout`` seconds or the request is finished."""
        if self._delivered_all:
            return None
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            return None
        self._delivered_all = isinstance(event, FINAL)
        return event

    def __iter__(self) -> Iterator[Event]:
        """Events up to the final one. Leaving the loop early cancels the work."""
        try:
            while (event := self.next_event()) is not None:
                yield event
        finally:
            if not self._delivered_all:
                self.cancel()


def until_cancelled(events: Iterator[Event], request: Request) -> Iterator[Event]:
    """The events of a session's generator; a cancelled request is stopped inside it, at its next yield."""
    from engine.session import Stop

    stopped = False
    event = next(events, None)
    while event is not None:
        yield event
        if request.cancelled and not stopped and not isinstance(event, FINAL):
            stopped = True
            event = events.throw(Stop())  # type: ignore[attr-defined]
        else:
            event = next(events, None)
