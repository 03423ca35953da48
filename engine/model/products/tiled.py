"""Computes linear layers on a GPU by torch's own product of bfloat16 inputs with 4-bit weights, which reads the packed
weights directly.

torch's product with weights in 4 bits (int4mm.cu) reads the weights once for every 16 rows. Layers with 8-bit weights
use the same product: each weight is split into an upper and a lower 4-bit weight, the input is repeated, and the sum of
both products is the result. torch's own product with 8-bit weights (int8mm.cu) is not used, because each of its threads
reads the weights of one output byte by byte, so that neighbouring threads read distant addresses (pytorch 190529).
"""

from __future__ import annotations

import logging

import torch
from torch import nn
from torch.nn import functional

from engine.model.products import SmallLinear, fixed, linear, replace
from engine.model.products.quantized import Linear4, Linear8
from engine.quantization import GROUP, LAST_QUANT, MIDDLE_QUANT, QUANT_BITS

_log = logging.getLogger(__name__)

MOST_TILED_ROWS = 16
"""Maximum rows for which the product reads the weights only once."""

TILE_OUT = 8
"""Number of outputs of a tile. The number of a layer's outputs must be a multiple of ``TILE_OUT``."""

# Minimum rows for which a layer's weights are unpacked before the product. With fewer rows, reading the packed weights
# once for every 16 rows moves fewer bytes.
_UNPACKED_FROM = 128
# Number of inputs in a tile of weights, in the layout of torch's product.
_TILE_IN = 16
# Numbers of tiles that torch's product can store together, the fastest first.
_TILES = (8, 4, 2)
# Minimum compute capability of a GPU (Ampere).
_CAPABILITY = (8, 0)
# Compute capabilities (major) of GPUs that read bfloat16 weights faster than they unpack 4-bit weights: Hopper, and
# Blackwell's data center cards.
_FAST_MEMORY = (9, 10)
# Maximum error of a product or a weight that ``multiplies_tiles`` allows, relative to the largest value.
_NEAR = 2e-2
# Numbers of inputs that can share a scale in torch's product. The largest number that divides a layer's inputs is used,
# because it needs the fewest bytes for scales.
_GROUPS = (256, 128, 64, 32)


def shared_inputs(inputs: int) -> int:
    """Choose the number of inputs that share a scale in a layer of ``inputs`` inputs with 8-bit weights."""
    return next(group for group in _GROUPS if inputs % group == 0)


class TiledLinear(SmallLinear):
    """A linear layer in the layout of torch's 4-bit product. Base class for layers with 4-bit and with 8-bit weights.

    Args:
        quants: (out, in) from 0 to 15, as bytes.
        scales_and_middles: (out, groups, 2) in bfloat16, for each group of ``group`` inputs.
        bias: added to the outputs.
        copies: how many times the input is repeated: twice if a weight is stored as two quants.
    """

    def __init__(
        self,
        quants: torch.Tensor,
        scales_and_middles: torch.Tensor,
        group: int,
        bias: torch.Tensor | None,
        copies: int = 1,
    ) -> None:
        super().__init__()
        self.out_features, width = quants.shape
        self.in_features, self._copies, self._group = width // copies, copies, group
        tiles = next(tiles for tiles in _TILES if width % (tiles * _TILE_IN) == 0)
        # torch expects the first of two quants in the upper four bits
        halves = (quants[:, 0::2] << QUANT_BITS) | quants[:, 1::2]
        self.weight = fixed(torch.ops.aten._convert_weight_to_int4pack(halves, tiles))
        self.scales_and_middles = fixed(scales_and_middles.transpose(0, 1).contiguous())
        self.bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features)
        if len(rows) >= _UNPACKED_FROM:
            return functional.linear(x, self.unpacked(), self.bias)
        rows = rows.contiguous() if self._copies == 1 else rows.repeat(1, self._copies)
        out = torch.ops.aten._weight_int4pack_mm(rows, self.weight, self._group, self.scales_and_middles)
        out = out if self.bias is None else out + self.bias
        return out.view(*x.shape[:-1], self.out_features)

    def quants(self) -> torch.Tensor:
        """Unpack the quants (out, in), in the order in which the constructor got them."""
        outs, wide, _, words = self.weight.shape
        held = self.weight.view(torch.uint8)  # two quants in a byte, in the order of torch's layout
        both = torch.stack([held & LAST_QUANT, held >> QUANT_BITS], dim=-1)
        tiles = both.view(outs, wide, TILE_OUT, 4, words, 2, 4)
        return tiles.permute(0, 2, 1, 4, 6, 3, 5).reshape(self.out_features, -1)

    def unpacked(self) -> torch.Tensor:
        """Dequantize the weights (out, in)."""
        raise NotImplementedError


class TiledLinear4(TiledLinear):
    """A ``Linear4`` on a GPU. It has the same weights except for rounding: ``quant * scale + middle`` is rounded to
    bfloat16 once, whereas ``Linear4`` also rounds the product ``quant * scale``.
    """

    def __init__(self, given: Linear4) -> None:
        super().__init__(given.quants(), given.scales_and_middles, GROUP, given.bias)

    def unpacked(self) -> torch.Tensor:
        quants = self.quants().unflatten(1, (-1, self._group)).bfloat16() - MIDDLE_QUANT
        scale, middle = self.scales_and_middles.transpose(0, 1).unsqueeze(-1).unbind(dim=2)
        return torch.addcmul(middle, quants, scale).flatten(1)


class TiledLinear8(TiledLinear):
    """A ``Linear8`` on a GPU, with the same weights. Each quant is stored as two numbers, ``upper`` from -8 to 7 and
    ``lower`` from 0 to 15: the quant is ``16 * upper + lower``.
    """

    def __init__(self, given: Linear8) -> None:
        lower, upper = given.weight & LAST_QUANT, (given.weight >> QUANT_BITS) + MIDDLE_QUANT
        group = shared_inputs(given.in_features)
        scale = given.scale.view(given.out_features, -1).expand(-1, given.in_features // group)
        steps = [torch.stack(pair, -1) for pair in ((scale * 16, scale * 0), (scale, scale * MIDDLE_QUANT))]
        super().__init__(torch.cat([upper, lower], 1).to(torch.uint8), torch.cat(steps, 1), group, given.bias, 2)

    def unpacked(self) -> torch.Tensor:
        upper, lower = self.quants().to(torch.int8).chunk(2, dim=1)
        whole = ((upper - MIDDLE_QUANT) * 16 + lower).bfloat16().unflatten(1, (-1, self._group))
        steps = self.scales_and_middles[self.in_features // self._group :, :, :1]  # of the lower quants, which follow
        return (whole * steps.transpose(0, 1)).flatten(1)


def tiled(given: nn.Module) -> TiledLinear | None:
    """Make a tiled layer from a quantized layer on a GPU for which ``multiplies_tiles`` is true. None if the product
    does not support the layer's widths or dtype.
    """
    if not isinstance(given, Linear4 | Linear8) or given.in_features % GROUP or given.out_features % TILE_OUT:
        return None
    if isinstance(given, Linear4):
        return TiledLinear4(given) if given.dtype is torch.bfloat16 else None
    return TiledLinear8(given) if given.scale.dtype is torch.bfloat16 else None


def tile(block: nn.Module, device: torch.device) -> None:
    """Move the quantized layers of a decoder block to ``device`` and replace them by tiled layers. The caller has
    checked ``multiplies_tiles``. A layer for which ``tiled`` returns None is not replaced.
    """
    for path, layer in list(block.named_modules()):
        if isinstance(layer, Linear4 | Linear8) and (made := tiled(layer.to(device))) is not None:
            replace(block, path, made)


def may_multiply_tiles(device: torch.device) -> bool:
    """Whether tiled layers probably work on this device, judging by its kind alone. Computes nothing on the GPU."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _CAPABILITY


def gains_from_tiles(device: torch.device) -> bool:
    """Whether passes over several tokens are probably faster with tiled layers than with expanded weights, if both fit
    the GPU. Judged by the kind of the GPU, so that every start decides alike: on an H200 torch's product with 4-bit
    weights took 45 us for 8 rows, the product in bfloat16 32 us. All other GPUs read memory more slowly.
    """
    return may_multiply_tiles(device) and torch.cuda.get_device_capability(device)[0] not in _FAST_MEMORY


def multiplies_tiles(device: torch.device) -> bool:
    """Whether tiled layers work on this GPU. Computes small layers with 4-bit and with 8-bit weights: the products and
    the unpacked weights must be correct.
    """
    if not may_multiply_tiles(device):
        # Older GPUs are not tried, because on these torch's product fails with an error that ends the process.
        return False
    width = _TILES[0] * _TILE_IN
    numbers = torch.arange(TILE_OUT * width, device=device).sin().view(TILE_OUT, width)
    x = numbers.cos().bfloat16()
    for kind in (Linear4, Linear8):
        quantized = kind(linear(numbers.bfloat16()))
        expected = x.float() @ quantized.unpacked().float().t()
        try:
            made = tiled(quantized)
            assert made is not None
            off = (made(x).float() - expected).abs().max() / expected.abs().max()
            exact = (made.unpacked() - quantized.unpacked()).abs().max() / quantized.unpacked().abs().max()
        # AMD's GPUs before CDNA 2, and builds of torch that lack the matrix product, raise these errors.
        except (RuntimeError, NotImplementedError) as error:
            _log.info("weights are unpacked for every pass on %s: %s", device, error)
            return False
        if not bool(torch.maximum(off, exact) < _NEAR):
            _log.warning("weights are unpacked for every pass on %s: torch's product with tiles is wrong", device)
            return False
    return True
