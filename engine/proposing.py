"""What a round proposes to the full cache: gathered on the retrieval cache, drafted, or copied from the book.

All ways end in ``Pending``: tokens with the laws that they were drawn from. Stopping early looks only at tokens that
have been proposed already and stay proposed, so it cannot bend the law of the text.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from engine.beliefs import Patience, Trial
from engine.cache.retrieval import RetrievalCache
from engine.choice import Choice, Lesson
from engine.context import Context, since, until_end
from engine.drafters import Drafter, Proposal
from engine.events import Stage
from engine.speculation import judge


@dataclass
class Pending:
    """Proposals on their way to verification.

    ``laws`` are their laws in pieces (n, vocabulary), None where every token is a point mass. ``confidences`` say how
    sure their proposer was, where that is followed. ``accepted`` of ``proposed`` tokens passed the middle level.
    """

    tokens: list[int] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    laws: list[torch.Tensor] | None = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    accepted: int = 0
    proposed: int = 0
    draft_ms: float = 0.0
    middle_ms: float = 0.0

    def cut_at_end(self, stop_ids: frozenset[int]) -> bool:
        """Drop what follows a token that ends the text; whether there is such a token."""
        kept = len(until_end(self.tokens, stop_ids))
        del self.tokens[kept:], self.stages[kept:]
        return bool(self.tokens) and self.tokens[-1] in stop_ids

    def law(self, like: torch.Tensor) -> torch.Tensor | None:
        """The laws in one piece (tokens, vocabulary); None for point masses. ``like`` tells the width."""
        if self.laws is None:
            return None
        return torch.cat(self.laws)[: len(self.tokens)] if self.laws else like[:0]


def propose(
    context: Context, retrieval: RetrievalCache, drafter: Drafter, choice: Choice, lesson: Lesson, remaining: int
) -> Pending:
    """Whatever the choice asks for. ``remaining`` tokens of the answer may still come."""
    # The verification itself adds one token, and the window must hold all of them.
    most = min(remaining - 1, context.full.limit - len(context.tokens))
    if choice.copy:
        tokens = list(lesson.offer.tokens[: min(choice.copy, most)])
        return Pending(tokens, [Stage.LOOKUP] * len(tokens), None)
    if choice.passes:
        return _gather(context, retrieval, drafter, choice, lesson, most)
    if choice.draft and most > 0:
        return _draft(context, drafter, choice, lesson, most)
    return Pending()


def _draft(context: Context, drafter: Drafter, choice: Choice, lesson: Lesson, most: int) -> Pending:
    """Drafted tokens straight to verification."""
    start = time.perf_counter()
    count = min(choice.draft, most)
    made = drafter.propose(context.tokens, count, context.sampler, context.generator, choice.draft_patience)
    tokens = made.tokens[:most].tolist()
    laws = None if made.probs is None else [made.probs[:most]]
    pending = Pending(tokens, [made.stage] * len(tokens), laws, list(made.confidences[:most]))
    pending.draft_ms = since(start)
    _count_steps(lesson, made, pending.draft_ms)
    return pending


def _gather(
    context: Context, retrieval: RetrievalCache, drafter: Drafter, choice: Choice, lesson: Lesson, most: int
) -> Pending:
    """Draft and judge on the retrieval cache until enough tokens are pending."""
    pending = Pending(laws=[])
    enough, chance = min(choice.pending, most), 1.0
    while len(lesson.passes) < choice.passes and len(pending.tokens) < enough:
        start = time.perf_counter()
        known = context.tokens + pending.tokens
        made = drafter.propose(known, choice.draft, context.sampler, context.generator, choice.draft_patience)
        drafted = since(start)
        _count_steps(lesson, made, drafted)
        pending.draft_ms += drafted
        start = time.perf_counter()
        before = len(pending.tokens)
        tokens = _middle_pass(context, retrieval, known, made, most - before - 1, choice.middle_patience, pending)
        taken = since(start)
        pending.middle_ms += taken
        lesson.passes.append((tokens, taken))
        lesson.drafted += _trials(made.confidences, len(pending.tokens) - before - 1)
        for confidence in pending.confidences[before:]:
            chance *= choice.middle_patience.chance(confidence)
        if pending.cut_at_end(context.stop_ids) or chance < choice.middle_patience.least:
            break
    return pending


def _middle_pass(
    context: Context,
    retrieval: RetrievalCache,
    known: list[int],
    made: Proposal,
    most: int,
    patience: Patience,
    pending: Pending,
) -> int:
    """Judge one proposal on the retrieval cache and add what stands to ``pending``; how many tokens the pass fed."""
    proposed = made.tokens[:most]
    count = proposed.shape[0]
    decoder = context.decoder
    ids = torch.cat([decoder.ids(known[retrieval.length :]), proposed])
    rope = decoder.rope(decoder.span(retrieval.length, ids.shape[0]))
    logits = decoder.forward(ids, rope, retrieval.extend(), rows=count + 1)
    probs = context.sampler(logits)
    given = None if made.probs is None else made.probs[:count]
    verdict = judge(proposed, given, probs, context.generator)
    stands = [*proposed[: verdict.accepted].tolist(), verdict.token]
    pending.tokens += stands
    pending.stages += [made.stage] * verdict.accepted + [Stage.RETRIEVAL]
    assert pending.laws is not None
    pending.laws.append(probs[: verdict.accepted + 1])
    pending.accepted += verdict.accepted
    pending.proposed += count
    if patience.least > 0.0:
        pending.confidences += confidences(logits[: len(stands)], decoder.ids(stands))
    retrieval.advance(ids.shape[0])
    retrieval.crop(len(known) + len(stands) - 1)
    return ids.shape[0]


def confidences(logits: torch.Tensor, tokens: torch.Tensor) -> list[float]:
    """Probability that each row of logits (n, vocabulary) gives its token (n,), before temperature and truncation."""
    chosen = logits.gather(1, tokens.unsqueeze(1)).squeeze(1)
    sure: list[float] = (chosen - logits.logsumexp(dim=-1)).exp().tolist()
    return sure


def _count_steps(lesson: Lesson, made: Proposal, ms: float) -> None:
    if made.steps:
        lesson.draft_steps += made.steps
        lesson.draft_ms += ms


def trials(pending: Pending, accepted: int) -> list[Trial]:
    """What verification said of the proposals whose confidence was followed."""
    return _trials(pending.confidences, accepted)


def _trials(sure: list[float] | tuple[float, ...], accepted: int) -> list[Trial]:
    """The accepted ones and the rejection that ended them."""
    return [Trial(confidence, index < accepted) for index, confidence in enumerate(sure[: accepted + 1])]
