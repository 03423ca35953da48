"""Greedy hierarchical = greedy plain = transformers' generate, token for token."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine import lanes
from engine.config import EngineConfig, SamplingParams
from engine.decode import rounds
from engine.decode.controller import Controller
from engine.decode.drafters import Drafter
from engine.decode.lookup import LookupMatch
from engine.decode.plans import PLAIN, DraftPlan
from engine.decode.rounds import Context, Pending, propose
from engine.document import Document
from engine.events import AnswerDone, BookRead, PlainLane, TextDelta
from engine.generation import GenerationLoop
from engine.kv.retrieval import RetrievalCache
from engine.prompt import Question
from engine.session import Session

# Families, head layouts and RoPE scalings; shapes are in conftest.py.
SHAPES = [
    "llama",
    "llama-mha",
    "llama-yarn",
    "llama-llama3",
    "llama-linear",
    "mistral",
    "qwen2",
    "qwen3",
    "phi3",
    "phi3-longrope",
    "gemma3_text",
]
SLIDING, RECURRENT = "gemma3_text", "qwen3_5_text"
QUESTION = "Where does the key hang?"
TOKENS = 36


def load(target: str, draft: str | None, **options: object) -> Session:
    settings: dict[str, object] = {"context": 4096, "retrieval_budget": 256, "refresh_every": 2}
    settings.update(options)
    return Session.load(EngineConfig(model=target, draft=draft, **settings))  # type: ignore[arg-type]


def without_end(session: Session) -> None:
    """Let only a loop or the length end an answer."""
    session.generation = GenerationLoop(session.target, session.full, session.hierarchy, frozenset())


def answer(session: Session, mode: str = "hierarchical", question: str = QUESTION, **sampling: object) -> AnswerDone:
    params = SamplingParams(**{"max_tokens": TOKENS, **sampling})  # type: ignore[arg-type]
    events = list(session.ask(Question(question, sampling=params, mode=mode)))  # type: ignore[arg-type]
    assert isinstance(events[-1], AnswerDone)
    return events[-1]


def generate(folder: str, prompt: list[int], attention: str = "eager") -> list[int]:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention, dtype=torch.float32)
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False)
    return out[0, len(prompt) :].tolist()


def read(session: Session, book: Document) -> BookRead:
    events = list(session.read(book))
    assert isinstance(events[-1], BookRead)
    return events[-1]


@pytest.mark.parametrize("kind", SHAPES)
def test_every_family_equals_generate(kind: str, tiny: Callable[..., str], book: Document) -> None:
    target = tiny(kind)
    session = load(target, tiny("llama", seed=1, layers=1, width=32))
    read(session, book)
    fast, plain = answer(session), answer(session, "plain")
    prompt = session.conversation.tokens[: plain.figures.prompt_tokens]
    expected = generate(target, prompt)
    assert list(plain.token_ids) == expected
    assert list(fast.token_ids) == expected
    assert fast.figures.prompt_tokens == len(prompt) > 900


@pytest.mark.parametrize(
    "options",
    [
        {"num_draft_tokens": 1, "num_pending_tokens": 1},
        {"kind": "gpt_oss", "num_draft_tokens": 2, "num_pending_tokens": 6, "retrieval_budget": 64},
        {"kind": "qwen3_moe", "num_draft_tokens": 6, "num_pending_tokens": 16},
        {"num_draft_tokens": 0, "num_pending_tokens": 5},
        {"retrieval_budget": 32, "chunk_size": 4},
        {"retrieval_budget": 4096},
        {"retrieval_budget": 32, "retrieval_share": 6, "chunk_size": 4, "refresh_every": 1},
        {"chunk_size": 1, "retrieval_budget": 64},
        {"chunk_size": 64, "retrieval_budget": 512, "refresh_every": 1},
        {"prefill_block": 33, "prefill_segment": 100},
        {"num_sink_tokens": 0, "window_size": 16},
        {"refresh": "never", "retrieval_budget": 64},
        {"refresh": "drop", "retrieval_budget": 64},
        {"num_lookup_tokens": 0},
        {"middle": "8bit", "num_draft_tokens": 2, "num_pending_tokens": 6, "retrieval_budget": 64},
        {"middle": "4bit", "num_draft_tokens": 0, "num_pending_tokens": 3},
        {"kind": SLIDING, "num_draft_tokens": 2, "num_pending_tokens": 6, "retrieval_budget": 64, "kv": "8bit"},
        {"kind": SLIDING, "num_draft_tokens": 0, "num_pending_tokens": 64, "refresh_every": 1, "prefill_block": 33},
        {"kind": RECURRENT, "num_draft_tokens": 2, "num_pending_tokens": 6, "retrieval_budget": 64, "kv": "8bit"},
    ],
    ids=str,
)
def test_no_setting_changes_the_text(options: dict[str, Any], tiny: Callable[..., str], book: Document) -> None:
    kind = options.pop("kind", "llama")
    session = load(tiny(kind), tiny(kind, seed=1, layers=1, width=32), **options)
    read(session, book)
    assert answer(session).token_ids == answer(session, "plain").token_ids


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {"num_draft_tokens": 2, "num_pending_tokens": 6, "retrieval_budget": 64}),
        (SLIDING, {"num_draft_tokens": 2, "num_pending_tokens": 6, "retrieval_budget": 64, "kv": "8bit"}),
        (RECURRENT, {"num_draft_tokens": 2, "num_pending_tokens": 6, "retrieval_budget": 64}),
    ],
    ids=str,
)
def test_two_lanes_in_turns_say_what_each_says_alone(
    kind: str, options: dict[str, Any], tiny: Callable[..., str], book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn is one event long, so that the cache changes hands as often as it can. The session goes on as if only the
    speculative answer had been made, also after a race that was stopped.
    """
    monkeypatch.setattr(lanes, "_TURN_S", 0.0)
    monkeypatch.setattr(lanes, "time", SimpleNamespace(perf_counter=partial(next, itertools.count())))
    session = load(tiny(kind, spread=0.1), tiny(kind, seed=1, layers=1, width=32), **options)
    read(session, book)
    plain, alone = answer(session, "plain", max_tokens=16), answer(session, max_tokens=16)
    asked = Question(QUESTION, sampling=SamplingParams(max_tokens=16), plain_lane=True)
    events = list(session.ask(asked))
    told = [event.event for event in events if isinstance(event, PlainLane)]
    kinds = [isinstance(event, PlainLane) for event in events if isinstance(event, PlainLane | TextDelta)]
    assert sum(one != other for one, other in itertools.pairwise(kinds)) > 5, "they change often"
    assert isinstance(events[-1], AnswerDone)
    assert isinstance(told[-1], AnswerDone)
    assert events[-1].token_ids == alone.token_ids
    assert told[-1].token_ids == plain.token_ids
    assert "".join(delta.text for delta in told[:-1]) == plain.text
    assert (told[-1].figures.mode, told[-1].figures.rounds) == ("plain", 16)
    assert session.full.length == len(session.conversation.tokens) - 1
    stop = threading.Event()
    for number, _ in enumerate(session.ask(asked, cancel=stop)):
        if number == 12:
            stop.set()
    assert answer(session, max_tokens=16).token_ids == alone.token_ids


def test_without_a_draft_model(tiny: Callable[..., str], book: Document) -> None:
    """With lengths that are given, since a controller may find that nothing pays on so small a model."""
    session = load(tiny("llama"), None, num_pending_tokens=5)
    read(session, book)
    fast = answer(session)
    assert fast.token_ids == answer(session, "plain").token_ids
    assert fast.figures.middle.proposed == 0
    assert fast.figures.verify.proposed > 0


@pytest.mark.parametrize("kind", ["llama", SLIDING, RECURRENT])
def test_draft_equal_to_target_accepts_everything(kind: str, tiny: Callable[..., str], book: Document) -> None:
    """With the whole context in view at every level nothing can be rejected, so the number of rounds is known."""
    target = tiny(kind)
    session = load(target, target, num_draft_tokens=3, num_pending_tokens=8, retrieval_budget=4096, window_size=4000)
    read(session, book)
    done = answer(session)
    figures = done.figures
    assert figures.middle.rate == 1.0
    assert figures.verify.rate == 1.0
    # A plain step makes the first token. Two middle passes of 3 + 1 tokens make 8 pending, the verification adds one:
    # 9 a round.
    assert figures.rounds == 1 + -(-(len(done.token_ids) - 1) // 9) >= 3


def test_hierarchy_is_not_idle(tiny: Callable[..., str], book: Document) -> None:
    """The levels disagree in this test, or the equalities above would prove little."""
    given = {"retrieval_budget": 64, "num_draft_tokens": 2, "num_pending_tokens": 6}
    session = load(tiny("llama", spread=0.1), tiny("llama", seed=1, layers=1, width=32), **given)
    read(session, book)
    figures = answer(session).figures
    assert figures.verify.rate is not None
    assert 0.0 < figures.verify.rate < 1.0


def test_copies_straight_from_the_book_do_not_change_the_text(
    tiny: Callable[..., str], book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the book offers anything it is taken, however bad it is."""
    session = load(tiny("llama", spread=0.1), tiny("llama", seed=1, layers=1, width=32))
    read(session, book)
    copied = []

    def greedy_copies(self: Controller, match: LookupMatch) -> DraftPlan:
        copied.append(len(match.tokens))
        return DraftPlan(copy=len(match.tokens)) if match.tokens else DraftPlan(2)

    monkeypatch.setattr(Controller, "next", greedy_copies)
    fast = answer(session, question="Page 3. The lamp stood on the")
    assert max(copied) > 4
    assert fast.figures.lookup.proposed > 0
    assert fast.token_ids == answer(session, "plain", "Page 3. The lamp stood on the").token_ids


@pytest.mark.parametrize("kind", ["llama", SLIDING, RECURRENT, "lfm2"])
def test_rounds_without_the_retrieval_level_leave_it_behind_and_it_catches_up(
    kind: str, tiny: Callable[..., str], book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a middle pass the newest tokens of its cache are the full cache's, however long it was not asked."""
    session = load(tiny(kind, spread=0.1), tiny("llama", seed=1, layers=1, width=32))
    read(session, book)
    script = itertools.cycle([*[PLAIN] * 3, DraftPlan(2, 2), *[DraftPlan(2)] * 5, DraftPlan(2, 2), *[PLAIN] * 21])
    monkeypatch.setattr(Controller, "next", lambda self, match: next(script))
    behind = []

    def watched(
        context: Context, retrieval: RetrievalCache, middle: Any, drafter: Drafter, plan: DraftPlan, *more: Any
    ) -> Pending:
        held = len(context.tokens) - 1
        behind.append(held - retrieval.length)
        if plan.passes:
            assert retrieval.length == held
            newest = retrieval.held - (held - retrieval.boundary)
            for layer, keys in enumerate(retrieval._keys):
                assert torch.equal(keys[:, newest : retrieval.held], session.full.keys(layer, retrieval.boundary, held))
        return propose(context, retrieval, middle, drafter, plan, *more)

    monkeypatch.setattr(rounds, "propose", watched)
    fast = answer(session)
    assert 8 < max(behind) <= 16, "it is left behind, and never for long"
    assert len(fast.token_ids) == TOKENS
    assert fast.token_ids == answer(session, "plain").token_ids
