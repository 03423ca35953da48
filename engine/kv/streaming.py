"""Holds the draft model's streaming cache: attention sinks and a window of recent tokens (StreamingLLM, arXiv
2309.17453).

Axis order (kv_heads, slot, head_dim) per layer. A token's position for RoPE is its slot in the cache instead of its
index in the context. So a draft model with a short window can be used on a long context. Keys are stored BEFORE RoPE. A
copy of the keys after RoPE is also stored, and is computed again when tokens move to other slots.

Only ``settle`` evicts the oldest tokens. The number of evicted tokens depends only on the committed length, and on how
many tokens were skipped at the start. So a cache from which speculated tokens were cropped equals a cache that never
held them. The newest tokens can be cropped, down to the length at the last ``settle``.

After ``settle``, the cache holds the sinks, the newest tokens of one window, and fewer than ``slack`` older tokens.
Layers with a recurrent state evict nothing, because a state depends on all tokens that the draft model has read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from engine.kv.states import RecurrentLayer
from engine.model import attention
from engine.model.attention import Seen
from engine.model.kv_shape import KvShape
from engine.model.recurrent import Advance
from engine.model.view import Blocks, FixedView, InPlace

Rotate = Callable[[int, torch.Tensor, torch.Tensor, int], torch.Tensor]
"""Applies RoPE to x (1, heads, n, head_dim) of a layer, with the slots (n,) as positions. Called as (layer, x, slots,
queries). The first ``queries`` heads are queries, all other heads are keys. Returns x unchanged for a layer without
RoPE.
"""


@dataclass(frozen=True)
class Held:
    """A copy of a streaming cache: numbers of tokens, and the layers' keys before RoPE and values, each (kv_heads, n,
    head_dim).
    """

    length: int
    evicted: int
    keys: list[torch.Tensor]
    values: list[torch.Tensor]


class StreamingCache:
    """Holds the KV of the attention sinks and of a window of recent tokens.

    Args:
        shape: KV shape of the draft model.
        num_sink_tokens: number of tokens at the start of the context that are always held.
        window_size: number of newest tokens that are always held.
        slack: evictions are multiples of this number of tokens. It is at least the length of the longest speculation.
        rotate: RoPE of the draft model.
    """

    def __init__(self, shape: KvShape, num_sink_tokens: int, window_size: int, slack: int, rotate: Rotate) -> None:
        self.shape = shape
        self.num_sink_tokens = num_sink_tokens
        self.window_size = window_size
        self._slack = slack
        self._rotate = rotate
        # After ``settle``, the cache holds the sinks, the window, and fewer than ``slack`` other tokens. Until the next
        # ``settle``, at most ``slack`` tokens are added.
        self.capacity = num_sink_tokens + window_size + 2 * slack
        own = [layer for layer in range(shape.model_layers) if shape.has_kv(layer)]
        self._raw, self._rotated, self._values = ({layer: self._empty(layer) for layer in own} for _ in range(3))
        self.length = 0
        self._floor = 0
        self._evicted = 0
        self._is_finite = False  # whether unused slots hold only finite numbers (``make_finite``)
        states = shape.recurrent
        self._states = (
            {layer: RecurrentLayer(states.size, shape.dtype, shape.device, self.capacity) for layer in states.layers}
            if states
            else {}
        )

    def _empty(self, layer: int) -> torch.Tensor:
        heads, width = self.shape.heads_of(layer)
        return torch.empty(heads, self.capacity, width, dtype=self.shape.dtype, device=self.shape.device)

    @property
    def held(self) -> int:
        """Number of tokens in the cache."""
        return self.length - self._evicted

    def reset(self) -> None:
        """Forget all tokens. Afterwards the cache equals a new cache."""
        for layer in self._states.values():
            layer.clear()
        self.length = 0
        self._floor = 0
        self._evicted = 0

    def crop(self, length: int) -> None:
        """Drop the newest tokens so that ``length`` tokens of the context remain."""
        if not self._floor <= length <= self.length:
            raise ValueError(f"cannot crop a streaming cache of {self.length} tokens to {length}")
        self.length = length

    def settle(self) -> None:
        """Take all tokens as committed. If the sinks and the window are full, evict the oldest tokens after the sinks,
        in multiples of ``slack`` tokens.
        """
        sinks = self.num_sink_tokens
        self._floor = self.length
        target = max(0, (self.length - sinks - self.window_size) // self._slack * self._slack)
        count = target - self._evicted
        if count <= 0:
            return
        held = self.held
        for store in (*self._raw.values(), *self._values.values()):
            store[:, sinks : held - count] = store[:, sinks + count : held].clone()
        self._evicted = target
        self._renew()

    def skip(self, count: int) -> None:
        """Skip the next ``count`` tokens of the context: they count as already evicted, and the draft model never reads
        them. Call this right after the sinks have been computed. If ``count`` is no multiple of ``slack``, the next
        eviction is smaller by the rest.
        """
        if self.length != self.num_sink_tokens:
            raise ValueError("tokens can be skipped only right after the sinks")
        self.length += count
        self._evicted += count
        for layer in self._states.values():
            layer.move(count)

    def copied(self) -> Held | None:
        """Copy the tokens in the cache, so that ``put_back`` can restore them after others have been added or evicted.
        None if some layers have a recurrent state, because such states are not copied.
        """
        if self._states:
            return None
        keys, values = ([store[:, : self.held].clone() for store in own.values()] for own in (self._raw, self._values))
        return Held(self.length, self._evicted, keys, values)

    def put_back(self, held: Held) -> None:
        """Make the cache hold what it held when ``held`` was copied."""
        self.length = self._floor = held.length
        self._evicted = held.evicted
        for own, copies in ((self._raw, held.keys), (self._values, held.values)):
            for store, copy in zip(own.values(), copies, strict=True):
                store[:, : self.held] = copy
        self._renew()

    @cached_property
    def blocks(self) -> Blocks:
        """The tensors in which the KV of all layers is stored."""
        return Blocks(*(tuple(held.values()) for held in (self._rotated, self._values, self._raw)))

    def _renew(self) -> None:
        slots = torch.arange(self.held, device=self.shape.device)
        for layer, raw in self._raw.items():
            turned = self._rotate(layer, raw[:, : self.held].unsqueeze(0), slots, 0)
            self._rotated[layer][:, : self.held] = turned[0]

    def extend(self, count: int) -> StreamingPass:
        """Make the view that gives a pass over ``count`` new tokens access to this cache."""
        if self.held + count > self.capacity:
            raise ValueError(f"{count} tokens do not fit beside {self.held} in {self.capacity} slots")
        return StreamingPass(self, self.held, count)

    def make_finite(self) -> None:
        """Fill unused slots with zeros. A pass that is recorded as a CUDA graph reads these slots under a mask, and a
        mask does not stop NaN.
        """
        if not self._is_finite:
            for slots in (*self._rotated.values(), *self._values.values()):
                slots[:, self.held :].zero_()
        self._is_finite = True

    def advance(self, count: int) -> None:
        """Count ``count`` more tokens as stored. Call this only after every layer has written them."""
        self.length += count

    def free_slots(self) -> int:
        """Number of slots that are free until the next ``settle``."""
        return self.capacity - self.held


class StreamingPass:
    """Gives one forward pass of the draft model access to the cache. Takes queries and keys before RoPE. Implements
    ``View``.
    """

    def __init__(self, cache: StreamingCache, start: int, count: int) -> None:
        self._cache, self._start, self._count = cache, start, count
        self.queries: Sequence[torch.Tensor] = ()

    @cached_property
    def _slots(self) -> torch.Tensor:
        return torch.arange(self._start, self._start + self._count, device=self._cache.shape.device)

    def positions(self, count: int) -> None:
        """Return None, because the model need not apply RoPE: ``attend`` rotates queries and keys by their slots."""

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        scaling: float,
        sinks: torch.Tensor | None = None,
        cap: float | None = None,
    ) -> torch.Tensor:
        cache, start = self._cache, self._start
        stop, source = start + q.shape[2], cache.shape.source_of(layer)
        rotated = cache._rotate(layer, q if k is None else torch.cat([q, k], dim=1), self._slots, q.shape[1])
        q, turned = rotated[:, : q.shape[1]], rotated[:, q.shape[1] :]
        if k is not None and v is not None:
            cache._raw[source][:, start:stop] = k[0]
            cache._rotated[source][:, start:stop] = turned[0]
            cache._values[source][:, start:stop] = v[0]
        keys, values = cache._rotated[source][:, :stop], cache._values[source][:, :stop]
        window = cache.shape.window_of(layer)
        return attention.attend_newest(q, keys.unsqueeze(0), values.unsqueeze(0), scaling, window, sinks, cap)

    def in_place(self, count: int) -> InPlace | None:
        shape = self._cache.shape
        return None if shape.bounded or shape.sources else InPlace(self._cache.blocks, self._start, self._slots)

    def fixed(self, count: int) -> StreamingForm | None:
        if self._cache.free_slots() < count:
            return None
        self._cache.make_finite()
        return StreamingForm(self._cache, count)

    def recur(self, layer: int, count: int, advance: Advance) -> torch.Tensor:
        cache = self._cache
        return cache._states[layer].recur(cache.length, count, advance, cache._floor)


class StreamingForm:
    """A pass over all slots in a form that can be recorded as a CUDA graph: operations and memory do not depend on the
    pass's position. Implements ``FixedForm``.
    """

    bound = None

    def __init__(self, cache: StreamingCache, count: int) -> None:
        self._cache, self.count, self.places = cache, count, [cache.held]

    def ordinary(self) -> StreamingPass:
        return self._cache.extend(self.count)

    def at(self, places: torch.Tensor) -> FixedStreamingPass:
        return FixedStreamingPass(self._cache, places, self.count)

    def observe(self, queries: Sequence[torch.Tensor], scaling: Callable[[int], float]) -> None:
        """Do nothing, because no observer reads the queries of the draft model."""


class FixedStreamingPass(FixedView):
    """A ``StreamingPass`` over all slots with a mask, which can be recorded as a CUDA graph: wherever the pass begins,
    it runs the same operations on the same memory.
    """

    def __init__(self, cache: StreamingCache, place: torch.Tensor, count: int) -> None:
        self._cache = cache
        self.queries: Sequence[torch.Tensor] = ()
        self._slots = place + torch.arange(count, device=place.device)
        self._seen: dict[int | None, Seen] = {None: Seen.up_to(self._slots, 0, cache.capacity)}

    def positions(self, count: int) -> None:
        """Return None, because the model need not apply RoPE: ``attend`` rotates queries and keys by their slots."""

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        scaling: float,
        sinks: torch.Tensor | None = None,
        cap: float | None = None,
    ) -> torch.Tensor:
        cache, slots, source = self._cache, self._slots, self._cache.shape.source_of(layer)
        rotated = cache._rotate(layer, q if k is None else torch.cat([q, k], dim=1), slots, q.shape[1])
        q, turned = rotated[:, : q.shape[1]], rotated[:, q.shape[1] :]
        if k is not None and v is not None:
            cache._raw[source].index_copy_(1, slots, k[0])
            cache._rotated[source].index_copy_(1, slots, turned[0])
            cache._values[source].index_copy_(1, slots, v[0])
        keys, values = cache._rotated[source], cache._values[source]
        seen = self._seen_through(cache.shape.window_of(layer))
        return attention.attend_seen(q, keys.unsqueeze(0), values.unsqueeze(0), scaling, seen, sinks, cap)

    def _seen_through(self, window: int | None) -> Seen:
        """The slots that each token attends to: the newest ``window`` slots up to its own, or all slots up to its own
        if ``window`` is None.
        """
        if window not in self._seen:
            near = torch.arange(self._cache.capacity, device=self._slots.device) > self._slots[:, None] - (window or 0)
            self._seen[window] = Seen(self._seen[None].keys & near)
        return self._seen[window]
