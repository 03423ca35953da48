"""The circuit that looks words up, set by hand before training, so that copying works from the first step.

Copying a passage needs heads that look at the tokens just before (lag heads), heads that find the place whose last few
tokens were the same as the newest ones (lookup heads), and a key that wins when there is no such place (the sink).
Small models find these late, and only for the lengths that they were trained at. All of it can be written down:

    layer 0   lag heads 1, 2, 3: each position gets the codes of the three tokens before it, as one sum X, and once
              more, small, as Y
    layer 1   lag heads 3 and 6: the sums X of three and six tokens earlier are added to X, weaker, which makes it a sum
              over nine tokens. A role head: whose turn this is (book, question, answer)
    layer 2   lookup heads: the newest codes as query, X or Y as key, so the longest match wins; the value is the token
              itself, added to the copy C. One head looks in the book by nine tokens. One looks there by three, only in
              the first nine tokens of a quotation, whose words so far are too few to stand out among nine. The third
              looks in the question, by three, and never says what ends a question's words there, a mark or the end
    layer 3   the start head, left to training: the first token to be copied is found by how the question is worded
    last      a head that looks at its own place brings C to where the output is read

A code is a random vector for every token; a rotation tells the lags apart. Codes of other tokens and lags add noise to
a score, which grows with the number of lags, and so does what tells two places apart: over 32,768 tokens of a book,
nine falling weights find the next token of a passage 99.5 % of the time, six equal ones 98.7 %. Codes are matched in
those dimensions of a head that RoPE hardly turns in 128K positions, so distance does not matter; lag heads use the
ones it turns fast. The result is ordinary Llama weights. Owns these weights and nothing else; `Guard` says which of
them training leaves as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

HEAD_DIM = 128
CODE = 80
"""Dimensions of a token's code, of X and of C."""
LAGS = 3
FARTHER = 0.8
"""Weight of lags 4 to 6 against 1 to 3, and of 7 to 9 against 4 to 6."""
TOKEN, NEWEST, THREE, COPY = (slice(part * CODE, (part + 1) * CODE) for part in range(4))
"""Of a position: its token's code, X, Y and C."""
CONSTANT, BOOK_START, ANY_ROLE, ROLES, ROLE_SEEN = 320, 321, 322, slice(323, 326), slice(326, 329)
ELLIPSIS, BEGUN = 329, slice(330, 332)
"""A quotation's ellipsis; and that one stands one to three, and four to nine tokens back."""
MARKS = slice(CONSTANT, BEGUN.stop)
THREE_GAIN, ELLIPSIS_SCALE = 0.2, 3.0
CODE_SCALE, CONSTANT_SCALE, MARK_SCALE, LAG_GAIN = 1.75, 5.0, 9.0, 0.55
COPY_GAIN, OUTPUT_GAIN, ROLE_CARRIED = 1.5, 3.0, 0.6
QUESTION_GAIN, BOOK_GAIN, BEGIN_GAIN, NEVER = 5.0, 2.6, 1.2, 6.0
"""The question speaks louder than both heads of the book, which a false match may lead astray; more matched tokens than
there are."""
SECOND_NORM = 1.24
"""What the norm before layer 1 divides by, about."""
LOOKUP_LAYER, START_LAYER = 2, 3
BOOK_HEADS, QUESTION_HEAD = 2, 2
"""The first heads of the lookup layer look in the book, the next in the question; the start head is the first of its
layer."""
LAG_WEIGHTS = (26.0, 6.5, 6.0, 4.2, 3.4, 2.9, 2.1, 1.8, 1.6, 1.3, 1.0, 0.8, 0.8, 0.5, 0.5, 0.5, 0.3, 0.3)
"""Of a lag head's score, by RoPE pair from the fastest: the right distance is to beat the next, and every other one up
to 128K, by as large a share of the whole as possible, because keys differ in length by some percent."""
NEAR = (0.25, 0.3, 0.3, 0.25, 0.2, 0.2)
"""Of the question head's score, in matched tokens by RoPE pair: the question asked last is to win over those before."""
ROLE_WEIGHTS = 6, (24.0, 24.0, *[12.0] * 19)
"""Of the role head's score: the first RoPE pair, and by pair from there. The turn that was opened last is to win over
the one before, which began a dozen tokens earlier, and a book's opener is to be seen 128K tokens later."""
OPENER_STRENGTH, USER_SHARE = 0.35, 0.95
"""An opener's mark against the whole of its position, and the user's against the others': what usually stands before
the openers makes the user's a little stronger than it should be."""
WIRED_HEADS = {0: 3, 1: 3, 2: 3}
KEPT_HEADS = (3, 3, BOOK_HEADS)
"""The first heads of the first layers that training leaves as they are."""
SLOW_TURN = 0.5
"""Most radians that a pair may turn over the whole context to be used for codes."""


@dataclass(frozen=True)
class Special:
    """Token ids that the circuit knows: the first token of all, the openers of book, question and answer, the ellipsis
    that begins a quotation, and what may end the words of a question that are looked for."""

    bos: int
    system: int
    user: int
    assistant: int
    ellipsis: int
    closers: tuple[int, ...]


@torch.no_grad()
def wire(model: LlamaForCausalLM, special: Special, seed: int) -> None:
    """Writes the circuit into a fresh model of at least three layers of three heads."""
    generator = torch.Generator().manual_seed(seed)
    layers = model.model.layers
    turn, frequencies = _rotation(CODE, generator), model.model.rotary_emb.inv_freq
    _write_embedding(model, special, generator)
    first, second, third = (_Heads(layer.self_attn, frequencies) for layer in layers[:3])
    for lag in range(1, LAGS + 1):
        first.look_back(lag - 1, lag, constant=CONSTANT_SCALE)
        earlier = torch.matrix_power(turn, lag - 1)
        first.carry(lag - 1, TOKEN, NEWEST, LAG_GAIN * earlier)
        first.carry(lag - 1, TOKEN, THREE, THREE_GAIN * earlier)
        first.carry_mark(lag - 1, ELLIPSIS, BEGUN.start, 1.0)
    for head, steps in ((0, 1), (2, 2)):
        second.look_back(head, steps * LAGS, constant=0.2 * CONSTANT_SCALE)
        earlier = torch.matrix_power(turn, steps * LAGS)
        second.carry(head, NEWEST, NEWEST, SECOND_NORM * FARTHER**steps * earlier)
        second.carry_mark(head, BEGUN.start, BEGUN.start + 1, SECOND_NORM)
    second.find_role(1)
    lookup = _Lookup(third, _num_fast(model, frequencies), turn, generator)
    lookup.book(0, match=10.0, nothing=3.0)
    lookup.begin(1, match=10.0, nothing=1.6)
    lookup.question(QUESTION_HEAD, match=12.0)
    _level_openers(model, special)
    _hush(model, special)
    for number, layer in enumerate(layers):
        heads = _Heads(layer.self_attn, frequencies)
        for head in range(WIRED_HEADS.get(number, 0), model.config.num_attention_heads):
            heads.prefer_near(head)
    _Heads(layers[START_LAYER].self_attn, frequencies).carry(0, TOKEN, COPY, COPY_GAIN * torch.eye(CODE))
    last = _Heads(layers[-1].self_attn, frequencies)
    last.look_back(0, 0, constant=0.5 * CONSTANT_SCALE)
    last.carry(0, COPY, TOKEN, OUTPUT_GAIN * torch.eye(CODE))


@torch.no_grad()
def take_over(fresh: LlamaForCausalLM, trained: LlamaForCausalLM, special: Special) -> None:
    """Gives a fresh wired model what a trained one of the same shape has learned, without its first two layers' heads
    and its lookup heads."""
    weights, marks = trained.state_dict(), fresh.model.embed_tokens.weight[:, MARKS].clone()
    circuit = (*(f"model.layers.{number}." for number in range(LOOKUP_LAYER)), f"model.layers.{LOOKUP_LAYER}.self_attn")
    fresh.load_state_dict(
        {name: fresh.state_dict()[name] if name.startswith(circuit) else weight for name, weight in weights.items()}
    )
    fresh.model.embed_tokens.weight[:, MARKS] = marks
    _level_openers(fresh, special)
    _hush(fresh, special)


def _level_openers(model: LlamaForCausalLM, special: Special) -> None:
    """Makes the marks of all openers equally strong after the norm of layer 1, whatever else their rows hold.

    Otherwise the one with the smallest row would win over newer ones.
    """
    table = model.model.embed_tokens.weight
    for token in (special.system, special.user, special.assistant):
        others = (
            table[token].square().sum() - table[token, ANY_ROLE].square() + LAGS * (LAG_GAIN * CODE_SCALE) ** 2 * CODE
        )
        # mark / sqrt(others + mark^2) is to be the same for all.
        strength = OPENER_STRENGTH * (USER_SHARE if token == special.user else 1.0)
        table[token, ANY_ROLE] = (others * strength**2 / (1 - strength**2)).sqrt()


def _hush(model: LlamaForCausalLM, special: Special) -> None:
    """The question head passes on no code of the first token and of what ends a question's words."""
    silent = model.model.embed_tokens.weight[[special.bos, *special.closers], TOKEN]
    basis = torch.linalg.qr(silent.mT)[0]
    spoken = QUESTION_GAIN * COPY_GAIN * (torch.eye(CODE, device=basis.device) - basis @ basis.mT)
    start = QUESTION_HEAD * HEAD_DIM
    model.model.layers[LOOKUP_LAYER].self_attn.o_proj.weight[COPY, start : start + CODE] = spoken


class Guard:
    """Takes back, after every step, what training did to the codes before they are looked up.

    The heads of the first two layers that were set by hand stay as they are, and nothing else in these layers speaks:
    whatever it wrote, also to other dimensions, changed the scale of the codes or blurred them, and one match in
    twenty went wrong for it. The heads that look in the book stay too: short sequences hold few places that nearly
    match, and heads trained on these choose worse in a book.
    """

    def __init__(self, wired: LlamaForCausalLM, special: Special) -> None:
        table = wired.model.embed_tokens.weight.detach()
        self._marks = table[:, MARKS].clone()
        self._openers = [special.system, special.user, special.assistant]
        self._rows = table[self._openers].clone()
        self._kept = [
            [part.detach().clone() for part in _parts(wired.model.layers[number].self_attn, heads)]
            for number, heads in enumerate(KEPT_HEADS)
        ]

    @torch.no_grad()
    def restore(self, model: LlamaForCausalLM) -> None:
        model.model.embed_tokens.weight[:, MARKS] = self._marks
        model.model.embed_tokens.weight[self._openers] = self._rows
        for number, kept in enumerate(self._kept):
            layer = model.model.layers[number]
            if number < LOOKUP_LAYER:
                layer.mlp.down_proj.weight.zero_()
            layer.input_layernorm.weight.fill_(1.0)
            for mine, theirs in zip(_parts(layer.self_attn, KEPT_HEADS[number]), kept, strict=True):
                mine.copy_(theirs)


def _parts(attention: nn.Module, heads: int) -> list[Tensor]:
    size = heads * HEAD_DIM
    rows = [part.weight[:size] for part in (attention.q_proj, attention.k_proj, attention.v_proj)]
    return [*rows, attention.o_proj.weight[:, :size]]


@torch.no_grad()
def wire_draft(draft: LlamaForCausalLM, target: LlamaForCausalLM) -> None:
    """Gives a draft of two layers the target's embedding, lag heads and strongest first neurons, and a lookup head."""
    mine, theirs = draft.model, target.model
    mine.embed_tokens.load_state_dict(theirs.embed_tokens.state_dict())
    mine.norm.load_state_dict(theirs.norm.state_dict())
    size = draft.config.num_attention_heads * HEAD_DIM
    first, model = mine.layers[0], theirs.layers[0]
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(first.self_attn, name).weight.copy_(getattr(model.self_attn, name).weight[:size])
    first.self_attn.o_proj.weight.copy_(model.self_attn.o_proj.weight[:, :size])
    neurons = model.mlp.down_proj.weight.norm(dim=0).topk(draft.config.intermediate_size).indices
    for name in ("gate_proj", "up_proj"):
        getattr(first.mlp, name).weight.copy_(getattr(model.mlp, name).weight[neurons])
    first.mlp.down_proj.weight.copy_(model.mlp.down_proj.weight[:, neurons])
    for norm in ("input_layernorm", "post_attention_layernorm"):
        getattr(first, norm).load_state_dict(getattr(model, norm).state_dict())
    frequencies = mine.rotary_emb.inv_freq
    heads = _Heads(mine.layers[1].self_attn, frequencies)
    generator = torch.Generator(frequencies.device).manual_seed(0)
    turn = model.self_attn.o_proj.weight[NEWEST, HEAD_DIM : HEAD_DIM + CODE] / LAG_GAIN
    lookup = _Lookup(heads, _num_fast(draft, frequencies), turn, generator)
    lookup.recent(0, match=9.0, nothing=1.6)
    heads.prefer_near(1)


def _num_fast(model: LlamaForCausalLM, frequencies: Tensor) -> int:
    return int((frequencies * model.config.max_position_embeddings > SLOW_TURN).sum())


def _write_embedding(model: LlamaForCausalLM, special: Special, generator: torch.Generator) -> None:
    table = model.model.embed_tokens.weight
    table.normal_(0, 1.0, generator=generator)
    table[:, TOKEN] = torch.randn(len(table), CODE, generator=generator)
    table[:, TOKEN] *= CODE_SCALE * math.sqrt(CODE) / table[:, TOKEN].norm(dim=1, keepdim=True)
    table[:, NEWEST.start : COPY.stop] = 0
    table[:, CONSTANT] = CONSTANT_SCALE
    table[:, BOOK_START : BEGUN.stop] = 0
    table[special.bos, BOOK_START] = MARK_SCALE
    for number, token in enumerate((special.system, special.user, special.assistant)):
        table[token, ANY_ROLE] = MARK_SCALE
        table[token, ROLES.start + number] = MARK_SCALE
    table[special.ellipsis, ELLIPSIS] = ELLIPSIS_SCALE
    model.model.norm.weight.fill_(1 / math.sqrt(table.shape[1]))


def _rotation(size: int, generator: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(size, size, generator=generator))[0]


class _Heads:
    """The heads of one layer, written one at a time."""

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
        """What is looked at: `matrix` times its `source` dimensions is added to the `goal` dimensions."""
        width = source.stop - source.start
        self.v[head, torch.arange(width), torch.arange(source.start, source.stop)] = 1.0
        start = self.columns(head).start
        self.o[goal, start : start + width] = matrix

    def carry_mark(self, head: int, source: int, goal: int, gain: float) -> None:
        """One dimension more of what is looked at, beside a code that is carried."""
        self.v[head, CODE, source] = 1.0
        self.o[goal, self.columns(head).start + CODE] = gain

    def by_distance(self, head: int, bias: Tensor, shift: float, constant: float, key: int = CONSTANT) -> None:
        """Adds sum(bias * cos(frequency * (distance - shift))) to the score of every key, whatever it says."""
        pairs, half = torch.arange(len(bias)), self.size // 2
        size = (bias.abs() * math.sqrt(self.size)).sqrt() / constant
        angle = self.frequencies[: len(bias)] * shift
        self.q[head, pairs, CONSTANT] += size * bias.sign()
        self.k[head, pairs, key] += size * angle.cos()
        self.k[head, pairs + half, key] += size * angle.sin()

    def look_back(self, head: int, lag: int, *, constant: float) -> None:
        """Exactly `lag` tokens back."""
        self.clear(head)
        self.by_distance(head, torch.tensor(LAG_WEIGHTS), lag, constant)

    def find_role(self, head: int) -> None:
        """The newest token that opens a turn; what it opens is noted in ROLE_SEEN."""
        self.clear(head)
        first, weights = ROLE_WEIGHTS
        bias = torch.tensor([0.0] * first + list(weights))
        self.by_distance(head, bias, 0.0, 0.8 * math.sqrt(CONSTANT_SCALE * MARK_SCALE), ANY_ROLE)
        self.carry(head, ROLES, ROLE_SEEN, 0.8 * torch.eye(3))

    def prefer_near(self, head: int) -> None:
        """A free head starts out looking at the last few hundred tokens, so that a long book does not drown them."""
        weights = torch.zeros(24)
        weights[4:24] = 1.3
        self.by_distance(head, weights, 0.0, 0.6 * CONSTANT_SCALE)


class _Lookup:
    """Lookup heads of one layer. Scores are in matched tokens times `match`."""

    NORM = 0.62
    """By how much the norm before this layer scales the codes, about."""

    def __init__(self, heads: _Heads, slow: int, turn: Tensor, generator: torch.Generator) -> None:
        self.heads, self.turn = heads, turn
        half = heads.size // 2
        pairs = torch.arange(slow, half)
        self.still = int(pairs[-1])
        self.places = torch.cat([pairs[:-2], pairs[:-2] + half])
        self.view = _rotation(CODE, generator)[: len(self.places)]

    def book(self, head: int, *, match: float, nothing: float) -> None:
        """Finds the newest tokens in the book; nothing above `nothing` matches, and the first token wins instead."""
        self._codes(head, match, NEWEST, LAG_GAIN)
        self.heads.carry(head, TOKEN, COPY, BOOK_GAIN * COPY_GAIN * torch.eye(CODE))
        self._roles(head, match)
        self._bias(head, BOOK_START, match * nothing)

    def begin(self, head: int, *, match: float, nothing: float) -> None:
        """The same by three tokens, and only where a quotation has just begun."""
        self._codes(head, match, THREE, THREE_GAIN)
        self.heads.carry(head, TOKEN, COPY, BEGIN_GAIN * COPY_GAIN * torch.eye(CODE))
        self._roles(head, match)
        self._bias(head, BOOK_START, match * NEVER)
        self._bias_begun(head, match * (nothing - NEVER), match * (nothing - NEVER))

    def question(self, head: int, *, match: float) -> None:
        """Finds the newest tokens in the question that was asked last: three of them, or where a quotation has just
        begun any."""
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
        """Finds the newest tokens wherever they stand, straight to the output."""
        self._codes(head, match, NEWEST, LAG_GAIN)
        self.heads.carry(head, TOKEN, TOKEN, COPY_GAIN * torch.eye(CODE))
        self._bias(head, BOOK_START, match * nothing)

    def _codes(self, head: int, match: float, sums: slice, gain: float) -> None:
        """Scores by the codes of the newest token and of those before it; `gain`: with which `sums` were made."""
        heads = self.heads
        heads.clear(head)
        # One matched token adds norm^2 * |code|^2 * gain * share to the score; share: what the view keeps.
        code = (self.NORM * CODE_SCALE) ** 2 * CODE * gain * len(self.places) / CODE
        size = math.sqrt(match * math.sqrt(heads.size) / code)
        heads.q[head][self.places, TOKEN] = size * self.view
        heads.q[head][self.places, sums] = size * self.view @ self.turn / gain
        heads.k[head][self.places, sums] = size * self.view

    def _roles(self, head: int, match: float) -> None:
        """Looks in the book, not in questions and answers."""
        for number, penalty in enumerate((0.0, 2.5, 1.5)):
            self._bias(head, ROLE_SEEN.start + number, -match * penalty)

    def _bias(self, head: int, feature: int, score: float) -> None:
        """Adds `score` to every key that has the feature, whatever the query says."""
        heads, root = self.heads, math.sqrt(math.sqrt(self.heads.size))
        scale = self.NORM * MARK_SCALE * (1.0 if feature == BOOK_START else ROLE_CARRIED)
        heads.q[head, self.still, CONSTANT] = root / (self.NORM * CONSTANT_SCALE)
        heads.k[head, self.still, feature] = score * root / scale

    def _bias_begun(self, head: int, near: float, far: float) -> None:
        """Adds to the score of the first token, from queries behind an ellipsis: one to three tokens, or four to
        nine."""
        heads, root = self.heads, math.sqrt(math.sqrt(self.heads.size))
        mark = self.NORM * ELLIPSIS_SCALE
        heads.q[head, self.still - 1, BEGUN.start] = near * root / mark
        heads.q[head, self.still - 1, BEGUN.start + 1] = far * root / mark
        heads.k[head, self.still - 1, BOOK_START] = root / (self.NORM * MARK_SCALE)
