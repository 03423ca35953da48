"""Sets the weights of a lookup circuit by hand before training, so that copying works from the first step.

Copying a passage needs three things: heads that attend to the tokens just before (lag heads), heads that find the place
whose last few tokens equal the newest tokens (lookup heads), and a key that wins if there is no such place (the sink).
Small models learn these late, and only for the lengths of their training. The whole circuit can be written by hand:

    layer 0   lag heads 1, 2, 3: add the codes of the three preceding tokens to each position, as a sum X, and once
              more with a smaller gain as Y, which layer 2 uses for short matches
    layer 1   lag heads 3 and 6: add to X, with lower weights, the sums X of the positions three and six tokens earlier,
              so that X covers nine tokens. Role head: finds whose turn this is (book, question, answer)
    layer 2   lookup heads: the query has the newest codes, the key X or Y, so that the longest match wins. The value is
              the token of the attended position, added to the copy C. The first head looks in the book by nine tokens.
              The second looks in the book by three tokens, only in the first nine tokens of a quotation, because its
              few words do not suffice for a match of nine. The third looks in the question by three tokens, and never
              copies the token after the quoted words of the question (a quotation mark or the end of the message)
    layer 3   start head: is trained to find, from the wording of the question, the first token to copy
    last      a head that attends to its own position and copies C to the output dimensions

A code is a random vector for every token. Rotations of a code distinguish the lags. The codes of other tokens and lags
add noise to a score. More lags mean more noise, but also a larger difference between two places. Over 32,768 tokens of
a book, nine falling weights find the next token of a passage in 99.5 % of cases, six equal weights in 98.7 %. Codes are
matched in those dimensions of a head that RoPE hardly turns in 128K positions, so that distance does not matter. Lag
heads use the dimensions that RoPE turns fast. The results are ordinary Llama weights. This module owns only these
weights. `Guard` keeps some of them unchanged in training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from recipe.heads import Heads, Lookup, num_fast, rotation
from recipe.layout import (
    ANY_ROLE,
    BEGUN,
    BOOK_START,
    CODE,
    CODE_SCALE,
    CONSTANT,
    CONSTANT_SCALE,
    COPY,
    COPY_GAIN,
    ELLIPSIS,
    ELLIPSIS_SCALE,
    FARTHER,
    HEAD_DIM,
    LAG_GAIN,
    LAGS,
    MARK_SCALE,
    MARKS,
    NEWEST,
    OUTPUT_GAIN,
    QUESTION_GAIN,
    ROLES,
    THREE,
    THREE_GAIN,
    TOKEN,
)

SECOND_NORM = 1.24
"""Approximate divisor of the norm before layer 1."""
LOOKUP_LAYER, START_LAYER = 2, 3
BOOK_HEADS, QUESTION_HEAD = 2, 2
"""Number of lookup heads for the book, which are the first heads of their layer, and index of the lookup head for the
question. The start head is the first head of its layer.
"""
OPENER_STRENGTH, USER_SHARE = 0.35, 0.95
"""Strength of an opener's mark relative to the norm of its position, and factor for the user's opener. The tokens that
usually precede the user's opener would make its mark slightly too strong.
"""
WIRED_HEADS = {0: 3, 1: 3, 2: 3}
KEPT_HEADS = (3, 3, BOOK_HEADS)
"""Number of first heads in each of the first layers that training does not change."""


@dataclass(frozen=True)
class Special:
    """Token ids that the circuit needs: the first token of a sequence, the openers of book, question and answer, the
    ellipsis that begins a quotation, and the tokens that may end the searched words of a question.
    """

    bos: int
    system: int
    user: int
    assistant: int
    ellipsis: int
    closers: tuple[int, ...]


@torch.no_grad()
def wire(model: LlamaForCausalLM, special: Special, seed: int) -> None:
    """Write the circuit into a new model with at least three layers of three heads."""
    generator = torch.Generator().manual_seed(seed)
    layers = model.model.layers
    turn, frequencies = rotation(CODE, generator), model.model.rotary_emb.inv_freq
    _write_embedding(model, special, generator)
    first, second, third = (Heads(layer.self_attn, frequencies) for layer in layers[:3])
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
    lookup = Lookup(third, num_fast(model, frequencies), turn, generator)
    lookup.book(0, match=10.0, nothing=3.0)
    lookup.begin(1, match=10.0, nothing=1.6)
    lookup.question(QUESTION_HEAD, match=12.0)
    _level_openers(model, special)
    _hush(model, special)
    for number, layer in enumerate(layers):
        heads = Heads(layer.self_attn, frequencies)
        for head in range(WIRED_HEADS.get(number, 0), model.config.num_attention_heads):
            heads.prefer_near(head)
    Heads(layers[START_LAYER].self_attn, frequencies).carry(0, TOKEN, COPY, COPY_GAIN * torch.eye(CODE))
    last = Heads(layers[-1].self_attn, frequencies)
    last.look_back(0, 0, constant=0.5 * CONSTANT_SCALE)
    last.carry(0, COPY, TOKEN, OUTPUT_GAIN * torch.eye(CODE))


@torch.no_grad()
def take_over(fresh: LlamaForCausalLM, trained: LlamaForCausalLM, special: Special) -> None:
    """Copy the weights of a trained model of the same shape into a new model with the circuit, except the first two
    layers and the attention of the lookup layer.
    """
    weights, marks = trained.state_dict(), fresh.model.embed_tokens.weight[:, MARKS].clone()
    circuit = (*(f"model.layers.{number}." for number in range(LOOKUP_LAYER)), f"model.layers.{LOOKUP_LAYER}.self_attn")
    fresh.load_state_dict(
        {name: fresh.state_dict()[name] if name.startswith(circuit) else weight for name, weight in weights.items()}
    )
    fresh.model.embed_tokens.weight[:, MARKS] = marks
    _level_openers(fresh, special)
    _hush(fresh, special)


def _level_openers(model: LlamaForCausalLM, special: Special) -> None:
    """Scale the marks of the tokens that open a turn, so that all are equally strong after the norm of layer 1.

    Otherwise the opener with the smallest embedding would win over newer openers.
    """
    table = model.model.embed_tokens.weight
    for token in (special.system, special.user, special.assistant):
        others = (
            table[token].square().sum() - table[token, ANY_ROLE].square() + LAGS * (LAG_GAIN * CODE_SCALE) ** 2 * CODE
        )
        # After the norm, the mark is mark / sqrt(others + mark^2), which must equal ``strength``. ``others``: sum of
        # the squares of the other dimensions.
        strength = OPENER_STRENGTH * (USER_SHARE if token == special.user else 1.0)
        table[token, ANY_ROLE] = (others * strength**2 / (1 - strength**2)).sqrt()


def _hush(model: LlamaForCausalLM, special: Special) -> None:
    """Prevent the lookup head for the question from copying the sequence's first token and the tokens that end the
    searched words.
    """
    silent = model.model.embed_tokens.weight[[special.bos, *special.closers], TOKEN]
    basis = torch.linalg.qr(silent.mT)[0]
    spoken = QUESTION_GAIN * COPY_GAIN * (torch.eye(CODE, device=basis.device) - basis @ basis.mT)
    start = QUESTION_HEAD * HEAD_DIM
    model.model.layers[LOOKUP_LAYER].self_attn.o_proj.weight[COPY, start : start + CODE] = spoken


class Guard:
    """After every training step, undoes the changes that the step made to the codes.

    The hand-set heads of the first two layers keep their weights, and the MLPs of these layers add nothing. Any output
    of these MLPs, even to other dimensions, changed the scale of the codes or added noise, so that one match in twenty
    went wrong. The lookup heads for the book keep their weights too, because short sequences have few places that
    nearly match, and heads trained on them choose worse in a book.
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
    """Write the weights of a draft of two layers. It gets the target's embedding, its lag heads, and the neurons of its
    first layer with the largest weights. A lookup head for recent words is added.
    """
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
    heads = Heads(mine.layers[1].self_attn, frequencies)
    generator = torch.Generator(frequencies.device).manual_seed(0)
    turn = model.self_attn.o_proj.weight[NEWEST, HEAD_DIM : HEAD_DIM + CODE] / LAG_GAIN
    lookup = Lookup(heads, num_fast(draft, frequencies), turn, generator)
    lookup.recent(0, match=9.0, nothing=1.6)
    heads.prefer_near(1)


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
