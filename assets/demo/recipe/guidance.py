"""Computes losses for the attention of a few heads: the lookup heads that `wiring` sets by hand, and the start head,
which finds the first token to copy.

For every copied token of a training sequence, the token to attend to is known, so the loss can compare attention with
it directly. The loss only needs queries and keys, so it can use many keys: all places of the batch and of many earlier
batches (the key bank) compete with the right place. Short sequences of 500 tokens thus teach a head to ignore as many
wrong places as a long book has. These losses and the key bank are not part of the model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from recipe.wiring import QUESTION_HEAD

LEVEL_WEIGHT = 3e-4
"""Weight of a loss that keeps scores near zero. A constant added to all scores does not change attention, but makes
their differences inexact in bfloat16.
"""
GRADED_HEADS = 1
"""Number of lookup heads for the book that have a loss. The other lookup head for the book only works at the beginning
of a quotation.
"""
MAX_GRADED = 512
"""Maximum copied tokens in the loss of a step, to limit time and memory."""


class KeyBank:
    """The newest `size` keys of the lookup heads over many batches: (heads, places, head_dim), without gradient."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.keys: Tensor | None = None

    def add(self, keys: Tensor) -> None:
        """Add `keys` (batch, heads, seq, head_dim), and drop the oldest keys beyond `size`."""
        fresh = keys.detach().transpose(0, 1).flatten(1, 2)
        known = fresh if self.keys is None else torch.cat([fresh, self.keys], dim=1)
        self.keys = known[:, : self.size]


def lookup_loss(
    layer: nn.Module, hidden: Tensor, rotary: tuple[Tensor, Tensor], sources: Tensor, bank: KeyBank
) -> Tensor:
    """Compute the cross entropy between the attention of the lookup heads and the right places, plus a loss that keeps
    scores near zero.

    sources: (batch, seq), for every place the index of the token to attend to; -1 if there is none.
    """
    queries, keys = _queries_and_keys(layer, hidden, rotary, range(GRADED_HEADS))
    row, place = _some((sources >= 0).nonzero())
    if not len(row):
        return hidden.new_zeros(())
    heads, size = keys.shape[1:3]
    asked = queries[row, :, place].transpose(0, 1)
    # The first place of a row is its sink. The sinks of other rows are left out, because they would compete with the
    # row's own sink.
    pool = keys.clone()
    pool[:, :, 0] = 0
    scores = asked @ pool.transpose(0, 1).flatten(1, 2).mT
    own = row[:, None] * size + torch.arange(size, device=row.device)
    scores = scores.scatter(2, own.expand(heads, -1, -1), _own_scores(queries, keys, row, place))
    if bank.keys is not None:
        scores = torch.cat([scores, asked @ bank.keys.mT], dim=2)
    bank.add(keys[:, :, 1:])
    wanted = (row * size + sources[row, place]).expand(heads, -1)
    scores = (scores.float() * layer.self_attn.scaling).flatten(0, 1)
    return functional.cross_entropy(scores, wanted.flatten()) + LEVEL_WEIGHT * scores.logsumexp(1).square().mean()


def question_loss(layer: nn.Module, hidden: Tensor, rotary: tuple[Tensor, Tensor], echoes: Tensor) -> Tensor:
    """Compute the loss of the head that searches the question, as `lookup_loss` does but without the key bank.
    `echoes`: (batch, seq), for every place the index in the question to attend to; -1 if there is none.
    """
    return _own_loss(layer, hidden, rotary, echoes, QUESTION_HEAD)


def start_loss(layer: nn.Module, hidden: Tensor, rotary: tuple[Tensor, Tensor], starts: Tensor) -> Tensor:
    """Compute the loss of the start head, which finds the first token to copy, as `lookup_loss` does but without the
    key bank. `starts`: (batch, seq), for the first token of an answer the index in the question to attend to; -1 for
    all other tokens.
    """
    return _own_loss(layer, hidden, rotary, starts, 0)


def _own_loss(layer: nn.Module, hidden: Tensor, rotary: tuple[Tensor, Tensor], wanted: Tensor, head: int) -> Tensor:
    row, place = _some((wanted >= 0).nonzero())
    if not len(row):
        return hidden.new_zeros(())
    queries, keys = _queries_and_keys(layer, hidden, rotary, range(head, head + 1))
    scores = _own_scores(queries, keys, row, place)[0]
    return functional.cross_entropy(scores.float() * layer.self_attn.scaling, wanted[row, place])


def _some(places: Tensor) -> tuple[Tensor, Tensor]:
    if len(places) > MAX_GRADED:
        places = places[torch.randperm(len(places), device=places.device)[:MAX_GRADED]]
    return places[:, 0], places[:, 1]


def _own_scores(queries: Tensor, keys: Tensor, row: Tensor, place: Tensor) -> Tensor:
    """Return the scores of the chosen queries for the keys of their own rows: (heads, chosen, seq). Later places are
    masked.
    """
    scores = torch.einsum("nhd,nhsd->hns", queries[row, :, place], keys[row])
    future = torch.arange(keys.shape[2], device=keys.device) > place[:, None]
    return scores.masked_fill(future, float("-inf"))


def _queries_and_keys(
    layer: nn.Module, hidden: Tensor, rotary: tuple[Tensor, Tensor], heads: range
) -> tuple[Tensor, Tensor]:
    """Return the rotated queries and keys of a range of heads: (batch, heads, seq, head_dim)."""
    attention = layer.self_attn
    rows = slice(heads.start * attention.head_dim, heads.stop * attention.head_dim)
    normed = layer.input_layernorm(hidden)
    shape = (*hidden.shape[:2], len(heads), attention.head_dim)
    queries = functional.linear(normed, attention.q_proj.weight[rows]).view(shape).transpose(1, 2)
    keys = functional.linear(normed, attention.k_proj.weight[rows]).view(shape).transpose(1, 2)
    return apply_rotary_pos_emb(queries, keys, *rotary)
