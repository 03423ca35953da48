"""The app is killed while an answer from passages waits for the whole book, and while the whole book answers."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

from tests.e2e.steps import scripted_command
from tests.faults.driver import App

BOOK = b"Book One that is read later"
SAVED = 0.8  # seconds after which what was written is on disk


class Scripted(App):
    """The app with a scripted engine, whose reading waits for a question with "read on"."""

    def command(self, module: str, arguments: list[str]) -> list[str]:
        return scripted_command(self.port, self.data)

    def ask_at_once(self, question: str) -> int:
        told = self.post("/asking", {"question": question, "tab": "tab"}).json()
        return int(told["answer"])

    def shown(self) -> str:
        """The last message of the open chat."""
        return "".join(part["text"] for part in self.chat()[-1]["content"] if part.get("type") == "text")


def test_both_answers_are_kept_as_far_as_they_were_written(tmp_path: Path) -> None:
    data = tmp_path / "data"
    app = Scripted(data)
    try:
        app.wait_up()
        app.give("later.txt", BOOK)
        app.until(lambda state: state["book"]["stage"] == "reading" and state["pages_read"])
        first = app.ask_at_once("Say slowly, and in which year was lamp7 lit? Do read on")
        app.until(lambda state: _writes_the_whole(state, first))
        time.sleep(SAVED)
    finally:
        app.kill()
    with sqlite3.connect(data / "library.db") as library:
        (text,) = library.execute("SELECT text FROM messages WHERE id = ?", (first,)).fetchone()
    assert "The lamp was lit in 1912.".startswith(text)
    assert text
    with Scripted(data) as app:
        (book,) = app.state()["books"]
        app.post("/books/open", {"id": book["id"]})
        app.until(lambda state: state["chat"]["turns"] == 1)
        shown = app.shown()
        assert "in 1911." in shown
        assert '<details class="first-answer" open>' in shown
        assert "cut off when Trifold ended" in shown
        assert ">Continue</button>" in shown


def _writes_the_whole(state: dict[str, Any], answer: int) -> bool:
    """Whether the page shows words of the answer from the whole book, below the first one."""
    writing = state.get("writing") or {}
    return writing.get("answer") == answer and bool(writing["text"]) and "first-answer" in writing.get("html", "")


def test_an_answer_from_passages_that_waited_is_whole_after_a_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    app = Scripted(data)
    try:
        app.wait_up()
        app.give("later.txt", BOOK)
        app.until(lambda state: state["book"]["stage"] == "reading" and state["pages_read"])
        app.ask_at_once("And in which year was lamp7 lit?")
        app.until(lambda state: state["chat"]["turns"] == 1 and not state["asking"])
        assert ">Enough</button>" in app.shown()
    finally:
        app.kill()
    with Scripted(data) as app:
        (book,) = app.state()["books"]
        app.post("/books/open", {"id": book["id"]})
        app.until(lambda state: state["chat"]["turns"] == 1)
        shown = app.shown()
        assert "in 1911." in shown
        assert ">Ask the whole book</button>" in shown
        assert "Enough" not in shown
