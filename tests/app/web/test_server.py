"""What the server leaves behind when it is put together, what it keeps of its tabs, and that this is bounded."""

from __future__ import annotations

import asyncio
import gc
import inspect
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

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
TABS = 70
KEPT = 64  # and one that has just come
QUESTIONS = 6


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


def _until_ok(connection: socket.socket) -> bool:
    """Whether an answer comes before the connection ends."""
    got = b""
    while not got.endswith(b"ok") and (more := connection.recv(1000)):
        got += more
    return got.endswith(b"ok")


def test_a_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of anybody who reaches the port, the page's own or not. A request that takes its time is answered."""
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.5)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(1.2 if scope["path"] == "/slow" else 0)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    ready = threading.Event()
    with server._listen(0) as listening:
        port = listening.getsockname()[1]
        running = server._server(app, ready.set)
        running.config.lifespan = "off"
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        assert ready.wait(20)
        try:
            begun, idle, again, slow = (socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(4))
            begun.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n")
            again.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert _until_ok(again)
            again.sendall(b"GET / HT")
            slow.sendall(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
            for one in (begun, idle, again):
                assert one.recv(1000) == b""
            assert _until_ok(slow)
            for one in (begun, idle, again, slow):
                one.close()
        finally:
            running.should_exit = True
            thread.join()
