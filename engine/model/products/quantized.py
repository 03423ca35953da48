"""Computes linear layers with 8-bit or 4-bit weights, and chooses the dtype of products over many tokens.

Quantized weights let a larger model fit in the same memory. Speculation then gives the answers of plain decoding with
the same quantized weights. The linear layers of the decoder blocks are quantized when the model is loaded. Embedding,
head, norms and the routers of experts are not quantized. 8-bit weights (``Linear8``) have one scale per output row, or
one per group of inputs if a GGUF file is rounded for a GPU. 4-bit weights (``Linear4``) have a scale and a middle per
group of 32 inputs. The modules ``packed`` and ``tiled`` multiply by such weights directly. Where neither can be used,
this module unpacks a layer's weights for each product, which saves memory but no time.

No quantization package is used. torchao 0.18 would work, but without compilation its 8-bit layers unpack in every pass
too. Its 4-bit layers for processors take a byte for each weight, or are a prototype. If torchao is installed,
transformers imports it at every start. bitsandbytes needs CUDA.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from engine.errors import ModelError
from engine.model.experts import choosing
from engine.model.products import fixed, replace
from engine.quantization import BITS, GROUP, LAST_QUANT, MIDDLE_QUANT, QUANT_BITS

_LARGEST_QUANT_8 = 127
_MIN_SCALE = 1e-8
_PROBE_WIDTH = 256  # rows and columns of the matrices that ``computes_in_half`` multiplies
_PROBE_TIMES = 3  # number of timed products for each dtype
# A processor counts as lacking bfloat16 if a product in bfloat16 takes it at least this many times as long as in
# float32.
_FAR_SLOWER = 3


class Linear8(nn.Module):
    """A linear layer with 8-bit weights.

    Args:
        linear: the layer whose weights (out, in) are quantized.
        group: number of neighbouring inputs that share a scale; None for one scale per row.
    """

    def __init__(self, linear: nn.Linear, group: int | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        groups = weight.float().unflatten(1, (-1, group or self.in_features))
        scale = (groups.abs().amax(dim=2) / _LARGEST_QUANT_8).clamp(min=_MIN_SCALE).to(weight.dtype)
        rounded = (groups / scale.float().unsqueeze(2)).round().clamp(-_LARGEST_QUANT_8, _LARGEST_QUANT_8)
        self.weight = fixed(rounded.flatten(1).to(torch.int8))
        # (out,), or (out, groups)
        self.scale = fixed(scale if group else scale[:, 0].contiguous())
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _wide(x, self.unpacked(), self.bias)

    def unpacked(self) -> torch.Tensor:
        """Dequantize the weights (out, in)."""
        scale = self.scale.view(self.out_features, -1, 1)
        return (self.weight.to(scale.dtype).unflatten(1, (scale.shape[1], -1)) * scale).flatten(1)


class Linear4(nn.Module):
    """A linear layer with 4-bit weights, two in a byte.

    Args:
        linear: the layer whose weights (out, in) are quantized; ``in`` is a multiple of ``GROUP``.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        self.dtype = weight.dtype
        groups = weight.float().reshape(self.out_features, -1, GROUP)
        low, high = groups.amin(dim=-1), groups.amax(dim=-1)
        # Scales and middles are stored in two bytes, even if the weights of ``linear`` are in float32.
        kept = torch.float16 if self.dtype is torch.float16 else torch.bfloat16
        scale = ((high - low) / LAST_QUANT).clamp(min=_MIN_SCALE).to(kept)
        middle = (low + MIDDLE_QUANT * scale.float()).to(kept)
        quants = (groups - middle.float()[..., None]) / scale.float()[..., None] + MIDDLE_QUANT
        whole = quants.round().clamp(0, LAST_QUANT).reshape(self.out_features, -1).to(torch.uint8)
        self._hold(whole, scale, middle, linear.bias)

    @classmethod
    def of_quants(
        cls,
        quants: torch.Tensor,
        scale: torch.Tensor,
        middle: torch.Tensor,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
    ) -> Linear4:
        """Make a layer from quants (out, in), and from the scale and middle of each group (out, groups), both of which
        are rounded to two bytes. ``dtype`` is the dtype of the unpacked weights.
        """
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.dtype, (made.out_features, made.in_features) = dtype, quants.shape
        kept = torch.float16 if dtype is torch.float16 else torch.bfloat16
        made._hold(quants, scale.to(kept), middle.to(kept), None if bias is None else fixed(bias))
        return made

    def _hold(self, quants: torch.Tensor, scale: torch.Tensor, middle: torch.Tensor, bias: Any) -> None:
        self.scales_and_middles = fixed(torch.stack([scale, middle], dim=-1))  # (out, groups, 2)
        self.weight = fixed(quants[:, 0::2] | (quants[:, 1::2] << QUANT_BITS))
        self.bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _wide(x, self.unpacked(), self.bias)

    def quants(self) -> torch.Tensor:
        """Unpack the quants (out, in), which are from 0 to 15, one in a byte."""
        return torch.stack([self.weight & LAST_QUANT, self.weight >> QUANT_BITS], dim=-1).flatten(1)

    def unpacked(self) -> torch.Tensor:
        """Dequantize the weights (out, in)."""
        quants = self.quants().unflatten(1, (-1, GROUP)).to(self.dtype) - MIDDLE_QUANT
        scale, middle = self.scales_and_middles.to(self.dtype).unsqueeze(-1).unbind(dim=2)
        return (quants * scale + middle).flatten(1)


def quantize(blocks: Iterable[nn.Module], weights: str, name: str) -> None:
    """Quantize the linear layers of decoder blocks of a transformers causal LM in place. Call this function before the
    blocks are moved to their device.

    Args:
        weights: "8bit" or "4bit".
        name: the model's name for people.

    Raises:
        ModelError: a layer's number of inputs is no multiple of the group size of 4-bit weights.
    """
    kind: type[Linear8 | Linear4] = Linear8 if BITS[weights] == 8 else Linear4
    for block in blocks:
        # Routers are not quantized. If they chose other experts than before, the model would be a different one.
        kept = {id(layer) for layer in choosing(block)}
        for path, layer in list(block.named_modules()):
            if not isinstance(layer, nn.Linear) or id(layer) in kept:
                continue
            if kind is Linear4 and layer.in_features % GROUP:
                raise ModelError(
                    f"{name} has layers of width {layer.in_features}, and 4-bit weights come in groups of {GROUP}.",
                    "Use --weights 8bit.",
                )
            replace(block, path, kind(layer))


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Choose the dtype in which a processor computes matrix products over many tokens, if activations have ``dtype``.

    Most processors have no instructions for bfloat16. Such processors take 80 times as long in bfloat16 as in float32
    (measured with AVX2: 1.4 against 113 GFLOP/s). Their products are therefore computed in float32 and then rounded to
    bfloat16.
    """
    return torch.float32 if dtype is torch.bfloat16 and not computes_in_half() else dtype


@functools.cache
def computes_in_half() -> bool:
    """Whether a matrix product in bfloat16 takes this CPU less than ``_FAR_SLOWER`` times as long as in float32. The
    test takes 0.1 s and runs once.

    The test measures the CPU time of one thread instead of the elapsed time. On a busy machine float32 products waited
    so long for a core that bfloat16 products, which took 30 times as long, seemed equally fast.
    """
    seconds, threads = {}, torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for dtype in (torch.float32, torch.bfloat16):
            left, right = (torch.ones(_PROBE_WIDTH, _PROBE_WIDTH, dtype=dtype) for _ in range(2))
            taken = []
            for _ in range(_PROBE_TIMES):
                began = time.thread_time()
                torch.matmul(left, right)
                taken.append(time.thread_time() - began)
            seconds[dtype] = min(taken)
    finally:
        torch.set_num_threads(threads)
    return seconds[torch.bfloat16] < _FAR_SLOWER * seconds[torch.float32]


def _wide(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Compute ``functional.linear``. A processor computes in ``wide_dtype``, and the result is rounded to the dtype of
    x.
    """
    kind = wide_dtype(x.dtype) if x.device.type == "cpu" else x.dtype
    if kind is x.dtype:
        return functional.linear(x, weight, bias)
    return functional.linear(x.to(kind), weight.to(kind), None if bias is None else bias.to(kind)).to(x.dtype)
