"""Computes exact attention over pieces of the context, and merges the pieces.

``attend`` computes attention to keys that all queries see. ``attend_causal`` computes attention among new tokens.
``joined`` merges the results for several pieces by their log-sum-exp. The merged result is exact, so pieces may lie in
different buffers (resident and streamed, GPU and CPU). ``attend_newest`` computes and merges all pieces of one
contiguous buffer. The queries of all query heads that share a KV head (a GQA group) are packed as rows of one matrix,
so each key and value is read once.

``register`` installs an attention function in transformers. This function passes a layer's queries, keys and values to
the view of a KV cache (``engine.model.view``), which layers get as the argument ``kv``.

Shapes: q (1, heads, n, head_dim); k, v (1, kv_heads, seq, head_dim); out like q; lse (1, heads, n), the log-sum-exp of
the scores, in float32. In models with attention sinks, ``sinks`` (heads,) holds an additional score for each head. This
score takes part in the softmax and adds no value. ``cap`` is the cap of the scores (``engine.model.kernels``), or None.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from engine.errors import is_out_of_memory
from engine.model.kernels import cpu, cuda, in_pieces, join, plain
from engine.model.kernels.abi import MOST_ROWS
from engine.model.products import padded

if TYPE_CHECKING:
    from engine.model.kv_shape import KvShape
    from engine.model.view import View

_log = logging.getLogger(__name__)

IMPLEMENTATION = "trifold"
"""The name of the attention function that ``register`` installs in transformers."""

_WINDOW_ROWS = 512  # maximum number of tokens that ``_attend_windows`` computes in one call
# Maximum number of query rows of a KV head in one call of ``_attend_in_turn``, so that the scores of these rows for a
# piece of keys stay in the processor's cache.
_TURN_ROWS = 96
# Maximum number of keys for which ``cuda.flash_lengths`` is used if each query head has its own KV head. For such heads
# the kernel does not cut the keys into pieces. On an H200, a token with 32 heads takes 33 us for 1,024 keys, and 124 us
# for 4,096. A kernel with a mask takes 49 us and 70 us.
_UNCUT_KEYS = 2048
# Maximum product of tokens and keys for which a pass over several tokens uses ``cuda.flash_lengths``. This kernel reads
# the keys again for every token, so that a kernel with a mask is faster above about this product (H200).
_READ_AGAIN = 16 * 4096
# Maximum product of tokens and keys for ``cuda.flash_lengths`` if each query head has its own KV head.
_UNCUT_READ_AGAIN = 8 * 1024


def register() -> None:
    """Install Trifold's attention function in transformers. A repeated call has no effect."""
    from transformers import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, _forward)


def _forward(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    kv: View,
    s_aux: torch.Tensor | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    out = kv.attend(module.layer_idx, query, key, value, scaling, s_aux, softcap)
    return out.transpose(1, 2), None


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, cap: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the attention of every query to every key, without a mask.

    Returns:
        out (1, heads, n, head_dim) and its log-sum-exp (1, heads, n). Without keys these are zeros and minus infinity,
            the neutral element of ``merge``.
    """
    if k.shape[2] == 0:
        return torch.zeros_like(q), q.new_full(q.shape[:3], float("-inf"), dtype=torch.float32)
    packed = q.reshape(1, k.shape[1], -1, q.shape[3])
    if q.device.type == "cpu":
        return _unpacked(q, *cpu.attend(packed, k, v, scaling, cap))
    if cap is not None:
        return _unpacked(q, *in_pieces(packed, k, v, scaling, cap))
    kernel = cuda.fastest(q.device, q.dtype, packed.shape[1], q.shape[3], packed.shape[2])
    return _unpacked(q, *kernel(packed, k, v, scaling))


def choose_kernels(shape: KvShape, heads: int) -> None:
    """Measure which attention kernels are fastest on a model's GPUs, before caches fill the memory. If memory runs out
    here, the first pass measures the kernels, because a pass can spill layers to make room.

    Args:
        heads: number of query heads.
    """
    for part in shape.parts:
        if part.device.type not in cuda.MEASURED:
            continue
        device = torch.device(part.device.type, part.device.index or 0)
        try:
            for count in (shape.kv_heads, heads):
                cuda.measured(device, shape.dtype, count, shape.head_dim)
            cuda.takes_masks(device, shape.dtype, shape.kv_heads, shape.head_dim)
            cuda.takes_lengths(device, shape.dtype, shape.kv_heads, shape.group, shape.head_dim)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            _log.info("attention kernels are measured later: %s", error)


class Seen:
    """The keys that each of the n tokens of a pass sees, in the forms that kernels take: a mask, biases and lengths.
    All layers of the pass share one object.

    Args:
        keys: (n, seq), True where the token sees the key.
        lengths: the number of keys that each token sees, if every token sees a prefix of the keys; otherwise None.
    """

    def __init__(self, keys: torch.Tensor, lengths: cuda.Lengths | None = None) -> None:
        self.keys, self.lengths = keys, lengths
        self._rows: dict[int, torch.Tensor] = {}
        self._biases: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    @classmethod
    def up_to(cls, places: torch.Tensor, start: int, stop: int) -> Seen:
        """Make a ``Seen`` for tokens in the slots ``places`` (n,) of a cache, each of which sees all slots up to its
        own. The keys are those in the slots [start, stop).
        """
        slots = torch.arange(start, stop, device=places.device)
        return cls(slots <= places[:, None], cuda.Lengths.of(places - (start - 1)))

    def rows(self, group: int) -> torch.Tensor:
        """Return the mask for packed queries, (group * n, seq), if ``group`` query heads share a KV head."""
        if group not in self._rows:
            self._rows[group] = self.keys.repeat(group, 1)
        return self._rows[group]

    def bias(self, group: int, dtype: torch.dtype) -> torch.Tensor:
        """The bias (``cuda.bias_of``) that hides the same keys as the mask ``rows`` when it is added to the scores."""
        if (group, dtype) not in self._biases:
            self._biases[group, dtype] = cuda.bias_of(self.rows(group), dtype)
        return self._biases[group, dtype]


def _unpacked(q: torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Reshape results ``out`` and ``lse``, computed for packed queries, to the query heads of q. The first axis may
    hold the results for several pieces of the keys.
    """
    return out.reshape(-1, *q.shape[1:]), lse.reshape(-1, *q.shape[1:3])


def merge(parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Merge parts (out, lse) over disjoint keys into the attention over all keys. The result is exact up to
    rounding.
    """
    if len(parts) == 1:
        return parts[0][0]
    if len(parts) == 2 and parts[0][0].device.type != "cpu" and all(len(out) == 1 for out, _ in parts):
        (one, first), (other, second) = parts
        # computed in float32, because half precision would round a share of nearly 1 to 1
        share = torch.sigmoid(second - first).unsqueeze(-1)
        return torch.addcmul(one, other.float() - one, share).to(one.dtype)
    return join(*(torch.cat(part) for part in zip(*parts, strict=True)))


def joined(parts: Sequence[tuple[torch.Tensor, torch.Tensor]], sinks: torch.Tensor | None) -> torch.Tensor:
    """Merge parts (out, lse) over disjoint keys into the attention over all keys. One pair (out, lse) may hold several
    parts along its first axis.

    Sinks are applied after the merge, because their weight, a sigmoid, depends on all keys of a query. For the sigmoid,
    a token's heads are padded to whole SIMD vectors, so that a token gets the same bits whatever other tokens are in
    the pass.
    """
    out = merge(parts)
    if sinks is None:
        return out
    lse = torch.cat([lse for _, lse in parts])
    above = (lse[0] if lse.shape[0] == 1 else lse.logsumexp(dim=0)) - sinks.float()[:, None]
    left = padded(above.t()).contiguous().sigmoid()[:, : out.shape[1]].t()
    return (out * left[None, :, :, None]).to(out.dtype)


def attend_newest(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scaling: float,
    window: int | None = None,
    sinks: torch.Tensor | None = None,
    cap: float | None = None,
) -> torch.Tensor:
    """Compute the causal attention of n new tokens, whose keys are the last n keys.

    With a ``window``, a token sees only the last ``window`` keys up to its own key. Shapes as in ``attend``; returns
    only out, on the device of q. k and v may be in the 8-bit storage format if ``reads_quants`` allows it.

    A single token without a window needs no mask. A few tokens on a CPU are computed in one call with a mask, which
    takes half the time of two calls and a merge. Many tokens on a CPU are computed a few at a time if our kernel is
    faster than torch's, or if scores have a cap, which torch's kernel lacks. All other calls with a window are computed
    in pieces. All other calls without a window compute the attention to past keys and the attention among the new
    tokens separately, and merge both.
    """
    if q.device != k.device:  # the layer's KV may be that of a layer on a different GPU
        return attend_newest(q.to(k.device), k, v, scaling, window, sinks, cap).to(q.device)
    n, past = q.shape[2], k.shape[2] - q.shape[2]
    if n == 1 and k.dtype is q.dtype and window is None:
        return joined([attend(q, k, v, scaling, cap)], sinks)
    if q.device.type == "cpu" and n <= MOST_ROWS:
        return _attend_rows(q, k, v, scaling, window, sinks, cap)
    if q.device.type == "cpu" and (cap is not None or cpu.reads_in_pairs(q)):
        return _attend_in_turn(q, k, v, scaling, window, sinks, cap)
    if window is not None:
        return _attend_windows(q, k, v, scaling, window, sinks, cap)
    newer = attend_causal(q, k[:, :, past:], v[:, :, past:], scaling, cap)
    return joined([attend(q, k[:, :, :past], v[:, :, :past], scaling, cap), newer] if past else [newer], sinks)


def _attend_rows(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scaling: float,
    window: int | None,
    sinks: torch.Tensor | None,
    cap: float | None,
) -> torch.Tensor:
    packed = q.reshape(1, k.shape[1], -1, q.shape[3])
    parts = cpu.attend_newest(packed, k, v, scaling, q.shape[2], window, cap)
    return joined([_unpacked(q, *part) for part in parts], sinks)


def _attend_in_turn(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scaling: float,
    window: int | None,
    sinks: torch.Tensor | None,
    cap: float | None,
) -> torch.Tensor:
    """Compute ``attend_newest`` on a processor a few tokens at a time. Each call reads only the keys that its tokens
    see.
    """
    n, past = q.shape[2], k.shape[2] - q.shape[2]
    step = max(1, _TURN_ROWS * k.shape[1] // q.shape[1])
    out = torch.empty_like(q)
    for start in range(0, n, step):
        stop = min(n, start + step)
        first = 0 if window is None else max(0, past + start - window + 1)
        keys, values = (kv[:, :, first : past + stop] for kv in (k, v))
        out[:, :, start:stop] = _attend_rows(q[:, :, start:stop], keys, values, scaling, window, sinks, cap)
    return out


def _attend_windows(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scaling: float,
    window: int,
    sinks: torch.Tensor | None,
    cap: float | None,
) -> torch.Tensor:
    """Compute ``attend_newest`` with a window, ``_WINDOW_ROWS`` tokens at a time. Each of these calls reads only the
    keys that its tokens see.
    """
    n, past = q.shape[2], k.shape[2] - q.shape[2]
    outs = []
    for start in range(0, n, _WINDOW_ROWS):
        rows = min(_WINDOW_ROWS, n - start)
        first, stop = max(0, past + start - window + 1), past + start + rows
        some = q[:, :, start : start + rows]
        places = torch.arange(first, stop, device=q.device)
        newest = torch.arange(stop - rows, stop, device=q.device)[:, None]
        seen = (places <= newest) & (places > newest - window)
        keys, values = k[:, :, first:stop], v[:, :, first:stop]
        # torch's fused kernel supports no cap, and does not return the log-sum-exp that sinks need.
        if sinks is not None or cap is not None:
            outs.append(attend_seen(some, keys, values, scaling, Seen(seen), sinks, cap))
            continue
        packed = some.reshape(1, k.shape[1], -1, q.shape[3])
        seen = seen.repeat(q.shape[1] // k.shape[1], 1)
        out = functional.scaled_dot_product_attention(packed, keys, values, attn_mask=seen, scale=scaling)
        outs.append(out.reshape(some.shape))
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)


def reads_quants(q: torch.Tensor) -> bool:
    """Whether ``attend_newest`` can read KV in the 8-bit storage format (``engine.model.kv_shape``) for these
    queries.
    """
    return q.device.type == "cpu" and cpu.reads_quants(q)


def attend_seen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scaling: float,
    seen: Seen,
    sinks: torch.Tensor | None = None,
    cap: float | None = None,
) -> torch.Tensor:
    """Compute the attention of n tokens to the keys that ``seen`` marks.

    All other keys and values must be finite, because NaN would pass through the mask. Shapes as in ``attend``; returns
    only out. Recorded passes use this function, because its shapes do not depend on the number of tokens in the cache.
    """
    return joined([_attend_masked(q, k, v, scaling, seen, cap)], sinks)


def reads_lengths(shape: KvShape) -> bool:
    """Whether ``cuda.flash_lengths`` is fast even for the thousands of keys in a recorded pass, because it cuts the
    keys of a cache of this shape into pieces. False if the kernel gives wrong results on this GPU.
    """
    return shape.group > 1 and cuda.takes_lengths(
        shape.device, shape.dtype, shape.kv_heads, shape.group, shape.head_dim
    )


def attend_past_and_seen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scaling: float,
    past: int,
    seen: Seen,
    sinks: torch.Tensor | None = None,
    cap: float | None = None,
) -> torch.Tensor:
    """Compute the attention of queries that all see the first ``past`` keys. ``seen`` marks which of the remaining keys
    each query sees. The first ``past`` keys, usually most of the keys, are read without a mask.
    """
    if not past:
        return attend_seen(q, k, v, scaling, seen, sinks, cap)
    newer = _attend_masked(q, k[:, :, past:], v[:, :, past:], scaling, seen, cap)
    return joined([attend(q, k[:, :, :past], v[:, :, :past], scaling, cap), newer], sinks)


def _attend_masked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, seen: Seen, cap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    group = q.shape[1] // k.shape[1]
    if cap is None and seen.lengths is not None and _reads_by_length(q, k):
        return cuda.flash_lengths(q, k, v, scaling, seen.lengths)
    packed = q.reshape(1, k.shape[1], -1, q.shape[3])
    if cap is None and q.device.type == "cuda" and cuda.takes_masks(q.device, q.dtype, k.shape[1], q.shape[3]):
        return _unpacked(q, *cuda.efficient_seen(packed, k, v, scaling, seen.bias(group, q.dtype)))
    return _unpacked(q, *plain(packed, k, v, scaling, seen.rows(group), cap))


def _reads_by_length(q: torch.Tensor, k: torch.Tensor) -> bool:
    """Whether ``cuda.flash_lengths`` supports these tensors and is probably faster than a kernel with a mask. With many
    tokens and keys it is slower, because it reads the keys again for every token.
    """
    tokens, seq, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    if group == 1 and (seq > _UNCUT_KEYS or tokens * seq > _UNCUT_READ_AGAIN):
        return False
    if tokens > 1 and tokens * seq > _READ_AGAIN:
        return False
    return cuda.takes_lengths(q.device, q.dtype, k.shape[1], group, q.shape[3])


def attend_causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, cap: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute causal attention among n new tokens: token i sees tokens 0..i. Shapes as in ``attend`` with seq = n."""
    if cap is not None:
        seen = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).tril()
        return _attend_masked(q, k, v, scaling, Seen(seen), cap)
    if q.device.type == "cpu":
        group = q.shape[1] // k.shape[1]
        if group > 1:
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=scaling)
        return out, lse
    return cuda.attend_causal(q, k, v, scaling)
