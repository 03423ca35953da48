"""Comments of readers and reviewers, read or left out: in the open book at once, in later ones, after a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from app.core.books import TextCache
from app.core.open_book import Stage
from app.core.state import AppState
from app.readers.recognition import Recognition
from engine.document import Document
from tests.app.scripted import ScriptedEngine, book, wait_for

Make = Callable[..., AppState]


def _read(path: Path, password: str | None, recognition: Recognition, comments: bool = True) -> Document:
    return book(3 if comments else 2)


def _opened(state: AppState) -> int:
    """The number of pages of the open book, once it has been read."""
    wait_for(lambda: state.current.stage is Stage.READY)
    assert state.current.document is not None
    return len(state.current.document.pages)


def test_the_open_book_is_opened_again_without_comments(make_state: Make, a_file: Path, tmp_path: Path) -> None:
    state = make_state(ScriptedEngine(reading_seconds=0.001), reader=TextCache(_read))
    state.open(state.books.copy_in(a_file))
    assert (state.comments, _opened(state)) == (True, 3)
    chat = state.current.chat
    state.read_comments(False)
    assert (state.comments, _opened(state), state.current.chat) == (False, 2, chat)
    other = tmp_path / "other.txt"
    other.write_text("Another one.", encoding="utf-8")
    state.open(state.books.copy_in(other))
    assert _opened(state) == 2
    state.read_comments(True)
    assert (state.comments, _opened(state)) == (True, 3)
    state.read_comments(False)
    assert _opened(state) == 2
    again = AppState(ScriptedEngine(), state.books, state.chats, TextCache(_read))
    assert not again.comments, "after a restart too"
    again.close()


def test_what_is_so_already_reads_nothing_again(make_state: Make, a_file: Path) -> None:
    state = make_state(ScriptedEngine(reading_seconds=0.001), reader=TextCache(_read))
    state.read_comments(False)
    assert state.current.stage is Stage.EMPTY, "no book is open"
    state.open(state.books.copy_in(a_file))
    assert _opened(state) == 2
    before = state.current.document
    state.read_comments(False)
    assert state.current.document is before
