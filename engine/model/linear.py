"""Quantized linear layers, on request: a larger model in the same memory, and answers exact with respect to them.

The linear layers of the decoder blocks are quantized when the model is loaded; embedding, head and norms stay as they
are. 8 bits: one scale per output row. 4 bits: a scale and a zero point per group of 32. In bfloat16 on a processor,
torch's own kernels read the small weights directly, each row of a pass as if it came alone; anywhere else the weights
of one layer at a time are unpacked for its product, which saves memory and not time.

Why not a quantization package: torchao 0.18 works on this walk, and was not taken. Without compiling, its 8-bit layers
unpack at every pass too, its 4-bit ones for processors take a byte each or are a prototype, and where it is installed
transformers imports it at every start. bitsandbytes needs CUDA.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from engine.errors import ModelError
from engine.quantization import BITS, GROUP, KERNEL_WIDTH

# Rows of the largest pass through torch's kernels: a verification. Reading a book is faster with unpacked weights.
_KERNEL_ROWS = 64
_LEVELS_8, _LEVELS_4 = 127, 15
_ZERO_4 = 8  # what torch's 4-bit kernels subtract
_MIN_SCALE = 1e-8
_INNER_TILES = 1  # the packing's only parameter; processors do not look at it


class Linear8(nn.Module):
    """A linear layer with weights in 8 bits.

    Args:
        linear: whose weights (out, in) are quantized.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        scale = (weight.float().abs().amax(dim=1) / _LEVELS_8).clamp(min=_MIN_SCALE).to(weight.dtype)
        rounded = (weight.float() / scale.float()[:, None]).round().clamp(-_LEVELS_8, _LEVELS_8)
        self.weight = _fixed(rounded.to(torch.int8))
        self.scale = _fixed(scale)
        self.bias = linear.bias
        self._kernel = self.in_features % KERNEL_WIDTH == 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features)
        if self._kernel and _has_kernel(x) and rows.shape[0] <= _KERNEL_ROWS:
            out = torch._weight_int8pack_mm(rows, self.weight, self.scale).view(*x.shape[:-1], -1)
            return out if self.bias is None else out + self.bias
        return functional.linear(x, self.unpacked(), self.bias)

    def unpacked(self) -> torch.Tensor:
        """The weights (out, in) that this layer computes with."""
        return self.weight.to(self.scale.dtype) * self.scale[:, None]


class Linear4(nn.Module):
    """A linear layer with weights in 4 bits, two in a byte.

    Args:
        linear: whose weights (out, in) are quantized; ``in`` is a multiple of ``GROUP``.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        groups = weight.float().reshape(self.out_features, -1, GROUP)
        low, high = groups.amin(dim=-1), groups.amax(dim=-1)
        scale = ((high - low) / _LEVELS_4).clamp(min=_MIN_SCALE).to(weight.dtype)
        middle = (low + _ZERO_4 * scale.float()).to(weight.dtype)  # what level 8 stands for
        levels = (groups - middle.float()[..., None]) / scale.float()[..., None] + _ZERO_4
        levels = levels.round().clamp(0, _LEVELS_4).reshape(self.out_features, -1)
        # (groups, out, 2) as torch's kernels want it.
        self.scales_and_zeros = _fixed(torch.stack([scale, middle], dim=-1).transpose(0, 1).contiguous())
        self.kernel = _has_kernel(weight)
        self.weight = _fixed(_packed_for_kernel(levels) if self.kernel else _packed(levels))
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.kernel:
            return functional.linear(x, self.unpacked(), self.bias)
        out = self._product(x.reshape(-1, self.in_features)).view(*x.shape[:-1], -1)
        return out if self.bias is None else out + self.bias

    def unpacked(self) -> torch.Tensor:
        """The weights (out, in) that this layer computes with."""
        if self.kernel:  # only the kernel knows its own packing
            return self._product(torch.eye(self.in_features, dtype=self.scales_and_zeros.dtype)).t()
        levels = torch.stack([self.weight & 15, self.weight >> 4], dim=-1).reshape(self.out_features, -1, GROUP)
        scale, middle = self.scales_and_zeros.transpose(0, 1).unbind(dim=-1)
        values = (levels.to(scale.dtype) - _ZERO_4) * scale[..., None] + middle[..., None]
        return values.reshape(self.out_features, self.in_features)

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.weight, GROUP, self.scales_and_zeros)
        return out


def quantize(model: Any, weights: str, name: str) -> None:
    """Quantize the linear layers of all decoder blocks of a transformers causal LM in place, before it is moved.

    Args:
        weights: "8bit" or "4bit".
        name: of the model, for people.

    Raises:
        ModelError: the model's widths do not allow it.
    """
    kind = Linear8 if BITS[weights] == 8 else Linear4
    for block in model.model.layers:
        for path, layer in list(block.named_modules()):
            if not isinstance(layer, nn.Linear):
                continue
            if kind is Linear4 and layer.in_features % GROUP:
                raise ModelError(
                    f"{name} has layers of width {layer.in_features}, and 4-bit weights come in groups of {GROUP}.",
                    "Use --weights 8bit.",
                )
            parent, _, last = path.rpartition(".")
            setattr(block.get_submodule(parent), last, kind(layer))


def count_parameters(model: nn.Module) -> int:
    """Parameters of a model, whatever the bits of each."""
    small = [layer for layer in model.modules() if isinstance(layer, Linear8 | Linear4)]
    held = sum(weight.numel() for layer in small for weight in layer.parameters())
    meant = sum(
        layer.in_features * layer.out_features + (0 if layer.bias is None else layer.bias.numel()) for layer in small
    )
    return sum(weight.numel() for weight in model.parameters()) - held + meant


def _has_kernel(like: torch.Tensor) -> bool:
    """In float32 torch's kernels for processors are far slower than unpacking; on CUDA these have not been tried."""
    return like.device.type == "cpu" and like.dtype is torch.bfloat16


def _fixed(values: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)


def _packed(levels: torch.Tensor) -> torch.Tensor:
    """Levels (out, in) from 0 to 15 as (out, in / 2) bytes, the earlier one in the lower half."""
    whole = levels.to(torch.uint8)
    return whole[:, 0::2] | (whole[:, 1::2] << 4)


def _packed_for_kernel(levels: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels.to(torch.int32), _INNER_TILES)
    return packed
