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
from engine.drafters import Drafter, Proposal, confidences
from engine.events import Stage
from engine.models import Decoder
from engine.speculation import rule


@dataclass
class Pending:
    """Proposals on their way to verification.

    ``laws`` are their laws in pieces (n, vocabulary), None where every token is a point mass. ``confidences`` say how
    sure their proposer was, where that is followed. ``accepted`` of ``proposed`` tokens passed the middle level.
    ``drawn`` (n,) takes the place of ``tokens`` while they are on the device alone.
    """

    tokens: list[int] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    laws: list[torch.Tensor] | None = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    accepted: int = 0
    proposed: int = 0
    draft_ms: float = 0.0
    middle_ms: float = 0.0
    drawn: torch.Tensor | None = None

    def ids(self, decoder: Decoder) -> torch.Tensor:
        """The tokens (n,) on the device."""
        return decoder.ids(self.tokens) if self.drawn is None else self.drawn

    def cut_at_end(self, stop_ids: frozenset[int]) -> bool:
        """Drop what follows a token that ends the text; whether there is such a token."""
        kept = len(until_end(self.tokens, stop_ids))
        del self.tokens[kept:], self.stages[kept:]
        return bool(self.tokens) and self.tokens[-1] in stop_ids

    def law(self, like: torch.Tensor) -> torch.Tensor | None:
        """The laws in one piece (tokens, vocabulary); None for point masses. ``like`` tells the width."""
        if self.laws is None:
            return None
        count = len(self.tokens) if self.drawn is None else len(self.drawn)
        return torch.cat(self.laws)[:count] if self.laws else like[:0]


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
    """Drafted tokens straight to verification, which is the first to read them."""
    start = time.perf_counter()
    count = min(choice.draft, most)
    made = drafter.propose(context.tokens, count, context.sampler, context.generator, choice.draft_patience)
    drawn = made.tokens[:most]
    laws = None if made.probs is None else [made.probs[:most]]
    pending = Pending([], [made.stage] * len(drawn), laws, list(made.confidences[:most]), drawn=drawn)
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
        tokens, stands = _middle_pass(
            context, retrieval, known, made, most - before - 1, choice.middle_patience, pending
        )
        drafter.note(stands[:-1])
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
) -> tuple[int, tuple[int, ...]]:
    """Judge one proposal on the retrieval cache and add what stands to ``pending``.

    Returns:
        How many tokens the pass fed, and what stands: accepted proposals and the token that follows them.
    """
    proposed = made.tokens[:most]
    count = proposed.shape[0]
    decoder = context.decoder
    ids = torch.cat([decoder.ids(known[retrieval.length :]), proposed])
    logits = middle_logits(decoder, retrieval, ids, count + 1)
    probs = context.sampler(logits)
    given = None if made.probs is None else made.probs[:count]
    ruling = rule(proposed, given, probs, context.generator)
    followed = [confidences(logits, ruling.tokens)] if patience.least > 0.0 else []
    verdict, sure = ruling.read(*followed)
    stands = verdict.stands
    pending.tokens += stands
    pending.stages += [made.stage] * verdict.accepted + [Stage.RETRIEVAL]
    assert pending.laws is not None
    pending.laws.append(probs[: verdict.accepted + 1])
    pending.accepted += verdict.accepted
    pending.proposed += count
    for found in sure:
        pending.confidences += found[: len(stands)]
    retrieval.advance(ids.shape[0])
    retrieval.crop(len(known) + len(stands) - 1)
    return ids.shape[0], stands


def middle_logits(decoder: Decoder, retrieval: RetrievalCache, ids: torch.Tensor, rows: int) -> torch.Tensor:
    """Run the newest tokens (n,) through the target on its retrieval cache: logits of the last ``rows`` of them.

    The KV that they leave behind counts once ``retrieval.advance`` is called.
    """
    count = ids.shape[0]

    def eager() -> torch.Tensor:
        rope = decoder.rope(decoder.span(retrieval.length, count))
        return decoder.forward(ids, rope, retrieval.extend(), rows=rows)

    def fixed(ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        rope = decoder.rope(places[:1] + decoder.span(0, count))
        return decoder.forward(ids, rope, retrieval.extend_at(places[1:], count), rows=rows)

    if retrieval.replays is None or retrieval.room() < count:
        return eager()
    places = decoder.ids([retrieval.length, retrieval.held])
    return retrieval.replays.run((count, rows), eager, fixed, ids, places)


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
