"""The decoding loops: plain and speculative. Same signature, same records, the same law of the text.

One round of the hierarchy, as in TriForce (arXiv 2404.11912, algorithm 1):

    draft      the drafter proposes a few tokens
    middle     the target on its retrieval cache judges them in one pass; repeated until enough tokens are pending
    verify     the target on its full cache judges all pending tokens in one pass
    commit     every cache is cropped to what stands; the retrieval selection is renewed when its policy says so

A round may leave levels out: drafted tokens, or words copied from the book, go straight to verification where that is
faster. Between two rounds, and wherever a loop is closed, the state is whole: the full cache holds the KV of all
committed tokens but the last, and what the cheap levels lack of them they take before they are used. The loops know no
text, no chat and no page.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from engine.cache.full import Observer
from engine.cache.retrieval import QueryTap, Refresh, RetrievalCache, Watch
from engine.choice import COPY_LENGTHS, NOTHING, Choice, Lesson, Offer
from engine.context import Context, full_pass, since, until_end, verify_split
from engine.controller import Pace
from engine.drafters import Drafter
from engine.events import Acceptance, Round, Stage
from engine.lookup import LookupIndex
from engine.proposing import Pending, propose, trials
from engine.refresh import RefreshPolicy
from engine.sampling import draw
from engine.speculation import judge

RECENT = 64
"""Newest tokens that stay in the retrieval cache's tail when the selectable part of the context grows."""

# Tokens after which the pages that are read are looked at, where nothing else does.
_WATCH_EVERY = 16
# Committed tokens that the retrieval cache may lack while rounds do without it: it takes several at the price of one.
_BEHIND = 16


@dataclass(frozen=True)
class Speculation:
    """How the hierarchy speculates.

    Args:
        pace: says how much in each round; a round without speculation is a plain step.
        refresh: says when the retrieval selection is renewed.
        longest: most tokens that can ever be ahead of the committed context.
        index: of the book and the chat, where words may be copied straight to verification.
    """

    pace: Pace
    refresh: RefreshPolicy
    longest: int
    index: LookupIndex | None = None


def aim(context: Context, retrieval: RetrievalCache, drafter: Drafter, tap: QueryTap) -> None:
    """Start the retrieval selection and the drafter on a context, with the queries of its newest tokens."""
    with torch.inference_mode():
        retrieval.rebase(max(0, context.full.length - RECENT), tap.queries, tap.scaling)
        drafter.begin(context.tokens)


def plain(context: Context) -> Iterator[Round]:
    """Autoregressive decoding: one full pass per token. The law that everything else must reproduce."""
    made = 0
    while made < context.max_tokens:
        with torch.inference_mode():
            done = _step(context, None)
        made += 1
        yield done
        if done.ended:
            return


def hierarchical(
    context: Context, retrieval: RetrievalCache, drafter: Drafter, speculation: Speculation
) -> Iterator[Round]:
    """Speculative decoding. ``retrieval`` and ``drafter`` have been started on the context."""
    made = unseen = 0
    while made < context.max_tokens:
        base = len(context.tokens)
        with torch.inference_mode():
            offer = _offer(context.tokens, speculation.index)
            lesson = Lesson(offer)
            choice = speculation.pace.next(offer)
            exact = retrieval.length  # tokens that it has from the full cache; others may have done without it
            if choice.passes and exact < base - 1:
                retrieval.absorb(exact, base - 1)
                exact = base - 1
            pending = propose(context, retrieval, drafter, choice, lesson, context.max_tokens - made)
            observer = _observer(retrieval, speculation, choice, unseen, base - 1 - exact)
            if choice.speculates:
                done = _verify(context, pending, drafter, observer, choice, lesson)
            else:
                done = _step(context, observer)
            start = time.perf_counter()
            if isinstance(observer, QueryTap):
                retrieval.rebase(len(context.tokens) - 1 - RECENT, observer.queries, observer.scaling)
            elif choice.passes or len(context.tokens) - exact > _BEHIND:
                retrieval.absorb(exact, len(context.tokens) - 1)
            drafter.settle(context.tokens)
        made += len(done.tokens)
        unseen = 0 if observer is not None else unseen + len(done.tokens)
        renewed = isinstance(observer, QueryTap | Refresh)
        if choice.passes:
            speculation.refresh.observe(done.verify, renewed=renewed)
        split = replace(done.split, other=since(start))
        done = replace(done, split=split, renewed=renewed, scored=observer is not None)
        speculation.pace.observe(choice, done, lesson)
        yield done
        if done.ended:
            return


def _offer(tokens: list[int], index: LookupIndex | None) -> Offer:
    """What the book says after the newest words."""
    if index is None:
        return NOTHING
    tail = tokens[len(index) :]
    match = index.find(tail)
    return Offer(match.length, tuple(index.after(match, COPY_LENGTHS[-1], tail))) if match else NOTHING


def _observer(
    retrieval: RetrievalCache, speculation: Speculation, choice: Choice, unseen: int, behind: int
) -> Refresh | QueryTap | Watch | None:
    """What to do with the queries of this round's verification: cut the tail anew, renew the selection, or only look
    which pages they read. ``behind``: committed tokens that the retrieval cache still has to take."""
    if retrieval.room() - behind < 2 * (speculation.longest + 1):
        return QueryTap(retrieval.full.shape.layers, keep=RECENT)
    if choice.passes and speculation.refresh.due():
        return Refresh(retrieval)
    return Watch(retrieval) if unseen >= _WATCH_EVERY else None


def _step(context: Context, observer: Observer | None) -> Round:
    """One token by one full pass: plain decoding, alone and where a round proposes nothing."""
    start, waited = time.perf_counter(), context.full.waited_s
    probs = context.sampler(_verify_pass(context, context.decoder.ids(context.tokens[-1:]), observer))
    (token,) = draw(probs, context.generator).tolist()
    context.full.crop(len(context.tokens))
    context.tokens.append(token)
    return Round((token,), (Stage.TARGET,), verify_split(context.full, start, waited), token in context.stop_ids)


def _verify(
    context: Context, pending: Pending, drafter: Drafter, observer: Observer | None, choice: Choice, lesson: Lesson
) -> Round:
    """Judge all pending tokens on the full cache and commit what stands."""
    start, waited = time.perf_counter(), context.full.waited_s
    proposed = pending.ids(context.decoder)
    ids = torch.cat([context.decoder.ids(context.tokens[-1:]), proposed])
    probs = context.sampler(_verify_pass(context, ids, observer))
    verdict = judge(proposed, pending.law(probs), probs, context.generator)
    if pending.drawn is not None:
        drafter.note(verdict.stands[: verdict.accepted])
    tokens = until_end(list(verdict.stands), context.stop_ids)
    stages = [*pending.stages[: verdict.accepted], Stage.TARGET][: len(tokens)]
    context.tokens += tokens
    context.full.crop(len(context.tokens) - 1)
    (lesson.judged if choice.passes else lesson.drafted).extend(trials(pending, verdict.accepted))
    judged = Acceptance(verdict.accepted, len(proposed))
    return Round(
        tuple(tokens),
        tuple(stages),
        replace(verify_split(context.full, start, waited), draft=pending.draft_ms, middle=pending.middle_ms),
        tokens[-1] in context.stop_ids,
        Acceptance(pending.accepted, pending.proposed),
        Acceptance() if choice.copy else judged,
        passes=len(lesson.passes),
        lookup=judged if choice.copy else Acceptance(),
    )


def _verify_pass(context: Context, ids: torch.Tensor, observer: Observer | None) -> torch.Tensor:
    """Run the last committed token and what is proposed after it (n,) through the target on its full cache: logits of
    all."""
    logits = full_pass(context.decoder, context.full, len(context.tokens) - 1, ids, observer)
    context.full.advance(len(ids))
    return logits
