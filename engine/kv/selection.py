"""Chooses the chunks of the context that a retrieval cache holds. Contains the policy that scores chunks, and the index
of the chunks' mean keys.

To try a different scoring, write a class with the one method of ``SelectionPolicy`` and give it to ``RetrievalCache``.
A policy can only change speed, never the answer, because the full cache verifies every token.

A chunk is ``chunk_size`` neighbouring tokens, and is represented by the mean of their keys. The fewer tokens a chunk
has, the more weight a single distinctive key has in the mean. But smaller chunks need a larger index: half the memory
of the keys for chunks of 2 tokens, an eighth for chunks of 8 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from engine.model.kernels import native
from engine.model.kv_shape import KvShape, quantize_symmetric

# Number of a prompt's newest queries with which the first chunks of an answer may be chosen. Older queries say no more
# about the answer, and may displace useful chunks.
PROMPT_QUERIES = 16
# Maximum number of queries with which chunks are scored. They are evenly spread over a prompt's newest positions or
# over a verification, because neighbouring tokens attend to the same places. Of a prompt's newest 16 queries, 4 evenly
# spread ones choose chunks as well as all 16 do, and the newest 4 choose far worse (assets/measurements/NOTES.md).
SCORED_QUERIES = 4

# Number of tokens at the start of a context that count as attention sinks. They attract attention whatever they say.
_SINKS = 8
# Maximum distance, in tokens, over which a chunk passes its score on to later chunks (``spread_forward``). An answer
# that copies the book needs these chunks next.
_FORWARD_REACH = 32
_FORWARD_DECAY = 0.7  # factor of a passed score for every ``_FORWARD_STEP`` tokens between the two chunks
_FORWARD_STEP = 8
# The dtype of the scales of quantized mean keys
_SCALE_DTYPE = torch.bfloat16
# Number of mean keys for which an index allocates additional memory whenever its memory is full.
_GROWTH = 512


class SelectionPolicy(Protocol):
    """Scores chunks of the context. The retrieval cache holds the chunks with the highest scores, and always the
    attention sinks.
    """

    def score(self, queries: torch.Tensor, keys: Sequence[KeyIndex], num_chunks: int) -> torch.Tensor:
        """Score the first ``num_chunks`` chunks of some layers. Return scores (layers, kv_heads, num_chunks), which may
        not be negative. The page viewer shows sums of these scores for each page.

        Args:
            queries: (layers, heads, n, head_dim), already multiplied by the scaling of the attention. n is at most
                ``SCORED_QUERIES``. The order of the n queries has no meaning.
            keys: the index of each layer's mean keys. ``products`` computes missing mean keys.
        """


class MeanKeyAttention:
    """Scores a chunk by the attention that the queries pay to its mean key, averaged over the queries and over the
    query heads of the GQA group.

    Source: TriForce (arXiv 2404.11912), section 4.1, which uses one query.
    """

    def score(self, queries: torch.Tensor, keys: Sequence[KeyIndex], num_chunks: int) -> torch.Tensor:
        rows = queries.unflatten(1, (keys[0].kv_heads, -1)).flatten(2, 3)
        scores = torch.stack([index.products(each, num_chunks) for index, each in zip(keys, rows, strict=True)])
        return torch.softmax(scores, dim=-1, dtype=torch.float32).mean(dim=2)


def choose(scores: torch.Tensor, num_slots: int, chunk_size: int) -> torch.Tensor:
    """Choose the ``num_slots`` chunks (..., num_slots) with the highest scores (..., chunks), including the sinks."""
    chunks = scores.shape[-1]
    if chunks <= num_slots:
        return torch.arange(chunks, device=scores.device).expand(scores.shape)
    spread = spread_forward(scores, chunk_size)
    spread[..., : num_sinks(num_slots, chunk_size)] = torch.inf
    return spread.topk(num_slots, dim=-1, sorted=False).indices


def num_sinks(num_slots: int, chunk_size: int) -> int:
    """Number of chunks that are chosen as attention sinks: at least 1, at most half of the slots."""
    return max(1, min(_SINKS // chunk_size, num_slots // 2))


def newest_spaced(q: torch.Tensor, most: int) -> torch.Tensor:
    """Choose at most ``most`` of the queries q (1, heads, n, head_dim), evenly spread, the newest among them."""
    count = q.shape[2]
    if count <= most:
        return q
    # Compute the indices on the device, because the host would wait while indices from a Python list are copied to it.
    places = count - 1 - torch.arange(most, device=q.device) * (count - 1) // (most - 1)
    return q[:, :, places]


def spread_forward(scores: torch.Tensor, chunk_size: int) -> torch.Tensor:
    """Raise the score of every chunk (..., chunks) to the maximum of its own score and the decayed scores of the few
    chunks before it.
    """
    decay = _FORWARD_DECAY ** (chunk_size / _FORWARD_STEP)
    reach, held, wanted = scores, 1, 1 + max(1, _FORWARD_REACH // chunk_size)
    # Each element of ``reach`` is a maximum over ``held`` chunks. The maximum of ``reach`` and of a copy of ``reach``,
    # shifted by up to ``held`` chunks, covers up to twice as many chunks.
    while held < wanted:
        step = min(held, wanted - held)
        further = reach.clone()
        torch.maximum(reach[..., step:], reach[..., :-step] * decay**step, out=further[..., step:])
        reach, held = further, held + step
    return reach


def exchanged(slots: torch.Tensor, chosen: torch.Tensor, chunks: int) -> torch.Tensor:
    """Assign the chunks ``chosen`` (kv_heads, count) to slots. ``slots`` (kv_heads, count) and the result hold the
    number of each slot's chunk. Chunks that stay chosen keep their slots, and newly chosen chunks take the slots of
    chunks that are no longer chosen. The host does not wait for the device.
    """
    none = torch.zeros(slots.shape[0], chunks, dtype=torch.bool, device=slots.device)
    leaves = ~none.scatter(1, chosen, True).gather(1, slots)
    comes = ~none.scatter(1, slots, True).gather(1, chosen)
    # Each head has as many freed slots as new chunks. The freed slots and the new chunks are sorted to the front, so
    # that the first freed slot takes the first new chunk, and so on.
    free, incoming = (x.byte().argsort(dim=1, descending=True, stable=True) for x in (leaves, comes))
    taken = torch.where(leaves.gather(1, free), chosen.gather(1, incoming), slots.gather(1, free))
    return slots.scatter(1, free, taken)


class KeyIndex:
    """The mean keys of one layer's chunks (kv_heads, chunks, head_dim), computed once and stored in 8 bits, with one
    scale per mean key.

    On a processor, mean keys are packed like 8-bit weights, so that our own kernel multiplies queries with them. For
    8 layers with 2 KV heads, 24 queries for each and 16,000 chunks, the products take 6 ms. Torch's kernel for 8-bit
    weights took 30 ms with one thread and 16 with two (2 cores with AVX-512 BF16). On a GPU, and on a processor that
    cannot compile our kernels, a product first dequantizes the mean keys of its layer. They are not kept dequantized,
    because with Llama-2-7B and 120,000 tokens this would take 3.9 GB in bfloat16 for all layers.

    Args:
        chunk_size: tokens in a chunk.
        source: returns the keys (kv_heads, stop - start, head_dim) of tokens [start, stop). Called for chunks whose
            mean keys the index lacks.
    """

    def __init__(
        self, shape: KvShape, chunk_size: int = 1, source: Callable[[int, int], torch.Tensor] | None = None
    ) -> None:
        self.count, self.kv_heads = 0, shape.kv_heads
        self._chunk_size, self._source = chunk_size, source
        self._kernels = native.own() if shape.device.type == "cpu" else None
        means = torch.empty(0, shape.head_dim, dtype=torch.int8, device=shape.device)
        if self._kernels is not None:
            means = self._kernels.pack(means, pairs=self._kernels.looks_up_quants)
        # ``_means``: (kv_heads, panels, ...) if packed, otherwise (kv_heads, chunks, head_dim)
        self._means = means.expand(self.kv_heads, *means.shape).contiguous()
        self._scales = torch.empty(self.kv_heads, 0, dtype=_SCALE_DTYPE, device=shape.device)

    @property
    def allocated(self) -> int:
        """Bytes of the index."""
        return self._means.nbytes + self._scales.nbytes

    def forget_after(self, count: int) -> None:
        """Drop all but the first ``count`` mean keys, because the tokens of later chunks are about to be replaced."""
        self.count = min(self.count, count)

    def reach(self, count: int) -> None:
        """Compute missing mean keys, so that the index has at least ``count`` mean keys."""
        if self._source is not None and self.count < count:
            self.extend(self._source(self.count * self._chunk_size, count * self._chunk_size), self._chunk_size)

    def extend(self, keys: torch.Tensor, chunk_size: int) -> None:
        """Add the mean keys of further chunks, from keys (kv_heads, chunks * chunk_size, head_dim)."""
        means = keys.unflatten(1, (-1, chunk_size)).mean(dim=2)
        quants, scales = quantize_symmetric(means, _SCALE_DTYPE)
        first, self.count = self.count, self.count + quants.shape[1]
        if self.count > self._scales.shape[1]:
            panels = -(-(self.count + _GROWTH) // self._panel)
            self._means, self._scales = _grown(self._means, panels), _grown(self._scales, panels * self._panel)
        self._scales[:, first : self.count] = scales.squeeze(-1)
        if self._kernels is None:
            self._means[:, first : self.count] = quants
            return
        for packed, weights in zip(self._means, quants.to(torch.int8), strict=True):
            self._kernels.insert(packed, first, weights)

    @property
    def _panel(self) -> int:
        """Number of mean keys in one element of the second axis of ``_means``."""
        return self._kernels.columns if self._kernels is not None else 1

    def products(self, rows: torch.Tensor, count: int) -> torch.Tensor:
        """Dot products (kv_heads, n, count) of rows (kv_heads, n, head_dim) with the first ``count`` mean keys."""
        self.reach(count)
        if self._kernels is None:
            means = self._means[:, :count].to(rows.dtype)
            return rows @ means.mul_(self._scales[:, :count].unsqueeze(-1)).transpose(1, 2)
        panels = -(-count // self._panel)
        per_head = zip(rows, self._means[:, :panels], self._scales, strict=True)
        return torch.stack([self._kernels.product(*each)[:, :count] for each in per_head])


def _grown(old: torch.Tensor, size: int) -> torch.Tensor:
    """Copy a tensor, with the size of its second axis enlarged to ``size``."""
    new = old.new_zeros(old.shape[0], size, *old.shape[2:])
    new[:, : old.shape[1]] = old
    return new
