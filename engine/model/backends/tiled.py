"""Runs passes over a few rows on a GPU with 4-bit copies of the weights, which torch's own product reads without
unpacking.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from engine.model.backends.walk import Walk
from engine.model.experts import Experts
from engine.model.products import fixed, replace
from engine.model.products.card_blocks import CardLinear
from engine.model.products.quantized import Linear4
from engine.model.products.tiled import MOST_TILED_ROWS, TILE_OUT, TiledLinear4, multiplies_tiles
from engine.quantization import GROUP

if TYPE_CHECKING:
    from engine.model.backends import Backend
    from engine.model.pieces import Pieces, Rope
    from engine.model.view import View


def tiled_blocks(
    model: Any, devices: Sequence[torch.device], in_host: Iterable[torch.Tensor] = ()
) -> list[nn.Module] | None:
    """Copy the decoder blocks of a bfloat16 transformers causal LM on GPUs, with the linear layers in 4 bits. The
    copies are for passes over at most ``MOST_TILED_ROWS`` rows, and share all other tensors with the model. Return None
    if torch's product with 4-bit weights does not support the blocks or the GPU.

    Args:
        devices: the device of each block.
        in_host: weights that the model keeps in host memory between passes. The copies hold these weights on the
            devices.
    """
    if any(isinstance(layer, CardLinear) for layer in model.model.layers.modules()):
        return None  # these weights have few bits already
    linear = [layer for layer in model.model.layers.modules() if isinstance(layer, nn.Linear)]
    if not linear or any(layer.in_features % GROUP or layer.out_features % TILE_OUT for layer in linear):
        return None
    if not multiplies_tiles(devices[0]):
        return None
    shared = {id(held): held for held in (*model.parameters(), *model.buffers(), *in_host)}
    return [_tiled(block, device, shared) for block, device in zip(model.model.layers, devices, strict=True)]


class TiledBackend(Walk):
    """Runs passes over at most ``MOST_TILED_ROWS`` rows through blocks with 4-bit weights, and passes over more rows
    through another backend.

    Args:
        few: the backend of the blocks with 4-bit weights (``tiled_blocks``).
        wide: the backend of the model's own blocks.
        pieces, bits: as in ``Walk``.
    """

    def __init__(self, few: Backend, wide: Backend, pieces: Pieces, bits: int) -> None:
        super().__init__(pieces, bits=bits)
        self._few, self._wide = few, wide

    def layer(self, index: int, hidden: torch.Tensor, rope: Rope, view: View) -> torch.Tensor:
        return self._for(hidden.shape[1]).layer(index, hidden, rope, view)

    def forward(self, input_ids: torch.Tensor, view: View, rows: int | None = None) -> torch.Tensor:
        return self._for(len(input_ids)).forward(input_ids, view, rows)

    def _for(self, count: int) -> Backend:
        """Return the backend for a pass over ``count`` tokens."""
        return self._wide if count > MOST_TILED_ROWS else self._few


def _tiled(block: Any, device: torch.device, shared: dict[int, torch.Tensor]) -> nn.Module:
    twin: nn.Module = copy.deepcopy(block, dict(shared))
    for hooks in (twin._forward_pre_hooks, twin._forward_hooks):
        hooks.clear()  # drop the hooks, which would copy the block's weights from host memory in every pass
    for path, layer in list(twin.named_modules()):
        if isinstance(layer, Experts):
            layer.fetch_by(iter)
        if isinstance(layer, nn.Linear):
            replace(twin, path, TiledLinear4(Linear4(layer).to(device)))
    for part in twin.modules():  # copy unquantized weights from host memory to the device
        for name, held in part._parameters.items():
            if held is not None and held.device.type == "cpu":
                part._parameters[name] = fixed(held.detach().to(device))
    return twin
