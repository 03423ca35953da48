"""Who computes the middle level: the target, or its rounded twin."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch

from engine.config import EngineConfig, SamplingParams
from engine.decode import levels
from engine.decode.controller import Controller, FixedLengths, Unclocked
from engine.decode.levels import Hierarchy
from engine.decode.rounds import Context, full_pass
from engine.decode.verify import Sampler, make_generator
from engine.document import Document
from engine.kv.full import FullCache
from engine.model import loading
from engine.model.backends import Backend
from engine.model.backends.walk import Walk
from engine.model.decoder import Decoder
from engine.plan.cost_model import CostModel, LayerCost
from tests.engine.test_equality import answer, load, read

if TYPE_CHECKING:
    from engine.decode.controller import SpeculationPolicy

MACHINE = CostModel(4e9, 0.0, 1e9, 8, 2.0, LayerCost(2e-3, 0.0), LayerCost(3e-3, 0.0), 8, ((512, 0.1),), 0.0)

CPU = torch.device("cpu")


def loaded(folder: str, **options: Any) -> Decoder:
    return loading.load(folder, window=256, device=CPU, dtype="float32", **options)


@pytest.mark.parametrize("weights", ["8bit", "4bit"])
def test_a_twin_says_nearly_what_the_model_says_and_leaves_it_as_it_is(tiny: Callable[..., str], weights: str) -> None:
    target = loaded(tiny("qwen2", spread=0.1))  # whose joint products have a bias
    ids = torch.arange(40) * 7 % 300 + 20

    def said(one: Backend) -> torch.Tensor:
        with torch.inference_mode():
            return full_pass(one, FullCache(target.kv_shape, 256), 0, ids)

    before, held = said(target), [weight.data_ptr() for weight in target.model.parameters()]
    twin = target.rounded(weights)
    assert twin is not None
    assert twin.bits == (8 if weights == "8bit" else 4)
    found = said(twin)
    assert torch.equal(said(target), before)
    assert [weight.data_ptr() for weight in target.model.parameters()] == held
    near = (found - before).abs().mean() / before.abs().mean()
    assert 0 < near < (0.05 if weights == "8bit" else 0.4)
    # The same rounding as that of a target that is loaded so, but for the head.
    assert isinstance(twin, Walk)
    twin._head = target.last_product
    other = said(loaded(tiny("qwen2", spread=0.1), weights=weights))
    assert torch.equal(said(twin), other)


def test_a_model_that_is_not_computed_by_our_kernels_has_no_twin(tiny: Callable[..., str]) -> None:
    assert loaded(tiny("llama"), packed=False).rounded("8bit") is None


def test_a_twin_is_taken_where_weights_are_most_of_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    shape = SimpleNamespace(compute_bytes_per_token=23_040)
    target: Any = SimpleNamespace(
        block_parameters=3_540_000,
        num_layers=30,
        dtype=torch.bfloat16,
        device=CPU,
        keeps_blocks=False,
        rounded=lambda bits: asked.append(bits) or bits,
    )
    config, full = EngineConfig("m", retrieval_budget=1024), SimpleNamespace(shape=shape)
    free = SimpleNamespace(available=8 * 10**9)
    monkeypatch.setattr(levels.psutil, "virtual_memory", lambda: free)

    def taken(config: EngineConfig) -> Any:
        return levels.middle_of(target, config, full)  # type: ignore[arg-type]

    assert taken(config) == "8bit"
    assert taken(replace(config, middle="4bit")) == "4bit"
    assert taken(replace(config, middle="stored")) is None
    target.device = torch.device("cuda")
    assert taken(config) is None, "where it has not been run nobody gets it unasked"
    target.device = CPU
    assert taken(replace(config, weights="4bit")) is None, "what is rounded already is not rounded again"
    target.keeps_blocks = True
    assert taken(config) is None, "nor are a file's blocks"
    target.keeps_blocks = False
    assert taken(replace(config, retrieval_budget=4096)) is None, "the cache is as large as the weights"
    free.available = 10**8
    assert taken(config) is None, "memory is for the book"
    free.available = 10**12
    target.num_layers = 300
    assert taken(config) is None, "rounding takes as long as a person would wait"
    assert asked == ["8bit", "4bit"]


def test_slow_passes_are_not_all_timed_before_the_first_word(
    tiny: Callable[..., str], book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a model of 1.5 billion parameters the first word waited 5 s for a draft model that nobody asked, and for
    twelve passes that were timed."""
    monkeypatch.setattr(levels, "STARTED_AT_ONCE", 0.0)
    session = load(tiny("llama", spread=0.1), tiny("llama", seed=1, layers=1, width=32))
    read(session, book)
    index = session.hierarchy.retrieval._index
    assert {one.count for one in index} == {session.full.length // session.hierarchy.retrieval.chunk_size}
    plain = answer(session, "plain").text
    drafter = session.hierarchy.model_drafter
    assert drafter is not None
    passes: list[int] = []
    timed = levels._verify_ms
    monkeypatch.setattr(levels, "_verify_ms", lambda *given: passes.append(given[1]) or timed(*given))
    for slow in (True, False):
        passes.clear()
        session.hierarchy.reset()
        monkeypatch.setattr(levels, "is_slow", lambda ms, slow=slow: slow)
        context = Context(
            session.target, session.full, [], Sampler(SamplingParams()), make_generator(1, CPU), frozenset(), 9
        )
        assert answer(session).text == plain
        assert passes == ([] if slow else [16, 2, 16])
        (controller,) = session.hierarchy._controllers.values()
        costs = controller.costs
        assert min(costs.middle.ms(1), costs.verify.ms(1), costs.draft) > 0
        if slow:  # the next book: nothing is timed again, and what was learned is where it begins
            session.hierarchy.reset()
            assert answer(session).text == plain
            (again,) = session.hierarchy._controllers.values()
            assert again is not controller
            assert again.statistics is controller.statistics
            session.hierarchy.reset()
            session.hierarchy._machine, session.hierarchy._costs = MACHINE, None  # what is known of this machine
            assert answer(session).text == plain
            assert passes == []
            derived = levels.derived(1000, 1.0, MACHINE, session.target, session.hierarchy.retrieval, drafter)
            assert derived.middle.ms(1) < derived.verify.ms(1) == 1.0
            session.hierarchy._costs = session.hierarchy._machine = None
        context.tokens.extend([1] * 900)
        drafter.begin(context.tokens)
        costs = replace(costs, verify=replace(costs.verify, slope=0.1))  # which a busy machine may have hidden
        assert levels.draft_start_ms(context, costs, drafter) > 0
    session.close()


@pytest.mark.parametrize(
    ("dtype", "multiplies", "share"), [("bfloat16", True, 0.5), ("bfloat16", False, 1.0), ("float32", True, 1.0)]
)
def test_a_second_token_is_assumed_to_cost_half_a_row_where_pairs_are_multiplied(
    tiny: Callable[..., str], monkeypatch: pytest.MonkeyPatch, dtype: str, multiplies: bool, share: float
) -> None:
    target = loading.load(tiny("llama"), window=256, device=CPU, dtype=dtype)
    monkeypatch.setattr(levels, "multiplies_pairs", lambda: multiplies)
    row, plain_ms = MACHINE.row_ms(1000), 1000.0
    costs = levels.derived(1000, plain_ms, MACHINE, target, cast("Any", SimpleNamespace(held=64)), None)
    for cost, one in ((costs.verify, plain_ms), (costs.middle, costs.middle.ms(1))):
        assert cost.ms(2) - one == pytest.approx(share * row)
        assert cost.ms(3) - cost.ms(2) == pytest.approx(row)


@pytest.mark.parametrize(
    ("blocks", "multiplies", "share"), [(True, False, 0.45), (True, True, 0.27), (False, False, 0.27)]
)
def test_a_row_is_assumed_to_cost_more_where_4_bits_are_multiplied_without_pairs(
    tiny: Callable[..., str], monkeypatch: pytest.MonkeyPatch, blocks: bool, multiplies: bool, share: float
) -> None:
    target = loading.load(tiny("llama"), window=256, device=CPU, dtype="bfloat16")
    monkeypatch.setattr(levels, "multiplies_pairs", lambda: multiplies)
    monkeypatch.setitem(target.__dict__, "keeps_blocks", blocks)
    costs = levels.derived(1000, 100.0, None, target, cast("Any", SimpleNamespace(held=64)), None)
    assert costs.verify.ms(3) - costs.verify.ms(2) == pytest.approx(100 * share)


def test_mean_keys_of_tokens_that_are_about_to_be_replaced_are_forgotten(
    tiny: Callable[..., str], book: Document
) -> None:
    session = load(tiny("llama", spread=0.1), None)
    read(session, book)
    retrieval = session.hierarchy.retrieval
    session.full.crop(2 * retrieval.chunk_size)
    assert {one.count for one in retrieval._index} == {2}
    session.close()


def test_a_seed_repeats_a_text_whatever_the_clock_and_earlier_answers_say(
    tiny: Callable[..., str], book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fixed lengths were its way to be repeated: eight passes before every verification, whatever came of them."""
    monkeypatch.setattr(levels, "_COSTS_ITS_BYTES", 0)
    monkeypatch.setattr(levels, "STARTED_AT_ONCE", 0.0)
    session = load(tiny("llama", spread=0.1), tiny("llama", seed=1, layers=1, width=32))
    read(session, book)
    chosen: list[SpeculationPolicy] = []
    policy = Hierarchy._policy
    monkeypatch.setattr(Hierarchy, "_policy", lambda *given: chosen.append(policy(*given)) or chosen[-1])
    first = answer(session, temperature=0.9, seed=5)
    answer(session, temperature=0.9)
    assert len(list(session.work_ahead())) > 4, "the draft model reads the chat before the next question comes"
    assert len(list(session.work_ahead())) <= 2, "and only once"
    clock = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: 7.0 * clock())
    again = answer(session, temperature=0.9, seed=5)
    assert again.token_ids == first.token_ids
    assert again.figures.rounds == first.figures.rounds
    assert [type(one) for one in chosen] == [Unclocked, Controller, Unclocked]
    assert again.figures.rounds > 0.6 * len(again.token_ids), "a draft that knows nothing is left alone"
    monkeypatch.setattr(session.target, "device", torch.device("cuda"))
    on_gpu = session.hierarchy.seeded_policy(cast("Context", None))
    assert isinstance(on_gpu, FixedLengths), "a bus or launches may decide there"
