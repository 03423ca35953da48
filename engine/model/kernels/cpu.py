"""Computes attention on a processor, with our own kernels or with torch's.

Our kernels (``native``) need llvmlite, and a head_dim that is a multiple of the SIMD vector's size. Otherwise torch's
fused kernel is used, on pieces of the keys so that all threads work. With torch's kernel, the bits of a row depend on
the number of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from engine.model.kernels import attend_each, in_pieces, native, plain, split_attend
from engine.model.kernels.abi import MOST_ROWS
from engine.model.kernels.own_attention import Held, newest_seen

# Maximum number of pieces that keys are cut into.
_MAX_SPLITS = 16
# Minimum keys of a piece. Shorter pieces cost more time for merging than they save.
_MIN_PIECE = 2048
# Maximum ratio of attention's time to its time if no worker waited for another. The smallest number of pieces within
# this maximum is used. If no number is within it, the number with the smallest ratio is used.
_TOLERATED_WAIT = 1.1


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, cap: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the attention of packed queries to all keys, and its log-sum-exp. Shapes as in
    ``engine.model.kernels``.
    """
    own = native.own() if q.shape[2] <= MOST_ROWS else None
    if own is not None and own.attention.takes(q, k, v):
        return own.attention.attend(q, k, v, scaling, _all_seen(q.shape[2], k.shape[2]), cap=cap)
    if cap is not None:
        return in_pieces(q, k, v, scaling, cap)
    pieces = splits(q.shape[1], k.shape[2], torch.get_num_threads())
    if pieces == 1:
        return _fused(q, k, v, scaling)
    return split_attend(q, k, v, pieces, functools.partial(_fused, scaling=scaling))


def reads_quants(q: torch.Tensor) -> bool:
    """Whether ``attend_newest`` can read KV in the 8-bit storage format, for queries of this shape (1, heads, n,
    head_dim).
    """
    own = native.own() if q.shape[2] <= MOST_ROWS or reads_in_pairs(q) else None
    return own is not None and own.attention.answers(q)


def reads_in_pairs(q: torch.Tensor) -> bool:
    """Whether our attention kernel is faster than torch's kernel even for many tokens. Our kernel then gets 96 query
    rows at a time. Queries are (1, heads, n, head_dim).

    Our kernel is faster if it multiplies pairs of bfloat16 numbers: it reaches 240 to 340 GFLOP/s, torch's kernel 120
    to 160 (2 cores with AVX-512 BF16, after 2,048 and 7,168 tokens). In float32 both kernels reach about 140.
    """
    own = native.own() if q.dtype is torch.bfloat16 else None
    return own is not None and own.attention.answers(q) and own.attention.takes_pairs(q.shape[3])


def attend_newest(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scaling: float,
    new: int,
    window: int | None = None,
    cap: float | None = None,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Compute the attention of the last ``new`` tokens, each to the keys up to and including its own. With a
    ``window``, a token sees only the newest ``window`` of these keys.

    Returns several results (output, log-sum-exp) over disjoint keys, which the caller merges. If ``reads_quants``
    allows it, k and v may be stored in 8 bits, (1, kv_heads, seq, storage_dim) of int8.
    """
    own = native.own()
    if own is not None and own.attention.takes(q, k, v):
        seen = newest_seen(new, k.shape[2] - new, q.shape[2] // new)
        first = None if window is None else _window_starts(new, k.shape[2] - new, q.shape[2] // new, window)
        return [own.attention.attend(q, k, v, scaling, seen, first, cap)]
    past = k.shape[2] - new
    if cap is not None:
        mask = _newest_mask(new, past, q.shape[2] // new, torch.float32, window)
        return [plain(q, k, v, scaling, mask == 0, cap)]
    pieces = splits(k.shape[1], past, torch.get_num_threads()) if window is None else 1
    even = past // pieces * pieces if pieces > 1 else 0
    mask = _newest_mask(new, past - even, q.shape[2] // new, q.dtype, window)
    tail = _fused(q, k[:, :, even:], v[:, :, even:], scaling, mask)
    if even == 0:
        return [tail]
    kernel = functools.partial(_fused, scaling=scaling)
    return [attend_each(q, k[:, :, :even], v[:, :, :even], pieces, kernel), tail]


def copy_chunks(sources: Sequence[Held], targets: Sequence[Held], chunks: torch.Tensor, size: int) -> bool:
    """Copy chosen chunks of ``size`` tokens to the beginning of the targets, in the order of ``chunks``.

    Args:
        sources, targets: keys and values of each layer, (kv_heads, capacity, head_dim).
        chunks: (layers, kv_heads, chosen), indices of the chosen chunks.

    Returns:
        True if the chunks were copied, False if our kernels do not support the copy.
    """
    own = native.own() if chunks.is_cpu else None
    return own is not None and own.attention.copy_chunks(sources, targets, chunks, size)


# All layers of a pass call the functions below with equal arguments, so the last few results are cached.


@functools.lru_cache(maxsize=4)
def _all_seen(rows: int, keys: int) -> torch.Tensor:
    """Make a tensor (rows,) filled with ``keys``, the number of keys that each row of queries sees."""
    return torch.full((rows,), keys, dtype=torch.long)


@functools.lru_cache(maxsize=4)
def _window_starts(n: int, past: int, group: int, window: int) -> torch.Tensor:
    return (newest_seen(n, past, group) - window).clamp_(min=0)


@functools.lru_cache(maxsize=4)
def _newest_mask(n: int, past: int, group: int, dtype: torch.dtype, window: int | None) -> torch.Tensor:
    """Make the additive causal mask (1, 1, group * n, past + n) for the packed queries of n new tokens after ``past``
    earlier tokens. With a ``window``, the mask also hides older keys.
    """
    mask = torch.zeros(n, past + n, dtype=dtype)
    mask[:, past:] = torch.full((n, n), float("-inf"), dtype=dtype).triu_(1)
    if window is not None:
        mask += torch.full_like(mask, float("-inf")).tril_(past - window)
    return mask.repeat(group, 1)[None, None]


def _fused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = kernel(q, k, v, 0.0, False, attn_mask=mask, scale=scaling)
    return out, lse


def splits(heads: int, seq: int, workers: int) -> int:
    """Return the number of pieces to cut ``seq`` keys into, so that all workers are busy for about the same time.
    Without pieces, three heads on two workers would take as long as four heads.
    """
    largest = max(1, min(_MAX_SPLITS, seq // _MIN_PIECE))
    waits = [-(-heads * n // workers) * workers / (heads * n) for n in range(1, largest + 1)]
    return next(n for n, wait in enumerate(waits, 1) if wait <= max(_TOLERATED_WAIT, min(waits)))
