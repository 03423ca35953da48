"""What a question assumes and words alone doubt: the model looks at the nearest passage, after the answer."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from app.core import chat_run
from app.core.premise import checked, is_doubted
from app.core.question import Ask
from app.trust.citations import CitationFinder
from engine.document import Document
from tests.app.scripted import ScriptedEngine, engine_status, model_info, wait_for

BOOK = Document.from_pages(
    "Survey", ["The survey of the harbour began in May. The council put an end to the survey of the harbour in June."]
)
QUESTION = "Why was the survey of the harbour cancelled?"
LARGE = 1_500_000_000


def record_of(question: str = QUESTION) -> dict[str, Any]:
    finder = CitationFinder()
    finder.prepare(BOOK).result()
    notes = finder.begin(BOOK, question, "I cannot say.")
    notes.close()
    return notes.record()


@pytest.mark.parametrize(
    ("said", "parameters", "doubted", "asked"),
    [("Yes", LARGE, False, 1), ("No", LARGE, True, 1), ("Yes", 27_000_000, True, 0)],
    ids=["found", "not found", "a small model is not asked"],
)
def test_a_doubt_of_words_goes_if_the_model_finds_it(said: str, parameters: int, doubted: bool, asked: int) -> None:
    """Words doubted three of eight premises that the text tells in other words."""
    engine = ScriptedEngine(said)
    engine.now = engine_status(model=model_info(parameters=parameters))
    record = record_of()
    assert is_doubted(record)
    found = checked(engine, BOOK, QUESTION, record)
    assert is_doubted(found) is doubted
    assert found["chips"] == record["chips"]
    assert len(engine.asked) == asked
    for one in engine.asked:
        assert one.text.startswith("Does the text say so: Was the survey of the harbour cancelled?")
        assert one.excerpt is not None
        assert "put an end" in one.excerpt.text
        assert one.sampling.max_tokens == 1


def test_nothing_is_asked_if_nothing_is_doubted_or_the_next_question_has_come() -> None:
    engine, stopped = ScriptedEngine("Yes", word_seconds=5), threading.Event()
    engine.now = engine_status(model=model_info(parameters=LARGE))
    record = record_of("When did the survey of the harbour begin?")
    assert checked(engine, BOOK, QUESTION, record) is record
    assert not engine.asked
    stopped.set()
    assert is_doubted(checked(engine, BOOK, QUESTION, record_of(), stopped))


def test_the_line_goes_from_the_page_after_the_answer(ready: Any) -> None:
    engine = ScriptedEngine("Yes, I cannot say.")
    engine.now = engine_status(model=model_info(parameters=LARGE))
    state = ready(engine)
    state.show(document=BOOK)
    list(chat_run.ask(state, Ask(QUESTION)))
    wait_for(lambda: not is_doubted(state.chat.exchanges[0].notes or {}))
    assert state.chat.exchanges[0].answer == "Yes, I cannot say."
    assert [asked.excerpt is not None for asked in engine.asked] == [False, True]
