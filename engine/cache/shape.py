"""Shape and kind of a model's KV."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from engine.fitting import SCALE_BYTES, index_bytes, index_is_rounded


@dataclass(frozen=True)
class KvShape:
    """Shape and kind of one model's KV. ``dtype`` is what is computed with; ``rounded``: what is kept has 8 bits;
    ``chunk_size``: tokens that share a mean key in the index of a retrieval cache, 0 where there is none."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    rounded: bool = False
    chunk_size: int = 0

    def kept_as(self, kv: str) -> KvShape:
        """The same KV, kept as the setting ``kv`` says: "model" or "8bit"."""
        return replace(self, rounded=kv == "8bit")

    def indexed(self, chunk_size: int) -> KvShape:
        """The same KV with a mean key kept for every ``chunk_size`` tokens."""
        return replace(self, chunk_size=chunk_size)

    @property
    def kept_dtype(self) -> torch.dtype:
        """Of what is kept, moved and written."""
        return torch.int8 if self.rounded else self.dtype

    @property
    def kept_dim(self) -> int:
        """Numbers of ``kept_dtype`` that one key or value of one head takes."""
        return self.head_dim + SCALE_BYTES if self.rounded else self.head_dim

    @property
    def kind(self) -> str:
        """What is kept, for the header of a snapshot."""
        name = str(self.dtype).removeprefix("torch.")
        return f"{name} in 8 bits" if self.rounded else name

    @property
    def bytes_per_token(self) -> int:
        """As they are kept."""
        return 2 * self.layers * self.kv_heads * self.kept_dim * self.kept_dtype.itemsize

    @property
    def whole_bytes_per_token(self) -> int:
        """As they are computed with: what a buffer for all layers would take."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def index_is_rounded(self) -> bool:
        """Whether mean keys are kept in 8 bits, each with a scale: where a kernel reads them as they are."""
        return index_is_rounded(self.head_dim, self.device.type == "cpu")

    @property
    def index_bytes_per_token(self) -> int:
        """Of the mean keys, which lie where the model computes."""
        if not self.chunk_size:
            return 0
        heads, itemsize = self.layers * self.kv_heads, self.dtype.itemsize
        return index_bytes(heads, self.head_dim, itemsize, self.chunk_size, self.index_is_rounded)
