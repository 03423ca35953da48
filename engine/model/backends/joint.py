"""Runs Llama's layers on a GPU with few kernel launches.

A pass over a few tokens reads all weights, and on a fast GPU its small operations take as long as its matrix products.
A layer in transformers takes 27 launches for a token, and about 45 with attention over a cache. Here one product
computes queries, keys and values, and another product computes the gate and up projections. RoPE takes three operations
for queries and keys together. The product of the down projection also adds its result to the residual stream. On an
H200, joining products alone shortens a layer of Llama-3.1-8B from 170 us to 155, because small products do not use the
memory's full bandwidth.

Model families with Llama's layers (``Family.plain``) use this backend. Products whose weights are rounded or stay in
host memory are not joined. Weights that have the values of a GGUF file take one launch for neighbouring layers of one
format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from engine.model.backends.walk import Walk
from engine.model.products import card_blocks, fixed
from engine.model.products.card_blocks import CardLinear
from engine.model.products.norms import FusedNorm
from engine.model.products.rotation import Rotation

if TYPE_CHECKING:
    from engine.model.pieces import Pieces, Rope
    from engine.model.view import View

_PARTS = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}

Product = Callable[[torch.Tensor], torch.Tensor]


class JointBlock:
    """Runs one decoder block, with joined matrix products.

    Args:
        block: transformers' block. The weights of linear layers whose products are joined become views of the joint
            weights.
    """

    def __init__(self, block: Any) -> None:
        attention, mlp = block.self_attn, block.mlp
        self._first, self._second = block.input_layernorm, block.post_attention_layernorm
        self._joint = _joined(attention, ("q_proj", "k_proj", "v_proj"), "qkv_proj")
        self._gates = _joined(mlp, ("gate_proj", "up_proj"), "gate_up_proj")
        self._output, self._down = attention.o_proj, mlp.down_proj
        self._norms = _norms_of(attention)
        config = attention.config
        # Hooks that copy the block's weights from host memory to the device before the block runs, and hooks that
        # switch back to the weights in host memory afterwards.
        self._before, self._after = block._forward_pre_hooks, block._forward_hooks
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._head_dim, self._scaling = attention.head_dim, attention.scaling

    def __call__(self, index: int, hidden: torch.Tensor, turn: Rotation | None, view: View) -> torch.Tensor:
        """Run the block as layer ``index`` over hidden states (1, n, hidden). ``turn`` rotates queries and keys by
        RoPE; None leaves them unrotated.
        """
        for bring in self._before.values():
            bring()
        try:
            return self._run(index, hidden, turn, view)
        finally:
            for put_back in self._after.values():
                put_back()

    def _run(self, index: int, hidden: torch.Tensor, turn: Rotation | None, view: View) -> torch.Tensor:
        hidden = hidden + self._attend(index, hidden, turn, view)
        return _add_product(hidden, self._down, self._gated(self._second(hidden)))

    def _attend(self, index: int, hidden: torch.Tensor, turn: Rotation | None, view: View) -> torch.Tensor:
        joint = self._joint(self._first(hidden)).unflatten(-1, (-1, self._head_dim)).transpose(1, 2)
        turning, v = joint.split([self._heads + self._kv_heads, self._kv_heads], dim=1)
        if self._norms:
            parts = turning.split([self._heads, self._kv_heads], dim=1)
            turning = torch.cat([norm(part) for norm, part in zip(self._norms, parts, strict=True)], dim=1)
        turned = turning if turn is None else turn(turning)
        q, k = turned.split([self._heads, self._kv_heads], dim=1)
        out: torch.Tensor = self._output(view.attend(index, q, k, v, self._scaling).transpose(1, 2).flatten(2))
        return out

    def _gated(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self._gates(x).chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)


def _add_product(hidden: torch.Tensor, layer: Any, x: torch.Tensor) -> torch.Tensor:
    """Add ``layer(x)`` to ``hidden`` in place."""
    if isinstance(layer, CardLinear):
        return layer.add_to(hidden, x)
    if type(layer) is not nn.Linear or layer.bias is not None:
        return hidden.add_(layer(x))
    hidden[0].addmm_(x[0], layer.weight.t())
    return hidden


def _joined(part: Any, names: Sequence[str], joint_name: str) -> Product:
    """Make a function that returns the concatenated outputs of the layers ``names`` of ``part``. One product computes
    them, unless a layer is quantized or its weights are in host memory. If ``part`` already has the joint layer
    ``joint_name``, return that layer.
    """
    own: Product | None = getattr(part, joint_name, None)
    if own is not None:
        return own
    layers = [getattr(part, name) for name in names]
    if (joint := card_blocks.joined(layers)) is not None:
        return joint
    if any(type(layer) is not nn.Linear or layer.weight.device.type == "cpu" for layer in layers):
        return lambda x: torch.cat([layer(x) for layer in layers], dim=-1)
    weight = torch.cat([layer.weight.detach() for layer in layers])
    for layer, rows in zip(layers, weight.split([layer.out_features for layer in layers]), strict=True):
        layer.weight = fixed(rows)
    biases = [layer.bias for layer in layers]
    bias = None if biases[0] is None else torch.cat([bias.detach() for bias in biases])
    return lambda x: functional.linear(x, weight, bias)


class JointBackend(Walk):
    """Runs passes through decoder blocks with joined matrix products.

    Args:
        joint: the ``JointBlock`` of each layer.
        pieces, bits: as in ``Walk``.
    """

    def __init__(self, joint: Sequence[JointBlock], pieces: Pieces, bits: int = 0) -> None:
        super().__init__(pieces, bits=bits)
        self._joint = joint

    def layer(self, index: int, hidden: torch.Tensor, rope: Rope, view: View) -> torch.Tensor:
        return self._joint[index](index, hidden, Rotation.of(rope.cos, rope.sin), view)

    def _through(self, input_ids: torch.Tensor, hidden: torch.Tensor, view: View) -> torch.Tensor:
        pieces, positions = self.pieces, view.positions(len(input_ids))
        ropes = [] if positions is None else pieces.on_devices(pieces.rope(positions))
        turns: dict[int, Rotation] = {}
        for index, block in enumerate(self._joint):
            hidden, part = pieces.carry(hidden, index), pieces.part_of(index)
            # The rotation is made when the first layer of a device is reached, because a CUDA graph records one device
            # at a time.
            if ropes and part not in turns:
                turns[part] = Rotation.of(ropes[part].cos, ropes[part].sin)
            hidden = block(index, hidden, turns.get(part), view)
        return hidden


def joint_blocks(blocks: Sequence[Any]) -> list[JointBlock] | None:
    """Make a ``JointBlock`` of each of transformers' decoder blocks, which are on GPUs. Return None if the parts of a
    block differ from Llama's, or if a norm is not a ``FusedNorm``.
    """
    return [JointBlock(block) for block in blocks] if all(map(_is_plain, blocks)) else None


def _is_plain(block: Any) -> bool:
    names = {name for name, part in block.named_children() if not isinstance(part, nn.Dropout)}
    if names != _PARTS or block.self_attn.config.hidden_act != "silu":
        return False
    norms = _norms_of(block.self_attn)
    used = (block.input_layernorm, block.post_attention_layernorm, *norms)
    return len(norms) != 1 and all(isinstance(norm, FusedNorm) for norm in used)


def _norms_of(attention: Any) -> list[Any]:
    """Return the norms of queries and of keys; an empty list if there are none."""
    return [norm for name in ("q_norm", "k_norm") if (norm := getattr(attention, name, None)) is not None]
