"""A model's layers as this machine computes them fastest: packed, fused, and quantized on request.

*Packed.* On a processor the weights of every linear layer are packed once for ``engine.model.kernels.cpu``, whose
skinny products read them at the speed of memory and give a row the same bits whatever rows come with it
(``PackedLinear``). A wide product, when a book is read, unpacks the weights of the layer at hand again. Weights that
bfloat16 holds exactly are kept in it, also beside activations in float32: the values are the same, the bytes are half.
Beside activations in bfloat16 they lie in pairs where the processor multiplies these (``kernels.pairs``).

*Fused.* transformers walks a layer in some forty small operations, which in a step of one token cost more than the
layer itself where the model is small. The packed products and what lies between them (``kernels.rowwise``) are one
program of kernels instead, for all layers (``FusedLayers``). Where their KV is in place attention is in it too, so that
a pass is one call: a step of SmolLM2-135M behind 64 tokens takes 10.2 ms, with two calls for each layer it took 11.8,
and with its weights in 8 bits 5.8 instead of 7.9 (2 cores with AVX-512 BF16, bfloat16). Families whose layers are
Llama's up to names (``architectures``) share this walk. All others go through transformers, as do layers with a part
that is not known here, and passes of more rows.
Experts are one program each (``FusedExpert``): a layer of Qwen3-30B-A3B in 4 bits takes 1.7 ms for a token instead of
2.4, in bfloat16 2.4 instead of 2.9 (2 cores with AVX-512 BF16, busy otherwise). On a GPU the norms alone are replaced
(``FusedNorm``): each is one kernel there instead of up to eight, which counts where launching them sets the pace.

*Quantized.* This is for a larger model in the same memory; answers are exact with respect to the rounded weights. The
linear layers of the decoder blocks are quantized when the model is loaded; embedding, head, norms and what chooses
experts stay as they are.
8 bits: one scale per output row (``Linear8``). 4 bits: a scale and a middle per group of 32 (``Linear4``). On a
processor they are packed like the others, and the skinny products read the levels as they are: half or a quarter of
the bytes of bfloat16. Elsewhere the weights of one layer at a time are unpacked for its product, which saves memory and
not time. A copy in 4 bits for the middle level is read as it is on NVIDIA's GPUs, by torch's own product
(``TiledLinear4``), which is for a few rows.

Why not a quantization package: torchao 0.18 works on this walk, and was not taken. Without compiling, its 8-bit layers
unpack at every pass too, its 4-bit ones for processors take a byte each or are a prototype, and where it is installed
transformers imports it at every start. bitsandbytes needs CUDA.
"""

from __future__ import annotations

import copy
import functools
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from engine.errors import ModelError
from engine.model.experts import Experts, choosing, silu_gate
from engine.model.families import ORDINARY, Family
from engine.model.kernels import cpu
from engine.model.kernels.abi import Attention, Collected, Gated, Residual, Rotated, bits
from engine.model.recurrent import INPUTS, DeltaNet, Mamba
from engine.quantization import BITS, GROUP, LAST_LEVEL, LEVEL_BITS, MIDDLE_LEVEL

if TYPE_CHECKING:
    from engine.model.attention import InPlace, KeyValues

_LEVELS_8 = 127
_MIN_SCALE = 1e-8
# Layers of one input, by the part of a block that asks for all of them one after the other.
_JOINT = {
    **{"self_attn": ("q_proj", "k_proj", "v_proj"), "linear_attn": INPUTS},
    **{"mlp": ("gate_proj", "up_proj"), "feed_forward": ("w1", "w3")},
}
_PRODUCTS = ("joint", "output", "gates", "down")
_PARTS = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
_HELD = 8  # unpacked weights: of one layer
_GATE_PIECE = 1024  # numbers of a tile of gates
_PROBE_WIDTH, _PROBE_TIMES, _FAR_SLOWER = 256, 3, 3

MOST_TILED_ROWS = 16
"""Rows for which torch's product with weights in 4 bits reads them once on a GPU."""

# Inputs of a tile of that product, and how many of them lie together, the fastest first; outputs of a tile. It is for
# GPUs from Ampere on. How far it may be off on the probe, as a share of the largest output.
_TILE_IN, _TILES, _TILE_OUT = 16, (8, 4, 2), 8
_TILED_CAPABILITY, _TILED_NEAR = (8, 0), 2e-2


# Packed ----------------------------------------------------------------------------------------------------------


class PackedLinear(nn.Module):
    """Linear layers of a processor that have one input, as one product, with their weights in panels.

    Args:
        layers: whose weights (out, in) are packed, one behind the other.
        kernels: that compute its skinny products.
        unpacked: weights of the layers that wide products have used last.
    """

    scale: nn.Parameter | None

    def __init__(self, layers: Sequence[Any], kernels: cpu.Native, unpacked: Unpacked) -> None:
        super().__init__()
        self.in_features, self.out_features = layers[0].in_features, sum(layer.out_features for layer in layers)
        self._kernels, self._unpacked = kernels, unpacked
        self.register_parameter("scale", None)
        self.dtype = self._take(layers)
        biases = [layer.bias for layer in layers if layer.bias is not None]
        self.bias = _fixed(torch.cat([bias.detach() for bias in biases])) if biases else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features)
        if rows.shape[0] > cpu.MOST_ROWS:
            weight = self._unpacked.of(self)
            out = torch.mm(rows.to(weight.dtype), weight).to(x.dtype)
            out = out if self.bias is None else out + self.bias
            return out.view(*x.shape[:-1], self.out_features)
        self._unpacked.forget()
        out = self._product(rows)[:, : self.out_features]
        if self.bias is not None:
            out = out + self.bias
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)

    def _take(self, layers: Sequence[Any]) -> torch.dtype:
        """Pack the weights of these layers; returns the dtype that they were in."""
        weight = torch.cat([layer.weight.detach() for layer in layers])
        pairs = self._kernels.multiplies_pairs and self._can_pair(weight.dtype)
        self.weight = _fixed(self._kernels.pack(_smallest(weight), pairs))
        return weight.dtype

    def _can_pair(self, dtype: torch.dtype) -> bool:
        """Whether weights that meet activations in ``dtype`` may lie in pairs."""
        return dtype is torch.bfloat16 and self.in_features % 2 == 0

    @property
    def input_dtype(self) -> torch.dtype:
        """What the skinny product takes in a program."""
        return cpu.input_dtype(self.weight)

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        return self._kernels.product(rows, self.weight, self.scale)

    def add_to(self, program: cpu.Program, x: torch.Tensor, memory: cpu.Memory) -> torch.Tensor:
        """Append the skinny product with x (rows, in), without its bias; returns where it will be."""
        panels, _, columns = self.weight.shape[:3]
        out = memory.of("product", panels * columns)
        self._add_product(program, x, out, memory)
        return out

    def _add_product(self, program: cpu.Program, x: torch.Tensor, out: torch.Tensor, memory: cpu.Memory) -> None:
        program.add_job(self._kernels.product_job(x, self.weight, self.scale, out))

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """The weights (..., in) of outputs (...,). Of layers that are not quantized."""
        columns = self.weight.shape[2]
        return self.weight[ids // columns, :, ids % columns].flatten(ids.dim()).to(self.dtype)

    def unpacked(self) -> torch.Tensor:
        """The weights (in, out) in the dtype of wide products."""
        return self._as_columns(self._kernels.unpack(self.weight).to(wide_dtype(self.dtype)))

    def _as_columns(self, panels: torch.Tensor) -> torch.Tensor:
        return panels.transpose(0, 1).reshape(self.in_features, -1)[:, : self.out_features]


class PackedLinear8(PackedLinear):
    """The same of layers in 8 bits."""

    def _take(self, layers: Sequence[Any]) -> torch.dtype:
        scale = torch.cat([layer.scale for layer in layers])
        levels = torch.cat([layer.weight for layer in layers])
        pairs = self._kernels.looks_up_levels and self._can_pair(scale.dtype)
        self.weight = _fixed(self._kernels.pack(levels, pairs))
        self.scale = _fixed(self._kernels.pack(scale.unsqueeze(1)).flatten())
        return scale.dtype

    def unpacked(self) -> torch.Tensor:
        assert self.scale is not None
        kind = wide_dtype(self.dtype)
        return self._as_columns(self._kernels.unpack(self.weight).to(kind)).mul_(
            self.scale.to(kind)[: self.out_features]
        )


class PackedLinear4(PackedLinear):
    """The same of layers in 4 bits."""

    def _take(self, layers: Sequence[Any]) -> torch.dtype:
        pairs = self._kernels.looks_up_levels and self._can_pair(layers[0].dtype)
        self.weight = _fixed(self._kernels.pack4(torch.cat([layer.levels() for layer in layers]), pairs))
        steps = torch.cat([layer.scales_and_middles for layer in layers])
        # (panels, groups, 2, columns)
        self.scales = _fixed(torch.stack([self._kernels.pack(part) for part in steps.unbind(-1)], dim=2))
        return layers[0].dtype

    def _product(self, rows: torch.Tensor) -> torch.Tensor:
        return self._kernels.product4(rows, self.weight, self.scales)

    def _add_product(self, program: cpu.Program, x: torch.Tensor, out: torch.Tensor, memory: cpu.Memory) -> None:
        spread = memory.of("spread", self.in_features), memory.of("sums", self.in_features // GROUP)
        for job in self._kernels.product4_jobs(x, self.weight, self.scales, out, *spread):
            program.add_job(job)

    def unpacked(self) -> torch.Tensor:
        levels = self._kernels.unpack4(self.weight).to(wide_dtype(self.dtype)).sub_(MIDDLE_LEVEL)
        scale, middle = (part.unsqueeze(2).to(levels.dtype) for part in self.scales.unbind(dim=2))
        return self._as_columns(levels.unflatten(1, (-1, GROUP)).mul_(scale).add_(middle).flatten(1, 2))


class JointLayer(nn.Module):
    """One of the layers of a joint product: whoever is asked first computes it for all.

    Args:
        product: the joint one.
        start, stop: its outputs that are this layer's.
        held: the product's last input and result, which the shares have in common.
    """

    def __init__(self, product: PackedLinear, start: int, stop: int, held: list[torch.Tensor]) -> None:
        super().__init__()
        self.in_features, self.out_features = product.in_features, stop - start
        if start == 0:
            self.product = product  # a submodule of one share is enough
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
    """An embedding whose weights are the head's, which are packed.

    Args:
        head: the layer from hidden states to logits.
        scale: what the embedding multiplies its rows with; None leaves them.
        norm: what it does to them then; None leaves them.
    """

    def __init__(self, head: PackedLinear, scale: torch.Tensor | None, norm: nn.Module | None) -> None:
        super().__init__()
        self.head, self._scale, self.norm = head, None if scale is None else scale.to(head.dtype), norm

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.head.rows(ids)
        rows = rows if self._scale is None else rows * self._scale
        return rows if self.norm is None else self.norm(rows)


class PackedNorm(nn.Module):
    """An RMS norm of a processor, in one pass.

    Args:
        norm: of transformers.
        kernels: that compute it.
        offset: what it adds to its weights.
        width: numbers that it norms, where it has no weights.
    """

    def __init__(self, norm: Any, kernels: cpu.Native, offset: float = 0.0, width: int = 0) -> None:
        super().__init__()
        self.weight = torch.ones(width) if width else _fixed(norm.weight.detach().float().contiguous() + offset)
        self.epsilon = _epsilon_of(norm)
        self._kernels = kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._kernels.norm(x, self.weight, self.epsilon)


class FusedNorm(nn.Module):
    """An RMS norm of a GPU, in one kernel of torch where transformers launches up to eight. Rounds once, at the end.

    Args:
        norm: of transformers.
        offset: what it adds to its weights, in float32.
    """

    def __init__(self, norm: Any, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = _fixed(norm.weight.detach().float() + offset) if offset else norm.weight
        self.epsilon = _epsilon_of(norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self.epsilon).to(x.dtype)


def fuse_norms(model: Any, family: Family = ORDINARY) -> None:
    """Let the norms of a transformers causal LM take one kernel each, in place, for a GPU and before it is moved."""
    for path, layer in list(model.named_modules()):
        if _is_norm(layer) and hasattr(layer, "weight"):
            _replace(model, path, FusedNorm(layer, family.norm_offset_of(path)))


class Unpacked:
    """The last few unpacked weights: prefill takes one layer's again and again before it goes to the next."""

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
        """No wide product goes on: the memory is for others."""
        self._held.clear()


def pack(model: Any, family: Family = ORDINARY) -> None:
    """Pack the linear layers and norms of a transformers causal LM on a processor in place."""
    kernels = cpu.native()
    if kernels is None or model.dtype not in (torch.float32, torch.bfloat16):
        return
    weights = {type(layer) for layer in model.modules()} & {Linear8, Linear4}
    capped = any(getattr(layer, "attn_logit_softcapping", None) for layer in model.modules())
    for head_dim in _head_dims(model):
        kernels.prepare(head_dim, model.dtype, [_BITS[kind] for kind in weights], capped)
    unpacked = Unpacked()
    embedding = model.get_input_embeddings()
    for block in model.model.layers:
        for place, names in _JOINT.items():
            part: Any = getattr(block, place, None)
            layers = [getattr(part, name, None) for name in names]
            if all(_is_packable(layer) for layer in layers):
                _share(part, names, _PACKED[type(layers[0])](layers, kernels, unpacked))
    found = list(model.named_modules())[::-1]
    while found:  # what is packed leaves the list, and memory
        path, layer = found.pop()
        new: nn.Module | None = None
        if _is_packable(layer):
            new = _PACKED[type(layer)]([layer], kernels, unpacked)
            if layer.weight is embedding.weight:  # they stay in memory once
                own = (getattr(embedding, name, None) for name in ("embed_scale", "embed_norm"))
                model.set_input_embeddings(PackedEmbedding(new, *own))
        elif _is_norm(layer) and hasattr(layer, "weight"):
            if _fits(layer.weight, kernels.lanes):
                new = PackedNorm(layer, kernels, family.norm_offset_of(path))
        elif _is_norm(layer) and (width := _width_of_values(model, path)) and width % kernels.lanes == 0:
            new = PackedNorm(layer, kernels, width=width)
        if new is not None:
            _replace(model, path, new)
        if isinstance(layer, DeltaNet | Mamba) and layer.taps.is_cpu:
            layer.take(kernels)
    fuse_experts(model, kernels)


def has_kernels(model: Any) -> bool:
    """Whether products and attention of a few rows of a transformers causal LM are computed by our own kernels."""
    kernels = cpu.native()
    if kernels is None or not any(isinstance(part, PackedLinear) for part in model.modules()):
        return False
    return all(head_dim % kernels.lanes == 0 for head_dim in _head_dims(model))


def _head_dims(model: Any) -> set[int]:
    """Of the layers with attention."""
    found = (getattr(layer, "self_attn", None) for layer in model.model.layers)
    return {int(attention.head_dim) for attention in found if attention is not None}


def _replace(model: nn.Module, path: str, new: nn.Module) -> None:
    parent, _, last = path.rpartition(".")
    setattr(model.get_submodule(parent), last, new)


def _is_norm(layer: nn.Module) -> bool:
    return type(layer).__name__.endswith("RMSNorm")


def _width_of_values(model: Any, path: str) -> int:
    """Numbers that a norm without weights norms, if they are a head's; 0 where they are not on a processor."""
    attention: Any = model.get_submodule(path.rpartition(".")[0])
    return int(getattr(attention, "head_dim", 0)) if next(attention.parameters()).is_cpu else 0


def _epsilon_of(norm: Any) -> float:
    return float(norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps)


def _fits(weight: torch.Tensor, lanes: int) -> bool:
    return weight.is_cpu and weight.shape[0] % lanes == 0


def _is_packable(layer: Any) -> bool:
    """Whether there are kernels for a layer's weights."""
    return type(layer) in _PACKED and layer.weight.is_cpu


def _share(part: nn.Module, names: Sequence[str], product: PackedLinear) -> None:
    held: list[torch.Tensor] = []
    start = 0
    for name in names:
        stop = start + getattr(part, name).out_features
        setattr(part, name, JointLayer(product, start, stop, held))
        start = stop


def _smallest(weight: torch.Tensor) -> torch.Tensor:
    """The same values in bfloat16 where it holds them all."""
    half = weight.to(torch.bfloat16)
    return half if torch.equal(half.to(weight.dtype), weight) else weight


# Fused -----------------------------------------------------------------------------------------------------------


class FusedLayers:
    """Packed decoder layers for at most ``cpu.MOST_ROWS`` rows, as one program of kernels.

    Where a cache has the KV of all of them in place, a pass through them is one call (``through``). Elsewhere a layer
    is two, between which it attends through whatever has its KV (``layer``). Between what enters and leaves it a layer
    computes in float32, but for what products of pairs take. A row has the same bits whatever rows come with it, and
    either way.

    Args:
        found: the parts of each layer, as ``parts_of`` found them.
        kernels: that their products were packed for.
        dtype: of hidden states.
        rotary: numbers of a head that RoPE turns.
    """

    def __init__(self, found: Sequence[dict[str, Any]], kernels: cpu.Native, dtype: torch.dtype, rotary: int) -> None:
        first = found[0]
        self._kernels, self._dtype, self._rotary = kernels, dtype, rotary
        self._heads, self._kv_heads = first["heads"], first["kv_heads"]
        self._head_dim, self._scaling = first["self_attn"].head_dim, first["self_attn"].scaling
        self._memory, self._program = cpu.Memory(), cpu.Program(kernels)
        width = self._heads * self._head_dim
        self._q, self._answers = (self._memory.of(name, width, dtype) for name in ("queries", "answers"))
        self._lse = self._memory.of("sums", self._heads)
        self._held: list[Any] = [found]  # the program knows their addresses
        self._attends = self._head_dim % kernels.lanes == 0
        # Of the kernels of each layer whose arguments depend on the pass.
        self._places = np.array([self._add(parts) for parts in found])
        self._begun = int(self._places[0, 2])

    def _add(self, parts: dict[str, Any]) -> tuple[int, ...]:
        """Append a layer to the program; returns ``_places`` of it: of its first kernel, of those behind the joint
        product, of attention, of that behind it, behind the output, and of the last."""
        kernels, memory, program, head_dim = self._kernels, self._memory, self._program, self._head_dim
        joint, output, gates, down = (parts[name] for name in _PRODUCTS)
        kind, small = cpu.KIND[self._dtype], _lanes(kernels.lanes, self._rotary // 2, head_dim)
        hidden, first, second = joint.in_features, parts["input_layernorm"], parts["post_attention_layernorm"]
        normed, second_normed, mixed = (
            memory.of(name, product.in_features, product.input_dtype)
            for name, product in (("normed", joint), ("normed", gates), ("mixed", output))
        )

        entered = program.add(
            kernels.address("normed", kind, False, cpu.KIND[normed.dtype]),
            {
                **{Residual.WEIGHTS: first.weight.data_ptr(), Residual.EPSILON: bits(first.epsilon)},
                **{Residual.OUT: normed.data_ptr(), Residual.WIDTH: hidden},
            },
            cpu.EACH_ROW,
        )
        out = joint.add_to(program, normed, memory)
        norms, norm_slots = parts["norms"], (Rotated.QUERY_NORM, Rotated.KEY_NORM)
        turned = program.add(
            kernels.address("rotated", kind, head_dim, self._rotary, bool(norms), lanes=small),
            {
                **{Rotated.X: out.data_ptr(), Rotated.X_STRIDE: out.shape[1], Rotated.BIAS: self._bias(joint)},
                **{Rotated.HEADS: self._heads, Rotated.KEY_HEADS: self._kv_heads},
                **{at: norm.weight.data_ptr() for at, norm in zip(norm_slots, norms, strict=False)},
                Rotated.NORM_EPSILON: bits(norms[0].epsilon if norms else 0.0),
            },
            cpu.EACH_ROW,
            rows_at=Rotated.ROWS,
        )

        attended = len(program)
        if self._attends:
            attend, join = kernels.attention(head_dim, self._dtype, self._dtype)
            program.add(attend, {})
            program.add(join, attended, (0, self._kv_heads))

        collected = program.add(
            kernels.address("collected", kind, head_dim, cpu.KIND[mixed.dtype], lanes=small),
            {Collected.OUT: mixed.data_ptr(), Collected.HEADS: self._heads},
            cpu.EACH_ROW,
            rows_at=Collected.ROWS,
        )
        out, kept = output.add_to(program, mixed, memory), memory.of("kept", hidden)
        added = program.add(
            kernels.address("normed", kind, True, cpu.KIND[second_normed.dtype]),
            {
                **self._sum_of(out, output, kept),
                **{Residual.WEIGHTS: second.weight.data_ptr(), Residual.EPSILON: bits(second.epsilon)},
                Residual.OUT: second_normed.data_ptr(),
            },
            cpu.EACH_ROW,
        )
        out = gates.add_to(program, second_normed, memory)
        gated = memory.of("gated", down.in_features, down.input_dtype)
        _add_gates(program, kernels, out, self._bias(gates), gated)
        out = down.add_to(program, gated, memory)
        left = program.add(
            kernels.address("added", kind),
            self._sum_of(out, down, kept),
            cpu.EACH_ROW,
        )
        return entered, turned, attended, collected, added, left

    def _sum_of(self, out: torch.Tensor, product: PackedLinear, kept: torch.Tensor) -> dict[int, int]:
        """Arguments of what adds a product to the residual sum."""
        return {
            **{Residual.DELTA: out.data_ptr(), Residual.DELTA_STRIDE: out.shape[1]},
            **{Residual.BIAS: self._bias(product), Residual.SUM: kept.data_ptr(), Residual.WIDTH: kept.shape[1]},
        }

    def _bias(self, layer: Any) -> int:
        """Address of a product's bias in float32."""
        bias = torch.zeros(layer.out_features) if layer.bias is None else layer.bias.float().contiguous()
        self._held.append(bias)
        return bias.data_ptr()

    def layer(self, index: int, hidden: torch.Tensor, rope: Any, kv: KeyValues) -> torch.Tensor:
        """Hidden states (1, n, hidden) behind a layer, attending through ``kv``; ``rope``: a ``decoder.Rope``."""
        program, places, arguments = self._program, self._places[index], self._program.arguments
        rows, heads, kv_heads = hidden.shape[1], self._heads, self._kv_heads
        hidden, out = hidden.contiguous(), torch.empty_like(hidden)
        cos, sin = rope.cos.contiguous(), rope.sin.contiguous()
        joint = torch.empty(1, heads + 2 * kv_heads, rows, self._head_dim, dtype=self._dtype)
        q, k, v = joint.split((heads, kv_heads, kv_heads), dim=1)
        entered, turned, _, collected, _, left = places.tolist()
        program.resize(rows)
        self._set(places, hidden.data_ptr(), out, cos, sin)
        arguments[turned, Rotated.QUERIES] = q.data_ptr()
        arguments[turned, Rotated.KEYS], arguments[turned, Rotated.VALUES] = k.data_ptr(), v.data_ptr()
        arguments[turned, Rotated.KV_HEAD], arguments[turned, Rotated.UNTURNED] = rows * self._head_dim, 0
        program.run(entered, turned + 1)
        answers = kv.attend(index, q, k, v, self._scaling).contiguous()
        arguments[collected, Collected.X] = answers.data_ptr()
        program.run(collected, left + 1)
        return out

    def through(self, hidden: torch.Tensor, rope: Any, kv: InPlace) -> torch.Tensor:
        """Hidden states (1, n, hidden) behind all layers, which find and leave their KV in place."""
        kernels, program, places, arguments = self._kernels, self._program, self._places.T, self._program.arguments
        rows, heads, group = hidden.shape[1], self._kv_heads, self._heads // self._kv_heads
        hidden, out = hidden.contiguous(), torch.empty_like(hidden)
        cos, sin = rope.cos.contiguous(), rope.sin.contiguous()
        entering = np.full(len(self._places), out.data_ptr())
        entering[0] = hidden.data_ptr()
        _, turned, attended, collected, _, _ = places
        length, strides = kv.start + rows, (kv.head_stride, self._head_dim) * 2
        size = heads, group * rows, self._head_dim
        seen, first = cpu.newest_seen(rows, kv.start, group), cpu.from_first(group * rows)
        q, queries = self._q, np.full(len(self._places), self._q.data_ptr())
        if kv.observe is not None:  # each layer's are kept
            q = torch.empty(len(self._places), 1, self._heads, rows, self._head_dim, dtype=self._dtype)
            queries = q.data_ptr() + np.arange(len(q)) * q[0].nbytes
        with kernels.lock:
            program.resize(rows)
            self._set(places, entering, out, cos, sin)
            arguments[turned, Rotated.QUERIES] = queries
            before = kv.start * self._head_dim * hidden.element_size()
            arguments[turned, Rotated.KEYS], arguments[turned, Rotated.VALUES] = kv.addresses + before
            arguments[turned, Rotated.KV_HEAD] = kv.head_stride
            arguments[turned, Rotated.UNTURNED] = 0 if kv.unturned is None else kv.unturned + before
            arguments[attended] = kernels.attention_arguments(
                q, (0, 0), strides, size, length, seen, first, self._answers, self._lse, self._scaling
            )
            arguments[attended, Attention.QUERIES] = queries
            arguments[attended, Attention.KEYS], arguments[attended, Attention.VALUES] = kv.addresses
            arguments[collected, Collected.X] = self._answers.data_ptr()
            program.set_tiles(attended, heads * kernels.pieces(length))
            program.run(0, self._begun)  # whoever sleeps wakes up at the end of a call
            program.run(self._begun)
        if kv.observe is not None:
            for layer, own in enumerate(q):
                kv.observe(layer, own, self._scaling)
        return out

    def _set(self, places: Any, entering: Any, out: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Say where hidden states come from and go to, and what RoPE turns by, in layers at (6, ...) ``places``."""
        entered, turned, _, _, added, left = places
        arguments = self._program.arguments
        arguments[entered, Residual.X] = arguments[added, Residual.X] = entering
        arguments[left, Residual.OUT] = out.data_ptr()
        arguments[turned, Rotated.COS], arguments[turned, Rotated.SIN] = cos.data_ptr(), sin.data_ptr()


class FusedExpert:
    """An expert of packed layers as one program: the gates, what they open, and back to the hidden width.

    A row has the same bits whatever rows come with it.

    Args:
        gates, down: its layers, without biases.
        kernels: that they were packed for.
        memory: which it shares with the other experts.
        nothing: the bias of the gates, zeros.
    """

    def __init__(
        self, gates: PackedLinear, down: PackedLinear, kernels: cpu.Native, memory: cpu.Memory, nothing: torch.Tensor
    ) -> None:
        self._held = gates, down, memory, nothing  # the program knows their addresses
        self._x = memory.of("asked", gates.in_features, gates.input_dtype)
        self._program = program = cpu.Program(kernels)
        out = gates.add_to(program, self._x, memory)
        gated = memory.of("gated", down.in_features, down.input_dtype)
        _add_gates(program, kernels, out, nothing.data_ptr(), gated)
        self._out = down.add_to(program, gated, memory)[:, : down.out_features]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """What it answers x (n, hidden), in float32; the next expert writes over it."""
        rows = x.shape[0]
        self._x[:rows] = x
        self._program.resize(rows)
        self._program.run()
        return self._out[:rows]


def _add_gates(
    program: cpu.Program, kernels: cpu.Native, product: torch.Tensor, bias: int, gated: torch.Tensor
) -> None:
    """Append what opens the gates of an MLP; ``bias``: an address."""
    width = gated.shape[1]
    pieces = -(-width // _GATE_PIECE)
    program.add(
        kernels.address("gated", cpu.KIND[gated.dtype]),
        {
            **{Gated.X: product.data_ptr(), Gated.X_STRIDE: product.shape[1], Gated.BIAS: bias},
            **{Gated.OUT: gated.data_ptr(), Gated.GATES: width, Gated.PIECE: _GATE_PIECE, Gated.PIECES: pieces},
        },
        (pieces, 0),
    )


def fuse_experts(model: Any, kernels: cpu.Native) -> None:
    """Let the experts of a packed transformers causal LM that are Llama's MLPs answer a few tokens in one call each."""
    memory = cpu.Memory()
    for part in model.modules():
        if not isinstance(part, Experts) or part.opens is not silu_gate:
            continue
        pairs: list[Any] = list(zip(part.gates, part.down, strict=True))
        if any(type(layer) not in _PACKED.values() or layer.bias is not None for pair in pairs for layer in pair):
            continue
        gates, down = pairs[0]
        if gates.in_features % kernels.lanes or down.in_features % kernels.lanes:
            continue
        nothing = torch.zeros(gates.out_features)
        part.fused = [FusedExpert(gates, down, kernels, memory, nothing) for gates, down in pairs]
        part.most_rows = cpu.MOST_ROWS


def fuse(model: Any, dtype: torch.dtype, weights: str = "stored") -> FusedLayers | None:
    """The layers of a packed transformers causal LM; None where one of them is not as it is known here.

    Args:
        weights: "8bit" or "4bit" to round their products, in a copy; "stored" has those of the model itself.
    """
    found = [parts_of(layer) for layer in model.model.layers]
    if not all(found) or dtype not in cpu.KIND or (kernels := cpu.native()) is None:
        return None
    cos = model.model.rotary_emb(torch.empty(1, dtype=dtype), torch.zeros(1, 1, dtype=torch.long))[0]
    rotary, known = int(cos.shape[-1]), list(filter(None, found))
    for parts in known:
        widths = parts["joint"].in_features, parts["down"].in_features
        if any(width % kernels.lanes for width in widths):
            return None
        if not _lanes(kernels.lanes, rotary // 2, parts["self_attn"].head_dim):
            return None
        if weights in BITS:
            parts |= {name: rounded(parts[name], weights) for name in _PRODUCTS}
    return FusedLayers(known, kernels, dtype, rotary) if known else None


def rounded(product: PackedLinear, weights: str) -> PackedLinear:
    """A copy of a packed product with its weights in "8bit" or, where its width allows it, "4bit"."""
    linear = nn.Linear(product.in_features, product.out_features, bias=False, device="meta")
    linear.weight = _fixed(product.unpacked().t().to(product.dtype))
    linear.register_parameter("bias", product.bias)
    kind = Linear4 if BITS[weights] == 4 and product.in_features % GROUP == 0 else Linear8
    return _PACKED[kind]([kind(linear)], product._kernels, product._unpacked)


def _lanes(most: int, *widths: int) -> int:
    """The widest vectors that divide all widths; 0 if there are none."""
    return next((lanes for lanes in (16, 8, 4) if lanes <= most and not any(width % lanes for width in widths)), 0)


def parts_of(layer: Any) -> dict[str, Any] | None:
    """The parts of a packed layer by what they do, if it has these and no others."""
    names = {name for name, part in layer.named_children() if not isinstance(part, nn.Dropout)}
    if names != set(_PARTS):
        return None
    attention, mlp, config = layer.self_attn, layer.mlp, layer.self_attn.config
    joint = _joint(attention, ("q_proj", "k_proj", "v_proj"), "qkv_proj")
    gates = _joint(mlp, ("gate_proj", "up_proj"), "gate_up_proj")
    norms = [part for name in ("q_norm", "k_norm") if (part := getattr(attention, name, None)) is not None]
    products = [joint, gates, getattr(attention, "o_proj", None), getattr(mlp, "down_proj", None)]
    if not all(isinstance(product, PackedLinear) for product in products) or len(norms) == 1:
        return None
    if not all(
        isinstance(norm, PackedNorm) for norm in (layer.input_layernorm, layer.post_attention_layernorm, *norms)
    ):
        return None
    if config.hidden_act != "silu":
        return None
    return {
        **{name: getattr(layer, name) for name in _PARTS},
        **{"joint": joint, "gates": gates, "output": products[2], "down": products[3], "norms": norms},
        **{"heads": config.num_attention_heads, "kv_heads": config.num_key_value_heads},
    }


def _joint(part: Any, names: Sequence[str], whole: str) -> PackedLinear | None:
    """The product that computes what the layers of these names share, or ``whole`` where it has a name."""
    shares = [getattr(part, name, None) for name in names]
    if all(isinstance(share, JointLayer) for share in shares):
        return shares[0].product  # type: ignore[union-attr]
    return getattr(part, whole, None)


# Quantized -------------------------------------------------------------------------------------------------------


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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _wide(x, self.unpacked(), self.bias)

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
        self.dtype = weight.dtype
        groups = weight.float().reshape(self.out_features, -1, GROUP)
        low, high = groups.amin(dim=-1), groups.amax(dim=-1)
        kept = torch.float16 if self.dtype is torch.float16 else torch.bfloat16  # of two bytes in any case
        scale = ((high - low) / LAST_LEVEL).clamp(min=_MIN_SCALE).to(kept)
        middle = (low + MIDDLE_LEVEL * scale.float()).to(kept)
        levels = (groups - middle.float()[..., None]) / scale.float()[..., None] + MIDDLE_LEVEL
        whole = levels.round().clamp(0, LAST_LEVEL).reshape(self.out_features, -1).to(torch.uint8)
        self.scales_and_middles = _fixed(torch.stack([scale, middle], dim=-1))  # (out, groups, 2)
        self.weight = _fixed(whole[:, 0::2] | (whole[:, 1::2] << LEVEL_BITS))
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _wide(x, self.unpacked(), self.bias)

    def levels(self) -> torch.Tensor:
        """Levels (out, in) from 0 to 15, as bytes."""
        return torch.stack([self.weight & LAST_LEVEL, self.weight >> LEVEL_BITS], dim=-1).flatten(1)

    def unpacked(self) -> torch.Tensor:
        """The weights (out, in) that this layer computes with."""
        levels = self.levels().unflatten(1, (-1, GROUP)).to(self.dtype) - MIDDLE_LEVEL
        scale, middle = self.scales_and_middles.to(self.dtype).unsqueeze(-1).unbind(dim=2)
        return (levels * scale + middle).flatten(1)


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
        self.weight = _fixed(torch.ops.aten._convert_weight_to_int4pack(swapped, tiles))
        self.scales_and_middles = _fixed(linear.scales_and_middles.transpose(0, 1).contiguous())
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


def _tiled(block: Any, device: torch.device, shared: dict[int, torch.Tensor]) -> nn.Module:
    twin: nn.Module = copy.deepcopy(block, dict(shared))
    if hasattr(twin, "_hf_hook"):  # it would bring the block's weights from host memory for every pass
        from accelerate.hooks import remove_hook_from_module

        remove_hook_from_module(twin, recurse=True)
    for path, layer in list(twin.named_modules()):
        if isinstance(layer, nn.Linear):
            _replace(twin, path, TiledLinear4(Linear4(layer).to(device)))
    return twin.to(device)


def _multiplies_tiles(device: torch.device) -> bool:
    """Whether torch's product with weights in 4 bits is right on this GPU."""
    if torch.cuda.get_device_capability(device) < _TILED_CAPABILITY:
        return False  # there it fails in a way that ends the process
    width = _TILES[0] * _TILE_IN
    linear = nn.Linear(width, _TILE_OUT, bias=False, device="meta")
    numbers = torch.arange(_TILE_OUT * width, device=device).sin().view(_TILE_OUT, width)
    linear.weight = _fixed(numbers.bfloat16())
    levels = Linear4(linear)
    x = numbers.cos().bfloat16()
    expected = x.float() @ levels.unpacked().float().t()
    try:
        off = (TiledLinear4(levels)(x).float() - expected).abs().max() / expected.abs().max()
        return bool(off < _TILED_NEAR)
    except (RuntimeError, NotImplementedError):  # AMD's GPUs before CDNA 2, and builds without it
        return False


_PACKED: dict[type, type[PackedLinear]] = {nn.Linear: PackedLinear, Linear8: PackedLinear8, Linear4: PackedLinear4}
_BITS = {Linear8: 8, Linear4: 4}


def quantize(blocks: Iterable[nn.Module], weights: str, name: str) -> None:
    """Quantize the linear layers of decoder blocks of a transformers causal LM in place, before they are moved.

    Args:
        weights: "8bit" or "4bit".
        name: of the model, for people.

    Raises:
        ModelError: the model's widths do not allow it.
    """
    kind: type[Linear8 | Linear4] = Linear8 if BITS[weights] == 8 else Linear4
    for block in blocks:
        kept = {id(layer) for layer in choosing(block)}  # another choice is another model
        for path, layer in list(block.named_modules()):
            if not isinstance(layer, nn.Linear) or id(layer) in kept:
                continue
            if kind is Linear4 and layer.in_features % GROUP:
                raise ModelError(
                    f"{name} has layers of width {layer.in_features}, and 4-bit weights come in groups of {GROUP}.",
                    "Use --weights 8bit.",
                )
            _replace(block, path, kind(layer))


def count_parameters(model: nn.Module) -> int:
    """Parameters of a model, whatever the bits of each."""
    small = [layer for layer in model.modules() if isinstance(layer, Linear8 | Linear4 | PackedLinear)]
    held = sum(weight.numel() for layer in small for weight in layer.parameters())
    meant = sum(
        layer.in_features * layer.out_features + (0 if layer.bias is None else layer.bias.numel()) for layer in small
    )
    return sum(weight.numel() for weight in model.parameters()) - held + meant


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """In what a matrix product of activations in ``dtype`` is computed on a processor.

    Those without instructions for bfloat16, as most in people's machines, take 80 times as long in it as in float32
    (measured with AVX2: 1.4 against 113 GFLOP/s). The result is rounded to bfloat16 all the same.
    """
    return torch.float32 if dtype is torch.bfloat16 and not computes_in_half() else dtype


@functools.cache
def computes_in_half() -> bool:
    """Whether this processor multiplies matrices in bfloat16 about as fast as in float32. Takes 0.1 s once."""
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        left, right = (torch.ones(_PROBE_WIDTH, _PROBE_WIDTH, dtype=dtype) for _ in range(2))
        taken = []
        for _ in range(_PROBE_TIMES):
            began = time.perf_counter()
            torch.matmul(left, right)
            taken.append(time.perf_counter() - began)
        seconds[dtype] = min(taken)
    return seconds[torch.bfloat16] < _FAR_SLOWER * seconds[torch.float32]


def _wide(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``functional.linear``, on a processor in its ``wide_dtype``."""
    kind = wide_dtype(x.dtype) if x.device.type == "cpu" else x.dtype
    if kind is x.dtype:
        return functional.linear(x, weight, bias)
    return functional.linear(x.to(kind), weight.to(kind), None if bias is None else bias.to(kind)).to(x.dtype)


def _fixed(values: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)
