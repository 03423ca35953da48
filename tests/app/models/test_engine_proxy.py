"""The proxy in front of the engine while engines come and go."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from app.models.engine_proxy import EngineProxy
from engine.errors import Busy, ModelError
from tests.app.scripted import ScriptedEngine


class Slow(ScriptedEngine):
    """Takes its time to load, and can fail at it."""

    def __init__(self, gate: threading.Event, error: Exception | None = None) -> None:
        super().__init__()
        self.gate, self.error, self.was_closed = gate, error, False

    def wait_ready(self, timeout: float | None = None) -> Any:
        self.gate.wait(5)
        if self.error is not None:
            raise self.error
        return self.status()

    def close(self) -> None:
        self.was_closed = True


def opened() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


def test_questions_are_refused_and_readers_wait_while_engines_change() -> None:
    proxy, gate = EngineProxy(), threading.Event()
    assert proxy.empty
    first, second = Slow(opened()), Slow(gate)
    proxy.put(lambda: first, "")
    assert proxy.status() == first.status()
    thread = threading.Thread(target=proxy.put, args=(lambda: second, "Changing."))
    thread.start()
    while proxy.status().state != "loading":
        time.sleep(0.01)
    assert proxy.status().detail == "Changing."
    assert first.was_closed, "memory is given back before the next model takes it"
    with pytest.raises(Busy):
        proxy.ask("Who?")
    waited: list[Any] = []
    reader = threading.Thread(target=lambda: waited.append(proxy.wait_ready(5)))
    reader.start()
    gate.set()
    thread.join(5)
    reader.join(5)
    assert waited == [second.status()]


def test_an_engine_that_does_not_load_is_closed_and_the_reason_raised() -> None:
    proxy = EngineProxy()
    engine = Slow(opened(), ModelError("damaged"))
    with pytest.raises(ModelError, match="damaged"):
        proxy.put(lambda: engine, "")
    assert engine.was_closed
    proxy.fail(ModelError("damaged"))
    assert proxy.status().state == "failed"
    with pytest.raises(ModelError):
        proxy.wait_ready(0)
    with pytest.raises(ModelError):
        proxy.ask("Who?")
    proxy.put(lambda: Slow(opened()), "")
    assert proxy.status().state != "failed"


def test_a_closed_slot_closes_what_arrives_late() -> None:
    proxy, gate = EngineProxy(), threading.Event()
    engine = Slow(gate)
    thread = threading.Thread(target=proxy.put, args=(lambda: engine, ""))
    thread.start()
    proxy.close()
    gate.set()
    thread.join(5)
    assert engine.was_closed
