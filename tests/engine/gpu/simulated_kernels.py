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
