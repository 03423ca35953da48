"""Shows a few attention heads where to look: the lookup heads that `wiring` set by hand, and the start head.

For every copied token of a training sequence the place to look at is known, so the attention of these heads can be
graded directly. Grading needs queries and keys alone, so keys are cheap: every place of every row in the batch, and of
many batches before (the key bank), competes with the right one. A sequence of 500 tokens then teaches what else only a
book of many thousands could: not to be led astray. Nothing of this is in the model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from recipe.wiring import QUESTION_HEAD

LEVEL_WEIGHT = 3e-4
"""Keeps scores near zero: a part common to all keys changes nothing, but drowns the differences in bfloat16."""
GRADED_HEADS = 1
"""Of those that look in the book: the other does so at the beginning of a quotation only."""
MAX_GRADED = 512
"""Copied tokens graded in a step, at most; it bounds time and memory."""


class KeyBank:
    """The newest keys of the lookup heads over many batches, (heads, places, head_dim), without gradient."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.keys: Tensor | None = None

    def add(self, keys: Tensor) -> None:
        """keys: (batch, heads, seq, head_dim)."""
        fresh = keys.detach().transpose(0, 1).flatten(1, 2)
        known = fresh if self.keys is None else torch.cat([fresh, self.keys], dim=1)
        self.keys = known[:, : self.size]


def lookup_loss(
    layer: nn.Module, hidden: Tensor, rotary: tuple[Tensor, Tensor], sources: Tensor, bank: KeyBank
) -> Tensor:
    """How far the lookup heads are from looking at what comes next where the text stood first.

    sources: (batch, seq), for every place the index of the token to look at, or -1 where there is none.
    """
    queries, keys = _queries_and_keys(layer, hidden, rotary, range(GRADED_HEADS))
    row, place = _some((sources >= 0).nonzero())
    if not len(row):
        return hidden.new_zeros(())
    heads, size = keys.shape[1:3]
    asked = queries[row, :, place].transpose(0, 1)
    # The first place of a row is the sink: others' sinks would only compete with this one's.
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
    """The same for the head that looks in the question, and tokens that stand there too; no bank."""
    return _own_loss(layer, hidden, rotary, echoes, QUESTION_HEAD)


def start_loss(layer: nn.Module, hidden: Tensor, rotary: tuple[Tensor, Tensor], starts: Tensor) -> Tensor:
    """The same for the first token of an answer, which the start head has to find in the question; no bank."""
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
    """Scores of the chosen queries against their own rows, later places excluded: (heads, chosen, seq)."""
    scores = torch.einsum("nhd,nhsd->hns", queries[row, :, place], keys[row])
    future = torch.arange(keys.shape[2], device=keys.device) > place[:, None]
    return scores.masked_fill(future, float("-inf"))


def _queries_and_keys(
    layer: nn.Module, hidden: Tensor, rotary: tuple[Tensor, Tensor], heads: range
) -> tuple[Tensor, Tensor]:
    """Of some neighbouring heads only, rotated: (batch, heads, seq, head_dim)."""
    attention = layer.self_attn
    rows = slice(heads.start * attention.head_dim, heads.stop * attention.head_dim)
    normed = layer.input_layernorm(hidden)
    shape = (*hidden.shape[:2], len(heads), attention.head_dim)
    queries = functional.linear(normed, attention.q_proj.weight[rows]).view(shape).transpose(1, 2)
    keys = functional.linear(normed, attention.k_proj.weight[rows]).view(shape).transpose(1, 2)
    return apply_rotary_pos_emb(queries, keys, *rotary)
