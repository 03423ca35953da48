"""The desk: a book on its way to being read, and everything that can come between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.ui import asking
from app.ui.desk import Action, Keeper, Stage
from app.ui.live import Live
from engine.config import SamplingParams
from engine.errors import Busy, DocumentError, ModelNotFound, PasswordNeeded
from engine.status import Status
from tests.app.ui.scripted import ScriptedEngine, book, engine_status, wait_for

Make = Callable[..., Keeper]


def at(keeper: Keeper, stage: Stage) -> Callable[[], bool]:
    return lambda: keeper.desk.stage is stage


def test_a_book_is_opened_measured_and_read(ready: Make) -> None:
    keeper = ready()
    desk = keeper.desk
    assert desk.book is not None
    assert desk.book.title == "The Lamplighters of Orre"
    assert desk.read is not None
    assert desk.read.pages_read == 60
    assert desk.fit.fits
    assert keeper.chat is not None
    assert keeper.books.all()[0].pages == 60


def test_stopping_keeps_what_was_read(make_keeper: Make, a_file: Path) -> None:
    keeper = make_keeper(ScriptedEngine(reading_seconds=None))
    keeper.open(keeper.books.copy_in(a_file))
    wait_for(lambda: keeper.desk.progress is not None and keeper.desk.progress.pages_done == 24)
    keeper.stop_reading()
    wait_for(at(keeper, Stage.READY))
    assert keeper.desk.read is not None
    assert (keeper.desk.read.pages_read, keeper.desk.read.stopped) == (24, True)


def test_a_book_that_is_too_long_waits_for_a_choice_of_pages(make_keeper: Make, a_file: Path) -> None:
    keeper = make_keeper(ScriptedEngine(limit=4000))
    keeper.open(keeper.books.copy_in(a_file))
    wait_for(at(keeper, Stage.CHOOSING))
    assert not keeper.desk.fit.fits
    keeper.choose(11, 15)
    wait_for(at(keeper, Stage.READY))
    assert keeper.desk.document is not None
    assert [page.number for page in keeper.desk.document.pages] == [11, 12, 13, 14, 15]
    assert keeper.desk.whole is not None
    assert len(keeper.desk.whole.pages) == 60


def test_a_choice_that_is_still_too_long_is_asked_again(make_keeper: Make, a_file: Path) -> None:
    keeper = make_keeper(ScriptedEngine(limit=2000))
    keeper.open(keeper.books.copy_in(a_file))
    wait_for(at(keeper, Stage.CHOOSING))
    keeper.choose(1, 50)
    wait_for(lambda: keeper.desk.stage is Stage.CHOOSING and len(keeper.desk.document.pages) == 50)
    assert len(keeper.desk.whole.pages) == 60


def test_a_locked_book_asks_for_its_password(make_keeper: Make, a_file: Path) -> None:
    def reader(path: Path, password: str | None = None) -> object:
        if password != "lamp":
            raise PasswordNeeded("It is locked.", "Type its password.")
        return book()

    keeper = make_keeper(reader=reader)
    shelved = keeper.books.copy_in(a_file)
    keeper.open(shelved)
    wait_for(at(keeper, Stage.LOCKED))
    assert keeper.desk.trouble.cause == "It is locked."
    keeper.open(shelved, "wrong")
    wait_for(at(keeper, Stage.LOCKED))
    keeper.open(shelved, "lamp")
    wait_for(at(keeper, Stage.READY))
    assert keeper.desk.trouble is None


def test_a_file_that_is_no_book_is_a_sentence(make_keeper: Make, a_file: Path) -> None:
    def reader(path: Path, password: str | None = None) -> object:
        raise DocumentError("This is no book.", "Choose another.")

    keeper = make_keeper(reader=reader)
    keeper.open(keeper.books.copy_in(a_file))
    wait_for(at(keeper, Stage.FAILED))
    assert keeper.desk.trouble.cause == "This is no book."
    assert keeper.desk.action is Action.OTHER_BOOK


def test_a_refused_file_is_called_by_the_name_it_came_with(make_keeper: Make, tmp_path: Path) -> None:
    def reader(path: Path, password: str | None = None) -> object:
        assert path.name == "book.pdf", "it is kept under a name of ours"
        raise DocumentError(f"“{path.name}” is damaged.", "Get it again.")

    keeper = make_keeper(reader=reader)
    file = tmp_path / "Letters é.pdf"
    file.write_bytes(b"%PDF-1.7 nothing")
    keeper.open(keeper.books.copy_in(file))
    wait_for(at(keeper, Stage.FAILED))
    assert keeper.desk.trouble.cause == "“Letters é.pdf” is damaged."


def test_a_surprise_is_a_sentence_too(make_keeper: Make, a_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    def reader(path: Path, password: str | None = None) -> object:
        raise ZeroDivisionError

    keeper = make_keeper(reader=reader)
    keeper.open(keeper.books.copy_in(a_file))
    wait_for(at(keeper, Stage.FAILED))
    assert "broke" in keeper.desk.trouble.cause
    assert "ZeroDivisionError" in caplog.text


def test_a_book_can_be_picked_while_the_model_loads(make_keeper: Make, a_file: Path) -> None:
    engine = ScriptedEngine()
    engine.now = engine_status(state="loading", model=None)
    keeper = make_keeper(engine)
    keeper.open(keeper.books.copy_in(a_file))
    wait_for(at(keeper, Stage.WAITING))
    assert keeper.desk.document is not None
    engine.now = replace(engine.now, state="idle")
    wait_for(at(keeper, Stage.READY))


def test_a_model_that_cannot_be_loaded_is_a_sentence(make_keeper: Make, a_file: Path) -> None:
    class Broken(ScriptedEngine):
        def wait_ready(self, timeout: float | None = None) -> Status:
            raise ModelNotFound("There is no model.", "Name one.")

    keeper = make_keeper(Broken())
    keeper.open(keeper.books.copy_in(a_file))
    wait_for(at(keeper, Stage.FAILED))
    assert keeper.desk.trouble.cause == "There is no model."


def test_another_book_takes_over_from_one_that_is_being_read(make_keeper: Make, a_file: Path, tmp_path: Path) -> None:
    engine = ScriptedEngine(reading_seconds=None)
    keeper = make_keeper(engine)
    keeper.open(keeper.books.copy_in(a_file))
    wait_for(at(keeper, Stage.READING))
    engine.reading_seconds = 0.05
    second = tmp_path / "second.txt"
    second.write_text("Another.", encoding="utf-8")
    shelved = keeper.books.copy_in(second)
    keeper.open(shelved)
    wait_for(at(keeper, Stage.READY))
    assert keeper.desk.book.sha256 == shelved.sha256
    assert engine.requests[0].cancelled.is_set()


def test_one_question_at_a_time(ready: Make) -> None:
    keeper = ready()
    claim = keeper.claim()
    assert keeper.desk.asking
    with pytest.raises(Busy):
        keeper.claim()
    keeper.stop_asking()
    assert claim.is_set()
    keeper.release(claim)
    assert not keeper.desk.asking
    keeper.claim()


def test_each_book_keeps_its_chat(ready: Make, tmp_path: Path) -> None:
    keeper = ready()
    first_book, first_chat = keeper.desk.book, keeper.desk.chat
    keeper.chats.ask(first_chat, "Who?")
    other = tmp_path / "other.txt"
    other.write_text("Other.", encoding="utf-8")
    keeper.open(keeper.books.copy_in(other))
    wait_for(at(keeper, Stage.READY))
    assert keeper.desk.chat != first_chat
    keeper.open(first_book)
    wait_for(at(keeper, Stage.READY))
    assert keeper.desk.chat == first_chat


def shown(keeper: Keeper) -> dict:
    return Live(keeper).view()


def test_a_new_chat_begins_without_the_figures_of_another(ready: Make) -> None:
    keeper = ready()
    list(asking.ask(keeper, "Who?", SamplingParams(), "hierarchical"))
    first, seen = keeper.desk.chat, shown(keeper)
    assert seen["figures"]["tokens"] == "9"
    assert seen["pace"]
    assert any(seen["scores"])
    keeper.begin_chat()
    clean = shown(keeper)
    assert (clean["figures"], clean["pace"], any(clean["scores"])) == (None, [], False)
    keeper.show_chat(first)
    again = shown(keeper)
    assert (again["figures"], again["pace"], any(again["scores"])) == (seen["figures"], [], False)


def test_a_chat_that_replaces_a_deleted_one_begins_clean_too(ready: Make) -> None:
    keeper = ready()
    list(asking.ask(keeper, "Who?", SamplingParams(), "hierarchical"))
    keeper.delete_chat(keeper.desk.chat)
    assert (shown(keeper)["figures"], shown(keeper)["pace"], any(keeper.desk.scores)) == (None, [], False)


def test_until_its_first_token_an_answer_shows_the_figures_of_the_one_before(ready: Make) -> None:
    keeper = ready()
    list(asking.ask(keeper, "Who?", SamplingParams(), "hierarchical"))
    before = shown(keeper)["figures"]
    steps = asking.ask(keeper, "And then?", SamplingParams(), "hierarchical")
    next(steps)
    assert shown(keeper)["figures"] == before
    list(steps)
    keeper.begin_chat()
    steps = asking.ask(keeper, "And here?", SamplingParams(), "hierarchical")
    next(steps)
    assert shown(keeper)["figures"] is None
    list(steps)
    assert shown(keeper)["figures"]["tokens"] == "9"


def test_a_file_without_a_title_is_called_by_its_own_name(make_keeper: Make, a_file: Path) -> None:
    keeper = make_keeper(document=book(title="book"))
    keeper.open(keeper.books.copy_in(a_file))
    wait_for(at(keeper, Stage.READY))
    assert keeper.desk.document.title == "Die Lampe é"
    assert keeper.books.all()[0].title == "Die Lampe é"
