"""One question asked of each of several documents: its run, stopping, a restart, the open book after it."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.core.answer_table import COLUMNS, MARK
from app.core.books import Books, TextCache
from app.core.each import FILE as STORED
from app.core.each import AskEach
from app.core.open_book import Stage
from app.core.question import Ask
from app.core.state import AppState
from app.readers.recognition import FILE, LongRecognition, Recognition
from engine import Question
from engine.config import GREEDY
from engine.document import Document, Reading
from engine.errors import Busy, DocumentError, ModelError, OptionError, PasswordNeeded
from tests.app.scripted import ScriptedEngine, wait_for

ASKED = "What is the rent?"
ANSWER = "The rent is 1,200 euros a month."


def reader(path: Path, password: str | None = None) -> Document:
    text = path.read_text()
    if text == "locked":
        raise PasswordNeeded("This book is locked.")
    return replace(Document.from_pages(text, ["Preface.", ANSWER, text]), sha256=path.parent.name)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(ANSWER, word_seconds=0.0, reading_seconds=0.001)


@pytest.fixture
def state(make_state: Callable[..., AppState], engine: ScriptedEngine) -> AppState:
    return make_state(engine, reader=reader)


def kept(books: Books, folder: Path, names: Sequence[str]) -> list[str]:
    ids = []
    for name in names:
        (folder / f"{name}.txt").write_text(name)
        ids.append(books.copy_in(folder / f"{name}.txt").sha256)
    return ids


def asked(each: AskEach, ids: Sequence[str], question: str = ASKED) -> None:
    each.start(Ask(question, sampling=GREEDY), ids)
    wait_for(lambda: not (each.run.running or each.state.current.asking))


def answers(each: AskEach) -> list[str]:
    return [answer.row["answer"] or answer.error if answer else "" for _, answer in each.rows()]


def test_each_document_answers_by_itself_with_its_page(state: AppState, engine: ScriptedEngine, tmp_path: Path) -> None:
    each, ids = AskEach(state), kept(state.books, tmp_path, ["b", "a"])
    asked(each, ids)
    assert [(book.shown, answer.row["answer"]) for book, answer in each.rows() if answer] == [
        ("b", ANSWER),
        ("a", ANSWER),
    ]
    place = each.run.answers[ids[0]].places[0]
    assert (place["pages"], place["passage"]) == ([{"number": 2, "label": "2"}], "The rent is 1,200 euros a month")
    assert [question.history for question in engine.asked] == [(), ()]
    (first, _) = csv.DictReader(io.StringIO(each.table().decode(MARK)))
    assert tuple(first) == COLUMNS
    assert (first["file"], first["question"], first["page"], first["sha256"]) == ("b.txt", ASKED, "2", ids[0])


def test_nothing_is_asked_twice_also_after_a_restart(state: AppState, engine: ScriptedEngine, tmp_path: Path) -> None:
    each, ids = AskEach(state), kept(state.books, tmp_path, ["a", "locked", "c"])
    asked(each, ids)
    assert len(engine.asked) == 2
    assert answers(each)[1] == "This book is locked. Open it by itself once, with its password, and then go on."
    again = AskEach(state)
    assert (again.run, again.run.left) == (each.run, 1), "what went wrong is left, and nothing else"
    asked(again, ids)
    assert len(engine.asked) == 2
    asked(again, ids, "And who pays?")
    assert len(engine.asked) == 4


def test_what_is_stopped_goes_on_with_the_next_document(
    state: AppState, engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each, ids = AskEach(state), kept(state.books, tmp_path, ["a", "b", "c"])
    ask = engine.ask

    def stopped(question: Question, *, cancel: threading.Event) -> Any:
        if len(engine.asked) == 1:
            each.stop()
        return ask(question, cancel=cancel)

    monkeypatch.setattr(engine, "ask", stopped)
    asked(each, ids)
    assert answers(each) == [ANSWER, "", ""]
    assert not state.current.asking
    monkeypatch.setattr(engine, "ask", ask)
    asked(each, ids)
    assert (answers(each), each.run.left) == ([ANSWER] * 3, 0)
    assert len(engine.asked) == 4, "the one that was stopped is asked once more, the first is not"


def test_the_open_book_is_read_back_and_nobody_asks_meanwhile(
    state: AppState, engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each, ids = AskEach(state), kept(state.books, tmp_path, ["a", "b"])
    state.arrange(ids)
    wait_for(lambda: state.current.stage is Stage.READY)
    document, chat = state.current.document, state.current.chat
    read, titles, refused = engine.read, list[str](), list[str]()

    def reading(wanted: Reading, **cancel: Any) -> Any:
        titles.append(wanted.document.title)
        if len(titles) == 1:
            with pytest.raises(Busy) as error:
                state.claim()
            refused.append(error.value.cause)
        return read(wanted, **cancel)

    monkeypatch.setattr(engine, "read", reading)
    assert state.current.book is not None
    asked(each, [state.current.book.sha256])
    wait_for(lambda: state.current.stage is Stage.READY and not state.current.asking)
    assert titles == ["a", "b", document.title if document else ""]
    assert (len(refused), state.current.document, state.current.chat) == (1, document, chat)


def test_the_rest_can_be_asked_as_soon_as_the_run_has_ended(
    state: AppState, engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each, ids = AskEach(state), kept(state.books, tmp_path, ["a", "b"])
    state.open(state.books.get(ids[0]))
    wait_for(lambda: state.current.stage is Stage.READY)
    read_back, engine.reading_seconds = state.read_back, None  # the open book is read back until somebody stops it
    at_release = []

    def released(claim: threading.Event, document: Document | None) -> None:
        read_back(claim, document)
        at_release.append((each.run.running, state.current.asking, state.current.stage.is_on_the_way))

    monkeypatch.setattr(state, "read_back", released)
    each.start(Ask(ASKED, sampling=GREEDY), ids)
    each.stop()
    wait_for(lambda: not each.run.running)
    assert at_release == [(True, False, True)], "who sees the end of the run can ask"
    each.start(Ask(ASKED, sampling=GREEDY), ids)
    assert (each.run.running, each.run.document, engine.asked) == (True, "", []), "it waits for the open book"
    engine.reading_seconds = 0.001
    state.stop_reading()
    wait_for(lambda: not each.run.running)
    assert answers(each) == [ANSWER, ANSWER]


def test_a_book_that_is_opened_meanwhile_ends_it_and_stays(
    state: AppState, engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each, ids = AskEach(state), kept(state.books, tmp_path, ["a", "b", "c"])
    state.open(state.books.get(ids[2]))
    wait_for(lambda: state.current.stage is Stage.READY)
    ask = engine.ask

    def opening(question: Question, *, cancel: threading.Event) -> Any:
        state.open(state.books.get(ids[1]))
        return ask(question, cancel=cancel)

    monkeypatch.setattr(engine, "ask", opening)
    asked(each, ids)
    wait_for(lambda: state.current.stage is Stage.READY)
    assert answers(each) == ["", "", ""]
    assert state.current.document is not None
    assert state.current.document.title == "b"


def test_a_scan_of_which_the_first_pages_are_recognised_is_not_asked_as_if_it_were_whole(
    make_state: Callable[..., AppState], engine: ScriptedEngine, tmp_path: Path
) -> None:
    """They are kept when its minutes were counted to add it, also if it was then not added."""

    def read(path: Path, password: str | None, recognition: Recognition) -> Document:
        if not recognition.stop.is_set():
            raise LongRecognition("It has 200 pages that are pictures.")
        return reader(path)

    state = make_state(engine, reader=TextCache(read))
    each, ids = AskEach(state), kept(state.books, tmp_path, ["scan"])
    (state.books.folder(ids[0]) / FILE).touch()
    asked(each, ids)
    said = "It has 200 pages that are pictures. Open it by itself once, and have its pages recognised."
    assert (answers(each), engine.asked) == ([said], [])


def test_a_deleted_document_takes_its_answers_with_it(state: AppState, tmp_path: Path) -> None:
    each, ids = AskEach(state), kept(state.books, tmp_path, ["a", "b"])
    asked(each, ids)
    state.delete(ids[0])
    assert [book.sha256 for book, _ in each.rows()] == ids[1:]
    assert ANSWER not in "".join(path.read_text() for path in (tmp_path / "books").glob(f"{ids[0]}/*"))
    assert [book.sha256 for book, _ in AskEach(state).rows()] == ids[1:]


def test_a_run_waits_for_the_model(state: AppState, engine: ScriptedEngine, tmp_path: Path) -> None:
    """ "Ask when it is there" was the answer to whoever asked right after the start."""
    each, ids, ready = AskEach(state), kept(state.books, tmp_path, ["a"]), engine.now
    engine.now = replace(engine.now, state="loading", model=None)
    each.start(Ask(ASKED, sampling=GREEDY, mode="plain"), ids)
    assert (each.run.running, each.run.document, engine.asked) == (True, "", [])
    engine.now = ready
    wait_for(lambda: not each.run.running)
    assert answers(each) == [ANSWER]


def test_documents_are_asked_at_once_without_being_read(
    state: AppState, engine: ScriptedEngine, tmp_path: Path
) -> None:
    each, ids = AskEach(state), kept(state.books, tmp_path, ["a", "b"])
    each.start(Ask(ASKED, sampling=GREEDY, mode="plain", now=True), ids)
    wait_for(lambda: not each.run.running)
    assert answers(each) == [ANSWER, ANSWER]
    assert engine.readings == []
    assert all(asked.excerpt is not None for asked in engine.asked)


def test_what_cannot_be_asked_is_said_before_any_work(state: AppState, engine: ScriptedEngine, tmp_path: Path) -> None:
    each, ids = AskEach(state), kept(state.books, tmp_path, ["a"])
    with pytest.raises(OptionError, match="No document"):
        each.start(Ask(ASKED, sampling=GREEDY, mode="plain"), [])
    with pytest.raises(DocumentError):
        each.start(Ask(ASKED, sampling=GREEDY, mode="plain"), ["0" * 64])
    engine.now = replace(engine.now, state="failed", model=None)
    with pytest.raises(ModelError, match="No model"):
        each.start(Ask(ASKED, sampling=GREEDY, mode="plain"), ids)
    assert (each.run.question, engine.asked, state.current.asking) == ("", [], False)


@pytest.mark.parametrize("damage", ["flip", "zero", "cut", "byte"])
def test_damage_loses_only_the_answers_that_it_hits(
    state: AppState, engine: ScriptedEngine, tmp_path: Path, damage: str
) -> None:
    """One bad byte discarded all stored answers."""
    each, (document,) = AskEach(state), kept(state.books, tmp_path, ["a"])
    questions = [f"What is the rent in month {number}?" for number in range(6)]
    for question in questions:
        asked(each, [document], question)
    file = state.books.folder(document) / STORED
    content = bytearray(file.read_bytes())
    at = content.index(b"month 3") + 2
    if damage == "cut":
        del content[at:]
    elif damage == "zero":
        content[at : at + 20] = bytes(20)
    else:
        content[at] = content[at] ^ 1 if damage == "flip" else 0xFF
    file.write_bytes(content)
    gone = questions[3:] if damage == "cut" else questions[3:4]
    assert list(each._kept(document)) == [question for question in questions if question not in gone]
    asked(each, [document], "And now?")
    assert len(each._kept(document)) == 7 - len(gone)


def test_the_answers_of_an_earlier_version_are_found(state: AppState, tmp_path: Path) -> None:
    each, (document,) = AskEach(state), kept(state.books, tmp_path, ["a"])
    (state.books.folder(document) / STORED).write_text('{"Who?": {"row": {"answer": "Maren."}, "places": []}}', "utf-8")
    assert each._kept(document)["Who?"].row == {"answer": "Maren."}
