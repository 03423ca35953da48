"""The place in which an engine stands, so that another can take it while the program runs.

Has the methods of ``engine.Engine`` and hands everything to the one that stands in it: the desk, the page and /v1
hold the slot and never an engine. While one is exchanged the slot says "loading", and questions wait or are refused.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

from engine import Status
from engine.errors import Busy, Closed, TrifoldError

Make = Callable[[], Any]
"""Begins to load an engine and returns at once, as ``engine.Engine(config)`` does."""

_QUESTIONS = ("ask", "read")
_CHANGING = Busy("The model is being changed.", "Wait until the new one is loaded.")


class Slot:
    """Empty at first; ``put`` fills it."""

    def __init__(self, detail: str = "The model is being loaded.") -> None:
        self._engine: Any = None
        self._status: Status | None = Status("loading", detail)
        self._settled = threading.Event()
        self._failure: TrifoldError | None = None
        self._closed = False

    @classmethod
    def around(cls, engine: Any) -> Slot:
        """A slot in which an engine stands already."""
        slot = cls()
        slot._engine, slot._status = engine, None
        slot._settled.set()
        return slot

    @property
    def empty(self) -> bool:
        """Whether nothing stands here, or has failed to."""
        return self._engine is None

    def status(self) -> Status:
        """A snapshot. Never blocks."""
        status: Status = self._status or self._engine.status()
        return status

    def wait_ready(self, timeout: float | None = None) -> Status:
        """Wait until an engine stands here and its models are loaded. Raises what its loading raised."""
        self._settled.wait(timeout)
        if self._failure is not None:
            raise self._failure
        if self._engine is not None and self._settled.is_set():
            self._engine.wait_ready(timeout)
        return self.status()

    def measure(self, document: Any) -> Any:
        """Waits for the models; see ``engine.Engine``."""
        self.wait_ready()
        return self._engine.measure(document)

    def close(self) -> None:
        self._closed = True
        if self._engine is not None:
            self._engine.close()
        self._failure = self._failure or Closed("The engine has been closed.")
        self._settled.set()

    def tell(self, detail: str) -> None:
        """Say what is being waited for, as long as nothing stands here."""
        if not self._settled.is_set():
            self._status = Status("loading", detail)

    def fail(self, error: TrifoldError) -> None:
        """Nothing could be put here, and this is why."""
        self._failure = error
        self._status = Status("failed", str(error))
        self._settled.set()

    def put(self, make: Make, detail: str) -> None:
        """Close what stands here, put another in its place, and wait until it is loaded.

        Raises:
            TrifoldError: it cannot be loaded; it has been closed, and nothing stands here until the next ``put``.
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

    def __getattr__(self, name: str) -> Any:
        """Whatever else an engine can do."""
        if name.startswith("_"):
            raise AttributeError(name)
        if not self._settled.is_set() and name in _QUESTIONS:
            raise _CHANGING
        if self._failure is not None:
            raise self._failure
        if self._engine is None:
            raise _CHANGING
        return getattr(self._engine, name)


def give_back_memory() -> None:
    """What an engine held is free for the next one. A GPU's memory stays with torch until it is told."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
