"""The decoding loops: plain and hierarchical. Same signature, same records, the same law of the text.

One round of the hierarchy, as in TriForce (arXiv 2404.11912, algorithm 1):

    draft    the drafter proposes a few tokens
    middle   the target on its retrieval cache judges them in one pass; repeated until enough tokens are pending
    verify   the target on its full cache judges all pending tokens in one pass
    commit   every cache is cropped to what stands; the retrieval selection is renewed now and then

Between two rounds, and wherever a loop is closed, the state is whole: the caches hold the KV of all committed tokens
but the last, which is the next round's first input. The loops know no text, no chat and no page.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from engine.cache.full import FullCache, Observer
from engine.cache.retrieval import QueryTap, Refresh, RetrievalCache
from engine.controller import Choice, Pace
from engine.drafters import Drafter
from engine.events import Acceptance, Round, Stage, TimeSplit
from engine.models import Decoder
from engine.sampling import Sampler, draw
from engine.speculation import judge

RECENT = 64
"""Newest tokens that stay in the retrieval cache's tail when the selectable part of the context grows."""


@dataclass
class Context:
    """What a loop works on. ``tokens`` are all committed tokens; ``full`` holds the KV of all of them but the last."""

    decoder: Decoder
    full: FullCache
    tokens: list[int]
    sampler: Sampler
    generator: torch.Generator
    stop_ids: frozenset[int]
    max_tokens: int


@dataclass(frozen=True)
class Speculation:
    """How the hierarchy speculates.

    Args:
        pace: says how much in each round; a round without middle passes is a plain step.
        refresh_every: speculating rounds between two renewals of the retrieval selection.
        longest: most tokens that can ever be ahead of the committed context.
    """

    pace: Pace
    refresh_every: int
    longest: int


def aim(context: Context, retrieval: RetrievalCache, drafter: Drafter, tap: QueryTap) -> None:
    """Start the retrieval selection and the drafter on a context, with the queries of its newest tokens."""
    with torch.inference_mode():
        retrieval.rebase(max(0, context.full.length - RECENT), tap.queries, tap.scaling)
        drafter.begin(context.tokens)


def plain_step_ms(decoder: Decoder, full: FullCache, tokens: list[int], observer: Observer | None) -> float:
    """Milliseconds of one plain step on this context. Leaves the cache as it was."""
    start = time.perf_counter()
    with torch.inference_mode():
        position = len(tokens) - 1
        full.reserve(position + 1)
        rope = decoder.rope(decoder.span(position, 1))
        decoder.forward(decoder.ids(tokens[-1:]), rope, full.extend(position, observer)).argmax().item()
    return _since(start)


def plain(context: Context) -> Iterator[Round]:
    """Autoregressive decoding: one full pass per token. The law that everything else must reproduce."""
    made = 0
    while made < context.max_tokens:
        start = time.perf_counter()
        with torch.inference_mode():
            probs = context.sampler(_full_pass(context, [context.tokens[-1]]))
            token = int(draw(probs, context.generator))
        context.full.crop(len(context.tokens))
        context.tokens.append(token)
        made += 1
        ended = token in context.stop_ids
        yield Round((token,), (Stage.TARGET,), TimeSplit(verify=_since(start)), ended)
        if ended:
            return


def hierarchical(
    context: Context, retrieval: RetrievalCache, drafter: Drafter, speculation: Speculation
) -> Iterator[Round]:
    """Hierarchical speculative decoding. ``retrieval`` and ``drafter`` have been started on the context."""
    made = rounds = 0
    while made < context.max_tokens:
        choice = speculation.pace.next()
        rounds += choice.passes > 0
        base = len(context.tokens)
        with torch.inference_mode():
            pending = _gather(context, retrieval, drafter, choice, context.max_tokens - made)
            due = choice.passes > 0 and rounds % speculation.refresh_every == 0
            renewal = _renewal(retrieval, due, speculation.longest)
            done = _verify(context, pending, renewal)
            start = time.perf_counter()
            if isinstance(renewal, QueryTap):
                retrieval.rebase(len(context.tokens) - 1 - RECENT, renewal.queries, renewal.scaling)
            else:
                retrieval.absorb(base - 1, len(context.tokens) - 1)
            drafter.settle(context.tokens)
        made += len(done.tokens)
        split = replace(done.split, other=_since(start))
        done = replace(done, split=split, renewed=renewal is not None)
        speculation.pace.observe(choice, done)
        yield done
        if done.ended:
            return


def _renewal(retrieval: RetrievalCache, due: bool, longest: int) -> Refresh | QueryTap | None:
    """What to do with the queries of this round's verification: renew the selection, or cut the tail anew."""
    if retrieval.room() < 2 * (longest + 1):
        return QueryTap(retrieval.full.shape.layers, keep=RECENT)
    return Refresh(retrieval) if due else None


@dataclass
class _Pending:
    """Tokens that the middle level stands for, with their laws, on their way to verification."""

    tokens: list[int] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    laws: list[torch.Tensor] = field(default_factory=list)
    accepted: int = 0
    proposed: int = 0
    trials: int = 0
    passes: int = 0
    draft_ms: float = 0.0
    middle_ms: float = 0.0


def _gather(context: Context, retrieval: RetrievalCache, drafter: Drafter, choice: Choice, remaining: int) -> _Pending:
    """Draft and judge on the retrieval cache until enough tokens are pending (draft and middle of a round)."""
    pending = _Pending()
    base = len(context.tokens)
    # The verification itself adds one token, and the window must hold all of them.
    most = min(remaining - 1, context.full.limit - base)
    enough = min(choice.pending, most)
    while pending.passes < choice.passes and len(pending.tokens) < enough:
        start = time.perf_counter()
        known = context.tokens + pending.tokens
        proposal = drafter.propose(known, choice.draft, context.sampler, context.generator)
        proposed = proposal.tokens[: most - len(pending.tokens) - 1]
        pending.draft_ms += _since(start)
        start = time.perf_counter()
        feed, count = context.decoder.ids(known[retrieval.length :]), proposed.shape[0]
        ids = torch.cat([feed, proposed])
        rope = context.decoder.rope(context.decoder.span(retrieval.length, ids.shape[0]))
        logits = context.decoder.forward(ids, rope, retrieval.extend(), rows=count + 1)
        probs = context.sampler(logits)
        verdict = judge(proposed, proposal.probs[:count], probs, context.generator)
        stands = [*proposed[: verdict.accepted].tolist(), verdict.token]
        pending.tokens += stands
        pending.stages += [proposal.stage] * verdict.accepted + [Stage.RETRIEVAL]
        pending.laws.append(probs[: verdict.accepted + 1])
        pending.accepted += verdict.accepted
        pending.proposed += count
        retrieval.advance(ids.shape[0])
        retrieval.crop(base + len(pending.tokens) - 1)
        pending.passes += 1
        pending.trials += min(count, verdict.accepted + 1)
        pending.middle_ms += _since(start)
        if _cut_at_end(pending, context.stop_ids):
            break
    return pending


def _verify(context: Context, pending: _Pending, observer: Observer | None) -> Round:
    """Judge all pending tokens on the full cache and commit what stands."""
    start = time.perf_counter()
    probs = context.sampler(_full_pass(context, [context.tokens[-1], *pending.tokens], observer))
    given = torch.cat(pending.laws)[: len(pending.tokens)] if pending.tokens else probs[:0]
    verdict = judge(context.decoder.ids(pending.tokens), given, probs, context.generator)
    tokens = _until_end([*pending.tokens[: verdict.accepted], verdict.token], context.stop_ids)
    stages = [*pending.stages[: verdict.accepted], Stage.TARGET][: len(tokens)]
    context.tokens += tokens
    context.full.crop(len(context.tokens) - 1)
    return Round(
        tuple(tokens),
        tuple(stages),
        TimeSplit(draft=pending.draft_ms, middle=pending.middle_ms, verify=_since(start)),
        tokens[-1] in context.stop_ids,
        Acceptance(pending.accepted, pending.proposed),
        Acceptance(verdict.accepted, len(pending.tokens)),
        passes=pending.passes,
        middle_trials=pending.trials,
    )


def _full_pass(context: Context, tokens: list[int], observer: Observer | None = None) -> torch.Tensor:
    """Run tokens (the last committed one, and proposals) through the target on its full cache: logits of all."""
    full, decoder = context.full, context.decoder
    start = len(context.tokens) - 1
    full.reserve(start + len(tokens))
    rope = decoder.rope(decoder.span(start, len(tokens)))
    logits = decoder.forward(decoder.ids(tokens), rope, full.extend(start, observer))
    full.advance(len(tokens))
    return logits


def _until_end(tokens: list[int], stop_ids: frozenset[int]) -> list[int]:
    """Tokens up to and with the first that ends the text."""
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[: index + 1]
    return tokens


def _cut_at_end(pending: _Pending, stop_ids: frozenset[int]) -> bool:
    """Drop what follows a token that ends the text; whether there is such a token."""
    kept = len(_until_end(pending.tokens, stop_ids))
    del pending.tokens[kept:], pending.stages[kept:]
    return bool(pending.tokens) and pending.tokens[-1] in stop_ids


def _since(start: float) -> float:
    return (time.perf_counter() - start) * 1000.0
