"""Decoder blocks of a GPU with weights in 4 bits that torch's own product reads as they are, for a few rows."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from engine.model.backends.walk import Walk
from engine.model.products import fixed, replace
from engine.model.products.quantized import Linear4
from engine.quantization import GROUP, LEVEL_BITS

if TYPE_CHECKING:
    from engine.model.pieces import Pieces, Rope
    from engine.model.view import View

MOST_TILED_ROWS = 16
"""Rows for which torch's product with weights in 4 bits reads them once on a GPU."""

# Inputs of a tile of that product, and how many of them lie together, the fastest first; outputs of a tile. It is for
# GPUs from Ampere on. How far it may be off on the probe, as a share of the largest output.
_TILE_IN, _TILES, _TILE_OUT = 16, (8, 4, 2), 8
_TILED_CAPABILITY, _TILED_NEAR = (8, 0), 2e-2


class TiledLinear4(nn.Module):
    """A ``Linear4`` of a GPU whose product reads the levels as they are: torch's own, for bfloat16 and a few rows.

    It has the same weights, rounded to bfloat16 once where ``Linear4`` rounds twice.

    Args:
        linear: on the GPU; its outputs are a multiple of eight.
    """

    def __init__(self, linear: Linear4) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        tiles = next(tiles for tiles in _TILES if self.in_features % (tiles * _TILE_IN) == 0)
        swapped = (linear.weight << LEVEL_BITS) | (linear.weight >> LEVEL_BITS)  # torch has the first of two above
        self.weight = fixed(torch.ops.aten._convert_weight_to_int4pack(swapped, tiles))
        self.scales_and_middles = fixed(linear.scales_and_middles.transpose(0, 1).contiguous())
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features).contiguous()
        out = torch.ops.aten._weight_int4pack_mm(rows, self.weight, GROUP, self.scales_and_middles)
        out = out if self.bias is None else out + self.bias
        return out.view(*x.shape[:-1], self.out_features)


def tiled_blocks(
    model: Any, devices: Sequence[torch.device], in_host: Iterable[torch.Tensor] = ()
) -> list[nn.Module] | None:
    """Copies of the decoder blocks of a transformers causal LM in bfloat16 on GPUs, with linear layers in 4 bits, for
    passes over at most ``MOST_TILED_ROWS`` rows. All else is shared. None where torch's product does not take them.

    Args:
        devices: of each block.
        in_host: weights of blocks that wait in host memory, whose copies share nothing and lie on the devices.
    """
    linear = [layer for layer in model.model.layers.modules() if isinstance(layer, nn.Linear)]
    if not linear or any(layer.in_features % GROUP or layer.out_features % _TILE_OUT for layer in linear):
        return None
    if not _multiplies_tiles(devices[0]):
        return None
    shared = {id(held): held for held in (*model.parameters(), *model.buffers(), *in_host)}
    return [_tiled(block, device, shared) for block, device in zip(model.model.layers, devices, strict=True)]


class TiledBackend(Walk):
    """Runs passes over a few rows through tiled blocks, and others through the model's own.

    Args:
        tiled: the blocks.
        pieces, bits: as in ``Walk``.
    """

    def __init__(self, tiled: Sequence[nn.Module], pieces: Pieces, bits: int) -> None:
        super().__init__(pieces, bits=bits)
        self._tiled = tiled

    def layer(self, index: int, hidden: torch.Tensor, rope: Rope, view: View) -> torch.Tensor:
        if hidden.shape[1] > MOST_TILED_ROWS:
            return super().layer(index, hidden, rope, view)
        return self.pieces.block(self._tiled[index], index, hidden, rope, view)


def _tiled(block: Any, device: torch.device, shared: dict[int, torch.Tensor]) -> nn.Module:
    twin: nn.Module = copy.deepcopy(block, dict(shared))
    if hasattr(twin, "_hf_hook"):  # it would bring the block's weights from host memory for every pass
        from accelerate.hooks import remove_hook_from_module

        remove_hook_from_module(twin, recurse=True)
    for path, layer in list(twin.named_modules()):
        if isinstance(layer, nn.Linear):
            replace(twin, path, TiledLinear4(Linear4(layer).to(device)))
    return twin.to(device)


def _multiplies_tiles(device: torch.device) -> bool:
    """Whether torch's product with weights in 4 bits is right on this GPU."""
    if torch.cuda.get_device_capability(device) < _TILED_CAPABILITY:
        return False  # there it fails in a way that ends the process
    width = _TILES[0] * _TILE_IN
    linear = nn.Linear(width, _TILE_OUT, bias=False, device="meta")
    numbers = torch.arange(_TILE_OUT * width, device=device).sin().view(_TILE_OUT, width)
    linear.weight = fixed(numbers.bfloat16())
    levels = Linear4(linear)
    x = numbers.cos().bfloat16()
    expected = x.float() @ levels.unpacked().float().t()
    try:
        off = (TiledLinear4(levels)(x).float() - expected).abs().max() / expected.abs().max()
        return bool(off < _TILED_NEAR)
    except (RuntimeError, NotImplementedError):  # AMD's GPUs before CDNA 2, and builds without it
        return False
