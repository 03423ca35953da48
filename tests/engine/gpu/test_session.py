"""Whole sessions on the simulated device: the processor's answers, wherever the KV lies and however streams lag.

Each takes about ten seconds; with TRIFOLD_LONG=1 every schedule meets every placement and format.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.config import EngineConfig, SamplingParams
from engine.decode import rounds, tuning
from engine.decode.tuning import TUNING
from engine.document import Document, Page
from engine.events import AnswerDone, KvBytes, TextDelta
from engine.kv.full import FullCache
from engine.kv.offload import Placement, Tier
from engine.model import loading
from engine.plan import planner
from engine.plan.round_model import FEW_TRIPS, TRIPS
from engine.prompt import Question
from engine.session import Session
from tests.engine.conftest import TEXT
from tests.engine.gpu.simulated_cuda import SCHEDULES, simulated_cuda

LAYERS = 3
BOOK = Document("The Lamp", "Nobody", tuple(Page(n, str(n), f"Page {n}. {TEXT}") for n in (1, 2)), "text", "0" * 64)
SPILLED = Placement((Tier.HOST, Tier.DISK, Tier.HOST))  # one more than there are buffers
OPTIONS: dict[str, Any] = {
    "context": 2048,
    "retrieval_budget": 64,
    "refresh_every": 2,
    "num_draft_tokens": 3,
    "num_pending_tokens": 8,
}


@pytest.fixture(scope="module")
def answered(pair: tuple[str, str]) -> Callable[..., tuple[int, ...]]:
    """Token ids of an answer to one question, by the device and the options."""

    def answer(device: str, placement: Placement | None = None, **options: Any) -> tuple[int, ...]:
        target, draft = pair
        session = Session.load(EngineConfig(model=target, draft=draft, device=device, **{**OPTIONS, **options}))
        patch = pytest.MonkeyPatch()
        patch.setattr(tuning, "TUNING", replace(tuning.TUNING, slow_step_ms=math.inf))  # on a busy machine too
        if placement is not None:
            plan = planner.MemoryPlan
            patch.setattr(planner, "plan_for_book", lambda _, tokens, *__: plan(tokens + 200, placement, KvBytes(), 0))
        try:
            list(session.read(BOOK))
            done = list(session.ask(Question("Where does the key hang?", sampling=SamplingParams(max_tokens=8))))[-1]
            assert isinstance(done, AnswerDone)
            if device == "cuda":
                recorded = session.hierarchy.recorded()
                assert not any(replays.off for replays in recorded.values())
                resident = not session.full.placement.spilled and session.config.kv == "model"
                assert "verify" not in recorded or bool(recorded["verify"]._recordings) == resident
            return done.token_ids
        finally:
            patch.undo()
            session.close()

    return answer


@pytest.fixture(scope="module")
def expected(answered: Callable[..., tuple[int, ...]]) -> tuple[int, ...]:
    return answered("cpu", dtype="float32")


def test_resident(answered: Any, expected: Any) -> None:
    with simulated_cuda("delayed", 2):
        assert answered("cuda", dtype="float32") == expected


@pytest.mark.parametrize(("schedule", "pinned"), [("random", None), ("delayed", 100_000)])
def test_spilled(answered: Any, expected: Any, schedule: str, pinned: int | None) -> None:
    """Also where so little can be pinned that every layer in host memory moves through buffers."""
    with simulated_cuda(schedule, 3, pin_limit=pinned):
        assert answered("cuda", SPILLED, dtype="float32", graphs="off") == expected


def test_a_card_that_is_full_spills_and_goes_on(answered: Any, expected: Any) -> None:
    """Room for the models and their passes, and for less and less of the book's KV."""
    with simulated_cuda("eager") as gpu:
        answered("cuda", Placement.resident(LAYERS), dtype="float32", graphs="off")
        peak = gpu.peak
    with simulated_cuda("lazy", limit=int(peak * 0.97)) as gpu:
        assert answered("cuda", Placement.resident(LAYERS), dtype="float32", graphs="off") == expected
        assert gpu.peak <= int(peak * 0.97)


@pytest.mark.parametrize(("slow_ms", "trips"), [(0.0, FEW_TRIPS), (1e9, TRIPS)])
def test_the_first_word_comes_after_few_trips_over_the_bus(
    pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch, slow_ms: float, trips: int
) -> None:
    """Where one takes seconds: the question's prefill and a plain step. Eight were 23 s."""
    monkeypatch.setattr(tuning, "TUNING", replace(TUNING, slow_pass_ms=slow_ms, slow_step_ms=slow_ms))
    place = planner.MemoryPlan(1800, Placement((Tier.HOST,) * LAYERS), KvBytes(), 0)
    monkeypatch.setattr(planner, "plan_for_book", lambda *_: place)
    with simulated_cuda("eager"):
        options: dict[str, Any] = {"context": 2048, "retrieval_budget": 64, "graphs": "off", "dtype": "float32"}
        session = Session.load(EngineConfig(model=pair[0], draft=pair[1], device="cuda", **options))
        list(session.read(BOOK))
        before = session.full.moved_bytes
        asked = session.ask(Question("Where does the key hang?", sampling=SamplingParams(max_tokens=40)))
        next(event for event in asked if isinstance(event, TextDelta))
        moved = (session.full.moved_bytes - before) / session.full.kv_bytes().host
        assert bool(session.hierarchy.retrieval.length) == (trips == TRIPS), "levels start behind a slow word"
        before = session.full.moved_bytes
        next(event for event in asked if isinstance(event, TextDelta))
        then = (session.full.moved_bytes - before) / session.full.kv_bytes().host
        session.close()
    assert trips - 1 < moved < trips + 0.5
    assert then < 1.5, "one more trip makes the next words: nothing is timed over the bus meanwhile"


@pytest.mark.parametrize(
    ("kind", "kv", "options"),
    [
        ("qwen3_moe", "model", {"in_host": (0, 2)}),
        ("qwen3_moe", "model", {"weights": "8bit"}),
        ("llama", "8bit", {"weights": "4bit"}),
    ],
    ids=str,
)
def test_weights_come_from_host_memory_and_are_rounded_as_kv_is(
    kind: str, kv: str, options: dict[str, Any], tiny: Callable[..., str]
) -> None:
    ids = torch.randint(6, 380, (24,), generator=torch.Generator().manual_seed(0)).tolist()

    def logits(device: str, **options: Any) -> torch.Tensor:
        model = loading.load(tiny(kind), window=64, device=torch.device(device), dtype="float32", **options)
        cache = FullCache(model.kv_shape.stored_as(kv), 64)
        with torch.inference_mode():
            first = rounds.full_pass(model, cache, 0, ids[:20])
            cache.advance(20)
            found = torch.cat([first, rounds.full_pass(model, cache, 20, ids[20:])]).cpu()
        assert model.layers_in_host == len(options.get("in_host", ()))
        return found

    expected = logits("cpu", weights=options.get("weights", "stored"))
    with simulated_cuda("delayed", 2):
        assert torch.allclose(logits("cuda:0", **options), expected, atol=1e-4)


@pytest.mark.skipif(not os.environ.get("TRIFOLD_LONG"), reason="128 sessions, 15 minutes: TRIFOLD_LONG=1")
@pytest.mark.parametrize("options", [{}, {"weights": "8bit"}, {"weights": "4bit"}, {"kv": "8bit"}], ids=str)
@pytest.mark.parametrize("tiers", ["DDD", "HHH", "FFF", "HDF"])
def test_every_schedule_placement_and_format(answered: Any, options: dict[str, Any], tiers: str) -> None:
    """D is the device, H host memory, F a file."""
    named = {"D": Tier.DEVICE, "H": Tier.HOST, "F": Tier.DISK}
    placement = Placement(tuple(named[tier] for tier in tiers))
    expected = answered("cpu", dtype="float32", **options)
    for schedule, seed in [(schedule, seed) for schedule in SCHEDULES for seed in range(2)]:
        with simulated_cuda(schedule, seed):
            assert answered("cuda", placement, dtype="float32", **options) == expected, (schedule, seed)
