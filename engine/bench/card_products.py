"""Measures products on a GPU with the weights of GGUF files, format by format, against the bytes that they read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.bench.report import Figure
from engine.model.kernels.block_products import CARD_FORMATS, CardFormat
from engine.model.products.card_blocks import CardWeights, multiplies_blocks, planes_of

SHAPES = ((4096, 4096), (28_672, 4096), (4096, 14_336), (128_256, 4096))
"""Outputs and inputs of matrices of Llama-3.1-8B: output projection, both gates, down projection, and head."""

_NAMES = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0", "MXFP4")
_ROWS = (1, 4, 8, 16, 32)
# Minimum bytes of all matrices that a measurement reads one after another, so that none of them stays in a GPU's cache,
# which has up to 128 MB.
_READ_BYTES = 1 << 29

Timed = Callable[[torch.device, Callable[[], object]], float]
"""Measures the milliseconds of some work on a device."""


@dataclass(frozen=True)
class _Case:
    """Matrices of one size in one format: ``call`` multiplies x by the matrix with an index."""

    name: str
    outputs: int
    inputs: int
    bytes: int
    count: int
    call: Callable[[torch.Tensor, int], object]


def figures(device: torch.device, rate: float, timed: Timed) -> Iterator[Figure]:
    """Measure products with random weights in each format, and in bfloat16 to compare them with.

    Args:
        rate: rate of a copy on the device, in bytes read and written per second.
    """
    for outputs, inputs in SHAPES:
        for make in (_unrounded, *map(_stored, _formats())):
            case = make(device, outputs, inputs)
            if isinstance(case, Figure):
                yield case
                continue
            for count in _ROWS:
                x = torch.randn(count, inputs, device=device).bfloat16()

                def work(case: _Case = case, x: torch.Tensor = x) -> None:
                    for at in range(case.count):
                        case.call(x, at)

                ms = timed(device, work) / case.count
                share = case.bytes / (ms / 1000.0) / rate
                what = f"product with {case.name}: {count} rows, {outputs:,} x {inputs:,}"
                note = f"{case.bytes / 1e6:.1f} MB of weights, {share:.0%} of the copy rate"
                yield Figure("kernels", what, ms, "ms", "80 % of copy", note)


def _formats() -> list[CardFormat]:
    return [form for form in CARD_FORMATS.values() if form.form.name in _NAMES]


def _unrounded(device: torch.device, outputs: int, inputs: int) -> _Case:
    size = 2 * outputs * inputs
    held = [torch.randn(outputs, inputs, device=device).bfloat16() for _ in range(_count(size))]
    return _Case("bfloat16", outputs, inputs, size, len(held), lambda x, at: functional.linear(x, held[at]))


def _stored(form: CardFormat) -> Callable[[torch.device, int, int], _Case | Figure]:
    def make(device: torch.device, outputs: int, inputs: int) -> _Case | Figure:
        kind, name = form.form.number, form.form.name
        what = f"product with {name}: {outputs:,} x {inputs:,}"
        if not multiplies_blocks(device, [kind]):
            return Figure("kernels", what, "does not compile here, or is wrong", "")
        row = inputs // form.form.values * form.form.bytes
        held = []
        for _ in range(_count(outputs * row)):
            data = torch.randint(0, 256, (outputs, row), dtype=torch.uint8, device=device)
            held.append(CardWeights(planes_of(data, kind, inputs), kind, outputs, inputs))
        size = sum(plane.nbytes for plane in held[0].planes)

        def call(x: torch.Tensor, at: int) -> torch.Tensor:
            out = x.new_empty(len(x), outputs)
            held[at].product(x, out)
            return out

        return _Case(name, outputs, inputs, size, len(held), call)

    return make


def _count(size: int) -> int:
    """The number of matrices of ``size`` bytes that take at least ``_READ_BYTES``."""
    return -(-_READ_BYTES // size)
