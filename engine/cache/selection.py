"""Which chunks of a context a layer's queries read: an index of mean keys, and scores from it.

A chunk is ``chunk_size`` neighbouring tokens; its mean key stands for it. The finer the chunks, the more a single sharp
key shows in the mean of its chunk, and the more memory the index takes: half of the keys at 2, an eighth at 8.
"""

from __future__ import annotations

import torch

from engine.cache.shape import KvShape

SINKS = 8
"""First tokens of a context that draw attention whatever they say."""
# Copying an answer out of the book moves forward through it, so a chunk lends part of its score to the ones after it.
_FORWARD_REACH = 32  # tokens
_FORWARD_DECAY = 0.7  # over _FORWARD_STEP tokens
_FORWARD_STEP = 8
QUERIES = 4
"""Queries of one verification that are asked, evenly spread over it: neighbours in a text look at the same places."""
# Queries that a processor asks together: up to four cost it one look at every mean key, five more than three.
_AT_ONCE = 4
# Mean keys that room is made for at once.
_ROOM = 512


class KeyIndex:
    """Mean keys of one layer's chunks (kv_heads, chunks, head_dim), computed once and kept."""

    def __init__(self, shape: KvShape) -> None:
        self._means = torch.empty(shape.kv_heads, 0, shape.head_dim, dtype=shape.dtype, device=shape.device)
        self.count = 0

    def means(self, count: int) -> torch.Tensor:
        """Of the first ``count`` chunks; there must be so many."""
        return self._means[:, :count]

    def forget_after(self, count: int) -> None:
        """Keep at most the first ``count``: the tokens of the others are about to be replaced."""
        self.count = min(self.count, count)

    def extend(self, keys: torch.Tensor, chunk_size: int) -> None:
        """Add the chunks of keys (kv_heads, chunks * chunk_size, head_dim) that follow those that are known."""
        fresh = keys.unflatten(1, (-1, chunk_size)).mean(dim=2)
        count = self.count + fresh.shape[1]
        if count > self._means.shape[1]:
            kept = self._means[:, : self.count]
            self._means = kept.new_empty(kept.shape[0], count + _ROOM, kept.shape[2])
            self._means[:, : self.count] = kept
        self._means[:, self.count : count] = fresh
        self.count = count


def scores(means: torch.Tensor, q: torch.Tensor, scaling: float, most: int = QUERIES) -> torch.Tensor:
    """Attention of queries to mean keys: (kv_heads, chunks), rows sum to 1.

    Args:
        means: (kv_heads, chunks, head_dim).
        q: queries (1, heads, n, head_dim), of which at most ``most`` positions are asked.
    """
    rows = _spaced(q, most).reshape(means.shape[0], -1, q.shape[-1])
    products = [means @ part.transpose(1, 2) for part in rows.split(_at_once(means), dim=1)]
    return torch.softmax(torch.cat(products, dim=2).float() * scaling, dim=1).mean(dim=2)


def _spaced(q: torch.Tensor, most: int) -> torch.Tensor:
    """At most so many of the positions, the newest among them."""
    count = q.shape[2]
    if count <= most:
        return q
    return q[:, :, [count - 1 - number * (count - 1) // (most - 1) for number in range(most)]]


def _at_once(means: torch.Tensor) -> int:
    """Rows that are multiplied together: a processor's product of a tall matrix with more than a few takes four times
    as long and more."""
    return _AT_ONCE if means.device.type == "cpu" else 1 << 16


def spread_forward(mass: torch.Tensor, chunk_size: int) -> torch.Tensor:
    """Let every chunk (kv_heads, chunks) lend a decaying part of its score to the few chunks after it."""
    reach = mass.clone()
    decay = _FORWARD_DECAY ** (chunk_size / _FORWARD_STEP)
    for step in range(1, max(1, _FORWARD_REACH // chunk_size) + 1):
        lent = mass[:, :-step] * decay**step
        torch.maximum(reach[:, step:], lent, out=reach[:, step:])
    return reach


def exchanged(slots: torch.Tensor, chosen: torch.Tensor, chunks: int) -> torch.Tensor:
    """The slots (kv_heads, count) with chunks that are no longer ``chosen`` (kv_heads, count) replaced by those that
    come in; all others stay where they are. The processor waits for nothing."""
    none = torch.zeros(slots.shape[0], chunks, dtype=torch.bool, device=slots.device)
    leaves = ~none.scatter(1, chosen, True).gather(1, slots)
    comes = ~none.scatter(1, slots, True).gather(1, chosen)
    # Per head as many slots fall free as chunks come in: with both put first, one stands beside the other.
    free, incoming = (x.byte().argsort(dim=1, descending=True, stable=True) for x in (leaves, comes))
    taken = torch.where(leaves.gather(1, free), chosen.gather(1, incoming), slots.gather(1, free))
    return slots.scatter(1, free, taken)
