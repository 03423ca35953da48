"""Holds the retrieval cache: for each layer and KV head, the chunks of the context with the highest scores, and all
recent tokens.

The context is divided at ``boundary``. The tokens before it are divided into chunks of ``chunk_size`` neighbouring
tokens. A ``SelectionPolicy`` scores the chunks, and the chunks with the highest scores fill ``num_slots`` slots. The
number of slots may grow with the context. The first tokens, the attention sinks, are always held. The tail is all
tokens from ``boundary`` on, and is held completely. The choice of chunks can only change speed, never the answer,
because every token is verified on the full cache.

Layers with a sliding window or a recurrent state have no retrieval cache. In such layers, a pass over the retrieval
cache uses the full cache's windows and states (``bounded``).

Axis order (kv_heads, seq, head_dim) per layer: first the chosen chunks in any order, then the tail in order. Keys are
stored after RoPE with their true positions. The newest tokens can be cropped, down to ``boundary``. The tail holds KV
that passes over the retrieval cache computed, until ``copy_from_full`` replaces it by the full cache's exact KV.

Source: TriForce (arXiv 2404.11912), section 4.1. Differences from the paper:

- The heads of a GQA group share their chunks.
- The chunks are chosen again with the queries of a verification. If copying is expensive, only newly chosen chunks are
  copied.
- The number of tokens in chosen chunks (the budget) may be a share of the context.
- The mean keys of chunks are quantized.

At the end of the file are the observers (``full.Observer``), which score or choose chunks with the queries of a pass
over the full cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

import torch

from engine.events import KvBytes
from engine.kv.selection import (
    PROMPT_QUERIES,
    SCORED_QUERIES,
    KeyIndex,
    MeanKeyAttention,
    SelectionPolicy,
    choose,
    exchanged,
    newest_spaced,
    num_sinks,
)
from engine.model import attention
from engine.model.attention import Seen
from engine.model.graphs import sent
from engine.model.kernels import cpu
from engine.model.view import Blocks, FixedView, InPlace

if TYPE_CHECKING:
    from engine.kv.full import FullCache
    from engine.model.recurrent import Advance


Queries = Mapping[int, torch.Tensor]
"""Queries (1, heads, n, head_dim) times the scaling of the layer's attention, keyed by layer. Contains only the layers
to be scored.
"""

# ``index_layer`` computes the missing mean keys of a layer only if at least this number of chunks lacks a mean key.
_INDEXED_AT_ONCE = 64
_SHOWN_LAYERS = 8  # maximum number of layers whose chunks are scored only to show which pages an answer reads
# Maximum number of scores that are computed at once: chunks times queries times heads, over several layers. Scoring
# eight small layers one by one took three times as long. The scores of larger groups would not fit into the processor's
# cache.
_SCORED_AT_ONCE = 1 << 18


def _of_prompt(q: torch.Tensor) -> torch.Tensor:
    """Choose the queries of a prompt, q (1, heads, n, head_dim), with which chunks are scored. They are spread over the
    prompt's newest positions.
    """
    return newest_spaced(q[:, :, -PROMPT_QUERIES:], SCORED_QUERIES)


class RetrievalCache:
    """Holds the chosen chunks and the newest tokens (the tail) of one full cache.

    Args:
        full: the full cache that this cache selects from.
        budget: tokens of chosen chunks per layer and KV head, unless ``share`` raises this number.
        chunk_size: tokens in a chunk.
        tail: maximum number of tokens that the tail may hold.
        share: if not 0, the budget is at least the number of tokens before the boundary divided by ``share``.
        most: maximum number of tokens to which ``share`` may raise the budget.
        policy: scores the chunks.
    """

    def __init__(
        self,
        full: FullCache,
        budget: int,
        chunk_size: int,
        tail: int,
        share: int = 0,
        most: int = 0,
        policy: SelectionPolicy | None = None,
    ) -> None:
        shape = full.shape
        self.full = full
        self._policy = policy or MeanKeyAttention()
        self.chunk_size = chunk_size
        self._budget, self._share = budget, share
        self._most = max(budget, min(most, full.limit // share)) if share else budget
        self.tail_capacity = tail
        self.boundary = 0
        self.length = 0
        self.num_exact = 0
        """Index of the first token whose KV in the tail is the middle level's own. Earlier tokens of the tail have the
        full cache's KV.
        """
        size = (shape.kv_heads, max(1, self._most // chunk_size) * chunk_size + tail, shape.head_dim)
        devices = [shape.of_layer(layer).device for layer in range(shape.layers)]
        self._keys = [torch.empty(size, dtype=shape.dtype, device=device) for device in devices]
        self._values = [torch.empty(size, dtype=shape.dtype, device=device) for device in devices]
        self._index = self._new_index()
        self._slots: list[torch.Tensor | None] = [None] * shape.layers
        # sums of scores (chunks,), keyed by the index of the device in ``shape.parts``
        self._scores: dict[int, torch.Tensor] = {}
        # The function that chooses the chunks, if ``aim`` has delayed this choice; otherwise None
        self._awaited: Callable[[], None] | None = None
        self._is_finite = False  # whether unused memory holds only finite numbers (``make_finite``)

    def _new_index(self) -> list[KeyIndex]:
        """Make an empty index of mean keys for every layer."""
        shape, size = self.full.shape, self.chunk_size
        layers = range(shape.layers)
        return [KeyIndex(shape.of_layer(layer), size, partial(self.full.keys, layer)) for layer in layers]

    def index_bytes(self) -> KvBytes:
        """Bytes of the mean keys, keyed by device. ``reset`` frees them."""
        shape = self.full.shape
        devices = [0] * len(shape.parts)
        for layer, index in enumerate(self._index):
            devices[shape.part_of(layer)] += index.allocated
        return KvBytes.by_device(devices, 0, 0, own_memory=shape.device_kind.own_memory)

    def index_layer(self, layer: int, length: int) -> None:
        """Compute the missing mean keys of a layer. Call this when a pass has just fetched the layer's ``length``
        committed tokens (``full.when_at_hand``), because the keys then need no further transfer.

        Nothing is done if fewer than ``_INDEXED_AT_ONCE`` chunks lack a mean key, so that a verification does not do
        this work in every layer.
        """
        chunks = length // self.chunk_size
        if chunks - self._index[layer].count >= _INDEXED_AT_ONCE:
            self._index[layer].reach(chunks)

    def index_book(self) -> None:
        """Compute the mean keys of all chunks of committed tokens, in the layers on the compute device.

        Call this when a book has been read, because otherwise this work would delay the first word of the first answer.
        Does nothing for other policies than ``MeanKeyAttention``, because they may not need mean keys.
        """
        if not isinstance(self._policy, MeanKeyAttention):
            return
        with torch.inference_mode():
            for layer, index in enumerate(self._index):
                if self.full.is_resident(layer):
                    index.reach(self.full.length // self.chunk_size)

    @property
    def num_slots(self) -> int:
        """Maximum number of chunks to choose. It grows with ``boundary`` if the budget is a share of the context."""
        share = self.boundary // self._share if self._share else 0
        return max(1, min(self._most, max(self._budget, share)) // self.chunk_size)

    @property
    def selected(self) -> int:
        """Number of tokens in the chosen chunks."""
        return min(self.num_slots, self.boundary // self.chunk_size) * self.chunk_size

    @property
    def held(self) -> int:
        """Number of tokens in the cache: those in chosen chunks, and those in the tail."""
        return self.selected + self.length - self.boundary

    def reset(self) -> None:
        """Drop all tokens and mean keys, so that another book can be read."""
        self.boundary = self.length = self.num_exact = 0
        self._index = self._new_index()
        self._slots = [None] * len(self._slots)
        self._scores = {}
        self._awaited = None

    def aim(self, recent: int, queries: list[torch.Tensor], scaling: float) -> None:
        """Prepare to choose chunks among the full cache's tokens. About the newest ``recent`` tokens become the tail
        instead. ``queries`` are each layer's queries (1, heads, n, head_dim).

        A few layers are scored immediately, for ``chunk_scores``. ``ensure_selected`` later scores all layers and
        chooses their chunks. This work is delayed because many answers need no pass over the retrieval cache, and
        copying the chunks took as long as two plain steps of a model with 1.5 billion parameters.
        """
        self._cut(max(0, self.full.length - recent))
        self.length = self.full.length
        step = shown_step(self.full.shape.layers)
        shown = list(enumerate(queries))[::step]
        self.score({layer: _of_prompt(q) * scaling for layer, q in shown})
        self._awaited = lambda: self.select_at(max(0, self.full.length - recent), queries, scaling)

    @property
    def is_selected(self) -> bool:
        """Whether the buffers hold the chosen chunks, which a pass needs."""
        return self._awaited is None

    def ensure_selected(self) -> None:
        """Choose the chunks now if ``aim`` has delayed the choice and they have not been chosen since."""
        if self._awaited is not None:
            self._awaited()

    def select_at(self, boundary: int, queries: list[torch.Tensor], scaling: float) -> None:
        """Choose chunks among the tokens before ``boundary``, which is rounded down to the beginning of a chunk.
        ``queries`` are each layer's queries (1, heads, n, head_dim). All tokens from the boundary on are copied from
        the full cache into the tail.
        """
        self._cut(boundary)
        self.select({layer: _of_prompt(q) * scaling for layer, q in enumerate(queries)})
        self.copy_from_full(self.full.length)
        self._awaited = None

    def _cut(self, boundary: int) -> None:
        self.boundary = boundary // self.chunk_size * self.chunk_size
        self.length = self.num_exact = self.boundary
        self._slots = [None] * len(self._slots)
        self.begin_scores()

    def copy_from_full(self, length: int) -> None:
        """Replace the tail's KV by that of the full cache, up to the first ``length`` tokens of the context, and drop
        all later tokens.
        """
        start, offset = self.num_exact, self.selected - self.boundary
        if start < length:
            for layer in range(self.full.shape.layers):
                self._keys[layer][:, offset + start : offset + length] = self.full.keys(layer, start, length)
                self._values[layer][:, offset + start : offset + length] = self.full.values(layer, start, length)
        self.length = self.num_exact = length

    def crop(self, length: int) -> None:
        """Drop the newest tokens, so that the first ``length`` tokens of the context remain."""
        if not self.boundary <= length <= self.length:
            raise ValueError(f"cannot crop a retrieval cache of {self.boundary}..{self.length} tokens to {length}")
        self.length = length
        self.num_exact = min(self.num_exact, length)

    def extend(self) -> RetrievalPass:
        """Make the view that gives a pass over new tokens access to this cache."""
        return RetrievalPass(self)

    def make_finite(self) -> None:
        """Fill unused memory with zeros. A pass that is recorded as a CUDA graph reads this memory under a mask, and a
        mask does not stop NaN.
        """
        if not self._is_finite:
            for slots in (*self._keys, *self._values):
                slots[:, self.held :].zero_()
        self._is_finite = True

    def advance(self, count: int) -> None:
        """Count ``count`` more tokens as stored. Call this only after every layer has written them."""
        self.length += count

    def free_slots(self) -> int:
        """Number of tokens for which the tail still has room."""
        return self.tail_capacity - (self.length - self.boundary)

    def begin_scores(self) -> None:
        """Start a new sum of chunk scores, to which every call of ``score`` and ``select`` adds."""
        self._scores = {}

    def chunk_scores(self) -> torch.Tensor | None:
        """Scores (chunks,) of the chunks before the tail, summed over layers and heads since ``begin_scores`` was
        called. The attention sinks have score zero, because they attract attention whatever they say. None if no chunk
        has been scored.
        """
        sums = iter(self._scores.values())
        total = next(sums, None)
        for scores in sums:
            assert total is not None
            total = total + scores.to(total.device, non_blocking=True)
        return total

    def score(self, queries: Queries) -> None:
        """Score the chunks of some layers, and add the scores to those that ``chunk_scores`` returns."""
        for _ in self._scored(queries):
            pass

    def select(self, queries: Queries) -> None:
        """Choose the chunks of some layers, and copy them into the buffers."""
        for layers, scores in self._scored(queries):
            self._place(layers, choose(scores, self.num_slots, self.chunk_size), scores.shape[2])

    def _scored(self, queries: Queries) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Score the layers in groups. Yield the layers of each group with their scores (layers, kv_heads, chunks). The
        scores are also added to ``chunk_scores``. Yield nothing if all tokens are in the tail.
        """
        chunks = self.boundary // self.chunk_size
        for layers, asked in self._together(queries, chunks) if chunks else ():
            scores = self._policy.score(asked, [self._index[layer] for layer in layers], chunks)
            total = scores.sum(dim=(0, 1))
            total[: num_sinks(self.num_slots, self.chunk_size)] = 0
            part = self.full.shape.part_of(layers[0])
            self._scores[part] = self._scores[part] + total if part in self._scores else total
            yield layers, scores

    def _together(self, queries: Queries, chunks: int) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Group the layers that are scored at once, with their queries (layers, heads, n, head_dim). The layers of a
        group are on one device, all resident or all spilled, and have the same number of queries.
        """

        def kind(layer: int) -> tuple[int, bool, int]:
            return self.full.shape.part_of(layer), self.full.is_resident(layer), queries[layer].shape[2]

        for _, alike in groupby(sorted(queries, key=kind), kind):
            layers = list(alike)
            _, heads, count, _ = queries[layers[0]].shape
            most = max(1, _SCORED_AT_ONCE // (heads * count * chunks))
            for first in range(0, len(layers), most):
                some = layers[first : first + most]
                yield some, torch.cat([queries[layer] for layer in some])

    def forget_after(self, length: int) -> None:
        """Drop the mean keys of chunks that extend beyond ``length`` tokens. Called when the full cache is cropped to
        this length (``full.when_cropped``).
        """
        for index in self._index:
            index.forget_after(length // self.chunk_size)

    def _place(self, layers: list[int], chosen: torch.Tensor, chunks: int) -> None:
        """Copy the chosen chunks (layers, kv_heads, slots) into the buffers. Our CPU kernel copies all chosen chunks,
        because finding out which of them the buffers already hold would take longer.
        """
        resident = [self.full.resident(layer) for layer in layers]
        held = [kv for kv in resident if kv is not None]
        mine = [(self._keys[layer], self._values[layer]) for layer in layers]
        if len(held) == len(layers) and cpu.copy_chunks(held, mine, chosen, self.chunk_size):
            for layer, slots in zip(layers, chosen, strict=True):
                self._slots[layer] = slots
            return
        for layer, slots in zip(layers, chosen, strict=True):
            self._exchange(layer, slots, chunks)

    def _exchange(self, layer: int, chosen: torch.Tensor, chunks: int) -> None:
        """Assign one layer's ``chosen`` chunks (kv_heads, slots) to slots, and copy newly chosen chunks into their
        slots. Chunks that the cache already holds keep their slots.
        """
        before = self._slots[layer]
        if before is not None and before.shape == chosen.shape:
            chosen = exchanged(before, chosen, chunks)
        self._slots[layer] = chosen = chosen.clone()
        if before is not None and before.shape == chosen.shape and self.only_changes(layer, chunks):
            heads, places = (chosen != before).nonzero(as_tuple=True)
        else:
            kv_heads, count = chosen.shape
            heads = torch.arange(kv_heads, device=chosen.device).repeat_interleave(count)
            places = torch.arange(count, device=chosen.device).repeat(kv_heads)
        self._copy(layer, heads, places, chosen[heads, places])

    def only_changes(self, layer: int, chunks: int) -> bool:
        """Whether to copy only the newly chosen chunks of a layer. If the layer's KV is on a GPU, all its chosen chunks
        are copied. Such a copy is quick, but to find the newly chosen chunks the host would have to wait for the GPU.
        """
        return self.full.shape.device.type == "cpu" or not self.full.is_at_hand(layer, chunks * self.chunk_size)

    def _copy(self, layer: int, heads: torch.Tensor, places: torch.Tensor, chunks: torch.Tensor) -> None:
        size = self.chunk_size
        gathered = self.full.gather(layer, heads, chunks, size)
        for mine, source in zip((self._keys[layer], self._values[layer]), gathered, strict=True):
            target = mine[:, : self.num_slots * size].unflatten(1, (self.num_slots, size))
            target[heads, places] = source

    def blocks(self, start: int, count: int) -> Blocks | None:
        """Return the buffers that hold this cache's KV in all layers, for a pass over ``count`` new tokens after the
        first ``start`` tokens in the cache. The pass attends to these buffers and writes the KV of the new tokens into
        them. None if some layers have a sliding window or a recurrent state, if the layers are on several devices, or
        if the tokens do not fit.
        """
        shape = self.full.shape
        if shape.bounded or shape.split or start + count > self._keys[0].shape[1]:
            return None
        return self._blocks

    @cached_property
    def _blocks(self) -> Blocks:
        return Blocks(tuple(self._keys), tuple(self._values))

    def _parts(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._keys[layer], self._values[layer]


class RetrievalPass:
    """Gives one forward pass of new tokens access to the chosen chunks and the tail. Implements ``View``."""

    def __init__(self, cache: RetrievalCache) -> None:
        self._cache = cache
        self._start, self._position = cache.held, cache.length
        self.queries: Sequence[torch.Tensor] = ()

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
        full = self._cache.full
        place = full.shape.place_of(layer)
        if place is None:
            keys, values = full.bounded.near(layer, self._position, q.shape[2], k, v)
            window = full.shape.window_of(layer)
            return attention.attend_newest(q, keys, values, scaling, window, sinks, cap)
        keys, values = self._cache._parts(place)
        start, stop = self._start, self._start + q.shape[2]
        if k is not None and v is not None:
            keys[:, start:stop] = k[0]
            values[:, start:stop] = v[0]
        keys, values = (held[None, :, :stop] for held in (keys, values))
        return attention.attend_newest(q, keys, values, scaling, sinks=sinks, cap=cap)

    def positions(self, count: int) -> torch.Tensor:
        return self._cache.full.span(self._position, count)

    def in_place(self, count: int) -> InPlace | None:
        blocks = self._cache.blocks(self._start, count)
        return None if blocks is None else InPlace(blocks, self._start, self.positions(count))

    def fixed(self, count: int) -> RetrievalForm | None:
        if self._cache.free_slots() < count:
            return None
        self._cache.make_finite()
        return RetrievalForm(self._cache, count)

    def recur(self, layer: int, count: int, advance: Advance) -> torch.Tensor:
        return self._cache.full.bounded.recur(layer, self._position, count, advance)


class RetrievalForm:
    """A pass over the whole buffers in a form that can be recorded as a CUDA graph: operations and memory do not depend
    on the pass's position. Implements ``FixedForm``.
    """

    bound = None

    def __init__(self, cache: RetrievalCache, count: int) -> None:
        self._cache, self.count, self.places = cache, count, [cache.length, cache.held]

    def ordinary(self) -> RetrievalPass:
        return self._cache.extend()

    def at(self, places: torch.Tensor) -> FixedRetrievalPass:
        return FixedRetrievalPass(self._cache, places[:1], places[1:], self.count)

    def observe(self, queries: Sequence[torch.Tensor], scaling: Callable[[int], float]) -> None:
        """Do nothing, because no observer reads the queries of passes over the retrieval cache."""


class FixedRetrievalPass(FixedView):
    """A ``RetrievalPass`` over the whole buffers with a mask, which can be recorded as a CUDA graph: wherever the pass
    begins, it runs the same operations on the same memory.

    Args:
        position: (1,), index of the first token in the context.
        place: (1,), slot of the first token in the buffers.
    """

    def __init__(self, cache: RetrievalCache, position: torch.Tensor, place: torch.Tensor, count: int) -> None:
        self._cache, self._position = cache, position
        self.queries: Sequence[torch.Tensor] = ()
        places = place + torch.arange(count, device=place.device)
        split = cache.full.shape.split
        # The slots that the tokens see are computed once on each device, in its first layer, and kept in ``_seen`` for
        # its other layers.
        self._places = {device: sent(places, device) for device in (split.devices if split else (place.device,))}
        self._seen: dict[torch.device, Seen] = {}

    def positions(self, count: int) -> torch.Tensor:
        return self._position + torch.arange(count, device=self._position.device)

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
        keys, values = self._cache._parts(layer)
        places = self._places[keys.device]
        keys.index_copy_(1, places, k[0])
        values.index_copy_(1, places, v[0])
        if keys.device not in self._seen:
            self._seen[keys.device] = Seen.up_to(places, 0, keys.shape[1])
        seen = self._seen[keys.device]
        return attention.attend_seen(q, keys.unsqueeze(0), values.unsqueeze(0), scaling, seen, sinks, cap)


class VerifyObserver(Protocol):
    """A ``full.Observer`` of a verification pass. It uses the attention queries during the pass (``observe``) and after
    the pass (``finish``).
    """

    @property
    def refreshes(self) -> bool:
        """Whether the observer chooses the chunks of the retrieval cache again."""

    @property
    def refresh_ms(self) -> float:
        """Milliseconds of host time spent on choosing the chunks of the retrieval cache again."""

    def observe(self, layer: int, q: torch.Tensor, scaling: float) -> None: ...

    def finish(self) -> None:
        """Score or choose chunks with the queries of the pass. Call this after the pass, when the round's tokens have
        been committed.
        """


def shown_step(layers: int) -> int:
    """Return n such that every n-th layer is scored to show which pages an answer reads."""
    return -(-layers // _SHOWN_LAYERS)


class SelectionRefresh:
    """Chooses each layer's chunks with the queries of the running pass. Layers that are resident in the compute dtype
    are scored together after the pass (``finish``). A spilled or quantized layer is scored during the pass
    (``observe``), while its keys are on the compute device in that dtype.
    """

    refreshes = True

    def __init__(self, cache: RetrievalCache) -> None:
        self._cache = cache
        self._queries: dict[int, torch.Tensor] = {}
        self.refresh_ms = 0.0
        cache.begin_scores()

    def observe(self, layer: int, q: torch.Tensor, scaling: float) -> None:
        began, asked = time.perf_counter(), newest_spaced(q, SCORED_QUERIES) * scaling
        if self._cache.full.resident(layer) is not None:
            self._queries[layer] = asked
        else:
            self._cache.select({layer: asked})
        self.refresh_ms += (time.perf_counter() - began) * 1000.0

    def finish(self) -> None:
        began = time.perf_counter()
        self._cache.select(self._queries)
        self.refresh_ms += (time.perf_counter() - began) * 1000.0


class ChunkScoring:
    """Scores the chunks with the queries of the running pass, only to show which pages the pass reads. The chosen
    chunks stay the same.

    Only a few layers, spread over the model, are scored, because they show the same pages as all layers do. When all of
    30 layers were scored at every sixteenth token, such a token took 1.5 times as long.
    """

    refreshes, refresh_ms = False, 0.0

    def __init__(self, cache: RetrievalCache) -> None:
        self._cache = cache
        self._queries: dict[int, torch.Tensor] = {}
        self._step = shown_step(cache.full.shape.layers)
        cache.begin_scores()

    def observe(self, layer: int, q: torch.Tensor, scaling: float) -> None:
        if layer % self._step == 0:
            self._queries[layer] = newest_spaced(q, SCORED_QUERIES) * scaling

    def finish(self) -> None:
        self._cache.score(self._queries)


class QueryRecorder:
    """Stores each layer's newest queries over several passes. Chunks are later chosen with these queries."""

    def __init__(self, layers: int, keep: int = PROMPT_QUERIES) -> None:
        self._keep = keep
        self.queries: list[torch.Tensor] = [torch.empty(0)] * layers
        self.scaling = 1.0

    def observe(self, layer: int, q: torch.Tensor, scaling: float) -> None:
        kept = self.queries[layer]
        joined = torch.cat([kept, q], dim=2) if kept.numel() and q.shape[2] < self._keep else q
        self.queries[layer] = joined[:, :, -self._keep :].clone()
        self.scaling = scaling


class BoundaryRefresh(QueryRecorder):
    """Limits the tail to about the newest ``recent`` tokens of the context, and chooses chunks among all earlier
    tokens, with the queries of the running pass.
    """

    refreshes, refresh_ms = True, 0.0

    def __init__(self, cache: RetrievalCache, recent: int) -> None:
        super().__init__(cache.full.shape.layers)
        self._cache, self._recent = cache, recent

    def finish(self) -> None:
        self._cache.select_at(max(0, self._cache.full.length - self._recent), self.queries, self.scaling)
