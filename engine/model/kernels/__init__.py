"""Computes the attention of a few queries to many keys, and merges results over pieces of the keys. All kernels have
the signature ``kernel(q, k, v, scaling) -> (out, lse)``.

Queries are packed: in q (1, kv_heads, rows, head_dim), a KV head has one row for each pair of a query head and a new
token. k and v are (1, kv_heads, seq, head_dim); out has the shape of q; the log-sum-exp lse is (1, kv_heads, rows) in
float32. Every query sees all keys. Some models cap scores to cap * tanh(score / cap). Only the plain path and our own
kernels for processors support caps.

This module has the plain path, which defines the right result, and functions that cut the keys of one sequence into
pieces, run a kernel on them and merge the results. Without pieces, one sequence would not keep a processor or a GPU
busy. The fused kernels for processors are in ``cpu`` and the modules that it uses. The kernels for GPUs are in
``cuda``, which also chooses among them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Maximum number of scores that the plain path computes at once. They take 128 MB in float32, and 256 MB during the
# softmax.
_MOST_SCORES = 1 << 25

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], tuple[torch.Tensor, torch.Tensor]]


def join(outs: torch.Tensor, lses: torch.Tensor) -> torch.Tensor:
    """Merge attention results over disjoint keys, outs (parts, heads, rows, head_dim) and lses (parts, heads, rows),
    into the attention over all keys (1, heads, rows, head_dim).
    """
    weights = torch.softmax(lses, dim=0).unsqueeze(-1)
    return (outs * weights).sum(dim=0, keepdim=True).to(outs.dtype)


def plain(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scaling: float,
    mask: torch.Tensor | None = None,
    cap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention by its definition. Tests compare every faster kernel with this function."""
    scores = torch.matmul(q, k.transpose(-1, -2)).float() * scaling
    if cap is not None:
        scores = torch.tanh(scores / cap) * cap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse.unsqueeze(-1))
    return torch.matmul(weights.to(v.dtype), v), lse


def in_pieces(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, cap: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute ``plain`` over pieces of the keys, and merge the results. The scores then take little memory even for a
    long context.
    """
    step = max(1, _MOST_SCORES // (q.shape[1] * q.shape[2]))
    if k.shape[2] <= step:
        return plain(q, k, v, scaling, cap=cap)
    spans = [slice(start, start + step) for start in range(0, k.shape[2], step)]
    parts = [plain(q, k[:, :, span], v[:, :, span], scaling, cap=cap) for span in spans]
    outs, lses = (torch.cat(part) for part in zip(*parts, strict=True))
    return join(outs, lses), torch.logsumexp(lses, dim=0, keepdim=True)


def split_attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, splits: int, kernel: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut the keys into ``splits`` equal pieces and a remainder. Run ``kernel`` once on a batch of the pieces and once
    on the remainder, and merge the results. Pieces are views: no key or value is copied.
    """
    even = k.shape[2] // splits * splits
    outs, lses = attend_each(q, k[:, :, :even], v[:, :, :even], splits, kernel)
    if even < k.shape[2]:
        out, lse = kernel(q, k[:, :, even:], v[:, :, even:])
        outs, lses = torch.cat([outs, out]), torch.cat([lses, lse])
    return join(outs, lses), torch.logsumexp(lses, dim=0, keepdim=True)


def attend_each(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, splits: int, kernel: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run ``kernel`` on each of ``splits`` equal pieces of the keys, as one batch. Returns outs (splits, heads, rows,
    head_dim) and lses (splits, heads, rows).
    """
    heads, piece, dim = k.shape[1], k.shape[2] // splits, k.shape[3]

    def cut(x: torch.Tensor) -> torch.Tensor:
        return x[0].unflatten(1, (splits, piece)).transpose(0, 1)

    made: tuple[torch.Tensor, torch.Tensor] = kernel(q.expand(splits, heads, q.shape[2], dim), cut(k), cut(v))
    return made
