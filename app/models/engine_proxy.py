"""A proxy for the engine, so that the engine can be replaced while the program runs.

The app, the page and the HTTP API under /v1 keep a reference to the proxy, never to an engine. While an engine is being
replaced, the status is "loading", and a question waits for the new engine. A question is refused if the new engine is
not loaded within the question's ``wait`` seconds.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from engine import EngineConfig, EngineLike, Question, Request, Status
from engine.document import Document, Reading
from engine.errors import Busy, Closed, TrifoldError
from engine.events import AnswerDone, BookRead

if TYPE_CHECKING:
    from engine.plan import BookFit

Make = Callable[[], EngineLike]
"""Starts to load an engine and returns it at once, like ``engine.Engine(config)``."""

_LOOK_S = 0.05  # seconds between two checks whether a waiting question was cancelled


class EngineProxy:
    """Forwards every call to the current engine. Has the methods of ``engine.EngineLike``. ``put`` sets or replaces the
    engine.
    """

    def __init__(self, detail: str = "The model is being loaded.") -> None:
        self._engine: EngineLike | None = None
        self._status: Status | None = Status("loading", detail)
        self._settled = threading.Event()
        self._failure: TrifoldError | None = None
        self._closed = False

    @classmethod
    def around(cls, engine: EngineLike) -> EngineProxy:
        """Make a proxy for an existing engine."""
        proxy = cls()
        proxy._engine, proxy._status = engine, None
        proxy._settled.set()
        return proxy

    @property
    def empty(self) -> bool:
        """Whether the proxy has no engine, because none was set yet or the last one failed to load."""
        return self._engine is None

    @property
    def config(self) -> EngineConfig | None:
        engine = self._engine
        return engine.config if engine is not None else None

    def status(self) -> Status:
        engine, own = self._engine, self._status
        return own or (engine.status() if engine is not None else Status("loading", _changing().cause))

    def wait_ready(self, timeout: float | None = None) -> Status:
        self._settled.wait(timeout)
        if self._failure is not None:
            raise self._failure
        if self._engine is not None and self._settled.is_set():
            self._engine.wait_ready(timeout)
        return self.status()

    def measure(self, document: Document) -> BookFit:
        self.wait_ready()
        return self._loaded().measure(document)

    def read(self, reading: Reading | Document, *, cancel: threading.Event | None = None) -> Request[BookRead]:
        wanted = Reading.of(reading)
        until = time.monotonic() + wanted.wait
        engine = self._settled_until(until, cancel)
        return engine.read(replace(wanted, wait=max(0.0, until - time.monotonic())), cancel=cancel)

    def ask(self, question: Question | str, *, cancel: threading.Event | None = None) -> Request[AnswerDone]:
        asked = Question.of(question)
        until = time.monotonic() + asked.wait
        engine = self._settled_until(until, cancel)
        return engine.ask(replace(asked, wait=max(0.0, until - time.monotonic())), cancel=cancel)

    def forget_book(self) -> None:
        if self._engine is not None:
            self._engine.forget_book()

    def finish_saving(self) -> str:
        return self._loaded().finish_saving()

    def close(self) -> None:
        self._closed = True
        if self._engine is not None:
            self._engine.close()
        self._failure = self._failure or Closed("The engine has been closed.")
        self._settled.set()

    def tell(self, detail: str) -> None:
        """Set the status text that is shown while an engine is being loaded."""
        if not self._settled.is_set():
            self._status = Status("loading", detail)

    def fail(self, error: TrifoldError) -> None:
        """Record why no engine could be loaded. Waiting callers get this error."""
        self._failure = error
        self._status = Status("failed", str(error))
        self._settled.set()

    def put(self, make: Make, detail: str) -> None:
        """Close the current engine, start the next one, and wait until it is loaded.

        Args:
            make: starts loading the next engine.
            detail: status text while it is loaded.

        Raises:
            TrifoldError: the next engine cannot be loaded. Both engines are then closed, and calls fail until ``put``
                succeeds.
        """
        self._settled.clear()
        self._status = Status("loading", detail)
        self._failure = None
        former, self._engine = self._engine, None
        if former is not None:
            former.close()
        del former
        give_back_memory()
        engine = None
        try:
            engine = make()
            self._engine = engine
            engine.wait_ready()
        except Exception:
            self._engine = None
            if engine is not None:
                engine.close()
            raise
        if self._closed:  # the proxy was closed during loading
            engine.close()
        self._status = None
        self._settled.set()

    def _settled_until(self, deadline: float, cancel: threading.Event | None) -> EngineLike:
        """Wait until an engine is loaded, and return it. ``deadline``: the latest time, by ``time.monotonic``.

        Raises:
            Busy: no engine was loaded in time, or ``cancel`` was set.
            TrifoldError: the last engine could not be loaded, or the proxy is closed.
        """
        while not self._settled.is_set() and (left := deadline - time.monotonic()) > 0:
            if cancel is not None and cancel.is_set():
                break
            self._settled.wait(min(left, _LOOK_S))
        if not self._settled.is_set():
            raise _changing()
        return self._loaded()

    def _loaded(self) -> EngineLike:
        if self._failure is not None:
            raise self._failure
        if self._engine is None:
            raise _changing()
        return self._engine


def _changing() -> Busy:
    return Busy("The model is being changed.", "Wait until the new one is loaded.")


def give_back_memory() -> None:
    """Return a closed engine's memory to the system or the GPU, because torch keeps freed memory for reuse."""
    gc.collect()
    if "torch" in sys.modules:
        from engine.devices import empty_caches

        empty_caches()
