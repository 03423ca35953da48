"""Processes many short rows after a text in one pass. The text itself is read only once.

Each row only sees the text and itself, and its positions continue from the end of the text. The attention of all rows
to the text is a single product without padding or mask. The attention of rows to themselves is computed in bins of
equal length. Knows nothing about the adapter or about words.
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
"""Tokens of a bin, and so the maximum length of a row."""
ATTENTION = "behind_a_text"

LOOKING = {21: (8,), 22: (7,), 23: (2,)}
"""Heads, keyed by layer, that are trained to attend to the passage in question. In the base model these heads attend to
the right passage most often at the beginning of an answer (10 to 13 % of the natural questions, after 4,096 tokens).
"""
LOOKING_WEIGHT = 0.2
_LEAST_SHARE = 1e-4

Layers = list[tuple[Tensor, Tensor]]
"""Keys and values (1, kv_heads, seq, head_dim) for every layer."""


@dataclass(frozen=True)
class Looks:
    """The places in the text that tokens of the rows should attend to.

    queries: (n,) tokens of the concatenated rows. places: (n,) tokens of the text.
    heads: trained heads, keyed by layer.
    shares: for each of these heads, the attention weights (n,) of the places in the current pass.
    """

    queries: Tensor
    places: Tensor
    heads: Mapping[int, Sequence[int]]
    shares: list[Tensor] = field(default_factory=list)

    def note(self, layer: int, shares: Tensor) -> None:
        """Store the attention weights of a layer's trained heads. shares: (kv_heads, groups, tokens, seen)."""
        of_heads = shares.flatten(0, 1)
        self.shares.extend(of_heads[head, self.queries, self.places] for head in self.heads.get(layer, ()))

    def loss(self) -> Tensor:
        """Return the negative log of the trained heads' mean attention weight on the right places."""
        return -torch.stack(self.shares).mean(0).clamp(min=_LEAST_SHARE).log().mean()


@dataclass(frozen=True)
class Bins:
    """Concatenated rows after a text. They are put into bins only for the attention of rows to themselves.

    ids, positions: (tokens,). places: (tokens,) index of each token in the concatenated bins.
    bias: (bins, 1, length, length), added to the scores between tokens of a bin.
    """

    ids: Tensor
    positions: Tensor
    places: Tensor
    bias: Tensor
    looks: Looks | None = None

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], begin: int, dtype: torch.dtype, looks: Looks | None = None) -> Bins:
        """Fill bins of BIN tokens with as many rows as fit. `begin` is the position of each row's first token."""
        used: list[int] = []
        places = []
        for row in rows:
            number = next((number for number, filled in enumerate(used) if filled + len(row) <= BIN), len(used))
            if number == len(used):
                used.append(0)
            start = number * BIN + used[number]
            used[number] += len(row)
            places.append(torch.arange(start, start + len(row)))
        # An empty slot counts as a separate row. It only sees itself, and no token sees it.
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
        """Put states (..., tokens, width) into bins (..., bins, length, width). Empty slots are zero."""
        count, length = self.bias.shape[0], self.bias.shape[2]
        slots = states.new_zeros(*states.shape[:-2], count * length, states.shape[-1])
        return slots.index_copy(-2, self.places, states).unflatten(-2, (count, length))

    def gather(self, states: Tensor) -> Tensor:
        """Undo `spread`: (..., bins, length, width) becomes (..., tokens, width)."""
        return states.flatten(-3, -2).index_select(-2, self.places)


def as_bias(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)


def prepare(model: LlamaForCausalLM) -> None:
    """Give a model the attention of this module. Without bins, the attention is the ordinary one."""
    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)


@torch.no_grad()
def read(model: LlamaForCausalLM, ids: Sequence[int], segment: int = 2048) -> Layers:
    """Compute the keys and values of a text, without gradient."""
    # Any, because the library declares keys and values as ``Tensor | None``; here they are tensors.
    cache: Any = DynamicCache(config=model.config)
    for start in range(0, len(ids), segment):
        model.model(input_ids=torch.tensor([ids[start : start + segment]]), past_key_values=cache, use_cache=True)
    return [(layer.keys, layer.values) for layer in cache.layers]


def hidden_behind(model: LlamaForCausalLM, layers: Layers, bins: Bins) -> Tensor:
    """Return the hidden states (tokens, width) of the rows after a text that `read` has processed."""
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
    """Return the hidden states of the rows as `hidden_behind` does. But process the text in the same pass, so that the
    text's keys and values get gradients too.
    """
    states: Tensor = model.model(
        input_ids=torch.cat([torch.tensor(text), bins.ids])[None],
        position_ids=torch.cat([torch.arange(len(text)), bins.positions])[None],
        attention_mask=torch.zeros(1, 1, 1, 1),
        use_cache=False,
        bins=bins,
    ).last_hidden_state
    return states[0, len(text) :]


def loss(model: LlamaForCausalLM, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """Return the mean cross entropy of the weighted tokens. `hidden` (tokens, width) at one place predicts `ids`
    (tokens,) at the next.
    """
    wanted = weights[1:].nonzero()[:, 0]
    logits = model.lm_head(hidden[wanted]).float()
    losses = functional.cross_entropy(logits, ids[wanted + 1], reduction="none")
    part = weights[wanted + 1]
    return (losses * part).sum() / part.sum()


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *,
    bins: Bins | None = None, layers: Layers | None = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Compute the attention of a Llama layer. query: (1, heads, seq, head_dim). key, value: (1, kv_heads, seq,
    head_dim).
    """
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
    """Compute the attention of the rows' tokens to the whole text and to their own row: (1, tokens, heads, head_dim).

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
    attended = of_text + bins.gather(of_rows.unflatten(2, (groups, -1)).transpose(1, 2))
    return attended.permute(2, 0, 1, 3).reshape(1, query.shape[2], query.shape[1], -1)
