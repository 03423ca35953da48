"""What the page's tests share: a scripted engine behind a real keeper of the desk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.books import Book, Books
from app.chats import Chats
from app.ui.desk import Keeper
from tests.app.ui.scripted import ScriptedEngine, book, wait_for


@pytest.fixture
def make_keeper(tmp_path: Path) -> Iterator[Callable[..., Keeper]]:
    """``make_keeper(engine, document=..., reader=...)`` -> a keeper whose reader gives that document."""
    made: list[Keeper] = []

    def make(engine: ScriptedEngine | None = None, document: object = None, reader: object = None) -> Keeper:
        read = reader or (lambda path, password=None: document or book())
        keeper = Keeper(engine or ScriptedEngine(), Books(tmp_path / "books"), Chats(), read)  # type: ignore[arg-type]
        made.append(keeper)
        return keeper

    yield make
    for keeper in made:
        keeper.close()


@pytest.fixture
def a_file(tmp_path: Path) -> Path:
    """The file of some book."""
    path = tmp_path / "Die Lampe é.txt"
    path.write_text("Es war einmal eine Lampe.", encoding="utf-8")
    return path


@pytest.fixture
def ready(make_keeper: Callable[..., Keeper], a_file: Path) -> Callable[..., Keeper]:
    """``ready(engine)`` -> a keeper with a book that has been read."""

    def open_book(engine: ScriptedEngine | None = None) -> Keeper:
        keeper = make_keeper(engine)
        shelved: Book = keeper.books.copy_in(a_file)
        keeper.open(shelved)
        wait_for(lambda: keeper.desk.stage.value == "ready")
        return keeper

    return open_book
