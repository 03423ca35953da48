"""The settings' own work beside the page: what a look at a model waits for, and the switch of comments."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from app.core.state import AppState
from app.models.switch import SwitchState
from app.web import preferences
from app.web.preferences import Preferences
from engine.plan import MachineRates


class _Child:
    """In the place of the process that measures: it says something once it may."""

    may = threading.Event()
    found: Any = MachineRates(10**12, 10**11, 0, 10**9)

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, *_: object) -> MachineRates:
        self.may.wait()
        if isinstance(self.found, Exception):
            raise self.found
        assert isinstance(self.found, MachineRates)
        return self.found


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Preferences:
    monkeypatch.setattr(preferences.diagnostics, "ChildProcess", _Child)
    monkeypatch.setattr(preferences, "_RATES_S", 0.01)
    monkeypatch.setattr(_Child, "may", threading.Event())
    state: Any = SimpleNamespace(engine=SimpleNamespace(status=lambda: SimpleNamespace(state="idle")))
    switch: Any = SimpleNamespace(data=tmp_path)
    return Preferences(state, switch, 1)


def test_a_look_does_not_wait_for_a_slow_machine(made: Preferences) -> None:
    """It waited for all that was measured, half a minute on a busy machine."""
    assert made.news == "now"
    assert made.rates() is None
    assert made._later({"size": "1 GB"}) == {"size": "1 GB", "measuring": True}
    assert made.news == "", "nothing new before it ends"
    assert made.rates() is None  # and begins no second measurement
    _Child.may.set()
    assert made._ended.wait(60)
    assert made.news == "known"
    assert made.rates() is _Child.found
    assert not made._later({})["measuring"]


def test_what_cannot_be_measured_is_tried_once(made: Preferences, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page asked again after each measurement, and so began the next one, for ever."""
    monkeypatch.setattr(_Child, "found", preferences.diagnostics.ProbeFailed("It crashed."))
    made.rates()
    _Child.may.set()
    assert made._ended.wait(60)
    assert not made._later({})["measuring"]
    assert made.news == "", "a look would bring nothing"
    _Child.may.clear()
    assert made.rates() is None
    assert not made.measuring


def test_a_busy_machine_is_measured_twice(made: Preferences, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the settings began another measurement, two seconds of a core, as long as the machine was busy."""
    monkeypatch.setattr(_Child, "found", MachineRates(10**12, 10**11, 0, 10**9, quiet=False))
    calls: list[object] = []
    monkeypatch.setattr(_Child, "call", lambda self, *given: calls.append(given) or self.found)
    for _ in range(4):
        made.rates()
        assert made._ended.wait(60)
    assert len(calls) == preferences._MOST_MEASUREMENTS == 2
    assert made.rates() == _Child.found


def test_comments_are_switched_by_true_and_false_alone(make_state: Callable[..., AppState]) -> None:
    state, switch = make_state(), SimpleNamespace(state=SwitchState(), present=None)
    panel = Preferences(state, switch, 1)  # type: ignore[arg-type]
    with TestClient(Starlette(routes=list(panel.routes()))) as browser:
        for wanted in (False, True, False):
            assert browser.post("/preferences/comments", json={"read": wanted}).status_code == 200
            assert state.comments is panel.view()["comments"] is wanted
        for odd in ({}, {"read": None}, {"read": "yes"}, {"read": 1}):
            answer = browser.post("/preferences/comments", json=odd)
            assert (answer.status_code, answer.json()["remedy"]) == (400, "Load the page again.")
    assert not state.comments
