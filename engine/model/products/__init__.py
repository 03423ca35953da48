"""Implements products with weights in each of their formats, and norms."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

WHOLE = 64
"""Rows are padded to a multiple of ``WHOLE`` numbers, so that they fill whole SIMD vectors. torch computes the last
numbers of a tensor, which fill no whole vector, with different instructions. So the result of an unpadded row would
depend on its place in the tensor.
"""


class SmallLinear(nn.Module):
    """A linear layer whose parameters hold several weights in one element, so that they have fewer elements than the
    layer has weights.
    """

    in_features: int
    out_features: int
    bias: torch.Tensor | None


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Linear:
    """Make a linear layer with these weights (out, in)."""
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=False, device="meta")
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    layer.register_parameter("bias", None if bias is None else nn.Parameter(bias.detach(), requires_grad=False))
    return layer


def replace(model: nn.Module, path: str, new: nn.Module) -> None:
    parent, _, last = path.rpartition(".")
    setattr(model.get_submodule(parent), last, new)


def fixed(values: torch.Tensor) -> nn.Parameter:
    """Make a parameter that is never trained."""
    return nn.Parameter(values, requires_grad=False)


def padded(x: torch.Tensor) -> torch.Tensor:
    """Pad rows with zeros so that they fill whole vectors."""
    return functional.pad(x, (0, -x.shape[1] % WHOLE))
