"""Computes each RMS norm with a single kernel: our own on a processor, torch's on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from engine.model.families.family import ORDINARY, Family
from engine.model.products import fixed, replace

if TYPE_CHECKING:
    from engine.model.kernels.native import Native


class PackedNorm(nn.Module):
    """An RMS norm on a processor, computed by our own kernel.

    Args:
        norm: transformers' norm.
        kernels: the kernels that compute the norm.
        offset: number that the norm adds to its weights.
        width: length of the normalised vectors; needed only if the norm has no weights.
    """

    def __init__(self, norm: Any, kernels: Native, offset: float = 0.0, width: int = 0) -> None:
        super().__init__()
        self.weight = torch.ones(width) if width else fixed(norm.weight.detach().float().contiguous() + offset)
        self.epsilon = _epsilon_of(norm)
        self._kernels = kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._kernels.norm(x, self.weight, self.epsilon)


class FusedNorm(nn.Module):
    """An RMS norm on a GPU, computed by one torch kernel instead of transformers' up to eight. Intermediate results are
    not rounded.

    Args:
        norm: transformers' norm.
        offset: number that the norm adds to its weights, in float32.
    """

    def __init__(self, norm: Any, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = fixed(norm.weight.detach().float() + offset) if offset else norm.weight
        self.epsilon = _epsilon_of(norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.epsilon).to(x.dtype)


def fuse_norms(model: Any, family: Family = ORDINARY) -> None:
    """Replace each norm of a transformers causal LM by a ``FusedNorm``. Call this function before the model is moved to
    the GPU.
    """
    for path, layer in list(model.named_modules()):
        if is_norm(layer) and hasattr(layer, "weight"):
            replace(model, path, FusedNorm(layer, family.norm_offset_of(path)))


def is_norm(layer: nn.Module) -> bool:
    """Whether a module is one of transformers' RMS norms."""
    return type(layer).__name__.endswith("RMSNorm")


def _epsilon_of(norm: Any) -> float:
    return float(norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps)
