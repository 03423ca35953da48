"""Computes linear layers and embeddings on an NVIDIA GPU with exactly the weights of a GGUF file, in about as many
bytes as the file has.

The quants and scales of a file's blocks are put into another order, in which the kernels of
``engine.model.kernels.block_products`` read them (``planes_of``). Scales of six bits take eight, so a weight of Q4_K
takes 0.578 bytes instead of 0.5625; weights of Q6_K and Q8_0 take no more than in the file.

A product over a few rows reads these planes directly. For more rows, one matrix at a time is expanded to bfloat16 on
the GPU, as for a prompt.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from engine.errors import is_out_of_memory
from engine.model.experts import Experts
from engine.model.kernels.block_products import (
    CARD_FORMATS,
    HALVES,
    LANES,
    LOW_BITS,
    MOST_BLOCK_ROWS,
    POWERS,
    STEP,
    TILE,
    CardFormat,
    Planes,
    kernels_of,
    may_multiply_blocks,
)
from engine.model.kernels.formats import RUN, Bits
from engine.model.products import SmallLinear, fixed, linear, replace
from engine.model.products.blocks import FLOATS, BlockEmbedding, BlockLinear, Stored

_log = logging.getLogger(__name__)

FEW_ROWS = 2 * MOST_BLOCK_ROWS
"""Maximum rows for which a matrix is not expanded before the product: reading the planes once for every
``MOST_BLOCK_ROWS`` rows moves fewer bytes.
"""
# Maximum number of weights that are expanded at a time, 268 MB in bfloat16. Both gates of an 8B fit, its head does not.
_EXPANDED_AT_ONCE = 1 << 27
# Number of weights whose order is changed at a time. It limits the memory for quants of one byte each.
_WEIGHTS_AT_ONCE = 1 << 24
_BYTE_BITS = 8
# Number of outputs, steps of inputs, and rows in the test of ``multiplies_blocks``. The last tile is incomplete.
_PROBE_OUTPUTS = 40
_PROBE_STEPS = 12
_PROBE_ROWS = (1, 11, 32)
# Maximum error of a product in ``multiplies_blocks``, relative to the largest result: results are rounded to bfloat16.
_NEAR = 8e-3


# From the blocks of a file to the order of the kernels --------------------------------------------------------------


def planes_of(blocks: torch.Tensor, kind: int, inputs: int) -> Planes:
    """Put the weights of a matrix into the order in which the kernels read them, on the device of ``blocks``.

    Args:
        blocks: rows of a file as bytes (outputs, bytes of a row), in the order of outputs.
        kind: GGML's number for the format, a key of ``CARD_FORMATS``.
        inputs: number of weights in a row.
    """
    form = CARD_FORMATS[kind]
    rows = max(1, _WEIGHTS_AT_ONCE // inputs // TILE) * TILE
    parts = [_planes(piece, form, inputs) for piece in blocks.split(rows)]
    return parts[0] if len(parts) == 1 else Planes(*(torch.cat(each) for each in zip(*parts, strict=True)))


def _planes(rows: torch.Tensor, form: CardFormat, inputs: int) -> Planes:
    blocks = rows.view(len(rows), -1, form.form.bytes)
    tiles, steps = -(-len(rows) // TILE), -(-inputs // STEP)

    def tiled(x: torch.Tensor, width: int) -> torch.Tensor:
        """Pad (outputs, n) to whole tiles and steps: (tiles, 16, steps, width)."""
        padded = functional.pad(x, (0, steps * width - x.shape[1], 0, tiles * TILE - len(x)))
        return padded.view(tiles, TILE, steps, width)

    quants = tiled(_quants(blocks, form).flatten(1), STEP)
    # An input is 16 m + 4 t + 2 r + e, with m = 2 a + b; an output is g + 8 u. The axes are T u g S a b t r e.
    axes = quants.view(tiles, 2, 8, steps, 2, 2, 4, 2, 2)
    low = _words(axes & ((1 << LOW_BITS) - 1), LOW_BITS)
    high = _words(axes >> LOW_BITS, form.high_bits)
    scales, factors = _scales(blocks, form)
    small = [tiled(each.flatten(1), form.groups).transpose(1, 2) for each in scales]
    held = torch.cat(small, dim=-1).contiguous().view(torch.uint8)
    if not factors:
        return Planes(low, high, held, rows.new_empty(0, dtype=torch.float16))
    both = [functional.pad(each, (0, 0, 0, tiles * TILE - len(rows))).view(tiles, TILE, -1) for each in factors]
    return Planes(low, high, held, torch.stack(both, dim=-1).transpose(1, 2).contiguous())


def _words(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack ``bits`` bits of each quant into words (tiles, steps, 32, bits), as ``Step.pair`` of the kernels reads them.

    Args:
        x: the bits, as bytes with the axes of ``_planes``.
    """
    tiles, steps = x.shape[0], x.shape[3]
    if not bits:
        return x.new_empty(tiles, steps, LANES, 0, dtype=torch.int32)
    first, second = x.unbind(7)
    pairs = first | (second << bits)  # T u g S a b t e
    if bits == LOW_BITS:
        ordered = pairs.permute(0, 3, 2, 6, 4, 1, 7, 5)
    elif bits == 2:
        fours = pairs[:, :, :, :, :, 0] | (pairs[:, :, :, :, :, 1] << 4)  # T u g S a t e
        ordered = fours.permute(0, 3, 2, 5, 4, 6, 1)
    else:
        fours = pairs[:, :, :, :, :, 0] | (pairs[:, :, :, :, :, 1] << 2)
        eights = fours[:, 0] | (fours[:, 1] << 4)  # T g S a t e
        ordered = eights.permute(0, 2, 1, 4, 5, 3)
    return ordered.flatten().view(torch.int32).view(tiles, steps, LANES, bits)


def _quants(blocks: torch.Tensor, form: CardFormat) -> torch.Tensor:
    """Unpack the quants (outputs, blocks, weights) of blocks (outputs, blocks, bytes), one in a byte."""
    words, found = form.form.word_offsets, []
    for run in range(form.form.values // RUN):
        whole = torch.zeros((), dtype=torch.uint8, device=blocks.device)
        for part in form.form.quants:
            start, mask = words[part.words[run]], (1 << part.count) - 1
            if part.spread:
                shifts = range(part.shifts[run], part.shifts[run] + RUN)
                bits = torch.stack([blocks[..., start + at // 8] >> (at % 8) for at in shifts], dim=-1)
            else:
                bits = blocks[..., start : start + RUN] >> part.shifts[run]
            whole = whole | ((bits & mask) << part.at)
        found.append(whole)
    quants = torch.cat(found, dim=-1)
    return quants ^ 0x80 if form.form.flips else quants


def _scales(blocks: torch.Tensor, form: CardFormat) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Read the scales of each group and, if the format has them, the numbers to subtract or add: (outputs, blocks,
    groups) each. Also return the factors (outputs, blocks) of INTEGERS, one of each kind.
    """
    count = 2 if form.has_least else 1
    if form.scale == POWERS:
        return [blocks[..., :1]], []
    halves = [blocks[..., at : at + 2].contiguous().view(torch.float16) for at in form.form.halves[:count]]
    if form.scale == HALVES:
        return halves, []
    wholes = [_whole_numbers(blocks, bits, form) for bits in (form.form.scale, form.form.least)[:count]]
    wholes[0] = wholes[0] - form.form.scale_zero
    return wholes, [half.squeeze(-1) for half in halves]


def _whole_numbers(blocks: torch.Tensor, parts: Sequence[Bits], form: CardFormat) -> torch.Tensor:
    """Unpack the integers of all groups (outputs, blocks, groups) as int8."""
    words, found = form.form.word_offsets, []
    for group in range(form.form.values // form.group):
        whole = torch.zeros((), dtype=torch.uint8, device=blocks.device)
        for part in parts:
            byte, shift = divmod(part.shifts[group], _BYTE_BITS)
            bits = blocks[..., words[part.words[group]] + byte] >> shift
            whole = whole | ((bits & ((1 << part.count) - 1)) << part.at)
        found.append(whole)
    return torch.stack(found, dim=-1).view(torch.int8)


# Layers ---------------------------------------------------------------------------------------------------------------


class CardWeights(nn.Module):
    """A matrix of weights on a GPU, in the order of the kernels.

    Args:
        planes: the weights.
        kind: GGML's number for the format of the file.
        outputs, inputs: size of the matrix.
    """

    def __init__(self, planes: Planes, kind: int, outputs: int, inputs: int) -> None:
        super().__init__()
        self.kind, self.outputs, self.inputs = kind, outputs, inputs
        self.low, self.high, self.scales, self.factors = map(fixed, planes)

    @classmethod
    def of(cls, stored: Stored, device: torch.device) -> CardWeights:
        """Copy a matrix from a file to a GPU, and release the file's memory."""
        data = stored.data if stored.order is None else stored.data[torch.from_numpy(stored.order)]
        made = cls(planes_of(data.to(device), stored.kind, stored.inputs), stored.kind, len(data), stored.inputs)
        stored.release()
        return made

    @property
    def planes(self) -> Planes:
        return Planes(self.low, self.high, self.scales, self.factors)

    def product(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        bias: torch.Tensor | None = None,
        before: torch.Tensor | None = None,
    ) -> None:
        """Multiply x (rows, inputs) by the weights, with the arguments of ``BlockKernels.product``, but for any number
        of rows.
        """
        kernels = kernels_of(x.device, self.kind)
        for start in range(0, len(x), MOST_BLOCK_ROWS):
            some = slice(start, start + MOST_BLOCK_ROWS)
            kernels.product(
                self.planes, x[some], out[some], self.outputs, bias, None if before is None else before[some]
            )

    def product_chosen(
        self, chosen: torch.Tensor, x: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        """Multiply rows by one of several stacked matrices, with the arguments of ``BlockKernels.product_chosen``."""
        kernels_of(x.device, self.kind).product_chosen(self.planes, chosen, x, out, bias)

    def expand(self, out: torch.Tensor, first: int = 0) -> None:
        """Write the weights of the outputs from ``first`` on to ``out`` (n, inputs). ``first`` begins a tile."""
        planes = Planes(*(plane[first // TILE :] if plane.numel() else plane for plane in self.planes))
        kernels_of(self.low.device, self.kind).expand(planes, out)

    def rows(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Dequantize the weights of the outputs ``ids`` (n,): (n, inputs)."""
        out = torch.empty(len(ids), self.inputs, dtype=dtype, device=self.low.device)
        kernels_of(self.low.device, self.kind).expand(self.planes, out, ids)
        return out


class CardFloats(nn.Module):
    """A matrix of plain numbers (outputs, inputs) on a GPU."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = fixed(weight)

    def rows(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The weights of the outputs ``ids`` (n,): (n, inputs)."""
        return self.weight[ids].to(dtype)


class CardLinear(SmallLinear):
    """A linear layer in bfloat16 on a GPU, whose weights have the values of a GGUF file.

    Args:
        parts: the weights, or those of several joined layers in the order of outputs.
    """

    def __init__(self, parts: Sequence[CardWeights], bias: torch.Tensor | None) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.in_features, self.out_features = parts[0].inputs, sum(part.outputs for part in parts)
        self.bias = None if bias is None else fixed(bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features)
        if len(rows) > FEW_ROWS:
            made = [functional.linear(x, weight, bias) for weight, bias in self._expanded()]
            return made[0] if len(made) == 1 else torch.cat(made, dim=-1)
        out = x.new_empty(len(rows), self.out_features)
        self._write(rows, out, None)
        return out.view(*x.shape[:-1], self.out_features)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Dequantize the weights of the outputs ``ids`` (n,) to bfloat16: (n, in). The layer has a single part."""
        (part,) = self.parts
        made: torch.Tensor = part.rows(ids, torch.bfloat16)
        return made

    def add_to(self, hidden: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Add the product of x to ``hidden`` in place. Few rows take no further launch. Both are contiguous."""
        rows = x.reshape(-1, self.in_features)
        if len(rows) > FEW_ROWS:
            return hidden.add_(self(x))
        into = hidden.view(-1, self.out_features)
        self._write(rows, into, into)
        return hidden

    def _write(self, x: torch.Tensor, out: torch.Tensor, before: torch.Tensor | None) -> None:
        x = x.contiguous()
        for part, start in self._placed():
            columns = slice(start, start + part.outputs)
            bias = None if self.bias is None else self.bias[columns]
            part.product(x, out[:, columns], bias, None if before is None else before[:, columns])

    def _expanded(self) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """Yield the weights and the bias of some outputs after another, at most ``_EXPANDED_AT_ONCE`` weights if they
        are whole tiles.
        """
        most = max(TILE, _EXPANDED_AT_ONCE // self.in_features // TILE * TILE)
        if self.out_features <= most:
            yield self.unpacked(), self.bias
            return
        for part, start in self._placed():
            for first in range(0, part.outputs, most):
                count = min(most, part.outputs - first)
                weight = torch.empty(count, self.in_features, dtype=torch.bfloat16, device=part.low.device)
                part.expand(weight, first)
                begin = start + first
                yield weight, None if self.bias is None else self.bias[begin : begin + count]

    def unpacked(self) -> torch.Tensor:
        """Dequantize the weights (out, in) to bfloat16."""
        first = next(self.parts.parameters())
        whole = torch.empty(self.out_features, self.in_features, dtype=torch.bfloat16, device=first.device)
        for part, start in self._placed():
            part.expand(whole[start : start + part.outputs])
        return whole

    def _placed(self) -> Iterator[tuple[Any, int]]:
        """Yield each part with the index of its first output."""
        start = 0
        for part in self.parts:
            yield part, start
            start += int(part.outputs)


class CardEmbedding(nn.Module):
    """An embedding on a GPU, whose rows have the values of a GGUF file.

    Args:
        weights: the rows.
        given: the embedding that this replaces.
    """

    bias = None

    def __init__(self, weights: CardWeights | CardFloats, given: BlockEmbedding) -> None:
        super().__init__()
        self.weights, self.dtype = weights, given.dtype
        self.embed_scale, self.embed_norm = given.embed_scale, given.embed_norm

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.weights.rows(ids.flatten(), self.dtype).view(*ids.shape, -1)
        rows = rows if self.embed_scale is None else rows * self.embed_scale.to(self.dtype)
        return rows if self.embed_norm is None else self.embed_norm(rows)


def joined(layers: Sequence[nn.Module]) -> CardLinear | None:
    """Join layers with the same input, so that neighbouring layers of one format take one launch. The weights of the
    given layers become views of the joint weights. None if a layer is no ``CardLinear`` on a GPU, or if a part's
    outputs fill no whole tiles.
    """
    parts: list[CardWeights] = []
    for layer in layers:
        if not isinstance(layer, CardLinear) or next(layer.parts.parameters()).device.type != "cuda":
            return None
        parts += [part for part in layer.parts if isinstance(part, CardWeights)]
    if any(part.outputs % TILE for part in parts):
        return None
    merged = []
    for kind, run in groupby(parts, lambda part: part.kind):
        some = list(run)
        merged.append(some[0] if len(some) == 1 else _merged(some, kind))
    biases = [layer.bias for layer in layers]
    bias = None if biases[0] is None else torch.cat([bias.detach() for bias in biases])  # type: ignore[operator]
    return CardLinear(merged, bias)


def _merged(parts: Sequence[CardWeights], kind: int) -> CardWeights:
    """Join matrices of one format, whose weights become views of the joint weights."""
    planes = Planes(*(torch.cat(each) for each in zip(*(part.planes for part in parts), strict=True)))
    start = 0
    for part in parts:
        stop = start + part.planes.tiles
        # INTEGERS alone have factors
        views = (plane[start:stop] if plane.numel() else plane for plane in planes)
        part.low, part.high, part.scales, part.factors = map(fixed, views)
        start = stop
    return CardWeights(planes, kind, sum(part.outputs for part in parts), parts[0].inputs)


class ChosenProduct:
    """Computes products with some of several layers of the same size, which lie on a GPU. The host need not know which,
    so it does not wait, and the products can be recorded. The weights of the layers become views of the joint weights.

    Args:
        layers: the layers, with outputs that fill whole tiles.
    """

    def __init__(self, layers: Sequence[CardLinear]) -> None:
        pieces = zip(*(layer.parts for layer in layers), strict=True)
        self._stacked = [_merged(list(piece), piece[0].kind) for piece in pieces]
        self._outputs = [int(part.outputs) for part in layers[0].parts]
        self._width = sum(self._outputs)
        biases = [layer.bias for layer in layers if layer.bias is not None]
        parts = torch.stack(biases).detach().split(self._outputs, dim=1) if biases else [None] * len(self._outputs)
        self._biases = [None if part is None else part.contiguous() for part in parts]

    def __call__(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Multiply x (rows, in) by the layers ``chosen`` (places,): (places, out). Each row belongs to
        ``places / rows`` neighbouring places.
        """
        out = x.new_empty(len(chosen), self._width)
        columns = out.split(self._outputs, dim=1)
        for stacked, bias, some in zip(self._stacked, self._biases, columns, strict=True):
            stacked.product_chosen(chosen, x.contiguous(), some, bias)
        return out


def chosen_product(layers: Sequence[nn.Module]) -> ChosenProduct | None:
    """Make the joint product of several layers of the same size; None if a layer is no ``CardLinear``, the layers'
    formats differ, or a part's outputs fill no whole tiles.
    """
    known = [layer for layer in layers if isinstance(layer, CardLinear)]
    formats = {tuple((part.kind, part.outputs) for part in layer.parts) for layer in known}
    if len(known) < len(layers) or len(formats) != 1 or any(outputs % TILE for _, outputs in next(iter(formats))):
        return None
    return ChosenProduct(known)


def to_card(module: nn.Module, device: torch.device, *, stays: bool = True) -> None:
    """Replace the linear layers and embeddings of a module that keep the blocks of a file by layers on a GPU. A matrix
    of plain numbers becomes an ordinary layer in the layer's dtype. The file is read one matrix at a time.

    Args:
        stays: whether the weights stay on the GPU; otherwise they wait in host memory between passes.
    """
    known: dict[int, CardWeights | CardFloats] = {}
    for path, layer in list(module.named_modules()):
        if isinstance(layer, BlockLinear):
            replace(module, path, _linear_on(layer, device, known))
        elif isinstance(layer, BlockEmbedding):
            replace(module, path, CardEmbedding(_weights_on(layer.stored, device, known, layer.dtype), layer))
    if stays:
        _choose_on_card(module)


def _choose_on_card(module: nn.Module) -> None:
    """Let a GPU read which experts of a module a few tokens choose, if it keeps the experts in the blocks of a file."""
    for part in module.modules():
        if isinstance(part, Experts):
            gates, down = chosen_product(list(part.gates)), chosen_product(list(part.down))
            if gates is not None and down is not None:
                part.choose_by(gates, down, FEW_ROWS)


def _weights_on(
    stored: Stored, device: torch.device, known: dict[int, CardWeights | CardFloats], dtype: torch.dtype
) -> CardWeights | CardFloats:
    """Copy a matrix to a GPU, plain numbers in ``dtype``. A tied embedding and head share their bytes in the file, and
    then on the GPU.
    """
    address = stored.data.data_ptr()
    if address not in known and stored.kind in CARD_FORMATS:
        known[address] = CardWeights.of(stored, device)
    elif address not in known:
        known[address] = CardFloats(stored.expanded(dtype, device))
        stored.release()
    return known[address]


def _linear_on(layer: BlockLinear, device: torch.device, known: dict[int, CardWeights | CardFloats]) -> nn.Module:
    bias = None if layer.bias is None else layer.bias.detach().to(device, layer.dtype)
    if len(layer.parts) == 1 or all(part.kind in CARD_FORMATS for part in layer.parts):
        found = [_weights_on(part, device, known, layer.dtype) for part in layer.parts]
        if isinstance(found[0], CardFloats):
            made = linear(found[0].weight, bias)
            made.weight = found[0].weight  # one parameter, counted once
            return made
        return CardLinear([part for part in found if isinstance(part, CardWeights)], bias)
    whole = linear(layer.values().to(layer.dtype).to(device), bias)
    for part in layer.parts:
        part.release()
    return whole


# Whether they can be used -----------------------------------------------------------------------------------------


def multiplies_kinds(kinds: Sequence[int]) -> bool:
    """Whether all weights of a file in these formats (GGML's numbers) can stay on a GPU as they are stored."""
    return all(kind in CARD_FORMATS or kind in FLOATS for kind in kinds)


def multiplies_blocks(device: torch.device, kinds: Sequence[int]) -> bool:
    """Whether the kernels for these formats can be compiled and are right on this GPU: the weights that they expand are
    exactly those of the file, and products are near. Each format is tested once per process.

    Raises:
        RuntimeError: memory ran out, so that the kernels could not be tested.
    """
    if not (multiplies_kinds(kinds) and may_multiply_blocks(device)):
        return False
    here = torch.device(device.type, device.index or 0)
    return all(_is_right(here, kind) for kind in sorted({*kinds} & CARD_FORMATS.keys()))


_right: dict[tuple[torch.device, int], bool] = {}


def _is_right(device: torch.device, kind: int) -> bool:
    if (device, kind) not in _right:
        name = CARD_FORMATS[kind].form.name
        try:
            right = _is_exact(device, kind)
            if not right:
                _log.warning("GGUF files are expanded on %s: the kernels for %s are wrong there", device, name)
        except (OSError, RuntimeError, AttributeError, ImportError, KeyError, TypeError) as error:
            if isinstance(error, RuntimeError) and is_out_of_memory(error):
                raise
            _log.info("GGUF files are expanded on %s: %s cannot be multiplied there (%s)", device, name, error)
            right = False
        _right[device, kind] = right
    return _right[device, kind]


def _is_exact(device: torch.device, kind: int) -> bool:
    kernels_of(device, kind)  # fails before anything is computed
    form = CARD_FORMATS[kind].form
    inputs = _PROBE_STEPS * STEP
    size = inputs // form.values * form.bytes
    data = torch.randint(0, 256, (_PROBE_OUTPUTS, size), generator=torch.Generator().manual_seed(kind)).to(torch.uint8)
    blocks = data.view(_PROBE_OUTPUTS, -1, form.bytes)
    for at in form.halves:
        # factors of a usual size: the upper byte of a float16 number near 0.01, or an exponent near that of 1
        blocks[..., at if form.has_exponent else at + 1] = 120 if form.has_exponent else 0x21
    stored = Stored(data, kind, inputs)
    values, weights = stored.values(), CardWeights.of(stored, device)
    out = torch.empty(_PROBE_OUTPUTS, inputs, dtype=torch.float32, device=device)
    weights.expand(out)
    if not torch.equal(out.cpu(), values):
        return False
    for rows in _PROBE_ROWS:
        x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows)).bfloat16()
        made = torch.empty(rows, _PROBE_OUTPUTS, dtype=torch.bfloat16, device=device)
        weights.product(x.to(device), made)
        expected = x.float() @ values.t()
        if not _is_near(made, expected):
            return False
    # The tiles of the matrix, as matrices to choose from. ``x`` and ``expected`` are those of the last test.
    chosen = torch.tensor([1, 0, 1, 1])
    made = torch.empty(len(chosen), TILE, dtype=torch.bfloat16, device=device)
    weights.product_chosen(chosen.to(device), x[: len(chosen) // 2].to(device), made, None)
    wanted = [expected[at // 2, tile * TILE : (tile + 1) * TILE] for at, tile in enumerate(chosen.tolist())]
    return _is_near(made, torch.stack(wanted))


def _is_near(made: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((made.cpu().float() - expected).abs().max() < _NEAR * expected.abs().max())
