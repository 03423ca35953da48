"""Shows a few attention heads where to look, so that copying is learned in minutes instead of hours.

Copying needs heads in two layers: some that look at the tokens just before, and one that looks at what followed these
tokens the last time. Several steps back, because one word stands in many places and three together seldom do.
Left alone, a small model finds them late and all at once. In a training sequence the right place is known for every
copied token, so two heads in each of two layers get their attention graded directly. Nothing of this is in the model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

BACK_STEPS = (1, 1, 2, 3)
"""How far each guided head of the first layer looks back."""
NUM_LOOKUP_HEADS = 2
MAX_GRADED = 1024
"""Copied tokens graded in a step, at most; it bounds the memory at great lengths."""


def guided_layers(num_layers: int) -> tuple[int, int]:
    """Which layer looks back by one token and which one looks up what followed."""
    return 0, num_layers // 2


def looking_back_loss(layer: nn.Module, hidden: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """How far the guided heads of `layer` are from looking at the tokens just before; hidden: (batch, seq, width)."""
    window = 256
    hidden, rotary = hidden[:, :window], (rotary[0][:, :window], rotary[1][:, :window])
    queries, keys = _queries_and_keys(layer, hidden, rotary, len(BACK_STEPS))
    scores = queries @ keys.mT * layer.self_attn.scaling
    size, most = scores.shape[-1], max(BACK_STEPS)
    future = torch.ones(size, size, dtype=torch.bool, device=scores.device).triu(1)
    scores = scores.masked_fill(future, float("-inf")).float()[:, :, most:]
    steps = torch.tensor(BACK_STEPS, device=scores.device)[:, None]
    wanted = (torch.arange(most, size, device=scores.device) - steps).expand(scores.shape[:-1])
    return functional.cross_entropy(scores.flatten(0, 2), wanted.flatten())


def lookup_loss(layer: nn.Module, hidden: Tensor, rotary: tuple[Tensor, Tensor], sources: Tensor) -> Tensor:
    """How far the guided heads are from looking at what comes next where the text stood first.

    sources: (batch, seq), for every place the index of the token to look at, or -1 where there is none.
    """
    row, place = (sources >= 0).nonzero(as_tuple=True)
    if not len(row):
        return hidden.new_zeros(())
    if len(row) > MAX_GRADED:
        chosen = torch.randperm(len(row), device=row.device)[:MAX_GRADED]
        row, place = row[chosen], place[chosen]
    queries, keys = _queries_and_keys(layer, hidden, rotary, NUM_LOOKUP_HEADS)
    losses = []
    for number in row.unique().tolist():
        places = place[row == number]
        scores = queries[number][:, places] @ keys[number].mT * layer.self_attn.scaling
        future = torch.arange(keys.shape[-2], device=keys.device) > places[:, None]
        scores = scores.masked_fill(future, float("-inf")).float()
        wanted = sources[number, places].expand(NUM_LOOKUP_HEADS, -1)
        losses.append(functional.cross_entropy(scores.flatten(0, 1), wanted.flatten(), reduction="sum"))
    return torch.stack(losses).sum() / (len(row) * NUM_LOOKUP_HEADS)


@torch.no_grad()
def sharpen(layers: nn.ModuleList, everywhere: float, lookup: float) -> None:
    """Scales the queries of all heads, and those of the lookup heads once more.

    Attention learned in short texts is spread too thin in long ones, where more keys compete; sharper, it holds.
    """
    for layer in layers:
        layer.self_attn.q_proj.weight *= everywhere
    attention = layers[guided_layers(len(layers))[1]].self_attn
    attention.q_proj.weight[: NUM_LOOKUP_HEADS * attention.head_dim] *= lookup


def _queries_and_keys(
    layer: nn.Module, hidden: Tensor, rotary: tuple[Tensor, Tensor], num_heads: int
) -> tuple[Tensor, Tensor]:
    """Of the first heads only, rotated: (batch, heads, seq, head_dim)."""
    attention = layer.self_attn
    rows = num_heads * attention.head_dim
    normed = layer.input_layernorm(hidden)
    shape = (*hidden.shape[:2], num_heads, attention.head_dim)
    queries = functional.linear(normed, attention.q_proj.weight[:rows]).view(shape).transpose(1, 2)
    keys = functional.linear(normed, attention.k_proj.weight[:rows]).view(shape).transpose(1, 2)
    return apply_rotary_pos_emb(queries, keys, *rotary)
