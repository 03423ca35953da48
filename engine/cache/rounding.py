"""KV in 8 bits, on request: half the memory of bfloat16, a quarter of float32, and the only approximation there is.

A key or value of one head, head_dim numbers, is kept as head_dim codes of one byte and behind them its own scale in two
bytes. Symmetric: the largest of the numbers by size is code 127 or -127, zero stays zero, and a code stands for itself
times the scale. One scale per token and head, because a token is then rounded by itself when it is written: nothing
that comes later changes what it stands for, and it can be cropped, moved and saved alone. (A scale per channel fits
keys better, but needs tokens that are not there yet.) Keys are rounded after RoPE, as they are kept; a rotation mixes
two channels each and leaves the length of the whole as it is.

The scale's two bytes are bfloat16, whose range is that of float32; float16 for models in float16. That it is rounded
itself costs nothing, since codes are computed with what is kept of it. Whoever reads sees ``unrounded`` numbers, the
pass that writes them too: so every way of decoding computes with the same KV.
"""

from __future__ import annotations

import torch

from engine.cache.shape import KvShape

LEVELS = 127
"""The largest code."""


def rounded(shape: KvShape, x: torch.Tensor) -> torch.Tensor:
    """KV (..., head_dim) in the model's dtype as it is kept, (..., kept_dim) of ``kept_dtype``."""
    if not shape.rounded:
        return x
    kind = _scale_dtype(shape)
    kept = torch.empty(*x.shape[:-1], shape.kept_dim, dtype=torch.int8, device=x.device)
    kept[..., : shape.head_dim], scale = codes_of(x, kind)
    kept[..., shape.head_dim :].view(kind).copy_(scale)
    return kept


def codes_of(x: torch.Tensor, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (..., n), whole numbers, of vectors (..., n), and their scales (..., 1) of the dtype ``kind``."""
    values = x.float()
    scale = (values.abs().amax(dim=-1, keepdim=True) / LEVELS).clamp(min=torch.finfo(kind).tiny).to(kind)
    return (values / scale.float()).round().clamp(-LEVELS, LEVELS), scale


def unrounded(shape: KvShape, kept: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """What is kept, (..., kept_dim), in the model's dtype: (..., head_dim); written to ``out`` where it is given."""
    if not shape.rounded:
        return kept if out is None else out.copy_(kept)
    if out is None:
        out = torch.empty(*kept.shape[:-1], shape.head_dim, dtype=shape.dtype, device=kept.device)
    # Two passes over ``out``, which is what a processor does without a copy in between.
    out.copy_(kept[..., : shape.head_dim])
    return out.mul_(kept[..., shape.head_dim :].view(_scale_dtype(shape)).to(shape.dtype))


def _scale_dtype(shape: KvShape) -> torch.dtype:
    return torch.float16 if shape.dtype is torch.float16 else torch.bfloat16
