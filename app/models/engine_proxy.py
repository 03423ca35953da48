"""A proxy in front of the engine, so that another one can take its place while the program runs.

The app, the page and /v1 hold the proxy and never an engine. During an exchange the status is "loading", and questions
wait or are refused.
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
from engine.document import Document
from engine.errors import Busy, Closed, TrifoldError
from engine.events import AnswerDone, BookRead

if TYPE_CHECKING:
    from engine.plan import BookFit

Make = Callable[[], EngineLike]
"""Begins to load an engine and returns at once, as ``engine.Engine(config)`` does."""

_LOOK_S = 0.05  # seconds between two checks whether a waiting question has been stopped


class EngineProxy:
    """Forwards every call to the present engine (see ``engine.EngineLike``). There is none at first; ``put`` sets
    one.
    """

    def __init__(self, detail: str = "The model is being loaded.") -> None:
        self._engine: EngineLike | None = None
        self._status: Status | None = Status("loading", detail)
        self._settled = threading.Event()
        self._failure: TrifoldError | None = None
        self._closed = False

    @classmethod
    def around(cls, engine: EngineLike) -> EngineProxy:
        """Make a proxy of an existing engine."""
        proxy = cls()
        proxy._engine, proxy._status = engine, None
        proxy._settled.set()
        return proxy

    @property
    def empty(self) -> bool:
        """Whether there is no engine, or it has failed."""
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

    def read(
        self,
        document: Document,
        *,
        fit: bool = False,
        resume: bool = False,
        wait: float = 0.0,
        cancel: threading.Event | None = None,
    ) -> Request[BookRead]:
        until = time.monotonic() + wait
        engine = self._settled_until(until, cancel)
        left = max(0.0, until - time.monotonic())
        return engine.read(document, fit=fit, resume=resume, wait=left, cancel=cancel)

    def ask(self, question: Question | str, *, cancel: threading.Event | None = None) -> Request[AnswerDone]:
        asked = Question.of(question)
        until = time.monotonic() + asked.wait
        engine = self._settled_until(until, cancel)
        return engine.ask(replace(asked, wait=max(0.0, until - time.monotonic())), cancel=cancel)

    def finish_saving(self) -> str:
        return self._loaded().finish_saving()

    def close(self) -> None:
        self._closed = True
        if self._engine is not None:
            self._engine.close()
        self._failure = self._failure or Closed("The engine has been closed.")
        self._settled.set()

    def tell(self, detail: str) -> None:
        """Set the words about the wait for an engine, for as long as there is none."""
        if not self._settled.is_set():
            self._status = Status("loading", detail)

    def fail(self, error: TrifoldError) -> None:
        """Note that no engine could be loaded, with the error."""
        self._failure = error
        self._status = Status("failed", str(error))
        self._settled.set()

    def put(self, make: Make, detail: str) -> None:
        """Close the present engine, put another in its place, and wait until it is loaded.

        Raises:
            TrifoldError: the new engine cannot be loaded. It has been closed, and there is no engine until the next
                ``put``.
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
        if self._closed:  # the program has ended meanwhile
            engine.close()
        self._status = None
        self._settled.set()

    def _settled_until(self, until: float, cancel: threading.Event | None) -> EngineLike:
        """The engine, once it has been loaded.

        Raises:
            Busy: the engine is still being loaded at that time, or ``cancel`` has been set meanwhile.
        """
        while not self._settled.is_set() and (left := until - time.monotonic()) > 0:
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
    """Free the memory of a closed engine for the next one. torch keeps a GPU's memory until told to release it."""
    gc.collect()
    if "torch" in sys.modules:
        from engine.devices import empty_caches

        empty_caches()
