"""What the tests of the app share: a scripted engine behind the real state of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.core.books import Book, Books
from app.core.chats import Chats
from app.core.state import AppState
from tests.app.scripted import ScriptedEngine, book, wait_for


@pytest.fixture
def make_state(tmp_path: Path) -> Iterator[Callable[..., AppState]]:
    """``make_state(engine, document=..., reader=...)`` -> a state whose reader gives that document."""
    made: list[AppState] = []

    def make(engine: ScriptedEngine | None = None, document: object = None, reader: object = None) -> AppState:
        read = reader or (lambda path, password=None: document or book())
        state = AppState(engine or ScriptedEngine(), Books(tmp_path / "books"), Chats(), read)  # type: ignore[arg-type]
        made.append(state)
        return state

    yield make
    for state in made:
        state.close()


@pytest.fixture
def a_file(tmp_path: Path) -> Path:
    """The file of some book."""
    path = tmp_path / "Die Lampe é.txt"
    path.write_text("Es war einmal eine Lampe.", encoding="utf-8")
    return path


@pytest.fixture
def ready(make_state: Callable[..., AppState], a_file: Path) -> Callable[..., AppState]:
    """``ready(engine)`` -> a state with a book that has been read."""

    def open_book(engine: ScriptedEngine | None = None) -> AppState:
        state = make_state(engine)
        shelved: Book = state.books.copy_in(a_file)
        state.open(shelved)
        wait_for(lambda: state.current.stage.value == "ready")
        return state

    return open_book
