"""Products on a GPU with the weights of a GGUF file: the kernels' own source, run on the processor, against the values
that the package gguf reads from the same blocks."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.model.kernels import block_products, kept
from engine.model.kernels.block_products import CARD_FORMATS, STEP, TILE, columns_of
from engine.model.kernels.formats import FORMATS
from engine.model.products import card_blocks
from engine.model.products.blocks import BlockEmbedding, BlockLinear, Stored
from engine.model.products.card_blocks import CardLinear, CardWeights, planes_of
from tests.engine.gpu.simulated_kernels import WHY_NOT, SimulatedKernels
from tests.engine.model.test_gguf import random_blocks

CPU = torch.device("cpu")
NAMES = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0", "MXFP4")
OUTPUTS = 40
needs_compiler = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def kind_of(name: str) -> int:
    return next(number for number, form in FORMATS.items() if form.name == name)


def stored(name: str, outputs: int = OUTPUTS, inputs: int = 512, seed: int = 1) -> Stored:
    kind = kind_of(name)
    data = random_blocks(np.random.default_rng(seed), outputs, inputs, kind)
    if FORMATS[kind].has_exponent:
        data.reshape(outputs, -1, FORMATS[kind].bytes)[:, :, 0] %= 40
        data.reshape(outputs, -1, FORMATS[kind].bytes)[:, :, 0] += 100
    return Stored(torch.from_numpy(data), kind, inputs)


@pytest.fixture
def on_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_blocks, "kernels_of", lambda _, kind: SimulatedKernels(kind))


def width_of(name: str) -> int:
    """Inputs of a matrix: half a step more than whole steps where the format's blocks are so small."""
    return 512 if FORMATS[kind_of(name)].values == 256 else 544


@needs_compiler
@pytest.mark.usefixtures("on_processor")
@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_of_the_file_bit_for_bit(name: str) -> None:
    given = stored(name, inputs=width_of(name))
    values, weights = given.values(), CardWeights.of(given, CPU)
    out = torch.full((OUTPUTS, given.inputs), math.nan)
    weights.expand(out)
    assert torch.equal(out, values)
    ids = torch.tensor([39, 0, 8, 17])
    assert torch.equal(weights.rows(ids, torch.float32), values[ids])
    assert torch.equal(weights.rows(ids, torch.bfloat16), values[ids].bfloat16())
    # With one input that is not zero, a product is a column of weights.
    inputs = torch.tensor([0, 3, 130, given.inputs - 1])
    x = torch.zeros(4, given.inputs, dtype=torch.bfloat16)
    x[torch.arange(4), inputs] = 1.0
    made = torch.full((4, OUTPUTS), math.nan)
    weights.product(x, made)
    assert torch.equal(made, values.t()[inputs])


@needs_compiler
@pytest.mark.usefixtures("on_processor")
@pytest.mark.parametrize("name", NAMES)
def test_products_are_exact_but_for_the_order_of_sums(name: str) -> None:
    given = stored(name, inputs=width_of(name))
    values, weights = given.values(), CardWeights.of(given, CPU)
    x = torch.randn(20, given.inputs, generator=torch.Generator().manual_seed(0)).bfloat16()
    made = torch.full((20, OUTPUTS), math.nan)
    weights.product(x, made)
    exact = x.double() @ values.double().t()
    assert (made - exact).abs().max() < 2e-6 * (x.double().abs() @ values.double().abs().t()).max()
    for rows in (1, 9):
        few = torch.full((rows, OUTPUTS), math.nan)
        weights.product(x[:rows], few)
        assert torch.equal(few, made[:rows]), "a row has the same bits whatever the other rows are"


@needs_compiler
@pytest.mark.usefixtures("on_processor")
def test_a_layer_adds_its_bias_and_what_was_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [stored("Q4_K", 32), stored("Q6_K", 16, seed=2), stored("Q4_K", 16, seed=3)]
    bias = torch.randn(64)
    values = torch.cat([part.values() for part in parts])
    layer = CardLinear([CardWeights.of(part, CPU) for part in parts], bias.bfloat16())
    x = torch.randn(1, 3, 512, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = x.float() @ values.t() + bias
    assert torch.allclose(layer(x).float(), expected, atol=0.02)
    hidden = torch.randn(1, 3, 64).bfloat16()
    added = layer.add_to(hidden.clone(), x)
    assert torch.allclose(added.float(), expected + hidden.float(), atol=0.04)
    assert torch.equal(layer.unpacked(), values.bfloat16())
    SimulatedKernels.launches = 0
    many = torch.randn(1, 70, 512).bfloat16()
    assert torch.allclose(layer(many).float(), many.float() @ values.t() + bias, atol=0.1)
    assert SimulatedKernels.launches == 3, "each matrix is expanded once"
    layer(many[:, :40])
    assert SimulatedKernels.launches == 3 + 2 * 3, "one launch for up to 32 rows of a matrix"
    whole = layer(many)
    monkeypatch.setattr(card_blocks, "_EXPANDED_AT_ONCE", 16 * 512)
    SimulatedKernels.launches = 0
    assert torch.equal(layer(many), whole)
    assert SimulatedKernels.launches == 4, "a large matrix is expanded piece by piece"


@needs_compiler
@pytest.mark.usefixtures("on_processor")
@pytest.mark.parametrize("name", NAMES)
def test_a_chosen_layer_multiplies_as_it_does_alone(name: str) -> None:
    """Bit for bit, with one launch for each part, for rows that ask the same layer, others, or one that was asked."""
    biases = torch.randn(3, 48, generator=torch.Generator().manual_seed(4)).bfloat16()
    layers = [
        CardLinear([CardWeights.of(stored(name, 16 * part, seed=3 * at + part), CPU) for part in (1, 2)], biases[at])
        for at in range(3)
    ]
    x = torch.randn(4, 512, generator=torch.Generator().manual_seed(0)).bfloat16()
    alone = [layer(x) for layer in layers]
    choose = card_blocks.chosen_product(layers)
    assert choose is not None
    assert all(torch.equal(layer(x), before) for layer, before in zip(layers, alone, strict=True)), (
        "views of one matrix"
    )
    chosen = torch.tensor([2, 0, 1, 1, 0, 2, 2, 1])
    SimulatedKernels.launches = 0
    made = choose(x, chosen)
    assert SimulatedKernels.launches == 2
    assert all(torch.equal(made[at], alone[layer][at // 2]) for at, layer in enumerate(chosen.tolist()))
    with_others = [layers[0], CardLinear([CardWeights.of(stored(name, 48), CPU)], biases[0])]
    assert card_blocks.chosen_product(with_others) is None
    assert card_blocks.chosen_product([layers[0], torch.nn.Linear(512, 48)]) is None


@pytest.mark.parametrize("name", [form.form.name for form in CARD_FORMATS.values()])
def test_planes_take_hardly_more_bytes_than_the_file(name: str) -> None:
    """Scales of six bits take eight. Q2_K and Q3_K take four bits for a quant."""
    given = stored(name, 64, 2048)
    planes = planes_of(given.data, given.kind, 2048)
    ratio = sum(plane.nbytes for plane in planes) / given.data.nbytes
    assert ratio <= {"Q2_K": 1.96, "Q3_K": 1.35, "MXFP4": 1.06}.get(name, 1.03)
    assert planes.low.shape == (64 // TILE, 2048 // STEP, 32, 4)
    assert all(plane.is_contiguous() for plane in planes)


@pytest.mark.usefixtures("on_processor")
def test_a_matrix_is_reordered_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    given = stored("Q5_K", 72)
    whole = planes_of(given.data, given.kind, 512)
    monkeypatch.setattr(card_blocks, "_WEIGHTS_AT_ONCE", 512 * 20)
    assert all(map(torch.equal, planes_of(given.data, given.kind, 512), whole))


def test_rows_choose_the_smallest_kernel() -> None:
    assert [columns_of(rows) for rows in (1, 8, 9, 16, 17, 32)] == [1, 1, 2, 2, 4, 4]


@needs_compiler
@pytest.mark.usefixtures("on_processor")
def test_an_embedding_and_a_tied_head_share_their_weights() -> None:
    given = stored("Q6_K", 48)
    values = given.values()
    model: Any = torch.nn.Module()
    model.embed = BlockEmbedding(given, None, torch.bfloat16)
    model.head = BlockLinear(given, None, torch.bfloat16)
    floats = torch.randn(8, 512)
    model.plain = BlockLinear(Stored(floats.view(torch.uint8), 0, 512), None, torch.bfloat16)
    card_blocks.to_card(model, CPU)
    assert model.embed.weights is model.head.parts[0]
    assert type(model.plain) is torch.nn.Linear
    assert torch.equal(model.plain.weight, floats.bfloat16())
    ids = torch.tensor([[5, 47]])
    assert torch.equal(model.embed(ids), values[ids].bfloat16())
    in_floats = Stored(floats.view(torch.uint8), 0, 512)
    model.embed, model.head = (
        BlockEmbedding(in_floats, None, torch.bfloat16),
        BlockLinear(in_floats, None, torch.bfloat16),
    )
    card_blocks.to_card(model, CPU)
    assert model.embed.weights.weight is model.head.weight, "of plain numbers too, as some files have them"
    assert torch.equal(model.embed(ids % 8), floats[ids % 8].bfloat16())


# Whether they can be used --------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.usefixtures("on_processor")
def test_kernels_are_used_only_if_they_are_right_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_blocks, "may_multiply_blocks", lambda _: True)
    monkeypatch.setattr(card_blocks, "_right", {})
    kinds = [kind_of("Q4_K"), kind_of("Q6_K"), 0]
    assert card_blocks.multiplies_blocks(CPU, kinds)
    assert not card_blocks.multiplies_blocks(CPU, [*kinds, kind_of("IQ4_NL")])

    class WrongChoice(SimulatedKernels):
        def product_chosen(self, planes: Any, chosen: torch.Tensor, *rest: Any) -> None:
            super().product_chosen(planes, 1 - chosen, *rest)

    monkeypatch.setattr(card_blocks, "_right", {})
    monkeypatch.setattr(card_blocks, "kernels_of", lambda _, kind: WrongChoice(kind))
    assert not card_blocks.multiplies_blocks(CPU, kinds)

    class Wrong(SimulatedKernels):
        def expand(self, planes: Any, out: torch.Tensor, ids: torch.Tensor | None = None) -> None:
            super().expand(planes, out, ids)
            out[-1, -1] += 1e-6

    monkeypatch.setattr(card_blocks, "_right", {})
    monkeypatch.setattr(card_blocks, "kernels_of", lambda _, kind: Wrong(kind))
    assert not card_blocks.multiplies_blocks(CPU, kinds)


def test_a_card_that_compiles_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """torch's build for processors has no NVRTC, as little as a broken installation has."""
    monkeypatch.setattr(card_blocks, "may_multiply_blocks", lambda _: True)
    monkeypatch.setattr(card_blocks, "_right", {})

    def fails(*_: Any) -> None:
        raise OSError("Could not find any NVRTC library")

    monkeypatch.setattr(card_blocks, "kernels_of", fails)
    with caplog.at_level("INFO"):
        assert not card_blocks.multiplies_blocks(CPU, [kind_of("Q4_K")])
    assert "GGUF files are expanded" in caplog.text
    assert "NVRTC" in caplog.text


class Nvrtc:
    """A compiler that takes every source but one with an option that it does not know."""

    def __init__(self) -> None:
        self.sources: list[bytes] = []
        self.options: list[bytes] = []
        self.destroyed, self.minor = 0, 0

    def nvrtcVersion(self, major: Any, minor: Any) -> int:
        ctypes.cast(major, ctypes.POINTER(ctypes.c_int))[0] = 13
        ctypes.cast(minor, ctypes.POINTER(ctypes.c_int))[0] = self.minor
        return 0

    def nvrtcCreateProgram(self, program: Any, text: bytes, *_: Any) -> int:
        self.sources.append(text)
        return 0

    def nvrtcCompileProgram(self, program: Any, count: int, options: Any) -> int:
        self.options = [options[at] for at in range(count)]
        return 6 if b"-DHIGH_BITS=9" in self.options else 0

    def _says(self, size: Any, text: bytes) -> int:
        ctypes.cast(size, ctypes.POINTER(ctypes.c_size_t))[0] = len(text)
        return 0

    def nvrtcGetProgramLogSize(self, program: Any, size: Any) -> int:
        return self._says(size, b"no such option\0")

    def nvrtcGetProgramLog(self, program: Any, into: Any) -> int:
        into.raw = b"no such option\0"
        return 0

    def nvrtcGetCUBINSize(self, program: Any, size: Any) -> int:
        return self._says(size, b"cubin\0x")

    def nvrtcGetCUBIN(self, program: Any, into: Any) -> int:
        into.raw = b"cubin\0x"
        return 0

    def nvrtcDestroyProgram(self, program: Any) -> int:
        self.destroyed += 1
        return 0


def test_kernels_are_compiled_without_headers_for_the_card(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keep_no_kernels: Callable[[], None]
) -> None:
    keep_no_kernels()
    from torch.cuda import _utils

    nvrtc = Nvrtc()
    monkeypatch.setattr(_utils, "_get_gpu_rtc_library", lambda: nvrtc)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 9))
    card = torch.device("cuda", 0)
    assert block_products._cubin(card, CARD_FORMATS[kind_of("Q6_K")].options) == b"cubin\0x"
    assert b"--gpu-architecture=sm_89" in nvrtc.options
    assert b"-DHIGH_BITS=2" in nvrtc.options
    assert b"#include" not in nvrtc.sources[0]
    with pytest.raises(RuntimeError, match="no such option"):
        block_products._cubin(card, ["-DHIGH_BITS=9"])
    assert nvrtc.destroyed == 2
    kept.keep_in(str(tmp_path / "kernels"))
    for minor, compiled in ((0, 3), (0, 3), (1, 4)):
        nvrtc.minor = minor
        assert block_products._cubin(card, CARD_FORMATS[kind_of("Q6_K")].options) == b"cubin\0x"
        assert nvrtc.destroyed == compiled, "it is kept on disk, and compiled again by another compiler"
