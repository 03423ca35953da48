"""What a model thinks before it answers, in a chat: shown apart, kept, gone on with, and no part of the answer."""

from __future__ import annotations

import json
from collections.abc import Callable

from app.core import chat_run, format
from app.core.chats import Chats, all_messages
from app.core.export import answer_with_pages, as_json, as_markdown
from app.core.question import Ask
from app.core.state import AppState
from app.web import live, messages
from engine.config import SamplingParams
from engine.events import StopReason
from tests.app.scripted import ScriptedEngine, engine_status, model_info, wait_for

Make = Callable[..., AppState]
THOUGHT = "Well, <b>first</b> the lamp.\n\n*Then* the log &\nthe rest."
THINK = Ask("Who?", sampling=SamplingParams(think=True))


def thinking(word_seconds: float = 0.01) -> ScriptedEngine:
    engine = ScriptedEngine(word_seconds=word_seconds)
    engine.thought = THOUGHT
    return engine


def test_a_thought_stands_apart_from_its_answer(ready: Make) -> None:
    engine = thinking(word_seconds=0.05)
    state = ready(engine)
    shown = []
    for _ in chat_run.ask(state, THINK):
        shown.append(messages.written(state.chat.exchanges[0], 0))
    (exchange,) = state.chat.exchanges
    assert exchange.answer == engine.answer
    assert exchange.thought["text"] == THOUGHT
    assert not exchange.thought["open"]
    assert exchange.figures.answer_tokens == 9
    line = format.thought_line(exchange.thought)
    assert line.startswith("Thought, 10 words, ")
    (_, message) = messages.messages(state.chat.exchanges)
    assert f'<details class="thought"><summary>{line}</summary><div>Well, &lt;b&gt;first' in message["content"]
    assert "lamp.<br><br>*Then* the log &amp;<br>the rest.</div></details>\n\n" in message["content"]
    assert any('<details class="thought"><summary>Thinks, ' in html for html in shown)


def test_a_thought_is_no_part_of_what_leaves_the_page(ready: Make) -> None:
    state = ready(thinking())
    list(chat_run.ask(state, THINK))
    chat = state.chat
    assert chat is not None
    rows = state.chats.database.read(lambda connection: all_messages(connection, chat.id))
    said = [as_markdown(chat, "The Light"), as_json(chat, {}, rows), answer_with_pages(chat.exchanges[0], "The Light")]
    assert not [text for text in said if "first the lamp" in text or "the rest" in text]
    asked_for = as_markdown(chat, "The Light", thoughts=True)
    assert "\n\n> *Thought, " in asked_for
    assert asked_for.index("> *Then* the log &\n> the rest.\n\n") < asked_for.index(chat.exchanges[0].answer)
    assert "the rest" in as_json(chat, {}, rows, thoughts=True)
    assert "thought first" in said[0]
    (answer,) = [one for one in json.loads(said[1])["messages"] if one["role"] == "answer"]
    assert set(answer["notes"]["thought"]) == {"tokens", "seconds", "open", "cut"}
    assert not [chip for chip in (chat.exchanges[0].notes or {})["chips"] if "rest" in str(chip)]


def test_the_next_question_does_not_know_the_thought(ready: Make) -> None:
    engine = thinking()
    state = ready(engine)
    list(chat_run.ask(state, THINK))
    list(chat_run.ask(state, Ask("And then?")))
    assert [(turn.question, turn.answer, turn.thought) for turn in engine.asked[1].history] == [
        ("Who?", engine.answer, "")
    ]


def test_an_answer_that_is_stopped_within_its_thought_says_so_and_goes_on(ready: Make) -> None:
    engine = thinking(word_seconds=0.05)
    state = ready(engine)
    chat_run.start(state, chat_run.ask(state, THINK))
    wait_for(lambda: len(state.chat.exchanges[0].thought.get("text", "")) > 12)
    state.stop_asking()
    wait_for(lambda: state.chat.exchanges[0].stopped is not None)
    (exchange,) = state.chat.exchanges
    assert exchange.stopped is StopReason.CANCELLED
    assert exchange.answer == ""
    assert exchange.ended_thinking
    assert exchange.can_be_continued
    (_, message) = messages.messages(state.chat.exchanges)
    assert "The answer ended while the model was still thinking. “Continue” lets it go on." in message["content"]
    assert ">Continue</button>" in message["content"]
    assert ">Copy</button>" not in message["content"]
    assert state.chat.before(1) == ()
    kept = Chats(state.chats.database).get(state.chat.id)
    assert kept is not None
    assert kept.exchanges[0].ended_thinking
    before = exchange.thought["text"]
    assert THOUGHT.startswith(before)
    list(chat_run.go_on(state, Ask("Who?", sampling=THINK.sampling, position=0)))
    (exchange,) = state.chat.exchanges
    assert engine.asked[-1].thought == before
    assert exchange.answer == engine.answer
    assert exchange.thought["text"] == THOUGHT
    assert not exchange.ended_thinking


def test_asked_again_or_in_other_words_it_thinks_anew(ready: Make) -> None:
    engine = thinking()
    state = ready(engine)
    list(chat_run.ask(state, THINK))
    list(chat_run.ask(state, Ask("Who?", position=0)))
    list(chat_run.ask(state, Ask("Who then?", position=0)))
    assert [one.thought for one in engine.asked] == ["", "", ""]
    (exchange,) = state.chat.exchanges
    assert exchange.thought["text"] == THOUGHT


def test_a_thought_survives_the_end_of_the_program(ready: Make) -> None:
    engine = thinking(word_seconds=0.05)
    state = ready(engine)
    chat_run.start(state, chat_run.ask(state, THINK))
    wait_for(lambda: len(state.chat.exchanges[0].thought.get("text", "")) > 12)
    state.chats.save_now()
    after = Chats(state.chats.database).get(state.chat.id)
    assert after is not None
    assert after.exchanges[0].interrupted
    assert after.exchanges[0].ended_thinking
    assert after.exchanges[0].can_be_continued
    state.stop_asking()


def test_the_switch_is_shown_where_a_model_can_think() -> None:
    can = model_info(thinking="Can think before it answers")
    for model, has in ((None, False), (model_info(), False), (can, True), (model_info(sampling=None), True)):
        assert live.sampling_view(engine_status(model=model))["can_think"] is has
    assert "Can think before it answers" in live.model_view(engine_status(model=can))["parts"]


def test_the_makers_settings_are_shown_for_answers_with_and_without_a_thought(ready: Make) -> None:
    quiet, thoughtful = SamplingParams(temperature=0.7, top_p=0.8), SamplingParams(temperature=0.6, top_p=0.95)
    model = model_info(thinking="Can think before it answers", sampling=quiet, sampling_after_thought=thoughtful)
    shown = live.sampling_view(engine_status(model=model))
    assert shown["own"] == {"temperature": 0.7, "top_p": 0.8}
    assert shown["own_after_thought"] == {"temperature": 0.6, "top_p": 0.95}
    shown = live.sampling_view(engine_status(model=model_info(sampling=quiet)))
    assert shown["own"] == shown["own_after_thought"], "no other settings are known"
    engine = thinking()
    engine.now = engine_status(model=model)
    state = ready(engine)
    for asked, temperature in ((THINK, 0.6), (Ask("Who?"), 0.7)):
        list(chat_run.ask(state, asked))
        notes = state.chat.exchanges[-1].notes
        assert notes is not None
        assert notes["made"]["temperature"] == temperature


def test_a_thought_without_words_is_counted_in_tokens() -> None:
    assert format.thought_line({"text": "", "tokens": 3, "seconds": 0.0, "open": True}).startswith("Thinks, 3 tokens")
