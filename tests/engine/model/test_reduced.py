"""Linear layers of a GGUF file in fewer bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.model.kernels.formats import FORMATS
from engine.model.products.blocks import BlockLinear, Stored
from engine.model.products.quantized import Linear4, Linear8
from engine.model.products.reduced import reduced
from engine.quantization import FITTED, fitted_format
from tests.engine.model.test_gguf import random_blocks

OUTPUTS, INPUTS = 24, 512
MOST = {"Q4_0": 0.004, "Q4_1": 0.004, "Q4_K": 0.005, "Q2_K": 0.15, "Q3_K": 0.15}
"""Relative error, by format; of all others 2 %. A scale alone is rounded by up to 0.2 %, 0.17 % with the weight."""


def layer_of(name: str, *, ordered: bool = False, bias: torch.Tensor | None = None) -> BlockLinear:
    kind = next(number for number, form in FORMATS.items() if form.name == name)
    random = np.random.default_rng(1)
    data = torch.from_numpy(random_blocks(random, OUTPUTS, INPUTS, kind))
    order = random.permutation(OUTPUTS) if ordered else None
    return BlockLinear(Stored(data, kind, INPUTS, order), bias, torch.bfloat16)


def error(made: Linear4 | Linear8, layer: BlockLinear) -> float:
    exact = layer.values()
    return float((made.unpacked().float() - exact).norm() / exact.norm())


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("name", [form.name for form in FORMATS.values() if not form.has_exponent])
def test_each_format_is_rounded_as_little_as_is_said(name: str, ordered: bool) -> None:
    layer = layer_of(name, ordered=ordered, bias=torch.randn(OUTPUTS))
    made = reduced(layer, FITTED)
    assert isinstance(made, Linear4 if fitted_format(layer.parts[0].kind) == "4bit" else Linear8)
    assert error(made, layer) < MOST.get(name, 0.03)
    assert made.bias is not None
    assert made.bias.dtype is torch.bfloat16


def test_quants_of_a_file_are_taken_over_unchanged() -> None:
    """What was rounded once is not rounded to other quants, which would cost several times as much."""
    layer = layer_of("Q4_K")
    again = Linear4(reduced(layer, "stored"))  # type: ignore[arg-type]
    for weights in (FITTED, "4bit"):
        made = reduced(layer, weights)
        assert isinstance(made, Linear4)
        assert 4 * error(made, layer) < error(again, layer)


def test_a_large_weight_coarsens_only_the_group_that_it_is_in() -> None:
    """With one scale for each output, weights of Q6_K in a real file were off by up to 3.2 %; so by 1.1 % at most."""
    layer = layer_of("Q6_K")
    factors = layer.parts[0].data[:, 208:210].numpy().view(np.float16)  # of each row's first block
    factors *= 16
    by_row, by_group = (error(reduced(layer, weights), layer) for weights in ("8bit", FITTED))  # type: ignore[arg-type]
    assert by_group < 0.8 * by_row
    second = reduced(layer, FITTED).unpacked()[:, 256:].float()  # type: ignore[operator]
    exact = layer.values()[:, 256:]
    assert (second - exact).norm() < 0.01 * exact.norm()


def test_a_joined_layer_takes_the_bits_of_its_widest_part() -> None:
    small, wide = layer_of("Q4_K"), layer_of("Q6_K")
    assert isinstance(reduced(BlockLinear([*small.parts, *wide.parts], None, torch.bfloat16), FITTED), Linear8)
    both = reduced(BlockLinear([*small.parts, *small.parts], None, torch.bfloat16), FITTED)
    assert isinstance(both, Linear4)
    assert torch.equal(both.unpacked()[:OUTPUTS], both.unpacked()[OUTPUTS:])


def test_tensors_without_blocks_are_not_rounded() -> None:
    data = torch.randn(OUTPUTS, INPUTS).half()
    layer = BlockLinear(Stored(data.view(torch.uint8), 1, INPUTS), None, torch.bfloat16)
    assert torch.equal(reduced(layer, FITTED).weight, data.bfloat16())
    assert isinstance(reduced(layer, "4bit"), Linear4)
