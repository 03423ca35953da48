"""What the planner sees of simulated cards: what is free, who takes which layers, what a pass costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils._pytree import tree_leaves

from engine.config import EngineConfig
from engine.decode.acceptance import NO_EXPERTS
from engine.decode.rounds import full_pass
from engine.devices import free_memory
from engine.document import Document
from engine.errors import OptionError
from engine.kv.full import FullCache
from engine.kv.offload import Placement, Tier
from engine.model import loading
from engine.model.architectures import experts_of, parameters_of_block
from engine.model.kernels import cuda
from engine.model.kv_shape import KvShape, Split
from engine.plan import planner, probe
from engine.plan.cost_model import CostModel, LayerCost
from engine.plan.memory_budget import (
    MEMORY_SHARE,
    RESERVE,
    BookFit,
    DeviceRoom,
    KvSize,
    LayerBytes,
    Share,
    beside,
    interleaved,
    layer_bytes,
    share_layers,
    usable,
)
from engine.plan.planner import Layout, Resources
from engine.plan.round_model import HostWeights
from engine.session import Session
from tests.engine.gpu import simulated_cuda as simulated_cuda_module
from tests.engine.gpu.simulated_cuda import Gpu, simulated_cuda

GB = 10**9
CARDS = [torch.device("cuda", card) for card in range(2)]
CONFIG = EngineConfig(model="m")
# Llama-3.1-8B in bfloat16 at 128K.
LAYER = LayerBytes(weights=436_000_000, other_caches=76_000_000, kv=537_000_000, buffer=537_000_000)
REST = 4_600_000_000  # embedding, head, and a draft of 1B


def test_pools_of_recorded_passes_are_not_free() -> None:
    with simulated_cuda("eager", limit=100_000):
        x = torch.ones(1000, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = (x * 2) * 3  # the product in between is the pool's for good
        torch.ones(500, device="cuda")  # given back at once, and for everybody
        assert y.shape == x.shape
        assert free_memory(torch.device("cuda")) == 100_000 - 3 * 4000


@pytest.mark.parametrize("split", [None, Split(tuple(CARDS), (0, 1, 0, 1))])
def test_a_second_book_is_planned_with_what_the_first_gives_back(split: Split | None) -> None:
    """Its reserve and the buffers that its spilled layers pass through, too."""
    with simulated_cuda("eager", limit=10_000_000, cards=2), torch.no_grad():
        shape = replace(KvShape(4, 2, 16, torch.float32, CARDS[0]), split=split)
        others = CARDS[1:] if split else []
        before = planner.free_resources(CARDS[0], CONFIG, None, others)
        cache = FullCache(shape, 4096, Placement((Tier.DEVICE, Tier.HOST, Tier.HOST, Tier.HOST)))
        cache.reserve(1000)
        for layer in range(4):
            cache.bring(layer, 0)
        again = planner.free_resources(CARDS[0], CONFIG, cache.allocated(), others)
        assert (again.device, again.others) == (before.device, before.others)
        cache.clear()


def test_the_card_with_most_room_comes_first() -> None:
    with simulated_cuda("eager", limit=10_000, cards=2):
        held = torch.empty(1000, dtype=torch.uint8, device=CARDS[0])
        assert planner.pick_devices("auto") == (CARDS[1], CARDS[0])
        assert planner.pick_devices("cuda:0, cuda:1") == (CARDS[1], CARDS[0])
        assert planner.pick_devices("cuda:0") == (CARDS[0],)
        assert held.device == CARDS[0]
        for wrong in ("cuda:0,cuda:0", "cuda:0,cpu", "cuda:2", "cuda:0,cuda:2", "mps", "xpu"):
            with pytest.raises(OptionError):
                planner.pick_devices(wrong)
    with simulated_cuda("eager"):
        assert planner.pick_devices("auto") == (torch.device("cuda"),)


def test_of_two_generations_the_card_with_most_room_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was found, and then ``cuda`` without a number was returned, which is the other one."""
    with simulated_cuda("eager", limit=10_000, cards=2):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda card: (8 + card.index, 0))
        held = torch.empty(1000, dtype=torch.uint8, device=CARDS[0])
        assert planner.pick_devices("auto") == (CARDS[1],)
        assert held.device == CARDS[0]


def test_one_card_is_filled_before_the_next_gets_any() -> None:
    """A model that fits with its window stays on one card; what does not is shared so that both buses have as much."""
    alone = share_layers(32, LAYER, [DeviceRoom(80 * GB, REST), DeviceRoom(80 * GB)])
    assert alone == [Share(32), Share()]
    assert planner.layout_of(alone, CARDS) == Layout(CARDS[0])
    fits = share_layers(32, LAYER, [DeviceRoom(24 * GB, REST), DeviceRoom(24 * GB)])
    assert fits[0].layers < 20
    assert sum(share.layers for share in fits) == 32
    spilled = share_layers(32, LAYER, [DeviceRoom(16 * GB, REST), DeviceRoom(16 * GB)])
    assert sum(share.layers for share in spilled) == 32
    assert abs(spilled[0].spilled - spilled[1].spilled) <= 2
    assert not any(share.in_host for share in spilled)


def test_layers_are_divided_beside_the_retrieval_cache() -> None:
    """A larger budget leaves less KV on the card, by as many bytes."""
    kv, budgets = KvSize(32, stored=131_072, computed=131_072, staged=131_072), (1024, 65_536)
    few, many = (layer_bytes(32, LAYER.weights, kv, 131_072, budget) for budget in budgets)
    room = DeviceRoom(35 * GB, REST)
    (with_few,), (with_many,) = (share_layers(32, size, [room]) for size in (few, many))
    taken = (budgets[1] - budgets[0]) * kv.computed
    assert with_many.spilled - with_few.spilled == pytest.approx(taken / few.kv, abs=1)


def test_weights_that_fit_no_card_wait_in_host_memory() -> None:
    (alone,) = share_layers(32, LAYER, [DeviceRoom(12 * GB, REST)])
    assert alone.layers == alone.spilled == 32
    assert 0 < alone.in_host < 32
    layout = planner.layout_of([alone], CARDS[:1])
    assert layout.split is None
    assert len(layout.in_host) == alone.in_host


def test_only_the_chosen_experts_of_waiting_layers_are_counted_as_moved(tiny: Callable[..., str]) -> None:
    """All of them were: layers with waiting weights then looked dearer than spilled KV."""
    mixture, dense = (loading.settings_of(tiny(kind), None) for kind in ("qwen3_moe", "llama"))
    found = experts_of(mixture)
    assert found is not None
    weights = parameters_of_block(mixture) * 4
    waiting = planner.host_weights(mixture, 10 * weights)
    experts = parameters_of_block(mixture) - parameters_of_block(mixture, 0)
    assert waiting.dense + waiting.experts * found.count / found.chosen == pytest.approx(10 * weights)
    assert waiting.experts * found.count / found.chosen == pytest.approx(10 * 4 * experts)
    assert waiting.reads(waiting.step).growth(1000) * waiting.step == pytest.approx(10 * weights, rel=1e-3)
    assert planner.host_weights(dense, 77).step == 77
    assert planner.host_weights(dense, 77).reads(77) == NO_EXPERTS
    with simulated_cuda("eager"):
        (sparse, _), (whole, _) = (planner.model_bytes(CONFIG, each, None, CARDS[0]) for each in (mixture, dense))
    assert whole.copied_share == 1.0
    assert waiting.step / (10 * weights) < sparse.copied_share < 1.0
    share = Share(4, 0, 4)
    assert share.moved(sparse) == int(4 * 4 * sparse.weights * sparse.copied_share)


@pytest.mark.parametrize("bits", [0, 4])
def test_a_books_forecast_knows_what_waits(
    bits: int, tiny: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Middle passes by a copy bring nothing."""
    given: list[HostWeights] = []
    monkeypatch.setattr(planner, "fit_book", lambda *all_: given.append(all_[-1]) or BookFit(1, 1, True, 1, 0, ""))
    session: Any = mock.MagicMock()
    session.target.config, session.target.bytes_in_host = loading.settings_of(tiny("qwen3_moe"), None), 12_345
    session.hierarchy.middle.bits = bits
    Session.measure(session, Document.from_text("Book", "text"))
    assert given == [replace(planner.host_weights(session.target.config, 12_345), for_middle=not bits)]


def test_a_fixed_reserve_is_left_and_no_share_of_a_large_card() -> None:
    """15 % of 16 GB beside a rounded 8B were 2.4 GB, or two layers of a book's KV more than anything needs."""
    assert usable(5 * GB) == int(5 * GB * MEMORY_SHARE)
    assert usable(16 * GB) == 16 * GB - RESERVE
    for free in (GB, 9 * GB, 12 * GB, 100 * GB):
        assert beside(usable(free), GB // 2) == pytest.approx(usable(free - GB // 2), abs=2)
    shape, tokens = KvShape(32, 8, 128, torch.bfloat16, CARDS[0]), 122_880
    with simulated_cuda("eager", limit=16 * GB):
        found = planner.plan(shape, tokens, planner.free_resources(CARDS[0], CONFIG))
        assert found is not None
        assert found.placement.count(Tier.DEVICE) == (16 * GB - RESERVE - found.staging) // (tokens * 4096)


def test_the_papers_model_and_book_fit_one_card_of_24_gb() -> None:
    """Llama-2-7B at 120K with its KV in memory: the retrieval budget that probes choose is cut to what there is, and
    the mean keys have 8 bits."""
    shape, window = KvShape(32, 32, 128, torch.bfloat16, CARDS[0]).indexed(8), 131_072
    left = 24 * 2**30 - 2**29 - 13_700_000_000  # behind CUDA's own, the weights and a small draft
    free = Resources(int(left * MEMORY_SHARE), host=10**11)
    fast = LayerCost(1e-3, 1e-9)
    costs = CostModel(1e12, 3e10, 0, 32, 1.0, fast, fast, 8, ((512, 0.1),), 1e-9)
    assert costs.retrieval_budget(window) == 8192
    chosen = planner.complete_config(CONFIG, costs, window, shape, free)
    assert chosen.retrieval_budget == 4096
    found = planner.plan(shape, window, planner.beside_retrieval(shape, free, 4096))
    assert found is not None
    assert found.placement.count(Tier.HOST) == 32
    assert planner.plan(shape, window, planner.beside_retrieval(shape, free, 8192)) is None
    with_more = planner.complete_config(CONFIG, costs, window, shape, replace(free, device=free.device + 2**32))
    assert with_more.retrieval_budget == 8192
    asked = planner.complete_config(replace(CONFIG, retrieval_budget=8192), costs, window, shape, free)
    assert asked.retrieval_budget == 8192


def test_layers_take_turns_where_both_cards_have_spilled_ones() -> None:
    assert interleaved([Share(3, 3), Share(3, 3)]) == (0, 1, 0, 1, 0, 1)
    assert interleaved([Share(4), Share(2)]) == (0, 0, 0, 0, 1, 1)
    assert interleaved([Share(4, 2), Share(4, 2)]) == (0, 0, 1, 1, 0, 0, 1, 1)
    assert interleaved([Share(5), Share()]) == (0,) * 5


def test_each_card_keeps_what_it_has_room_for() -> None:
    shape = KvShape(4, 1, 8, torch.float32, CARDS[0], split=Split(tuple(CARDS), (0, 1, 1, 0)))
    layer = 100 * shape.bytes_per_token // 4
    found = planner.plan(shape, 100, Resources(2 * layer, host=4 * layer, others=(3 * layer,)))
    assert found is not None
    assert found.placement.tiers == (Tier.DEVICE,) * 4
    less = planner.plan(shape, 100, Resources(2 * layer, host=4 * layer, others=(layer + 3 * layer // 2,)))
    assert less is not None
    assert [less.placement.tiers[place] for place in (0, 3)] == [Tier.DEVICE] * 2
    assert [less.placement.tiers[place] for place in (1, 2)] == [Tier.DEVICE] * 2 or less.kv.cards[1] < 2 * layer
    assert planner.plan(shape, 100, Resources(layer, host=4 * layer, others=(2 * layer,))) is None
    assert planner.longest_context(shape, 1000, Resources(2 * layer, others=(2 * layer,))) == 100


def test_what_is_slow_once_is_in_no_figure(tiny: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call of an operation takes a second here, as loading and choosing kernels can on a card; the figures
    are kept for a week."""
    config = loading.settings_of(tiny(), None)
    seen: set[object] = set()
    seconds, real = 0.0, simulated_cuda_module.dispatch_here

    def slow_once(gpu: Gpu, func: Any, args: Any, *rest: Any) -> Any:
        nonlocal seconds
        shapes = str([tuple(x.shape) for x in tree_leaves(args) if isinstance(x, torch.Tensor)])
        seconds += 1e-5 if (func, shapes) in seen else 1.0
        seen.add((func, shapes))
        return real(gpu, func, args, *rest)

    monkeypatch.setattr(probe, "_CUDA_BLOCK", 256)
    monkeypatch.setattr(probe, "_CONTEXT", 256)
    monkeypatch.setattr(probe, "_PROBE_BYTES", 1 << 20)
    with simulated_cuda("eager"):
        monkeypatch.setattr(simulated_cuda_module, "dispatch_here", slow_once)
        found = probe.measure(config, torch.float32, torch.device("cuda"), clock=lambda: seconds)
    assert found.step.base < 0.01
    assert found.middle.base < 0.01
    assert max(taken for _, taken in found.blocks) < 0.01
    assert found.prefill_block == 256


@pytest.mark.parametrize(("tier", "most"), [(Tier.DEVICE, 32), (Tier.HOST, 46)])
def test_a_plain_step_launches_no_more_than_it_does(
    tiny: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tier: Tier, most: int
) -> None:
    """By layer, in bfloat16 with the flash kernel: each launch takes the host some microseconds.

    The kernel is named, since which of them is the fastest in a simulation is chance.
    """
    monkeypatch.setattr(cuda, "measure", lambda name, *_: float(name != "split_flash"))
    with simulated_cuda("eager") as gpu, torch.no_grad():
        model = loading.load(tiny(), window=512, device=torch.device("cuda"), dtype="bfloat16")
        cache = FullCache(model.kv_shape, 512, Placement((tier,) * model.num_layers))
        full_pass(model, cache, 0, list(range(10, 110)))
        cache.advance(100)
        counted = []
        for _ in range(4):  # what an earlier test has left may be given back, with launches, in any of them
            before = gpu.launches
            full_pass(model, cache, 100, [7])
            cache.crop(100)
            counted.append(gpu.launches - before)
        assert min(counted) / model.num_layers <= most
        cache.clear()
