"""A text that is read once, and many short rows behind it in one pass.

Each row sees the text and itself alone, and its positions go on from the end of the text. What the rows look up in the
text is one product for all of them, which no padding and no mask makes dearer; what they look up in themselves is
computed in bins of one length.
Knows no adapter and no words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, LlamaForCausalLM
from transformers.cache_utils import DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

BIN = 384
"""Tokens of a bin; no row is longer."""
ATTENTION = "behind_a_text"

LOOKING = {21: (8,), 22: (7,), 23: (2,)}
"""Heads by layer that are taught where to look: of all, those that the base model lets look at the passage that is
asked for most often as an answer begins (10 to 13 % of the natural questions, after 4,096 tokens)."""
LOOKING_WEIGHT = 0.2
_LEAST_SHARE = 1e-4

Layers = list[tuple[Tensor, Tensor]]
"""Keys and values (1, kv_heads, seq, head_dim) for every layer."""


@dataclass(frozen=True)
class Looks:
    """Where tokens of the rows should look in the text.

    queries: (n,) tokens of the flat rows. places: (n,) tokens of the text. heads: by layer, those that are taught.
    shares: of each of them, (n,), as a pass has found them.
    """

    queries: Tensor
    places: Tensor
    heads: Mapping[int, Sequence[int]]
    shares: list[Tensor] = field(default_factory=list)

    def note(self, layer: int, shares: Tensor) -> None:
        """Takes what the heads of a layer give to every token: (kv_heads, groups, tokens, seen)."""
        of_heads = shares.flatten(0, 1)
        self.shares.extend(of_heads[head, self.queries, self.places] for head in self.heads.get(layer, ()))

    def loss(self) -> Tensor:
        """How far the heads together are from looking there."""
        return -torch.stack(self.shares).mean(0).clamp(min=_LEAST_SHARE).log().mean()


@dataclass(frozen=True)
class Bins:
    """Rows behind a text, one row behind the other; they lie in bins only where rows attend to themselves.

    ids, positions: (tokens,). places: (tokens,) where in the flat bins a token lies.
    bias: (bins, 1, length, length) is added to the scores of a bin's tokens among themselves.
    """

    ids: Tensor
    positions: Tensor
    places: Tensor
    bias: Tensor
    looks: Looks | None = None

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], begin: int, dtype: torch.dtype, looks: Looks | None = None) -> Bins:
        """Bins of BIN tokens, each filled with as many rows as fit; `begin` is the position of a row's first token."""
        used: list[int] = []
        places = []
        for row in rows:
            number = next((number for number, filled in enumerate(used) if filled + len(row) <= BIN), len(used))
            if number == len(used):
                used.append(0)
            start = number * BIN + used[number]
            used[number] += len(row)
            places.append(torch.arange(start, start + len(row)))
        # A slot that stays empty is a row of its own: it sees itself, and nobody sees it.
        owner = torch.arange(len(used) * BIN).neg() - 1
        for number, slots in enumerate(places):
            owner[slots] = number
        owner = owner.view(len(used), BIN)
        seen = (owner[:, :, None] == owner[:, None, :]).tril()
        return cls(
            torch.tensor([token for row in rows for token in row]),
            torch.cat([torch.arange(begin, begin + len(row)) for row in rows]),
            torch.cat(places),
            as_bias(seen[:, None], dtype),
            looks,
        )

    def spread(self, states: Tensor) -> Tensor:
        """(..., tokens, width) as (..., bins, length, width), with zeros in empty slots."""
        count, length = self.bias.shape[0], self.bias.shape[2]
        slots = states.new_zeros(*states.shape[:-2], count * length, states.shape[-1])
        return slots.index_copy(-2, self.places, states).unflatten(-2, (count, length))

    def gather(self, states: Tensor) -> Tensor:
        """(..., bins, length, width) as (..., tokens, width)."""
        return states.flatten(-3, -2).index_select(-2, self.places)


def as_bias(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)


def prepare(model: LlamaForCausalLM) -> None:
    """Gives a model the attention of this file; without bins it stays the ordinary one."""
    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)


@torch.no_grad()
def read(model: LlamaForCausalLM, ids: Sequence[int], segment: int = 2048) -> Layers:
    """Keys and values of a text, without gradient."""
    cache: Any = DynamicCache(config=model.config)  # every layer is of the kind with keys and values
    for start in range(0, len(ids), segment):
        model.model(input_ids=torch.tensor([ids[start : start + segment]]), past_key_values=cache, use_cache=True)
    return [(layer.keys, layer.values) for layer in cache.layers]


def hidden_behind(model: LlamaForCausalLM, layers: Layers, bins: Bins) -> Tensor:
    """Hidden states (tokens, width) of the rows behind a text that has been read."""
    states: Tensor = model.model(
        input_ids=bins.ids[None],
        position_ids=bins.positions[None],
        attention_mask=torch.zeros(1, 1, 1, 1),
        use_cache=False,
        bins=bins,
        layers=layers,
    ).last_hidden_state
    return states[0]


def hidden_together(model: LlamaForCausalLM, text: Sequence[int], bins: Bins) -> Tensor:
    """The same with the text in the pass, so that gradient goes through its keys and values too."""
    states: Tensor = model.model(
        input_ids=torch.cat([torch.tensor(text), bins.ids])[None],
        position_ids=torch.cat([torch.arange(len(text)), bins.positions])[None],
        attention_mask=torch.zeros(1, 1, 1, 1),
        use_cache=False,
        bins=bins,
    ).last_hidden_state
    return states[0, len(text) :]


def loss(model: LlamaForCausalLM, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """Mean cross entropy of the tokens of weight; `hidden` (tokens, width) foresees `ids` (tokens,) one place on."""
    wanted = weights[1:].nonzero()[:, 0]
    logits = model.lm_head(hidden[wanted]).float()
    losses = functional.cross_entropy(logits, ids[wanted + 1], reduction="none")
    part = weights[wanted + 1]
    return (losses * part).sum() / part.sum()


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *,
    bins: Bins | None = None, layers: Layers | None = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention of a Llama layer; query (1, heads, seq, head_dim), key and value (1, kv_heads, seq, head_dim)."""
    if bins is None:
        attended, _ = sdpa_attention_forward(module, query, key, value, mask, **kwargs)
        return attended, None
    query, place = query * kwargs["scaling"], int(module.layer_idx)  # type: ignore[arg-type]
    if layers is not None:
        keys, values = bins.spread(key[0]), bins.spread(value[0])
        return _behind(query, keys, values, *layers[place], bins, place), None
    length = query.shape[2] - len(bins.ids)
    read_keys, read_values = key[:, :, :length], value[:, :, :length]
    text = functional.scaled_dot_product_attention(
        query[:, :, :length], read_keys, read_values, is_causal=True, scale=1.0, enable_gqa=True
    )
    keys, values = bins.spread(key[0, :, length:]), bins.spread(value[0, :, length:])
    rows = _behind(query[:, :, length:], keys, values, read_keys, read_values, bins, place)
    return torch.cat([text.transpose(1, 2), rows], 1), None


def _behind(
    query: Tensor, keys: Tensor, values: Tensor, read_keys: Tensor, read_values: Tensor, bins: Bins, layer: int
) -> Tensor:
    """What the rows' tokens attend to, (1, tokens, heads, head_dim): the whole text and their own row.

    query: (1, heads, tokens, head_dim). keys, values: (kv_heads, bins, length, head_dim).
    """
    kv_heads, begin = keys.shape[0], read_keys.shape[2]
    asked = query[0].unflatten(0, (kv_heads, -1))
    groups = asked.shape[1]
    in_text = (asked.flatten(1, 2) @ read_keys[0].mT).unflatten(1, (groups, -1))
    in_rows = bins.spread(asked).transpose(1, 2).flatten(2, 3) @ keys.mT
    in_rows = bins.gather((in_rows.unflatten(2, (groups, -1)) + bins.bias).transpose(1, 2))
    shares = torch.cat([in_text, in_rows], -1).softmax(-1)
    if bins.looks is not None:
        bins.looks.note(layer, shares)
    of_text = (shares[..., :begin].flatten(1, 2) @ read_values[0]).unflatten(1, (groups, -1))
    of_rows = bins.spread(shares[..., begin:]).transpose(1, 2).flatten(2, 3) @ values
    found = of_text + bins.gather(of_rows.unflatten(2, (groups, -1)).transpose(1, 2))
    return found.permute(2, 0, 1, 3).reshape(1, query.shape[2], query.shape[1], -1)
