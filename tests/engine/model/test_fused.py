"""A layer in two calls says what transformers says of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from engine.kv.full import FullCache
from engine.model import decoder
from engine.model.kernels import cpu
from engine.model.layers import fuse

CPU = torch.device("cpu")
FAMILIES = ["llama", "llama-mha", "llama-yarn", "mistral", "qwen2", "qwen3", "phi3"]


def refused(model: Any) -> bool:
    return fuse(model, torch.float32) is None


@pytest.mark.parametrize("weights", ["stored", "4bit"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_are_those_of_transformers(tiny: Callable[..., str], family: str, weights: str) -> None:
    if cpu.native() is None:
        pytest.skip("no kernels of our own on this processor")
    model = decoder.load(tiny(family), window=None, device=CPU, weights=weights)
    ids = torch.randint(10, 300, (50,), generator=torch.Generator().manual_seed(1))

    def logits() -> torch.Tensor:
        cache = FullCache(model.kv_shape, model.window)
        cache.reserve(50)
        outs = []
        for start, stop in ((0, 30), (30, 50)):
            with torch.inference_mode():
                rope = model.rope(model.span(start, stop - start))
                outs.append(model.forward(ids[start:stop], rope, cache.extend(start)))
            cache.advance(stop - start)
        return torch.cat(outs)

    assert model._fused is not None
    found = logits()
    model._fused = None
    expected = logits()
    assert torch.allclose(found, expected, atol=2e-5 * float(expected.abs().max()))
    assert not torch.equal(found, expected)  # these were two ways


def test_numbers_in_half_precision_are_nearer_to_the_truth(tiny: Callable[..., str]) -> None:
    """Since they are rounded where they leave a layer, and not at every step within."""
    if cpu.native() is None:
        pytest.skip("no kernels of our own on this processor")
    name, ids = tiny("qwen3"), torch.arange(20, 60)

    def logits(dtype: str, is_fused: bool) -> torch.Tensor:
        model = decoder.load(name, window=None, device=CPU, dtype=dtype)
        if not is_fused:
            model._fused = None
        cache = FullCache(model.kv_shape, model.window)
        cache.reserve(40)
        with torch.inference_mode():
            return model.forward(ids, model.rope(model.span(0, 40)), cache.extend(0))

    truth = logits("float32", is_fused=False)
    errors = [(logits("bfloat16", is_fused) - truth).abs().mean() for is_fused in (True, False)]
    assert errors[0] < errors[1]


def test_a_layer_with_a_part_that_is_not_known_goes_through_transformers(tiny: Callable[..., str]) -> None:
    model = decoder.load(tiny("llama"), window=None, device=CPU).model
    assert not refused(model)
    model.model.layers[1].mlp_norm = nn.LayerNorm(64)
    assert refused(model)
    del model.model.layers[1].mlp_norm
    model.config.hidden_act = "gelu"
    assert refused(model)


def test_a_model_that_is_not_packed_goes_through_transformers(tiny: Callable[..., str]) -> None:
    assert decoder.load(tiny("llama"), window=None, device=CPU, packed=False)._fused is None
