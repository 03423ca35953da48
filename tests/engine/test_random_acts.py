"""Questions, continuations, branches, stops, restarts and faults in any order: the cache is what its tokens say.

After every act the KV is compared with that of the same tokens in a new cache, and every answer that was told has to
be held as a turn. Over 2,700 acts were tried so once.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig, Mode, SamplingParams
from engine.decode import prefill, rounds
from engine.document import Document
from engine.events import AnswerDone, TextDelta
from engine.generation import Generation
from engine.kv import snapshot_io
from engine.kv.full import FullCache
from engine.prompt import Question, Turn
from engine.session import Session
from tests.engine.conftest import TEXT

ACTS = 45
QUESTIONS = ("Where is the key?", "Who lit it?", "And when?", "Why?")
LONGER = f"Why? {3 * TEXT}"  # than what layers with a sliding window hold beside it
# Calls of these fail, after some that succeed: bringing back a turn, a pass, what follows a commit.
FAULTS: dict[str, tuple[Any, str, int]] = {
    "restore": (snapshot_io, "_append", 3),
    "pass": (rounds, "full_pass", 9),
    "commit": (Generation, "add", 4),
}


class Person:
    """Acts at random, and knows what was told."""

    def __init__(self, seed: int, begin: Callable[[], Session], questions: Sequence[str]) -> None:
        self.rng, self.questions = random.Random(seed), questions
        self.begin, self.session = begin, begin()
        self.chats: dict[str, list[list[Turn]]] = {"a": [[]], "b": [[]], "": [[]]}

    def act(self) -> None:
        rng = self.rng
        if rng.random() < 0.05:
            self.session.close()
            self.session = self.begin()
        if rng.random() < 0.2:
            self.session.persistence.finish()
        chat = rng.choice(list(self.chats))
        history = list(rng.choice(self.chats[chat]))
        history = history[: rng.randint(0, min(4, len(history)))]
        question, begun = rng.choice(self.questions), ""
        if history and rng.random() < 0.4:
            last = history.pop()
            question, begun = last.question, last.answer
        fault = rng.choice([None, None, None, *FAULTS])
        with self.failing(fault):
            told = self.ask(question, history, begun, chat, may_fail=fault is not None)
        talk = self.session.conversation
        assert talk is not None
        if told:
            assert Turn(question, begun + told) in [held.turn for held in talk.turns]
            self.chats[chat] = [*self.chats[chat][-7:], [*history, Turn(question, begun + told)]]

    def ask(self, question: str, history: list[Turn], begun: str, chat: str, *, may_fail: bool) -> str:
        """Ask, and perhaps stop; what was told."""
        rng, cancel, told, done = self.rng, threading.Event(), "", None
        modes: tuple[Mode, Mode] = ("plain", "hierarchical")
        temperature, seed = rng.choice([0.0, 0.0, 1.0]), rng.choice([None, 3])
        sampling = SamplingParams(temperature=temperature, seed=seed, max_tokens=rng.choice([1, 2, 5, 12, 30]))
        stop = rng.choice([None, None, 0, 1, 2, 4])
        events = self.session.ask(Question(question, history, sampling, rng.choice(modes), begun, chat), cancel=cancel)
        try:
            for number, event in enumerate(events):
                if isinstance(event, TextDelta):
                    told += event.text
                elif isinstance(event, AnswerDone):
                    done = event
                if number == stop:
                    cancel.set()
        except (MemoryError, RuntimeError, OSError):
            assert may_fail
        assert done is None or done.text == told
        return told

    @contextmanager
    def failing(self, fault: str | None) -> Iterator[None]:
        if fault is None:
            yield
            return
        owner, name, most = FAULTS[fault]
        real, left = getattr(owner, name), iter(range(self.rng.randint(0, most)))

        def call(*arguments: Any, **more: Any) -> Any:
            if next(left, None) is None:
                raise self.rng.choice([MemoryError(), RuntimeError("broken"), OSError(12, "no memory")])
            return real(*arguments, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, call)
            yield


def assert_the_cache_is_what_its_tokens_say(session: Session) -> None:
    full, talk = session.full, session.conversation
    assert talk is not None
    assert talk.read <= full.length <= len(talk.tokens)
    assert all(held.stop <= len(talk.tokens) for held in talk.turns)
    anew = FullCache(full.shape, full.limit)
    ids = session.target.ids(talk.tokens[: full.length])
    prefill.run(session.target, anew, ids, segment=256, block=512)
    near = 1.0 if full.shape.quantized else 1e-3  # a quant at most, where a number lies between two
    for layer in range(full.shape.layers):
        for one, other in zip(full.export(layer, 0, full.length), anew.export(layer, 0, full.length), strict=True):
            assert torch.allclose(one, other, atol=near)
    if full.shape.bounded and full.length:
        held, expected = full.bounded.at(full.length), anew.bounded.at(full.length)
        assert held
        assert expected
        count = full.shape.sliding.window - 1 if full.shape.sliding else 0  # what a next token sees of a window
        for mine, theirs in zip(held.layers, expected.layers, strict=True):
            for name, part in mine.items():
                assert torch.allclose(part[:, -count:], theirs[name][:, -count:], atol=1e-3)


@pytest.mark.parametrize(("kind", "seed"), [("llama", 1), ("gpt_oss", 11), ("qwen3_5_moe_text", 5)])
@pytest.mark.usefixtures("small_windows")
def test_any_order_of_acts(
    kind: str, seed: int, tiny: Callable[..., str], book: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = tiny("llama", seed=1, layers=1, width=32)
    config = EngineConfig(
        model=tiny(kind, spread=0.1),
        draft=draft,
        context=4096,
        retrieval_budget=128,
        prefill_segment=512,
        snapshot_folder=str(tmp_path),
    )
    monkeypatch.setattr(snapshot_io, "SHARD_STEP", 16)
    monkeypatch.setattr(snapshot_io, "SHARD_BYTES", 32 * 768)

    def begin() -> Session:
        session = Session.load(config)
        for _ in session.read(book.select(1, 5)):
            pass
        return session

    questions = QUESTIONS if kind == "llama" else (*QUESTIONS, LONGER)
    person = Person(seed, begin, questions)
    for _ in range(ACTS):
        person.act()
        assert_the_cache_is_what_its_tokens_say(person.session)
    person.session.close()
