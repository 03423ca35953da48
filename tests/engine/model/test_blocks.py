"""Weights in the blocks of GGUF files: as the reference of gguf has them, and rows do not depend on each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from engine.model.gguf_header import BLOCKS
from engine.model.kernels import native, pool
from engine.model.kernels.abi import MOST_ROWS, SPAN
from engine.model.kernels.formats import FORMATS, Format
from engine.model.products.blocks import FLOATS, BlockEmbedding, BlockLinear, Stored
from engine.model.products.packed import PackedBlocks, Unpacked

HALF, WIDE = torch.bfloat16, torch.float32
NUMBERS = {form.name: form.number for form in FORMATS.values()}
KNOWN = {**{number: name for name, number in NUMBERS.items()}, 0: "F32", 1: "F16", 30: "BF16"}
"""Names of all formats that are read."""


def stored(kind: int, outputs: int, inputs: int, seed: int = 0, order: Any = None) -> Stored:
    """Any bits, with factors that are numbers of a usual size."""
    random = np.random.default_rng(seed)
    if kind in FLOATS:
        data = torch.from_numpy(random.standard_normal((outputs, inputs))).to(FLOATS[kind]).view(torch.uint8)
        return Stored(data, kind, inputs, order)
    form: Format = FORMATS[kind]
    raw = random.integers(0, 256, (outputs, inputs // form.values, form.bytes), dtype=np.uint8)
    raw[1] = 255  # the largest quants and scales
    if form.has_exponent:
        raw[:, :, 0] = random.integers(100, 140, raw.shape[:2])
        return Stored(torch.from_numpy(raw.reshape(outputs, -1)), kind, inputs, order)
    for offset in form.halves[: 1 if form.name == "IQ4_XS" else 2]:
        factors = (0.01 * random.standard_normal((*raw.shape[:2], 1))).astype(np.float16)
        factors[0, 0] = 3e-6  # a half without a leading one
        raw[:, :, offset : offset + 2] = factors.view(np.uint8)
    return Stored(torch.from_numpy(raw.reshape(outputs, -1)), kind, inputs, order)


def in_fixed_point(x: torch.Tensor) -> torch.Tensor:
    """Numbers as whole multiples of a 32,639th of the largest of 32 neighbours."""
    spans = x.float().unflatten(1, (-1, SPAN))
    most = spans.abs().amax(2, keepdim=True).clamp(min=1e-30)
    fixed = ((spans * (torch.tensor(32639.0) / most)).round().double() * (most / 32639)).flatten(1)
    assert (fixed - x).abs().max() <= 2e-5 * x.abs().max()
    return fixed


def test_the_reference_is_gguf() -> None:
    assert {kind: GGML_QUANT_SIZES[GGMLQuantizationType(kind)] for kind in KNOWN} == BLOCKS
    for kind, name in KNOWN.items():
        matrix = stored(kind, 3, 256)
        assert GGMLQuantizationType(kind).name == name
        expected = quants.dequantize(matrix.data.numpy(), GGMLQuantizationType(kind))
        assert torch.equal(matrix.values(torch.tensor([2, 0])), torch.from_numpy(expected)[[2, 0]])


@pytest.mark.parametrize(
    ("lanes", "dtype", "names"),
    [
        (None, HALF, ["Q3_K", "Q4_K", "Q5_0", "MXFP4", "Q6_K", "Q8_0", "IQ4_XS", "F16", "BF16"]),
        (None, WIDE, ["Q5_0", "Q4_K", "F16", "F32"]),
        (8, WIDE, ["MXFP4"]),
        (8, HALF, ["Q4_K", "Q6_K", "Q3_K", "Q8_0", "F16"]),
        (16, HALF, ["Q5_K"]),
        (4, HALF, ["Q6_K", "IQ4_NL"]),
    ],
)
def test_a_product_is_exact_and_its_rows_do_not_depend_on_each_other(
    lanes: int | None, dtype: torch.dtype, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 sums are in float32 all the same: what is rounded is the result, and without AVX-512 BF16 the input.
    With 16 lanes the processor is taken for one that has AVX-512 without it.
    """
    if lanes == 16:
        has = dict(pool.binding.get_host_cpu_features())
        if pool.lanes() != lanes or not has.get("avx512bw"):
            pytest.skip("needs AVX-512")
        later = dict.fromkeys(("avx512bf16", "avx512vnni", "avx512vbmi"), False)
        monkeypatch.setattr(pool.binding, "get_host_cpu_features", lambda: has | later)
    kernels = native.Native(workers=2, lanes=lanes)
    assert kernels.multiplies_fixed or lanes != 16
    kinds = {name: kind for kind, name in KNOWN.items()}
    for name in names:
        layer = BlockLinear(stored(kinds[name], 70, 256), None, dtype)
        packed = PackedBlocks([layer], kernels, Unpacked())
        x = torch.randn(17, 256, generator=torch.Generator().manual_seed(1)).to(dtype)
        x[2, 32:96], x[6], x[7] = 0, 1, -1  # with the largest quants, the largest sums that must be exact
        is_fixed = kernels.multiplies_fixed and dtype is HALF and name not in ("F16", "BF16")
        taken = in_fixed_point(x) if is_fixed else x
        expected = taken.double() @ layer.values().double().t()
        found = packed._product(x)[:, :70]
        size = taken.abs().double() @ layer.values().abs().double().t()
        # the quants of these are stored with an offset, which can be larger than the quants
        near = 5e-6 if name in ("Q8_0", "MXFP4") else 5e-7
        assert ((found - expected).abs() <= near * size).all(), name
        for rows in (1, 2, 3, 5, 8, 13):
            assert torch.equal(packed._product(x[:rows])[:, :70], found[:rows]), (name, rows)
        most = packed._product(x.repeat(5, 1)[:MOST_ROWS])[:, :70]
        assert torch.equal(most, found.repeat(5, 1)[:MOST_ROWS]), name
        few = packed.first(17)
        assert 17 <= few.out_features < 70, name
        assert torch.equal(few(x), packed(x)[:, : few.out_features]), name
        assert packed.multiplies_all == (is_fixed and not kernels.multiplies_pairs)
        if packed.multiplies_all:  # a book's rows too
            assert torch.equal(packed(x.repeat(MOST_ROWS // 17 + 1, 1)), packed(x).repeat(MOST_ROWS // 17 + 1, 1)), name
        if is_fixed:  # a number as far above the others as a real model's largest activation
            large = x[:1].clone()
            large[0, 40] = 4000
            exact = large.double() @ layer.values().double().t()
            assert (packed._product(large)[:, :70] - exact).norm() <= 1e-4 * exact.norm(), name
        for row, value in ((1, torch.nan), (3, torch.inf)):
            x[row, 40] = value
            found[row] = torch.nan
        again = packed._product(x)[:, :70]
        again[~again.isfinite()] = torch.nan
        assert torch.equal(again.nan_to_num(1e30), found.nan_to_num(1e30)), name


@pytest.mark.parametrize(("lanes", "names"), [(8, ["Q6_K"]), (16, ["Q4_K", "Q3_K", "Q8_0", "IQ4_XS"])])
def test_vnni_changes_no_bit(lanes: int, names: list[str]) -> None:
    if not pool.adds_dots(lanes):
        pytest.skip("needs VNNI")
    kinds = {name: kind for kind, name in KNOWN.items()}
    x = torch.randn(17, 512, generator=torch.Generator().manual_seed(1)).to(HALF)
    for name in names:
        found = []
        for dots in (False, True):
            kernels = native.Native(workers=2, lanes=lanes)
            kernels.adds_dots = dots
            packed = PackedBlocks([BlockLinear(stored(kinds[name], 70, 512), None, HALF)], kernels, Unpacked())
            found.append([packed._product(x[:rows])[:, :70] for rows in (1, 2, 3, 4, 7, 17)])
        assert all(map(torch.equal, *found)), name


@pytest.mark.parametrize("lanes", [4, 8, None])
def test_weights_are_unpacked_as_gguf_has_them(lanes: int | None) -> None:
    kernels = native.Native(workers=2, lanes=lanes)
    order = np.random.default_rng(0).permutation(40)
    for kind, name in KNOWN.items():
        matrix = stored(kind, 40, 256, order=order)
        packed = PackedBlocks([BlockLinear(matrix, None, WIDE)], kernels, Unpacked())
        expected = matrix._replace(order=None).values()[order]
        assert torch.equal(matrix.values(), expected)
        near = torch.finfo(WIDE).eps * expected.abs().max()
        assert (packed.unpacked().t() - expected).abs().max() <= near, name
        ids = torch.tensor([[39, 0, 7], [7, 32, 1]])
        assert torch.equal(packed.rows(ids), packed.unpacked().t()[ids])


def test_a_joint_product_has_segments_of_several_formats() -> None:
    kernels = native.own()
    assert kernels is not None
    for dtype, second in ((WIDE, "Q5_0"), (HALF, "Q6_K")):  # their kernels are compiled for another test as well
        kinds = [NUMBERS["Q4_K"], 0, NUMBERS[second], 1, 30]
        layers = [BlockLinear(stored(kind, 33, 256, kind), torch.ones(33), dtype) for kind in kinds]
        whole = PackedBlocks(layers, kernels, Unpacked())
        for rows in (1, 9, MOST_ROWS, MOST_ROWS + 1):
            x = torch.randn(1, rows, 256, generator=torch.Generator().manual_seed(1)).to(dtype)
            expected = torch.cat([x.double() @ layer.values().double().t() + 1 for layer in layers], dim=2)
            near = 2e-6 if dtype is WIDE else 1e-2
            assert (whole(x) - expected).abs().max() <= near * expected.abs().max()


def test_an_embedding_unpacks_the_rows_that_are_asked_for() -> None:
    class Scaled:
        embed_scale = torch.tensor(2.0)

    matrix = stored(NUMBERS["Q4_K"], 20, 256)
    table = BlockEmbedding(matrix, Scaled(), WIDE)
    assert torch.equal(table(torch.tensor([[3, 19]])), 2 * matrix.values()[None, [3, 19]])


def test_what_has_been_read_is_let_go() -> None:
    gone = []
    kernels = native.own()
    assert kernels is not None
    matrix = stored(NUMBERS["Q8_0"], 5, 64)._replace(release=lambda: gone.append(True))
    PackedBlocks([BlockLinear(matrix, None, WIDE)], kernels, Unpacked())
    assert gone == [True]
