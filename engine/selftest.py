"""Checks on this machine, with this model, that no part of Trifold changes the model's answers.

The checks: greedy answers of the hierarchy equal plain decoding token by token; rejection sampling keeps the
distribution; the fast attention kernel agrees with the plain one; a book restored from disk gives the same answers as
when it was read, and is refused if a single bit has changed. Each check yields its result with one sentence.

All checks together are meant to take less than two minutes, without the time to load the models. If short probes show
that the model is slow on this machine, the checks read less text and compare fewer tokens, and say how many.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from engine.config import GREEDY, EngineConfig, SamplingParams
from engine.decode.rounds import full_pass
from engine.decode.verify import draw, rejection_sample
from engine.document import Document
from engine.errors import TrifoldError
from engine.events import AnswerDone, BookRead, Event
from engine.model import attention, kernels
from engine.prompt import Question
from engine.session import Session

__all__ = ["checks", "configured", "load"]

BUDGET = 256
"""Retrieval budget in tokens. It is so small that chunks must be selected even from a short text."""

_READING_S = 25.0  # maximum seconds for reading the text, estimated from this machine's probes
# Minimum tokens of an answer (``max_tokens``). A faster machine gets more tokens.
_FEWEST = 4
# Maximum tokens of the first answer.
_SHORTEST = 16
# Maximum tokens of later answers.
_LONGEST = 64
_ANSWERS_S = 45.0  # maximum seconds for all answers together
DRAWS = 5_000  # maximum number of draws for each kind of proposal
_DRAWS_S = 6.0  # maximum seconds of the draws for each kind of proposal
_VOCABULARY = 8  # number of tokens in the small vocabulary with which rejection sampling is checked
_CHANCE = 48.0  # maximum chi-square (7 degrees of freedom); correct sampling exceeds it once in ten million runs
_KEYS = (257, 6_000)  # numbers of keys for which attention is compared
_QUERIES = (1, 17)  # numbers of queries for which attention is compared
_NEAR = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
# Maximum difference of two logits that counts as a tie, keyed by dtype. If the difference is smaller, rounding decides
# which logit is greater, and rounding depends on the order of additions.
_TIE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.3}
# Like ``_TIE``, but with 8-bit KV, whose rounding errors are larger. With the demo pair and 8-bit KV, the length of a
# pass changes the difference of two logits by up to 0.015 in float32 and 0.4 in bfloat16. Without 8-bit KV the change
# is at most 0.0001 and 0.3.
_TIE_8BIT = {torch.float32: 0.1, torch.float16: 0.15, torch.bfloat16: 0.6}

logger = logging.getLogger(__name__)

_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check. ``tokens`` is the number of compared tokens, 0 if the check compares none."""

    name: str
    passed: bool
    sentence: str
    seconds: float
    tokens: int = 0


def configured(config: EngineConfig, folder: str) -> EngineConfig:
    """Adapt a person's settings to the checks. The retrieval cache is small and refreshed after every verification.
    Snapshots are stored in ``folder``, which should be empty.
    """
    return dataclasses.replace(config, retrieval_budget=BUDGET, refresh_every=1, snapshot_folder=folder)


def load(config: EngineConfig) -> Session:
    """Load the models that a configuration names, like ``Session.load``."""
    return Session.load(config)


def checks(session: Session, document: Document, questions: Sequence[str]) -> Iterator[CheckResult]:
    """Run all checks, the quick ones first.

    Args:
        session: loaded with ``configured`` settings.
        document: a short text.
        questions: questions about the text.
    """
    document = _affordable(session, document)
    yield _timed("attention", lambda: _attention(session))
    yield _timed("speculation rule", lambda: _rule(session.target.token_device))
    answers: list[AnswerDone] = []
    yield _timed("greedy answers", lambda: _greedy(session, document, questions, answers))
    yield _timed("kept book", lambda: _kept(session, document, questions[0], answers))
    yield _timed("altered book", lambda: _altered(session, document))


def _affordable(session: Session, document: Document) -> Document:
    """Return the text, shortened to as many pages as this machine reads in ``_READING_S``, but at least to one page."""
    seconds = session.measure(document).reading_s
    if seconds is None or seconds <= _READING_S:
        return document
    count = max(1, int(len(document.pages) * _READING_S / seconds))
    return dataclasses.replace(document, pages=document.pages[:count])


def _timed(name: str, work: Callable[[], tuple[bool, str, int]]) -> CheckResult:
    began = time.perf_counter()
    try:
        passed, sentence, tokens = work()
    except Exception as error:  # any error counts as not passed; the other checks still run
        logger.exception("the check of %s failed", name)
        said = error.cause if isinstance(error, TrifoldError) else f"{type(error).__name__}."
        passed, sentence, tokens = False, f"The check of the {name} came to no end: {said}", 0
    return CheckResult(name, passed, sentence, time.perf_counter() - began, tokens)


def _attention(session: Session) -> tuple[bool, str, int]:
    """Compare the attention kernel in use with the plain kernel in float32 on the processor, for the target's heads."""
    shape = session.target.kv_shape
    heads, dtype, device = session.target.config.num_attention_heads, shape.dtype, shape.device
    generator = torch.Generator(device="cpu").manual_seed(1)
    worst = 0.0

    def random(heads: int, length: int) -> torch.Tensor:
        return torch.randn(1, heads, length, shape.head_dim, generator=generator).to(device=device, dtype=dtype)

    scaling = shape.head_dim**-0.5
    with torch.inference_mode():
        for keys in _KEYS:
            k, v = random(shape.kv_heads, keys), random(shape.kv_heads, keys)
            for queries in _QUERIES:
                q = random(heads, queries)
                fast, _ = attention.attend(q, k, v, scaling)
                # Put the queries that share a KV head into one matrix, as ``kernels.plain`` needs them.
                rows = q.cpu().float().reshape(1, shape.kv_heads, -1, shape.head_dim)
                plain, _ = kernels.plain(rows, k.cpu().float(), v.cpu().float(), scaling)
                worst = max(worst, float((fast.cpu().float() - plain.reshape(fast.shape)).abs().max()))
    near = _NEAR[dtype]
    words = "gives the same as" if worst < near else "differs from"
    return worst < near, f"Fast attention {words} plain attention (largest difference {worst:.1e}).", 0


def _rule(device: torch.device) -> tuple[bool, str, int]:
    """Check rejection sampling: draw many times, and compare the frequency of each token with its probability. Return
    whether the check passed, a sentence about the result, and 0 compared tokens (``CheckResult``).
    """
    generator = torch.Generator(device=device).manual_seed(2)
    weights = torch.arange(1.0, _VOCABULARY + 1, device=device)
    p = torch.stack([weights, weights.flip(0)]) / weights.sum()
    q = weights.flip(0).unsqueeze(0) / weights.sum()
    worst, drawn = 0.0, 0
    for given in (q, None):  # proposals from a draft's distribution, and proposals copied from the book
        counts = torch.zeros(_VOCABULARY)
        until = time.perf_counter() + _DRAWS_S
        while counts.sum() < DRAWS and time.perf_counter() < until:
            proposed = draw(q, generator) if given is not None else torch.tensor([2], device=device)
            sampled = rejection_sample(proposed, given, p, generator)
            counts[sampled.tokens[0]] += 1
        expected = p[0].cpu() * counts.sum()
        worst = max(worst, float(((counts - expected) ** 2 / expected).sum()))
        drawn += int(counts.sum())
    words = "keeps" if worst < _CHANCE else "does not keep"
    sentence = f"Speculation {words} the model's own distribution (chi-square {worst:.1f} over {drawn:,} draws)."
    return worst < _CHANCE, sentence, 0


def _greedy(
    session: Session, document: Document, questions: Sequence[str], answers: list[AnswerDone]
) -> tuple[bool, str, int]:
    """Answer questions as long as there is time, each by plain decoding and by the hierarchy. Both answers to a
    question must have the same tokens, apart from ties. Appends the plain answers to ``answers``.
    """
    step_ms = session.measure(document).step_ms
    read = _last(session.read(document), BookRead).tokens
    began, length, same, ties = time.perf_counter(), _tokens(_ANSWERS_S, (step_ms or 0.0) / 1000, _SHORTEST), 0, 0
    for question in questions:
        if answers and time.perf_counter() - began > _ANSWERS_S * (1 - 1 / len(questions)):
            break  # one more answer would exceed the time
        asked = time.perf_counter()
        sampling = replace(GREEDY, max_tokens=length)
        plain = _last(session.ask(Question(question, sampling=sampling, mode="plain")), AnswerDone)
        seconds = (time.perf_counter() - asked) / max(len(plain.token_ids), 1)
        margin = _margin(
            session, plain, _last(session.ask(Question(question, sampling=sampling)), AnswerDone), question, sampling
        )
        answers.append(plain)
        ties_below = (_TIE_8BIT if session.full.shape.quantized else _TIE)[session.target.dtype]
        if margin is not None and margin > ties_below:
            sentence = f"Greedy answers differ from plain decoding after {same:,} equal tokens (margin {margin:.1e})."
            return False, sentence, same
        ties += margin is not None
        same += len(plain.token_ids)
        left = _ANSWERS_S - (time.perf_counter() - began)
        length = _tokens(left / len(questions), seconds, _LONGEST)
    tie = f", apart from {ties} tie{'s' * (ties > 1)} of two equally likely tokens" if ties else ""
    several = f"{len(answers)} answers" if len(answers) > 1 else "an answer"
    sentence = f"Greedy answers equal plain decoding: {same:,} tokens in {several} after {read:,} tokens of text{tie}."
    return same > 0, sentence, same


def _tokens(seconds: float, each: float, most: int) -> int:
    """Return how many tokens can be generated twice, by plain decoding and by the hierarchy, in ``seconds`` if a token
    takes ``each`` seconds (0: unknown). At least ``_FEWEST`` and at most ``most``.
    """
    return max(_FEWEST, min(most, int(seconds / (2 * each)) if each else most))


def _margin(
    session: Session, plain: AnswerDone, hierarchical: AnswerDone, question: str, sampling: SamplingParams
) -> float | None:
    """Compute the logits at the first position where the two answers differ. Return the logit of the plain answer's
    token minus the logit of the other token; None if the answers are equal.
    """
    pairs = zip(plain.token_ids, hierarchical.token_ids, strict=False)
    at = next((index for index, (one, two) in enumerate(pairs) if one != two), None)
    if at is None:
        return None
    # Ask again, so that the plain answer is in the conversation. Then compute the logits after the last token that both
    # answers have in common.
    _last(session.ask(Question(question, sampling=sampling, mode="plain")), AnswerDone)
    conversation = session.conversation
    start = plain.figures.prompt_tokens - 1
    if conversation is None:
        return float("inf")
    session.full.crop(start)
    with torch.inference_mode():
        said = conversation.tokens[start : start + 1 + at]
        logits = full_pass(session.hierarchy.verify, session.full, start, said)[-1]
    return float(logits[plain.token_ids[at]] - logits[hierarchical.token_ids[at]])


def _kept(session: Session, document: Document, question: str, answers: Sequence[AnswerDone]) -> tuple[bool, str, int]:
    """Close the book, restore it from disk, and repeat the first question. Check that the answer begins with the same
    tokens as the first of ``answers``.
    """
    if not answers:
        return False, "A kept book could not be tried: nothing was answered.", 0
    trouble = session.persistence.finish()
    session.close_book()
    opened = _last(session.read(document), BookRead)
    if opened.source != "snapshot":
        reason = opened.refused or trouble or "nothing was kept on disk"
        return False, f"The book was not opened from disk: {reason.rstrip('.')}.", 0
    expected = answers[0].token_ids
    sampling = replace(GREEDY, max_tokens=max(len(expected), 1))
    again = _last(session.ask(Question(question, sampling=sampling, mode="plain")), AnswerDone).token_ids
    same = tuple(again[: len(expected)]) == tuple(expected)
    words = "answers as it did when it was read" if same else "answers otherwise than when it was read"
    return same, f"A book opened from disk {words} ({opened.tokens_restored:,} tokens restored).", len(expected)


def _altered(session: Session, document: Document) -> tuple[bool, str, int]:
    """Change one bit of the saved book, and try to restore it. Check that no token is restored."""
    conversation = session.conversation
    shard = next(iter(sorted(Path(session.config.snapshot_folder).rglob("*.safetensors"))), None)
    if conversation is None or shard is None:
        return False, "An altered book could not be tried: none was kept.", 0
    ids = conversation.book.ids
    session.close_book()
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    for _ in session.persistence.restore(document, ids):
        pass
    kept, refused = session.full.length, session.persistence.restored.refused
    session.close_book()
    if kept or not refused:
        return False, "A kept book of which one bit has changed was opened all the same.", 0
    return True, f"A kept book of which one bit has changed is refused: {refused}", 0


def _last(events: Iterator[Event], kind: type[_Kind]) -> _Kind:
    """The last event of a request, which must be of this kind."""
    last = list(events)[-1]
    if not isinstance(last, kind):
        raise TypeError(f"a request ended with {type(last).__name__}")
    return last
