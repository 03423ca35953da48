"""Every path of a round keeps the law of the text: the real loops and judges, over models that are tables.

Target, retrieval level and draft are first-order Markov chains with different laws, so the law of every token is known
exactly, and thousands of them show whether a path bends it (a hundred thousand were drawn once, with the same result).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engine import decoding
from engine.beliefs import Patience
from engine.choice import PLAIN, Choice, Lesson, Offer
from engine.config import SamplingParams
from engine.context import Context
from engine.controller import FixedLengths
from engine.decoding import Speculation
from engine.drafters import ModelDrafter
from engine.events import Acceptance, Round, Stage
from engine.lookup import LookupIndex
from engine.lookup_drafter import LookupDrafter
from engine.refresh import Every, Never, WhenAcceptanceDrops, policy_of
from engine.sampling import Sampler, make_generator

CPU = torch.device("cpu")
VOCABULARY = 6
WARM, NUCLEUS = SamplingParams(temperature=1.0), SamplingParams(temperature=0.7, top_p=0.9)


def table(seed: int) -> torch.Tensor:
    """Logits of the next token by the last one: peaked, overlapping with other tables."""
    shared = 1.6 * torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(1))
    return shared + 0.8 * torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed))


class Chain:
    """Stands where a ``Decoder`` stands. Its answer depends on the view that it attends through: full or retrieval."""

    device = CPU
    num_layers = 0

    def __init__(self, tables: dict[str, torch.Tensor]) -> None:
        self.tables = tables
        self.vocabulary = next(iter(tables.values())).shape[-1]

    def ids(self, tokens: Sequence[int]) -> torch.Tensor:
        return torch.tensor(tokens, dtype=torch.long)

    def span(self, start: int, count: int) -> int:
        return count

    def rope(self, positions: object) -> None:
        return None

    def no_rope(self, count: int) -> None:
        return None

    def forward(self, ids: torch.Tensor, rope: object, kv: str, rows: int | None = None) -> torch.Tensor:
        logits = self.tables[kv][ids]
        return logits if rows is None else logits[-rows:]


class Cache:
    """Stands where a cache stands: a length."""

    limit = 10**9
    replays = None
    waited_s = 0.0

    def __init__(self, name: str, length: int) -> None:
        self.name, self.length = name, length
        self.shape = type("Shape", (), {"layers": 0})
        self.full = self

    def reserve(self, length: int) -> None:
        pass

    def extend(self, *_: object) -> str:
        return self.name

    def advance(self, count: int) -> None:
        self.length += count

    def crop(self, length: int) -> None:
        assert length <= self.length
        self.length = length

    settle = begin_scores = lambda self: None

    def absorb(self, start: int, length: int) -> None:
        assert start <= self.length
        self.length = length

    def room(self) -> int:
        return 10**9


class Draft(ModelDrafter):
    """The real drafter over a table instead of a model."""

    def __init__(self, chain: Chain, length: int) -> None:
        self._decoder: Any = chain
        self._vocabulary = VOCABULARY
        self._slack = 10**6
        self._settled, self._fed, self._unread, self.replays = length, [], [], None
        self.cache: Any = Cache("draft", length)

    def begin(self, context: Sequence[int]) -> None:
        pass


class AnyChoice:
    """A pace that tries every path, at random."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        self.choices, self.rng = choices, random.Random(5)
        self.taken: dict[str, int] = {}

    def next(self, offer: Offer) -> Choice:
        choice = self.rng.choice(self.choices)
        if choice.copy > len(offer.tokens):
            choice = Choice(copy=len(offer.tokens))
        return choice

    def observe(self, choice: Choice, done: Round, lesson: Lesson) -> None:
        for stage in done.stages:
            self.taken[stage.value] = self.taken.get(stage.value, 0) + 1
        if choice.copy:
            self.taken["copies"] = self.taken.get("copies", 0) + done.lookup.accepted


SHORT, LONG = Patience(0.5, (0.6,) * 6), Patience(0.05, (0.9, 0.8, 0.7, 0.6, 0.5, 0.4))
PATHS = {
    "copy": [Choice(copy=3), PLAIN],
    "draft": [Choice(3, 0, draft_patience=SHORT), Choice(2)],
    "hierarchy": [Choice(2, 2), Choice(3, 4, draft_patience=LONG, middle_patience=SHORT)],
    "all": [
        Choice(copy=2),
        Choice(copy=8),
        Choice(3, draft_patience=LONG),
        Choice(2, 3, 5),
        Choice(0, 2, middle_patience=SHORT),
        Choice(4, 3, draft_patience=SHORT, middle_patience=LONG),
        PLAIN,
    ],
}


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0.7, top_p=0.9), SamplingParams(temperature=1.0)], ids=str
)
@pytest.mark.parametrize("path", PATHS)
def test_every_path_keeps_the_law(path: str, params: SamplingParams) -> None:
    tokens = 20_000 if path == "all" else 6_000
    chain = Chain({"full": table(2), "retrieval": table(3), "draft": table(4)})
    context = Context(
        chain,  # type: ignore[arg-type]
        Cache("full", 3),  # type: ignore[arg-type]
        [0, 1, 2, 3],
        Sampler(params),
        make_generator(11, CPU),
        frozenset(),
        tokens,
    )
    index = LookupIndex()
    index.follow(context.tokens)
    drafter = LookupDrafter(Draft(chain, 3), index, 8, CPU)
    pace = AnyChoice(PATHS[path])
    speculation = Speculation(pace, Never(), 100, index)
    retrieval: Any = Cache("retrieval", 3)
    rounds = list(decoding.hierarchical(context, retrieval, drafter, speculation))
    made = torch.tensor(context.tokens[3:])
    assert made.shape[0] == tokens + 1 == sum(len(done.tokens) for done in rounds) + 1
    law = Sampler(params)(chain.tables["full"])
    counts = torch.zeros(VOCABULARY, VOCABULARY)
    counts.index_put_((made[:-1], made[1:]), torch.ones(tokens), accumulate=True)
    seen = counts.sum(dim=1, keepdim=True)
    error = (counts / seen.clamp(min=1) - law).abs()
    allowed = 5.0 * torch.sqrt(law * (1 - law) / seen.clamp(min=1)) + 1e-3
    assert bool((error <= allowed)[seen.squeeze(1) > 50].all()), (error - allowed).max()
    if path == "all":
        assert {"copies", *(stage.value for stage in Stage)} <= set(pace.taken)
        assert min(pace.taken.values()) > 100
        # The laws of the levels differ so much that a bent one could not hide.
        other = Sampler(params)(chain.tables["retrieval"])
        assert float((other - law).abs().max()) > 0.1


def test_policies_of_refreshing() -> None:
    good, bad = Acceptance(9, 10), Acceptance(1, 10)
    every = Every(3)
    due = []
    for _ in range(7):
        due.append(every.due())
        every.observe(good, renewed=due[-1])
    assert due == [False, False, True, False, False, True, False]
    assert all(policy_of("every", 1).due() for _ in range(3))
    ours, due = policy_of("every", None), []
    for _ in range(10):
        due.append(ours.due())
        ours.observe(good, renewed=due[-1])
    assert due == [False, False, False, True, False, True, False, True, False, True]
    never = policy_of("never", 1)
    never.observe(bad, renewed=False)
    assert not never.due()
    drops = policy_of("drop", 1)
    assert isinstance(drops, WhenAcceptanceDrops)
    for _ in range(20):
        drops.observe(good, renewed=False)
        assert not drops.due()
    for _ in range(4):
        drops.observe(bad, renewed=False)
    assert drops.due()
    drops.observe(bad, renewed=True)
    assert not drops.due()  # the new selection is given a chance
    for _ in range(6):
        drops.observe(bad, renewed=False)
    assert drops.due()


def test_fixed_lengths_are_what_they_say() -> None:
    assert FixedLengths(3, 8).next() == Choice(3, 8, 8)
