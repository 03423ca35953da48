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

from engine import decoding, sampling
from engine.beliefs import ENDLESS, Patience
from engine.cache.retrieval import QueryTap, RetrievalCache
from engine.choice import NOTHING, PLAIN, Choice, Lesson, Offer
from engine.config import SamplingParams
from engine.context import Context, pass_ms
from engine.document import Document
from engine.events import Round
from engine.hierarchy import FIRST_QUERIES
from engine.sampling import Sampler, make_generator
from engine.session import Session
from tests.engine.test_equality import answer, load, read

# What makes a number, a list or an array of a tensor, and so waits for it.
ASKING = ("item", "tolist", "numpy", "cpu", "__int__", "__float__", "__bool__", "__index__", "__array__")
# Operations whose result is as large as the numbers say: a GPU has to be waited for before anything can follow.
SIZED = ("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "_local_scalar_dense", "equal")
GREEDY, WARM = SamplingParams(), SamplingParams(temperature=0.8, top_p=0.9)


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
    for module in ("engine.models", "engine.lookup_drafter"):
        patch.setattr(f"{module}.to_device", to_device)
    patch.setattr(sampling, "_first_look", lambda probs: probs.shape[-1])
    patch.setattr(RetrievalCache, "_only_changes", lambda *_: False)
    with waits:
        yield waits


class Always:
    """A pace of one choice."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.lessons: list[Lesson] = []

    def next(self, offer: Offer = NOTHING) -> Choice:
        return Choice(copy=min(self.choice.copy, len(offer.tokens))) if self.choice.copy else self.choice

    def observe(self, choice: Choice, done: Round, lesson: Lesson) -> None:
        self.lessons.append(lesson)


def rounds_of(session: Session, pace: Always, sampling_params: SamplingParams) -> Iterator[Round]:
    """Rounds behind the prompt that was answered last."""
    talk = session.conversation
    assert talk is not None
    session.full.crop(len(talk.tokens) - 1)
    context = Context(
        session.target,
        session.full,
        list(talk.tokens),
        Sampler(sampling_params),
        make_generator(3, session.target.device),
        frozenset(),
        60,
    )
    tap = QueryTap(session.target.num_layers, FIRST_QUERIES)
    pass_ms(session.target, session.full, context.tokens, 1, tap)
    levels = session.hierarchy
    levels.aim(context, tap)
    return decoding.hierarchical(context, levels.retrieval, levels.drafter, levels.speculation(pace, levels.drafter))


PATIENT = Patience(0.05, (0.9,) * 6)


@pytest.fixture
def session(tiny: Callable[..., str], book: Document) -> Session:
    options = {"retrieval_budget": 64, "refresh_every": 2, "num_draft_tokens": 3, "num_pending_tokens": 8}
    made = load(tiny("llama", spread=0.1), tiny("llama", seed=1, layers=1, width=32), num_lookup_tokens=0, **options)
    read(made, book)
    answer(made)
    return made


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "choice",
    [PLAIN, Choice(4), Choice(3, 1, 8), Choice(3, 4, 8), Choice(0, 3, 8)],
    ids=["plain", "draft", "one pass", "hierarchy", "no draft"],
)
def test_a_round_waits_once_and_once_more_for_every_middle_pass(
    choice: Choice, params: SamplingParams, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = rounds_of(session, Always(choice), params)
    renewed = 0
    with watched(monkeypatch) as waits:
        for done in rounds:
            assert waits.take() == ["tolist"] * (done.passes + 1)
            renewed += done.renewed
    assert (renewed > 0) == (choice.passes > 0)


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_patience_waits_for_every_drafted_token_as_well(
    params: SamplingParams, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = Always(Choice(3, 4, 8, draft_patience=PATIENT, middle_patience=PATIENT))
    rounds = rounds_of(session, pace, params)
    with watched(monkeypatch) as waits:
        for done in rounds:
            assert waits.take() == ["tolist"] * (done.passes + 1 + pace.lessons[-1].draft_steps)
    assert sum(lesson.draft_steps for lesson in pace.lessons) > 10


def test_words_of_the_book_need_one_wait_and_a_hint_one_more(
    tiny: Callable[..., str], book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = load(tiny("llama", spread=0.1), tiny("llama", seed=1, layers=1, width=32), retrieval_budget=64)
    read(session, book)
    answer(session, question="Page 3. The lamp stood on the")
    copying = list(range(2))
    for choice in (Choice(copy=8), Choice(3, 2, 8, draft_patience=ENDLESS)):
        rounds = rounds_of(session, Always(choice), GREEDY)
        with monkeypatch.context() as patch, watched(patch) as waits:
            for done in rounds:
                counted = waits.take()
                assert set(counted) == {"tolist"}
                assert done.passes + 1 <= len(counted) <= 2 * done.passes + 1
                copying[choice.copy > 0] += done.lookup.proposed
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
