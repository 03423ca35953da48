"""Questions are offered once the model has answered them; who wants to ask comes first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.core.abilities import Abilities
from app.core.books import Books
from app.core.chats import Chats
from app.core.db import Database
from app.core.open_book import Stage
from app.core.state import AppState
from app.core.tried_questions import MOST_TRIES, TriedQuestions
from engine import Question
from engine.events import StopReason
from tests.app.scripted import ScriptedEngine, book, wait_for

CAN_QUOTE = Abilities(only_quotes=True, refusals=("The book does not say that.",))
MODEL = "demo"  # the folder of the scripted engine's
TALKS = Abilities(refusals=("The book does not say that.",))


def passage(first: int) -> str:
    """Words that stand in the book."""
    return "“" + " ".join(f"lamp{number}" for number in range(first, first + 8)) + "”"


class Answering(ScriptedEngine):
    """Answers every question with its own words; ``loops`` are stopped for repeating themselves."""

    def __init__(self, answers: dict[str, str], **script: Any) -> None:
        super().__init__(word_seconds=0.0, **script)
        self.answers = answers
        self.loops: tuple[str, ...] = ()

    def ask(self, question: Question | str, **cancel: Any) -> Any:
        asked = Question.of(question).text
        self.answer = self.answers.get(asked, "The book does not say that.")
        self.ends = StopReason.LOOP if asked in self.loops else StopReason.END
        return super().ask(question, **cancel)


@pytest.fixture
def engine() -> Answering:
    return Answering({})


@pytest.fixture
def state(tmp_path: Path, engine: Answering) -> Iterator[AppState]:
    database = Database(tmp_path / "library.db")
    made = AppState(engine, Books(tmp_path / "books", database), Chats(database), lambda path, password=None: book())
    with made.books.receive("book.txt") as incoming:
        incoming.write(b"A")
        made.open(incoming.keep())
    wait_for(lambda: made.current.stage is Stage.READY)
    yield made
    made.close()


def offered(state: AppState, card: Abilities, *questions: str, tried: TriedQuestions | None = None) -> list[str]:
    """What is offered when everything has been tried."""
    tried = tried or TriedQuestions(state)
    found: list[str] = []

    def over() -> bool:
        nonlocal found
        assert state.current.document is not None
        found = tried.passed(state.current.document, MODEL, card, lambda: questions)
        return not tried._running and tried._tried is not None and tried._tried.is_over

    wait_for(over)
    return found


def test_what_is_not_found_gives_way_to_the_next(state: AppState, engine: Answering) -> None:
    engine.answers = {"A": passage(1), "B": "“lamp5 lamp2 lamp7 lamp1 lamp3”", "C": passage(20), "E": passage(40)}
    assert offered(state, CAN_QUOTE, "A", "B", "C", "D", "E", "F") == ["A", "C", "E"]
    assert [asked.text for asked in engine.asked] == ["A", "B", "C", "D", "E"], "three are enough"
    assert not state.chat.exchanges


def test_neither_a_loop_nor_the_same_passage_twice_is_offered(state: AppState, engine: Answering) -> None:
    engine.answers = {"A": passage(1), "B": passage(1), "C": passage(30)}
    engine.loops = ("C",)
    assert offered(state, CAN_QUOTE, "A", "B", "C") == ["A"]


def test_an_answer_without_a_passage_is_second_best_for_a_model_that_talks(state: AppState, engine: Answering) -> None:
    engine.answers = {"A": "It is about lamps.", "B": passage(1)}
    assert offered(state, TALKS, "A", "B", "C") == ["B", "A"]
    assert offered(state, CAN_QUOTE, "A", "B", "C") == ["B"]


def test_another_passage_than_the_one_that_was_asked_for_is_no_answer(state: AppState, engine: Answering) -> None:
    right, wrong = "Where does it say “lamp20 lamp21”?", "Where does it say “lamp30 lamp31”?"
    engine.answers = {right: passage(20), wrong: passage(1)}
    assert offered(state, CAN_QUOTE, wrong, right) == [right]


def test_not_more_is_tried_than_is_worth_it(state: AppState, engine: Answering) -> None:
    assert offered(state, CAN_QUOTE, *(f"Q{number}" for number in range(40))) == []
    assert len(engine.asked) == MOST_TRIES


def test_a_person_who_asks_comes_first(state: AppState, engine: Answering) -> None:
    engine.answers, engine.word_seconds = {"A": passage(1)}, 60.0
    tried, document = TriedQuestions(state), state.current.document
    assert document is not None
    tried.passed(document, MODEL, CAN_QUOTE, lambda: ["A"])
    wait_for(lambda: len(engine.requests) == 2)  # the first one has read the book
    claim, since = state.claim(), time.monotonic()
    wait_for(engine.requests[1].stop.is_set)
    assert time.monotonic() - since < 1.0
    wait_for(lambda: not tried._running)
    tried.passed(document, MODEL, CAN_QUOTE, lambda: ["A"])
    assert len(engine.requests) == 2, "nothing is tried meanwhile"
    state.release(claim)
    engine.word_seconds = 0.0
    assert offered(state, CAN_QUOTE, "A", tried=tried) == ["A"]
    assert [asked.text for asked in engine.asked] == ["A", "A"], "what was cut short is asked again"


def test_nothing_is_tried_that_nobody_would_see(state: AppState, engine: Answering) -> None:
    state.chats.ask(state.current.chat, "A question of one's own")
    document = state.current.document
    assert document is not None
    assert TriedQuestions(state).passed(document, MODEL, CAN_QUOTE, lambda: ["A"]) == []
    assert not engine.asked


def test_another_model_is_not_asked_in_this_ones_place(state: AppState, engine: Answering) -> None:
    """The model has been changed, perhaps to one on another machine: nothing is sent there that nobody asked."""
    document = state.current.document
    assert document is not None
    assert TriedQuestions(state).passed(document, "former", CAN_QUOTE, lambda: ["A"]) == []
    assert not engine.asked
