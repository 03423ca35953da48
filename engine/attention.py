"""One attention primitive: exact attention over a piece of the context, and the merge of pieces.

``attend`` answers queries against keys that they all see; ``attend_causal`` answers new tokens against themselves;
``merge`` joins any such parts exactly by their log-sum-exp, so pieces may lie in different buffers (resident and
streamed, GPU and CPU); ``attend_newest`` is the whole of it for one contiguous buffer. The rows of one KV head's
queries (the GQA group times the queries) are packed together, so each key and value is read once.

Also owns the bridge to transformers: ``register`` installs an attention function that hands the layer's queries, keys
and values to the cache object that came down the call as ``kv``. Knows no cache and no model family.

Shapes: q (1, heads, n, head_dim); k, v (1, kv_heads, seq, head_dim); out like q; lse (1, heads, n) in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import torch

IMPLEMENTATION = "trifold"
"""Name under which ``register`` installs the attention function in transformers."""

# A KV head's keys are cut into up to this many pieces when there are fewer heads than processors.
_MAX_SPLITS = 16
# Most queries that go through one masked call; more would make the mask itself the cost.
_MASKED_QUERIES = 64
# Pieces shorter than this cost more in the merge than they gain.
_MIN_SPLIT_KEYS = 2048


class KeyValues(Protocol):
    """What a cache must offer to one forward pass: store the new tokens' KV and answer their queries."""

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> torch.Tensor: ...


def register() -> None:
    """Install Trifold's attention in transformers' attention interface. Harmless when repeated."""
    from transformers import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, _forward)


def _forward(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    kv: KeyValues,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    out = kv.attend(module.layer_idx, query, key, value, scaling)
    return out.transpose(1, 2), None


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of every query to every key, unmasked.

    Returns:
        out (1, heads, n, head_dim) and its log-sum-exp (1, heads, n). With no keys: zeros and minus infinity, the
        neutral element of ``merge``.
    """
    heads, n = q.shape[1], q.shape[2]
    kv_heads, seq = k.shape[1], k.shape[2]
    if seq == 0:
        return torch.zeros_like(q), q.new_full((1, heads, n), float("-inf"), dtype=torch.float32)
    packed = q.reshape(1, kv_heads, heads // kv_heads * n, q.shape[3])
    out, lse = _kernel_for(q)(packed, k, v, scaling)
    return out.reshape(q.shape), lse.reshape(1, heads, n)


def attend_newest(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> torch.Tensor:
    """Causal attention of n new tokens that are the last n of the keys: what one forward pass needs.

    Shapes as ``attend``; returns out alone. A single token sees everything. A few tokens on a CPU take one call with a
    mask over the keys, which costs half of two calls and a merge; otherwise past and new are computed apart and merged.
    """
    n, past = q.shape[2], k.shape[2] - q.shape[2]
    if n == 1 or past == 0:
        return (attend if n == 1 else attend_causal)(q, k, v, scaling)[0]
    if q.device.type == "cpu" and n <= _MASKED_QUERIES and _splits(k.shape[1], past, torch.get_num_threads()) == 1:
        group = q.shape[1] // k.shape[1]
        packed = q.reshape(1, k.shape[1], group * n, q.shape[3])
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        mask = _newest_mask(n, past, group, q.dtype)
        return kernel(packed, k, v, 0.0, False, attn_mask=mask, scale=scaling)[0].reshape(q.shape)
    parts = [
        attend(q, k[:, :, :past], v[:, :, :past], scaling),
        attend_causal(q, k[:, :, past:], v[:, :, past:], scaling),
    ]
    return merge(parts)


@functools.lru_cache(maxsize=4)
def _newest_mask(n: int, past: int, group: int, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask (1, 1, group * n, past + n). The layers of a pass share it, so the last few are kept."""
    mask = torch.zeros(n, past + n, dtype=dtype)
    mask[:, past:] = torch.full((n, n), float("-inf"), dtype=dtype).triu_(1)
    return mask.repeat(group, 1)[None, None]


def attend_causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of n new tokens to themselves: token i sees tokens 0..i. Shapes as ``attend`` with seq = n."""
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    if q.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=scaling)
        return out, lse
    if _has_cuda_flash(q):
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, scale=scaling)[:2]
    n = q.shape[2]
    mask = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
    return _plain(q, k, v, scaling, mask)


def merge(parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Join parts (out, lse) over disjoint keys into the attention over all of them. Exact up to rounding."""
    if len(parts) == 1:
        return parts[0][0]
    lse = torch.stack([part[1] for part in parts])
    weights = torch.softmax(lse, dim=0).unsqueeze(-1)
    outs = torch.stack([part[0] for part in parts])
    return (outs * weights).sum(dim=0).to(outs.dtype)


def plain_attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition that every fast path is tested against. q must be packed: (1, kv_heads, rows, head_dim)."""
    return _plain(q, k, v, scaling, None)


def _plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.matmul(q, k.transpose(-1, -2)).float() * scaling
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse.unsqueeze(-1))
    return torch.matmul(weights.to(v.dtype), v), lse


def _kernel_for(q: torch.Tensor) -> Any:
    if q.device.type == "cpu":
        return _cpu
    if _has_cuda_flash(q):
        return _cuda
    return plain_attend


def _has_cuda_flash(q: torch.Tensor) -> bool:
    return q.device.type == "cuda" and q.dtype in (torch.float16, torch.bfloat16) and q.shape[-1] <= 256


def _splits(heads: int, seq: int, workers: int) -> int:
    """Pieces to cut seq keys into, so that heads times pieces keeps all workers busy."""
    splits = 1
    while heads * splits < workers and splits < _MAX_SPLITS and seq // (2 * splits) >= _MIN_SPLIT_KEYS:
        splits *= 2
    return splits


def _cpu(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's fused CPU kernel; it also returns the log-sum-exp."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    splits = _splits(q.shape[1], k.shape[2], torch.get_num_threads())
    if splits == 1:
        out, lse = kernel(q, k, v, 0.0, False, scale=scaling)
        return out, lse
    return _split_attend(q, k, v, splits, lambda a, b, c: kernel(a, b, c, 0.0, False, scale=scaling))


def _cuda(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's flash kernel with the pieces of the KV laid out as the batch: split-KV decoding without a new kernel."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention
    workers = torch.cuda.get_device_properties(q.device).multi_processor_count
    splits = _splits(q.shape[1], k.shape[2], workers)
    if splits == 1:
        return kernel(q, k, v, 0.0, False, scale=scaling)[:2]
    return _split_attend(q, k, v, splits, lambda a, b, c: kernel(a, b, c, 0.0, False, scale=scaling)[:2])


def _split_attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, splits: int, kernel: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run ``kernel`` on equal pieces of the keys as one batch, and join them. The views copy nothing."""
    even = k.shape[2] // splits * splits
    heads, piece, dim = k.shape[1], even // splits, k.shape[3]

    def cut(x: torch.Tensor) -> torch.Tensor:
        return x[0, :, :even].unflatten(1, (splits, piece)).transpose(0, 1)

    out, lse = kernel(q.expand(splits, heads, q.shape[2], dim), cut(k), cut(v))
    outs, lses = list(out.unsqueeze(1)), list(lse.unsqueeze(1))
    if even < k.shape[2]:
        rest, rest_lse = kernel(q, k[:, :, even:], v[:, :, even:])
        outs.append(rest)
        lses.append(rest_lse)
    joined = torch.logsumexp(torch.stack(lses), dim=0)
    return merge(list(zip(outs, lses, strict=True))), joined
