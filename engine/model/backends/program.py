"""Runs all layers on a processor as one program of our own kernels.

transformers runs a layer as about forty operations. In a one-token step of a small model, starting them costs more time
than computing them. Here one program of kernels computes all layers: the products with packed weights, and the
operations between the products (``FusedLayers``). If every layer's KV is in memory in the compute dtype
(``View.in_place``), the program includes attention and runs all layers at once. Otherwise each layer takes two calls.
With attention included, a step of SmolLM2-135M after 64 tokens takes 10.2 ms instead of 11.8 in bfloat16, and 5.8 ms
instead of 7.9 with 8-bit weights (2 cores with AVX-512 BF16). The program serves all model families with Llama's layers
(``Family.plain``). transformers runs other families, models whose layers have an unknown part, and passes over more
than ``MOST_ROWS`` rows.

In a mixture of experts, each expert is a program of its own (``FusedExpert``). For one token, a layer of Qwen3-30B-A3B
then takes 1.7 ms instead of 2.4 in 4 bits, and 2.4 ms instead of 2.9 in bfloat16 (2 cores with AVX-512 BF16, with other
work on them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from engine.model.backends.walk import Walk
from engine.model.experts import Experts, silu_gate
from engine.model.families.family import ORDINARY, Family
from engine.model.kernels import native
from engine.model.kernels.abi import KIND, MOST_ROWS, Attention, Collected, Gated, Residual, Rotated, bits
from engine.model.kernels.native import Native
from engine.model.kernels.own_attention import from_first, kv_addresses, newest_seen
from engine.model.kernels.program import EACH_ROW, Memory, Program
from engine.model.products.norms import PackedNorm
from engine.model.products.packed import PACKED, JointLayer, PackedLinear, pack_layers, rounded
from engine.quantization import BITS

if TYPE_CHECKING:
    from engine.model.pieces import Pieces, Rope
    from engine.model.view import Blocks, InPlace, View

_PRODUCTS = ("joint", "output", "gates", "down")
_PARTS = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
_GATE_PIECE = 1024  # Maximum number of an MLP's gates that one tile computes. A tile is a thread's unit of work.


def pack(model: Any, family: Family = ORDINARY, dtype: torch.dtype | None = None) -> None:
    """Pack the weights of a transformers causal LM on a processor for our own kernels, in place. Without such kernels
    for this processor and dtype, the model stays unchanged.

    Args:
        dtype: dtype of the activations; None takes the dtype of the weights.
    """
    kernels, dtype = native.own(), dtype or model.dtype
    if kernels is None or dtype not in (torch.float32, torch.bfloat16):
        return
    pack_layers(model, kernels, family, dtype)
    fuse_experts(model, kernels)


class FusedLayers:
    """Runs packed decoder layers over at most ``MOST_ROWS`` rows, as one program of kernels.

    If a view gives the memory of its KV (``View.in_place``), ``through`` runs all layers, attention included. Otherwise
    ``layer`` runs one layer in two calls, and the view computes attention between the calls. Activations inside a layer
    are in float32, except queries, keys, values, attention outputs, and inputs of products that multiply pairs of
    bfloat16 numbers. In both cases, the bits of a row do not depend on the other rows of the pass.

    Args:
        found: the parts of each layer, as ``parts_of`` found them.
        kernels: the kernels that the layers' products were packed for.
        dtype: dtype of hidden states.
        rotary: how many of a head's dimensions RoPE rotates.
    """

    def __init__(self, found: Sequence[dict[str, Any]], kernels: Native, dtype: torch.dtype, rotary: int) -> None:
        first = found[0]
        self._kernels, self._dtype, self._rotary = kernels, dtype, rotary
        self._heads, self._kv_heads = first["heads"], first["kv_heads"]
        self._head_dim, self._scaling = first["self_attn"].head_dim, first["self_attn"].scaling
        self._memory, self._program = Memory(), Program(kernels)
        width = self._heads * self._head_dim
        self._q, self._answers = (self._memory.of(name, width, dtype) for name in ("queries", "answers"))
        self._lse = self._memory.of("sums", self._heads)
        self._held: list[Any] = [found]  # keeps layers and biases alive, because the program holds only their addresses
        self.attends = self._head_dim % kernels.lanes == 0
        """Whether the program can include attention."""
        self._known: WeakKeyDictionary[Blocks, _KvMemory] = WeakKeyDictionary()
        # For each layer, the indices of the kernel calls whose arguments depend on the pass.
        self._places = np.array([self._add(parts) for parts in found])
        self._begun = int(self._places[0, 2])

    def _add(self, parts: dict[str, Any]) -> tuple[int, ...]:
        """Append a layer to the program. Return the layer's entry of ``_places``: the indices of the kernel calls that
        compute the first norm, RoPE, attention, the concatenation of its heads, the second norm, and the last residual
        sum.
        """
        joint, output, gates, down = (parts[name] for name in _PRODUCTS)
        mixed = self._memory.of("mixed", output.in_features, output.input_dtype)
        kept = self._memory.of("kept", joint.in_features)
        entered, turned = self._add_inputs(parts, joint)
        attended, collected = self._add_attention(mixed)
        out = output.add_to(self._program, mixed, self._memory)
        added, left = self._add_mlp(
            self._sum_of(out, output, kept), parts["post_attention_layernorm"], gates, down, kept
        )
        return entered, turned, attended, collected, added, left

    def _add_inputs(self, parts: dict[str, Any], joint: PackedLinear) -> tuple[int, int]:
        """Append the first norm, the joint product of queries, keys and values, and the kernel that rotates queries and
        keys. Return the indices of the norm and of the rotation.
        """
        kernels, program = self._kernels, self._program
        first, normed = parts["input_layernorm"], self._memory.of("normed", joint.in_features, joint.input_dtype)
        kind, small = KIND[self._dtype], _lanes(kernels.lanes, self._rotary // 2, self._head_dim)
        entered = program.add(
            kernels.address("normed", kind, False, KIND[normed.dtype]),
            {
                Residual.WEIGHTS: first.weight.data_ptr(),
                Residual.EPSILON: bits(first.epsilon),
                Residual.OUT: normed.data_ptr(),
                Residual.WIDTH: joint.in_features,
            },
            EACH_ROW,
        )
        out = joint.add_to(program, normed, self._memory)
        norms, norm_slots = parts["norms"], (Rotated.QUERY_NORM, Rotated.KEY_NORM)
        turned = program.add(
            kernels.address("rotated", kind, self._head_dim, self._rotary, bool(norms), lanes=small),
            {
                Rotated.X: out.data_ptr(),
                Rotated.X_STRIDE: out.shape[1],
                Rotated.BIAS: self._bias(joint),
                Rotated.HEADS: self._heads,
                Rotated.KEY_HEADS: self._kv_heads,
                **{slot: norm.weight.data_ptr() for slot, norm in zip(norm_slots, norms, strict=False)},
                Rotated.NORM_EPSILON: bits(norms[0].epsilon if norms else 0.0),
            },
            EACH_ROW,
            rows_at=Rotated.ROWS,
        )
        return entered, turned

    def _add_attention(self, mixed: torch.Tensor) -> tuple[int, int]:
        """Append attention, if the program can include it, and the kernel that concatenates its heads into ``mixed``.
        Return the indices of both kernels.
        """
        kernels, program, head_dim = self._kernels, self._program, self._head_dim
        small, attended = _lanes(kernels.lanes, self._rotary // 2, head_dim), len(program)
        if self.attends:
            attend, join = kernels.attention.addresses(head_dim, self._dtype, self._dtype)
            program.add(attend, {})
            program.add(join, attended, (0, self._kv_heads))
        collected = program.add(
            kernels.address("collected", KIND[self._dtype], head_dim, KIND[mixed.dtype], lanes=small),
            {Collected.OUT: mixed.data_ptr(), Collected.HEADS: self._heads},
            EACH_ROW,
            rows_at=Collected.ROWS,
        )
        return attended, collected

    def _add_mlp(
        self, summed: dict[int, int], norm: PackedNorm, gates: PackedLinear, down: PackedLinear, residual: torch.Tensor
    ) -> tuple[int, int]:
        """Append the second norm and the MLP. Return the indices of the norm and of the last residual sum.

        Args:
            summed: kernel arguments for adding the attention's output to the residual stream.
            residual: memory of the residual stream after this addition.
        """
        kernels, memory, program, kind = self._kernels, self._memory, self._program, KIND[self._dtype]
        normed = memory.of("normed", gates.in_features, gates.input_dtype)
        added = program.add(
            kernels.address("normed", kind, True, KIND[normed.dtype]),
            {
                **summed,
                Residual.WEIGHTS: norm.weight.data_ptr(),
                Residual.EPSILON: bits(norm.epsilon),
                Residual.OUT: normed.data_ptr(),
            },
            EACH_ROW,
        )
        out = gates.add_to(program, normed, memory)
        gated = memory.of("gated", down.in_features, down.input_dtype)
        _add_gates(program, kernels, out, self._bias(gates), gated)
        out = down.add_to(program, gated, memory)
        return added, program.add(kernels.address("added", kind), self._sum_of(out, down, residual), EACH_ROW)

    def _sum_of(self, out: torch.Tensor, product: PackedLinear, residual: torch.Tensor) -> dict[int, int]:
        """Make the kernel arguments for adding a product's result ``out`` to the residual stream ``residual``."""
        return {
            Residual.DELTA: out.data_ptr(),
            Residual.DELTA_STRIDE: out.shape[1],
            Residual.BIAS: self._bias(product),
            Residual.SUM: residual.data_ptr(),
            Residual.WIDTH: residual.shape[1],
        }

    def _bias(self, layer: Any) -> int:
        """Return the address of the layer's bias in float32, or of zeros if the layer has no bias."""
        bias = torch.zeros(layer.out_features) if layer.bias is None else layer.bias.float().contiguous()
        self._held.append(bias)
        return bias.data_ptr()

    def layer(self, index: int, hidden: torch.Tensor, rope: Rope, view: View) -> torch.Tensor:
        """Run a layer; ``view`` computes its attention. Return the hidden states (1, n, hidden) after the layer."""
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
        answers = view.attend(index, q, k, v, self._scaling).contiguous()
        arguments[collected, Collected.X] = answers.data_ptr()
        program.run(collected, left + 1)
        return out

    def through(self, hidden: torch.Tensor, rope: Rope, place: InPlace) -> torch.Tensor:
        """Run all layers, which read and write their KV in the memory that ``place`` gives. Return the hidden states
        (1, n, hidden) after the last layer.
        """
        kernels, program, places, arguments = self._kernels, self._program, self._places.T, self._program.arguments
        rows, heads, group = hidden.shape[1], self._kv_heads, self._heads // self._kv_heads
        hidden, out = hidden.contiguous(), torch.empty_like(hidden)
        cos, sin = rope.cos.contiguous(), rope.sin.contiguous()
        entering = np.full(len(self._places), out.data_ptr())
        entering[0] = hidden.data_ptr()
        _, turned, attended, collected, _, _ = places
        memory = self._memory_of(place.blocks)
        length, strides = place.start + rows, (memory.head_stride, self._head_dim) * 2
        size = heads, group * rows, self._head_dim
        seen, first = newest_seen(rows, place.start, group), from_first(group * rows)
        q, queries = self._q, np.full(len(self._places), self._q.data_ptr())
        # queries get separate memory for each layer, because an observer reads them after the pass
        if place.observe is not None:
            q = torch.empty(len(self._places), 1, self._heads, rows, self._head_dim, dtype=self._dtype)
            queries = q.data_ptr() + np.arange(len(q)) * q[0].nbytes
        with kernels.lock:
            program.resize(rows)
            self._set(places, entering, out, cos, sin)
            arguments[turned, Rotated.QUERIES] = queries
            before = place.start * self._head_dim * hidden.element_size()
            arguments[turned, Rotated.KEYS], arguments[turned, Rotated.VALUES] = memory.addresses + before
            arguments[turned, Rotated.KV_HEAD] = memory.head_stride
            arguments[turned, Rotated.UNTURNED] = (
                memory.unturned if place.blocks.unturned is None else memory.unturned + before
            )
            arguments[attended] = kernels.attention.arguments(
                q, (0, 0), strides, size, length, seen, first, self._answers, self._lse, self._scaling
            )
            arguments[attended, Attention.QUERIES] = queries
            arguments[attended, Attention.KEYS], arguments[attended, Attention.VALUES] = memory.addresses
            arguments[collected, Collected.X] = self._answers.data_ptr()
            program.set_tiles(attended, heads * kernels.attention.pieces(length))
            # The program runs in two calls, because sleeping worker threads are woken only when a call begins. If some
            # workers were still going to sleep when the first call began, the second call wakes them.
            program.run(0, self._begun)
            program.run(self._begun)
        if place.observe is not None:
            for layer, own in enumerate(q):
                place.observe(layer, own, self._scaling)
        return out

    def _memory_of(self, blocks: Blocks) -> _KvMemory:
        """Return the addresses of a cache's KV. They are determined once for each cache."""
        found = self._known.get(blocks)
        if found is None:
            found = self._known[blocks] = _KvMemory.of(blocks)
        return found

    def _set(self, places: Any, entering: Any, out: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Set the kernel arguments for the input, output and RoPE of one layer or of all layers.

        Args:
            places: the layers' entries of ``_places``, (6,) for one layer or (6, layers).
            entering: the address of each layer's input.
            out: memory that every layer writes its output to.
            cos, sin: RoPE's cosines and sines of the new tokens.
        """
        entered, turned, _, _, added, left = places
        arguments = self._program.arguments
        arguments[entered, Residual.X] = arguments[added, Residual.X] = entering
        arguments[left, Residual.OUT] = out.data_ptr()
        arguments[turned, Rotated.COS], arguments[turned, Rotated.SIN] = cos.data_ptr(), sin.data_ptr()


@dataclass(frozen=True)
class _KvMemory:
    """Addresses and strides of all layers' KV in memory.

    Args:
        addresses: (2, layers), the addresses of each layer's keys and values.
        unturned: (layers,), the addresses of keys before RoPE; zeros if these keys are not stored.
        head_stride: the stride between heads, in numbers.
    """

    addresses: np.ndarray[Any, np.dtype[np.int64]]
    unturned: np.ndarray[Any, np.dtype[np.int64]]
    head_stride: int

    @classmethod
    def of(cls, blocks: Blocks) -> _KvMemory:
        unturned = np.zeros(len(blocks.keys), np.int64)
        if blocks.unturned is not None:
            (unturned,) = kv_addresses(blocks.unturned)
        return cls(kv_addresses(blocks.keys, blocks.values), unturned, blocks.keys[0].stride(0))


class ProgramBackend(Walk):
    """Runs passes on a processor: over at most ``MOST_ROWS`` rows through our own program, and over more rows through
    transformers' layers.

    Args:
        layers: the program for all layers.
        pieces, head, bits: as in ``Walk``.
    """

    def __init__(self, layers: FusedLayers, pieces: Pieces, head: Any = None, bits: int = 0) -> None:
        super().__init__(pieces, head, bits)
        self._layers = layers

    def layer(self, index: int, hidden: torch.Tensor, rope: Rope, view: View) -> torch.Tensor:
        if hidden.shape[1] > MOST_ROWS:
            return super().layer(index, hidden, rope, view)
        return self._layers.layer(index, hidden, rope, view)

    def forward(self, input_ids: torch.Tensor, view: View, rows: int | None = None) -> torch.Tensor:
        count = len(input_ids)
        place = view.in_place(count) if count <= MOST_ROWS and self._layers.attends else None
        if place is None:
            return super().forward(input_ids, view, rows)
        hidden = self._layers.through(self.pieces.embed(input_ids), self.pieces.rope(place.positions), place)
        return self.logits(hidden, rows)


class FusedExpert:
    """Runs one expert of a mixture as one program: gate and up projections, activation, down projection. The bits of a
    row do not depend on the other rows of the pass.

    Args:
        gates: the packed gate and up projections, without biases.
        down: the packed down projection, without a bias.
        kernels: the kernels that the layers were packed for.
        memory: working memory, shared with the other experts.
        nothing: zeros, used as the bias of the gates.
    """

    def __init__(
        self, gates: PackedLinear, down: PackedLinear, kernels: Native, memory: Memory, nothing: torch.Tensor
    ) -> None:
        # These objects are kept alive, because the program holds only their addresses.
        self._held = gates, down, memory, nothing
        self._x = memory.of("asked", gates.in_features, gates.input_dtype)
        self._program = program = Program(kernels)
        out = gates.add_to(program, self._x, memory)
        gated = memory.of("gated", down.in_features, down.input_dtype)
        _add_gates(program, kernels, out, nothing.data_ptr(), gated)
        self._out = down.add_to(program, gated, memory)[:, : down.out_features]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the expert's output for x (n, hidden), in float32. The next call of any expert overwrites the
        output.
        """
        rows = x.shape[0]
        self._x[:rows] = x
        self._program.resize(rows)
        self._program.run()
        return self._out[:rows]


def _add_gates(program: Program, kernels: Native, product: torch.Tensor, bias: int, gated: torch.Tensor) -> None:
    """Append the kernel of an MLP's activation, SiLU(gate) * up, to the program. ``bias`` is the address of the biases
    of gate and up.
    """
    width = gated.shape[1]
    pieces = -(-width // _GATE_PIECE)
    program.add(
        kernels.address("gated", KIND[gated.dtype]),
        {
            Gated.X: product.data_ptr(),
            Gated.X_STRIDE: product.shape[1],
            Gated.BIAS: bias,
            Gated.OUT: gated.data_ptr(),
            Gated.GATES: width,
            Gated.PIECE: _GATE_PIECE,
            Gated.PIECES: pieces,
        },
        (pieces, 0),
    )


def fuse_experts(model: Any, kernels: Native) -> None:
    """Let each expert of a packed transformers causal LM compute up to ``MOST_ROWS`` tokens in one call. Only experts
    like Llama's MLPs, with SiLU gates and no biases, can do so; other experts stay unchanged.
    """
    memory = Memory()
    for part in model.modules():
        if not isinstance(part, Experts) or part.opens is not silu_gate:
            continue
        pairs: list[Any] = list(zip(part.gates, part.down, strict=True))
        if any(type(layer) not in PACKED.values() or layer.bias is not None for pair in pairs for layer in pair):
            continue
        gates, down = pairs[0]
        if gates.in_features % kernels.lanes or down.in_features % kernels.lanes:
            continue
        nothing = torch.zeros(gates.out_features)
        part.fuse([FusedExpert(gates, down, kernels, memory, nothing) for gates, down in pairs], MOST_ROWS)


def fuse(model: Any, dtype: torch.dtype, weights: str = "stored") -> FusedLayers | None:
    """Fuse the layers of a packed transformers causal LM into one program; return None if the program cannot compute
    them.

    Args:
        weights: "8bit" or "4bit" uses quantized copies of the weights; "stored" uses the model's own weights.
    """
    layers = [parts_of(layer) for layer in model.model.layers]
    if not all(layers) or dtype not in KIND or (kernels := native.own()) is None:
        return None
    cos = model.model.rotary_emb(torch.empty(1, dtype=dtype), torch.zeros(1, 1, dtype=torch.long))[0]
    rotary, known = int(cos.shape[-1]), list(filter(None, layers))
    for parts in known:
        widths = parts["joint"].in_features, parts["down"].in_features
        if any(width % kernels.lanes for width in widths):
            return None
        if not _lanes(kernels.lanes, rotary // 2, parts["self_attn"].head_dim):
            return None
        if weights in BITS:
            parts |= {name: rounded(parts[name], weights) for name in _PRODUCTS}
    return FusedLayers(known, kernels, dtype, rotary) if known else None


def _lanes(most: int, *widths: int) -> int:
    """Return the largest of 16, 8 and 4 vector lanes that is at most ``most`` and divides all widths; 0 if none
    does.
    """
    return next((lanes for lanes in (16, 8, 4) if lanes <= most and not any(width % lanes for width in widths)), 0)


def parts_of(layer: Any) -> dict[str, Any] | None:
    """Return the parts of a packed layer, such as its products and norms, keyed by purpose; None if the program cannot
    compute the layer.
    """
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
        "joint": joint,
        "gates": gates,
        "output": products[2],
        "down": products[3],
        "norms": norms,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
    }


def _joint(part: Any, names: Sequence[str], joint_name: str) -> PackedLinear | None:
    """Return the product that computes the layers ``names`` of ``part`` at once. If there is none, return the layer
    ``joint_name``, or None if ``part`` has no such layer.
    """
    shares = [getattr(part, name, None) for name in names]
    if all(isinstance(share, JointLayer) for share in shares):
        return shares[0].product  # type: ignore[union-attr]
    return getattr(part, joint_name, None)
