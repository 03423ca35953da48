"""The target model's full cache: every token, the only cache that must exist.

Axis order (kv_heads, seq, head_dim) per layer; keys are stored after RoPE and read with position id = index.
``length`` counts tokens whose KV is in all layers. Newest tokens can be cropped down to any length. Knows nothing of
how tokens are proposed; an ``Observer`` may look at each layer's queries while its KV is at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from engine import attention
from engine.errors import ContextTooSmall
from engine.events import KvBytes

# Growth step of the buffers: large enough that a chat rarely copies them.
_GROWTH = 4096


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


class Observer(Protocol):
    """Looks at one layer's queries q (1, heads, n, head_dim) right after its attention, while its KV is at hand."""

    def observe(self, layer: int, q: torch.Tensor, scaling: float) -> None: ...


class FullCache:
    """KV of every token.

    Args:
        shape: of the target model.
        limit: most tokens that it may ever hold (the window).
    """

    def __init__(self, shape: KvShape, limit: int) -> None:
        self.shape = shape
        self.limit = limit
        self.length = 0
        self.capacity = 0
        self._keys: list[torch.Tensor] = [self._empty(0) for _ in range(shape.layers)]
        self._values: list[torch.Tensor] = [self._empty(0) for _ in range(shape.layers)]

    def _empty(self, capacity: int) -> torch.Tensor:
        shape = self.shape
        return torch.empty(shape.kv_heads, capacity, shape.head_dim, dtype=shape.dtype, device=shape.device)

    def reserve(self, length: int) -> None:
        """Make room for ``length`` tokens.

        Raises:
            ContextTooSmall: more than the window holds.
        """
        if length > self.limit:
            raise ContextTooSmall(
                f"The window holds {self.limit:,} tokens and {length:,} are needed.",
                "Start a new chat, or read fewer pages.",
            )
        if length <= self.capacity:
            return
        capacity = min(self.limit, -(-length // _GROWTH) * _GROWTH)
        for store in (self._keys, self._values):
            for layer, old in enumerate(store):
                grown = self._empty(capacity)
                grown[:, : self.length] = old[:, : self.length]
                store[layer] = grown
        self.capacity = capacity

    def crop(self, length: int) -> None:
        """Drop the newest tokens so that ``length`` remain."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot crop a cache of {self.length} tokens to {length}")
        self.length = length

    def advance(self, count: int) -> None:
        """Count tokens as stored, once every layer has written them."""
        self.length += count

    def keys(self, layer: int, start: int, stop: int) -> torch.Tensor:
        """View of keys [start, stop) of a layer: (kv_heads, stop - start, head_dim)."""
        return self._keys[layer][:, start:stop]

    def values(self, layer: int, start: int, stop: int) -> torch.Tensor:
        """View of values [start, stop) of a layer: (kv_heads, stop - start, head_dim)."""
        return self._values[layer][:, start:stop]

    def write(self, layer: int, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store KV (1, kv_heads, n, head_dim) of the tokens from ``start`` on."""
        stop = start + k.shape[2]
        self._keys[layer][:, start:stop] = k[0]
        self._values[layer][:, start:stop] = v[0]

    def extend(self, start: int, observer: Observer | None = None) -> FullPass:
        """The view that one forward pass of new tokens, the first at position ``start``, attends through."""
        return FullPass(self, start, observer)

    def kv_bytes(self) -> KvBytes:
        """Bytes that the stored tokens take, by tier."""
        used = self.length * self.shape.bytes_per_token
        return KvBytes(host=used) if self.shape.device.type == "cpu" else KvBytes(device=used)


class FullPass:
    """One forward pass of new tokens over everything before them. Implements ``attention.KeyValues``."""

    def __init__(self, cache: FullCache, start: int, observer: Observer | None) -> None:
        self._cache = cache
        self._start = start
        self._observer = observer

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> torch.Tensor:
        cache, start, n = self._cache, self._start, q.shape[2]
        cache.write(layer, start, k, v)
        keys, values = cache.keys(layer, 0, start + n), cache.values(layer, 0, start + n)
        out = attention.attend_newest(q, keys.unsqueeze(0), values.unsqueeze(0), scaling)
        if self._observer is not None:
            self._observer.observe(layer, q, scaling)
        return out
