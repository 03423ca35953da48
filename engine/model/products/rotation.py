"""Rotates queries and keys by RoPE on a GPU in few operations, because launching each of them takes longer than
computing it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Rotation(NamedTuple):
    """RoPE's cosines and signed sines, (1, 1, n, rotary_dim) each. A rotated vector is ``x * cos + swapped * sin``;
    ``swapped`` is x with its two halves exchanged. This takes three operations for queries and keys together.
    transformers' function takes five for queries and five for keys.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def of(cls, cos: torch.Tensor, sin: torch.Tensor) -> Rotation:
        """Make a ``Rotation`` from transformers' cosines and sines (1, n, rotary_dim), each of which consists of two
        equal halves.
        """
        half = sin.shape[-1] // 2
        return cls(cos.unsqueeze(1), torch.cat([-sin[..., :half], sin[..., half:]], dim=-1).unsqueeze(1))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate the first ``rotary_dim`` numbers of each head in x (1, heads, n, head_dim)."""
        rotary = self.cos.shape[-1]
        if rotary < x.shape[-1]:
            return torch.cat([self(x[..., :rotary]), x[..., rotary:]], dim=-1)
        return torch.addcmul(x * self.cos, x.roll(x.shape[-1] // 2, -1), self.sin)
