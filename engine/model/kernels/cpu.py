"""torch's fused attention kernel for processors, with the keys cut into pieces so that all threads work."""

from __future__ import annotations

import functools

import torch

from engine.model.kernels import attend_each, merge, split_attend

# Keys are cut into at most this number of pieces; shorter ones cost more in the merge than they gain.
_MAX_SPLITS, _MIN_PIECE = 16, 2048
# Time that may be lost to workers that wait for the last one, as a factor, before keys are cut further.
_TOLERATED_WAIT = 1.1


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's fused CPU kernel; it also returns the log-sum-exp."""
    pieces = splits(q.shape[1], k.shape[2], torch.get_num_threads())
    if pieces == 1:
        return _fused(q, k, v, scaling)
    return split_attend(q, k, v, pieces, functools.partial(_fused, scaling=scaling))


def attend_newest(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, new: int) -> torch.Tensor:
    """The same for the queries of the last ``new`` tokens, each of which sees the keys up to its own. Returns out."""
    past = k.shape[2] - new
    pieces = splits(k.shape[1], past, torch.get_num_threads())
    even = past // pieces * pieces if pieces > 1 else 0
    mask = _newest_mask(new, past - even, q.shape[2] // new, q.dtype)
    tail = _fused(q, k[:, :, even:], v[:, :, even:], scaling, mask)
    if even == 0:
        return tail[0]
    kernel = functools.partial(_fused, scaling=scaling)
    return merge([*attend_each(q, k[:, :, :even], v[:, :, :even], pieces, kernel), tail])


@functools.lru_cache(maxsize=4)
def _newest_mask(n: int, past: int, group: int, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask (1, 1, group * n, past + n). The layers of a pass share it, so the last few are kept."""
    mask = torch.zeros(n, past + n, dtype=dtype)
    mask[:, past:] = torch.full((n, n), float("-inf"), dtype=dtype).triu_(1)
    return mask.repeat(group, 1)[None, None]


def _fused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = kernel(q, k, v, 0.0, False, attn_mask=mask, scale=scaling)
    return out, lse


def splits(heads: int, seq: int, workers: int) -> int:
    """Pieces to cut ``seq`` keys into, so that heads times pieces keeps all workers busy, and about equally.

    Three heads on two workers would take as long as four.
    """
    largest = max(1, min(_MAX_SPLITS, seq // _MIN_PIECE))
    waits = [-(-heads * n // workers) * workers / (heads * n) for n in range(1, largest + 1)]
    return next(n for n, wait in enumerate(waits, 1) if wait <= max(_TOLERATED_WAIT, min(waits)))
