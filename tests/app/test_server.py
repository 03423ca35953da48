"""What the server keeps of its visitors, and that it is bounded."""

from __future__ import annotations

import gc
from pathlib import Path

from gradio.state_holder import SessionState

from app.books import Books
from app.chats import Chats
from app.ui.desk import Keeper
from tests.app.ui.entering import enter
from tests.app.ui.scripted import ScriptedEngine, book

PORT = 7867
TABS = 100
KEPT = 64  # and one that has just come


def test_tabs_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    """Gradio keeps what it knows of 10,000 tabs by default, 85 KB each: every reload of the page would leave that."""
    keeper = Keeper(ScriptedEngine(), Books(tmp_path / "books"), Chats(), lambda path, password=None: book())
    with enter(keeper, tmp_path, PORT) as client:
        parts = client.get("/config").json()["dependencies"]
        index = next(part["id"] for part in parts if part["api_name"] == "show")
        for tab in range(TABS):
            asked = {"data": [], "fn_index": index, "session_hash": f"tab{tab}"}
            assert client.post("/gradio_api/run/predict", json=asked).status_code == 200
        gc.collect()
        kept = [thing for thing in gc.get_objects() if isinstance(thing, SessionState)]
        assert 0 < len(kept) <= KEPT + 1
    keeper.close()
