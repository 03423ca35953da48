"""Shape and kind of a model's KV."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class KvShape:
    """Shape and kind of one model's KV."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize
