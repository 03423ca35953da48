"""Describes the shape of a model's KV, and its storage format: the model's dtype, or 8 bits.

KV in 8 bits is used only on request. It takes half the memory of bfloat16 and a quarter of that of float32. A key or
value of one head (head_dim numbers) is stored as head_dim quants of one byte, followed by one scale of two bytes. The
quantization is symmetric: the number with the largest magnitude becomes quant 127 or -127, zero stays zero, and a
dequantized number is its quant times the scale. Each token has scales of its own, so a token is quantized by itself
when it is written. Later tokens do not change its KV, which can therefore be cropped, moved and saved alone. (A scale
for each channel would fit keys better, but would depend on later tokens.) Keys are quantized and stored after RoPE,
which mixes pairs of channels and keeps the norm.

The scale is float16 for models in float16. For all other models it is bfloat16, which has the range of float32.
Rounding the scale costs no accuracy, because quants are computed with the rounded scale. Even the pass that writes a
token's KV attends to the dequantized numbers (``dequantize``), so all ways of decoding compute with the same KV.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from engine.devices import KINDS, DeviceKind
from engine.quantization import (
    SCALE_BYTES,
    StateSize,
    index_bytes,
    sliding_capacity,
)

LARGEST_QUANT = 127
"""The largest magnitude of a quant."""


@dataclass(frozen=True)
class Split:
    """How a model's layers are split over devices. Weights, KV and computation of a layer are on the same device.

    Args:
        devices: passes begin and end on the first device, which also has the embedding, the head and the draft model.
        part_of: for every layer, the index of its device.
    """

    devices: tuple[torch.device, ...]
    part_of: tuple[int, ...]

    def layers(self, part: int) -> tuple[int, ...]:
        """The indices of the layers on the device with the index ``part``."""
        return tuple(layer for layer, of in enumerate(self.part_of) if of == part)


@dataclass(frozen=True)
class Sliding:
    """The layers of a model with a sliding window: a token sees only the newest ``window`` tokens, including itself.

    Args:
        layers: indices of these layers in the model, without layers that read the KV of another layer.
        kv_heads, head_dim: number of KV heads, and head_dim, of these layers. Layers that keep the whole context may
            have other numbers.
    """

    layers: tuple[int, ...]
    window: int
    kv_heads: int
    head_dim: int

    @property
    def capacity(self) -> int:
        """Number of tokens whose KV each of these layers holds (``engine.kv.windowed``)."""
        return sliding_capacity(self.window)

    def bytes_per_token(self, itemsize: int) -> int:
        """Bytes of one token's KV in all these layers together. ``itemsize`` is the number of bytes of an element."""
        return 2 * len(self.layers) * self.kv_heads * self.head_dim * itemsize


@dataclass(frozen=True)
class Recurrent:
    """The layers of a model with a state of fixed size instead of KV.

    Args:
        layers: indices of these layers in the model.
        size: dimensions of one layer's state.
    """

    layers: tuple[int, ...]
    size: StateSize


@dataclass(frozen=True)
class KvShape:
    """Shape and format of one model's KV.

    Layers that keep the whole context are numbered separately, from 0 on; ``place_of`` maps the index of a layer in the
    model to this number. All other layers are numbered by their index in the model.

    Args:
        layers: number of layers that keep the whole context.
        kv_heads, head_dim: number of KV heads, and head_dim, of the layers that keep the whole context.
        dtype: dtype of the computation.
        device: where passes begin and end.
        quantized: whether KV is stored in 8 bits.
        chunk_size: tokens that share a mean key in the index of a retrieval cache; 0 if there is no index.
        split: the device of each layer of the model; None puts all layers on ``device``.
        sliding: the model's layers with a sliding window; None if there are none.
        recurrent: the model's layers with a state; None if there are none.
        sources: for each layer without KV of its own, a pair of indices: the layer, and the layer whose KV it reads.
        group: number of query heads that share a KV head, in the layers that keep the whole context.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    quantized: bool = False
    chunk_size: int = 0
    split: Split | None = None
    sliding: Sliding | None = None
    recurrent: Recurrent | None = None
    sources: tuple[tuple[int, int], ...] = ()
    group: int = 1

    @property
    def bounded(self) -> tuple[int, ...]:
        """Indices in the model of the layers with a sliding window or a state, whose memory has a fixed size
        (``engine.kv.bounded``).
        """
        return tuple(sorted(layer for kind in (self.sliding, self.recurrent) if kind for layer in kind.layers))

    @property
    def model_layers(self) -> int:
        return self.layers + len(self.bounded) + len(self.sources)

    @cached_property
    def _places(self) -> dict[int, int]:
        others = {*self.bounded, *self._source_of}
        keep = [layer for layer in range(self.model_layers) if layer not in others]
        return {layer: place for place, layer in enumerate(keep)}

    @cached_property
    def _source_of(self) -> dict[int, int]:
        return dict(self.sources)

    def source_of(self, layer: int) -> int:
        """The index of the layer whose KV ``layer`` reads. Most layers read their own KV."""
        return self._source_of.get(layer, layer)

    def place_of(self, layer: int) -> int | None:
        """Map the index of a layer in the model to its number among the layers that keep the whole context; None if the
        layer does not keep the whole context. A layer without KV of its own gets the number of the layer whose KV it
        reads.
        """
        return self._places.get(self.source_of(layer))

    def window_of(self, layer: int) -> int | None:
        """Number of tokens that a token sees in a layer with a sliding window; None for any other layer."""
        return self.sliding.window if self.sliding and self.source_of(layer) in self.sliding.layers else None

    def has_kv(self, layer: int) -> bool:
        """Whether a layer of the model stores its own keys and values."""
        return layer not in self._source_of and not (self.recurrent and layer in self.recurrent.layers)

    def heads_of(self, layer: int) -> tuple[int, int]:
        """The number of KV heads, and the head_dim, of a layer with attention. ``layer`` is its index in the model."""
        if self.sliding is not None and self.source_of(layer) in self.sliding.layers:
            return self.sliding.kv_heads, self.sliding.head_dim
        return self.kv_heads, self.head_dim

    @property
    def device_kind(self) -> DeviceKind:
        return KINDS[self.device.type]

    def device_of(self, layer: int) -> torch.device:
        return self.split.devices[self.split.part_of[layer]] if self.split else self.device

    @cached_property
    def parts(self) -> tuple[KvShape, ...]:
        """Make one ``KvShape`` for each device, which describes only the layers on this device."""
        if self.split is None:
            return (self,)
        shapes = []
        for part, device in enumerate(self.split.devices):
            mine = set(self.split.layers(part))
            sliding, recurrent = self.sliding, self.recurrent
            if sliding is not None:
                sliding = replace(sliding, layers=tuple(sorted(mine.intersection(sliding.layers))))
            if recurrent is not None:
                recurrent = replace(recurrent, layers=tuple(sorted(mine.intersection(recurrent.layers))))
            layers = len(self.layers_of(part))
            own = replace(self, device=device, layers=layers, split=None, sources=())
            shapes.append(replace(own, sliding=sliding, recurrent=recurrent))
        return tuple(shapes)

    def layers_of(self, part: int) -> tuple[int, ...]:
        """The layers that keep the whole context and are on the device with the index ``part``, numbered as by
        ``place_of``.
        """
        return tuple(place for place in range(self.layers) if self.part_of(place) == part)

    @cached_property
    def _part_of(self) -> tuple[int, ...]:
        return tuple(self.split.part_of[layer] if self.split else 0 for layer in self._places)

    def part_of(self, layer: int) -> int:
        """The index of the device of a layer that keeps the whole context. ``layer`` is the layer's number from
        ``place_of``.
        """
        return self._part_of[layer]

    def of_layer(self, layer: int) -> KvShape:
        """The shape for the device of a layer that keeps the whole context. ``layer`` is the layer's number from
        ``place_of``.
        """
        return self.parts[self.part_of(layer)]

    def stored_as(self, kv: str) -> KvShape:
        """Copy this shape with the storage format ``kv``: "model" or "8bit"."""
        return replace(self, quantized=kv == "8bit")

    def indexed(self, chunk_size: int) -> KvShape:
        """Copy this shape with an index: one mean key for every ``chunk_size`` tokens."""
        return replace(self, chunk_size=chunk_size)

    @property
    def storage_dtype(self) -> torch.dtype:
        """The dtype of KV in memory, in transfers and on disk."""
        return torch.int8 if self.quantized else self.dtype

    @property
    def storage_dim(self) -> int:
        """Number of elements of ``storage_dtype`` in the key or value of one head. In 8 bits this includes the
        scale.
        """
        return self.head_dim + SCALE_BYTES if self.quantized else self.head_dim

    @property
    def kind(self) -> str:
        """Describe the format of the KV in words, for the manifest of a snapshot."""
        name = str(self.dtype).removeprefix("torch.")
        return f"{name} in 8 bits" if self.quantized else name

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's stored KV in all layers that keep the whole context."""
        return 2 * self.layers * self.kv_heads * self.storage_dim * self.storage_dtype.itemsize

    def bounded_bytes(self, tokens: int) -> int:
        """Bytes of all sliding windows and recurrent states after ``tokens`` tokens. Includes the copies: one of each
        window, as it was at the end of the book, and several of each state, for the end of the book and for the places
        to which a chat may be cropped.
        """
        total, itemsize = 0, self.dtype.itemsize
        if self.sliding is not None:
            held = min(tokens, self.sliding.capacity) + min(tokens, self.sliding.window)
            total += self.sliding.bytes_per_token(itemsize) * held
        if self.recurrent is not None and tokens:
            total += len(self.recurrent.layers) * self.recurrent.size.held_bytes(itemsize)
        return total

    def bounded_bytes_read(self, tokens: int) -> int:
        """Bytes of sliding windows and recurrent states that a plain step reads after ``tokens`` tokens, without their
        copies.
        """
        total, itemsize = 0, self.dtype.itemsize
        if self.sliding is not None:
            total += self.sliding.bytes_per_token(itemsize) * min(tokens, self.sliding.window)
        if self.recurrent is not None:
            total += len(self.recurrent.layers) * self.recurrent.size.bytes(itemsize)
        return total

    @property
    def most_bounded_bytes(self) -> int:
        """The maximum of ``bounded_bytes``, which is reached after a long book."""
        return self.bounded_bytes(self.sliding.capacity if self.sliding else 1)

    @property
    def compute_bytes_per_token(self) -> int:
        """Bytes of one token's KV in a buffer in the compute dtype, over all layers that keep the whole context."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def staged_bytes_per_token(self) -> int:
        """Bytes of one token's KV in a buffer for spilled layers. If KV is quantized, the buffer on a processor holds
        each token twice: in the compute dtype and in the storage format.
        """
        as_stored = self.bytes_per_token if self.quantized and self.device.type == "cpu" else 0
        return self.compute_bytes_per_token + as_stored

    @property
    def index_bytes_per_token(self) -> int:
        """Bytes of the index (the mean keys) on the compute device for each token of context; 0 if there is no
        index.
        """
        if not self.chunk_size:
            return 0
        return index_bytes(self.layers * self.kv_heads, self.head_dim, self.chunk_size)

    def quantize(self, x: torch.Tensor) -> torch.Tensor:
        """Convert KV (..., head_dim) in the model's dtype to the storage format (..., storage_dim), of the dtype
        ``storage_dtype``.
        """
        if not self.quantized:
            return x
        stored = torch.empty(*x.shape[:-1], self.storage_dim, dtype=torch.int8, device=x.device)
        stored[..., : self.head_dim], scale = quantize_symmetric(x, self._scale_dtype)
        stored[..., self.head_dim :].view(self._scale_dtype).copy_(scale)
        return stored

    def dequantize(self, stored: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Convert stored KV (..., storage_dim) to (..., head_dim) in the model's dtype. The result is written to
        ``out`` if that is given.
        """
        if not self.quantized:
            return stored if out is None else out.copy_(stored)
        if out is None:
            out = torch.empty(*stored.shape[:-1], self.head_dim, dtype=self.dtype, device=stored.device)
        # Two operations on ``out`` dequantize the numbers, so that a processor needs no temporary copy.
        out.copy_(stored[..., : self.head_dim])
        return out.mul_(stored[..., self.head_dim :].view(self._scale_dtype).to(self.dtype))

    @property
    def _scale_dtype(self) -> torch.dtype:
        return torch.float16 if self.dtype is torch.float16 else torch.bfloat16


def quantize_symmetric(x: torch.Tensor, scale_dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize vectors (..., n). Return quants (..., n), as whole numbers in float32, and scales (..., 1)."""
    values = x.float()
    step = values.abs().amax(dim=-1, keepdim=True) / LARGEST_QUANT
    scale = step.clamp(min=torch.finfo(scale_dtype).tiny).to(scale_dtype)
    return (values / scale.float()).round().clamp(-LARGEST_QUANT, LARGEST_QUANT), scale
