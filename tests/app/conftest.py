"""What the tests of the app share: a scripted engine behind the real state of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from app.core.books import Book, Books
from app.core.chats import Chats
from app.core.state import AppState
from engine.document import Document
from tests.app.scripted import ScriptedEngine, book, wait_for


@pytest.fixture(autouse=True)
def no_office(monkeypatch: pytest.MonkeyPatch) -> None:
    """A LibreOffice of the machine is not found, so that its files are refused in the same way everywhere."""
    monkeypatch.setattr("app.readers.conversion.program", lambda: None)


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


@pytest.fixture
def together(make_state: Callable[..., AppState], tmp_path: Path) -> Callable[..., AppState]:
    """``together(engine, pages)`` -> a state with documents of these pages, by their names, open as one book."""

    def open_as_one(engine: ScriptedEngine, pages: Mapping[str, Sequence[str]]) -> AppState:
        def read(path: Path, password: str | None = None) -> Document:
            name = path.read_text()
            return replace(Document.from_pages(f"Log {name}", pages[name]), sha256=path.parent.name, kind="pdf")

        state = make_state(engine, reader=read)
        ids = []
        for name in pages:
            (tmp_path / f"{name}.txt").write_text(name)
            ids.append(state.books.copy_in(tmp_path / f"{name}.txt").sha256)
        state.arrange(ids)
        wait_for(lambda: state.current.stage.value == "ready")
        return state

    return open_as_one
