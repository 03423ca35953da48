"""Which chunks of a context a layer's queries read: an index of mean keys, and scores from it.

A chunk is ``chunk_size`` neighbouring tokens; its mean key stands for it. The finer the chunks, the more a single sharp
key shows in the mean of its chunk, and the more memory the index takes: half of the keys at 2, an eighth at 8.
"""

from __future__ import annotations

import torch

from engine.cache.rounding import codes_of
from engine.cache.shape import KvShape

SINKS = 8
"""First tokens of a context that draw attention whatever they say."""
# Copying an answer out of the book moves forward through it, so a chunk lends part of its score to the ones after it.
_FORWARD_REACH = 32  # tokens
_FORWARD_DECAY = 0.7  # over _FORWARD_STEP tokens
_FORWARD_STEP = 8
QUERIES = 4
"""Queries of one verification that are asked, evenly spread over it: neighbours in a text look at the same places."""
# Of the scales of rounded mean keys, and of what is multiplied with them: what torch's kernel takes.
_SCALE = torch.bfloat16
# Mean keys that room is made for at once.
_ROOM = 512


class KeyIndex:
    """Mean keys of one layer's chunks (kv_heads, chunks, head_dim), computed once and kept.

    What asking them costs is reading them. On a processor they are kept in 8 bits, each with a scale of its own, and
    torch's product with weights of 8 bits reads them as they are: a quarter of the time and of the memory.
    """

    def __init__(self, shape: KvShape) -> None:
        self.count, self.kv_heads = 0, shape.kv_heads
        self._rounds = shape.index_is_rounded
        kept = torch.int8 if self._rounds else shape.dtype
        self._means = torch.empty(self.kv_heads, 0, shape.head_dim, dtype=kept, device=shape.device)
        self._scales = torch.empty(self.kv_heads, 0, dtype=_SCALE, device=shape.device)

    def forget_after(self, count: int) -> None:
        """Keep at most the first ``count``: the tokens of the others are about to be replaced."""
        self.count = min(self.count, count)

    def extend(self, keys: torch.Tensor, chunk_size: int) -> None:
        """Add the chunks of keys (kv_heads, chunks * chunk_size, head_dim) that follow those that are known."""
        fresh = keys.unflatten(1, (-1, chunk_size)).mean(dim=2)
        count = self.count + fresh.shape[1]
        if count > self._means.shape[1]:
            self._means, self._scales = (self._with_room(kept, count + _ROOM) for kept in (self._means, self._scales))
        if self._rounds:
            self._means[:, self.count : count], scales = codes_of(fresh, _SCALE)
            self._scales[:, self.count : count] = scales.squeeze(-1)
        else:
            self._means[:, self.count : count] = fresh
        self.count = count

    def _with_room(self, kept: torch.Tensor, room: int) -> torch.Tensor:
        larger = kept.new_empty(kept.shape[0], room, *kept.shape[2:])
        larger[:, : self.count] = kept[:, : self.count]
        return larger

    def products(self, rows: torch.Tensor, count: int) -> torch.Tensor:
        """Of rows (kv_heads, n, head_dim) with the first ``count`` mean keys, of which there must be so many:
        (kv_heads, n, count)."""
        if not self._rounds:
            return rows @ self._means[:, :count].transpose(1, 2)
        asked_all = rows.to(_SCALE).contiguous()
        each = zip(asked_all, self._means[:, :count], self._scales[:, :count], strict=True)
        return torch.stack([torch._weight_int8pack_mm(asked, codes, scales) for asked, codes, scales in each])


def scores(index: KeyIndex, count: int, q: torch.Tensor, scaling: float, most: int = QUERIES) -> torch.Tensor:
    """Attention of queries to the first ``count`` mean keys of an index: (kv_heads, count), rows sum to 1.

    Args:
        q: queries (1, heads, n, head_dim), of which at most ``most`` positions are asked.
    """
    rows = (_spaced(q, most) * scaling).unflatten(1, (index.kv_heads, -1)).flatten(2, 3)[0]
    return torch.softmax(index.products(rows, count), dim=-1, dtype=torch.float32).mean(dim=1)


def _spaced(q: torch.Tensor, most: int) -> torch.Tensor:
    """At most so many of the positions, the newest among them."""
    count = q.shape[2]
    if count <= most:
        return q
    return q[:, :, [count - 1 - number * (count - 1) // (most - 1) for number in range(most)]]


def spread_forward(mass: torch.Tensor, chunk_size: int) -> torch.Tensor:
    """Let every chunk (kv_heads, chunks) lend a decaying part of its score to the few chunks after it."""
    decay = _FORWARD_DECAY ** (chunk_size / _FORWARD_STEP)
    reach, held, wanted = mass, 1, 1 + max(1, _FORWARD_REACH // chunk_size)
    while held < wanted:  # what reaches over so many chunks reaches, moved on by as many, over twice as many
        step = min(held, wanted - held)
        further = reach.clone()
        torch.maximum(reach[:, step:], reach[:, :-step] * decay**step, out=further[:, step:])
        reach, held = further, held + step
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
