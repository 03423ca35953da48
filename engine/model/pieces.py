"""Gives access to the pieces of a transformers causal LM that a pass consists of: embedding, RoPE, one block, head.

Passes use transformers' modules only through this module and ``attention``. ``architectures`` refuses models for which
the pieces would compute wrongly. ``backends`` compose passes from the pieces.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from engine.devices import KINDS, pinned
from engine.model.architectures import (
    embedding_multiplier,
    inputs_of_layers,
    kv_sources,
    logits_cap,
    logits_divisor,
    rope_kinds,
    rotated_layers,
    sliding_layers,
)
from engine.model.families import FAMILIES, head_dim_of
from engine.model.graphs import carried, sent
from engine.model.products.rotation import Rotation

if TYPE_CHECKING:
    from engine.model.kv_shape import Split
    from engine.model.view import View

# Kinds of RoPE whose frequencies depend on the largest position in a call.
_LENGTH_DEPENDENT_ROPE = ("longrope", "dynamic")

ROPE_NAMES = ("rotary_emb", "pos_emb")
"""Names that a model's RoPE module may have in transformers."""


class Rope(NamedTuple):
    """The positions of tokens as layers take them: with the cosines and sines of RoPE.

    ``cos`` and ``sin`` of RoPE are (1, n, rotary_dim) each. ``position_ids`` are (1, n). Layers with a sliding window
    use ``sliding_cos`` and ``sliding_sin``, which in most families are the same tensors as ``cos`` and ``sin``.
    ``inputs`` (1, n, layers, width) are the tokens' per-layer embeddings; None in models without them.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    position_ids: torch.Tensor
    sliding_cos: torch.Tensor
    sliding_sin: torch.Tensor
    inputs: torch.Tensor | None = None

    def part(self, start: int, stop: int) -> Rope:
        """The positions of the tokens [start, stop) of the pass."""
        inputs = None if self.inputs is None else self.inputs[:, start:stop]
        return Rope(*(part[:, start:stop] for part in self._placed))._replace(inputs=inputs)

    def on(self, device: torch.device) -> Rope:
        """The positions on another device. A tensor that two fields share is sent only once."""
        parts = {id(part): part for part in self._placed}
        there = {name: sent(part, device) for name, part in parts.items()}
        inputs = None if self.inputs is None else sent(self.inputs, device)
        return Rope(*(there[id(part)] for part in self._placed))._replace(inputs=inputs)

    @property
    def _placed(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The tensors that do not depend on the tokens themselves: all fields except ``inputs``."""
        return self.cos, self.sin, self.position_ids, self.sliding_cos, self.sliding_sin


class _OtherLayersKv:
    """Replaces the dict through which transformers' Gemma 4 shares keys and values between layers. Stores nothing,
    because our attention reads another layer's keys and values from the cache.
    """

    def __setitem__(self, kind: str, kv: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Do nothing, because the cache has already stored the keys and values."""

    def __getitem__(self, kind: str) -> tuple[None, None]:
        return None, None


class _NoRope:
    """Replaces the RoPE module in models without RoPE. Its cosines are 1 and its sines 0, so nothing is rotated.

    Args:
        width: head_dim.
    """

    rope_type, attention_scaling = "none", 1.0

    def __init__(self, width: int) -> None:
        self._width = width

    def __call__(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cos = x.new_ones(*positions.shape, self._width)
        return cos, torch.zeros_like(cos)


class Pieces:
    """Gives access to the pieces of a loaded model.

    Args:
        model: a transformers causal LM with the attention implementation of ``engine.model.attention``.
        window: maximum tokens of a context; some kinds of RoPE depend on it.
        dtype: dtype of the activations; None takes the dtype of the weights. Packed weights may have a different dtype.
        split: the device of each layer; None puts all layers on the model's device.
    """

    def __init__(self, model: Any, window: int, dtype: torch.dtype | None = None, split: Split | None = None) -> None:
        self.model = model
        self.config = model.config
        self.window = window
        self.device: torch.device = model.device
        self.split = split
        self.dtype: torch.dtype = dtype or model.dtype
        self.blocks = list(model.model.layers)
        self.last_norm, self.last_product = (
            getattr(model.model, FAMILIES[self.config.model_type].last_norm),
            model.lm_head,
        )
        ropes = (getattr(model.model, name, None) for name in ROPE_NAMES)
        self._rope = next((rope for rope in ropes if rope is not None), _NoRope(head_dim_of(self.config)))
        self._apply_rope = sys.modules[type(model.model).__module__].apply_rotary_pos_emb
        self._rotated = rotated_layers(self.config)
        left_out = FAMILIES[self.config.model_type].rope_left_out
        self._told_rope = self._rotated if left_out else (True,) * len(self._rotated)
        self._sliding = frozenset(sliding_layers(self.config))
        self._rope_kinds: list[tuple[str, ...]] = [(kind,) for kind in rope_kinds(self.config)] or [()]
        self._embedding_multiplier = embedding_multiplier(self.config)
        self._logits_divisor, self._logits_cap = logits_divisor(self.config), logits_cap(self.config)
        self._inputs = inputs_of_layers(self.config)
        self._last_rope: tuple[torch.Tensor, Rope] | None = None
        self._last_turn: tuple[torch.Tensor, Rotation] | None = None
        self.states: torch.Tensor = torch.empty(1, 0, 0)
        """The hidden states (1, n, hidden) of the tokens whose logits were computed last, after the last norm."""
        self._shares: dict[str, Any] = {"shared_kv_states": _OtherLayersKv()} if kv_sources(self.config) else {}
        types = self._rope.rope_type
        named = types.values() if isinstance(types, dict) else (types,)
        self.rope_depends_on_window = not {*named}.isdisjoint(_LENGTH_DEPENDENT_ROPE)

    @property
    def token_device(self) -> torch.device:
        """The device of logits and tokens. This is the CPU if the model's device lacks float64, in which tokens are
        drawn. Drawn tokens stay on this device until a pass reads them.
        """
        return self.device if KINDS[self.device.type].has_64_bits else torch.device("cpu")

    def part_of(self, layer: int) -> int:
        """The index of the device of a layer."""
        return self.split.part_of[layer] if self.split else 0

    def scaling(self, layer: int) -> float:
        """The factor that the products of a layer's queries and keys are multiplied by."""
        return float(self.blocks[layer].self_attn.scaling)

    @property
    def num_layers(self) -> int:
        return len(self.blocks)

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Embed token ids (n,) as hidden states (1, n, hidden)."""
        hidden: torch.Tensor = self.model.model.embed_tokens(input_ids.to(self.device).unsqueeze(0))
        return hidden if self._embedding_multiplier == 1.0 else hidden * self._embedding_multiplier

    def with_inputs(self, rope: Rope, input_ids: torch.Tensor, hidden: torch.Tensor) -> Rope:
        """Return the tokens' positions ``rope`` with the per-layer embeddings of the tokens ``input_ids`` (n,) as
        ``inputs``. If the model has no such embeddings, ``rope`` is returned unchanged. ``hidden`` (1, n, hidden) are
        the tokens' ordinary embeddings.
        """
        if not self._inputs:
            return rope
        text = self.model.model
        own = text.get_per_layer_inputs(input_ids.to(self.device).unsqueeze(0), hidden)
        return rope._replace(inputs=text.project_per_layer_inputs(hidden, own))

    def rope(self, position_ids: torch.Tensor) -> Rope:
        """Compute RoPE's cosines and sines of positions (n,), for all kinds of layers."""
        positions = position_ids.unsqueeze(0)
        tables = [self._cos_sin(positions, *kind) for kind in self._rope_kinds]
        return Rope(*tables[0], positions, *tables[-1])

    def _cos_sin(self, positions: torch.Tensor, *kind: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute RoPE's cosines and sines of positions (1, n). If each kind of layers has its own RoPE, ``kind`` names
        the kind.
        """
        probe = torch.empty(1, dtype=self.dtype, device=self.device)
        if not self.rope_depends_on_window:
            cos, sin = self._rope(probe, positions, *kind)
            return cos, sin
        # Some kinds of RoPE choose their frequencies by the largest position in a call. The last position of the window
        # is therefore appended: all calls then use the same frequencies, and their keys are consistent.
        last = positions.new_full((1, 1), self.window - 1)
        cos, sin = self._rope(probe, torch.cat([positions, last], dim=1), *kind)
        return cos[:, :-1], sin[:, :-1]

    def _cos_sin_of(self, layer: int, rope: Rope) -> tuple[torch.Tensor, torch.Tensor]:
        return (rope.sliding_cos, rope.sliding_sin) if layer in self._sliding else (rope.cos, rope.sin)

    def no_rope(self, count: int) -> Rope:
        """Make the positions for a pass in which RoPE rotates no queries and keys: every token has position 0, cosines
        of 1 and sines of 0.
        """
        rope = self.rope(torch.zeros(1, dtype=torch.long, device=self.device))
        wide, near = (torch.ones_like(cos).expand(1, count, -1) for cos in (rope.cos, rope.sliding_cos))
        positions = rope.position_ids.expand(1, count)
        return Rope(wide, torch.zeros_like(wide), positions, near, torch.zeros_like(near))

    def rotate(self, layer: int, x: torch.Tensor, positions: torch.Tensor, queries: int = 0) -> torch.Tensor:
        """Rotate x (1, heads, n, head_dim), which a layer computed with ``no_rope``, to positions (n,).

        Args:
            queries: number of query heads in x, which come first. All other heads are key heads.
        """
        if not self._rotated[layer]:
            return x
        family = FAMILIES[self.config.model_type]
        if family.plain and KINDS[x.device.type].gpu:
            return self._turn_of(positions)(x)
        cos, sin = self._cos_sin_of(layer, self._rope_of(positions))
        names = family.norms_after_rope
        if names is None:
            return self._rotate(x, cos, sin)
        # This family applies the norms of queries and keys after RoPE, but here the layer has already applied them.
        # RoPE does not change the L2 norm of a vector, so only the multiplication by the norm's weights is undone, and
        # done again after RoPE. Cosines and sines have the factor ``attention_scaling``, which a norm after RoPE would
        # cancel, so the result is divided by this factor.
        block = self.blocks[layer].self_attn
        of_queries, of_keys = (getattr(block, name).weight.float() for name in names)
        weights = torch.cat([of_queries.expand(queries, 1, -1), of_keys.expand(x.shape[1] - queries, 1, -1)])
        bare = x.float() / weights.where(weights != 0, 1.0)
        turned = self._rotate(bare, cos.float(), sin.float()) * weights / self._rope.attention_scaling
        return turned.to(x.dtype)

    def _rope_of(self, positions: torch.Tensor) -> Rope:
        """Return ``rope(positions)``. The result for the most recent tensor is cached, because all layers of a pass
        need the same result.
        """
        if self._last_rope is None or self._last_rope[0] is not positions:
            self._last_rope = positions, self.rope(positions)
        return self._last_rope[1]

    def _turn_of(self, positions: torch.Tensor) -> Rotation:
        """Return the ``Rotation`` for these positions. The result for the most recent tensor is cached. The result is
        right only for families whose layers all rotate in the same way.
        """
        if self._last_turn is None or self._last_turn[0] is not positions:
            rope = self.rope(positions)
            self._last_turn = positions, Rotation.of(rope.cos, rope.sin)
        return self._last_turn[1]

    def _rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        if FAMILIES[self.config.model_type].rotates_apart:
            turned: torch.Tensor = self._apply_rope(x, cos, sin)
            return turned
        both: tuple[torch.Tensor, torch.Tensor] = self._apply_rope(x, x[:, :1], cos, sin)
        return both[0]

    def block(self, block: Any, index: int, hidden: torch.Tensor, rope: Rope, view: View) -> torch.Tensor:
        """Run transformers' ``block`` as layer ``index`` over hidden states (1, n, hidden). Its attention goes through
        ``view``.
        """
        out: torch.Tensor = block(
            hidden,
            attention_mask=None,
            position_ids=rope.position_ids,
            position_embeddings=self._cos_sin_of(index, rope) if self._told_rope[index] else None,
            kv=view,
            **self._shares,
            **({} if rope.inputs is None else {"per_layer_input": rope.inputs[:, :, index]}),
        )
        return out

    def carry(self, hidden: torch.Tensor, layer: int) -> torch.Tensor:
        """Copy hidden states to the device of a layer, if they are on another device."""
        return hidden if self.split is None else carried(hidden, self.split.devices[self.split.part_of[layer]])

    def on_devices(self, rope: Rope) -> list[Rope]:
        """Copy the positions to every device with layers, in the order of ``split.devices``."""
        devices = self.split.devices[1:] if self.split else ()
        return [rope, *(rope.on(device) for device in devices)]

    def logits(self, hidden: torch.Tensor, product: Any) -> torch.Tensor:
        """Compute logits (n, vocabulary) in float32 from the hidden states (1, n, hidden) after the last layer. The
        result is on ``token_device``.

        Args:
            product: function that multiplies hidden states by the head's weights.
        """
        hidden = hidden if self.split is None else carried(hidden, self.device)
        self.states = self.last_norm(hidden)
        logits: torch.Tensor = product(self.states)[0]
        logits = logits if self._logits_divisor == 1.0 else logits / self._logits_divisor
        logits = logits.float()
        if self._logits_cap is not None:
            logits = torch.tanh(logits / self._logits_cap) * self._logits_cap
        return logits.to(self.token_device)

    def span(self, start: int, count: int) -> torch.Tensor:
        """Make a tensor of the positions from ``start`` to ``start + count - 1`` on the model's device."""
        return torch.arange(start, start + count, device=self.device)

    def ids(self, tokens: Sequence[int]) -> torch.Tensor:
        """Make a tensor of token ids on ``token_device``."""
        return to_device(tokens, self.token_device)


def to_device(numbers: Sequence[int], device: torch.device) -> torch.Tensor:
    """Make an int64 tensor (n,) of integers on a device. The host need not wait for a GPU, because the GPU fetches the
    integers from pinned memory.
    """
    if KINDS[device.type].streams:
        return pinned(partial(torch.tensor, numbers, dtype=torch.long), device).to(device, non_blocking=True)
    return torch.tensor(numbers, dtype=torch.long, device=device)
