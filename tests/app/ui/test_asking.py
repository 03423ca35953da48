"""One question's life: what is written down, when it stops, and that it never blocks for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.ui import asking, rhythm
from app.ui.desk import Keeper, Stage
from engine.config import SamplingParams
from engine.errors import Busy, TrifoldError
from engine.events import Failed, StopReason
from tests.app.ui.scripted import ScriptedEngine, wait_for

Make = Callable[..., Keeper]
LONG = " ".join(["word"] * 400)


def ask(keeper: Keeper, question: str = "Who?", position: int | None = None) -> Iterator[str]:
    return asking.ask(keeper, question, SamplingParams(), "hierarchical", position)


def test_an_answer_is_written_down_with_its_figures(ready: Make) -> None:
    keeper = ready()
    list(ask(keeper))
    exchange = keeper.chat.exchanges[0]
    assert (exchange.question, exchange.answer) == ("Who?", "It was Maren Holt who kept the north light.")
    assert keeper.engine.asked_in == [keeper.chat.id]  # so that its turns are kept, and deleted with it
    assert exchange.stopped is StopReason.END
    assert exchange.figures.answer_tokens == 9
    assert keeper.desk.figures == exchange.figures
    assert sum(keeper.desk.scores) == pytest.approx(1.0)
    assert len(keeper.desk.pace) > 0
    assert not keeper.desk.asking


def test_the_second_question_brings_the_first_with_it(ready: Make) -> None:
    engine = ScriptedEngine()
    keeper = ready(engine)
    list(ask(keeper))
    list(ask(keeper, "And after her?"))
    question, history, sampling, mode = engine.asked[1]
    assert question == "And after her?"
    assert [(turn.question, turn.answer) for turn in history] == [("Who?", engine.answer)]
    assert (sampling, mode) == (SamplingParams(), "hierarchical")


def test_asking_again_takes_the_old_answers_place(ready: Make) -> None:
    engine = ScriptedEngine()
    keeper = ready(engine)
    list(ask(keeper))
    engine.answer = "Nobody knows."
    list(ask(keeper, "Who?", position=0))
    assert [exchange.answer for exchange in keeper.chat.exchanges] == ["Nobody knows."]
    assert engine.asked[1][1] == ()


def test_the_chat_is_laid_out_seldom_and_its_words_are_known_sooner(ready: Make) -> None:
    keeper = ready(ScriptedEngine(answer=LONG, word_seconds=0.005))
    began, updates, seen = time.monotonic(), 0, set()
    watching = threading.Event()

    def watch() -> None:
        while not watching.wait(0.01):
            turns = keeper.chat.exchanges
            seen.add(len(turns[-1].answer) if turns else 0)

    watcher = threading.Thread(target=watch)
    watcher.start()
    updates = len(list(ask(keeper)))
    seconds = time.monotonic() - began
    watching.set()
    watcher.join()
    phases = 4  # thinking, reading the question, writing, the first word
    assert updates <= seconds / rhythm.SHARED.layout + phases
    assert len(seen) > 2 * updates  # what the live stream brings in between
    assert len(seen) <= seconds / asking.UPDATE_SECONDS + phases


def test_a_first_word_is_laid_out_at_once(ready: Make) -> None:
    keeper = ready(ScriptedEngine(answer="One two", word_seconds=0.3))
    steps, began = ask(keeper), time.monotonic()
    while not (keeper.chat.exchanges and keeper.chat.exchanges[-1].answer):
        next(steps)
    assert time.monotonic() - began < 0.3 + rhythm.OWN.layout / 2
    list(steps)


def test_stop_ends_it_within_a_second_and_keeps_the_words(ready: Make) -> None:
    keeper = ready(ScriptedEngine(answer=LONG))
    steps = ask(keeper)
    wait_for(lambda: next(steps) is not None and len(keeper.chat.exchanges[0].answer) > 20)
    keeper.stop_asking()
    stopped = time.monotonic()
    list(steps)
    assert time.monotonic() - stopped < 1.0
    exchange = keeper.chat.exchanges[0]
    assert exchange.stopped is StopReason.CANCELLED
    assert 20 < len(exchange.answer) < len(LONG)


def test_a_closed_tab_cancels_the_request(ready: Make) -> None:
    engine = ScriptedEngine(answer=LONG)
    keeper = ready(engine)
    steps = ask(keeper)
    wait_for(lambda: next(steps) is not None and bool(keeper.chat.exchanges[0].answer))
    steps.close()  # type: ignore[attr-defined]
    assert engine.requests[-1].cancelled.is_set()
    assert keeper.chat.exchanges[0].stopped is StopReason.CANCELLED
    assert not keeper.desk.asking
    list(ask(keeper, "And now?"))
    assert keeper.chat.exchanges[1].stopped is StopReason.END


def test_the_caller_gets_its_turn_while_the_engine_is_silent(ready: Make) -> None:
    keeper = ready(ScriptedEngine(answer=LONG, word_seconds=5.0))
    steps = ask(keeper)
    next(steps)
    for _ in range(3):
        began = time.monotonic()
        next(steps)
        assert time.monotonic() - began < 2.0
    steps.close()  # type: ignore[attr-defined]


def test_a_second_tab_is_told_at_once(ready: Make) -> None:
    keeper = ready(ScriptedEngine(answer=LONG))
    steps = ask(keeper)
    next(steps)
    with pytest.raises(Busy, match="Another tab"):
        next(ask(keeper, "Me too?"))
    assert len(keeper.chat.exchanges) == 1
    steps.close()  # type: ignore[attr-defined]


def test_a_failure_is_written_where_the_answer_would_be(ready: Make) -> None:
    failure = Failed("The memory ran out.", "Read fewer pages.", "ResourceError")
    keeper = ready(ScriptedEngine(failure=failure))
    list(ask(keeper))
    exchange = keeper.chat.exchanges[0]
    assert (exchange.trouble.cause, exchange.trouble.remedy) == ("The memory ran out.", "Read fewer pages.")
    assert exchange.answer == "It was Maren"
    keeper.engine.failure = None
    list(ask(keeper, "Who?", position=0))
    assert keeper.chat.exchanges[0].trouble is None


def test_a_question_comes_in_while_the_book_is_read(make_keeper: Make, a_file: Path) -> None:
    """The reading pauses at a page, the answer is from what was read, and the reading goes on from there."""
    engine = ScriptedEngine(reading_seconds=None)
    keeper = make_keeper(engine)
    keeper.open(keeper.books.copy_in(a_file))
    wait_for(lambda: keeper.desk.progress is not None and keeper.desk.progress.pages_done == 24)
    steps = ask(keeper)
    assert [next(steps), next(steps)][1].startswith("Read 24 pages so far")
    list(steps)
    exchange = keeper.chat.exchanges[0]
    assert (exchange.stopped, exchange.pages_read) == (StopReason.END, 24)
    wait_for(lambda: keeper.desk.stage is Stage.READY)
    assert engine.readings == [0.0, 0.4]
    assert not keeper.desk.paused
    assert (keeper.desk.read.pages_read, keeper.desk.read.stopped) == (60, False)
    list(ask(keeper, "And now?"))
    assert keeper.chat.exchanges[1].pages_read == 0


def test_a_paused_reading_can_be_stopped_for_good(make_keeper: Make, a_file: Path) -> None:
    keeper = make_keeper(ScriptedEngine(reading_seconds=None, answer=LONG, word_seconds=0.25))
    keeper.open(keeper.books.copy_in(a_file))
    wait_for(lambda: keeper.desk.progress is not None and keeper.desk.progress.pages_done == 24)
    steps = ask(keeper)
    wait_for(lambda: next(steps) is not None and bool(keeper.chat.exchanges[0].answer))
    keeper.stop_reading()
    wait_for(lambda: next(steps) is not None and keeper.desk.stage is Stage.READY)
    assert keeper.desk.read.pages_read == 24
    steps.close()  # type: ignore[attr-defined]


def test_a_question_waits_for_a_reading_that_is_nearly_done(make_keeper: Make, a_file: Path) -> None:
    engine = ScriptedEngine(reading_seconds=1.0)
    keeper = make_keeper(engine)
    keeper.open(keeper.books.copy_in(a_file))
    wait_for(lambda: keeper.desk.stage is Stage.READING)
    steps = ask(keeper)
    assert [next(steps), next(steps)][1] == "Your question is asked as soon as the book has been read."
    list(steps)
    assert engine.readings == [0.0]
    assert keeper.chat.exchanges[0].pages_read == 0


def test_a_cut_answer_goes_on_in_its_place(ready: Make) -> None:
    engine = ScriptedEngine(answer="one two three four five six")
    keeper = ready(engine)
    engine.failure, engine.fail_after = Failed("The memory ran out.", "Read fewer pages.", "ResourceError"), 3
    list(ask(keeper))
    cut = keeper.chat.exchanges[0]
    assert (cut.answer, cut.can_be_continued) == ("one two three", True)
    engine.failure = None
    list(asking.go_on(keeper, SamplingParams(), "hierarchical", 0))
    whole = keeper.chat.exchanges[0]
    assert (whole.answer, whole.trouble, whole.stopped) == ("one two three four five six", None, StopReason.END)
    assert whole.answer_id == cut.answer_id
    assert len(keeper.chat.exchanges) == 1


def test_a_waiting_question_can_be_stopped(make_keeper: Make, a_file: Path) -> None:
    keeper = make_keeper(ScriptedEngine(reading_seconds=None))
    keeper.open(keeper.books.copy_in(a_file))
    wait_for(lambda: keeper.desk.stage is Stage.READING)
    steps = ask(keeper)
    next(steps)
    keeper.stop_asking()
    list(steps)
    assert keeper.chat.exchanges[0].stopped is StopReason.CANCELLED
    assert keeper.desk.stage is Stage.READING


def test_without_a_book_there_is_nothing_to_ask(make_keeper: Make) -> None:
    keeper = make_keeper()
    with pytest.raises(TrifoldError, match="no book"):
        next(ask(keeper))
    assert not keeper.desk.asking


def test_a_question_that_waits_for_a_busy_engine_can_be_stopped(ready: Make) -> None:
    engine = ScriptedEngine(answer=LONG)
    keeper = ready(engine)
    other = engine.ask("Somebody else's")
    steps = ask(keeper)
    for _ in range(3):
        next(steps)
    keeper.stop_asking()
    began = time.monotonic()
    list(steps)
    assert time.monotonic() - began < 1.0
    assert keeper.chat.exchanges[0].stopped is StopReason.CANCELLED
    other.cancel()
