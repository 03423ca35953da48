"""Computes whether a pair of target and draft fits on a machine, before the pair is downloaded.

The longest book that fits is computed with the planner's arithmetic. Whether a certain book fits is decided later, by
the planner itself. This module also estimates the times for a book, from the rates of ``machine_rates``. Reading is
limited by computation: every token is multiplied with every active weight and attends to all earlier tokens. Decoding
is limited by the speed of memory, because each token without speculation reads the active weights and the cache once.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Literal

from engine.errors import OptionError
from engine.events import Status
from engine.model.architectures import cpu_holds_halves
from engine.plan.cost_model import MIN_BUDGET
from engine.plan.hardware import MachineRates
from engine.plan.memory_budget import (
    CHUNK,
    DISK_SHARE,
    MEMORY_SHARE,
    PINNED_SHARE,
    DeviceRoom,
    KvSize,
    Share,
    largest,
    layer_bytes,
    retrieval_bytes,
    share_layers,
    spread_over,
    usable,
)
from engine.plan.model_shape import ModelShape
from engine.plan.round_model import Rates
from engine.quantization import BITS, FITTED, bytes_per_weight, index_bytes

BOOK_TOKENS = 120_000
"""Tokens of a typical book: 300 printed pages of 300 words each."""

SHORTEST_BOOK = 4_096
"""Minimum tokens of context that must fit on a machine. If only a shorter context fits, the model is not offered."""

GPU_CLASSES = (8, 12, 16, 24, 48)
"""Memory of common GPUs, in GiB."""

_GPU_SHARE = 0.92
"""Share of a GPU's memory that is free if no other program uses it."""

_CLASS_BOOK = 32_768
"""Tokens of a book that a GPU must hold together with a model, for the GPU's memory size to count as enough
(``gpu_class``).
"""

_REACHED = 0.6
"""Rate of computation over a whole model, as a share of the rate of large matrix products."""

_WIDTH = 12
"""Number of weights in a typical decoder block, as a multiple of the squared hidden size."""

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

Q4_K_M_FITTED = 0.75
"""Upper estimate of the bytes of a decoder block's weight, if a Q4_K_M file is rounded to fit a GPU (``FITTED``). About
two thirds of the weights take 4 bits, the others 8 bits.
"""

Verdict = Literal["whole", "part", "none"]


@dataclass(frozen=True)
class FreeMemory:
    """The free memory of this machine in bytes, and the formats that decide how much memory is needed.

    ``memory`` is the compute device's memory that would be free if no model were loaded. ``on_gpu``: whether the
    compute device is a GPU. ``host`` is the free host memory, to which a GPU's cache can spill; 0 without a GPU.
    ``disk`` is the free disk space. ``others`` has the memory of each further GPU that may be used. None of these GPUs
    has more than ``memory``. ``kv`` is the configured format of the cache: "model" or "8bit". ``quantization`` is the
    format of a target's weights: "8bit", "4bit", "stored", or ``FITTED``, which only ``fit_pair`` sets.
    ``rounds_files``: whether a GGUF file that does not fit the GPUs is rounded. ``keeps_files``: whether the GPUs read
    the blocks of a GGUF file as they are stored.
    """

    memory: int
    disk: int
    on_gpu: bool
    host: int = 0
    kv: str = "model"
    quantization: str = "stored"
    others: tuple[int, ...] = ()
    rounds_files: bool = True
    keeps_files: bool = False

    @property
    def cards(self) -> tuple[int, ...]:
        """The memory of each compute device."""
        return (self.memory, *self.others)


@dataclass(frozen=True)
class ModelFit:
    """The memory that a target and its draft take, and whether the ``free`` memory is enough for them.

    ``tokens`` is the longest context whose KV fits on the compute devices next to the weights. ``spilled`` is the
    longest context whose KV fits on the compute devices, in host memory and on disk together. ``verdict`` is "whole" if
    ``tokens`` are the whole window, "part" if ``spilled`` is at least ``SHORTEST_BOOK``, otherwise "none". ``weights``
    are the bytes of weights in memory, ``kv_per_1k`` the bytes of cache for 1,000 tokens.

    ``rounded_file``: whether the target is a GGUF file that fits only because it is rounded for the GPUs.

    Loading the weights takes ``loading`` bytes of host memory, and ``loading_room`` bytes are free. ``loads`` is False,
    and the verdict "none", if the model's 4-bit weights are dequantized while they are loaded (``ModelShape.expanded``)
    and host memory is too small for the dequantized weights.
    """

    verdict: Verdict
    tokens: int
    spilled: int
    weights: int
    kv_per_1k: int
    loading: int
    loading_room: int
    loads: bool
    free: FreeMemory

    @property
    def rounded_file(self) -> bool:
        return self.free.quantization == FITTED


def fit_pair(target: ModelShape, draft: ModelShape | None, free: FreeMemory) -> ModelFit:
    """Compute the memory that this pair of target and draft takes on this machine, and whether the pair fits.

    A GGUF file whose expanded weights do not fit the GPUs is rounded, as in ``planner.with_fitting_weights``.
    """
    fit = _fit(target, draft, free)
    may_round = free.on_gpu and free.rounds_files and target.fitted > 0 and free.quantization not in BITS
    if fit.verdict != "none" or not may_round:
        return fit
    rounded = _fit(target, draft, replace(free, quantization=FITTED))
    return rounded if rounded.verdict != "none" else fit


def _fit(target: ModelShape, draft: ModelShape | None, free: FreeMemory) -> ModelFit:
    itemsize = _itemsize(target, free)
    weights = _weights(target, itemsize, free)
    layers = int(weights - target.embeddings * (_in_blocks(target, free) or itemsize))
    weights += _weights(draft, _itemsize(draft, free), replace(free, quantization="stored")) if draft else 0
    kv = _kv_size(target, itemsize, free)
    rooms = [DeviceRoom(bytes_, 0 if place else weights - layers) for place, bytes_ in enumerate(free.cards)]
    shares = _shares(target, layers // target.layers, kv, rooms)
    parts = _parts(target, kv, shares)
    held = [
        room.taken_bytes + share.layers * layers // target.layers for room, share in zip(rooms, shares, strict=True)
    ]
    held = [bytes_ + retrieval_bytes(part, MIN_BUDGET) for bytes_, part in zip(held, parts, strict=True)]
    left = [_usable(room.free_bytes - bytes_, on_gpu=free.on_gpu) for room, bytes_ in zip(rooms, held, strict=True)]

    def longest(host: int, disk: int) -> int:
        return largest(target.window, lambda count: spread_over(parts, count, left, host, disk) is not None)

    tokens, spilled = longest(0, 0), longest(int(free.host * PINNED_SHARE), int(free.disk * DISK_SHARE))
    verdict: Verdict = "whole" if tokens == target.window else "part" if spilled >= SHORTEST_BOOK else "none"
    loading, room = _weights(target, itemsize, free), free.host if free.on_gpu else free.memory
    if free.quantization in (*BITS, FITTED):  # while a layer is quantized, its unquantized weights are in memory too
        loading += (target.parameters - target.embeddings) // target.layers * itemsize
    loads = not target.expanded or loading <= room
    return ModelFit(
        verdict if loads else "none", tokens, spilled, weights, 1000 * kv.stored, loading, room, loads, free
    )


def _usable(bytes_: int, *, on_gpu: bool) -> int:
    return usable(bytes_) if on_gpu else int(bytes_ * MEMORY_SHARE)


def retrieval_gain(target: ModelShape, found: ModelFit, tokens: int = BOOK_TOKENS) -> float | None:
    """The maximum factor by which the middle level (the target on the retrieval cache) speeds up answers after a book
    of ``tokens`` tokens. None if every layer reads the whole book.

    A plain step reads the weights and the full cache. A pass of the middle level reads hardly more than the weights,
    because the retrieval cache is small.
    """
    if target.reading_layers == target.layers:
        return None
    tokens = min(tokens, target.window)
    kv_read = tokens * found.kv_per_1k / 1000 * target.reading_layers / target.full_layers
    return 1 + kv_read / _weights_read(target, found)


def _weights_read(target: ModelShape, found: ModelFit) -> float:
    """Bytes of the weights that a pass over one token reads. Only the chosen experts are read."""
    return found.weights * target.parameters_asked / target.parameters


def _shares(target: ModelShape, weights: int, kv: KvSize, rooms: Sequence[DeviceRoom]) -> list[Share]:
    """Divide the layers among the devices as the planner does.

    When a model is loaded, the planner may let some weights wait in host memory. Here a model that needs this counts as
    not fitting, so that only models with all weights on the devices are offered.
    """
    if len(rooms) == 1:
        return [Share(target.layers)]
    return share_layers(target.layers, layer_bytes(target.layers, weights, kv, target.window, MIN_BUDGET), rooms)


def _parts(target: ModelShape, kv: KvSize, shares: Sequence[Share]) -> list[KvSize]:
    """Compute the sizes of the KV of each device's layers. Assumes that layers with a sliding window or a state are
    spread evenly over the devices.
    """
    ends = list(accumulate(share.layers for share in shares))
    parts = []
    for first, last in zip([0, *ends], ends, strict=False):
        begin, end = (place * target.full_layers // target.layers for place in (first, last))
        whole = kv.stored, kv.computed, kv.staged
        stored, computed, staged = (bytes_ * (end - begin) // target.full_layers for bytes_ in whole)
        index = kv.index * (end - begin) // target.full_layers
        fixed = kv.fixed * (last - first) // target.layers
        parts.append(KvSize(end - begin, stored, computed, staged, kv.quantized, index, fixed))
    return parts


def gpu_class(target: ModelShape, draft: ModelShape | None, weights: str) -> int | None:
    """Find the smallest size in ``GPU_CLASSES`` (GiB of GPU memory) that is enough for a pair and the KV of a book of
    ``_CLASS_BOOK`` tokens. None if no size is enough.

    Args:
        weights: format of the target's weights, as in ``FreeMemory.quantization``.
    """
    for size_gb in GPU_CLASSES:
        card = int(size_gb * (1 << 30) * _GPU_SHARE)
        free = FreeMemory(card, 0, on_gpu=True, host=target.parameters * 2, quantization=weights, keeps_files=True)
        if fit_pair(target, draft, free).tokens >= min(_CLASS_BOOK, target.window):
            return size_gb
    return None


@dataclass(frozen=True)
class Rounding:
    """Quantized formats with which a model may fit: ``weights`` (a key of ``BITS``) and ``kv`` ("8bit"). "" keeps the
    configured format.
    """

    weights: str
    kv: str

    def of(self, free: FreeMemory) -> FreeMemory:
        return replace(free, quantization=self.weights or free.quantization, kv=self.kv or free.kv)


_ROUNDINGS = (Rounding("8bit", ""), Rounding("8bit", "8bit"), Rounding("4bit", ""), Rounding("4bit", "8bit"))


def roundings(target: ModelShape, draft: ModelShape | None, free: FreeMemory) -> list[tuple[Rounding, ModelFit]]:
    """List the quantized formats with which a pair fits, each with its fit, in the order of increasing loss of
    precision. Empty if the pair already fits in the configured formats, or if it fits in none of the quantized formats.
    """
    if fit_pair(target, draft, free).verdict != "none":
        return []
    tried = [(one, fit_pair(target, draft, one.of(free))) for one in _ROUNDINGS]
    return [(one, fits) for one, fits in tried if fits.verdict != "none"]


def rounding(target: ModelShape, draft: ModelShape | None, free: FreeMemory) -> Rounding | None:
    """Choose the first of ``roundings`` with which a book of ``BOOK_TOKENS`` tokens, or of the whole window if that is
    shorter, fits on the compute devices. If there is none, choose the first of ``roundings``. None if ``roundings`` is
    empty.
    """
    found = roundings(target, draft, free)
    book = min(BOOK_TOKENS, target.window)
    return next((one for one, fits in found if fits.tokens >= book), found[0][0] if found else None)


def _kv_size(shape: ModelShape, itemsize: int, free: FreeMemory) -> KvSize:
    whole = shape.kv_bytes_per_token(itemsize)
    quantized = free.kv == "8bit"
    kept = shape.quantized_kv_bytes_per_token if quantized else whole
    index = index_bytes(shape.full_layers * shape.kv_heads, shape.head_dim, CHUNK)
    staged = whole + (kept if quantized and not free.on_gpu else 0)  # as in ``KvShape.staged_bytes_per_token``
    return KvSize(shape.full_layers, kept, whole, staged, quantized, index, shape.bounded_bytes(itemsize))


def _weights(shape: ModelShape, itemsize: int, free: FreeMemory) -> int:
    """Bytes of weights in memory. The format ``free.quantization`` does not apply to the embedding and the output
    head.
    """
    if stored := _in_blocks(shape, free):
        return int(shape.parameters * stored)
    blocks = shape.parameters - shape.embeddings
    each = shape.fitted if free.quantization == FITTED else bytes_per_weight(free.quantization, itemsize)
    return int(shape.embeddings * itemsize + blocks * each)


def _in_blocks(shape: ModelShape, free: FreeMemory) -> float:
    """Bytes of a weight in memory if weights keep the blocks of their GGUF file; 0 if they do not."""
    if free.quantization in (*BITS, FITTED):
        return 0.0
    return (shape.on_card if free.keeps_files else 0.0) if free.on_gpu else shape.stored


def _itemsize(shape: ModelShape, free: FreeMemory) -> int:
    return 2 if free.on_gpu or cpu_holds_halves(shape.parameters) else 4


@dataclass(frozen=True)
class BookTimes:
    """Seconds to read a book of ``tokens`` tokens, and seconds to decode one token after the book without
    speculation.
    """

    tokens: int
    reading_s: float
    step_s: float


def book_times(shape: ModelShape, found: ModelFit, rates: MachineRates, tokens: int = BOOK_TOKENS) -> BookTimes | None:
    """Estimate the times for a book of ``tokens``, or for the part of the book that fits; None if no part fits.

    Args:
        found: result of ``fit_pair`` for this model.
        rates: measured by ``machine_rates``.
    """
    free = found.free
    tokens = min(tokens, shape.window, max(found.tokens, found.spilled))
    if found.verdict == "none" or tokens <= 0:
        return None
    kv = tokens * found.kv_per_1k / 1000
    blocks = shape.parameters_asked - (shape.embeddings - shape.inputs)
    width = (blocks / shape.layers / _WIDTH) ** 0.5
    seen = shape.reading_layers * tokens + shape.sliding_layers * min(tokens, 2 * shape.sliding_window)
    work = 2.0 * blocks * tokens + 2.0 * seen * width * tokens
    spilled = max(0.0, tokens - found.tokens) / tokens * kv
    slower = rates.bus if free.on_gpu else rates.disk
    machine = Rates(rates.memory, slower, len(free.cards))  # each GPU moves its own layers over its own bus
    step = machine.pass_s(_weights_read(shape, found) + kv - spilled, spilled)
    return BookTimes(tokens, max(work / (_REACHED * rates.flops), machine.pass_s(0.0, spilled)), step)


def measure_free_memory(
    folder: Path,
    status: Status,
    kv_bytes: int = 0,
    kv: str = "model",
    quantization: str = "stored",
    device: str = "auto",
) -> FreeMemory:
    """Measure the free memory and the free disk space of this machine.

    Args:
        folder: a folder on the disk to measure.
        status: status of the running engine. Without a GPU, the memory of its weights counts as free.
        kv_bytes: bytes of the open book's KV. Without a GPU these bytes count as free too.
        kv: configured format of the cache.
        quantization: configured format of the target's weights.
        device: configured devices, as in ``planner.pick_devices``.
    """
    existing = next(folder for folder in (folder, *folder.parents) if folder.exists())
    disk = shutil.disk_usage(existing).free
    import psutil

    available = int(psutil.virtual_memory().available)
    cards, rounds_files, keeps_files = _gpus(device)
    if cards:
        own = FreeMemory(cards[0], disk, on_gpu=True, host=available, kv=kv, quantization=quantization)
        return replace(own, others=cards[1:], rounds_files=rounds_files, keeps_files=keeps_files)
    model = status.model
    itemsize = _BYTES.get(model.dtype, 0) if model else 0
    held = int(model.parameters * bytes_per_weight(quantization, itemsize)) if model and itemsize else 0
    held += (model.draft_parameters or 0) * itemsize if model else 0
    return FreeMemory(available + held + kv_bytes, disk, on_gpu=False, kv=kv, quantization=quantization)


def _gpus(device: str) -> tuple[tuple[int, ...], bool, bool]:
    """Return the bytes of each GPU that would be free if this process used no GPU memory, the largest number first.
    Also return whether GGUF files are rounded to fit these GPUs, and whether the GPUs read their blocks.

    The tuple of bytes is empty if the engine computes in host memory, or if torch has not been imported yet. This
    function does not import torch, because that takes seconds.

    Args:
        device: configured devices. Only the GPUs among them count.
    """
    if "torch" not in sys.modules:
        return (), False, False
    from engine.plan.planner import may_keep_files, may_round_files, memory_of_cards

    try:
        return memory_of_cards(device), may_round_files(device), may_keep_files(device)
    except OptionError:  # an unknown device is reported when a model is loaded
        return (), False, False
