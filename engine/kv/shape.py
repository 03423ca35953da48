"""Shape of a model's KV, and the format it is stored in: the model's dtype, or 8 bits.

KV in 8 bits, on request, takes half the memory of bfloat16 and a quarter of float32, and is the only approximation
there is. A key or value of one head, head_dim numbers, is stored as head_dim levels of one byte followed by its own
scale in two bytes. Symmetric: the number of the largest magnitude is level 127 or -127, zero stays zero, and a level
stands for itself times the scale. One scale per token and head, because a token is then quantized by itself when it is
written: nothing that comes later changes what it stands for, and it can be cropped, moved and saved alone. (A scale
per channel fits keys better, but needs tokens that are not there yet.) Keys are quantized after RoPE, as they are
stored; a rotation mixes two channels each and leaves the norm as it is.

The scale is bfloat16, whose range is that of float32; float16 for models in float16. Its own rounding costs nothing,
since levels are computed with the rounded scale. Every reader sees ``dequantize``d numbers, the pass that writes them
too: so all ways of decoding compute with the same KV.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from engine.quantization import SCALE_BYTES, index_bytes, index_is_quantized

LEVELS = 127
"""The largest level."""


@dataclass(frozen=True)
class Split:
    """A model's layers on several devices: weights, KV and computation of a layer lie together.

    Args:
        devices: the first is the one where passes begin and end, with the embedding, the head and the draft model.
        part_of: of every layer, the index of its device.
    """

    devices: tuple[torch.device, ...]
    part_of: tuple[int, ...]

    def layers(self, part: int) -> tuple[int, ...]:
        """The layers of the device with this index."""
        return tuple(layer for layer, of in enumerate(self.part_of) if of == part)


@dataclass(frozen=True)
class KvShape:
    """Shape and format of one model's KV.

    Args:
        dtype: of the computation.
        device: where passes begin and end.
        quantized: whether storage has 8 bits.
        chunk_size: tokens that share a mean key in the index of a retrieval cache, 0 where there is none.
        split: which layers lie elsewhere; None has all of them on ``device``.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    quantized: bool = False
    chunk_size: int = 0
    split: Split | None = None

    @cached_property
    def parts(self) -> tuple[KvShape, ...]:
        """The KV of each device's layers by itself."""
        if self.split is None:
            return (self,)
        counts = [len(self.split.layers(part)) for part in range(len(self.split.devices))]
        pairs = zip(self.split.devices, counts, strict=True)
        return tuple(replace(self, device=device, layers=count, split=None) for device, count in pairs)

    def layers_of(self, part: int) -> tuple[int, ...]:
        """The layers of a device, in order."""
        return self.split.layers(part) if self.split else tuple(range(self.layers))

    def part_of(self, layer: int) -> int:
        """The index of the device of a layer."""
        return self.split.part_of[layer] if self.split else 0

    def of_layer(self, layer: int) -> KvShape:
        """The shape of the part that a layer belongs to."""
        return self.parts[self.part_of(layer)]

    def stored_as(self, kv: str) -> KvShape:
        """The same KV in the format that the setting ``kv`` names: "model" or "8bit"."""
        return replace(self, quantized=kv == "8bit")

    def indexed(self, chunk_size: int) -> KvShape:
        """The same KV with a mean key for every ``chunk_size`` tokens."""
        return replace(self, chunk_size=chunk_size)

    @property
    def storage_dtype(self) -> torch.dtype:
        """Of KV in memory, on a bus and on disk."""
        return torch.int8 if self.quantized else self.dtype

    @property
    def storage_dim(self) -> int:
        """Numbers of ``storage_dtype`` in one key or value of one head."""
        return self.head_dim + SCALE_BYTES if self.quantized else self.head_dim

    @property
    def kind(self) -> str:
        """The format in words, for the manifest of a snapshot."""
        name = str(self.dtype).removeprefix("torch.")
        return f"{name} in 8 bits" if self.quantized else name

    @property
    def bytes_per_token(self) -> int:
        """In storage, all layers."""
        return 2 * self.layers * self.kv_heads * self.storage_dim * self.storage_dtype.itemsize

    @property
    def compute_bytes_per_token(self) -> int:
        """In the dtype of the computation: what a buffer for all layers would take."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def staged_bytes_per_token(self) -> int:
        """What a buffer of spilled layers takes: on a processor it holds KV of 8 bits as it is stored, too."""
        as_stored = self.bytes_per_token if self.quantized and self.device.type == "cpu" else 0
        return self.compute_bytes_per_token + as_stored

    @property
    def index_is_quantized(self) -> bool:
        """Whether mean keys have 8 bits, each with a scale: where a kernel reads them as they are."""
        return index_is_quantized(self.head_dim, self.device.type == "cpu")

    @property
    def index_bytes_per_token(self) -> int:
        """Of the mean keys, which lie where the model computes."""
        if not self.chunk_size:
            return 0
        heads, itemsize = self.layers * self.kv_heads, self.dtype.itemsize
        return index_bytes(heads, self.head_dim, itemsize, self.chunk_size, self.index_is_quantized)

    def quantize(self, x: torch.Tensor) -> torch.Tensor:
        """KV (..., head_dim) in the model's dtype as it is stored: (..., storage_dim) of ``storage_dtype``."""
        if not self.quantized:
            return x
        stored = torch.empty(*x.shape[:-1], self.storage_dim, dtype=torch.int8, device=x.device)
        stored[..., : self.head_dim], scale = quantize_symmetric(x, self._scale_dtype)
        stored[..., self.head_dim :].view(self._scale_dtype).copy_(scale)
        return stored

    def dequantize(self, stored: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Stored KV (..., storage_dim) in the model's dtype: (..., head_dim); written to ``out`` where it is given."""
        if not self.quantized:
            return stored if out is None else out.copy_(stored)
        if out is None:
            out = torch.empty(*stored.shape[:-1], self.head_dim, dtype=self.dtype, device=stored.device)
        # Two passes over ``out``, which is what a processor does without a copy in between.
        out.copy_(stored[..., : self.head_dim])
        return out.mul_(stored[..., self.head_dim :].view(self._scale_dtype).to(self.dtype))

    @property
    def _scale_dtype(self) -> torch.dtype:
        return torch.float16 if self.dtype is torch.float16 else torch.bfloat16


def quantize_symmetric(x: torch.Tensor, scale_dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Levels (..., n), whole numbers in the dtype float32, of vectors (..., n), and their scales (..., 1)."""
    values = x.float()
    scale = (values.abs().amax(dim=-1, keepdim=True) / LEVELS).clamp(min=torch.finfo(scale_dtype).tiny).to(scale_dtype)
    return (values / scale.float()).round().clamp(-LEVELS, LEVELS), scale
