"""Rounds linear layers in the blocks of a GGUF file to the 4-bit and 8-bit formats of ``quantized``.

A block of Q4_K, Q4_0 or Q4_1 has a scale and an offset for each 32 weights, like ``Linear4``. Rounding such a block to
4 bits therefore keeps its quants (``_CARRIED``); only scale and middle are rounded, to 16 bits. Blocks of all other
formats are dequantized and quantized again.

For a GPU that cannot hold the expanded weights, ``quantization.fitted_format`` chooses the format of each tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from engine.model.experts import choosing
from engine.model.products import linear, replace
from engine.model.products.blocks import BlockExperts, BlockLinear, Stored
from engine.model.products.quantized import Linear4, Linear8
from engine.model.products.tiled import shared_inputs
from engine.quantization import BITS, FITTED, GROUP, LAST_QUANT, MIDDLE_QUANT, QUANT_BITS, fitted_format

_Array = np.ndarray[Any, Any]

_Carried = tuple[_Array, _Array, _Array]
"""The quants (blocks, weights) of some blocks, and the scale and the middle of each group (blocks, groups)."""

# Number of bits of a weight that is not rounded.
_UNROUNDED_BITS = 16


def reduce(block: nn.Module, weights: str) -> None:
    """Round the linear layers of a decoder block that are still in the format of a GGUF file, by replacing each with
    the result of ``reduced``. Layers that choose experts are replaced too, but not rounded. Experts for which
    ``experts.install`` was not called become those of transformers again.
    """
    kept = {id(layer) for layer in choosing(block)}
    for path, layer in list(block.named_modules()):
        if isinstance(layer, BlockLinear):
            replace(block, path, reduced(layer, "stored" if id(layer) in kept else weights))
        elif isinstance(layer, BlockExperts):
            replace(block, path, layer.in_transformers())


def reduced(layer: BlockLinear, weights: str) -> Linear4 | Linear8 | nn.Linear:
    """Make a layer in the format ``weights`` ("stored", "8bit", "4bit" or ``FITTED``) from a layer whose weights are in
    the blocks of a GGUF file, and release the memory of these blocks. A layer is not rounded to 4 bits if its number of
    inputs is no multiple of ``GROUP``.
    """
    formats = [fitted_format(part.kind) for part in layer.parts] if weights == FITTED else [weights]
    # A layer of several joined parts takes the format of the part with the most bits.
    chosen = max(formats, key=lambda name: BITS.get(name, _UNROUNDED_BITS))
    bias = None if layer.bias is None else layer.bias.detach().to(layer.dtype)
    made: Linear4 | Linear8 | nn.Linear
    if chosen == "4bit" and all(part.kind in _CARRIED for part in layer.parts):
        quants, scale, middle = (torch.cat(each) for each in zip(*map(_carried, layer.parts), strict=True))
        made = Linear4.of_quants(quants, scale, middle, bias, layer.dtype)
    else:
        made = linear(layer.expanded(), bias)
        if chosen == "8bit":
            # A scale for each group costs a GPU no bytes more than a scale for each row, and halves the error.
            made = Linear8(made, shared_inputs(layer.in_features) if weights == FITTED else None)
        elif chosen == "4bit" and layer.in_features % GROUP == 0:
            made = Linear4(made)
    for part in layer.parts:
        part.release()
    return made


def _carried(stored: Stored) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Read a matrix from its blocks: quants (out, in), scales (out, groups) and middles (out, groups)."""
    rows = stored.data.numpy()
    rows = rows if stored.order is None else rows[stored.order]
    size, read = _CARRIED[stored.kind]
    found = read(rows.reshape(-1, size))
    quants, scale, middle = (torch.from_numpy(each).reshape(len(rows), -1) for each in found)
    return quants, scale, middle


def _halves(blocks: _Array, offset: int) -> _Array:
    """Read the float16 number at an offset of each block. Return float32 (blocks, 1)."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view(np.float16).astype(np.float32)


def _nibbles(quants: _Array) -> _Array:
    """Unpack 4-bit quants, two in a byte: first the lower halves of all bytes along the last axis, then the upper
    halves.
    """
    return np.concatenate([quants & LAST_QUANT, quants >> QUANT_BITS], axis=-1)


def _of_q4_0(blocks: _Array) -> _Carried:
    scale = _halves(blocks, 0)
    return _nibbles(blocks[:, 2:]), scale, np.zeros_like(scale)


def _of_q4_1(blocks: _Array) -> _Carried:
    scale = _halves(blocks, 0)
    return _nibbles(blocks[:, 4:]), scale, _halves(blocks, 2) + MIDDLE_QUANT * scale


def _of_q4_k(blocks: _Array) -> _Carried:
    from gguf.quants import Q4_K

    scales, least = Q4_K.get_scale_min(blocks[:, 4:16])
    scale = _halves(blocks, 0) * scales.astype(np.float32)
    middle = MIDDLE_QUANT * scale - _halves(blocks, 2) * least.astype(np.float32)
    return _nibbles(blocks[:, 16:].reshape(len(blocks), -1, GROUP)).reshape(len(blocks), -1), scale, middle


# Size of a block in bytes, and the function that reads blocks of this format, keyed by GGML's number for the format.
_CARRIED: dict[int, tuple[int, Callable[[_Array], _Carried]]] = {
    2: (18, _of_q4_0),
    3: (20, _of_q4_1),
    12: (144, _of_q4_k),
}
