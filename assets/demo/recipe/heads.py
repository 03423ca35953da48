"""Writes the weights of attention heads by hand: what a head attends to, and what it passes on.

`Heads` writes the heads of one layer. `Lookup` writes heads that find an earlier occurrence of the newest tokens.
`wiring.py` describes the whole circuit and the reasons for it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from recipe.layout import (
    ANY_ROLE,
    BEGIN_GAIN,
    BEGUN,
    BOOK_GAIN,
    BOOK_START,
    CODE,
    CODE_SCALE,
    CONSTANT,
    CONSTANT_SCALE,
    COPY,
    COPY_GAIN,
    ELLIPSIS_SCALE,
    LAG_GAIN,
    MARK_SCALE,
    NEVER,
    NEWEST,
    QUESTION_GAIN,
    ROLE_CARRIED,
    ROLE_SEEN,
    ROLES,
    THREE,
    THREE_GAIN,
    TOKEN,
)

LAG_WEIGHTS = (26.0, 6.5, 6.0, 4.2, 3.4, 2.9, 2.1, 1.8, 1.6, 1.3, 1.0, 0.8, 0.8, 0.5, 0.5, 0.5, 0.3, 0.3)
"""Weights of a lag head's score, by RoPE pair from the fastest. The score of the right distance must exceed the scores
of all other distances up to 128K by as large a share as possible, because the norms of keys differ by a few per cent.
"""
NEAR = (0.25, 0.3, 0.3, 0.25, 0.2, 0.2)
"""Weights of the question head's score, in matched tokens by RoPE pair. They let the newest question win over earlier
questions.
"""
ROLE_WEIGHTS = 6, (24.0, 24.0, *[12.0] * 19)
"""The first RoPE pair of the role head's score, and the weights of the pairs from there on. The newest turn must win
over a turn that began a dozen tokens earlier, and the opener of a book must be found 128K tokens later.
"""
SLOW_TURN = 0.5
"""Maximum radians by which a pair that is used for codes turns over the whole context."""


def rotation(size: int, generator: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(size, size, generator=generator))[0]


def num_fast(model: LlamaForCausalLM, frequencies: Tensor) -> int:
    return int((frequencies * model.config.max_position_embeddings > SLOW_TURN).sum())


class Heads:
    """Writes the heads of one layer, one at a time."""

    def __init__(self, attention: nn.Module, frequencies: Tensor) -> None:
        self.size, self.frequencies = attention.head_dim, frequencies
        shape = (-1, self.size, attention.q_proj.weight.shape[1])
        self.q, self.k, self.v = (
            part.weight.view(shape) for part in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        self.o = attention.o_proj.weight

    def clear(self, head: int) -> None:
        for part in (self.q, self.k, self.v):
            part[head] = 0
        self.o[:, self.columns(head)] = 0

    def columns(self, head: int) -> slice:
        return slice(head * self.size, (head + 1) * self.size)

    def carry(self, head: int, source: slice, goal: slice, matrix: Tensor) -> None:
        """Let the head write the `source` dimensions of the attended position, times `matrix`, to the `goal`
        dimensions.
        """
        width = source.stop - source.start
        self.v[head, torch.arange(width), torch.arange(source.start, source.stop)] = 1.0
        start = self.columns(head).start
        self.o[goal, start : start + width] = matrix

    def carry_mark(self, head: int, source: int, goal: int, gain: float) -> None:
        """Let the head also write the `source` dimension of the attended position, times `gain`, to the `goal`
        dimension.
        """
        self.v[head, CODE, source] = 1.0
        self.o[goal, self.columns(head).start + CODE] = gain

    def by_distance(self, head: int, bias: Tensor, shift: float, constant: float, key: int = CONSTANT) -> None:
        """Add sum(bias * cos(frequency * (distance - shift))) to the score of every key, independent of the key's
        content.
        """
        pairs, half = torch.arange(len(bias)), self.size // 2
        size = (bias.abs() * math.sqrt(self.size)).sqrt() / constant
        angle = self.frequencies[: len(bias)] * shift
        self.q[head, pairs, CONSTANT] += size * bias.sign()
        self.k[head, pairs, key] += size * angle.cos()
        self.k[head, pairs + half, key] += size * angle.sin()

    def look_back(self, head: int, lag: int, *, constant: float) -> None:
        """Let the head attend to the position exactly `lag` tokens back."""
        self.clear(head)
        self.by_distance(head, torch.tensor(LAG_WEIGHTS), lag, constant)

    def find_role(self, head: int) -> None:
        """Let the head attend to the newest token that opens a turn, and write the turn's role into the dimensions
        ROLE_SEEN.
        """
        self.clear(head)
        first, weights = ROLE_WEIGHTS
        bias = torch.tensor([0.0] * first + list(weights))
        self.by_distance(head, bias, 0.0, 0.8 * math.sqrt(CONSTANT_SCALE * MARK_SCALE), ANY_ROLE)
        self.carry(head, ROLES, ROLE_SEEN, 0.8 * torch.eye(3))

    def prefer_near(self, head: int) -> None:
        """Give a head that is otherwise trained freely a preference for the newest few hundred tokens, so that a long
        book does not outweigh them at first.
        """
        weights = torch.zeros(24)
        weights[4:24] = 1.3
        self.by_distance(head, weights, 0.0, 0.6 * CONSTANT_SCALE)


class Lookup:
    """Writes the lookup heads of one layer. For a key, the score is the number of matched tokens times `match`."""

    NORM = 0.62
    """Approximate factor by which the norm before this layer scales the codes."""

    def __init__(self, heads: Heads, slow: int, turn: Tensor, generator: torch.Generator) -> None:
        self.heads, self.turn = heads, turn
        half = heads.size // 2
        pairs = torch.arange(slow, half)
        self.still = int(pairs[-1])
        self.places = torch.cat([pairs[:-2], pairs[:-2] + half])
        self.view = rotation(CODE, generator)[: len(self.places)]

    def book(self, head: int, *, match: float, nothing: float) -> None:
        """Let the head find the newest tokens in the book. If no place there matches more than `nothing` tokens, the
        head attends to the sink, the first token of the sequence.
        """
        self._codes(head, match, NEWEST, LAG_GAIN)
        self.heads.carry(head, TOKEN, COPY, BOOK_GAIN * COPY_GAIN * torch.eye(CODE))
        self._roles(head, match)
        self._bias(head, BOOK_START, match * nothing)

    def begin(self, head: int, *, match: float, nothing: float) -> None:
        """Let the head find the newest three tokens in the book, but only at the beginning of a quotation. Elsewhere,
        the head attends to the sink, the first token of the sequence.
        """
        self._codes(head, match, THREE, THREE_GAIN)
        self.heads.carry(head, TOKEN, COPY, BEGIN_GAIN * COPY_GAIN * torch.eye(CODE))
        self._roles(head, match)
        self._bias(head, BOOK_START, match * NEVER)
        self._bias_begun(head, match * (nothing - NEVER), match * (nothing - NEVER))

    def question(self, head: int, *, match: float) -> None:
        """Let the head find the newest three tokens in the newest question. At the beginning of a quotation, fewer
        tokens suffice.
        """
        self._codes(head, match, THREE, THREE_GAIN)
        self.heads.q[head][self.places, TOKEN] *= 1.5
        self.heads.carry(head, TOKEN, COPY, QUESTION_GAIN * COPY_GAIN * torch.eye(CODE))
        near = torch.zeros(11)
        near[5:] = match * torch.tensor(NEAR)
        self.heads.by_distance(head, near, 0.0, self.NORM * CONSTANT_SCALE)
        for number, penalty in ((0, 3.0), (2, 1.2)):
            self._bias(head, ROLE_SEEN.start + number, -match * penalty)
        self._bias(head, BOOK_START, match * 3.4)
        self._bias_begun(head, -match * 1.75, 0.0)

    def recent(self, head: int, *, match: float, nothing: float) -> None:
        """Let the head find the newest tokens anywhere in the sequence, and write the token after them directly to the
        output.
        """
        self._codes(head, match, NEWEST, LAG_GAIN)
        self.heads.carry(head, TOKEN, TOKEN, COPY_GAIN * torch.eye(CODE))
        self._bias(head, BOOK_START, match * nothing)

    def _codes(self, head: int, match: float, sums: slice, gain: float) -> None:
        """Let the head score keys by the codes (random vectors that stand for tokens) of the newest token and of the
        tokens before it. `sums`: dimensions with the sum of the preceding tokens' codes. `gain`: the factor by which
        that sum is scaled.
        """
        heads = self.heads
        heads.clear(head)
        # One matched token adds norm^2 * |code|^2 * gain * share to the score. share: fraction of a code's dimensions
        # that ``view`` keeps.
        code = (self.NORM * CODE_SCALE) ** 2 * CODE * gain * len(self.places) / CODE
        size = math.sqrt(match * math.sqrt(heads.size) / code)
        heads.q[head][self.places, TOKEN] = size * self.view
        heads.q[head][self.places, sums] = size * self.view @ self.turn / gain
        heads.k[head][self.places, sums] = size * self.view

    def _roles(self, head: int, match: float) -> None:
        """Lower the scores of keys in questions and answers, so that the head attends to the book."""
        for number, penalty in enumerate((0.0, 2.5, 1.5)):
            self._bias(head, ROLE_SEEN.start + number, -match * penalty)

    def _bias(self, head: int, feature: int, score: float) -> None:
        """Add `score` to the score of every key that has `feature`, independent of the query."""
        heads, root = self.heads, math.sqrt(math.sqrt(self.heads.size))
        scale = self.NORM * MARK_SCALE * (1.0 if feature == BOOK_START else ROLE_CARRIED)
        heads.q[head, self.still, CONSTANT] = root / (self.NORM * CONSTANT_SCALE)
        heads.k[head, self.still, feature] = score * root / scale

    def _bias_begun(self, head: int, near: float, far: float) -> None:
        """Change the score of the sink, the first token of the sequence, shortly after an ellipsis: by `near` one to
        three tokens after the ellipsis, by `far` four to nine tokens after it.
        """
        heads, root = self.heads, math.sqrt(math.sqrt(self.heads.size))
        mark = self.NORM * ELLIPSIS_SCALE
        heads.q[head, self.still - 1, BEGUN.start] = near * root / mark
        heads.q[head, self.still - 1, BEGUN.start + 1] = far * root / mark
        heads.k[head, self.still - 1, BOOK_START] = root / (self.NORM * MARK_SCALE)
