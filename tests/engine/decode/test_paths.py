"""Every path of a round keeps the law of the text: the real loops and judges, over models that are tables.

Target, middle level and draft are first-order Markov chains with different laws, so the law of every token is known
exactly, and thousands of them show whether a path bends it (a hundred thousand were drawn once, with the same result).
All transitions together are one chi-square, which a rule that bends each of them a little cannot pass.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from engine.config import SamplingParams
from engine.decode import rounds
from engine.decode.acceptance import EarlyStop, Every, Never, WhenAcceptanceDrops, policy_of
from engine.decode.controller import FixedLengths, RoundObservation
from engine.decode.drafters import LookupDrafter, ModelDrafter, NoDrafter
from engine.decode.lookup import NO_MATCH, LookupIndex, LookupMatch
from engine.decode.plans import PLAIN, DraftPlan
from engine.decode.rounds import Context, Speculation
from engine.decode.verify import Sampler, make_generator
from engine.events import Acceptance, Round, TokenSource
from engine.model.kernels.abi import MOST_ROWS
from tests.engine.dense import dense

CPU = torch.device("cpu")
VOCABULARY = 6
WARM, NUCLEUS = SamplingParams(temperature=1.0), SamplingParams(temperature=0.7, top_p=0.9)


def table(seed: int) -> torch.Tensor:
    """Logits of the next token by the last one: peaked, overlapping with other tables."""
    shared = 1.6 * torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(1))
    return shared + 0.8 * torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed))


class Chain:
    """Stands where a ``Backend`` stands. Its answer depends on the view that it attends through: full or retrieval."""

    token_device = CPU
    most_rows = MOST_ROWS
    decoding = staticmethod(torch.inference_mode)

    def __init__(self, tables: dict[str, torch.Tensor]) -> None:
        self.tables = tables
        self.vocabulary = next(iter(tables.values())).shape[-1]

    def ids(self, tokens: Sequence[int]) -> torch.Tensor:
        return torch.tensor(tokens, dtype=torch.long)

    def forward(self, ids: torch.Tensor, view: str, rows: int | None = None) -> torch.Tensor:
        logits = self.tables[view][ids]
        return logits if rows is None else logits[-rows:]


class Cache:
    """Stands where a cache stands: a length."""

    limit = 10**9
    waited_s = 0.0
    is_selected = True
    hidden = None  # no draft head reads along

    def __init__(self, name: str, length: int) -> None:
        self.name, self.length, self.num_exact = name, length, length
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

    settle = begin_scores = ensure_selected = lambda self: None
    score = select = lambda self, queries: None

    def copy_from_full(self, length: int) -> None:
        assert self.num_exact <= length
        self.length = self.num_exact = length

    def free_slots(self) -> int:
        return 10**9


class Draft(ModelDrafter):
    """The real drafter over a table instead of a model."""

    def __init__(self, chain: Chain, length: int) -> None:
        self.decoder = self._backend = cast(Any, chain)
        self._vocabulary = VOCABULARY
        self._slack = 10**6
        self._settled, self._fed, self._unread, self._full = length, [0] * length, [], None
        self.started, self._committed, self._fed_in_a_step = True, length, 10**6
        self.cache: Any = Cache("draft", length)

    def begin(self, context: Sequence[int], *, anew: bool = False) -> None:
        pass


class AnyPlan:
    """A policy that tries every path, at random."""

    def __init__(self, plans: Sequence[DraftPlan]) -> None:
        self.plans, self.rng = plans, random.Random(5)
        self.taken: dict[str, int] = {}

    def next(self, match: LookupMatch = NO_MATCH) -> DraftPlan:
        plan = self.rng.choice(self.plans)
        if plan.copy > len(match.tokens):
            plan = DraftPlan(copy=len(match.tokens))
        return plan

    def observe(self, plan: DraftPlan, done: Round, observation: RoundObservation) -> None:
        for source in done.sources:
            self.taken[source.value] = self.taken.get(source.value, 0) + 1
        if plan.copy:
            self.taken["copies"] = self.taken.get("copies", 0) + done.lookup.accepted


SHORT, LONG = EarlyStop(0.5, (0.6,) * 6), EarlyStop(0.05, (0.9, 0.8, 0.7, 0.6, 0.5, 0.4))
PATHS = {
    "copy": [DraftPlan(copy=3), PLAIN],
    "draft": [DraftPlan(3, 0, draft_stop=SHORT), DraftPlan(2)],
    "hierarchy": [DraftPlan(2, 2), DraftPlan(3, 4, draft_stop=LONG, middle_stop=SHORT)],
    "partial": [DraftPlan(3), DraftPlan(2, 2)],
    "all": [
        DraftPlan(copy=2),
        DraftPlan(copy=8),
        DraftPlan(3, draft_stop=LONG),
        DraftPlan(2, 3, 5),
        DraftPlan(0, 2, middle_stop=SHORT),
        DraftPlan(4, 3, draft_stop=SHORT, middle_stop=LONG),
        PLAIN,
    ],
}


LIKELY = 70.0
"""One chi-square in 20,000 of 30 degrees of freedom is larger. Six rows of six transitions have no more of them."""


def chi_square(counts: torch.Tensor, law: torch.Tensor) -> float:
    """How far transitions are from their law: the sum of squared errors over what is expected, where it is anything."""
    expected = counts.sum(dim=1, keepdim=True) * law
    return float(((counts - expected).square() / expected.clamp(min=1e-9))[law > 0].sum())


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0.7, top_p=0.9), SamplingParams(temperature=1.0)], ids=str
)
@pytest.mark.parametrize("path", PATHS)
def test_every_path_keeps_the_law(path: str, params: SamplingParams) -> None:
    tokens = 4_500 if path == "all" else 2_500
    chain = Chain({"full": table(2), "retrieval": table(3), "draft": table(4)})
    if path == "partial":  # a distilled draft, whose head has only some of the tokens
        chain.tables["draft"][:, ::2] = float("-inf")
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
    policy = AnyPlan(PATHS[path])
    speculation = Speculation(policy, Never(), 100, index)
    retrieval: Any = Cache("retrieval", 3)
    made_rounds = list(rounds.hierarchical(context, retrieval, drafter, speculation))
    made = torch.tensor(context.tokens[3:])
    assert made.shape[0] == tokens + 1 == sum(len(done.tokens) for done in made_rounds) + 1
    law = dense(Sampler(params)(chain.tables["full"]), VOCABULARY)
    counts = torch.zeros(VOCABULARY, VOCABULARY)
    counts.index_put_((made[:-1], made[1:]), torch.ones(tokens), accumulate=True)
    assert not counts[law == 0].any(), "a token that top-p leaves out"
    assert chi_square(counts, law) < LIKELY
    # A bent law could not hide: a fifth of the middle level's would be seen.
    other = dense(Sampler(params)(chain.tables["retrieval"]), VOCABULARY)
    bent = counts.sum(dim=1, keepdim=True) * (0.8 * law + 0.2 * other)
    assert chi_square(bent, law) > LIKELY or bent[law == 0].any()
    if path == "all":
        assert {"copies", *(source.value for source in TokenSource)} <= set(policy.taken)
        assert min(policy.taken.values()) > 100


class Awaited(Cache):
    """A retrieval cache whose selection takes 70 ms of ``clock`` when it is first needed."""

    def __init__(self, clock: list[float]) -> None:
        super().__init__("retrieval", 3)
        self.is_selected, self._clock = False, clock

    def ensure_selected(self) -> None:
        if not self.is_selected:
            self.is_selected, self._clock[0] = True, self._clock[0] + 0.07


class Watched(AnyPlan):
    """Plain, two rounds with middle passes, and plain: what each observed of the selection's time."""

    def __init__(self) -> None:
        super().__init__([])
        self.asked = iter([PLAIN, DraftPlan(0, 1), DraftPlan(0, 1), PLAIN, PLAIN])
        self.seen: list[tuple[float, float]] = []

    def next(self, match: LookupMatch = NO_MATCH) -> DraftPlan:
        return next(self.asked)

    def observe(self, plan: DraftPlan, done: Round, observation: RoundObservation) -> None:
        self.seen.append((observation.selection_ms, done.split.other))


def test_the_time_of_a_selection_is_in_the_round_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was in no round, so the controller did not learn what the middle level costs an answer."""
    clock = [5.0]
    monkeypatch.setattr(rounds, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    chain = Chain({"full": table(2), "retrieval": table(3)})
    context = Context(
        chain,  # type: ignore[arg-type]
        Cache("full", 3),  # type: ignore[arg-type]
        [0, 1, 2, 3],
        Sampler(WARM),
        make_generator(11, CPU),
        frozenset(),
        5,
    )
    policy, retrieval = Watched(), cast(Any, Awaited(clock))
    made = list(rounds.hierarchical(context, retrieval, NoDrafter(CPU), Speculation(policy, Never(), 100)))
    assert [seen for pair in policy.seen[:3] for seen in pair] == pytest.approx([0.0, 0.0, 70.0, 70.0, 0.0, 0.0])
    assert sum(done.split.total for done in made) == pytest.approx(70.0)


def test_no_verification_is_wider_than_what_is_computed_row_by_row() -> None:
    """The last middle pass may add a long copy of the book to what is pending; each of its tokens is accepted here."""
    circle = 20.0 * torch.eye(VOCABULARY).roll(1, dims=1)
    chain = Chain(dict.fromkeys(("full", "retrieval", "draft"), circle))
    tokens = [at % VOCABULARY for at in range(300)]
    context = Context(
        chain,  # type: ignore[arg-type]
        Cache("full", 299),  # type: ignore[arg-type]
        tokens,
        Sampler(SamplingParams()),
        make_generator(11, CPU),
        frozenset(),
        1_000,
    )
    index = LookupIndex()
    index.follow(context.tokens)
    drafter = LookupDrafter(Draft(chain, 299), index, 40, CPU)
    retrieval: Any = Cache("retrieval", 299)
    made = list(
        rounds.hierarchical(context, retrieval, drafter, Speculation(AnyPlan([DraftPlan(0, 9)]), Never(), 100, index))
    )
    rows = {done.verified_rows for done in made[:-1]}
    assert rows == {MOST_ROWS}
    assert context.tokens == [at % VOCABULARY for at in range(1_300)]


def test_policies_of_refreshing() -> None:
    good, bad = Acceptance(9, 10), Acceptance(1, 10)
    every = Every(3)
    due = []
    for _ in range(7):
        due.append(every.due())
        every.observe(good, refreshed=due[-1])
    assert due == [False, False, True, False, False, True, False]
    assert all(policy_of("every", 1).due() for _ in range(3))
    # Ten tokens a verification, then two: a refresh costs as much as a plain step, and must have time to pay.
    for verified, expected in ((good, [3, 6, 9]), (bad, [8, 17])):
        ours, due = policy_of("every", None), []
        for _ in range(18):
            due.append(ours.due())
            ours.observe(verified, refreshed=due[-1])
        assert [place for place, is_due in enumerate(due) if is_due][: len(expected)] == expected
    # One that took a tenth of the time of ten rounds waits for a longer time than that.
    ours, due = policy_of("every", None), []
    for _ in range(80):
        due.append(ours.due())
        ours.observe(good, refreshed=due[-1], round_ms=10.0, refresh_ms=10.0)
    assert [place for place, is_due in enumerate(due) if is_due] == [3, 38, 73]  # 340 ms are 3 % and no less
    never = policy_of("never", 1)
    never.observe(bad, refreshed=False)
    assert not never.due()
    drops = policy_of("drop", 1)
    assert isinstance(drops, WhenAcceptanceDrops)
    for _ in range(20):
        drops.observe(good, refreshed=False)
        assert not drops.due()
    for _ in range(4):
        drops.observe(bad, refreshed=False)
    assert drops.due()
    drops.observe(bad, refreshed=True)
    assert not drops.due()  # the new selection is given a chance
    for _ in range(6):
        drops.observe(bad, refreshed=False)
    assert drops.due()


def test_fixed_lengths_are_what_they_say() -> None:
    assert FixedLengths(3, 8).next() == DraftPlan(3, 8, 8)
