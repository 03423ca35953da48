"""Power cuts: the app is killed at random moments while it reads, answers and saves, and started again on what is left.

After every cut: the next start works, the store passes SQLite's own check, every book that had been read and every
answer that had been given whole is there, word for word, and no half of anything is taken for a whole.
"""

from __future__ import annotations

import csv
import html
import random
import re
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.sealed import unseal
from tests.faults.conftest import LONG
from tests.faults.driver import App
from tests.nursery import Nursery
from tests.tally import count

CUTS = 50 if LONG else 2
LATEST = 1.5  # seconds after the work began
SEED = 20261121


@dataclass
class Ledger:
    """What the app has promised: told as done before the cut."""

    books: dict[str, bytes] = field(default_factory=dict)
    answers: list[tuple[str, str, str]] = field(default_factory=list)  # book, question, what was shown
    notes: dict[str, str] = field(default_factory=dict)  # words of a note, and its book
    tables: list[tuple[str, str]] = field(default_factory=list)  # book, question that was put to each

    def check(self, app: App) -> None:
        shelf = {book["id"] for book in app.state()["books"]}
        assert set(self.books) <= shelf, "a book that had been read is gone"
        for book in {book for book, _, _ in self.answers[-3:]}:
            assert app.post("/books/open", {"id": book}).status == 200
            state = app.until(lambda state: state["book"]["stage"] == "ready")
            kept = self._everything(app, state)
            for asked_of, question, shown in self.answers:
                if asked_of == book:
                    assert shown in kept.get(question, ()), f"an answer that had been given is gone: {question}"
        self._check_beside(app)

    def _check_beside(self, app: App) -> None:
        """The notes of the last two books that have some, and what was answered by each book."""
        for book in list(dict.fromkeys(self.notes.values()))[-2:]:
            assert app.post("/books/open", {"id": book}).status == 200
            app.until(lambda state: state["book"]["stage"] == "ready")
            kept = {note["words"] for note in app.post("/notes/list", {"words": ""}).json()["notes"]}
            assert {words for words, its in self.notes.items() if its == book} <= kept, "a note is gone"
        for book, question in self.tables:
            lines = (app.data / "books" / book / "asked.json").read_bytes().splitlines()
            assert question in [unseal(line)["question"] for line in lines], "a row of a table is gone"

    @staticmethod
    def _everything(app: App, state: dict[str, Any]) -> dict[str, list[str]]:
        """Every question of every chat about the open book, with its answers."""
        kept: dict[str, list[str]] = {}
        for chat in state["chats"]:
            assert app.post("/chats/open", {"id": chat["id"]}).status == 200
            messages = [(message["role"], _words(message)) for message in app.chat()]
            for (role, question), (other, answer) in zip(messages[::2], messages[1::2], strict=False):
                assert (role, other) == ("user", "assistant")
                kept.setdefault(question, []).append(answer)
        return kept


def _words(message: dict[str, Any]) -> str:
    """The text of a message without what stands around it: figures, buttons, and the frame of a question."""
    text = "".join(part["text"] for part in message["content"] if part.get("type") == "text")
    question = re.match(r'<div class="asked">(.*?)</div>', text, re.DOTALL)
    return html.unescape(question[1]) if question else text.partition('\n\n<div class="')[0]


def _store_is_whole(data: Path, scratch: Path) -> None:
    """Look at a copy, so that looking mends nothing."""
    shutil.copytree(data, scratch, ignore=shutil.ignore_patterns("*.kv", "*.safetensors"))
    for file in [*scratch.rglob("*.db"), *scratch.rglob("*.sqlite*")]:
        if file.read_bytes()[:15] == b"SQLite format 3":
            connection = sqlite3.connect(file)
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            connection.close()
    shutil.rmtree(scratch)


class _Work:
    """One thing that a person does, noted in the ledger when the app has said that it is done."""

    def __init__(self, app: App, ledger: Ledger, dice: random.Random, number: int) -> None:
        self.app, self.ledger, self.dice, self.number = app, ledger, dice, number

    def read(self) -> None:
        text = f"CHAPTER 1\n\nBook {self.number}. " + "The lamp stood on the sill, and Maren lit it at dusk. " * 400
        state = self.app.read(f"Büch {self.number}.txt", text.encode())
        if state["book"]["stage"] == "ready":
            self.ledger.books[state["book"]["id"]] = text.encode()

    def ask(self) -> None:
        state = self.app.until(lambda state: state["book"]["stage"] in ("ready", "empty"))
        if state["book"]["stage"] == "empty":
            return self.read()
        question = f"Who lit lamp {self.number}?"
        asked = self.app.ask(question, tokens=self.dice.choice((32, 256)))
        if asked.ended and len(asked.messages) > 1:
            self.ledger.answers.append((state["book"]["id"], question, _words(asked.messages[-1])))

    def leaf(self) -> None:
        for book in list(self.ledger.books)[-2:]:
            self.app.post("/books/open", {"id": book})
            self.app.until(lambda state: state["book"]["stage"] == "ready")

    def note(self) -> None:
        self.leaf()
        book = list(self.ledger.books)[-1]
        for at in range(40):
            words = f"Note {at} of {self.number}"
            added = self.app.post("/notes/add", {"page": 1, "words": words})
            if added.status == 200:
                self.ledger.notes[words] = book
                note = {"id": added.json()["id"], "words": f"{words}, changed", "colour": "rose"}
                del self.ledger.notes[words]  # the cut may come after the change and before its answer
                changed = self.app.post("/notes/change", note)
                self.ledger.notes[changed.json()["words"]] = book

    def ask_each(self) -> None:
        self.app.until(lambda state: state["book"]["stage"] in ("ready", "empty"))
        question = f"Who lit each lamp of {self.number}?"
        self.app.post("/each", {"question": question, "ids": list(self.ledger.books)})
        while True:
            table = self.app.request("GET", "/each/export").text
            answered = [
                row for row in csv.DictReader(table.splitlines()) if row["question"] == question and row["answer"]
            ]
            self.ledger.tables = [*self.ledger.tables, *((row["sha256"], question) for row in answered)]
            time.sleep(0.05)

    def begin(self) -> None:
        self.app.until(lambda state: state["book"]["stage"] in ("ready", "empty"))
        self.ask()
        self.app.post("/chats/open", {"id": "nobody"})


def _until_cut(work: Callable[[], None], app: App, moment: float) -> None:
    def attempt() -> None:
        with suppress(OSError, AssertionError, ValueError, EOFError, KeyError, StopIteration):
            work()  # what the cut breaks off is no fault

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    time.sleep(moment)
    app.kill()
    thread.join(70)
    assert not thread.is_alive()


def test_cuts_at_any_moment(tmp_path: Path, pair: tuple[str, ...], nursery: Nursery | None) -> None:
    dice, ledger, data = random.Random(SEED), Ledger(), tmp_path / "Données é"
    with App(data, pair, nursery=nursery) as app:  # something to lose
        work = _Work(app, ledger, dice, 0)
        work.read()
        work.ask()
    assert ledger.books
    assert ledger.answers
    for number in range(1, CUTS + 1):
        app = App(data, pair, nursery=nursery)
        try:
            app.wait_up()
            ledger.check(app)
            work = _Work(app, ledger, dice, number)
            chosen = dice.choice((work.read, work.ask, work.ask, work.leaf, work.begin, work.note, work.ask_each))
            _until_cut(chosen, app, dice.uniform(0.0, LATEST))
        finally:
            app.kill()
        _store_is_whole(data, tmp_path / "look")
        count("kills at random moments survived")
    with App(data, pair, nursery=nursery) as app:
        ledger.check(app)
        assert not list(data.rglob("incoming-*")), "a half upload was left"


@pytest.mark.parametrize("moment", [0.3, 1.0, 2.0] if LONG else [0.5])
def test_cuts_while_it_starts(tmp_path: Path, pair: tuple[str, ...], nursery: Nursery | None, moment: float) -> None:
    for _ in range(2):
        app = App(tmp_path / "data", pair, nursery=nursery)
        time.sleep(moment)
        app.kill()
    with App(tmp_path / "data", pair, nursery=nursery) as app:
        assert app.state()["book"]["stage"] == "empty"
    count("kills at random moments survived", 2)
