"""A decoder layer for a few rows in two calls: everything before its attention, and everything behind it.

transformers walks a layer in some forty small operations, which in a step of one token cost more than the layer itself
where the model is small. Here the packed products (``linear``) and what lies between them (``kernels.rowwise``) are two
programs of kernels, made once. Families whose layers are Llama's up to names (``architectures``) share this walk.
All others go through transformers, as do layers with a part that is not known here, and passes of more rows.

Between what enters and leaves it a layer computes in float32. A row has the same bits whatever rows come with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from engine.model.kernels import cpu
from engine.model.kernels.cpu import Memory, Program, each_row

if TYPE_CHECKING:
    from engine.model.attention import KeyValues

_GATE_PIECE = 1024  # numbers of a tile


class FusedLayer:
    """One layer of transformers, packed, for at most ``cpu.MOST_ROWS`` rows.

    Args:
        parts: of the layer, as ``linear.parts_of`` found them.
        kernels: that its products were packed for.
        memory: which it shares with the other layers.
        dtype: of hidden states.
        rotary: numbers of a head that RoPE turns.
    """

    def __init__(
        self, parts: dict[str, Any], kernels: cpu.Native, memory: Memory, dtype: torch.dtype, rotary: int
    ) -> None:
        attention = parts["self_attn"]
        self._index, self._scaling, self._dtype = attention.layer_idx, attention.scaling, dtype
        self._heads, self._kv_heads, self._head_dim = parts["heads"], parts["kv_heads"], attention.head_dim
        self._held: list[Any] = [memory, parts]  # the programs know their addresses
        kind, head_dim = cpu.KIND[dtype], self._head_dim
        joint, output, gates, down = (parts[name] for name in ("joint", "output", "gates", "down"))
        hidden, first, second = joint.in_features, parts["input_layernorm"], parts["post_attention_layernorm"]
        small = _lanes(kernels.lanes, rotary // 2, head_dim)
        normed, mixed = memory.of("normed", hidden), memory.of("mixed", output.in_features)

        self._before = before = Program(kernels)
        self._x = before.add(
            kernels.address("normed", kind, False),
            [0, 0, 0, 0, 0, first.weight.data_ptr(), cpu.bits(first.epsilon), normed.data_ptr(), hidden],
            each_row,
        )
        out = joint.add_to(before, normed, memory)
        norms = parts["norms"]
        self._turned = before.add(
            kernels.address("rotated", kind, head_dim, rotary, bool(norms), lanes=small),
            [
                *(out.data_ptr(), out.shape[1], self._bias(joint), 0, 0, 0, 0, self._heads, self._kv_heads),
                *([norm.weight.data_ptr() for norm in norms] or [0, 0]),
                cpu.bits(norms[0].epsilon if norms else 0.0),
            ],
            each_row,
            rows_at=6,
        )

        self._behind = behind = Program(kernels)
        self._answers = behind.add(
            kernels.address("collected", kind, head_dim, lanes=small),
            [0, mixed.data_ptr(), 0, self._heads],
            each_row,
            rows_at=2,
        )
        out, kept = output.add_to(behind, mixed, memory), memory.of("kept", hidden)
        self._residual = behind.add(
            kernels.address("normed", kind, True),
            [
                *(0, out.data_ptr(), out.shape[1], self._bias(output), kept.data_ptr()),
                *(second.weight.data_ptr(), cpu.bits(second.epsilon), normed.data_ptr(), hidden),
            ],
            each_row,
        )
        out, gated = gates.add_to(behind, normed, memory), memory.of("gated", down.in_features)
        pieces = -(-down.in_features // _GATE_PIECE)
        behind.add(
            kernels.address("gated"),
            [
                *(out.data_ptr(), out.shape[1], self._bias(gates), gated.data_ptr()),
                *(down.in_features, _GATE_PIECE, pieces),
            ],
            lambda rows: rows * pieces,
        )
        out = down.add_to(behind, gated, memory)
        self._result = behind.add(
            kernels.address("added", kind),
            [0, out.data_ptr(), out.shape[1], self._bias(down), kept.data_ptr(), 0, 0, 0, hidden],
            each_row,
        )

    def _bias(self, layer: Any) -> int:
        """Address of a product's bias in float32."""
        bias = torch.zeros(layer.out_features) if layer.bias is None else layer.bias.float().contiguous()
        self._held.append(bias)
        return bias.data_ptr()

    def __call__(self, hidden: torch.Tensor, rope: Any, kv: KeyValues) -> torch.Tensor:
        """Hidden states (1, n, hidden) behind the layer, attending through ``kv``; ``rope``: a ``decoder.Rope``."""
        rows, heads, kv_heads = hidden.shape[1], self._heads, self._kv_heads
        hidden, cos, sin = hidden.contiguous(), rope.cos.contiguous(), rope.sin.contiguous()
        joint = torch.empty(1, heads + 2 * kv_heads, rows, self._head_dim, dtype=self._dtype)
        turned = self._turned
        self._before.run(
            rows,
            [
                (self._x, 0, hidden.data_ptr()),
                *((turned, 3, cos.data_ptr()), (turned, 4, sin.data_ptr()), (turned, 5, joint.data_ptr())),
            ],
        )
        q, k, v = joint.split((heads, kv_heads, kv_heads), dim=1)
        answers = kv.attend(self._index, q, k, v, self._scaling).contiguous()
        out = torch.empty_like(hidden)
        self._behind.run(
            rows,
            [
                *((self._answers, 0, answers.data_ptr()), (self._residual, 0, hidden.data_ptr())),
                (self._result, 7, out.data_ptr()),
            ],
        )
        return out


def fuse(model: Any, found: list[dict[str, Any] | None], dtype: torch.dtype) -> list[FusedLayer] | None:
    """The layers of a packed transformers causal LM; None where one of them is not as it is known here.

    Args:
        found: the parts of each.
    """
    if not all(found) or dtype not in cpu.KIND or (kernels := cpu.native()) is None:
        return None
    cos = model.model.rotary_emb(torch.empty(1, dtype=dtype), torch.zeros(1, 1, dtype=torch.long))[0]
    memory, rotary, layers = Memory(), int(cos.shape[-1]), []
    for parts in filter(None, found):
        widths = parts["joint"].in_features, parts["down"].in_features
        if any(width % kernels.lanes for width in widths):
            return None
        if not _lanes(kernels.lanes, rotary // 2, parts["self_attn"].head_dim):
            return None
        layers.append(FusedLayer(parts, kernels, memory, dtype, rotary))
    return layers or None


def _lanes(most: int, *widths: int) -> int:
    """The widest vectors that divide all widths; 0 if there are none."""
    return next((lanes for lanes in (16, 8, 4) if lanes <= most and not any(width % lanes for width in widths)), 0)
