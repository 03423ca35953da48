"""Computes linear layers on a processor with weights that are packed for our own kernels.

The weights of every linear layer are packed once (``PackedLinear``). A skinny product has at most ``MOST_ROWS`` rows,
one for each token. The kernels of ``engine.model.kernels.native`` compute it as fast as memory delivers the packed
weights, and give a row the same bits whatever other rows are computed. A wide product has more rows: it occurs in
prefill. For a wide product the weights are unpacked and multiplied by torch, unless our own kernels are faster
(``multiplies_all``). Weights that bfloat16 holds exactly are stored in bfloat16, even where activations are float32:
the values are the same in half the bytes. With activations in bfloat16, weights are stored in pairs if the processor
multiplies pairs (``engine.model.kernels.emit.products``).

Each format of weights is a subclass of ``PackedLinear``. The subclass defines how weights are packed, which kernel
calls compute the product, and how weights are unpacked for many rows. ``PackedLinear8`` and ``PackedLinear4`` read
quants directly, in half or a quarter of the bytes of bfloat16.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from engine.model.families.family import Family
from engine.model.kernels import native
from engine.model.kernels.abi import MOST_ROWS, SPAN, input_dtype
from engine.model.kernels.formats import RUN
from engine.model.products import SmallLinear, fixed, replace
from engine.model.products.blocks import ROWS_AT_ONCE, BlockEmbedding, BlockLinear, Segment, arranged_dtype, is_bfloat16
from engine.model.products.norms import PackedNorm, is_norm
from engine.model.products.quantized import Linear4, Linear8, wide_dtype
from engine.model.recurrent import INPUTS, DeltaNet, Mamba
from engine.quantization import BITS, GROUP, MIDDLE_QUANT

if TYPE_CHECKING:
    from engine.model.kernels.native import Native
    from engine.model.kernels.program import Call, Memory, Program

# Names of layers that have the same input, keyed by the name of the part of a decoder block that contains the layers.
_JOINT = {
    "self_attn": ("q_proj", "k_proj", "v_proj"),
    "linear_attn": INPUTS,
    "mlp": ("gate_proj", "up_proj"),
    "feed_forward": ("w1", "w3"),
}
_HELD = 8  # maximum number of layers whose unpacked weights are cached at a time


class PackedLinear(nn.Module):
    """One or several linear layers with the same input on a processor, computed as one product with packed weights.

    Args:
        layers: the layers, whose weights (out, in) are packed one after another.
        kernels: the kernels that compute products of at most ``MOST_ROWS`` rows.
        unpacked: cache of unpacked weights, for products of more rows.
    """

    scale: nn.Parameter | None
    multiplies_all = False
    """Whether our own kernels also compute wide products, because they are faster than torch's."""

    def __init__(self, layers: Sequence[Any], kernels: Native, unpacked: Unpacked) -> None:
        super().__init__()
        self.in_features, self.out_features = layers[0].in_features, sum(layer.out_features for layer in layers)
        self.kernels, self.unpacked_last = kernels, unpacked
        self.register_parameter("scale", None)
        self.dtype = self._take(layers)
        biases = [layer.bias for layer in layers if layer.bias is not None]
        self.bias = fixed(torch.cat([bias.detach() for bias in biases])) if biases else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features)
        if rows.shape[0] > MOST_ROWS and not self.multiplies_all:
            weight = self.unpacked_last.of(self)
            out = torch.mm(rows.to(weight.dtype), weight).to(x.dtype)
            out = out if self.bias is None else (out + self.bias).to(x.dtype)  # the bias may be in a wider dtype than x
            return out.view(*x.shape[:-1], self.out_features)
        # A decoding step, or the short last block of a prefill: only long blocks need unpacked weights.
        if rows.shape[0] <= MOST_ROWS:
            self.unpacked_last.forget()
        out = self._product(rows)[:, : self.out_features]
        if self.bias is not None:
            out = out + self.bias
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)

    def _take(self, layers: Sequence[Any]) -> torch.dtype:
        """Pack the weights of these layers. Return the dtype of the unpacked weights."""
        weight = torch.cat([layer.weight.detach() for layer in layers])
        pairs = self.kernels.multiplies_pairs and self._can_pair(weight.dtype)
        self.weight = fixed(self.kernels.pack(_smallest(weight), pairs))
        return weight.dtype

    def _can_pair(self, dtype: torch.dtype) -> bool:
        """Whether weights of this dtype may be stored in pairs. This requires bfloat16 and an even number of inputs."""
        return dtype is torch.bfloat16 and self.in_features % 2 == 0

    @property
    def input_dtype(self) -> torch.dtype:
        """The dtype in which products of at most ``MOST_ROWS`` rows take their input."""
        return input_dtype(self.weight)

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        return self.kernels.product(rows, self.weight, self.scale)

    def add_to(self, program: Program, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        """Append the product with x (rows, in), which has at most ``MOST_ROWS`` rows, to a program. Return the tensor
        that will hold the result, to which the bias has not been added.
        """
        panels, _, columns = self.weight.shape[:3]
        out = memory.of("product", panels * columns)
        self._add_product(program, x, out, memory)
        return out

    def _add_product(self, program: Program, x: torch.Tensor, out: torch.Tensor, memory: Memory) -> None:
        program.add_call(self.kernels.product_call(x, self.weight, self.scale, out))

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up the weights (..., in) of the outputs ``ids`` (...,). Not possible for 8-bit or 4-bit weights."""
        columns = self.weight.shape[2]
        return self.weight[ids // columns, :, ids % columns].flatten(ids.dim()).to(self.dtype)

    def first(self, outputs: int) -> Self:
        """Make a product of the first ``outputs`` outputs, rounded up to whole panels. It shares this product's
        weights.
        """
        panels = -(-outputs // self.kernels.columns)
        one = copy.copy(self)
        # ``copy`` alone would let both products share these dictionaries
        one._parameters, one._modules = dict(self._parameters), dict(self._modules)
        one.out_features = min(self.out_features, panels * self.kernels.columns)
        one.bias = None if self.bias is None else fixed(self.bias[: one.out_features])
        one._take_first(self, panels)
        return one

    def _take_first(self, whole: Self, panels: int) -> None:
        """Take views of the first panels of ``whole``, of which this is a copy."""
        self.weight = fixed(whole.weight[:panels])
        if whole.scale is not None:
            self.scale = fixed(whole.scale[: panels * self.kernels.columns])

    def unpacked(self) -> torch.Tensor:
        """Unpack all weights (in, out), in the dtype in which products of more than ``MOST_ROWS`` rows are computed."""
        return self._as_columns(self.kernels.unpack(self.weight).to(wide_dtype(self.dtype)))

    def _as_columns(self, panels: torch.Tensor) -> torch.Tensor:
        return panels.transpose(0, 1).reshape(self.in_features, -1)[:, : self.out_features]


class PackedLinear8(PackedLinear):
    """``PackedLinear`` for layers with 8-bit weights."""

    def _take(self, layers: Sequence[Any]) -> torch.dtype:
        scale = torch.cat([layer.scale for layer in layers])
        quants = torch.cat([layer.weight for layer in layers])
        pairs = self.kernels.looks_up_quants and self._can_pair(scale.dtype)
        self.weight = fixed(self.kernels.pack(quants, pairs))
        self.scale = fixed(self.kernels.pack(scale.unsqueeze(1)).flatten())
        return scale.dtype

    def unpacked(self) -> torch.Tensor:
        assert self.scale is not None
        kind = wide_dtype(self.dtype)
        return self._as_columns(self.kernels.unpack(self.weight).to(kind)).mul_(
            self.scale.to(kind)[: self.out_features]
        )


class PackedLinear4(PackedLinear):
    """``PackedLinear`` for layers with 4-bit weights."""

    def _take(self, layers: Sequence[Any]) -> torch.dtype:
        pairs = self.kernels.looks_up_quants and self._can_pair(layers[0].dtype)
        self.weight = fixed(self.kernels.pack4(torch.cat([layer.quants() for layer in layers]), pairs))
        steps = torch.cat([layer.scales_and_middles for layer in layers])
        # scale and middle of each group, as (panels, groups, 2, columns)
        self.scales = fixed(torch.stack([self.kernels.pack(part) for part in steps.unbind(-1)], dim=2))
        return layers[0].dtype

    def _take_first(self, whole: Self, panels: int) -> None:
        super()._take_first(whole, panels)
        self.scales = fixed(whole.scales[:panels])

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        return self.kernels.product4(rows, self.weight, self.scales)

    def _add_product(self, program: Program, x: torch.Tensor, out: torch.Tensor, memory: Memory) -> None:
        spread = memory.of("spread", self.in_features), memory.of("sums", self.in_features // GROUP)
        for call in self.kernels.product4_calls(x, self.weight, self.scales, out, *spread):
            program.add_call(call)

    def unpacked(self) -> torch.Tensor:
        quants = self.kernels.unpack4(self.weight).to(wide_dtype(self.dtype)).sub_(MIDDLE_QUANT)
        scale, middle = (part.unsqueeze(2).to(quants.dtype) for part in self.scales.unbind(dim=2))
        return self._as_columns(quants.unflatten(1, (-1, GROUP)).mul_(scale).add_(middle).flatten(1, 2))


class PackedBlocks(PackedLinear):
    """``PackedLinear`` for layers in the formats of GGUF files. Each tensor of the file is computed separately, as a
    ``Segment`` of the product.
    """

    def _take(self, layers: Sequence[Any]) -> torch.dtype:
        dtype: torch.dtype = layers[0].dtype
        half = dtype is torch.bfloat16
        parts = [part for layer in layers for part in layer.parts]
        self._pairs = half and self.kernels.multiplies_pairs and all(is_bfloat16(part) for part in parts)
        takes = "pairs" if self._pairs else "fixed" if half and self.kernels.multiplies_fixed else "shares"
        self._segments: list[Segment] = []
        start = 0
        for part in parts:
            self._segments.append(Segment(part, self.kernels, takes, start))
            start += part.outputs
        # Our kernels for fixed point also compute products of many rows, unless the processor multiplies pairs, because
        # then torch is faster.
        fixed_point = all(each.input_form == "fixed" for each in self._segments)
        self.multiplies_all = fixed_point and not self.kernels.multiplies_pairs
        # Segments are computed in order and write whole panels. So a segment's padding columns are overwritten by the
        # next segment, which starts right after the last output.
        self._width = max(each.start + each.columns for each in self._segments)
        self.weights = nn.ParameterList([fixed(each.packed) for each in self._segments])
        return dtype

    def _take_first(self, whole: Self, panels: int) -> None:
        [segment] = whole._segments
        self._segments = [segment.first(panels)]
        self._width = self._segments[0].columns
        self.weights = nn.ParameterList([fixed(self._segments[0].packed)])

    @property
    def input_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self._pairs else torch.float32

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        out = torch.empty(rows.shape[0], self._width)
        for some, own in zip(rows.split(MOST_ROWS), out.split(MOST_ROWS), strict=True):
            self._multiply(some.to(self.input_dtype).contiguous(), own)
        return out

    def _multiply(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        count = rows.shape[0]
        held: dict[str, torch.Tensor] = {}

        def room(name: str, width: int, dtype: torch.dtype) -> torch.Tensor:
            return held.setdefault(name, torch.empty(count, width, dtype=dtype))

        self.kernels.run(count, *self._calls(rows, out, room))

    def add_to(self, program: Program, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        out = memory.of("product", self._width)
        for call in self._calls(x, out, memory.of):
            program.add_call(call)
        return out

    def _calls(
        self, x: torch.Tensor, out: torch.Tensor, room: Callable[[str, int, torch.dtype], torch.Tensor]
    ) -> Iterator[Call]:
        sums = room("sums of runs", self.in_features // RUN, torch.float32)
        units = room("units", self.in_features // SPAN, torch.float32)
        arranged = {"same": x}
        for segment in self._segments:
            form = segment.input_form
            if form not in arranged:
                arranged[form] = room(form, self.in_features, arranged_dtype(form))
                yield self.kernels.arranged_call(x, form, arranged[form], sums, units)
            yield segment.call(arranged[form], sums, units, out)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        [segment], columns = self._segments, self.kernels.columns
        found = []
        for some in ids.flatten().split(ROWS_AT_ONCE):
            panels = torch.empty(self.in_features, len(some) * columns, dtype=self.dtype)
            segment.unpack(some // columns, panels, 0)
            # ``panels`` has a whole panel for each id, from which the column of the id is taken
            found.append(panels[:, torch.arange(len(some)) * columns + some % columns].t())
        return torch.cat(found).view(*ids.shape, self.in_features)

    def unpacked(self) -> torch.Tensor:
        out = torch.empty(self.in_features, self._width, dtype=wide_dtype(self.dtype))
        for segment in self._segments:
            segment.unpack(torch.arange(segment.packed.shape[0]), out, segment.start)
        return out[:, : self.out_features]


class JointLayer(nn.Module):
    """One of several layers with the same input, which are computed as one joint product. The first layer that is
    called with an input computes the product for all of them.

    Args:
        product: the joint product.
        start, stop: range of the product's outputs that belong to this layer.
        held: the product's most recent input and result. All layers of the product share this list.
    """

    def __init__(self, product: PackedLinear, start: int, stop: int, held: list[torch.Tensor]) -> None:
        super().__init__()
        self.in_features, self.out_features = product.in_features, stop - start
        if start == 0:
            self.product = product  # only the first layer registers the product as a submodule
        self._compute, self._span, self._held, self._last = product.forward, (start, stop), held, product.out_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start, stop = self._span
        if not self._held or self._held[0] is not x:
            self._held[:] = x, self._compute(x)
        out = self._held[1][..., start:stop]
        if stop == self._last:
            self._held.clear()
        return out


class PackedEmbedding(nn.Module):
    """An embedding that shares the packed weights of the head.

    Args:
        head: the output head, whose packed rows are the embedding.
        scale: factor that rows are multiplied by; None means 1.
        norm: norm that is applied to the scaled rows, or None.
    """

    def __init__(self, head: PackedLinear, scale: torch.Tensor | None, norm: nn.Module | None) -> None:
        super().__init__()
        self.head, self._scale, self.norm = head, None if scale is None else scale.to(head.dtype), norm

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.head.rows(ids)
        rows = rows if self._scale is None else rows * self._scale
        return rows if self.norm is None else self.norm(rows)


class Unpacked:
    """Caches the unpacked weights of the most recently used layers, because prefill multiplies by the weights of a
    layer many times before it continues with the next layer.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[int, torch.Tensor] = OrderedDict()

    def of(self, layer: PackedLinear) -> torch.Tensor:
        weight = self._held.pop(id(layer), None)
        if weight is None:
            weight = layer.unpacked()
        self._held[id(layer)] = weight
        if len(self._held) > _HELD:
            self._held.popitem(last=False)
        return weight

    def forget(self) -> None:
        """Free the cached weights. Call this method when prefill has ended."""
        self._held.clear()


PACKED: dict[type, type[PackedLinear]] = {
    nn.Linear: PackedLinear,
    Linear8: PackedLinear8,
    Linear4: PackedLinear4,
    BlockLinear: PackedBlocks,
}
"""The class that packs a layer, keyed by the layer's class."""

_BITS = {Linear8: 8, Linear4: 4}


def pack_layers(model: Any, kernels: Native, family: Family, dtype: torch.dtype) -> None:
    """Pack the linear layers and norms of a transformers causal LM on a processor in place. Recurrent layers are told
    to use ``kernels``.
    """
    weights = {type(layer) for layer in model.modules()} & {Linear8, Linear4}
    capped = any(getattr(layer, "attn_logit_softcapping", None) for layer in model.modules())
    for head_dim in head_dims(model):
        kernels.prepare(head_dim, dtype, [_BITS[kind] for kind in weights], capped)
    unpacked = Unpacked()
    embedding = model.get_input_embeddings()
    for block in model.model.layers:
        for place, names in _JOINT.items():
            part: Any = getattr(block, place, None)
            layers = [getattr(part, name, None) for name in names]
            if all(_is_packable(layer) for layer in layers):
                _share(part, names, PACKED[type(layers[0])](layers, kernels, unpacked))
    found = list(model.named_modules())[::-1]
    while found:  # each layer is removed from the list, so that its memory is freed once it is packed
        path, layer = found.pop()
        new: nn.Module | None = None
        if _is_packable(layer):
            new = PACKED[type(layer)]([layer], kernels, unpacked)
            # The weights are tied, so the embedding uses the head's packed weights.
            if layer.weight is embedding.weight:
                own = (getattr(embedding, name, None) for name in ("embed_scale", "embed_norm"))
                model.set_input_embeddings(PackedEmbedding(new, *own))
        elif is_norm(layer) and hasattr(layer, "weight"):
            if _fits(layer.weight, kernels.lanes):
                new = PackedNorm(layer, kernels, family.norm_offset_of(path))
        elif is_norm(layer) and (width := _width_of_values(model, path)) and width % kernels.lanes == 0:
            new = PackedNorm(layer, kernels, width=width)
        if new is not None:
            replace(model, path, new)
        if isinstance(layer, DeltaNet | Mamba) and layer.taps.is_cpu:
            layer.take(kernels)


def head_dims(model: Any) -> set[int]:
    """Collect the different head_dims of the attention layers in a transformers causal LM."""
    found = (getattr(layer, "self_attn", None) for layer in model.model.layers)
    return {int(attention.head_dim) for attention in found if attention is not None}


def _width_of_values(model: Any, path: str) -> int:
    """The head_dim of the attention that a norm without weights at ``path`` belongs to, which is the length of the
    normalised vectors; 0 if the norm belongs to no attention, or is not on a processor.
    """
    attention: Any = model.get_submodule(path.rpartition(".")[0])
    return int(getattr(attention, "head_dim", 0)) if next(attention.parameters()).is_cpu else 0


def _fits(weight: torch.Tensor, lanes: int) -> bool:
    return weight.is_cpu and weight.shape[0] % lanes == 0


def _is_packable(layer: Any) -> bool:
    """Whether a layer can be packed: it is of a class in ``PACKED``, and its weights are on the processor."""
    return type(layer) in PACKED and layer.weight.is_cpu


def _share(part: nn.Module, names: Sequence[str], product: PackedLinear) -> None:
    held: list[torch.Tensor] = []
    start = 0
    for name in names:
        stop = start + getattr(part, name).out_features
        setattr(part, name, JointLayer(product, start, stop, held))
        start = stop


def _smallest(weight: torch.Tensor) -> torch.Tensor:
    """Return the weights in bfloat16 if bfloat16 holds all values exactly, otherwise unchanged."""
    half = weight.to(torch.bfloat16)
    return half if torch.equal(half.to(weight.dtype), weight) else weight


def rounded(product: PackedLinear, weights: str) -> PackedLinear:
    """Copy a packed product with quantized weights: 4 bits if ``weights`` is "4bit" and the number of inputs is a
    multiple of ``GROUP``, otherwise 8 bits.
    """
    linear = nn.Linear(product.in_features, product.out_features, bias=False, device="meta")
    linear.weight = fixed(product.unpacked().t().to(product.dtype))
    linear.register_parameter("bias", product.bias)
    kind = Linear4 if BITS[weights] == 4 and product.in_features % GROUP == 0 else Linear8
    return PACKED[kind]([kind(linear)], product.kernels, product.unpacked_last)


def count_parameters(model: nn.Module) -> int:
    """Count the parameters of a model, whatever the format in which they are stored."""
    kinds = (Linear8, Linear4, SmallLinear, PackedLinear, BlockLinear, BlockEmbedding)
    small: list[Any] = [layer for layer in model.modules() if isinstance(layer, kinds)]
    held = sum(weight.numel() for layer in small for weight in layer.parameters())
    meant = sum(
        layer.in_features * layer.out_features + (0 if layer.bias is None else layer.bias.numel()) for layer in small
    )
    return sum(weight.numel() for weight in model.parameters()) - held + meant


def has_kernels(model: Any) -> bool:
    """Whether our own kernels can compute the products and the attention of passes over a few tokens for a transformers
    causal LM.
    """
    kernels = native.own()
    if kernels is None or not any(isinstance(part, PackedLinear) for part in model.modules()):
        return False
    return all(head_dim % kernels.lanes == 0 for head_dim in head_dims(model))
