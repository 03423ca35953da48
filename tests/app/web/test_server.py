"""What the server leaves behind when it is put together, what it keeps of its tabs, and that this is bounded."""

from __future__ import annotations

import asyncio
import gc
import inspect
from dataclasses import replace
from pathlib import Path

import pytest
from gradio import Button, Chatbot, component_meta
from gradio.state_holder import SessionState

from app.core.books import Books
from app.core.chats import Chats
from app.core.open_book import Stage
from app.core.settings import make_settings
from app.core.state import AppState
from app.web import gradio_import, server
from tests.app.scripted import ScriptedEngine, book, wait_for
from tests.app.web.entering import enter

PORT = 7867
TABS = 100
KEPT = 64  # and one that has just come
QUESTIONS = 8


def _living(kind: type) -> list[object]:
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) is kind]


def test_tabs_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    """Gradio keeps what it knows of 10,000 tabs by default, 85 KB each: every reload of the page would leave that."""
    before = _living(SessionState)  # of pages that other tests have opened
    state = AppState(ScriptedEngine(), Books(tmp_path / "books"), Chats(), lambda path, password=None: book())
    with enter(state, tmp_path, PORT) as client:
        parts = client.get("/config").json()["dependencies"]
        index = next(part["id"] for part in parts if part["api_name"] == "show")
        for tab in range(TABS):
            asked = {"data": [], "fn_index": index, "session_hash": f"tab{tab}"}
            assert client.post("/gradio_api/run/predict", json=asked).status_code == 200
        assert 0 < len(_living(SessionState)) - len(before) <= KEPT + 1  # the others live while they are held here
    state.close()


def test_a_tab_that_asks_and_asks_keeps_nothing_of_it(tmp_path: Path) -> None:
    """Gradio files every part that it updates under a number of its own when it is sent back, for ever: nothing is sent
    back."""
    engine = ScriptedEngine(word_seconds=0.0)
    state = AppState(engine, Books(tmp_path / "books"), Chats(), lambda path, password=None: book())
    (tmp_path / "a.txt").write_text("Es war einmal.", encoding="utf-8")
    state.open(state.books.copy_in(tmp_path / "a.txt"))
    wait_for(lambda: state.current.stage is Stage.READY)
    with enter(state, tmp_path, PORT) as client:
        shows = next(part for part in client.get("/config").json()["dependencies"] if part["api_name"] == "show")
        assert shows["inputs"] == []
        how = {"mode": "hierarchical", "temperature": 0, "top_p": 1, "max_tokens": 32}
        parts_before = len(_living(Chatbot)), len(_living(Button))
        for number in range(QUESTIONS):
            assert "answer" in client.post("/asking", json={"question": f"Who {number}?", **how}).json()
            wait_for(lambda: not state.current.asking)
            shown = client.post(
                "/gradio_api/run/predict", json={"data": [], "fn_index": shows["id"], "session_hash": "tab"}
            ).json()["data"]
            assert len(shown[0]) == 2 * (number + 1)
        assert state.chat is not None
        assert len(state.chat.exchanges) == QUESTIONS
        grown = len(_living(Chatbot)) - parts_before[0], len(_living(Button)) - parts_before[1]
        assert max(grown) <= 4
    state.close()


def test_no_event_loop_is_left_to_the_garbage_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio made one for every lock of its own and closed none. The collector finalizes a loop and its sockets in any
    order; where a socket came first, "Exception ignored in BaseEventLoop.__del__" was in the terminal at the start."""
    made: list[asyncio.AbstractEventLoop] = []
    policy = asyncio.get_event_loop_policy()
    new_loop = policy.new_event_loop
    monkeypatch.setattr(policy, "new_event_loop", lambda: made.append(new_loop()) or made[-1])
    state = AppState(ScriptedEngine(), Books(tmp_path / "books"), Chats(), lambda path, password=None: book())
    server.guarded_app(state, replace(make_settings(), data=tmp_path, port=PORT))
    state.close()
    assert [loop.is_closed() for loop in made] == [True]


def test_gradio_writes_no_stubs_when_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def written(*_: object, **__: object) -> None:
        raise AssertionError("a stub is written")

    monkeypatch.setattr(Path, "write_text", written)
    monkeypatch.setattr(Path, "read_text", written)
    with gradio_import.without_stubs():
        component_meta.create_or_modify_pyi(Button, "Button", [])
        assert inspect.getfile(Path)
    assert inspect.getfile(Button)
