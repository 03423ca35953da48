"""Manages bounded layers: layers with a sliding window or a recurrent state. Their memory has a fixed size, however
long the context is.

Bounded layers stay on the compute device and are never stored in 8 bits, even if other KV is spilled or quantized. The
full cache and the middle level (the target on the retrieval cache) share these layers, so both compute with exactly the
same windows and states. A pass of the middle level writes entries after the committed tokens. The verification
overwrites these entries before any other pass reads them.

A bounded layer has lost its older windows and states. So it can be cropped only to recent lengths, and to a few earlier
lengths for which copies are kept. One copy is made at the end of the book, where every chat about the book begins. A
layer with a state can otherwise be cropped only within the newest pass. So for a model with such layers, copies are
also made at the newest places of the chat. ``nearest`` returns the length that all layers can be cropped to. All later
tokens have to be prefilled again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from engine.kv.states import RecurrentLayer
from engine.kv.windowed import WindowedLayer
from engine.quantization import CHAT_PLACES, SLIDING_BORDER, TRACED_TOKENS

if TYPE_CHECKING:
    from engine.model.kv_shape import KvShape
    from engine.model.recurrent import Advance

Sizes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass(frozen=True)
class BoundedCopy:
    """A copy, in host memory, of the bounded layers. ``layers`` has the tensors of each layer, keyed by name: the KV of
    the tokens [start, stop) in a layer with a sliding window, the state after ``stop`` tokens in a recurrent layer.
    """

    start: int
    stop: int
    layers: tuple[Mapping[str, torch.Tensor], ...]


class BoundedLayer(Protocol):
    """A layer whose memory has a fixed size, because it holds a sliding window or a recurrent state."""

    @property
    def allocated(self) -> int:
        """Bytes of the layer's memory."""

    def reaches(self, length: int) -> bool:
        """Whether the layer can be cropped to ``length`` tokens."""

    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` tokens. Call this only if ``reaches(length)`` is true."""

    def clear(self) -> None:
        """Forget all tokens."""

    def commit(self) -> None:
        """Mark all stored tokens as committed. Call this only after every layer of the model has stored them."""

    def forget_uncommitted(self, length: int) -> None:
        """If uncommitted tokens have evicted committed tokens, bring the committed tokens back. The layer then ends
        with the ``length`` committed tokens.
        """

    def gives(self, start: int, stop: int) -> int | None:
        """Return the first of the tokens [start, stop) that a copy of the layer should hold. Earlier tokens are left
        out, because the layer no longer holds them, or because decoding does not need them. None if decoding could not
        continue from a copy.
        """

    def held(self, start: int, stop: int) -> Mapping[str, torch.Tensor]:
        """The layer's tensors for the tokens [start, stop), keyed by name."""

    def adopt(self, start: int, stop: int, tensors: Mapping[str, torch.Tensor], length: int) -> None:
        """Append the tokens [start, stop) if ``start`` is ``length``, the number of committed tokens. Otherwise make
        these the only tokens of the layer. ``tensors`` is the result of ``held(start, stop)`` from when the tokens were
        copied.
        """

    def sizes(self, start: int, stop: int) -> Sizes:
        """Shape and dtype of the tensors for the tokens [start, stop), keyed by name."""


class BoundedCache:
    """All layers of a model that have a sliding window or a recurrent state; a model may have no such layer.

    Args:
        shape: the shape of the model's KV.
        limit: maximum tokens of a context.
    """

    def __init__(self, shape: KvShape, limit: int) -> None:
        self._shape, self._limit = shape, limit
        self._windows: dict[int, WindowedLayer] = {}
        self._states: dict[int, RecurrentLayer] = {}
        self._layers: dict[int, BoundedLayer] = {}
        self._length = 0
        self._book: BoundedCopy | None = None
        self._chat: list[BoundedCopy] = []

    def clear(self) -> None:
        """Forget all tokens and copies, and free the memory."""
        self._windows, self._states, self._layers = {}, {}, {}
        self._length, self._book, self._chat = 0, None, []

    def reserve(self) -> None:
        """Allocate the memory of all bounded layers, unless it is allocated already."""
        shape, sliding, recurrent = self._shape, self._shape.sliding, self._shape.recurrent
        if self._layers:
            return
        if sliding is not None:
            capacity = min(sliding.capacity, self._limit + SLIDING_BORDER)
            self._windows = {
                layer: WindowedLayer(sliding, shape.dtype, shape.device_of(layer), capacity) for layer in sliding.layers
            }
        if recurrent is not None:
            self._states = {
                layer: RecurrentLayer(recurrent.size, shape.dtype, shape.device_of(layer), TRACED_TOKENS)
                for layer in recurrent.layers
            }
        every: dict[int, BoundedLayer] = {**self._windows, **self._states}
        self._layers = {layer: every[layer] for layer in sorted(every)}

    def allocated(self) -> list[int]:
        """Bytes of the bounded layers on each device."""
        split, sizes = self._shape.split, [0] * len(self._shape.parts)
        for number, layer in self._layers.items():
            sizes[split.part_of[number] if split else 0] += layer.allocated
        return sizes

    def store(self, layer: int, start: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new KV in a layer with a sliding window. See ``WindowedLayer.store``."""
        return self._windows[layer].store(start, k, v, self._length)

    def near(
        self, layer: int, start: int, count: int, k: torch.Tensor | None, v: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values (1, kv_heads, seq, head_dim) that ``count`` tokens from ``start`` on attend to in
        a layer of the model.

        The given ``k`` and ``v`` of the tokens are stored first, so the result includes them. If they are None, the
        layer reads the KV of its source layer.
        """
        if k is not None and v is not None:
            kv = self.store(layer, start, k, v)
        else:
            kv = self._windows[self._shape.source_of(layer)].seen(start, start + count)
        return kv[0].unsqueeze(0), kv[1].unsqueeze(0)

    def recur(self, layer: int, start: int, count: int, advance: Advance) -> torch.Tensor:
        """Run a pass over a layer with a recurrent state. See ``RecurrentLayer.recur``."""
        return self._states[layer].recur(start, count, advance, self._length)

    def commit(self, length: int) -> None:
        """Mark the first ``length`` tokens as committed. Call this only after all layers of the model have stored
        them.
        """
        self._length = length
        for layer in self._layers.values():
            layer.commit()

    def nearest(self, length: int) -> int:
        """Return the largest length, at most ``length``, that all layers can be cropped to. ``length`` may not exceed
        the number of committed tokens.
        """
        self._forget_uncommitted()
        if all(layer.reaches(length) for layer in self._layers.values()):
            return length
        return max((place.stop for place in self._places() if place.stop <= length), default=0)

    def crop(self, length: int) -> None:
        """Drop the newest tokens so that ``length`` remain. ``length`` must be one that ``nearest`` returns."""
        if self.nearest(length) != length:
            raise ValueError(f"what layers held of {length} tokens is not held any more")
        place = next((place for place in self._places() if place.stop == length), None)
        for number, layer in enumerate(self._layers.values()):
            if length == 0:
                layer.clear()
            elif not layer.reaches(length):
                assert place is not None
                layer.adopt(place.start, place.stop, place.layers[number], -1)
            layer.crop(length)
        if self._book is not None and length < self._book.stop:
            self._book = None
        self._chat = [place for place in self._chat if place.stop <= length]
        self._length = length

    def _places(self) -> list[BoundedCopy]:
        return [*([self._book] if self._book else []), *self._chat]

    def mark(self) -> None:
        """Copy all layers at the end of the book. Call this when exactly the book is committed. Earlier copies,
        including those of the chat, are dropped.
        """
        self._book, self._chat = self.at(self._length), []

    def keep(self) -> None:
        """Copy all layers at the end of the committed tokens, so that the chat can be cropped to this length later.
        Only the newest copies are kept (``CHAT_PLACES``). Do nothing if no layer has a recurrent state.
        """
        if not self._states or any(place.stop == self._length for place in self._places()):
            return
        place = self.at(self._length)
        self._chat = [*self._chat, *([place] if place else [])][-CHAT_PLACES:]

    def at(self, stop: int) -> BoundedCopy | None:
        """Return the kept copy of the layers after ``stop`` committed tokens. If there is none, make such a copy
        without keeping it. None if some layer no longer holds the tokens before ``stop`` that decoding needs, or if
        there are no bounded layers.
        """
        kept = next((place for place in self._places() if place.stop == stop), None)
        window = self._shape.sliding.window if self._shape.sliding else 0
        return kept or self.copy(max(0, stop - window), stop)

    def copy(self, start: int, stop: int) -> BoundedCopy | None:
        """Copy all layers for the committed tokens [start, stop). The copy begins later than ``start`` if a layer no
        longer holds the first of these tokens, or if decoding does not need them. None if decoding could not continue
        from the copy, or if there are no bounded layers.
        """
        self._forget_uncommitted()
        layers = self._layers.values()
        firsts = [layer.gives(start, stop) for layer in layers]
        known = [first for first in firsts if first is not None]
        if not layers or len(known) < len(firsts):
            return None
        first = max(known)
        held = ({name: _on_host(part) for name, part in layer.held(first, stop).items()} for layer in layers)
        return BoundedCopy(first, stop, tuple(held))

    def adopt(self, place: BoundedCopy) -> None:
        """Append the tokens of the copy ``place``, which follow the committed tokens. They become committed when
        ``commit`` is called.
        """
        self._forget_uncommitted()
        for layer, held in zip(self._layers.values(), place.layers, strict=True):
            layer.adopt(place.start, place.stop, held, self._length)

    def replace(self, place: BoundedCopy) -> None:
        """Replace all tokens by the committed tokens of the copy ``place``."""
        for layer, held in zip(self._layers.values(), place.layers, strict=True):
            layer.adopt(place.start, place.stop, held, -1)
        self.commit(place.stop)

    def sizes(self, start: int, stop: int) -> list[Sizes]:
        """Shape and dtype of the tensors of each layer in a ``BoundedCopy``, keyed by name."""
        return [layer.sizes(start, stop) for layer in self._layers.values()]

    def _forget_uncommitted(self) -> None:
        for layer in self._layers.values():
            layer.forget_uncommitted(self._length)


def _on_host(x: torch.Tensor) -> torch.Tensor:
    return x.cpu().clone(memory_format=torch.contiguous_format)
