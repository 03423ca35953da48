"""Pages that are pictures, as the state of the program shows them: progress, an offer with its minutes, a stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.core.books import TEXT, TextCache
from app.core.open_book import Action, Recognising, Stage
from app.core.question import Ask
from app.core.state import AppState
from app.readers.conversion import ConversionOffer
from app.readers.recognition import FILE, LongRecognition, Recognition
from app.web.live import book_view
from engine.document import Document
from tests.app.scripted import book, wait_for

Make = Callable[..., AppState]


def test_progress_is_told_and_a_stop_leaves_the_pages_that_are_done(make_state: Make, a_file: Path) -> None:
    going, whole = threading.Event(), book()

    def read(path: Path, password: str | None, recognition: Recognition) -> Document:
        recognition.progress(2, 9, 65.0)
        going.set()
        assert recognition.stop.wait(10)
        unread = replace(whole.pages[-1], picture="unread", text="")
        return replace(whole, pages=(*whole.pages[:-1], unread))

    state = make_state(reader=TextCache(read))
    shelved = state.books.copy_in(a_file)
    state.open(shelved)
    assert going.wait(10)
    assert state.current.recognising == Recognising(2, 9, 65.0)
    line = "Recognising words in pictures of pages: 3 of 9 · about 1 min left"
    assert book_view(state.current)["recognising"] == {"line": line, "part": 0.222}
    state.stop_reading()
    wait_for(lambda: state.current.stage is Stage.READY)
    assert book_view(state.current)["recognising"] is None
    assert not (state.books.path(shelved).parent / TEXT).exists(), "the next opening goes on with the other pages"


def test_what_takes_long_is_offered_and_stays_in_the_library(make_state: Make, a_file: Path) -> None:
    asked: list[tuple[bool, bool]] = []

    def read(path: Path, password: str | None, recognition: Recognition) -> Document:
        asked.append((recognition.agreed, recognition.doubtful))
        if not recognition.agreed:
            raise LongRecognition(f"“{path.name}” takes about 95 minutes.", "It can be stopped.")
        return book()

    state = make_state(reader=TextCache(read))
    shelved = state.books.copy_in(a_file)
    state.open(shelved)
    wait_for(lambda: state.current.stage is Stage.FAILED)
    assert (state.current.action, state.current.trouble.cause) == (
        Action.RECOGNISE,
        f"“{a_file.name}” takes about 95 minutes.",
    )
    state.open(state.books.get(shelved.sha256), recognise=True)
    wait_for(lambda: state.current.stage is Stage.READY)
    assert asked == [(False, False), (True, True)]


def test_a_conversion_is_offered_and_its_file_stays_in_the_library(make_state: Make, tmp_path: Path) -> None:
    """LibreOffice converted whatever it could, without a word from the person."""

    def read(path: Path, password: str | None, recognition: Recognition, convert: bool = False) -> Document:
        if not convert:
            raise ConversionOffer(f"“{path.name}” is an old Word file.", "LibreOffice can convert it.")
        return book()

    state = make_state(reader=TextCache(read))
    (tmp_path / "old.doc").write_bytes(b"old")
    shelved = state.books.copy_in(tmp_path / "old.doc")
    state.open(shelved)
    wait_for(lambda: state.current.stage is Stage.FAILED)
    assert (state.current.action, book_view(state.current)["converting"]) == (Action.CONVERT, "")
    state.parser.convert(state.books.get(shelved.sha256))
    state.open(shelved)
    wait_for(lambda: state.current.stage is Stage.READY)


@pytest.mark.parametrize("doubtful", [False, True])
def test_kept_text_is_used_unless_doubtful_pages_are_recognised(tmp_path: Path, doubtful: bool) -> None:
    read: list[Path] = []
    cache = TextCache(lambda path, password=None, recognition=None: read.append(path) or book())
    for _ in range(2):
        cache(tmp_path / "book.pdf", recognition=Recognition(doubtful=doubtful))
    assert len(read) == 1 + doubtful


def test_counting_what_others_cost_keeps_no_text_without_what_was_recognised(tmp_path: Path) -> None:
    asked: list[bool] = []

    def read(path: Path, password: str | None, recognition: Recognition | None = None) -> Document:
        asked.append(recognition is not None and recognition.stop.is_set() and recognition.folder is not None)
        return book()

    TextCache(read)(tmp_path / "book.pdf")
    (tmp_path / TEXT).unlink()
    (tmp_path / FILE).touch()
    TextCache(read)(tmp_path / "book.pdf")
    assert asked == [False, True], "the words that were recognised are read, and no page anew"


def looked_at(path: Path, password: str | None, recognition: Recognition) -> Document:
    """A book with a picture on its second page, whose words are known if all pictures are recognised."""
    whole = book(3)
    first, page, last = whole.pages
    if recognition.pictures == "all":
        recognition.progress(0, 1, 2.0)
        page = replace(page, text=f"{page.text}\n\n[picture: Ferry passengers]")
    elif recognition.pictures == "kept":
        page = replace(page, pictures=1)
    return replace(whole, pages=(first, page, last))


def test_words_of_pictures_are_looked_for_after_the_reading_and_read_if_the_person_wants(
    make_state: Make, a_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.core.state.missing", lambda: "")
    stages: list[Stage] = []

    def reader(path: Path, password: str | None, recognition: Recognition) -> Document:
        stages.append(state.current.stage)
        return looked_at(path, password, recognition)

    state = make_state(reader=TextCache(reader))
    shelved = state.books.copy_in(a_file)
    state.open(shelved)
    wait_for(lambda: state.current.pictured is not None)
    assert stages == [Stage.OPENING, Stage.READY]
    assert state.current.document == state.current.whole == looked_at(a_file, None, Recognition()), "not yet changed"
    pictured = state.current.pictured
    assert pictured is not None
    assert book_view(state.current)["pictures"]["line"] == "Pictures with words: 1. Reading them takes about 5 s."
    state.read_pictured()
    wait_for(lambda: state.current.stage is Stage.READY and state.current.document == pictured.document)
    assert (state.current.whole, state.current.pictured) == (pictured.document, None)
    state.open(shelved)
    wait_for(lambda: state.current.stage is Stage.READY)
    assert (state.current.document, len(stages)) == (pictured.document, 2), "the next opening has the words"


def noting_reader() -> tuple[Callable[[Path, str | None, Recognition], Document], list[str]]:
    """A reader, and which pictures it was asked to read, in order."""
    read: list[str] = []

    def reader(path: Path, password: str | None, recognition: Recognition) -> Document:
        read.append(recognition.pictures)
        return looked_at(path, password, recognition)

    return reader, read


def test_pictures_of_a_book_whose_reading_waits_are_looked_at_after_it(
    make_state: Make, a_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.core.state.missing", lambda: "")
    reader, read = noting_reader()
    state = make_state(reader=TextCache(reader))
    state.open(state.books.copy_in(a_file), put_off=True)
    assert state._job.ended.wait(10)
    assert (state.current.stage, read) == (Stage.UNREAD, ["kept"])
    told = book_view(state.current)["pictures"]
    assert told["line"].startswith("Pictures that are looked at for words after the reading: 1, about 5 s. A switch")
    state.read_for(Ask("What rang?"))
    wait_for(lambda: state.current.pictured is not None)
    assert (state.current.stage, read) == (Stage.READY, ["kept", "all"])


def test_words_of_pictures_are_left_out_if_the_settings_say_so(
    make_state: Make, a_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.core.state.missing", lambda: "")
    reader, read = noting_reader()
    state = make_state(reader=TextCache(reader))
    state.read_pictures(False)
    state.open(state.books.copy_in(a_file))
    wait_for(lambda: state.current.stage is Stage.READY)
    assert state._job.ended.wait(10)
    assert (read, state.current.pictured) == ([""], None)
    again = AppState(state.engine, state.books, state.chats, TextCache(reader))
    assert not again.parser.pictures, "after a restart too"
    state.read_pictures(True)
    wait_for(lambda: state.current.pictured is not None)
    assert read == ["", "kept", "all"]
