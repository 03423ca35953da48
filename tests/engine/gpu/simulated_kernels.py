"""The kernels of ``block_products.cu`` run on the processor: their source, compiled as C++ with stand-ins for the
instructions of a GPU (``simulated_kernels.h``). It tells which numbers they compute, not how fast."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from engine.model.kernels import block_products
from engine.model.kernels.block_products import CARD_FORMATS, STEP, TILE, Planes, columns_of
from tests.engine.gpu.simulated_cuda import Gpu

COMPILER = shutil.which("g++")
WHY_NOT = "" if COMPILER else "there is no g++, which compiles the kernels for the processor"
_HEADER = Path(__file__).with_suffix(".h")
_WARPS = 8
_folder = tempfile.TemporaryDirectory(prefix="trifold-kernels-")


@functools.cache
def _library(kind: int) -> Any:
    assert COMPILER is not None
    made = Path(_folder.name) / f"{kind}.so"
    options = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-x", "c++", *CARD_FORMATS[kind].options]
    folder = Path(block_products.__file__).parent
    subprocess.run([COMPILER, *options, f"-I{folder}", str(_HEADER), "-o", str(made)], check=True, timeout=120)
    return ctypes.CDLL(str(made))


def _pointer(x: torch.Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if x is None else x.data_ptr())


class SimulatedKernels:
    """``BlockKernels`` for tensors in host memory. ``launches`` counts the calls of all of them."""

    launches = 0

    def __init__(self, kind: int) -> None:
        self._kind, self._negated = kind, ctypes.c_uint(CARD_FORMATS[kind].negated)

    def product(
        self,
        planes: Planes,
        x: torch.Tensor,
        out: torch.Tensor,
        outputs: int,
        bias: torch.Tensor | None = None,
        before: torch.Tensor | None = None,
    ) -> None:
        SimulatedKernels.launches += 1
        rows, inputs = x.shape
        assert x.is_contiguous()
        assert planes.steps * STEP >= inputs
        sizes = (rows, inputs, outputs, planes.steps, out.stride(0))
        _library(self._kind).simulated_product(
            columns_of(rows),
            planes.tiles,
            *map(_pointer, (*planes, x, out, bias, before)),
            *sizes,
            self._negated,
            int(out.dtype is torch.float32),
        )

    def product_chosen(
        self,
        planes: Planes,
        chosen: torch.Tensor,
        x: torch.Tensor,
        out: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> None:
        SimulatedKernels.launches += 1
        (places, outputs), tiles = out.shape, out.shape[1] // TILE
        assert x.is_contiguous()
        assert outputs % TILE == places % len(x) == 0
        _library(self._kind).simulated_choice(
            tiles,
            places,
            *map(_pointer, (*planes, chosen, x, out, bias)),
            *(places // len(x), x.shape[1], outputs, tiles, planes.steps, out.stride(0)),
            self._negated,
            int(out.dtype is torch.float32),
        )

    def expand(self, planes: Planes, out: torch.Tensor, ids: torch.Tensor | None = None) -> None:
        SimulatedKernels.launches += 1
        count, inputs = out.shape
        units = -(-count // TILE) if ids is None else count
        _library(self._kind).simulated_expansion(
            -(-planes.steps // _WARPS),
            units,
            *map(_pointer, (*planes, ids, out)),
            count,
            inputs,
            planes.steps,
            self._negated,
            int(out.dtype is torch.float32),
        )


class CardKernels:
    """``BlockKernels`` of the simulated device. Weights are what the kernels expand them to; products are torch's,
    because a matrix instruction takes long here, and other tests compare the two. What is read is counted."""

    def __init__(self, gpu: Gpu, kind: int) -> None:
        self._gpu, self._kernels = gpu, SimulatedKernels(kind)
        self._known: dict[int, tuple[Planes, torch.Tensor]] = {}

    def product(
        self,
        planes: Planes,
        x: torch.Tensor,
        out: torch.Tensor,
        outputs: int,
        bias: torch.Tensor | None = None,
        before: torch.Tensor | None = None,
    ) -> None:
        gpu: Any = self._gpu
        gpu.touch(*planes, x, out, bias, before)
        held, rows, into, added, earlier = (_there(each) for each in (planes, x, out, bias, before))

        def work() -> None:
            # in float64, so that a row hardly depends on the other rows, as on a card
            made = (rows.double() @ self._values(held, outputs, rows.shape[1]).double().t()).float()
            made = made if added is None else made + added.float()
            into.copy_(made if earlier is None else made + earlier.float())

        gpu.current().enqueue(work)

    def product_chosen(
        self,
        planes: Planes,
        chosen: torch.Tensor,
        x: torch.Tensor,
        out: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> None:
        gpu: Any = self._gpu
        outputs = out.shape[1]
        share = len(chosen) * (outputs // TILE) / planes.tiles  # of the weights, read once for each place
        gpu.touch(*(plane[: round(share * len(plane))] for plane in planes), x, out, bias)
        held, ids, rows, into, added = (_there(each) for each in (planes, chosen, x, out, bias))

        def work() -> None:
            matrices = self._values(held, planes.tiles * TILE, rows.shape[1]).double().unflatten(0, (-1, outputs))
            given = rows.double().repeat_interleave(len(ids) // len(rows), dim=0)
            made = (matrices[ids] @ given.unsqueeze(2)).squeeze(2).float()
            into.copy_(made if added is None else made + added[ids].float())

        gpu.current().enqueue(work)

    def expand(self, planes: Planes, out: torch.Tensor, ids: torch.Tensor | None = None) -> None:
        gpu: Any = self._gpu
        gpu.touch(*(planes if ids is None else ()), out)
        held, into, chosen = (_there(each) for each in (planes, out, ids))
        gpu.current().enqueue(lambda: self._kernels.expand(held, into, chosen))

    def _values(self, planes: Planes, outputs: int, inputs: int) -> torch.Tensor:
        """All weights in float32. Planes that are kept cannot be those of another matrix at the same address."""
        address = planes.low.data_ptr()
        if address not in self._known or not torch.equal(self._known[address][0].low, planes.low):
            values = torch.empty(outputs, inputs)
            self._kernels.expand(planes, values)
            self._known[address] = Planes(*(plane.clone() for plane in planes)), values
        return self._known[address][1][:outputs]


def _there(x: Any) -> Any:
    """The numbers of tensors on the simulated device."""
    if isinstance(x, Planes):
        return Planes(*map(_there, x))
    x = x.data if isinstance(x, torch.nn.Parameter) else x
    return getattr(x, "elem", x)
