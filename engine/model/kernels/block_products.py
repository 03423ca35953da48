"""Compiles and launches the kernels of ``block_products.cu``: products on an NVIDIA GPU with weights that have exactly
the values of a GGUF file.

The kernels are compiled on the person's machine by NVRTC, a library that comes with torch's builds for CUDA, so neither
a compiler nor the CUDA toolkit is needed. torch's own function for this (``torch.cuda._compile_kernel``) passes the
toolkit's folder of headers, and raises an error on machines without it. Each format is compiled when it is first used,
and kept on disk for later starts.

The kernels use matrix instructions for bfloat16, so they need compute capability 8.0. ``multiplies_blocks`` compares
their results with the file's values before they are used. They have only been compiled and simulated so far, never run
on a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from engine.model.kernels import kept
from engine.model.kernels.formats import FORMATS, Format

_log = logging.getLogger(__name__)

TILE = 16
"""Number of outputs of a tile (``block_products.cu``)."""
STEP = 64
"""Number of inputs of a step."""
LANES = 32
MOST_BLOCK_ROWS = 32
"""Maximum rows of x for which one launch reads the weights only once."""

LOW_BITS = 4
"""Number of lower bits of a quant, which are stored apart from its upper bits."""
HALVES = 0
"""The kind of scales that are a float16 number for each group, as in ``block_products.cu``."""
INTEGERS = 1
"""The kind of scales that are an integer for each group, and a float16 factor for 256 inputs."""
POWERS = 2
"""The kind of scales that are the exponent of a power of two for each group."""

_WARPS = 8
_CAPABILITY = (8, 0)
# Numbers of groups of eight rows for which a kernel is compiled.
_COLUMNS = (1, 2, 4)
_COLUMN_ROWS = 8
# bfloat16 number 128, to which a quant is added by setting its bits.
_BIAS = 128


@dataclass(frozen=True)
class CardFormat:
    """How the kernels read a format: the numbers with which ``block_products.cu`` is compiled.

    Args:
        high_bits: number of bits of a quant above the lower four.
        group: number of inputs that share a scale.
        scale: kind of the scales.
        has_least: whether a group has an offset, which is subtracted from its weights (with HALVES: added to them).
        zero: the quant that stands for the weight 0 before the offset is applied.
        form: the format of the file.
    """

    high_bits: int
    group: int
    scale: int
    has_least: bool
    zero: int
    form: Format

    @property
    def options(self) -> list[str]:
        names = ("HIGH_BITS", "GROUP_SIZE", "SCALE_KIND", "HAS_LEAST")
        values = (self.high_bits, self.group, self.scale, int(self.has_least))
        return [f"-D{name}={value}" for name, value in zip(names, values, strict=True)]

    @property
    def groups(self) -> int:
        """Number of groups in a step."""
        return STEP // self.group

    @property
    def bytes_per_weight(self) -> float:
        """Bytes of a weight on a GPU, scales included."""
        each = (2 if self.scale == HALVES else 1) * (2 if self.has_least else 1) / self.group
        factors = 2 * (2 if self.has_least else 1) / self.form.values if self.scale == INTEGERS else 0.0
        return (LOW_BITS + self.high_bits) / 8 + each + factors

    @property
    def negated(self) -> int:
        """Two times the bfloat16 number -(128 + zero), which the kernels add to the sum of 128 and a quant."""
        half = int(torch.tensor(-float(_BIAS + self.zero), dtype=torch.bfloat16).view(torch.int16)) & 0xFFFF
        return half << 16 | half


def _card_format(form: Format) -> CardFormat:
    scale = POWERS if form.has_exponent else INTEGERS if form.scale else HALVES
    return CardFormat(max(0, form.bits - LOW_BITS), form.group, scale, form.has_least, form.zero, form)


CARD_FORMATS = {number: _card_format(form) for number, form in FORMATS.items() if form.has_exponent or not form.codes}
"""The formats that the kernels read, keyed by GGML's number: all formats of ``formats`` except IQ4_NL and IQ4_XS, whose
quants are indices into a table.
"""


class Planes(NamedTuple):
    """The weights of a matrix on a GPU, in the order in which the kernels read them (``products.card_blocks``).

    Args:
        low: int32 (tiles, steps, 32, 4), the lower four bits of all quants.
        high: int32 (tiles, steps, 32, high_bits), the upper bits.
        scales: bytes (tiles, steps, 16, ...), the scales of each output's groups, then the numbers to subtract or add.
        factors: float16 (tiles, steps / 4, 16, 1 or 2), the factors of INTEGERS; empty for other kinds of scales.
    """

    low: torch.Tensor
    high: torch.Tensor
    scales: torch.Tensor
    factors: torch.Tensor

    @property
    def tiles(self) -> int:
        return self.low.shape[0]

    @property
    def steps(self) -> int:
        return self.low.shape[1]


class BlockKernels(Protocol):
    """The kernels of one format on one GPU."""

    def product(
        self,
        planes: Planes,
        x: torch.Tensor,
        out: torch.Tensor,
        outputs: int,
        bias: torch.Tensor | None = None,
        before: torch.Tensor | None = None,
    ) -> None:
        """Multiply x (rows, inputs) by the weights and write the result to ``out`` (rows, outputs), which may be some
        columns of a larger tensor.

        Args:
            x: contiguous, in bfloat16, at most ``MOST_BLOCK_ROWS`` rows.
            out: in bfloat16 or float32.
            bias: (outputs,) in bfloat16, added to each row.
            before: in bfloat16, with the shape and strides of ``out``; added to the result. May be ``out`` itself.
        """

    def product_chosen(
        self,
        planes: Planes,
        chosen: torch.Tensor,
        x: torch.Tensor,
        out: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> None:
        """Multiply rows by one of several matrices of the same size, in one launch. The host need not know which.

        Args:
            planes: all matrices, one after another. The outputs of each fill whole tiles.
            chosen: (places,) int64, the index of a matrix for each place.
            x: (rows, inputs), contiguous, in bfloat16. Each row belongs to ``places / rows`` neighbouring places.
            out: (places, outputs) in bfloat16 or float32, possibly some columns of a larger tensor.
            bias: (matrices, outputs) in bfloat16, contiguous; the row of the chosen matrix is added.
        """

    def expand(self, planes: Planes, out: torch.Tensor, ids: torch.Tensor | None = None) -> None:
        """Write the weights of the outputs ``ids`` (n,), or of the first n outputs if ``ids`` is None, to ``out``
        (n, inputs), in bfloat16 or float32.
        """


def columns_of(rows: int) -> int:
    """The number of groups of eight rows of the kernel that multiplies ``rows`` rows."""
    return next(columns for columns in _COLUMNS if rows <= _COLUMN_ROWS * columns)


class _Compiled:
    """The kernels of one format, compiled for one GPU."""

    def __init__(self, device: torch.device, form: CardFormat) -> None:
        from torch.cuda import _utils

        names = [*(f"product_{columns}" for columns in _COLUMNS), "product_chosen", "expanded_rows"]
        self._device, self._negated = device, ctypes.c_uint(form.negated)
        self._driver: Any = _utils._get_gpu_runtime_library()
        with torch.cuda.device(device):
            loaded: Any = _utils._cuda_load_module(_cubin(device, form.options), names)
        self._functions = {name: loaded[name] for name in names}

    def product(
        self,
        planes: Planes,
        x: torch.Tensor,
        out: torch.Tensor,
        outputs: int,
        bias: torch.Tensor | None = None,
        before: torch.Tensor | None = None,
    ) -> None:
        rows, inputs = x.shape
        sizes = (rows, inputs, outputs, planes.steps, out.stride(0))
        wide = ctypes.c_int(out.dtype is torch.float32)
        pointers = map(_pointer, (*planes, x, out, bias, before))
        arguments = [*pointers, *map(ctypes.c_int, sizes), self._negated, wide]
        self._launch(f"product_{columns_of(rows)}", (planes.tiles, 1), arguments)

    def product_chosen(
        self,
        planes: Planes,
        chosen: torch.Tensor,
        x: torch.Tensor,
        out: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> None:
        (places, outputs), tiles = out.shape, out.shape[1] // TILE
        sizes = (places // len(x), x.shape[1], outputs, tiles, planes.steps, out.stride(0))
        wide = ctypes.c_int(out.dtype is torch.float32)
        pointers = map(_pointer, (*planes, chosen, x, out, bias))
        arguments = [*pointers, *map(ctypes.c_int, sizes), self._negated, wide]
        self._launch("product_chosen", (tiles, places), arguments)

    def expand(self, planes: Planes, out: torch.Tensor, ids: torch.Tensor | None = None) -> None:
        count, inputs = out.shape
        units = -(-count // TILE) if ids is None else count
        wide = ctypes.c_int(out.dtype is torch.float32)
        pointers = map(_pointer, (*planes, ids, out))
        arguments = [*pointers, *map(ctypes.c_int, (count, inputs, planes.steps)), self._negated, wide]
        self._launch("expanded_rows", (-(-planes.steps // _WARPS), units), arguments)

    def _launch(self, name: str, grid: tuple[int, int], arguments: Sequence[Any]) -> None:
        if 0 in grid:
            return
        packed = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        with torch.cuda.device(self._device):
            stream = ctypes.c_void_p(torch.cuda.current_stream(self._device).cuda_stream)
            block = (_WARPS * LANES, 1, 1)
            code = self._driver.cuLaunchKernel(self._functions[name].func, *grid, 1, *block, 0, stream, packed, None)
        if code:
            raise RuntimeError(f"CUDA error: the kernel {name} was not launched (code {code})")


def _pointer(x: torch.Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if x is None else x.data_ptr())


def source() -> str:
    """The text of ``block_products.cu``."""
    return Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")


def _cubin(device: torch.device, options: Sequence[str]) -> bytes:
    """The machine code of ``block_products.cu`` for a GPU: as it was kept on disk (``kept``), or compiled by NVRTC.

    Raises:
        OSError: there is no NVRTC.
        RuntimeError: the source does not compile, for example because NVRTC does not know the GPU.
    """
    from torch.cuda import _utils

    library: Any = _utils._get_gpu_rtc_library()
    version = (ctypes.c_int * 2)()
    _check(library.nvrtcVersion(ctypes.byref(version), ctypes.byref(version, ctypes.sizeof(ctypes.c_int))))
    major, minor = torch.cuda.get_device_capability(device)
    given = [f"--gpu-architecture=sm_{major}{minor}", *options]
    key = kept.name_of(source(), f"NVRTC {list(version)}", *given)
    if (code := kept.load(key)) is None:
        code = _compile(library, [option.encode() for option in given])
        kept.save(key, code)
    return code


def _compile(library: Any, given: Sequence[bytes]) -> bytes:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    _check(library.nvrtcCreateProgram(ctypes.byref(program), source().encode(), b"block_products.cu", 0, None, None))
    try:
        code = library.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
        if code:
            library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            library.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"the kernels do not compile: {log.value.decode(errors='replace').strip()[:500]}")
        _check(library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        made = ctypes.create_string_buffer(size.value)
        _check(library.nvrtcGetCUBIN(program, made))
        return made.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _check(code: int) -> None:
    if code:
        raise RuntimeError(f"NVRTC fails with code {code}")


def kernels_of(device: torch.device, kind: int) -> BlockKernels:
    """Return the kernels for a format on a GPU. The first call compiles them.

    Args:
        kind: GGML's number for the format, a key of ``CARD_FORMATS``.

    Raises:
        OSError, RuntimeError, AttributeError: they cannot be compiled or loaded here.
    """
    return _compiled(torch.device(device.type, device.index or 0), kind)


@functools.lru_cache(maxsize=64)
def _compiled(device: torch.device, kind: int) -> BlockKernels:
    return _Compiled(device, CARD_FORMATS[kind])


def may_multiply_blocks(device: torch.device) -> bool:
    """Whether the kernels may run on this device, judging by its kind alone. Computes nothing on the GPU."""
    return (
        device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= _CAPABILITY
    )
