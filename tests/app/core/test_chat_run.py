"""One question's life: what is written down, when it stops, and that it never blocks for long."""

from __future__ import annotations

import html
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from app.core import chat_run, exchange_writer, format
from app.core.abilities import FIT_BEST, LIMITS
from app.core.chats import Exchange, all_messages
from app.core.exchange_writer import unread
from app.core.export import as_json, as_markdown
from app.core.open_book import Stage
from app.core.question import AnswersFrom, Ask
from app.core.signal import Signal
from app.core.state import AppState
from app.web import openai_api
from app.web.live import page_view
from app.web.messages import absent, marked, messages
from app.web.openai_schema import ApiError
from engine import Question
from engine.config import SamplingParams
from engine.document import Document, Picture
from engine.errors import Busy, ResourceError, TrifoldError
from engine.events import AnswerDone, Figures, StopReason
from tests import loops
from tests.app.scripted import ScriptedEngine, book, engine_status, model_info, wait_for

Make = Callable[..., AppState]
LONG = " ".join(["word"] * 400)


def ask(state: AppState, question: str = "Who?", position: int | None = None) -> Iterator[str]:
    return chat_run.ask(state, Ask(question, position=position))


def test_an_answer_is_written_down_with_its_figures(ready: Make) -> None:
    engine = ScriptedEngine()
    state = ready(engine)
    list(ask(state))
    exchange = state.chat.exchanges[0]
    assert (exchange.question, exchange.answer) == ("Who?", "It was Maren Holt who kept the north light.")
    assert [asked.chat for asked in engine.asked] == [state.chat.id]  # so that its turns are kept, and deleted with it
    assert exchange.stopped is StopReason.END
    assert exchange.figures.answer_tokens == 9
    assert sum(state.current.scores) == pytest.approx(1.0)
    assert len((exchange.notes or {})["pace"]) > 0
    assert not state.current.asking


def test_what_wrote_an_answer_is_kept_with_it_and_exported(ready: Make) -> None:
    state = ready(ScriptedEngine(answer="one two three four"))
    list(chat_run.ask(state, Ask("Who?", sampling=SamplingParams(0.6, 0.95, max_tokens=64))))
    list(chat_run.ask(state, Ask("And plainly?", sampling=SamplingParams(seed=7), mode="plain")))
    chat = state.chat
    assert chat is not None
    said = [line for line in as_markdown(chat, "The Light").splitlines() if line.startswith("*Story")]
    assert said == [
        "*Storyteller 27M with Storyteller 3M · fast · temperature 0.6 · top-p 0.95 · at most 64 tokens*",
        "*Storyteller 27M · plain · temperature 0 · top-p 1 · at most 4096 tokens · seed 7*",
    ]
    rows = state.chats.database.read(lambda connection: all_messages(connection, chat.id))
    made = json.loads(as_json(chat, {}, rows))["messages"][1]["notes"]["made"]
    assert (made["model"], made["temperature"]) == ("Storyteller 27M", 0.6)


def test_what_a_part_of_a_book_lacks_may_stand_elsewhere_in_the_book(
    make_state: Make, a_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page said "Not found in the book" of a man on page 40 while pages 11 to 15 were open."""
    whole = book()
    pages = [
        replace(page, text=f"{page.text} The rent is $40,000.") if page.number == 40 else page for page in whole.pages
    ]
    document = replace(whole, pages=tuple(pages))
    engine = ScriptedEngine(answer="There it says lamp3 lamp4 lamp5 lamp6. The lamp cost $40,000 in 1871.", limit=4000)
    state = make_state(engine, document=document)
    state.open(state.books.copy_in(a_file))
    wait_for(lambda: state.current.stage is Stage.CHOOSING)
    there = "Not in pages 11 to 15, but elsewhere in the book: $40,000 (page 40)"
    for chosen, where, said in (
        ((11, 15), "pages 11 to 15", f"{there}. Not found in the book: 1871"),
        ((40, 44), "the book", "Not found in the book: 1871"),
    ):
        state.choose(*chosen)
        wait_for(lambda: state.current.stage is Stage.READY)
        list(chat_run.ask(state, Ask("Which lamps?", mode="plain")))
        assert state.chat is not None
        assert absent(state.chat.exchanges[-1].notes) == said
        assert f"*{said}.*" in as_markdown(state.chat, "The Light")
        button = re.search(r"not in [^<]*", marked(engine.answer, state.chat.exchanges[-1].notes, 0))
        assert button is not None
        done = AnswerDone(engine.answer, (), (), StopReason.END, Figures.none("plain"))
        (told,) = openai_api.about_book(state, done, Ask("Which lamps?"), engine.answer)
        outside = {"$40,000": "page 40"} if chosen == (11, 15) else {}
        assert (button[0], told["not_found"], told.get("elsewhere", {})) == (f"not in {where}", ["1871"], outside)
    state.choose_pages({3, 9})
    wait_for(lambda: state.current.stage is Stage.READY)
    engine.answer, engine.word_seconds = (
        "The lamp cost $40,000 in 1871. " + " ".join(["It says lamp3 lamp4."] * 12),
        0.03,
    )
    looked = Mock(wraps=exchange_writer.text_record)
    monkeypatch.setattr(exchange_writer, "text_record", looked)
    list(chat_run.ask(state, Ask("Which lamps?", mode="plain")))
    searched = [call.args[2] for call in looked.call_args_list]
    assert searched
    assert all(one != other for one, other in pairwise(searched)), "a growing answer searches for new words only"
    assert absent(state.chat.exchanges[-1].notes).startswith(
        "Not in the chosen pages, but elsewhere in the book: $40,000"
    )


def test_evidence_is_kept_with_an_answer_and_exported_as_footnotes(ready: Make) -> None:
    state = ready(ScriptedEngine(answer="There it says lamp3 lamp4 lamp5 lamp6. The lamp cost $40,000. Thank you!"))
    for evidence in (True, False):
        list(chat_run.ask(state, Ask("Which lamps?", mode="plain", evidence=evidence)))
    chat = state.chat
    assert chat is not None
    found, left = (turn.notes or {} for turn in chat.exchanges)
    assert [chip["kind"] for chip in found["chips"]] == ["says", "absent"]
    assert found["missing"] == ["$40,000"]
    assert (left["chips"], left.get("missing")) == ([], None)
    text = as_markdown(chat, "The Light")
    assert "## Which lamps?\n\n*Not found in the book: $40,000.*\n\nThere it says lamp3 lamp4 lamp5 lamp6.[^1]" in text
    assert re.search(r"\n\n\[\^1\]: Page \d+: “.*lamp3 lamp4 lamp5 lamp6.*”\n", text)
    assert "[^2]" not in text


def test_the_first_words_of_an_answer_can_be_given(ready: Make, tmp_path: Path) -> None:
    (tmp_path / "abilities.json").write_text(json.dumps({"overview": "Some passages: “"}), encoding="utf-8")
    engine = ScriptedEngine(answer="lamp3 lamp4 lamp5 lamp6”")
    engine.now = engine_status(model=model_info(path=str(tmp_path)))
    state = ready(engine)
    for question in ("What is this about?", "Who?"):
        list(chat_run.ask(state, Ask(question, mode="plain")))
    whole, other = state.chat.exchanges
    assert [asked.begun for asked in engine.asked] == ["Some passages: “", ""]
    assert whole.answer == "Some passages: “ lamp3 lamp4 lamp5 lamp6”"  # the scripted engine sets a space before
    assert [chip["kind"] for chip in (whole.notes or {})["chips"]] == ["quoted"]
    counts = [int(count) for count in re.findall(r"\d+", whole.provenance)]
    assert sum(counts) == sum(map(str.isalpha, whole.answer))
    assert other.answer == "lamp3 lamp4 lamp5 lamp6”"


def test_what_was_the_models_own_choice_is_said(ready: Make) -> None:
    engine = ScriptedEngine(answer="one two three four")
    engine.now = engine_status(model=model_info(sampling=SamplingParams(temperature=0.7, repetition_penalty=1.05)))
    state = ready(engine)
    list(chat_run.ask(state, Ask("Who?", sampling=SamplingParams(temperature=0.2), mode="plain")))
    assert state.chat is not None
    line = "temperature 0.2 · top-p 1 · repetition penalty 1.05 (the model's own) · at most 4096 tokens"
    assert line in as_markdown(state.chat, "The Light")


def test_a_part_without_passages_says_where_the_book_has_the_words(
    make_state: Make, a_file: Path, tmp_path: Path
) -> None:
    """It said that the book may say it in other words, of a man on page 40 while pages 11 to 15 were open."""
    (tmp_path / "abilities.json").write_text(json.dumps({"only_quotes": True}), encoding="utf-8")
    whole = book()
    pages = [replace(page, text=f"{page.text} Mr Zebulon sang.") if page.number == 40 else page for page in whole.pages]
    engine = ScriptedEngine(limit=4000)
    engine.now = engine_status(model=model_info(path=str(tmp_path)))
    state = make_state(engine, document=replace(whole, pages=tuple(pages)))
    state.open(state.books.copy_in(a_file))
    wait_for(lambda: state.current.stage is Stage.CHOOSING)
    state.choose(11, 15)
    wait_for(lambda: state.current.stage is Stage.READY)
    for question, said in (
        ("Who was Mr Zebulon?", "Not in pages 11 to 15, but elsewhere in the book: Zebulon (page 40)"),
        ("Who was Ulrika?", ""),
    ):
        list(chat_run.ask(state, Ask(question)))
        assert state.chat is not None
        assert state.chat.exchanges[-1].by_passages
        assert absent(state.chat.exchanges[-1].notes) == said
        shown = html.unescape(str(messages(state.chat.exchanges)[-1]["content"]))
        assert shown.startswith(f'<div class="above">{said}</div>' if said else '<div class="under">')


def test_passages_take_the_place_of_a_refusal(ready: Make, tmp_path: Path) -> None:
    """A small model said "The book does not say that." about what the book says."""
    card = {"refusals": ["It was Maren Holt who kept the north light."], "limit": "starter"}
    (tmp_path / "abilities.json").write_text(json.dumps(card), encoding="utf-8")
    engine = ScriptedEngine()
    engine.now = engine_status(model=model_info(path=str(tmp_path)))
    state = ready(engine)
    shown = [state.chat.exchanges[0].answer for _ in ask(state, "Where is lamp7?")]
    assert not any("Maren" in text for text in shown)
    (turn,) = state.chat.exchanges
    assert turn.answer == f"{FIT_BEST} {LIMITS['starter']}"
    assert (turn.by_passages, turn.stopped) == (True, StopReason.END)
    notes = dict(turn.notes or {})
    assert "lamp7" in notes["passages"][0]["text"]
    assert notes["chips"] == []
    text = as_markdown(state.chat, "The Light")  # type: ignore[arg-type]
    assert re.search(r"\n\n\[\^1\]: Page \d+: “.* lamp7 .*”\n", text)
    engine.answer = "It was Maren Holt who kept the north light, and the book says so on many of its pages."
    list(ask(state, "And after her?"))
    assert not state.chat.exchanges[1].by_passages
    assert engine.asked[1].history == (), "a text that no model wrote is no turn"
    list(ask(state, "And who after her?"))
    apart = [(turn.notes or {})["uncounted"] for turn in state.chat.exchanges]
    assert apart == ["refused", "", "repeats"], "the third says what the second said"


def test_the_second_question_brings_the_first_with_it(ready: Make) -> None:
    engine = ScriptedEngine()
    state = ready(engine)
    list(ask(state))
    list(ask(state, "And after her?"))
    asked = engine.asked[1]
    assert asked.text == "And after her?"
    assert [(turn.question, turn.answer) for turn in asked.history] == [("Who?", engine.answer)]
    assert (asked.sampling, asked.mode) == (SamplingParams(), "hierarchical")


def test_asking_again_takes_the_old_answers_place(ready: Make) -> None:
    engine = ScriptedEngine()
    state = ready(engine)
    list(ask(state))
    engine.answer = "Nobody knows."
    list(ask(state, "Who?", position=0))
    assert [exchange.answer for exchange in state.chat.exchanges] == ["Nobody knows."]
    assert engine.asked[1].history == ()


def test_the_chat_is_laid_out_seldom_and_its_words_are_known_sooner(ready: Make) -> None:
    state = ready(ScriptedEngine(answer=LONG, word_seconds=0.005))
    began, updates, seen = time.monotonic(), 0, set()
    watching = threading.Event()

    def watch() -> None:
        while not watching.wait(0.01):
            turns = state.chat.exchanges
            seen.add(len(turns[-1].answer) if turns else 0)

    watcher = threading.Thread(target=watch)
    watcher.start()
    updates = len(list(ask(state)))
    seconds = time.monotonic() - began
    watching.set()
    watcher.join()
    phases = 4  # thinking, reading the question, writing, the first word
    assert updates <= seconds / chat_run.SHARED.layout + phases
    assert len(seen) > 2 * updates  # what the live stream brings in between
    assert len(seen) <= seconds / chat_run.UPDATE_SECONDS + phases


def test_a_tab_that_is_woken_finds_the_words_of_the_figures(ready: Make) -> None:
    state = ready(ScriptedEngine(answer="One two three four", word_seconds=0.12))
    seen = []

    class Watched(Signal):
        def send(self) -> None:
            turn = state.chat.exchanges[-1] if state.chat.exchanges else Exchange("")
            seen.append((len(turn.answer.split()), turn.figures.answer_tokens if turn.figures else 0))

    state.chats.database.changed = Watched()
    list(ask(state))
    assert all(words >= tokens for words, tokens in seen)
    assert seen[-1] == (4, 4)


def test_a_first_word_is_laid_out_at_once(ready: Make) -> None:
    state = ready(ScriptedEngine(answer="One two", word_seconds=0.3))
    steps, began = ask(state), time.monotonic()
    while not (state.chat.exchanges and state.chat.exchanges[-1].answer):
        next(steps)
    assert time.monotonic() - began < 0.3 + chat_run.OWN.layout / 2
    list(steps)


def test_stop_ends_it_within_a_second_and_keeps_the_words(ready: Make) -> None:
    state = ready(ScriptedEngine(answer=LONG))
    steps = ask(state)
    wait_for(lambda: next(steps) is not None and len(state.chat.exchanges[0].answer) > 20)
    state.stop_asking()
    stopped = time.monotonic()
    list(steps)
    assert time.monotonic() - stopped < 1.0
    exchange = state.chat.exchanges[0]
    assert exchange.stopped is StopReason.CANCELLED
    assert 20 < len(exchange.answer) < len(LONG)


def test_a_closed_tab_cancels_the_request(ready: Make) -> None:
    engine = ScriptedEngine(answer=LONG)
    state = ready(engine)
    steps = ask(state)
    wait_for(lambda: next(steps) is not None and bool(state.chat.exchanges[0].answer))
    steps.close()  # type: ignore[attr-defined]
    assert engine.requests[-1].stop.is_set()
    assert state.chat.exchanges[0].stopped is StopReason.CANCELLED
    assert not state.current.asking
    list(ask(state, "And now?"))
    assert state.chat.exchanges[1].stopped is StopReason.END


def test_the_caller_gets_its_turn_while_the_engine_is_silent(ready: Make) -> None:
    state = ready(ScriptedEngine(answer=LONG, word_seconds=5.0))
    steps = ask(state)
    next(steps)
    for _ in range(3):
        began = time.monotonic()
        next(steps)
        assert time.monotonic() - began < 2.0
    steps.close()  # type: ignore[attr-defined]


def test_a_second_tab_is_told_at_once(ready: Make) -> None:
    state = ready(ScriptedEngine(answer=LONG))
    steps = ask(state)
    next(steps)
    with pytest.raises(Busy, match="Another question"):
        next(ask(state, "Me too?"))
    assert len(state.chat.exchanges) == 1
    steps.close()  # type: ignore[attr-defined]


def test_a_failure_is_written_where_the_answer_would_be(ready: Make) -> None:
    failure = ResourceError("The memory ran out.", "Read fewer pages.")
    engine = ScriptedEngine(failure=failure)
    state = ready(engine)
    list(ask(state))
    exchange = state.chat.exchanges[0]
    assert (exchange.trouble.cause, exchange.trouble.remedy) == ("The memory ran out.", "Read fewer pages.")
    assert exchange.answer == "It was Maren"
    engine.failure = None
    list(ask(state, "Who?", position=0))
    assert state.chat.exchanges[0].trouble is None


def test_a_question_comes_in_while_the_book_is_read(make_state: Make, a_file: Path) -> None:
    """It is answered from passages of the whole book, and the reading goes on."""
    engine = ScriptedEngine(reading_seconds=None)
    state = make_state(engine)
    state.open(state.books.copy_in(a_file))
    wait_for(lambda: state.current.progress is not None and state.current.progress.pages_done == 24)
    list(ask(state, "Where is lamp7?"))
    exchange = state.chat.exchanges[0]
    assert (exchange.stopped, exchange.pages_read, exchange.answer) == (StopReason.END, 0, engine.answer)
    excerpt = engine.asked[0].excerpt
    assert excerpt is not None
    assert "lamp7" in excerpt.text
    first = (exchange.notes or {})["first"]
    assert (first["passages"], first["read"], first["reading"]) == (len(excerpt.pages), "page 24 of 60", True)
    told = as_markdown(state.chat, "The Light")  # type: ignore[arg-type]
    assert f"From {len(excerpt.pages)} passages. Read so far: to page 24 of 60." in told
    assert (state.current.stage, engine.readings) == (Stage.READING, [0.0]), "it was not interrupted"
    assert engine.asked[0].chat == "", "its KV is not the book's"
    state.stop_reading()
    wait_for(lambda: state.current.stage is Stage.READY)


class TwoAnswers(ScriptedEngine):
    """Answers otherwise from passages than from the whole book."""

    first, whole = "In 1911 it was lit.", "It was lit in 1912, in Orre."

    def ask(self, question: Question | str, *, cancel: threading.Event | None = None) -> Any:
        self.answer = self.whole if Question.of(question).excerpt is None else self.first
        return super().ask(question, cancel=cancel)


WhileReading = Callable[..., tuple[TwoAnswers, AppState]]


@pytest.fixture
def asked_while_reading(make_state: Make, a_file: Path) -> WhileReading:
    """A book that is being read until ``read_on`` is set, and that has answered questions from passages meanwhile."""

    def make(*questions: str, **how: Any) -> tuple[TwoAnswers, AppState]:
        engine = TwoAnswers(reading_seconds=None, **how)
        state = make_state(engine)
        state.open(state.books.copy_in(a_file))
        wait_for(lambda: state.current.progress is not None and state.current.progress.pages_done == 24)
        for question in questions:
            list(ask(state, question))
        return engine, state

    return make


def test_the_whole_book_answers_by_itself_in_place_of_the_first(asked_while_reading: WhileReading) -> None:
    engine, state = asked_while_reading("When was lamp7 lit?")
    (first,) = state.chat.exchanges
    assert first.is_first
    assert state.current.awaited_answers == {first.answer_id}
    engine.read_on.set()
    wait_for(lambda: not state.current.awaited)
    (turn,) = state.chat.exchanges
    assert (engine.asked[1].excerpt, turn.answer, turn.stopped) == (None, engine.whole, StopReason.END)
    assert (turn.answer_id, turn.answers) == (first.answer_id, first.answers), "it has its place, not another version"
    notes = dict(turn.notes or {})
    assert notes["whole"] == {"of": "60 pages", "said": ""}, "a place and a year: unclear"
    assert notes["first_answer"]["text"] == engine.first
    assert notes["passages"] == (first.notes or {})["passages"]
    assert turn.back_to_first().answer == first.answer
    assert turn.back_to_first().notes == first.notes
    assert "From all 60 pages." in as_markdown(state.chat, "The Light")  # type: ignore[arg-type]
    list(ask(state, "And after that?"))
    assert [turn.answer for turn in engine.asked[2].history] == [engine.whole]


def test_several_questions_wait_for_the_whole_book_and_nobody_waits_for_them(asked_while_reading: WhileReading) -> None:
    engine, state = asked_while_reading("Where is lamp7?", "Where is lamp8?", word_seconds=0.1)
    assert len(state.current.awaited) == 2
    engine.read_on.set()
    wait_for(lambda: len(engine.asked) == 3 and bool(state.chat.exchanges[0].answer))
    list(ask(state, "Where is lamp9?"))  # gives way
    assert engine.asked[3].text == "Where is lamp9?"
    assert engine.requests[-2].stop.is_set()
    assert state.chat.exchanges[2].answer == engine.whole
    wait_for(lambda: not state.current.awaited)
    assert [turn.answer for turn in state.chat.exchanges] == [engine.whole] * 3
    assert [(turn.notes or {}).get("first_answer") is None for turn in state.chat.exchanges] == [False, False, True]
    assert [one.text[-2] for one in engine.asked] == ["7", "8", "7", "9", "7", "8"]


def test_enough_ends_the_waiting_for_the_whole_book(asked_while_reading: WhileReading) -> None:
    engine, state = asked_while_reading("Where is lamp7?", "Where is lamp8?", word_seconds=0.1)
    one, other = state.chat.exchanges
    state.wait_no_longer(other.answer_id)
    engine.read_on.set()
    wait_for(lambda: bool(state.chat.exchanges[0].first_answer) and bool(state.chat.exchanges[0].answer))
    state.wait_no_longer(one.answer_id)
    wait_for(lambda: not state.current.asking)
    assert [turn.answer for turn in state.chat.exchanges] == [engine.first] * 2
    assert [turn.stopped for turn in state.chat.exchanges] == [StopReason.END] * 2
    assert all(turn.is_first for turn in state.chat.exchanges), "it can still be asked for"
    list(chat_run.ask_whole(state, Ask("Where is lamp8?", position=1)))
    assert state.chat.exchanges[1].answer == engine.whole


def test_a_stopped_reading_ends_the_waiting_too(asked_while_reading: WhileReading) -> None:
    engine, state = asked_while_reading("Where is lamp7?")
    state.stop_reading()
    wait_for(lambda: not state.current.awaited)
    assert (len(engine.asked), state.chat.exchanges[0].answer) == (1, engine.first)


def test_a_failure_of_the_whole_book_leaves_the_first_answer(asked_while_reading: WhileReading) -> None:
    engine, state = asked_while_reading("Where is lamp7?")
    engine.failure = ResourceError("The memory ran out.", "Read fewer pages.")
    engine.read_on.set()
    wait_for(lambda: not state.current.awaited)
    (turn,) = state.chat.exchanges
    assert turn.trouble is not None
    assert (turn.first_answer or {})["text"] == engine.first


def test_no_book_is_read_if_the_settings_say_so(asked_while_reading: WhileReading) -> None:
    engine, state = asked_while_reading()
    state.answer_from(AnswersFrom.PASSAGES)
    wait_for(lambda: state.current.stage is Stage.UNREAD)
    list(ask(state, "Where is lamp7?"))
    (turn,) = state.chat.exchanges
    assert (engine.asked[0].excerpt is None, turn.is_first, state.current.awaited) == (False, False, ())
    told = as_markdown(state.chat, "The Light")  # type: ignore[arg-type]
    assert "Your settings say that no more is read." in told
    assert (
        AppState(engine, state.books, state.chats, lambda *_: Document("", "", (), "", "")).source
        is AnswersFrom.PASSAGES
    ), "it is kept"
    engine.read_on.set()
    state.answer_from(AnswersFrom.FIRST)
    wait_for(lambda: state.current.stage is Stage.READY)


def test_a_question_waits_for_the_whole_book_if_the_settings_say_so(asked_while_reading: WhileReading) -> None:
    engine, state = asked_while_reading()
    state.answer_from(AnswersFrom.WHOLE)
    steps = ask(state, "Where is lamp7?")
    assert [next(steps), next(steps)][1] == "Your question is asked as soon as it has been read."
    engine.read_on.set()
    list(steps)
    assert [one.excerpt for one in engine.asked] == [None]


def test_stop_ends_the_answer_and_not_the_reading(make_state: Make, a_file: Path) -> None:
    engine = ScriptedEngine(reading_seconds=None, answer=LONG, word_seconds=0.25)
    state = make_state(engine)
    state.open(state.books.copy_in(a_file))
    wait_for(lambda: state.current.progress is not None and state.current.progress.pages_done == 24)
    steps = ask(state)
    wait_for(lambda: next(steps) is not None and bool(state.chat.exchanges[0].answer))
    state.stop_asking()
    list(steps)
    assert state.chat.exchanges[0].stopped is StopReason.CANCELLED
    assert state.current.stage is Stage.READING
    state.stop_reading()
    wait_for(lambda: state.current.stage is Stage.READY)
    assert state.current.read.pages_read == 24, "what was read is kept"


def test_a_book_that_is_read_is_asked_for_passages_only_if_wanted(ready: Make) -> None:
    engine = ScriptedEngine()
    state = ready(engine)
    list(ask(state, "Where is lamp7?"))
    list(chat_run.ask(state, Ask("Where is lamp8?", now=True)))
    assert [asked.excerpt is None for asked in engine.asked] == [True, False]
    whole, now = (turn.notes or {} for turn in state.chat.exchanges)
    assert "first" not in whole
    assert now["first"]["read"] == "page 60 of 60"
    assert not state.chat.exchanges[1].is_first, "a click on it would not wait for anything"


def test_a_question_waits_for_a_reading_that_is_nearly_done(make_state: Make, a_file: Path) -> None:
    engine = ScriptedEngine(reading_seconds=1.0)
    state = make_state(engine)
    state.open(state.books.copy_in(a_file))
    wait_for(lambda: state.current.stage is Stage.READING)
    steps = ask(state)
    assert [next(steps), next(steps)][1] == "Your question is asked as soon as it has been read."
    list(steps)
    assert engine.readings == [0.0]
    assert state.chat.exchanges[0].pages_read == 0


def test_a_cut_answer_goes_on_in_its_place(ready: Make) -> None:
    engine = ScriptedEngine(answer="one two three four five six")
    state = ready(engine)
    engine.failure, engine.fail_after = ResourceError("The memory ran out.", "Read fewer pages."), 3
    list(ask(state))
    cut = state.chat.exchanges[0]
    assert (cut.answer, cut.can_be_continued) == ("one two three", True)
    engine.failure = None
    list(chat_run.go_on(state, Ask("", position=0)))
    whole = state.chat.exchanges[0]
    assert (whole.answer, whole.trouble, whole.stopped) == ("one two three four five six", None, StopReason.END)
    assert whole.answer_id == cut.answer_id
    assert len(state.chat.exchanges) == 1


def test_all_tokens_of_an_answer_are_counted_however_its_parts_ended(ready: Make) -> None:
    """Ten words in three parts: one that was stopped, one that broke off, and the end of it."""
    # So slow that it cannot have ended before it is stopped, however busy the machine is.
    engine = ScriptedEngine(answer=" ".join(f"w{number}" for number in range(10)), word_seconds=0.4)
    state = ready(engine)
    steps = ask(state)
    wait_for(lambda: next(steps) is not None and "w0" in state.chat.exchanges[0].answer)
    state.stop_asking()
    list(steps)
    engine.word_seconds = 0.01
    engine.failure, engine.fail_after = ResourceError("The memory ran out.", "Read fewer pages."), 3
    list(chat_run.go_on(state, Ask("", position=0)))
    engine.failure = None
    list(chat_run.go_on(state, Ask("", position=0)))
    whole = state.chat.exchanges[0]
    assert (whole.answer, len(whole.stages)) == (engine.answer, 10)


def test_a_waiting_question_can_be_stopped(make_state: Make, a_file: Path) -> None:
    state = make_state(ScriptedEngine(reading_seconds=None))
    state.open(state.books.copy_in(a_file))
    wait_for(lambda: state.current.stage is Stage.READING)
    steps = ask(state)
    next(steps)
    state.stop_asking()
    list(steps)
    assert state.chat.exchanges[0].stopped is StopReason.CANCELLED
    assert state.current.stage is Stage.READING
    state.stop_reading()
    wait_for(lambda: state.current.stage is not Stage.READING)


def test_a_reading_stopped_at_once_is_no_error(make_state: Make, a_file: Path) -> None:
    """It stood as an error on the page. A question that waited is answered from passages, and the next one too."""
    engine = ScriptedEngine(reading_seconds=60)
    state = make_state(engine, reader=lambda path, password=None: book(10))
    state.open(state.books.copy_in(a_file))
    wait_for(lambda: state.current.stage is Stage.READING)
    steps = chat_run.ask(state, Ask("Where is lamp7?", whole=True))
    next(steps)
    state.stop_reading()
    list(steps)
    list(ask(state, "And lamp8?"))
    assert [turn.answer for turn in state.chat.exchanges] == [engine.answer] * 2
    noted = (state.chat.exchanges[1].notes or {})["first"]
    assert format.first_line(noted).endswith(" Nothing else has been read.")
    assert (state.current.stage, state.current.trouble, len(engine.readings)) == (Stage.UNREAD, None, 1)
    view = page_view(state.current, engine.status())
    assert view["read"] == "Stopped before a page was read. Answers come from passages."
    assert view["hint"] == "Answers from passages at once, and after the reading from all 10 pages."
    assert view["book"]["line"] == "10 pages"
    with pytest.raises(ApiError, match=r"The reading of the open book was stopped. Set trifold.now"):
        loops.run(openai_api._book(state, None, Ask("Where is lamp9?")))  # it said that no book is open
    state.read_again()
    wait_for(lambda: len(engine.readings) == 2)
    state.stop_reading()


def test_without_a_book_there_is_nothing_to_ask(make_state: Make) -> None:
    state = make_state()
    with pytest.raises(TrifoldError, match="No book"):
        next(ask(state))
    assert not state.current.asking


def test_a_question_that_waits_for_a_busy_engine_can_be_stopped(ready: Make) -> None:
    engine = ScriptedEngine(answer=LONG)
    state = ready(engine)
    other = engine.ask("Somebody else's")
    steps = ask(state)
    next(steps)
    rest = threading.Thread(target=lambda: list(steps))
    rest.start()
    time.sleep(0.3)
    assert rest.is_alive(), "it waits"
    state.stop_asking()
    began = time.monotonic()
    rest.join()
    assert time.monotonic() - began < 1.0
    assert state.chat.exchanges[0].stopped is StopReason.CANCELLED
    assert state.chat.exchanges[0].trouble is None
    other.cancel()


def test_pages_whose_picture_was_not_read_are_told_where_a_question_names_them() -> None:
    texts = ["Words.", "Figure 3: the harbour in 1881", "", "See figure 3."]
    document = Document.from_pages("Charts", texts)
    kinds: tuple[Picture, ...] = ("", "figure", "unread", "")
    pages = (replace(page, picture=kind) for page, kind in zip(document.pages, kinds, strict=True))
    document = replace(document, pages=tuple(pages))
    assert unread(document, "What does Fig. 3 show?") == ["Most of page 2 is a picture, which was not read"]
    assert unread(document, "What is on page 3?") == ["Page 3 is a picture, which was not read"]
    assert unread(document, "What is on pages 1 to 3?")[1:] == ["Page 3 is a picture, which was not read"]
    assert unread(document, "What does figure 4 show, and page 1?") == []


SORRY = "I'm sorry, but I can't assist with that."
LONG_WRONG = "Chapter two tells how the keeper of the light went to sea, lost his boat, and came back in winter."


def test_a_question_that_does_not_refer_back_is_asked_without_the_earlier_answers(ready: Make) -> None:
    """A refusal was repeated in the same chat, where a new chat got an answer."""
    engine = ScriptedEngine()
    state = ready(engine)
    list(ask(state))
    list(ask(state, "How high is the north light?"))
    list(ask(state, "And who built it?"))
    assert [len(asked.history) for asked in engine.asked] == [0, 0, 2]
    assert [asked.chat != "" for asked in engine.asked] == [True, False, True]
    notes = [exchange.notes for exchange in state.chat.exchanges]
    assert [(one or {}).get("alone") for one in notes] == [None, {"left_out": 1, "why": ""}, None]


@pytest.mark.parametrize(("before", "first", "why"), [("No.", SORRY, "refused"), (LONG_WRONG, LONG_WRONG, "repeated")])
def test_a_refusal_and_a_repetition_are_asked_once_more_without_the_earlier_answers(
    ready: Make, before: str, first: str, why: str
) -> None:
    engine = ScriptedEngine(before)
    state = ready(engine)
    list(ask(state))

    ours = engine.ask

    def in_turn(question: Question | str, *, cancel: threading.Event | None = None) -> Any:
        engine.answer = first if isinstance(question, Question) and question.history else "It is nine."
        return ours(question, cancel=cancel)

    engine.ask = in_turn  # type: ignore[method-assign]
    list(ask(state, "And what about it?"))
    assert [len(asked.history) for asked in engine.asked] == [0, 1, 0]
    last = state.chat.exchanges[-1]
    assert (last.answer, last.stopped) == ("It is nine.", StopReason.END)
    assert (last.notes or {})["alone"] == {"left_out": 1, "why": why}
    engine.ask = ours  # type: ignore[method-assign]
    engine.answer = SORRY
    list(ask(state, "How high is the north light?"))
    assert state.chat.exchanges[-1].answer == SORRY, "asked alone, it is not asked again"


def test_two_versions_are_compared_without_the_model_and_the_table_is_no_turn(ready: Make) -> None:
    engine = ScriptedEngine()
    state = ready(engine)
    old = "The rent is 480 euros a month. The tenant may keep two boats in the house.\n\nKeys are returned."
    books = [Document.from_pages(name, [text]) for name, text in (("A", old), ("B", old.replace("480", "520")))]
    state.show(document=Document.together(books))
    list(ask(state, "Where do the two documents differ?"))
    exchange = state.chat.exchanges[-1]
    assert engine.asked == []
    assert "**480** euros" in exchange.answer
    assert "**520** euros" in exchange.answer
    assert [chip["document"] for chip in (exchange.notes or {})["chips"]] == ["A", "B"]
    list(ask(state, "And who pays?"))
    assert engine.asked[0].history == ()
