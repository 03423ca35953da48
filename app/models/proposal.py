"""Chooses models for this machine: the model of the hub that suits it best, and the few that are worth comparing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from app.core.settings import STARTERS, is_hub_gguf
from app.models.catalogue import DEMO, READER_PAIR, SHORT_PAIRS, STARTER_PAIR, Pair, pairs
from app.models.fit import PAGE_WORDS, fit_in_words, pages_of
from engine.plan import BOOK_TOKENS, FreeMemory, ModelFit, ModelShape, Rounding, fit_pair, rounding

COMPARED = 3
"""Number of models that the settings show first."""
_NOVEL = 32_768
"""Tokens of a short novel."""
_OLDER = ("glm-4-9b", "qwen2.5-7b-1m", "qwen2.5-14b-1m", "phi-4-mini", "phi-3-mini")
"""Pairs of the catalogue for which there is a newer pair of about the same size, which is proposed instead."""
_UNPROVEN = (
    "qwen3.5-4b-file",
    "qwen3.5-9b-file",
    "gpt-oss-20b-file",
    "ministral-3-8b-file",
    "gemma-4-e2b-file",
    "gemma-4-e4b-file",
    "gemma-4-26b-a4b-file",
)
"""GGUF files that are listed and not proposed, because their kinds were tested on tiny random weights only. For about
the same memory there is a file whose kind was tested with real weights.
"""


def compared(present: Pair | None, free: FreeMemory) -> list[Pair]:
    """Choose the models to compare first: the present model, then the reader, the hub's best, the starter and the demo,
    if they fit. ``present``: the loaded pair; None if a server elsewhere answers.
    """
    choices = [present] if present else []
    choices += [pair for pair in _worth(free) if present is None or pair.names != present.names]
    return choices[:COMPARED]


def _worth(free: FreeMemory) -> Iterator[Pair]:
    best = best_pair(free)
    for pair in (READER_PAIR, best.pair if best else None, STARTER_PAIR):
        if pair is not None and ((best and pair is best.pair) or fit_on(pair, free).verdict != "none"):
            yield pair
    yield DEMO


def able(pair: Pair, found: ModelFit | None, shape: ModelShape | None = None) -> str:
    """Say in a sentence what a pair can do on this machine.

    Args:
        found: how the pair fits into memory; None if that is not known.
        shape: the target's dimensions, if the catalogue does not have them.
    """
    if pair.target.name == DEMO.target.name:
        return "Only quotes, by words that stand in the book, and at once."
    shape = shape or pair.target.shape
    if found is None or shape is None:
        return "Talks in its own words."
    if found.verdict == "none":
        return fit_in_words(found)
    does = "Answers" if pair.target.name in STARTERS else "Talks in its own words"
    if (tokens := min(found.tokens, shape.window)) >= BOOK_TOKENS:
        return f"{does} about whole books."
    return f"{does} about documents of up to about {pages_of(tokens)} pages of {PAGE_WORDS} words here."


def length_in_words(shape: ModelShape, found: ModelFit) -> str:
    tokens = min(found.tokens, shape.window)
    return (
        "whole books"
        if tokens >= BOOK_TOKENS
        else f"documents of up to about {pages_of(tokens)} pages of {PAGE_WORDS} words here"
    )


@dataclass(frozen=True)
class PairProposal:
    """A pair for this machine. ``rounding``: the formats to which weights or cache must be quantized for the pair to
    fit; None if the pair fits without quantization.
    """

    pair: Pair
    fit: ModelFit
    rounding: Rounding | None = None


def best_pair(free: FreeMemory) -> PairProposal | None:
    """Choose the pair of the hub that suits this machine, by facts that need no download; None if no pair fits.

    The candidates are models for chatting. They need no account, are among the newest of their size, and are not in
    ``_UNPROVEN``.

    Without a GPU, choose the strongest GGUF file that leaves memory for a short novel. With a GPU, leave GGUF files
    out, because a GPU would have to expand their 4-bit weights to compute.

    If no GGUF file was chosen, choose among the pairs that leave memory for a book of 300 pages. With a GPU, choose the
    strongest of these pairs. Without a GPU, choose the smallest, because the time to read a book matters most. If no
    pair leaves memory for such a book, choose the pair that leaves memory for the longest text.

    As a rule of thumb, a mixture of experts is as strong as a model without experts whose number of parameters is the
    geometric mean of the mixture's total and active parameters. Per-layer input embeddings do not count, because a
    token reads only one row of each.
    """
    ready = [pair for pair in pairs() if pair.target.shape and pair not in SHORT_PAIRS]
    passed_over = (*_OLDER, *_UNPROVEN, *(pair.id for pair in ready if pair.target.pickled))
    chatting = [pair for pair in ready if not pair.target.gated and pair.id not in passed_over]
    fits = [proposal for pair in chatting if (proposal := _proposal(pair, free)) is not None]
    files = [one for one in fits if is_hub_gguf(one.pair.target.name)]
    if not free.on_gpu and (held := [one for one in files if one.fit.tokens >= _NOVEL]):
        return max(held, key=_strength)
    fits = [one for one in fits if one not in files]
    if not fits:
        return None
    whole = [one for one in fits if one.fit.tokens >= BOOK_TOKENS] or [max(fits, key=lambda one: one.fit.tokens)]
    if not free.on_gpu:
        return min(whole, key=lambda one: one.fit.weights)
    return max(whole, key=_strength)


def _proposal(pair: Pair, free: FreeMemory) -> PairProposal | None:
    """Return the proposal for a pair; None if it does not fit. On a GPU, a pair that does not fit may be proposed with
    quantized weights or cache. Without a GPU, quantizing is not tried, because GGUF files have 4-bit weights already.
    """
    fit = fit_on(pair, free)
    if fit.verdict != "none":
        return PairProposal(pair, fit)
    assert pair.target.shape is not None
    way = rounding(pair.target.shape, pair.draft.shape if pair.draft else None, free) if free.on_gpu else None
    return PairProposal(pair, fit_on(pair, way.of(free)), way) if way else None


def _strength(proposal: PairProposal) -> float:
    """Return the number of parameters that a model without experts would need to be as strong as this model."""
    shape = proposal.pair.target.shape
    return ((shape.parameters - shape.inputs) * shape.parameters_asked) ** 0.5 if shape else 0.0


def fit_on(pair: Pair, free: FreeMemory) -> ModelFit:
    """How a pair whose dimensions are known fits into memory."""
    assert pair.target.shape is not None
    return fit_pair(pair.target.shape, pair.draft.shape if pair.draft else None, free)
