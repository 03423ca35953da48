"""The app state: a book on its way to being read, and everything that can come between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.core import chat_run
from app.core.open_book import Action, Stage
from app.core.question import AnswersFrom, Ask
from app.core.state import AppState
from app.web.live import Live
from engine.errors import Busy, DocumentError, ModelNotFound, OptionError, PasswordNeeded
from engine.events import Status
from tests.app.scripted import ScriptedEngine, book, engine_status, wait_for

Make = Callable[..., AppState]


def at(state: AppState, stage: Stage) -> Callable[[], bool]:
    return lambda: state.current.stage is stage


def test_a_book_is_opened_measured_and_read(ready: Make) -> None:
    state = ready()
    current = state.current
    assert current.book is not None
    assert current.book.title == "The Lamplighters of Orre"
    assert current.read is not None
    assert current.read.pages_read == 60
    assert current.fit.fits
    assert state.chat is not None
    assert state.books.all()[0].pages == 60


def test_stopping_keeps_what_was_read(make_state: Make, a_file: Path) -> None:
    state = make_state(ScriptedEngine(reading_seconds=None))
    state.open(state.books.copy_in(a_file))
    wait_for(lambda: state.current.progress is not None and state.current.progress.pages_done == 24)
    state.stop_reading()
    wait_for(at(state, Stage.READY))
    assert state.current.read is not None
    assert (state.current.read.pages_read, state.current.read.stopped) == (24, True)


def test_what_was_read_is_written_down_before_the_library_is_closed(
    make_state: Make, a_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_state(ScriptedEngine(reading_seconds=None))
    write, entered = state.books.read, threading.Event()

    def late(*given: object, **named: object) -> object:
        entered.set()
        time.sleep(0.2)
        written = write(*given, **named)  # type: ignore[arg-type]
        done.append(written.pages_read)
        return written

    done: list[int] = []
    monkeypatch.setattr(state.books, "read", late)
    state.open(state.books.copy_in(a_file))
    wait_for(lambda: state.current.progress is not None and state.current.progress.pages_done == 24)
    state.stop_reading()
    assert entered.wait(10)
    state.close()
    assert done == [24]


def test_a_book_that_is_not_read_takes_no_memory_of_the_last_one(make_state: Make, a_file: Path) -> None:
    """What was read stayed in memory when its book was closed, or when another book was opened and not read."""
    engine = ScriptedEngine(reading_seconds=0.01)
    state = make_state(engine)
    state.open(state.books.copy_in(a_file))
    wait_for(lambda: state.current.stage is Stage.READY)
    assert engine.forgotten == 0
    state.close_book()
    assert engine.forgotten == 1
    assert state.citation_finder._evidence is None
    state.answer_from(AnswersFrom.PASSAGES)
    state.open(state.books.copy_in(a_file))
    wait_for(lambda: state.current.stage is Stage.UNREAD and engine.forgotten == 2)
    engine.limit = 10
    state.answer_from(AnswersFrom.FIRST)
    wait_for(lambda: state.current.stage is Stage.CHOOSING and engine.forgotten == 3)


def test_a_book_that_is_too_long_waits_for_a_choice_of_pages(make_state: Make, a_file: Path) -> None:
    state = make_state(ScriptedEngine(limit=4000))
    state.open(state.books.copy_in(a_file))
    wait_for(at(state, Stage.CHOOSING))
    assert not state.current.fit.fits
    state.choose(11, 15)
    wait_for(at(state, Stage.READY))
    assert state.current.document is not None
    assert [page.number for page in state.current.document.pages] == [11, 12, 13, 14, 15]
    assert state.current.whole is not None
    assert len(state.current.whole.pages) == 60


def test_chapters_with_others_between_them_are_read(make_state: Make, a_file: Path) -> None:
    state = make_state(ScriptedEngine(limit=4000))
    state.open(state.books.copy_in(a_file))
    wait_for(at(state, Stage.CHOOSING))
    measured = state.current.whole_fit
    assert measured is not None
    assert len(measured.page_tokens) == 60
    with pytest.raises(OptionError, match="No chapter is chosen"):
        state.choose_pages(())
    state.choose_pages({3, 4, 9})
    wait_for(at(state, Stage.READY))
    assert state.current.document is not None
    assert [page.number for page in state.current.document.pages] == [3, 4, 9]
    assert state.current.whole_fit is measured


def test_another_model_measures_the_whole_book_behind_chosen_chapters(make_state: Make, a_file: Path) -> None:
    engine = ScriptedEngine(limit=4000)
    state = make_state(engine)
    state.open(state.books.copy_in(a_file))
    wait_for(at(state, Stage.CHOOSING))
    state.choose_pages({3, 4, 9})
    wait_for(at(state, Stage.READY))
    parts = len(state.current.parts)
    engine.limit = 2000
    state.read_again()
    wait_for(at(state, Stage.READY))
    assert [page.number for page in state.current.document.pages] == [3, 4, 9]
    state.choose_again()
    assert state.current.fit.limit == 2000
    assert len(state.current.parts) > parts


def test_a_choice_that_is_still_too_long_is_asked_again(make_state: Make, a_file: Path) -> None:
    state = make_state(ScriptedEngine(limit=2000))
    state.open(state.books.copy_in(a_file))
    wait_for(at(state, Stage.CHOOSING))
    state.choose(1, 50)
    wait_for(lambda: state.current.stage is Stage.CHOOSING and len(state.current.document.pages) == 50)
    assert len(state.current.whole.pages) == 60


def test_a_locked_book_asks_for_its_password(make_state: Make, a_file: Path) -> None:
    def reader(path: Path, password: str | None = None) -> object:
        if password != "lamp":
            raise PasswordNeeded("It is locked.", "Type its password.")
        return book()

    state = make_state(reader=reader)
    shelved = state.books.copy_in(a_file)
    state.open(shelved)
    wait_for(at(state, Stage.LOCKED))
    assert state.current.trouble.cause == "It is locked."
    state.open(shelved, "wrong")
    wait_for(at(state, Stage.LOCKED))
    state.open(shelved, "lamp")
    wait_for(at(state, Stage.READY))
    assert state.current.trouble is None


def test_a_file_that_is_no_book_is_a_sentence(make_state: Make, a_file: Path) -> None:
    def reader(path: Path, password: str | None = None) -> object:
        raise DocumentError("This is no book.", "Choose another.")

    state = make_state(reader=reader)
    state.open(state.books.copy_in(a_file))
    wait_for(at(state, Stage.FAILED))
    assert state.current.trouble.cause == "This is no book."
    assert state.current.action is Action.OTHER_BOOK


@pytest.mark.parametrize("was_read", [False, True])
def test_only_a_file_that_never_was_a_book_leaves_the_library(make_state: Make, a_file: Path, was_read: bool) -> None:
    def reader(path: Path, password: str | None = None) -> object:
        if refuses:
            raise DocumentError("This is no book.", "Choose another.")
        return book()

    refuses = not was_read
    state = make_state(reader=reader)
    shelved = state.books.copy_in(a_file)
    if was_read:
        state.open(shelved)
        wait_for(at(state, Stage.READY))
        refuses = True
    state.open(shelved)
    wait_for(at(state, Stage.FAILED))
    assert state.current.trouble.cause == "This is no book."
    assert len(state.books.all()) == was_read


def test_a_refused_file_is_called_by_the_name_it_came_with(make_state: Make, tmp_path: Path) -> None:
    def reader(path: Path, password: str | None = None) -> object:
        assert path.name == "book.pdf", "it is kept under a name of ours"
        raise DocumentError(f"“{path.name}” is damaged.", "Get it again.")

    state = make_state(reader=reader)
    file = tmp_path / "Letters é.pdf"
    file.write_bytes(b"%PDF-1.7 nothing")
    state.open(state.books.copy_in(file))
    wait_for(at(state, Stage.FAILED))
    assert state.current.trouble.cause == "“Letters é.pdf” is damaged."


def test_a_surprise_is_a_sentence_too(make_state: Make, a_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    def reader(path: Path, password: str | None = None) -> object:
        raise ZeroDivisionError

    state = make_state(reader=reader)
    state.open(state.books.copy_in(a_file))
    wait_for(at(state, Stage.FAILED))
    assert "broke" in state.current.trouble.cause
    assert "ZeroDivisionError" in caplog.text


def test_a_book_can_be_picked_while_the_model_loads(make_state: Make, a_file: Path) -> None:
    engine = ScriptedEngine()
    engine.now = engine_status(state="loading", model=None)
    state = make_state(engine)
    state.open(state.books.copy_in(a_file))
    wait_for(at(state, Stage.WAITING))
    assert state.current.document is not None
    engine.now = replace(engine.now, state="idle")
    wait_for(at(state, Stage.READY))


def test_a_model_that_cannot_be_loaded_is_a_sentence(make_state: Make, a_file: Path) -> None:
    class Broken(ScriptedEngine):
        def wait_ready(self, timeout: float | None = None) -> Status:
            raise ModelNotFound("There is no model.", "Name one.")

    state = make_state(Broken())
    state.open(state.books.copy_in(a_file))
    wait_for(at(state, Stage.FAILED))
    assert state.current.trouble.cause == "There is no model."


def test_another_book_takes_over_from_one_that_is_being_read(make_state: Make, a_file: Path, tmp_path: Path) -> None:
    engine = ScriptedEngine(reading_seconds=None)
    state = make_state(engine)
    state.open(state.books.copy_in(a_file))
    wait_for(at(state, Stage.READING))
    engine.reading_seconds = 0.05
    second = tmp_path / "second.txt"
    second.write_text("Another.", encoding="utf-8")
    shelved = state.books.copy_in(second)
    state.open(shelved)
    wait_for(at(state, Stage.READY))
    assert state.current.book.sha256 == shelved.sha256
    assert engine.requests[0].stop.is_set()


def test_one_question_at_a_time(ready: Make) -> None:
    state = ready()
    claim = state.claim()
    assert state.current.asking
    with pytest.raises(Busy):
        state.claim()
    state.stop_asking()
    assert claim.is_set()
    state.release(claim)
    assert not state.current.asking
    state.claim()


def test_each_book_keeps_its_chat(ready: Make, tmp_path: Path) -> None:
    state = ready(ScriptedEngine(reading_seconds=0.001))
    first_book, first_chat = state.current.book, state.current.chat
    assert first_book is not None
    state.chats.ask(first_chat, "Who?")
    other = tmp_path / "other.txt"
    other.write_text("Other.", encoding="utf-8")
    state.open(state.books.copy_in(other))
    wait_for(at(state, Stage.READY))
    assert state.current.chat != first_chat
    state.open(first_book)
    wait_for(at(state, Stage.READY))
    assert state.current.chat == first_chat


def shown(state: AppState) -> dict:
    return Live(state).view()


def test_a_new_chat_begins_without_the_figures_of_another(ready: Make) -> None:
    state = ready()
    list(chat_run.ask(state, Ask("Who?")))
    first, seen = state.current.chat, shown(state)
    assert seen["figures"]["tokens"] == "9"
    assert seen["pace"]
    assert any(seen["scores"])
    state.begin_chat()
    clean = shown(state)
    assert (clean["figures"], clean["pace"], any(clean["scores"])) == (None, (), False)
    state.show_chat(first)
    again = shown(state)
    assert (again["figures"], again["pace"], any(again["scores"])) == (seen["figures"], seen["pace"], False)


def test_a_chat_that_replaces_a_deleted_one_begins_clean_too(ready: Make) -> None:
    state = ready()
    list(chat_run.ask(state, Ask("Who?")))
    state.delete_chat(state.current.chat)
    assert (shown(state)["figures"], shown(state)["pace"], any(state.current.scores)) == (None, (), False)


def test_until_its_first_token_an_answer_shows_the_figures_of_the_one_before(ready: Make) -> None:
    state = ready()
    list(chat_run.ask(state, Ask("Who?")))
    before = shown(state)["figures"]
    steps = chat_run.ask(state, Ask("And then?"))
    next(steps)
    assert shown(state)["figures"] == before
    list(steps)
    state.begin_chat()
    steps = chat_run.ask(state, Ask("And here?"))
    next(steps)
    assert shown(state)["figures"] is None
    list(steps)
    assert shown(state)["figures"]["tokens"] == "9"


def test_a_file_without_a_title_is_called_by_its_own_name(make_state: Make, a_file: Path) -> None:
    state = make_state(document=book(title="book"))
    state.open(state.books.copy_in(a_file))
    wait_for(at(state, Stage.READY))
    assert state.current.document.title == "Die Lampe é"
    assert state.books.all()[0].title == "Die Lampe é"
