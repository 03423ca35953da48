"""Computes the attention of few queries to many keys with Triton, and returns the output and log-sum-exp of each piece
of the keys (split-KV).

Each Triton program computes one block of query rows of one KV head over one piece of its keys; the caller merges the
pieces. The rows of a KV head's query group are packed, so every key and value is read once for up to ``_MOST_ROWS``
rows. On a CPU the kernel runs in Triton's interpreter, so that it can be tested without a GPU. Importing this module
needs Triton.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Number of keys that a Triton program reads in one step.
_KEYS = 64
# Minimum query rows of a block, which the GPU's matrix units require.
_LEAST_ROWS = 16
# Maximum query rows of a block.
_MOST_ROWS = 64


@triton.jit
def _piece(  # type: ignore[no-untyped-def]
    q, k, v, out, lse, scaling, rows, dim, seq, piece,
    q_head, q_row, k_head, k_row, v_head, v_row, out_split, out_head, lse_split, lse_head,
    ROWS: tl.constexpr, DIM: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    head, split, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = block * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, DIM)
    inside = (row[:, None] < rows) & (column[None, :] < dim)
    queries = tl.load(q + head * q_head + row[:, None] * q_row + column[None, :], mask=inside, other=0.0)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    made = tl.zeros([ROWS, DIM], tl.float32)
    first = split * piece
    last = tl.minimum(first + piece, seq)
    for start in range(first, last, KEYS):
        key = start + tl.arange(0, KEYS)
        there = key < last
        filled = there[:, None] & (column[None, :] < dim)
        keys = tl.load(k + head * k_head + key[:, None].to(tl.int64) * k_row + column[None, :], mask=filled, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scaling
        scores = tl.where(there[None, :], scores, float("-inf"))
        newest = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp(scores - newest[:, None])
        fade = tl.exp(largest - newest)
        values = tl.load(
            v + head * v_head + key[:, None].to(tl.int64) * v_row + column[None, :], mask=filled, other=0.0
        )
        made = made * fade[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        total = total * fade + tl.sum(weights, 1)
        largest = newest
    place = out + split * out_split + head * out_head + row[:, None] * dim + column[None, :]
    tl.store(place, made / total[:, None], mask=inside)
    tl.store(lse + split * lse_split + head * lse_head + row, largest + tl.log(total), mask=row < rows)


def attend_pieces(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, splits: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the attention to each piece of the keys separately. There are at most ``splits`` pieces.

    Shapes: q (1, kv_heads, rows, dim), k and v (1, kv_heads, seq, dim) with a contiguous last axis; returned are out
    (pieces, kv_heads, rows, dim) and lse (pieces, kv_heads, rows), both float32.
    """
    q = q.contiguous()
    heads, rows, dim = q.shape[1:]
    seq = k.shape[2]
    piece = triton.cdiv(triton.cdiv(seq, splits), _KEYS) * _KEYS
    pieces = triton.cdiv(seq, piece)
    block = min(_MOST_ROWS, max(_LEAST_ROWS, triton.next_power_of_2(rows)))
    out = torch.empty(pieces, heads, rows, dim, dtype=torch.float32, device=q.device)
    lse = torch.empty(pieces, heads, rows, dtype=torch.float32, device=q.device)
    _piece[(heads, pieces, triton.cdiv(rows, block))](
        q, k, v, out, lse, scaling, rows, dim, seq, piece,
        q.stride(1), q.stride(2), k.stride(1), k.stride(2), v.stride(1), v.stride(2),
        out.stride(0), out.stride(1), lse.stride(0), lse.stride(1),
        ROWS=block, DIM=triton.next_power_of_2(dim), KEYS=_KEYS,
    )  # fmt: skip
    return out, lse
