"""How often a round waits for the device, counted: every way that leads from a tensor to a number of Python is watched.

On a processor nothing waits, so the two places that choose by device are told that they are on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.config import SamplingParams
from engine.decode import distributions, rounds, verify
from engine.decode.acceptance import NO_EARLY_STOP, EarlyStop
from engine.decode.controller import RoundObservation
from engine.decode.lookup import NO_MATCH, LookupMatch
from engine.decode.plans import PLAIN, DraftPlan
from engine.decode.rounds import Context, pass_ms
from engine.decode.verify import make_generator, make_sampler
from engine.document import Document
from engine.events import Round
from engine.kv.retrieval import QueryRecorder, RetrievalCache
from engine.session import Session
from tests.engine.test_equality import answer, load, read

# What makes a number, a list or an array of a tensor, and so waits for it.
ASKING = ("item", "tolist", "numpy", "cpu", "__int__", "__float__", "__bool__", "__index__", "__array__")
# Operations whose result is as large as the numbers say: a GPU has to be waited for before anything can follow.
SIZED = ("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "_local_scalar_dense", "equal")
GREEDY, WARM = SamplingParams(), SamplingParams(temperature=0.8, top_p=0.9)
PENALISED = SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.3)


@dataclass
class Waits(TorchDispatchMode):
    """Every wait, by name."""

    found: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        counted = name == "repeat_interleave" and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.int64
        if name in SIZED or masks or (counted and kwargs.get("output_size") is None and len(args) == 1):
            self.found.append(name)
        return func(*args, **(kwargs or {}))

    def take(self) -> list[str]:
        taken, self.found = self.found, []
        return taken


@contextmanager
def watched(patch: pytest.MonkeyPatch) -> Iterator[Waits]:
    waits = Waits()

    def watch(name: str) -> None:
        own = getattr(torch.Tensor, name)

        def asked(self: torch.Tensor, *args: Any, **more: Any) -> Any:
            waits.found.append(name)
            return own(self, *args, **more)

        patch.setattr(torch.Tensor, name, asked)

    for name in ASKING:
        watch(name)
    made = torch.tensor

    def tensor(data: Any, **more: Any) -> torch.Tensor:
        # A list that goes to a GPU is waited for, except where ``to_device`` sends it.
        waits.found.append("tensor")
        return made(data, **more)

    def to_device(numbers: Any, device: torch.device) -> torch.Tensor:
        return made(numbers, dtype=torch.long, device=device)

    patch.setattr(torch, "tensor", tensor)
    for module in ("engine.model.pieces", "engine.decode.drafters"):
        patch.setattr(f"{module}.to_device", to_device)
    patch.setattr(distributions.native, "own", lambda: None)
    patch.setattr(verify, "waits_are_cheap", lambda _: False)
    patch.setattr(RetrievalCache, "only_changes", lambda *_: False)
    with waits:
        yield waits


class Always:
    """A policy of one plan."""

    def __init__(self, plan: DraftPlan) -> None:
        self.plan = plan
        self.observations: list[RoundObservation] = []

    def next(self, match: LookupMatch = NO_MATCH) -> DraftPlan:
        return DraftPlan(copy=min(self.plan.copy, len(match.tokens))) if self.plan.copy else self.plan

    def observe(self, plan: DraftPlan, done: Round, observation: RoundObservation) -> None:
        self.observations.append(observation)


def rounds_of(session: Session, policy: Always, sampling_params: SamplingParams) -> Iterator[Round]:
    """Rounds behind the prompt that was answered last."""
    talk = session.conversation
    assert talk is not None
    session.full.crop(len(talk.tokens) - 1)
    context = Context(
        session.hierarchy.verify,
        session.full,
        list(talk.tokens),
        make_sampler(sampling_params, session.target.ids([])),
        make_generator(3, session.target.token_device),
        frozenset(),
        30,
    )
    queries = QueryRecorder(session.target.num_layers)
    pass_ms(session.hierarchy.verify, session.full, context.tokens, 1, queries)
    levels = session.hierarchy
    rounds.start(context, levels.retrieval, levels.drafter, queries)
    return rounds.hierarchical(context, levels.retrieval, levels.drafter, levels.speculation(policy, levels.index))


PATIENT = EarlyStop(0.05, (0.9,) * 6)


@pytest.fixture(scope="module")
def session(tiny: Callable[..., str], book: Document) -> Session:
    """Behind an answer, where ``rounds_of`` begins every time."""
    options = {"retrieval_budget": 64, "refresh_every": 2, "num_draft_tokens": 3, "num_pending_tokens": 8}
    made = load(tiny("llama", spread=0.1), tiny("llama", seed=1, layers=1, width=32), num_lookup_tokens=0, **options)
    read(made, book)
    answer(made)
    return made


@pytest.mark.parametrize("params", [GREEDY, WARM, PENALISED], ids=["greedy", "sampled", "penalised"])
@pytest.mark.parametrize(
    "plan",
    [PLAIN, DraftPlan(4), DraftPlan(3, 1, 8), DraftPlan(3, 4, 8), DraftPlan(0, 3, 8)],
    ids=["plain", "draft", "one pass", "hierarchy", "no draft"],
)
def test_a_round_waits_once_and_once_more_for_every_middle_pass(
    plan: DraftPlan, params: SamplingParams, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = rounds_of(session, Always(plan), params)
    refreshed = 0
    with watched(monkeypatch) as waits:
        for done in rounds:
            assert waits.take() == ["tolist"] * (done.passes + 1)
            refreshed += done.refreshed
    assert (refreshed > 0) == (plan.passes > 0)


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_patience_waits_for_every_drafted_token_as_well(
    params: SamplingParams, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Always(DraftPlan(3, 4, 8, draft_stop=PATIENT, middle_stop=PATIENT))
    rounds = rounds_of(session, policy, params)
    with watched(monkeypatch) as waits:
        for done in rounds:
            assert waits.take() == ["tolist"] * (done.passes + 1 + policy.observations[-1].draft_steps)
    assert sum(observation.draft_steps for observation in policy.observations) > 10


def test_words_of_the_book_need_one_wait_and_a_hint_one_more(
    tiny: Callable[..., str], book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = load(tiny("llama", spread=0.1), tiny("llama", seed=1, layers=1, width=32), retrieval_budget=64)
    read(session, book)
    answer(session, question="Page 3. The lamp stood on the")
    copying = list(range(2))
    for plan in (DraftPlan(copy=8), DraftPlan(3, 2, 8, draft_stop=NO_EARLY_STOP)):
        rounds = rounds_of(session, Always(plan), GREEDY)
        with monkeypatch.context() as patch, watched(patch) as waits:
            for done in rounds:
                counted = waits.take()
                assert set(counted) == {"tolist"}
                assert done.passes + 1 <= len(counted) <= 2 * done.passes + 1
                copying[plan.copy > 0] += done.lookup.proposed
    assert copying[1] > 0


def test_the_counter_sees_what_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(4)
    with watched(monkeypatch) as waits:
        assert int(x[1]) == 1
        assert bool(x[1] > 0)
        x[x > 1].sum()
        (x > 2).nonzero()
        x.tolist()
        torch.tensor([1])
        assert [x[0].item()] == [0]
        found = waits.take()
    for name in ("__int__", "__bool__", "index", "nonzero", "tolist", "tensor", "item"):
        assert name in found
