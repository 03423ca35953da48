"""What the server keeps of its visitors, and that it is bounded."""

from __future__ import annotations

import gc
from pathlib import Path

from gradio import Textbox
from gradio.state_holder import SessionState

from app.books import Books
from app.chats import Chats
from app.ui.desk import Keeper, Stage
from tests.app.ui.entering import enter
from tests.app.ui.scripted import ScriptedEngine, book, wait_for

PORT = 7867
TABS = 100
KEPT = 64  # and one that has just come
QUESTIONS = 8


def _count(kind: type) -> int:
    gc.collect()
    return sum(type(thing) is kind for thing in gc.get_objects())


def test_tabs_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    """Gradio keeps what it knows of 10,000 tabs by default, 85 KB each: every reload of the page would leave that."""
    keeper = Keeper(ScriptedEngine(), Books(tmp_path / "books"), Chats(), lambda path, password=None: book())
    with enter(keeper, tmp_path, PORT) as client:
        parts = client.get("/config").json()["dependencies"]
        index = next(part["id"] for part in parts if part["api_name"] == "show")
        for tab in range(TABS):
            asked = {"data": [], "fn_index": index, "session_hash": f"tab{tab}"}
            assert client.post("/gradio_api/run/predict", json=asked).status_code == 200
        assert 0 < _count(SessionState) <= KEPT + 1
    keeper.close()


def test_a_tab_that_asks_and_asks_keeps_nothing_of_it(tmp_path: Path) -> None:
    """Gradio files every part that an answer updates under a number of its own when it is sent back, for ever."""
    engine = ScriptedEngine(word_seconds=0.0)
    keeper = Keeper(engine, Books(tmp_path / "books"), Chats(), lambda path, password=None: book())
    (tmp_path / "a.txt").write_text("Es war einmal.", encoding="utf-8")
    keeper.open(keeper.books.copy_in(tmp_path / "a.txt"))
    wait_for(lambda: keeper.desk.stage is Stage.READY)
    with enter(keeper, tmp_path, PORT) as client:
        config = client.get("/config").json()
        asks = next(part for part in config["dependencies"] if part["api_name"] == "ask")
        parts = {part["id"]: part["props"] for part in config["components"]}
        fields = [parts[number].get("value") for number in asks["inputs"]]
        parts_before = _count(Textbox)
        for number in range(QUESTIONS):
            asked = {"data": [f"Who {number}?", "", *fields[2:]], "fn_index": asks["id"], "session_hash": "tab"}
            assert client.post("/gradio_api/queue/join", json=asked).status_code == 200
            told = client.get("/gradio_api/queue/data", params={"session_hash": "tab"}).text
            assert '"msg":"process_completed"' in told
        client.get("/healthz")
        assert keeper.chat is not None
        assert len(keeper.chat.exchanges) == QUESTIONS
        assert _count(Textbox) - parts_before <= 4
    keeper.close()
