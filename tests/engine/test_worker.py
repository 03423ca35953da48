"""The engine thread: events in order, cancel within a second, one thing at a time, and a life after errors."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from weakref import ref

import pytest

from engine import Engine, EngineConfig, Question, SamplingParams, Turn
from engine.document import Document, Page
from engine.errors import (
    Busy,
    Closed,
    ContextTooSmall,
    EngineError,
    InputError,
    ModelNotFound,
    ResourceError,
    TrifoldError,
)
from engine.events import AnswerDone, AnswerStarted, BookRead, Event, ReadingProgress, StopReason, TextDelta
from engine.worker import Request, _Forget
from tests.endless import endless

LONG = SamplingParams(max_tokens=2000, temperature=1.0)


@pytest.fixture
def engine(tiny: Callable[..., str], tmp_path: Path) -> Iterator[Engine]:
    config = EngineConfig(
        model=str(endless(Path(shutil.copytree(tiny("llama", spread=0.1), tmp_path / "endless")))),
        draft=tiny("llama", seed=1, layers=1, width=32),
        context=4096,
        retrieval_budget=128,
        prefill_block=64,
    )
    with Engine(config) as engine:
        yield engine


def test_the_memory_of_a_forgotten_book_is_given_back(engine: Engine, book: Document) -> None:
    """The KV of a book that was closed stayed until the next book was read."""
    engine.forget_book()  # there is none
    first = engine.read(book).result()
    assert engine._session is not None
    full = engine._session.full
    assert full.allocated().host > 0
    before = engine._session.conversation
    assert engine.read(book).result().tokens_total == first.tokens_total
    engine._inbox.put(_Forget(ref(before)))  # asked for late: another reading has replaced that book
    asked = Question("Where is the key?", sampling=SamplingParams(max_tokens=4), wait=20.0)
    assert engine.ask(asked).result().text
    now = ref(engine._session.conversation)
    engine.forget_book()
    until = time.monotonic() + 20
    while engine.status().book is not None and time.monotonic() < until:
        time.sleep(0.01)
    assert engine.status().book is None
    assert full.allocated().host == 0
    assert now() is None, "its text and tokens stayed until the next request"
    assert engine.read(book).result().tokens == first.tokens, "it can be read again"


def test_read_and_ask(engine: Engine, book: Document) -> None:
    status = engine.wait_ready(60)
    assert status.state == "idle"
    assert status.model is not None
    assert status.model.draft_name is not None
    assert status.model.context_limit == 4096
    fit = engine.measure(book)
    events = list(engine.read(book))
    assert isinstance(events[0], ReadingProgress)
    assert isinstance(events[-1], BookRead)
    assert events[-1].tokens == fit.tokens
    info = engine.status().book
    assert info is not None
    assert info.complete
    assert info.pages_read == 8
    request = engine.ask(Question("Where is the key?", sampling=SamplingParams(max_tokens=20)))
    kinds = [type(event) for event in request]
    assert kinds.index(AnswerStarted) < kinds.index(TextDelta)
    assert kinds[-1] is AnswerDone
    assert request.finished
    assert request.result().figures.answer_tokens == 20


def test_one_thing_at_a_time(engine: Engine, book: Document) -> None:
    list(engine.read(book))
    first = engine.ask(Question("Where?", sampling=LONG))
    with pytest.raises(Busy, match="question is being answered"):
        engine.ask("And now?")
    with pytest.raises(Busy):
        engine.read(book)
    first.cancel()
    assert isinstance(list(first)[-1], AnswerDone)
    assert isinstance(list(engine.ask(Question("And now?", sampling=SamplingParams(max_tokens=3))))[-1], AnswerDone)


def test_a_question_can_wait_for_a_cancelled_one_to_let_go(engine: Engine, book: Document) -> None:
    list(engine.read(book))
    first = engine.ask(Question("Where?", sampling=LONG))
    with pytest.raises(Busy):
        engine.ask(Question("And now?", wait=0.1))
    stopped = threading.Event()
    threading.Timer(0.1, stopped.set).start()
    asked = time.perf_counter()
    with pytest.raises(Busy):
        engine.ask(Question("And now?", wait=30), cancel=stopped)
    assert time.perf_counter() - asked < 1.0
    first.cancel()
    second = engine.ask(Question("And now?", sampling=SamplingParams(max_tokens=3), wait=30))
    assert isinstance(list(first)[-1], AnswerDone)
    assert isinstance(list(second)[-1], AnswerDone)


def test_closing_refuses_whoever_waits(engine: Engine, book: Document) -> None:
    list(engine.read(book))
    engine.ask(Question("Where?", sampling=LONG))
    threading.Timer(0.1, engine.close).start()
    with pytest.raises(Closed):
        engine.ask(Question("And now?", wait=30))


def test_a_request_that_comes_while_the_engine_closes_has_an_end(
    engine: Engine, book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Admitted a moment before the engine is closed, it reached the thread's queue behind the word to end."""
    engine.wait_ready(60)
    admit = engine._admission.admit

    def admitted_then_closed(request: Request, wait: float) -> None:
        admit(request, wait)
        engine.close()

    monkeypatch.setattr(engine._admission, "admit", admitted_then_closed)
    with pytest.raises(Closed):
        engine.read(book).next_event(2.0)


def test_whatever_ends_the_thread_a_request_has_an_end(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.wait_ready(60)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def ends_the_thread(*_: object, **__: object) -> Iterator[Event]:
        raise SystemExit

    session = engine._session
    monkeypatch.setattr(session, "ask", ends_the_thread)
    first = engine.ask("Where?")
    engine._inbox.put((late := Request[AnswerDone]("answering"), lambda *_: iter(())))
    for request, kind in ((first, EngineError), (late, Closed)):
        with pytest.raises(kind):
            request.next_event(10)
        assert request.finished
    engine._thread.join(10)
    assert engine.status().state == "closed"
    with pytest.raises(Closed):
        engine.ask("And now?")


def test_the_event_that_the_caller_gave_stops_the_request(engine: Engine, book: Document) -> None:
    list(engine.read(book))
    cancel = threading.Event()
    request = engine.ask(Question("Where?", sampling=LONG), cancel=cancel)
    while not isinstance(request.next_event(30), TextDelta):
        pass
    cancel.set()
    done = list(request)[-1]
    assert isinstance(done, AnswerDone)
    assert done.stop_reason is StopReason.CANCELLED


def test_cancel_ends_an_answer_within_a_second(engine: Engine, book: Document) -> None:
    list(engine.read(book))
    request = engine.ask(Question("Where?", sampling=LONG))
    while not isinstance(request.next_event(30), TextDelta):
        pass
    asked = time.perf_counter()
    request.cancel()
    done = list(request)[-1]
    assert time.perf_counter() - asked < 1.0
    assert isinstance(done, AnswerDone)
    assert done.stop_reason is StopReason.CANCELLED
    follow = engine.ask(Question("More?", (Turn("Where?", done.text),), SamplingParams(max_tokens=3)))
    last = list(follow)[-1]
    assert isinstance(last, AnswerDone)
    assert last.figures.prefilled_tokens < 40


def test_cancel_ends_reading_within_a_second(engine: Engine, book: Document) -> None:
    request = engine.read(book)
    while not isinstance(request.next_event(30), ReadingProgress):
        pass
    asked = time.perf_counter()
    request.cancel()
    done = list(request)[-1]
    assert time.perf_counter() - asked < 1.0
    assert isinstance(done, BookRead)
    assert done.stopped


def test_leaving_the_loop_cancels(engine: Engine, book: Document) -> None:
    list(engine.read(book))
    request = engine.ask(Question("Where?", sampling=LONG))
    for event in request:
        if isinstance(event, TextDelta):
            break
    del event
    assert request.cancelled


def test_an_error_is_raised_and_the_thread_lives_on(
    engine: Engine, book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="No book"):
        engine.ask("Before any book?").result()
    list(engine.read(book))
    good = list(engine.ask(Question("Where?", sampling=SamplingParams(max_tokens=8))))[-1]
    for error, kind in ((RuntimeError("boom"), EngineError), (MemoryError(), ResourceError)):

        def broken(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr("engine.decode.rounds.full_pass", broken)
            with pytest.raises(TrifoldError) as failed:
                list(engine.ask(Question("Where?", sampling=SamplingParams(max_tokens=8))))
        assert type(failed.value) is kind
        assert failed.value.remedy
        again = list(engine.ask(Question("Where?", sampling=SamplingParams(max_tokens=8))))[-1]
        assert isinstance(again, AnswerDone)
        assert isinstance(good, AnswerDone)
        assert again.token_ids == good.token_ids


def test_too_long_and_empty_books_are_refused(engine: Engine) -> None:
    huge = Document("Huge", "", (Page(1, "1", "lamp " * 9000),), "text", "0")
    with pytest.raises(ContextTooSmall, match="too long for this model"):
        engine.read(huge).result()


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    engine = Engine(EngineConfig(model=str(tmp_path / "absent")))
    with pytest.raises(ModelNotFound):
        engine.wait_ready(60)
    assert engine.status().state == "failed"
    assert "absent" in engine.status().detail
    with pytest.raises(ModelNotFound):
        engine.ask("Where?")
    engine.close()


def test_closed_engine_says_so(tiny: Callable[..., str], book: Document) -> None:
    engine = Engine(EngineConfig(model=tiny("llama"), context=4096))
    engine.wait_ready(60)
    engine.close()
    assert engine.status().state == "closed"
    with pytest.raises(Closed):
        engine.read(book)


def test_front_door_does_not_load_torch() -> None:
    code = "import engine, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0


def test_a_result_is_waited_for_and_raises_what_went_wrong(engine: Engine, book: Document) -> None:
    reading = engine.read(book)
    with pytest.raises(TimeoutError):
        reading.result(timeout=0.0)
    assert not reading.finished
    assert reading.result().pages_read == len(book.pages)
    request = engine.ask(Question("Where?", sampling=SamplingParams(max_tokens=3)))
    done = request.result()
    assert request.result() is done, "it can be asked for again"
    assert request.next_event(0.0) is None
    empty = engine.read(Document.from_text("Nothing", "  "))
    for _ in range(2):
        with pytest.raises(InputError, match="no text"):
            empty.result()
    assert list(empty) == []


def test_a_text_becomes_a_book() -> None:
    one, other = Document.from_pages("T", ["First.", "Second."]), Document.from_text("T", "First.")
    assert [(page.number, page.label, page.text) for page in one.pages] == [(1, "1", "First."), (2, "2", "Second.")]
    assert (one.unit, other.unit, len(other.pages)) == ("page", "section", 1)
    assert one.sha256 != other.sha256
    assert one.sha256 == Document.from_pages("T", ("First.", "Second.")).sha256, "KV of the same text is found again"
