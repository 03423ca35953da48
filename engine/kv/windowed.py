"""Stores a layer with a sliding window: each token sees only the newest tokens, whose KV is in a buffer of fixed size.

Axis order (kv_heads, slot, head_dim). Keys are stored after RoPE.

A buffer holds the newest tokens without gaps. Its slot 0 belongs to a position that is a multiple of
``SLIDING_BORDER``, because CPU kernels split their sums at such positions. So a token's result has the same bits
whatever other tokens are in the pass. If the buffer is full, the oldest tokens are evicted, but at least
``SLIDING_SLACK`` tokens before the window are kept. So speculated tokens or the last question can be cropped, and the
window at the new length is still complete.

A long segment of a prompt is computed layer by layer, and is committed only after the last layer. Until then its tokens
may have evicted the committed window from some layers. These layers keep a copy of the committed window until
``commit``, because a reading that is stopped must continue from the committed tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from engine.quantization import SLIDING_BORDER, SLIDING_SLACK

if TYPE_CHECKING:
    from engine.model.kv_shape import Sliding


class WindowedLayer:
    """Holds the KV of one layer's newest tokens [first, stop). Slot 0 belongs to the token with index ``origin``."""

    def __init__(self, sliding: Sliding, dtype: torch.dtype, device: torch.device, capacity: int) -> None:
        self._window, self._dtype = sliding.window, dtype
        size = (sliding.kv_heads, capacity, sliding.head_dim)
        # Masked slots are multiplied by zero, so they must not hold infinity or NaN.
        self.keys, self.values = (torch.zeros(size, dtype=dtype, device=device) for _ in range(2))
        self.origin = self.first = self.stop = 0
        self.committed: tuple[int, torch.Tensor, torch.Tensor] | None = None
        """The committed window, if newer tokens have evicted it: its first token, its keys, its values."""

    @property
    def allocated(self) -> int:
        """Bytes of the layer's memory."""
        return self.keys.nbytes + self.values.nbytes

    def reaches(self, length: int) -> bool:
        """Whether the layer still holds the whole window of the token that follows the first ``length`` tokens."""
        return self.first <= max(0, length - self._window + 1) and length <= self.stop

    def span(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the keys and values of the tokens [start, stop)."""
        slots = slice(start - self.origin, stop - self.origin)
        return self.keys[:, slots], self.values[:, slots]

    def store(self, start: int, k: torch.Tensor, v: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Store KV (1, kv_heads, n, head_dim) of at most ``SLIDING_SLACK`` tokens, the first at ``start``.

        Args:
            length: committed tokens.

        Returns:
            Views (kv_heads, seq, head_dim) of keys and values. They end with the stored tokens, and include every token
                to which the stored tokens attend.
        """
        if start == length:
            self.forget_uncommitted(length)
        self.write(start, k[0], v[0], length)
        return self.seen(start, self.stop)

    def seen(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views (kv_heads, seq, head_dim) of keys and values. They end before token ``stop``, and include every token
        that is attended to by token ``start`` or a later one.
        """
        return self.span(max(self.origin, _aligned(max(0, start - self._window + 1))), stop)

    def write(self, start: int, k: torch.Tensor, v: torch.Tensor, length: int) -> None:
        """Store KV (kv_heads, n, head_dim) of n tokens, the first at ``start``, and forget all tokens after these.

        Args:
            length: committed tokens.
        """
        stop = start + k.shape[1]
        if not self.reaches(start):
            raise ValueError(f"a layer that holds tokens {self.first} to {self.stop} cannot go on at {start}")
        if stop - self.origin > self.keys.shape[1]:
            self._make_room(start, length)
        keys, values = self.span(start, stop)
        keys.copy_(k)
        values.copy_(v)
        self.stop = stop

    def _make_room(self, start: int, length: int) -> None:
        """Evict the oldest tokens to make room for the tokens from ``start`` on. Keep a copy of the committed window if
        it is evicted.
        """
        origin = _aligned(max(0, start - self._window + 1 - SLIDING_SLACK))
        needed = max(self.first, length - self._window + 1, 0)
        if origin > needed and self.committed is None:
            keys, values = self.span(needed, length)
            self.committed = needed, keys.clone(), values.clone()
        # Before any token is moved, copy all tokens that stay, so that none is lost if memory runs out for the copies.
        kept = [part.clone() for part in self.span(origin, start)]
        for buffer, part in zip((self.keys, self.values), kept, strict=True):
            buffer[:, : start - origin] = part
        self.origin, self.first = origin, max(self.first, origin)

    def put(self, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Replace the whole content by the KV (kv_heads, n, head_dim) of the tokens from ``start`` on."""
        self.origin, self.first, self.stop = _aligned(start), start, start + k.shape[1]
        for buffer, part in zip((self.keys, self.values), (k, v), strict=True):
            buffer[:, : start - self.origin] = 0
            buffer[:, start - self.origin : self.stop - self.origin] = part

    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        self.stop = length

    def clear(self) -> None:
        """Forget all tokens."""
        self.put(0, self.keys[:, :0], self.values[:, :0])

    def commit(self) -> None:
        """Mark all stored tokens as committed. Call this only after every layer of the model has stored them."""
        self.committed = None

    def forget_uncommitted(self, length: int) -> None:
        """If uncommitted tokens have evicted the committed window, put the copy of this window (``committed``) back in
        their place. Otherwise do nothing.
        """
        if self.committed is not None:
            self.put(*self.committed)
            self.committed = None
            self.stop = min(self.stop, length)

    def gives(self, start: int, stop: int) -> int | None:
        """Return the first of the tokens [start, stop) that a copy of the layer should hold. Earlier tokens are left
        out, because the layer no longer holds them, or because decoding does not need them. None if decoding could not
        continue from a copy.
        """
        first = max(start, stop - self._window - SLIDING_SLACK, self.first)
        return first if first == start or self.reaches(stop) else None

    def held(self, start: int, stop: int) -> Mapping[str, torch.Tensor]:
        """Views of the keys and values of the tokens [start, stop), keyed by name."""
        keys, values = self.span(start, stop)
        return {"keys": keys, "values": values}

    def adopt(self, start: int, stop: int, tensors: Mapping[str, torch.Tensor], length: int) -> None:
        """Append the tokens [start, stop) if ``start`` is ``length``, the number of committed tokens. Otherwise make
        these the only tokens of the layer. ``tensors`` is what ``held(start, stop)`` returned when the tokens were
        copied.
        """
        keys, values = tensors["keys"], tensors["values"]
        if start != length:
            self.put(start, keys, values)
            return
        for offset in range(0, stop - start, SLIDING_SLACK):
            some = slice(offset, offset + SLIDING_SLACK)
            self.write(start + offset, keys[:, some], values[:, some], length)

    def sizes(self, start: int, stop: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of the keys and values of the tokens [start, stop), keyed by name."""
        heads, _, width = self.keys.shape
        return dict.fromkeys(("keys", "values"), ((heads, stop - start, width), self._dtype))


def _aligned(token: int) -> int:
    return token // SLIDING_BORDER * SLIDING_BORDER
