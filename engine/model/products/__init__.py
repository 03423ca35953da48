"""Implements products of activations with weights, for each format of weights, and norms."""

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
    """A linear layer whose parameters have fewer elements than the layer has weights, because each element holds
    several weights.
    """

    in_features: int
    out_features: int
    bias: torch.Tensor | None


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Linear:
    """Make a linear layer with the weights ``weight`` (out, in), which are not copied."""
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
    """Pad rows with zeros to whole SIMD vectors (``WHOLE``)."""
    return functional.pad(x, (0, -x.shape[1] % WHOLE))
