"""Weights that wait in host memory beside a simulated card: pinned, and under way while the layer before computes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from engine.decode.rounds import full_pass
from engine.devices import multiplies_groups
from engine.kv.full import FullCache
from engine.model import decoder, experts, loading
from engine.model.experts import Experts
from engine.model.host_weights import wait_in_host
from tests.engine.gpu.simulated_cuda import simulated_cuda

GPU = torch.device("cuda", 0)
IDS = list(range(20, 60))
WIDTH, LAYERS = 64, 5


def blocks() -> list[nn.Linear]:
    return [nn.Linear(WIDTH, WIDTH).requires_grad_(False) for _ in range(LAYERS)]


@pytest.mark.parametrize("pinned", [None, 0])
def test_a_layer_comes_while_the_one_before_it_computes(pinned: int | None) -> None:
    """By the clock of the streams: a pass takes what the bus takes, not what bus and computing take one after the
    other. Where nothing can be pinned the host waits, and the numbers are the same."""
    layers, x = blocks(), torch.randn(4, WIDTH)
    expected = x
    for layer in layers:
        expected = layer(expected)
    with simulated_cuda("random", 2, pin_limit=pinned) as gpu, torch.no_grad():
        wait_in_host(dict(enumerate(layers)), GPU)
        each = layers[0].weight.nbytes + layers[0].bias.nbytes
        assert gpu.allocated[0] < 2.1 * each

        def run() -> torch.Tensor:
            there = x.to(GPU)
            for layer in layers:
                there = layer(there)
            return there.cpu()

        assert torch.allclose(run(), expected, atol=1e-5)
        waits = gpu.waits["to the device"]
        began, sent, gpu.pace = gpu.clock, gpu.sent[0], 0.8
        assert torch.allclose(run(), expected, atol=1e-5)
        moved = gpu.sent[0] - sent - x.nbytes
        assert moved == LAYERS * each
        if pinned is None:
            assert gpu.waits["to the device"] == waits + 1, "for x"
            assert not gpu.waits["from memory that is not pinned"]
            assert gpu.clock - began < 1.25 * moved
        assert all(layer.weight.device.type == "cpu" for layer in layers)


def test_one_layer_comes_once() -> None:
    layer = blocks()[0]
    with simulated_cuda("lazy") as gpu, torch.no_grad():
        wait_in_host({3: layer}, GPU)
        there = torch.ones(1, WIDTH).to(GPU)
        for _ in range(3):
            there = layer(there)
        assert gpu.sent[0] == there.nbytes + 256 * -(-layer.weight.nbytes // 256) + layer.bias.nbytes


@pytest.mark.parametrize("weights", ["stored", "4bit"])
def test_a_model_says_the_same_wherever_its_weights_wait(weights: str, tiny: Callable[..., str]) -> None:
    """Quantized ones wait as the card's product reads them."""
    said = []
    for in_host in ((), (0, 2)):
        with simulated_cuda("delayed", 2) as gpu, torch.no_grad():
            name = tiny("qwen2", spread=0.1)
            model = loading.load(name, window=64, device=GPU, dtype="bfloat16", weights=weights, in_host=in_host)
            cache = FullCache(model.kv_shape, 64)
            first = full_pass(model, cache, 0, IDS)
            cache.advance(len(IDS))
            said.append(torch.cat([first, full_pass(model, cache, len(IDS), [7, 8])]).cpu())
            assert model.layers_in_host == len(in_host)
            waits = [name for name, held in model.named_weights() if held.device.type == "cpu"]
            assert {name.split(".")[2] for name in waits} == set(map(str, in_host))
            assert gpu.waits["to the device"] < 20
            cache.clear()
    assert torch.equal(*said)


COUNT, EXPERT = 8, 3 * WIDTH * WIDTH * 4
"""Experts of a layer, and bytes of one: gate, what it gates, and down."""


def mixture() -> Experts:
    gates, down = torch.randn(COUNT, 2 * WIDTH, WIDTH) / 8, torch.randn(COUNT, WIDTH, WIDTH) / 8
    return Experts(
        SimpleNamespace(
            act_fn=functional.silu, is_concatenated=True, is_transposed=False, gate_up_proj=gates, down_proj=down
        )
    ).requires_grad_(False)


def asking(*numbers: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A token, the experts that it asks, and their shares."""
    return torch.randn(1, WIDTH), torch.tensor([numbers]), torch.full((1, len(numbers)), 0.5)


@pytest.mark.parametrize("pinned", [None, 0])
def test_only_the_experts_that_are_asked_come_and_stay_for_the_next_token(pinned: int | None) -> None:
    layers = [mixture() for _ in range(3)]
    rounds = [[asking(1, 5), asking(0, 5), asking(6, 7)], [asking(5, 2), asking(0, 5), asking(7, 6)]]
    rounds += [[asking(*range(COUNT)) for _ in layers]] * 2
    expected = [[layer(*token) for layer, token in zip(layers, tokens, strict=True)] for tokens in rounds]
    with simulated_cuda("random", 3, pin_limit=pinned) as gpu, torch.no_grad():
        wait_in_host(dict(enumerate(layers)), GPU)
        assert gpu.allocated[0] < 2.1 * COUNT * EXPERT, "the experts of two layers"
        came = []
        for tokens, outputs in zip(rounds, expected, strict=True):
            there = [tuple(each.to(GPU) for each in token) for token in tokens]
            before, waits = gpu.sent[0], gpu.waits["to the device"]
            for layer, token, right in zip(layers, there, outputs, strict=True):
                assert torch.allclose(layer(*token).cpu(), right, atol=1e-4)
            came.append((gpu.sent[0] - before) // EXPERT)
            assert gpu.waits["to the device"] == waits
        assert came[:2] == [6, 1], "of the second token one is new"
        assert came[2] <= came[3] == 3 * COUNT, "these have no room together"
        assert all(weights.device.type == "cpu" for layer in layers for weights in layer.parameters())


def test_an_expert_comes_while_the_one_before_it_computes() -> None:
    """By the clock of the streams; which come is known as soon as the router has said so."""
    layer = mixture()
    every = torch.arange(COUNT)[None]
    with simulated_cuda("eager") as gpu, torch.no_grad():
        wait_in_host({0: layer}, GPU)
        x, ids, shares = torch.randn(1, WIDTH).to(GPU), every.to(GPU), torch.ones(1, COUNT).to(GPU)
        began, gpu.pace = gpu.clock, 0.6
        layer(x, ids, shares).cpu()
        assert gpu.clock - began < 1.25 * COUNT * EXPERT
        gpu.pace = 0.0


def test_a_mixture_says_the_same_wherever_its_experts_wait(
    tiny: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass brings what it asks and no more: a router of eight chooses three of them for each token."""
    chosen: list[int] = []
    asked = experts._asked

    def watched(ids: torch.Tensor) -> object:
        for expert, places in asked(ids):
            chosen.append(expert)
            yield expert, places

    monkeypatch.setattr(experts, "_asked", watched)

    def passes(device: torch.device, **options: tuple[int, ...]) -> tuple[torch.Tensor, decoder.Decoder, FullCache]:
        model = loading.load(tiny("qwen3_moe"), window=64, device=device, dtype="float32", **options)  # type: ignore[arg-type]
        cache = FullCache(model.kv_shape, 64)
        first = full_pass(model, cache, 0, IDS)
        cache.advance(len(IDS))
        return torch.cat([first, full_pass(model, cache, len(IDS), [7])]).cpu(), model, cache

    with torch.no_grad():
        expected, *_ = passes(torch.device("cpu"))
    with simulated_cuda("eager") as gpu, torch.no_grad():  # as a card that has no kernel for many experts
        said, model, cache = passes(GPU)
        assert torch.allclose(said, expected, atol=1e-4)
        assert model.waits_for_experts
        asked_layers, waits = len(model.blocks) - 1, gpu.waits.total()
        full_pass(model, cache, len(IDS), [7])
        assert gpu.waits.total() - waits == asked_layers, "for the numbers of the experts, once a layer"
        cache.clear()
    with simulated_cuda("delayed", 2) as gpu, torch.no_grad():
        said, model, cache = passes(GPU, in_host=(0, 2))
        assert torch.allclose(said, expected, atol=1e-4)
        chosen.clear()
        before = gpu.sent[0]
        full_pass(model, cache, len(IDS), [7])
        assert len(chosen) == 3 * 2
        assert gpu.sent[0] - before < 2048, "nothing but the token: the experts are those of before"
        waiting = [name.split(".")[2] for name, held in model.named_weights() if held.device.type == "cpu"]
        assert set(waiting) == {"0", "2"}
        assert model.layers_in_host == 2
        assert model.bytes_in_host == sum(held.nbytes for _, held in model.named_weights() if held.device.type == "cpu")
        cache.clear()


@pytest.mark.parametrize(
    ("capability", "dtype", "grouped"),
    [
        ((9, 0), torch.bfloat16, True),
        ((9, 0), torch.float16, False),
        ((8, 0), torch.bfloat16, False),
        ((8, 9), torch.bfloat16, False),
        ((12, 0), torch.bfloat16, False),
    ],
)
def test_a_card_chooses_experts_where_torch_has_a_kernel_for_them(
    capability: tuple[int, int], dtype: torch.dtype, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere torch waits for their numbers, and launches a product for each of 128, asked or not."""
    with simulated_cuda() as gpu:
        gpu.capability = capability
        assert multiplies_groups(GPU, dtype) is grouped
        monkeypatch.setattr("sys.platform", "win32")
        assert not multiplies_groups(GPU, dtype)
