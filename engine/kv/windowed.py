"""The layers of a model whose tokens see only its newest ones: a bounded buffer of KV for each.

Axis order (kv_heads, slot, head_dim) per layer; keys are stored after RoPE, in the model's dtype also where other KV
has 8 bits, and always lie where the layer computes: a window is small. The full and the middle level share these
buffers. What the middle level has written behind the committed tokens is written anew by the verification, before
anything else reads it. So both see the same windows, exactly.

A buffer holds the newest tokens without gaps, in slots whose first one is a multiple of ``SLIDING_BORDER``: kernels
for processors cut their sums there, and a token then says the same bits whatever comes with it. Its oldest ones go when
it is full; ``SLIDING_SLACK`` tokens and more stay behind the window, so that what was speculated or asked last can be
cropped. Besides, ``mark`` keeps a copy of the windows at one place, the end of the book, where every other chat about
it begins. What can be cropped to is what ``nearest`` says; tokens after that place have to be read again.

While a block of a prompt goes through one layer after the other, its tokens push the committed window out of the layers
that it has passed. Until ``commit`` these keep a copy of that too, since a stopped reading ends at committed tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.kv.shape import KvShape
from engine.quantization import SLIDING_BORDER, SLIDING_SLACK


@dataclass(frozen=True)
class Windows:
    """KV of the tokens [start, stop) of every sliding layer, in order: keys and values (kv_heads, stop - start,
    head_dim) on the host."""

    start: int
    stop: int
    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]


class WindowedLayer:
    """One layer's newest tokens [first, stop); slot 0 is that of token ``origin``."""

    def __init__(self, window: int, shape: KvShape, device: torch.device, capacity: int) -> None:
        self._window = window
        size = (shape.kv_heads, capacity, shape.head_dim)
        # What is hidden from a token is multiplied by zero, and so has to be a number.
        self.keys, self.values = (torch.zeros(size, dtype=shape.dtype, device=device) for _ in range(2))
        self.origin = self.first = self.stop = 0
        self.committed: tuple[int, torch.Tensor, torch.Tensor] | None = None
        """The first token, the keys and the values of the committed window, where newer tokens pushed it out."""

    @property
    def allocated(self) -> int:
        """Bytes of its memory."""
        return self.keys.nbytes + self.values.nbytes

    def reaches(self, length: int) -> bool:
        """Whether a token that follows ``length`` others finds all in its window that it sees."""
        return self.first <= max(0, length - self._window + 1) and length <= self.stop

    def span(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the keys and values of the tokens [start, stop)."""
        slots = slice(start - self.origin, stop - self.origin)
        return self.keys[:, slots], self.values[:, slots]

    def write(self, start: int, k: torch.Tensor, v: torch.Tensor, length: int) -> None:
        """Store KV (kv_heads, n, head_dim) of the tokens from ``start`` on, and forget those after them.

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
        """Let the oldest tokens go, before those from ``start`` on are stored."""
        origin = _aligned(max(0, start - self._window + 1 - SLIDING_SLACK))
        needed = max(self.first, length - self._window + 1, 0)
        if origin > needed and self.committed is None:
            keys, values = self.span(needed, length)
            self.committed = needed, keys.clone(), values.clone()
        kept = [part.clone() for part in self.span(origin, start)]  # memory may end here, with nothing moved yet
        for buffer, part in zip((self.keys, self.values), kept, strict=True):
            buffer[:, : start - origin] = part
        self.origin, self.first = origin, max(self.first, origin)

    def put(self, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Hold KV (kv_heads, n, head_dim) of the tokens from ``start`` on, and nothing else."""
        self.origin, self.first, self.stop = _aligned(start), start, start + k.shape[1]
        for buffer, part in zip((self.keys, self.values), (k, v), strict=True):
            buffer[:, : start - self.origin] = 0
            buffer[:, start - self.origin : self.stop - self.origin] = part

    def forget_uncommitted(self, length: int) -> None:
        """Hold the newest of ``length`` committed tokens again, whatever was stored behind them."""
        if self.committed is not None:
            self.put(*self.committed)
            self.committed = None
        self.stop = min(self.stop, length)


class WindowedCache:
    """The sliding layers of a model; there may be none.

    Args:
        shape: of its KV.
        limit: tokens of the window that the model is used with.
    """

    def __init__(self, shape: KvShape, limit: int) -> None:
        self._shape, self._limit = shape, limit
        self._layers: dict[int, WindowedLayer] = {}
        self._length = 0
        self._mark: Windows | None = None

    def clear(self) -> None:
        """Forget everything and give the memory back."""
        self._layers, self._length, self._mark = {}, 0, None

    def reserve(self) -> None:
        """Allocate, unless that is done already."""
        shape, sliding = self._shape, self._shape.sliding
        if sliding is None or self._layers:
            return
        capacity = min(sliding.capacity, self._limit + SLIDING_BORDER)
        self._layers = {
            layer: WindowedLayer(sliding.window, shape, shape.device_of(layer), capacity) for layer in sliding.layers
        }

    def allocated(self) -> list[int]:
        """Bytes of the buffers, by device that has layers."""
        split, found = self._shape.split, [0] * len(self._shape.parts)
        for number, layer in self._layers.items():
            found[split.part_of[number] if split else 0] += layer.allocated
        return found

    def store(self, layer: int, start: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store KV (1, kv_heads, n, head_dim) of at most ``SLIDING_SLACK`` tokens, the first at ``start``.

        Args:
            layer: its number in the model.

        Returns:
            Views (kv_heads, seq, head_dim) of the keys and values up to the last of them, all that they see among them.
        """
        held, sliding = self._layers[layer], self._shape.sliding
        assert sliding is not None
        if start == self._length and held.committed is not None:
            held.forget_uncommitted(self._length)
        held.write(start, k[0], v[0], self._length)
        first = max(held.origin, _aligned(max(0, start - sliding.window + 1)))
        return held.span(first, held.stop)

    def commit(self, length: int) -> None:
        """The first ``length`` tokens are in all layers of the model."""
        self._length = length
        for layer in self._layers.values():
            layer.committed = None

    def nearest(self, length: int) -> int:
        """The longest context of at most ``length`` of the committed tokens that can be cropped to."""
        self._forget_uncommitted()
        if all(layer.reaches(length) for layer in self._layers.values()):
            return length
        return self._mark.stop if self._mark and self._mark.stop <= length else 0

    def crop(self, length: int) -> None:
        """Drop the newest tokens so that ``length`` remain, which ``nearest`` must allow."""
        self._forget_uncommitted()
        if self.nearest(length) != length:
            raise ValueError(f"the windows of {length} tokens are not held any more")
        for number, layer in enumerate(self._layers.values()):
            if length == 0:
                layer.put(0, layer.keys[:, :0], layer.values[:, :0])
            elif not layer.reaches(length):
                assert self._mark is not None
                layer.put(self._mark.start, *self._mark.layers[number])
            layer.stop = length
        if self._mark is not None and length < self._mark.stop:
            self._mark = None
        self._length = length

    def mark(self) -> None:
        """Keep the windows at the end of the committed tokens, in place of those that were kept so far."""
        self._mark = self.at(self._length)

    def at(self, stop: int) -> Windows | None:
        """The windows at the end of ``stop`` committed tokens, if they are held."""
        if self._mark is not None and self._mark.stop == stop:
            return self._mark
        window = self._shape.sliding.window if self._shape.sliding else 0
        return self.copy(max(0, stop - window), stop)

    def copy(self, start: int, stop: int) -> Windows | None:
        """KV of the committed tokens [start, stop), or of the newest of them where these are enough to go on from;
        None where they are not, and where there are no layers."""
        self._forget_uncommitted()
        layers, sliding = self._layers.values(), self._shape.sliding
        if sliding is None or not layers:
            return None
        first = max(start, stop - sliding.window - SLIDING_SLACK, *(layer.first for layer in layers))
        if first > start and not all(layer.reaches(stop) for layer in layers):
            return None
        return Windows(
            first, stop, tuple((_on_host(k), _on_host(v)) for k, v in (layer.span(first, stop) for layer in layers))
        )

    def adopt(self, windows: Windows) -> None:
        """Append KV that ``copy`` gave to the committed tokens; it counts once ``commit`` is called."""
        self._forget_uncommitted()
        for layer, (keys, values) in zip(self._layers.values(), windows.layers, strict=True):
            if windows.start != self._length:
                layer.put(windows.start, keys, values)
                continue
            for start in range(0, windows.stop - windows.start, SLIDING_SLACK):
                some = slice(start, start + SLIDING_SLACK)
                layer.write(windows.start + start, keys[:, some], values[:, some], self._length)

    def _forget_uncommitted(self) -> None:
        for layer in self._layers.values():
            if layer.committed is not None:
                layer.forget_uncommitted(self._length)


def _on_host(x: torch.Tensor) -> torch.Tensor:
    return x.cpu().clone(memory_format=torch.contiguous_format)


def _aligned(token: int) -> int:
    return token // SLIDING_BORDER * SLIDING_BORDER
