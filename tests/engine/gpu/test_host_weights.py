"""Weights that wait in host memory beside a simulated card: pinned, and under way while the layer before computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from engine.decode.rounds import full_pass
from engine.kv.full import FullCache
from engine.model import loading
from engine.model.host_weights import HostWeights
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
        HostWeights(dict(enumerate(layers)), GPU)
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
            assert gpu.clock - began < 1.25 * moved
        assert all(layer.weight.device.type == "cpu" for layer in layers)


def test_one_layer_comes_once() -> None:
    layer = blocks()[0]
    with simulated_cuda("lazy") as gpu, torch.no_grad():
        HostWeights({3: layer}, GPU)
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
