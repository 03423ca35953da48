"""Answers with thoughts of a small random model: decoded by the same law, left out of later turns, stopped, gone on."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import GREEDY, EngineConfig, SamplingParams, own_sampling
from engine.document import Document
from engine.errors import OptionError
from engine.events import AnswerDone, Event, PlainLane, StopReason, TextDelta, ThoughtDelta
from engine.model.families import FAMILIES
from engine.prompt import Question, Turn
from engine.session import Session
from engine.worker import describe
from tests.engine import thinking_templates as made

HEAD = "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
SWITCHED = HEAD + (
    "{% if add_generation_prompt %}<|assistant|>\n{% if enable_thinking is defined and enable_thinking is false %}"
    "<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}{% endif %}"
)
ALWAYS = HEAD + "{% if add_generation_prompt %}<|assistant|>\n<think>\n{% endif %}{# </think> #}"
THINK = SamplingParams(max_tokens=12, temperature=0, think=True, think_tokens=20)
WHO = "Who lit the lamp?"
Make = Callable[..., str]


@pytest.fixture(scope="module")
def thinker(tiny: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Make:
    """``thinker(kind, template, renamed)`` -> folder of a tiny model with another template. ``renamed``: marks that
    take the place of other tokens, keyed by id; every other text keeps its tokens.
    """

    def make(kind: str, template: str, renamed: dict[int, str] | None = None, special: bool = False) -> str:
        folder = tmp_path_factory.mktemp("thinker")
        shutil.copytree(tiny(kind), folder, dirs_exist_ok=True)
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        for number, mark in (renamed or {}).items():
            model = tokenizer["model"]
            old = next(token for token, known in model["vocab"].items() if known == number)
            del model["vocab"][old]
            model["vocab"][mark] = number
            model["merges"] = [pair for pair in model["merges"] if old not in (*pair, "".join(pair))]
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            tokenizer["added_tokens"].append({"id": number, "content": mark, "special": special, **flags})
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
        return str(folder)

    return make


def loaded(folder: str, book: Document, **options: Any) -> Session:
    settings = {"context": 4096, "retrieval_budget": 128, "chunk_size": 16, "prefill_block": 64}
    session = Session.load(EngineConfig(model=folder, **settings | options))
    list(session.read(book))
    return session


def asked(session: Session, question: Question | str, sampling: SamplingParams = THINK, **more: Any) -> AnswerDone:
    text = question.text if isinstance(question, Question) else question
    question = question if isinstance(question, Question) else Question(text, sampling=sampling, **more)
    *events, done = session.ask(question)
    assert isinstance(done, AnswerDone)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == done.text
    thoughts = "".join(event.text for event in events if isinstance(event, ThoughtDelta))
    assert thoughts.strip() == (done.thought.text.strip() if done.thought else "")
    return done


def tokens_of(session: Session) -> list[int]:
    """The tokens of the conversation after the book."""
    talk = session.conversation
    assert talk is not None
    return talk.tokens[len(talk.book.ids) :]


def by_reference(folder: str, ids: list[int], count: int, ends: frozenset[int]) -> list[int]:
    """Decode greedily with transformers alone."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = list(ids)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] in ends:
                break
    return ids


@pytest.mark.parametrize("mode", ["hierarchical", "plain"])
def test_thought_and_answer_are_those_of_the_model_alone(mode: Any, thinker: Make, book: Document) -> None:
    """The thought takes its budget, is closed by the words of its format, and the answer follows."""
    folder = thinker("llama", SWITCHED)
    session = loaded(folder, book)
    done = asked(session, WHO, mode=mode)
    talk, tokenizer = session.conversation, session.tokenizer
    assert talk is not None
    prompt = talk.compose(WHO, (), think=True).tokens
    assert tokenizer.decode(prompt[-8:]).endswith("<think>\n")
    thought = by_reference(folder, prompt, 20, session.end_ids)
    expected = by_reference(folder, thought + tokenizer.template_words("\n</think>\n\n"), 12, session.end_ids)
    assert talk.tokens == expected
    assert done.thought is not None
    assert done.thought.was_cut
    assert not done.thought.is_open
    assert done.thought.figures.answer_tokens == 20
    assert done.figures.answer_tokens == len(done.token_ids) == 12
    assert done.stop_reason is StopReason.LENGTH
    *lanes, fast = session.ask(Question(WHO, sampling=THINK, mode=mode, plain_lane=True))
    *_, plain = (one.event for one in lanes if isinstance(one, PlainLane))
    for raced in (fast, plain):
        assert isinstance(raced, AnswerDone)
        assert raced.thought is not None
        assert (raced.token_ids, raced.thought.text) == (done.token_ids, done.thought.text), (
            "both lanes of a race think"
        )


@pytest.mark.parametrize("kind", ["llama", "gpt_oss", "qwen3_5_text", "lfm2"])
def test_the_model_closes_its_thought(kind: str, thinker: Make, book: Document) -> None:
    """The token that it writes after some others is the closing mark, as text of one token or as a special token."""
    first = loaded(thinker(kind, ALWAYS), book)
    asked(first, WHO, replace(THINK, think_tokens=60))
    talk = first.conversation
    assert talk is not None
    prompt = talk.compose(WHO, (), think=True).tokens
    thought = talk.tokens[len(prompt) : len(prompt) + 60]
    pieces = first.tokenizer.pieces
    assert pieces is not None
    used = {*prompt, *first.end_ids}
    at = next(at for at in range(3, 60) if pieces[thought[at]] >= b"\x80" and thought[at] not in {*used, *thought[:at]})
    for special in (False, True):
        folder = thinker(kind, ALWAYS, {thought[at]: "</think>"}, special)
        found = {}
        for mode in ("hierarchical", "plain"):
            session = loaded(folder, book)
            done = asked(session, WHO, replace(THINK, think_tokens=60), mode=mode)
            again = session.conversation
            assert again is not None
            assert again.tokens[: len(prompt) + at + 1] == [*prompt, *thought[: at + 1]]
            assert done.thought is not None
            assert not done.thought.was_cut
            assert "</think>" not in done.thought.text + (done.text if special else "")
            assert 12 in (len(done.token_ids), done.figures.answer_tokens)
            found[mode] = again.tokens
        assert found["plain"] == found["hierarchical"]


def test_without_a_thought_nothing_is_thought(thinker: Make, book: Document) -> None:
    session = loaded(thinker("llama", SWITCHED), book)
    for sampling in (replace(THINK, think=None), replace(THINK, think=False), replace(THINK, think_tokens=0)):
        done = asked(session, WHO, sampling)
        assert done.thought is None
        assert len(done.token_ids) == 12
        assert "</think>\n\n" in session.tokenizer.decode(tokens_of(session))


def test_a_model_that_always_thinks_has_a_budget(thinker: Make, book: Document) -> None:
    session = loaded(thinker("llama", ALWAYS), book)
    done = asked(session, WHO, replace(THINK, think=None, think_tokens=7))
    assert done.thought is not None
    assert done.thought.figures.answer_tokens == 7
    nothing = asked(session, WHO, replace(THINK, think=None, think_tokens=0))
    assert nothing.thought is None
    assert len(nothing.token_ids) == 12


def test_a_thought_is_left_out_of_the_next_turn(thinker: Make, book: Document) -> None:
    """The cache is cut back to the thought, and the answer is read again. The answer is that of a new session."""
    folder = thinker("llama", SWITCHED)
    session = loaded(folder, book)
    first = asked(session, WHO)
    history = [Turn(WHO, first.text)]
    second = asked(session, Question("And then?", history, replace(THINK, think=None)))
    fresh = loaded(folder, book)
    expected = asked(fresh, Question("And then?", history, replace(THINK, think=None)))
    assert second.token_ids == expected.token_ids
    assert tokens_of(session) == tokens_of(fresh)
    assert first.thought is not None
    assert first.thought.text not in session.tokenizer.decode(tokens_of(session))
    assert second.figures.prefilled_tokens < expected.figures.prefilled_tokens
    third = asked(session, Question("Why?", [*history, Turn("And then?", second.text)], replace(THINK, think=None)))
    assert third.figures.prefilled_tokens < second.figures.prefilled_tokens  # a turn without a thought stays


def test_turns_with_a_thought_are_not_kept_on_disk(thinker: Make, book: Document, tmp_path: Path) -> None:
    folder = thinker("llama", SWITCHED)
    kept = {"snapshot_folder": str(tmp_path / "kept")}
    session = loaded(folder, book, **kept)
    first = asked(session, Question(WHO, sampling=THINK, chat="chat"))
    history = [Turn(WHO, first.text)]
    session.persistence.finish()
    session.close()
    session = loaded(folder, book, **kept)
    later = Question("And then?", history, replace(THINK, think=None), chat="chat")
    second = asked(session, later)
    assert second.token_ids == asked(loaded(folder, book), later).token_ids


def stopped_in_thought(session: Session, count: int) -> AnswerDone:
    cancel, thoughts = threading.Event(), 0
    done: Event | None = None
    for done in session.ask(Question(WHO, sampling=THINK, mode="plain"), cancel=cancel):
        thoughts += isinstance(done, ThoughtDelta)
        if thoughts == count:
            cancel.set()
    assert isinstance(done, AnswerDone)
    return done


def test_a_thought_that_was_stopped_is_gone_on_with(thinker: Make, book: Document) -> None:
    folder = thinker("llama", SWITCHED)
    whole = loaded(folder, book)
    expected = asked(whole, WHO, mode="plain")
    session = loaded(folder, book)
    cut = stopped_in_thought(session, 5)
    assert cut.stop_reason is StopReason.CANCELLED
    assert cut.text == ""
    assert cut.thought is not None
    assert cut.thought.is_open
    assert expected.thought is not None
    assert expected.thought.text.startswith(cut.thought.text)
    left = replace(THINK, think_tokens=15)
    done = asked(session, Question(WHO, sampling=left, mode="plain", thought=cut.thought.text))
    assert done.token_ids == expected.token_ids
    assert done.thought is not None
    assert cut.thought.text + done.thought.text == expected.thought.text
    # after a restart, the thought is read again from its words
    fresh = loaded(folder, book)
    read = asked(fresh, Question(WHO, sampling=left, mode="plain", thought=cut.thought.text))
    assert read.stop_reason in (StopReason.LENGTH, StopReason.END)
    assert f"<think>\n{cut.thought.text}" in fresh.tokenizer.decode(tokens_of(fresh))


def test_an_answer_after_a_thought_is_gone_on_with(thinker: Make, book: Document) -> None:
    session = loaded(thinker("llama", SWITCHED), book)
    expected = asked(session, WHO, mode="plain")
    short = asked(session, WHO, replace(THINK, max_tokens=5), mode="plain")
    assert short.thought is not None
    more = Question(WHO, (), replace(THINK, max_tokens=7), "plain", short.text, thought=short.thought.text)
    done = asked(session, more)
    assert short.token_ids + done.token_ids == expected.token_ids
    assert short.text + done.text == expected.text
    assert done.thought is None
    assert done.figures.prefilled_tokens <= 1


@pytest.mark.parametrize("mode", ["hierarchical", "plain"])
def test_a_seed_repeats_thought_and_answer(mode: Any, thinker: Make, book: Document) -> None:
    session = loaded(thinker("llama", SWITCHED), book)
    drawn = replace(THINK, temperature=1.0, seed=7)
    first, second = (asked(session, WHO, drawn, mode=mode) for _ in range(2))
    assert first.token_ids == second.token_ids
    assert first.thought is not None
    assert second.thought is not None
    assert first.thought.text == second.thought.text


def test_channels_of_a_model_that_always_thinks(thinker: Make, book: Document) -> None:
    """None of its marks is a token of this vocabulary, so that it never writes one: its budget ends the thought."""
    session = loaded(thinker("llama", made.GPT_OSS), book)
    done = asked(session, WHO, replace(THINK, think=None, think_tokens=6))
    assert not done.text.startswith("<|")
    assert "<|start|>assistant" in session.tokenizer.decode(tokens_of(session))


def test_a_model_that_cannot_think_says_so_before_any_work(tiny: Make, book: Document) -> None:
    session = loaded(tiny("llama"), book)
    before = tokens_of(session)
    with pytest.raises(OptionError, match="This model does not think before it answers"):
        list(session.ask(Question(WHO, sampling=THINK)))
    assert tokens_of(session) == before


def test_marks_in_a_book_are_the_books(thinker: Make, tiny: Make) -> None:
    """A book may be about such marks: they open no thought, and close none."""
    marked = Document.from_pages("Marks", ["Write <think> and </think>.", "</think> The lamp <think>\n\n"])
    folder = thinker("llama", SWITCHED)
    session = loaded(folder, marked)
    done = asked(session, Question("Say </think> <think>?", sampling=replace(THINK, think=None)))
    assert done.thought is None
    assert len(done.token_ids) == 12


@pytest.mark.parametrize("think", [True, None])
def test_an_excerpt_is_answered_by_the_same_law(think: bool | None, thinker: Make) -> None:
    excerpt = Document.from_pages("The Light", ["The key hangs behind the clock.", "Maren Holt lit the lamp at dusk."])
    folder = thinker("llama", SWITCHED)
    session = loaded(folder, excerpt)
    question = Question(WHO, sampling=replace(THINK, think=think), mode="plain")
    expected = asked(session, question)
    *_, done = session.ask_aside(replace(question, excerpt=excerpt))
    assert isinstance(done, AnswerDone)
    assert done.token_ids == expected.token_ids
    assert (done.thought and done.thought.text) == (expected.thought and expected.thought.text)


def test_the_makers_settings_of_an_answer_depend_on_its_thought(thinker: Make, book: Document) -> None:
    """The files of Qwen 3 have those of a thought; the others are on the maker's card."""
    of_thought, quiet = (0.6, 0.95, 20), (0.7, 0.8, 20)

    def said(folder: str, think: bool | None, **asked: Any) -> tuple[float | None, ...]:
        session = loaded(folder, book)
        info = describe(session, session.config)
        form = session.tokenizer.format_for("").thinking
        found = session.target.sampling_of(SamplingParams(think=think, **asked), form)
        if not asked:
            assert (told := info.own_sampling(think)) is not None
            assert told.over(GREEDY).temperature == found.temperature
        return found.temperature, found.top_p, found.top_k

    folder = thinker("qwen3", SWITCHED)
    assert said(folder, None) == quiet, "also where the files have none, as in many GGUF files"
    assert said(folder, True) == of_thought
    settings = Path(folder) / "generation_config.json"
    own = {**json.loads(settings.read_text("utf-8")), "do_sample": True, "temperature": 0.5, "top_p": 0.95, "top_k": 30}
    settings.write_text(json.dumps(own), encoding="utf-8")
    assert said(folder, True) == (0.5, 0.95, 30), "what the files say of a thought goes before the card"
    assert said(folder, False) == quiet
    assert said(folder, False, temperature=0.0) == (0.0, 0.8, 20), "what is asked for goes before both"
    (Path(folder) / "chat_template.jinja").write_text(HEAD, encoding="utf-8")
    assert said(folder, None) == (0.5, 0.95, 30), "a model that cannot think has one way of answering"
    assert said(thinker("llama", SWITCHED), None) == (0.0, 1.0, 0), "no card, no settings: greedy"
    for card in (card for family in FAMILIES.values() for card in family.card.values()):
        taken = own_sampling({"do_sample": True, **card})
        assert {name: getattr(taken, name) for name in card} == card, "every setting of a card counts"
