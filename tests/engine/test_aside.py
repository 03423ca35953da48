"""Answers from short texts in a context of their own: plain decoding's text, and a reading that notices nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from engine import Engine, EngineConfig, Question, SamplingParams, Turn
from engine.document import Document, Reading
from engine.errors import Busy, ContextTooSmall, InputError
from engine.events import AnswerDone, AnswerStarted, BookRead, Event, Loading, ReadingProgress, StopReason, TextDelta
from engine.session import Session

EXCERPT = Document.from_pages("The Light", ["The key hangs behind the clock.", "Maren Holt lit the lamp at dusk."])
GREEDY = SamplingParams(max_tokens=16, temperature=0)
QUESTION = Question("Who lit the lamp?", (Turn("Where is the key?", "Behind the clock."),), GREEDY, excerpt=EXCERPT)


def config(tiny: Callable[..., str], **options: object) -> EngineConfig:
    settings: dict[str, object] = {
        "context": 4096,
        "retrieval_budget": 128,
        "prefill_segment": 256,
        "prefill_block": 64,
    }
    draft = tiny("llama", seed=1, layers=1, width=32)
    return EngineConfig(model=tiny("llama", spread=0.1), draft=draft, **settings | options)  # type: ignore[arg-type]


@pytest.fixture
def session(tiny: Callable[..., str]) -> Session:
    return Session.load(config(tiny))


def kv_of(session: Session) -> list[torch.Tensor]:
    """The KV of every layer of the open book."""
    full = session.full
    return [part for layer in range(full.shape.layers) for part in full.export(layer, 0, full.length)]


def done_of(events: Iterator[Event] | list[Event]) -> AnswerDone:
    *_, done = events
    assert isinstance(done, AnswerDone)
    return done


def test_the_answer_is_that_of_a_session_that_has_read_only_the_excerpt(tiny: Callable[..., str]) -> None:
    """Plain decoding's text given its own prompt, greedy and drawn."""
    for sampling in (GREEDY, SamplingParams(max_tokens=16, temperature=1.0, seed=5)):
        one, other = Session.load(config(tiny)), Session.load(config(tiny))
        question = Question(QUESTION.text, QUESTION.history, sampling, "plain", excerpt=EXCERPT)
        aside = done_of(one.ask_aside(question))
        list(other.read(EXCERPT))
        whole = done_of(other.ask(Question(QUESTION.text, QUESTION.history, sampling, "plain")))
        assert aside.token_ids == whole.token_ids
        assert aside.figures.prompt_tokens == whole.figures.prompt_tokens
        assert (aside.page_scores, aside.figures.mode) == ((), "plain")


def test_a_reading_that_is_interrupted_has_the_same_kv_and_the_book_the_same_answer(
    tiny: Callable[..., str], book: Document
) -> None:
    left, interrupted = Session.load(config(tiny)), Session.load(config(tiny))
    list(left.read(book))
    progress = 0
    for event in interrupted.read(book):
        if isinstance(event, ReadingProgress):
            progress += 1
            if progress % 5 == 2:
                done_of(interrupted.ask_aside(QUESTION))
    assert progress > 10
    assert left.full.length == interrupted.full.length
    assert all(torch.equal(one, other) for one, other in zip(kv_of(left), kv_of(interrupted), strict=True))
    question = Question("Who lit it?", (), GREEDY)
    assert done_of(left.ask(question)).token_ids == done_of(interrupted.ask(question)).token_ids


def test_a_conversation_about_the_book_goes_on_after_an_answer_aside(session: Session, book: Document) -> None:
    list(session.read(book))
    first = done_of(session.ask(Question("Where is the key?", (), GREEDY)))
    length = session.full.length
    done_of(session.ask_aside(QUESTION))
    assert session.full.length == length
    again = done_of(session.ask(Question("Where is the key?", (), GREEDY)))
    assert again.token_ids == first.token_ids
    assert again.figures.prefilled_tokens == 1


def test_it_can_be_stopped_at_every_event(session: Session) -> None:
    count = len(list(session.ask_aside(QUESTION)))
    for last in range(1, count - 1):
        cancel, taken = threading.Event(), list[Event]()
        for event in session.ask_aside(QUESTION, cancel=cancel):
            taken.append(event)
            if len(taken) == last:
                cancel.set()
        done = done_of(taken)
        assert done.stop_reason is StopReason.CANCELLED
        assert done.text == "".join(event.text for event in taken if isinstance(event, TextDelta))


def test_what_cannot_be_asked_is_said_before_any_work(session: Session) -> None:
    for question, error in (
        (Question("", excerpt=EXCERPT), InputError),
        (Question("Who?", excerpt=Document.from_pages("Empty", [" "])), InputError),
        (Question("Who?", excerpt=Document.from_pages("Long", ["word " * 5000])), ContextTooSmall),
    ):
        with pytest.raises(error):
            next(session.ask_aside(question))


@pytest.fixture
def engine(tiny: Callable[..., str]) -> Iterator[Engine]:
    with Engine(config(tiny, prefill_block=8)) as engine:
        engine.wait_ready(60)
        yield engine


def test_a_question_about_an_excerpt_is_answered_while_a_book_is_read(engine: Engine, book: Document) -> None:
    long = Document.from_pages("Long", [page.text * 8 for page in book.pages])
    reading = engine.read(Reading(long, fit=True))
    assert isinstance(reading.next_event(10), ReadingProgress)
    answered = done_of(list(engine.ask(QUESTION)))
    assert not reading.finished
    assert engine.status().state == "reading"
    read = reading.result(60)
    assert not read.stopped
    assert answered.token_ids == done_of(list(engine.ask(QUESTION))).token_ids, "an idle engine answers the same"
    assert engine.status().state == "idle"


def test_stop_ends_the_answer_and_not_the_reading(engine: Engine, book: Document) -> None:
    long = Document.from_pages("Long", [page.text * 8 for page in book.pages])
    reading, cancel = engine.read(Reading(long, fit=True)), threading.Event()
    reading.next_event(10)
    endless = Question("Who?", (), SamplingParams(max_tokens=4000, temperature=1.0), excerpt=EXCERPT)
    answer = engine.ask(endless, cancel=cancel)
    with pytest.raises(Busy):
        engine.ask(QUESTION)
    while not isinstance(answer.next_event(10), TextDelta):
        pass
    cancel.set()
    assert answer.result(10).stop_reason in (StopReason.CANCELLED, StopReason.END, StopReason.LOOP)
    assert isinstance(reading.result(60), BookRead)
    assert not reading.result().stopped


def test_the_time_of_answers_does_not_count_as_reading(session: Session, book: Document) -> None:
    for event in session.read(book):
        if isinstance(event, ReadingProgress):
            break
    began = session._reading_clock()
    time.sleep(0.01)
    assert session._reading_clock() > began
    before, real = session._reading_clock(), time.perf_counter()
    events = list(session.ask_aside(QUESTION))
    assert session._reading_clock() - before < 0.5 * (time.perf_counter() - real)
    assert isinstance(events[0], Loading)
    assert any(isinstance(event, AnswerStarted) for event in events)


def test_work_for_the_next_answer_is_done_after_a_reading_that_was_interrupted(
    engine: Engine, book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wake-up call of the question was still in the inbox, and ended that work."""
    completed = threading.Event()

    def work(_: Session) -> Iterator[None]:
        yield None
        yield None
        completed.set()

    monkeypatch.setattr(Session, "work_ahead", work)
    reading = engine.read(Reading(Document.from_pages("Long", [page.text * 8 for page in book.pages]), fit=True))
    reading.next_event(10)
    done_of(list(engine.ask(QUESTION)))
    assert not reading.finished
    assert not completed.is_set()
    reading.result(60)
    assert completed.wait(10)
