"""Holds the target model's full cache, which has the KV of every token. Plain decoding needs no other cache.

Axis order (kv_heads, seq, head_dim) per layer. Keys are stored after RoPE, and read with position id = index.
``length`` counts the tokens whose KV is in all layers. A layer is stored in the model's dtype or quantized to 8 bits,
in the tier that the placement names (memory of the device, memory of the host, or disk). Before a pass attends in a
layer, the layer is brought "at hand": into the memory of the compute device, in the model's dtype (or in 8 bits if a
kernel reads 8 bits). An ``Observer`` may read a layer's queries while the layer's KV is at hand.

Layers with a sliding window or a recurrent state are stored separately (``bounded``). Layer numbers in this module
count only the remaining layers. The newest tokens can be cropped to any length. If the model has layers with a window
or a state, they can be cropped only to lengths that ``nearest`` returns. If memory runs out while the engine works,
``spilling`` moves layers of this cache to a slower tier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

import torch

from engine.errors import ContextTooSmall
from engine.events import KvBytes
from engine.kv.bounded import BoundedCache, BoundedCopy
from engine.kv.offload import (
    DiskStore,
    HostStore,
    LayerBuffer,
    Placement,
    ResidentStore,
    SlowStore,
    StagedLayer,
    Staging,
    Tier,
    Workspace,
    from_rows,
)
from engine.kv.spilling import retry_with_spill
from engine.model import attention
from engine.model.attention import Seen
from engine.model.graphs import MAX_TOKENS
from engine.model.kv_shape import KvShape
from engine.model.view import Blocks, FixedView, InPlace

if TYPE_CHECKING:
    from engine.kv.hidden_states import HiddenStates
    from engine.model.recurrent import Advance

__all__ = ["FullCache", "FullPass", "KvShape", "Observer"]

# The cache's capacity is a multiple of this number of tokens. Whenever the capacity grows, all KV is copied, and a chat
# should rarely cause such a copy.
GROWTH = 4096
# Maximum number of tokens whose KV is copied at once when a layer is spilled.
_PIECE = 1024

# Number of slots that a pass recorded as a CUDA graph reads under a mask. When the pass is recorded, a quarter of these
# slots hold earlier tokens. The other slots are for the tokens of this pass and of later passes. When the context
# outgrows the slots, the pass is recorded again. With more slots, passes would be recorded less often, but attention
# reads all slots in every layer.
RECORDED = 1024
# Replaces ``RECORDED`` if the attention kernel skips unused slots (``attention.reads_lengths``). It is larger, because
# then only passes over more than 16 tokens read all these slots.
_RECORDED_BY_LENGTH = 4096


class Observer(Protocol):
    """Reads a layer's queries q (1, heads, n, head_dim) after attention, while the layer's KV is still on the compute
    device.
    """

    def observe(self, layer: int, q: torch.Tensor, scaling: float) -> None: ...


class PassQueries:
    """An observer that stores the queries (1, heads, n, head_dim) of each layer of one pass, so that they can be used
    after the pass.
    """

    def __init__(self) -> None:
        self.queries: list[torch.Tensor] = []

    def observe(self, layer: int, q: torch.Tensor, scaling: float) -> None:
        self.queries.append(q)


@dataclass(frozen=True)
class FixedSpan:
    """The slots that a pass of fixed shape (recorded as a CUDA graph) reads and writes.

    Args:
        start: committed tokens before the pass.
        count: tokens of the pass.
        mask_start: the slots [0, mask_start) hold tokens that every token of the pass sees, so they are read without a
            mask.
        stop: the slots [mask_start, stop) are read under a mask.
        memory: number of the cache's reallocations so far; a change means that the memory has moved.
    """

    start: int
    count: int
    mask_start: int
    stop: int
    memory: int

    @property
    def bound(self) -> tuple[int, int, int]:
        """The values, in addition to ``count``, for which a recorded pass (CUDA graph) over the span is valid."""
        return self.memory, self.mask_start, self.stop


@dataclass(frozen=True)
class Tail:
    """A copy, in host memory, of a full cache's tokens [start, stop): the keys and values of each layer in the storage
    format. ``bounded``: the layers of fixed size after ``stop`` tokens; None if there are none. ``hidden``: the first
    position of the newest hidden states, and the states; None if nothing reads them.
    """

    start: int
    stop: int
    layers: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    bounded: BoundedCopy | None
    hidden: tuple[int, torch.Tensor] | None


class FullCache:
    """Holds the KV of every token.

    Args:
        shape: KV shape of the target model.
        limit: maximum tokens of a context.
        placement: tier of each layer; None keeps all layers on the compute device.
        spill_folder: folder for the files of layers on disk; None takes the system's temporary folder.
    """

    def __init__(
        self, shape: KvShape, limit: int, placement: Placement | None = None, spill_folder: Path | None = None
    ) -> None:
        self.shape = shape
        self.limit = limit
        self.length = 0
        self.capacity = 0
        self._watermarks: WeakSet[Watermark] = WeakSet()
        self._listeners: list[Callable[[int, int], None]] = []
        self._when_spilled: list[Callable[[], None]] = []
        self._when_cropped: list[Callable[[int], None]] = []
        self.hidden: HiddenStates | None = None
        """The target's newest hidden states; None if nothing reads them."""
        self._memory = 0  # number of reallocations, each of which invalidates recorded passes (CUDA graphs)
        self._fixed: FixedSpan | None = None  # the newest span
        self._blocks: Blocks | None = None  # the tensors that hold the KV of all layers; None if not collected yet
        self._spill_folder = spill_folder
        # Number of tokens in the layer that holds the most. While a segment of a prompt is prefilled layer by layer,
        # this is more than ``length``.
        self._written = 0
        # For each device, the staging that moves KV to the device, and the workspace in which KV is dequantized. Both
        # are keyed by the device's index in ``shape.parts``.
        self._stagings: dict[int, Staging] = {}
        self._workspaces: dict[int, Workspace] = {}
        # Whether the buffers of spilled and quantized layers exist; if not, the next pass allocates them.
        self._has_buffers = False
        # for freed buffers: bytes that were moved through them, and seconds that a pass waited for them
        self._moved_bytes, self._waited_s = 0, 0.0
        self._stores: list[ResidentStore | SlowStore] = []
        self.bounded = BoundedCache(shape, limit)
        self.place(placement or Placement.resident(shape.layers))

    def place(self, placement: Placement, capacity: int = 0) -> None:
        """Set the tier of each layer, and allocate memory for ``capacity`` tokens.

        The cache must be empty. Its memory is freed before the new allocation. Layers that do not fit are spilled.

        Raises:
            ResourceError: even the disk has no room.
        """
        if self.length:
            raise ValueError("only an empty cache can be given a new placement")
        self._close()
        self.bounded.clear()
        self.placement = placement
        self.capacity = 0
        self._stores = [self._store(layer, tier) for layer, tier in enumerate(placement.tiers)]
        retry_with_spill(self, lambda: self._grow(min(capacity, self.limit)))

    def clear(self) -> None:
        """Drop all tokens, free the memory, and put all layers on the compute device for the next tokens."""
        self.crop(0)
        self.place(Placement.resident(self.shape.layers))

    def spill(self, layers: Sequence[int], tier: Tier) -> None:
        """Move the KV of ``layers``, which must be on the compute device, to a slower tier, and free its memory there.
        If one layer cannot be moved, no layer is moved.

        The KV of uncommitted tokens is moved too, because memory may run out in the middle of a prefill.

        Raises:
            ResourceError: the disk is full.
        """
        tiers = list(self.placement.tiers)
        if tier is Tier.DEVICE or any(tiers[layer] is not Tier.DEVICE for layer in layers):
            raise ValueError(f"layers {list(layers)} cannot be spilled to {tier.value}")
        moved: dict[int, SlowStore] = {}
        try:
            for layer in layers:
                moved[layer] = self._slow_store(layer, tier)
                self._copy(layer, moved[layer])
        except BaseException:
            for store in moved.values():
                store.close()
            raise
        self._memory += 1
        self._blocks = None  # drop the references to the old memory, so that it is freed
        for layer, store in moved.items():
            self._stores[layer], tiers[layer] = store, tier
        self.placement = Placement(tuple(tiers))
        self._drop_buffers()
        for tell in self._when_spilled:
            tell()

    def _copy(self, layer: int, store: SlowStore) -> None:
        """Copy the KV of a layer on the compute device to another store, in pieces.

        Layers are spilled when memory is short. So the heads of a piece are copied to the host one by one, because a
        head is contiguous and copying it needs no extra memory on the device.
        """
        store.reserve(self.capacity, 0)
        old, held = self._stores[layer], max(self.length, self._written)
        assert isinstance(old, ResidentStore)
        for start in range(0, held, _PIECE):
            span = slice(start, min(held, start + _PIECE))
            k, v = (torch.stack([head[span].cpu() for head in mine]) for mine in (old.keys, old.values))
            store.write(start, k[None], v[None])

    def _store(self, layer: int, tier: Tier) -> ResidentStore | SlowStore:
        return ResidentStore(self.shape.of_layer(layer)) if tier is Tier.DEVICE else self._slow_store(layer, tier)

    def _slow_store(self, layer: int, tier: Tier) -> SlowStore:
        shape = self.shape.of_layer(layer)
        return HostStore(shape) if tier is Tier.HOST else DiskStore(shape, self._spill_folder)

    def _make_buffers(self, capacity: int) -> None:
        """Allocate the buffers of spilled and quantized layers. If memory runs out, all of these buffers are freed and
        the error is raised again.
        """
        if not self._has_buffers:
            for part, shape in enumerate(self.shape.parts):
                mine = [(layer, self._stores[layer]) for layer in self.shape.layers_of(part)]
                slow = {layer: store for layer, store in mine if not isinstance(store, ResidentStore)}
                if slow:
                    self._stagings[part] = Staging(shape, slow)
                if shape.quantized and len(slow) < len(mine):
                    self._workspaces[part] = Workspace(shape)
        try:
            for buffers in self._buffers():
                buffers.reserve(capacity)
        except BaseException:
            self._drop_buffers()
            raise
        self._has_buffers = True

    def _drop_buffers(self) -> None:
        self._moved_bytes, self._waited_s = self.moved_bytes, self.waited_s
        for staging in self._stagings.values():
            staging.close()
        self._stagings, self._workspaces, self._has_buffers = {}, {}, False

    def _buffers(self) -> list[Staging | Workspace]:
        """The buffers of spilled and quantized layers."""
        return [*self._stagings.values(), *self._workspaces.values()]

    def _close(self) -> None:
        self._drop_buffers()
        for store in self._stores:
            if not isinstance(store, ResidentStore):
                store.close()
        self._stores = []

    def reserve(self, length: int) -> None:
        """Allocate memory for at least ``length`` tokens.

        Raises:
            ContextTooSmall: ``length`` exceeds ``limit``.
        """
        if length > self.limit:
            raise ContextTooSmall(
                f"The window holds {self.limit:,} tokens and {length:,} are needed.",
                "Start a new chat, or read fewer pages.",
            )
        if length <= self.capacity:
            return
        self._grow(min(self.limit, -(-length // GROWTH) * GROWTH))

    def _grow(self, capacity: int) -> None:
        self._memory += 1
        self._blocks = None  # drop the references to the old memory, so that it is freed
        for staging in self._stagings.values():
            staging.settle()  # wait, because the staging may still read the stores that are about to be replaced
        for store in self._stores:
            store.reserve(capacity, self.length)
        if capacity:
            self.bounded.reserve()
        self._make_buffers(capacity)
        self.capacity = capacity

    def nearest(self, length: int) -> int:
        """Return the largest length to which the cache can be cropped, at most ``length``."""
        length = min(length, self.length)
        return self.bounded.nearest(length) if self.shape.bounded else length

    def crop(self, length: int) -> None:
        """Drop the newest tokens so that ``length`` remain. ``length`` must be one that ``nearest`` returns."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot crop a cache of {self.length} tokens to {length}")
        if self.shape.bounded:
            self.bounded.crop(length)
        self._forget_after(length)

    def _forget_after(self, length: int) -> None:
        """Forget all but the first ``length`` tokens in the layers that are not bounded."""
        self.length = self._written = length
        for watermark in self._watermarks:
            watermark.lower(length)
        for buffers in self._buffers():
            buffers.crop(length)
        for tell in self._when_cropped:
            tell(length)

    def tail(self, start: int) -> Tail:
        """Copy all committed tokens from ``start`` on, and the bounded layers, to host memory."""
        hidden = self.hidden and (self.hidden.start, self.hidden.between(self.hidden.start, self.hidden.stop).clone())
        layers = tuple(self.export(layer, start, self.length) for layer in range(self.shape.layers))
        return Tail(start, self.length, layers, self.bounded.copy(0, self.length), hidden or None)

    def replace_tail(self, tail: Tail) -> None:
        """Replace all tokens from ``tail.start`` on by those of ``tail``. The tokens before must be the same as when
        ``tail`` was copied.
        """
        with torch.inference_mode():
            self._forget_after(tail.start)
            for layer, (keys, values) in enumerate(tail.layers):
                self.adopt(layer, tail.start, keys[None], values[None])
            if tail.bounded is not None:
                self.bounded.replace(tail.bounded)
            if self.hidden is not None and tail.hidden is not None:
                self.hidden.replace(*tail.hidden)
            self.length = tail.stop

    def keep_place(self) -> None:
        """Remember the current number of committed tokens, so that a chat can be cropped to this length later."""
        if self.shape.bounded:
            self.bounded.keep()

    def advance(self, count: int) -> None:
        """Count ``count`` more tokens as stored. Call this only after every layer has written them."""
        self.length += count
        if self.shape.bounded:
            self.bounded.commit(self.length)

    def watermark(self) -> Watermark:
        """Return a ``Watermark``, which tracks the minimum length of the cache after this call. All later tokens may
        have been replaced.
        """
        made = Watermark(self.length)
        self._watermarks.add(made)
        return made

    def when_at_hand(self, listener: Callable[[int, int], None]) -> None:
        """Register ``listener``. It is called with a layer and its number of committed tokens whenever a spilled or
        quantized layer has been copied to the device in the compute dtype (``is_at_hand``).
        """
        self._listeners.append(listener)

    def when_spilled(self, listener: Callable[[], None]) -> None:
        """Register ``listener``. It is called whenever layers are spilled, and should release everything that refers to
        the memory of these layers.
        """
        self._when_spilled.append(listener)

    def when_cropped(self, listener: Callable[[int], None]) -> None:
        """Register ``listener``. It is called with the new length whenever the cache is cropped, and should drop what
        depends on later tokens.
        """
        self._when_cropped.append(listener)

    def bring(self, layer: int, start: int) -> None:
        """Bring the KV of a layer's tokens before ``start`` into the compute device's memory, because a pass is about
        to read it.
        """
        if not self._has_buffers:
            self._make_buffers(self.capacity)
        store, part = self._stores[layer], self.shape.part_of(layer)
        if not isinstance(store, ResidentStore):
            self._stagings[part].acquire(layer, start, self.length)
        elif self.shape.quantized:
            self._workspaces[part].acquire(layer, store, start)
        else:
            return
        for tell in self._listeners:
            tell(layer, min(start, self.length))

    def keys(self, layer: int, start: int, stop: int) -> torch.Tensor:
        """Keys [start, stop) of a layer: (kv_heads, stop - start, head_dim). A view if ``is_at_hand``, otherwise a
        copy.
        """
        here = self._at_hand(layer, stop)
        return here.keys[:, start:stop] if here else self.shape.dequantize(self._stored(layer, start, stop)[0])

    def values(self, layer: int, start: int, stop: int) -> torch.Tensor:
        """Values [start, stop) of a layer: (kv_heads, stop - start, head_dim). A view if ``is_at_hand``, otherwise a
        copy.
        """
        here = self._at_hand(layer, stop)
        return here.values[:, start:stop] if here else self.shape.dequantize(self._stored(layer, start, stop)[1])

    def is_at_hand(self, layer: int, stop: int) -> bool:
        """Whether a layer's tokens [0, stop) are on the compute device in the compute dtype."""
        return self._at_hand(layer, stop) is not None

    def _at_hand(self, layer: int, stop: int) -> ResidentStore | LayerBuffer | None:
        """The store or buffer that has a layer's tokens [0, stop) on the compute device in the compute dtype; None if
        there is none.
        """
        if isinstance(store := self._stores[layer], ResidentStore) and not self.shape.quantized:
            return store
        buffers = self._buffers_of(layer)
        return buffers.at_hand(layer, stop) if buffers else None

    def _buffers_of(self, layer: int) -> Staging | Workspace | None:
        """The buffers through which a layer is read: ``Staging`` if it is spilled, ``Workspace`` if it is on the
        compute device; None if they do not exist.
        """
        part = self.shape.part_of(layer)
        resident = isinstance(self._stores[layer], ResidentStore)
        return self._workspaces.get(part) if resident else self._stagings.get(part)

    def quants(self, layer: int, stop: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the keys and values [0, stop) of a layer in 8 bits, (kv_heads, stop, storage_dim). None if the cache
        is not quantized, or if the layer is spilled and no buffer holds its tokens in 8 bits.
        """
        if not self.shape.quantized:
            return None
        if isinstance(store := self._stores[layer], ResidentStore):
            return store.keys[:, :stop], store.values[:, :stop]
        here = self._at_hand(layer, stop)
        if not isinstance(here, StagedLayer) or here.quants is None:
            return None
        return here.quants[0][:, :stop], here.quants[1][:, :stop]

    def is_resident(self, layer: int) -> bool:
        """Whether a layer's KV is always on the compute device."""
        return isinstance(self._stores[layer], ResidentStore)

    def resident(self, layer: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Keys and values (kv_heads, capacity, head_dim) of a layer that is always on the compute device in the compute
        dtype; None for any other layer.
        """
        store = self._stores[layer]
        if isinstance(store, ResidentStore) and not self.shape.quantized:
            return store.keys, store.values
        return None

    def _stored(self, layer: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [start, stop) of a layer in the storage format, on the compute device."""
        store = self._stores[layer]
        if isinstance(store, ResidentStore):
            return store.keys[:, start:stop], store.values[:, start:stop]
        shape = self.shape.of_layer(layer)
        return from_rows(store.rows(start, stop).to(shape.device, non_blocking=shape.device_kind.streams))

    def gather(
        self, layer: int, heads: torch.Tensor, chunks: torch.Tensor, size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values (n, size, head_dim) of n chunks of ``size`` tokens. Entry i is chunk ``chunks[i]``
        of KV head ``heads[i]``. If the layer is spilled, only these chunks are moved.
        """
        total = self.length // size
        store = self._stores[layer]
        here = self._at_hand(layer, total * size)
        whole = here or (store if isinstance(store, ResidentStore) else None)
        if whole is not None:
            k, v = (x[:, : total * size].unflatten(1, (total, size))[heads, chunks] for x in (whole.keys, whole.values))
            return (k, v) if here else (self.shape.dequantize(k), self.shape.dequantize(v))
        device = self.shape.of_layer(layer).device
        if not chunks.numel():
            none = torch.empty(0, size, self.shape.head_dim, dtype=self.shape.dtype, device=device)
            return none, none
        assert not isinstance(store, ResidentStore)
        rows = store.gather(heads.cpu(), chunks.cpu(), size).to(device)
        return self.shape.dequantize(rows[:, :, 0]), self.shape.dequantize(rows[:, :, 1])

    def write(self, layer: int, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store KV (1, kv_heads, n, head_dim) of the tokens from ``start`` on."""
        stored = self.shape.quantize(k), self.shape.quantize(v)
        self._store_kv(layer, start, *stored)
        buffers = self._buffers_of(layer)
        if buffers is not None and buffers.has(layer):
            buffers.wrote(layer, start, *stored)

    def _store_kv(self, layer: int, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        self._stores[layer].write(start, k, v)
        self._written = max(self._written, start + k.shape[2])

    def adopt(self, layer: int, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store KV (1, kv_heads, n, storage_dim) of the tokens from ``start`` on. ``k`` and ``v`` are in the storage
        format, as ``export`` returns them, with a batch axis.
        """
        self._store_kv(layer, start, k, v)
        for buffers in self._buffers():
            buffers.crop(start)

    def export(self, layer: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [start, stop) of a layer as contiguous host tensors (kv_heads, stop - start, storage_dim).

        The tensors have the storage format, so 8 bits stay 8 bits. Another thread may call this method as long as these
        tokens stay committed.
        """
        store = self._stores[layer]
        if isinstance(store, ResidentStore):
            keys, values = store.keys[:, start:stop], store.values[:, start:stop]
        else:
            store.arrived()
            keys, values = from_rows(store.rows(start, stop))
        return keys.cpu().contiguous(), values.cpu().contiguous()

    def extend(self, start: int, observer: Observer | None = None) -> FullPass:
        """Make the view that gives a pass over new tokens access to this cache. The first new token is at position
        ``start``.
        """
        return FullPass(self, start, observer)

    def fixed_span(self, start: int, count: int) -> FixedSpan | None:
        """Return the span of a pass of fixed shape over ``count`` new tokens, the first at position ``start``.

        None if such a pass is impossible. A pass of fixed shape requires a model without sliding windows and recurrent
        states, and the KV of all layers on one device in the compute dtype. ``count`` may not exceed ``MAX_TOKENS``,
        and ``start`` must be the cache's length. The previous span is reused while the new tokens fit into it.
        """
        shape = self.shape
        here = not (self.placement.spilled or shape.quantized or shape.bounded or shape.split)
        # A pass is padded to ``count`` tokens. If committed tokens followed ``start``, the padding would overwrite
        # their KV.
        if not here or count > MAX_TOKENS or start != self.length or start + count > self.limit:
            return None
        self.reserve(start + count)
        span, memory = self._fixed, self._memory
        if span is None or span.memory != memory or not span.mask_start <= start <= span.stop - count:
            # A quarter of the masked slots are for earlier tokens. So a shorter context, such as another question about
            # the book, can use the same span.
            slots = _RECORDED_BY_LENGTH if attention.reads_lengths(shape) else RECORDED
            past = max(0, min(start - slots // 4, self.capacity - slots))
            stop = min(past + slots, self.capacity)
            for layer in range(shape.layers):  # fill unused slots with zeros, because a mask does not stop NaN
                for held in self._slots(layer):
                    held[:, start:stop].zero_()
            span = FixedSpan(start, count, past, stop, memory)
        self._fixed = replace(span, start=start, count=count)
        return self._fixed

    def blocks(self, start: int, count: int) -> Blocks | None:
        """Return the tensors that hold the KV of all layers, for a pass over ``count`` new tokens, the first at
        position ``start``. The pass attends to these tensors, and writes the KV of the new tokens into them. None if
        the KV of some layers is not on the compute device or not in the compute dtype, or if the tokens do not fit.
        """
        shape = self.shape
        here = not (self.placement.spilled or shape.quantized or shape.bounded or shape.split)
        if not here or start + count > self.capacity:
            return None
        if self._blocks is None:
            keys, values = zip(*(self._slots(layer) for layer in range(shape.layers)), strict=True)
            self._blocks = Blocks(keys, values)
        self._written = max(self._written, start + count)
        return self._blocks

    def span(self, start: int, count: int) -> torch.Tensor:
        """The positions ``start``, ``start`` + 1, ... of ``count`` tokens, on the compute device."""
        return torch.arange(start, start + count, device=self.shape.device)

    def _slots(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer that must be on the compute device in the compute dtype."""
        resident = self.resident(layer)
        assert resident is not None
        return resident

    def kv_bytes(self) -> KvBytes:
        """Bytes that the stored tokens take, keyed by tier."""
        return self.placement.bytes(self.shape, self.length)

    @property
    def moved_bytes(self) -> int:
        """Bytes of spilled layers that have been moved to the device so far."""
        return self._moved_bytes + sum(staging.moved_bytes for staging in self._stagings.values())

    @property
    def waited_s(self) -> float:
        """Seconds that passes have waited for spilled layers so far."""
        return self._waited_s + sum(staging.waited_s for staging in self._stagings.values())

    def allocated(self) -> KvBytes:
        """Bytes that ``clear`` would free, keyed by tier and device: stores with their spare capacity, and buffers."""
        devices, host = self.bounded.allocated(), 0
        for layer, store in enumerate(self._stores):
            if isinstance(store, ResidentStore):
                devices[self.shape.part_of(layer)] += store.allocated
            elif isinstance(store, HostStore):
                host += store.allocated
        for buffers in (self._stagings, self._workspaces):
            for part, buffer in buffers.items():
                devices[part] += buffer.allocated
        own_memory = self.shape.device_kind.own_memory
        return KvBytes.by_device(devices, host, self.kv_bytes().disk, own_memory=own_memory)


class Watermark:
    """Holds the minimum length of a cache since this watermark was made. The tokens before this minimum are unchanged
    since then.
    """

    def __init__(self, length: int) -> None:
        self.length = length

    def lower(self, length: int) -> None:
        """Lower the watermark to ``length``, the cache's new length, unless the watermark is lower already."""
        self.length = min(self.length, length)


class FullPass:
    """Gives one forward pass of new tokens access to the KV of all earlier tokens. Implements ``View``."""

    def __init__(self, cache: FullCache, start: int, observer: Observer | None) -> None:
        self._cache = cache
        self._start = start
        self._observer = observer

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
        cache, start, stop = self._cache, self._start, self._start + q.shape[2]
        place = cache.shape.place_of(layer)
        if place is None:
            keys, values = cache.bounded.near(layer, start, q.shape[2], k, v)
            window = cache.shape.window_of(layer)
            return attention.attend_newest(q, keys, values, scaling, window, sinks, cap)
        layer = place
        as_stored = cache.shape.quantized and attention.reads_quants(q)
        if not (as_stored and cache.is_resident(layer)):
            cache.bring(layer, stop if k is None else start)
        if k is not None and v is not None:
            cache.write(layer, start, k, v)
        quants = cache.quants(layer, stop) if as_stored else None
        keys, values = quants or (cache.keys(layer, 0, stop), cache.values(layer, 0, stop))
        out = attention.attend_newest(q, keys.unsqueeze(0), values.unsqueeze(0), scaling, sinks=sinks, cap=cap)
        # a layer without its own k reads the KV of another layer, whose queries are observed instead
        if self._observer is not None and k is not None:
            self._observer.observe(layer, q, scaling)
        return out

    def positions(self, count: int) -> torch.Tensor:
        return self._cache.span(self._start, count)

    def in_place(self, count: int) -> InPlace | None:
        blocks = self._cache.blocks(self._start, count)
        if blocks is None:
            return None
        observe = None if self._observer is None else self._observer.observe
        return InPlace(blocks, self._start, self.positions(count), observe)

    def fixed(self, count: int) -> FullForm | None:
        span = self._cache.fixed_span(self._start, _usual_length(count))
        return None if span is None else FullForm(self._cache, span, count, self._observer)

    def recur(self, layer: int, count: int, advance: Advance) -> torch.Tensor:
        return self._cache.bounded.recur(layer, self._start, count, advance)


class QueriesPass(FullPass):
    """A ``FullPass`` that stores the queries of each layer in ``queries``, to be read after the pass."""

    def __init__(self, cache: FullCache, start: int) -> None:
        kept = PassQueries()
        super().__init__(cache, start, kept)
        self.queries: Sequence[torch.Tensor] = kept.queries


class FullForm:
    """A pass over a ``FixedSpan`` in a form that can be recorded as a CUDA graph: operations and memory do not depend
    on the pass's position. Implements ``FixedForm``.

    Args:
        new: number of tokens of the pass, without padding.
    """

    def __init__(self, cache: FullCache, span: FixedSpan, new: int, observer: Observer | None) -> None:
        self._cache, self._span, self._new, self._observer = cache, span, new, observer
        self.count, self.places, self.bound = span.count, [span.start], span.bound

    def ordinary(self) -> QueriesPass:
        return QueriesPass(self._cache, self._span.start)

    def at(self, places: torch.Tensor) -> FixedFullPass:
        return FixedFullPass(self._cache, places, self._span)

    def observe(self, queries: Sequence[torch.Tensor], scaling: Callable[[int], float]) -> None:
        if self._observer is not None:
            for layer, q in enumerate(queries):
                self._observer.observe(layer, q[:, :, : self._new], scaling(layer))


class FixedFullPass(FixedView):
    """A ``FullPass`` over a ``FixedSpan``, which can be recorded as a CUDA graph: wherever the pass begins within the
    span, it runs the same operations on the same memory. Implements ``View``.

    ``place`` (1,), the slot of the pass's first token, is a tensor on the device. The host does not read its value. A
    pass over a single token attends to all keys in one kernel call if the kernel skips unused slots
    (``reads_lengths``). Otherwise the attention to the keys before ``span.mask_start`` and the attention to the
    remaining keys are computed separately and then joined. ``queries`` holds the queries of each layer.
    """

    def __init__(self, cache: FullCache, place: torch.Tensor, span: FixedSpan) -> None:
        self._cache, self._span = cache, span
        self._places = place + torch.arange(span.count, device=place.device)
        self._past = 0 if span.count == 1 and attention.reads_lengths(cache.shape) else span.mask_start
        self._seen = Seen.up_to(self._places, self._past, span.stop)
        self.queries: list[torch.Tensor] = []

    def positions(self, count: int) -> torch.Tensor:
        return self._places

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
        assert k is not None and v is not None  # noqa: PT018 - models that share KV between layers are not recorded
        keys, values = self._cache._slots(layer)
        keys.index_copy_(1, self._places, k[0])
        values.index_copy_(1, self._places, v[0])
        self.queries.append(q)
        keys, values = (x[None, :, : self._span.stop] for x in (keys, values))
        return attention.attend_past_and_seen(q, keys, values, scaling, self._past, self._seen, sinks, cap)


def _usual_length(count: int) -> int:
    """Number of tokens to which a pass over ``count`` tokens is padded: 1, 4, or a larger power of two. With so few
    lengths, few CUDA graphs have to be recorded.
    """
    return 1 if count == 1 else max(4, 1 << (count - 1).bit_length())
