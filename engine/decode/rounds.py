"""Implements the decoding loops, plain and speculative. Both loops yield ``Round`` records, and give the text the same
distribution.

One round of the hierarchy, as in TriForce (arXiv 2404.11912, algorithm 1):

    draft      the drafter proposes a few tokens
    middle     the target on its retrieval cache accepts or replaces these tokens in one pass
    verify     the target on its full cache accepts or replaces all pending tokens in one pass
    commit     every cache is cropped to the accepted tokens; sometimes the retrieval cache chooses its chunks again

The steps draft and middle are repeated until enough tokens are pending. A pending token is proposed and not yet
verified. A round may leave out the step middle: drafted tokens, or tokens copied from the book, go straight to
verification if that is faster.

After every round, the full cache holds the KV of all committed tokens except the last, which is the first input of the
next round. A caller may therefore close a loop's generator after any round. The caches of the draft model and of the
middle level may lack committed tokens after a round. These tokens are added before the cache is used again.

A proposal may end early. This decision depends only on tokens of the proposal, which the next level judges in any case.
So it cannot change the distribution.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, overload

import torch

from engine.decode.acceptance import ProposalOutcome
from engine.decode.controller import RoundObservation
from engine.decode.distributions import NO_TOKEN
from engine.decode.lookup import NO_MATCH
from engine.decode.tuning import is_slow
from engine.decode.verify import (
    Distributions,
    SampledTokens,
    confidences,
    draw,
    joined,
    rejection_sample,
    rejection_sample_on_device,
)
from engine.events import Acceptance, Round, TimeSplit, TokenSource
from engine.kv.retrieval import BoundaryRefresh, ChunkScoring, SelectionRefresh
from engine.kv.spilling import retry_with_spill

if TYPE_CHECKING:
    from engine.decode.acceptance import EarlyStop, RefreshPolicy
    from engine.decode.controller import SpeculationPolicy
    from engine.decode.drafters import Drafter, Proposal
    from engine.decode.lookup import LookupIndex, LookupMatch
    from engine.decode.loops import LoopDetector
    from engine.decode.plans import DraftPlan
    from engine.decode.verify import Distributions, Sampler
    from engine.kv.full import FullCache, Observer
    from engine.kv.retrieval import QueryRecorder, RetrievalCache, VerifyObserver
    from engine.model.backends import Backend

RECENT = 64
"""Number of the newest tokens that a new selection leaves after the retrieval cache's boundary. All tokens after the
boundary are held.
"""

# Number of an answer's tokens after which the book's pages are scored again, to show which pages are read. Whenever the
# chunks of the retrieval cache are chosen again, pages are scored too, and the count starts again.
_SCORE_EVERY = 16
# Maximum number of committed tokens that the retrieval cache may lack after a round without passes over this cache. If
# more are missing, all missing tokens are copied together, which takes about as long as copying one token.
_MOST_MISSING = 16


class NotFinite(ArithmeticError):
    """Raised if the target's logits are not finite, because its weights are damaged or its dtype is too narrow."""


def check_tokens(sampled: Sequence[int]) -> None:
    """Check that all tokens were drawn from finite logits.

    Raises:
        NotFinite: the logits of a token were not finite.
    """
    if NO_TOKEN in sampled:
        raise NotFinite


Judge = Callable[[torch.Tensor, Distributions | None, Distributions, torch.Generator], SampledTokens]
"""A function with the arguments of ``rejection_sample`` that accepts a prefix of proposed tokens and draws the token
after it.
"""


@dataclass
class Context:
    """The state of a decoding loop. ``tokens`` are all committed tokens. ``full`` is the full cache with the KV of all
    committed tokens but the last, and ``backend`` runs the passes over this cache.

    ``sampler`` samples the token after the committed tokens. ``loops`` detects whether the answer only repeats itself
    and must be stopped; None never stops it. ``repeats``: whether the answer is drawn with a seed, so that its text may
    not depend on earlier answers or on the clock. ``judge`` accepts tokens of the middle level in a verification. Only
    ``rejection_sample`` gives the text the target's distribution; the bench sets others.
    """

    backend: Backend
    full: FullCache
    tokens: list[int]
    sampler: Sampler
    generator: torch.Generator
    stop_ids: frozenset[int]
    max_tokens: int
    loops: LoopDetector | None = None
    repeats: bool = False
    judge: Judge = rejection_sample

    def commit(self, sampled: Sequence[int]) -> Committed:
        """Commit sampled tokens, up to and including the first token that ends the text. Crop the full cache to all
        committed tokens but the last one, whose KV is computed by the next pass.

        Raises:
            NotFinite: the target's logits were not finite.
        """
        check_tokens(sampled)
        tokens = until_end(list(sampled), self.stop_ids)
        ended, looping = tokens[-1] in self.stop_ids, False
        if self.loops is not None:
            closed = next((count for count, token in enumerate(tokens, 1) if self.loops.add(token)), None)
            if closed is not None and not (ended and closed == len(tokens)):
                tokens, ended, looping = tokens[:closed], True, True
        if self.sampler.remembers:
            self.sampler = self.sampler.after(self.backend.ids(tokens))
        self.tokens += tokens
        self.full.crop(len(self.tokens) - 1)
        return Committed(tuple(tokens), ended, looping)


@dataclass(frozen=True)
class Committed:
    """Committed tokens, and whether the text ends with them (``ended``), and whether it ends because it only repeats
    itself (``looping``).
    """

    tokens: tuple[int, ...]
    ended: bool
    looping: bool


@dataclass(frozen=True)
class Speculation:
    """How the hierarchy speculates.

    Args:
        policy: chooses the plan of each round; a round without speculation is a plain step.
        refresh: decides when the chunks of the retrieval cache are chosen again.
        longest: maximum number of tokens that a round can propose after the committed context.
        index: the index of the book and the chat. Tokens from these texts may be copied straight to verification.
        recordings: returns the number of passes that have been recorded as CUDA graphs so far. Costs are not learned
            from a round in which this number grows.
        middle: runs the passes of the target on the retrieval cache; None takes the backend that runs passes over the
            full cache.
    """

    policy: SpeculationPolicy
    refresh: RefreshPolicy
    longest: int
    index: LookupIndex | None = None
    recordings: Callable[[], int] = int
    middle: Backend | None = None

    def match(self, tokens: list[int]) -> LookupMatch:
        """Find the earlier place of the newest tokens in the book or the chat."""
        return NO_MATCH if self.index is None else self.index.find(tokens[len(self.index) :])


# The loops -----------------------------------------------------------------------------------------------------


def start(context: Context, retrieval: RetrievalCache, drafter: Drafter, prompt: QueryRecorder) -> None:
    """Start the retrieval cache and the drafter on a context. ``prompt`` holds the queries of the context's newest
    tokens. With these queries, the retrieval cache chooses its chunks later, just before the first pass over it.
    """
    with context.backend.decoding():
        retry_with_spill(context.full, lambda: retrieval.aim(RECENT, prompt.queries, prompt.scaling))
        drafter.begin(context.tokens, anew=context.repeats)


def first_token(
    context: Context, observer: Observer | None, begin: Callable[[Round], Iterator[Round]]
) -> tuple[Round, Callable[[], Iterator[Round]]]:
    """Decode the first token of a speculative answer. Return its round, and a function that returns the further rounds.

    A plain step decodes the first token, and its time is used as the cost of a plain step. If plain steps are slow, the
    drafter and the retrieval cache are started only when the returned function is called, so that the first token is
    shown at once. If plain steps are quick, both are started before this function returns, so that their start delays
    the first token and not the second.

    Args:
        observer: sees the queries of the plain step.
        begin: takes the first round, starts the drafter and the retrieval cache, and returns the further rounds; none
            if the text has ended.
    """
    first = next(plain(context, observer))
    context.max_tokens = 0 if first.ended else context.max_tokens - 1
    if is_slow(plain_step_ms(first)):
        return first, lambda: begin(first)
    others = begin(first)
    return first, lambda: others


def plain_step_ms(done: Round) -> float:
    """Milliseconds of the pass of a plain step, including the wait for spilled KV."""
    return done.split.verify + done.split.transfer


def plain(context: Context, observer: Observer | None = None) -> Iterator[Round]:
    """Decode autoregressively, with one pass over the full cache per token. Every other way of decoding must give the
    text the same distribution.

    Args:
        observer: sees the queries of the first pass.
    """
    made = 0
    while made < context.max_tokens:
        with context.backend.decoding():
            done = _step(context, observer)
        made, observer = made + 1, None
        yield done
        if done.ended:
            return


def hierarchical(
    context: Context, retrieval: RetrievalCache, drafter: Drafter, speculation: Speculation
) -> Iterator[Round]:
    """Decode speculatively. ``retrieval`` and ``drafter`` must have been started on the context."""
    made = unscored = 0  # ``made``: tokens of the answer. ``unscored``: tokens since the book's pages were scored.
    full, middle = context.full, speculation.middle or context.backend
    while made < context.max_tokens:
        began = time.perf_counter()
        with context.backend.decoding():
            recordings = speculation.recordings()
            match = speculation.match(context.tokens)
            observation = RoundObservation(match)
            plan = speculation.policy.next(match)
            if plan.passes:
                observation.selection_ms = select(retrieval)
                retrieval.copy_from_full(full.length)
            missing = full.length - retrieval.num_exact
            pending = propose(context, retrieval, middle, drafter, plan, observation, context.max_tokens - made)
            observer = _observer(retrieval, speculation, plan, unscored, missing)
            if plan.speculates:
                done = _verify(context, pending, drafter, observer, plan, observation)
            else:
                done = _step(context, observer)
            if observer is not None:
                retry_with_spill(full, observer.finish)
            if retrieval.is_selected and (plan.passes or full.length - retrieval.num_exact > _MOST_MISSING):
                retrieval.copy_from_full(full.length)
            drafter.commit(context.tokens)
        made += len(done.tokens)
        unscored = 0 if observer is not None else unscored + len(done.tokens)
        refreshed = observer is not None and observer.refreshes
        if plan.passes:
            cost = observer.refresh_ms if observer is not None else 0.0
            speculation.refresh.observe(done.verify, refreshed=refreshed, round_ms=done.split.total, refresh_ms=cost)
        split = replace(done.split, other=since(began) - done.split.total)
        done = replace(done, split=split, refreshed=refreshed, scored=observer is not None)
        observation.records = speculation.recordings() > recordings
        speculation.policy.observe(plan, done, observation)
        yield done
        if done.ended:
            return


def select(retrieval: RetrievalCache) -> float:
    """Choose the retrieval cache's chunks for this answer, unless they have been chosen. Return the milliseconds that
    this took; 0 if nothing was done.
    """
    if retrieval.is_selected:
        return 0.0
    clock = time.perf_counter()
    retry_with_spill(retrieval.full, retrieval.ensure_selected)
    return since(clock)


def _observer(
    retrieval: RetrievalCache, speculation: Speculation, plan: DraftPlan, unscored: int, missing: int
) -> VerifyObserver | None:
    """Choose the observer of this round's verification, which uses its attention queries: ``BoundaryRefresh`` if the
    tail of the retrieval cache is nearly full, ``SelectionRefresh`` if chunks are to be chosen again, ``ChunkScoring``
    if only the pages are to be scored again, otherwise None.

    Args:
        unscored: number of tokens since the pages were scored.
        missing: number of committed tokens that the retrieval cache lacks.
    """
    if retrieval.is_selected and retrieval.free_slots() - missing < 2 * (speculation.longest + 1):
        return BoundaryRefresh(retrieval, RECENT)
    if plan.passes and speculation.refresh.due():
        return SelectionRefresh(retrieval)
    return ChunkScoring(retrieval) if unscored >= _SCORE_EVERY else None


# Proposing -----------------------------------------------------------------------------------------------------


@dataclass
class Pending:
    """Proposals that wait for verification.

    Args:
        tokens: the proposed tokens; empty if they are in ``drawn``.
        sources: the proposer of each token.
        probs: the distributions that the tokens were drawn from, one ``Distributions`` for each proposal; None if every
            token is a point mass.
        confidences: the proposer's probability for each of its tokens; empty if no early stop needs it.
        accepted, proposed: number of the drafter's tokens that the middle level (the target on the retrieval cache)
            accepted, and number of those that it judged.
        draft_ms, middle_ms: milliseconds so far of the drafter and of the passes of the middle level.
        drawn: the proposed tokens (n,), if they are only on the device.
    """

    tokens: list[int] = field(default_factory=list)
    sources: list[TokenSource] = field(default_factory=list)
    probs: list[Distributions] | None = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    accepted: int = 0
    proposed: int = 0
    draft_ms: float = 0.0
    middle_ms: float = 0.0
    drawn: torch.Tensor | None = None

    def ids(self, backend: Backend) -> torch.Tensor:
        """The tokens (n,) on the device."""
        return backend.ids(self.tokens) if self.drawn is None else self.drawn

    def cut_at_end(self, stop_ids: frozenset[int]) -> bool:
        """Drop the tokens after the first one that ends the text. Return whether a token ends the text."""
        kept = len(until_end(self.tokens, stop_ids))
        del self.tokens[kept:], self.sources[kept:]
        return bool(self.tokens) and self.tokens[-1] in stop_ids

    def distributions(self) -> Distributions | None:
        """The distributions of the proposals; None if all are point masses."""
        return (
            None if self.probs is None else joined(self.probs, len(self.tokens if self.drawn is None else self.drawn))
        )


class TokensAhead(Sequence[int]):
    """The committed tokens followed by the pending tokens, as one sequence. Neither list is copied, so that a pass over
    the retrieval cache need not copy the tokens of a whole book.
    """

    def __init__(self, committed: list[int], pending: list[int]) -> None:
        self._committed, self._pending = committed, pending

    def __len__(self) -> int:
        return len(self._committed) + len(self._pending)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        count = len(self._committed)
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError("these tokens must be read in order")
            return self._committed[start:stop] + self._pending[max(0, start - count) : max(0, stop - count)]
        index = range(len(self))[index]
        return self._committed[index] if index < count else self._pending[index - count]


def propose(
    context: Context,
    retrieval: RetrievalCache,
    middle: Backend,
    drafter: Drafter,
    plan: DraftPlan,
    observation: RoundObservation,
    remaining: int,
) -> Pending:
    """Propose the tokens of one round, as ``plan`` says. ``remaining`` is the maximum number of tokens that may still
    be added to the answer.
    """
    # The verification itself adds one token, so at most ``remaining - 1`` tokens are proposed. All tokens must fit into
    # the window.
    most = min(remaining - 1, context.full.limit - len(context.tokens))
    if plan.copy:
        tokens = list(observation.match.tokens[: min(plan.copy, most)])
        return Pending(tokens, [TokenSource.LOOKUP] * len(tokens), None)
    if plan.passes:
        return _middle_passes(context, retrieval, middle, drafter, plan, observation, most)
    if plan.draft and most > 0:
        return _draft(context, drafter, plan, observation, most)
    return Pending()


def _draft(context: Context, drafter: Drafter, plan: DraftPlan, observation: RoundObservation, most: int) -> Pending:
    """Draft tokens that go straight to verification. The host later reads only the accepted tokens."""
    clock = time.perf_counter()
    count = min(plan.draft, most)
    made = drafter.propose(context.tokens, count, context.sampler, context.generator, plan.draft_stop)
    drawn = made.tokens[:most]
    probs = None if made.probs is None else [made.probs[:most]]
    pending = Pending([], [made.source] * len(drawn), probs, list(made.confidences[:most]), drawn=drawn)
    pending.draft_ms = since(clock)
    _count_steps(observation, made, pending.draft_ms)
    return pending


def _middle_passes(
    context: Context,
    retrieval: RetrievalCache,
    middle: Backend,
    drafter: Drafter,
    plan: DraftPlan,
    observation: RoundObservation,
    most: int,
) -> Pending:
    """Alternate between drafting and middle passes, until enough tokens are pending for verification. A middle pass
    runs the drafted tokens through the target on its retrieval cache, which accepts or replaces them.
    """
    pending = Pending(probs=[])
    known = TokensAhead(context.tokens, pending.tokens)
    enough, chance, sampler = min(plan.pending, most), 1.0, context.sampler
    # A verification should have at most ``most_rows`` tokens, because the logits of a longer pass are rounded
    # differently from those of a plain step.
    most = min(most, max(enough, context.backend.most_rows - 1))
    while len(observation.passes) < plan.passes and len(pending.tokens) < enough:
        clock = time.perf_counter()
        made = drafter.propose(known, plan.draft, sampler, context.generator, plan.draft_stop)
        draft_ms = since(clock)
        _count_steps(observation, made, draft_ms)
        pending.draft_ms += draft_ms
        clock = time.perf_counter()
        before = len(pending.tokens)
        fed, tokens = _middle_pass(
            context, retrieval, middle, sampler, known, made, most - before - 1, plan.middle_stop, pending
        )
        drafter.accept(tokens[:-1])
        if sampler.remembers:
            sampler = sampler.after(context.backend.ids(list(tokens)))
        middle_ms = since(clock)
        pending.middle_ms += middle_ms
        observation.passes.append((fed, middle_ms))
        observation.draft_outcomes += _outcomes(made.confidences, len(pending.tokens) - before - 1)
        for confidence in pending.confidences[before:]:
            chance *= plan.middle_stop.chance(confidence)
        if pending.cut_at_end(context.stop_ids) or chance < plan.middle_stop.threshold:
            break
    return pending


def _middle_pass(
    context: Context,
    retrieval: RetrievalCache,
    middle: Backend,
    sampler: Sampler,
    sequence: TokensAhead,
    proposal: Proposal,
    most: int,
    stop: EarlyStop,
    pending: Pending,
) -> tuple[int, tuple[int, ...]]:
    """Run the tokens of one proposal through the target on the retrieval cache, and append the tokens from rejection
    sampling to ``pending``.

    Returns:
        The number of tokens in the pass, and the sampled tokens: the accepted proposals and the token that follows
            them.
    """
    proposed = proposal.tokens[:most]
    count = proposed.shape[0]
    ids = torch.cat([context.backend.ids(sequence[retrieval.length :]), proposed])
    logits = middle_logits(middle, retrieval, ids, count + 1)
    p = sampler(logits, proposed)
    q = None if proposal.probs is None else proposal.probs[:count]
    on_device = rejection_sample_on_device(proposed, q, p, context.generator)
    followed = [confidences(logits, on_device.tokens)] if stop.threshold > 0.0 else []
    sampled, values = on_device.read(*followed)
    tokens = sampled.tokens
    check_tokens(tokens)
    pending.tokens += tokens
    pending.sources += [proposal.source] * sampled.num_accepted + [TokenSource.MIDDLE]
    assert pending.probs is not None
    pending.probs.append(p[: sampled.num_accepted + 1])
    pending.accepted += sampled.num_accepted
    pending.proposed += count
    for sure in values:
        pending.confidences += sure[: len(tokens)]
    retrieval.advance(ids.shape[0])
    retrieval.crop(len(sequence) - 1)
    return ids.shape[0], tokens


def _count_steps(observation: RoundObservation, proposal: Proposal, ms: float) -> None:
    if proposal.steps:
        observation.draft_steps += proposal.steps
        observation.draft_ms += ms - proposal.start_ms
        observation.draft_start_ms += proposal.start_ms


def _outcomes(confidences: list[float] | tuple[float, ...], accepted: int) -> list[ProposalOutcome]:
    """Pair the ``confidences`` of a proposal's tokens with their outcomes. The first ``accepted`` tokens were accepted,
    and the next token was rejected. All later tokens are left out, because they were not judged.
    """
    return [
        ProposalOutcome(confidence, index < accepted) for index, confidence in enumerate(confidences[: accepted + 1])
    ]


# Verifying -----------------------------------------------------------------------------------------------------


def _step(context: Context, observer: Observer | None) -> Round:
    """Decode one token with one pass over the full cache. Used in plain decoding, and in speculative decoding if a
    round proposes nothing.
    """
    clock, waited = time.perf_counter(), context.full.waited_s
    probs = context.sampler(_verify_pass(context, context.backend.ids(context.tokens[-1:]), observer))
    done = context.commit(draw(probs, context.generator).tolist())
    split = _verify_split(context.full, clock, waited)
    return Round(done.tokens, (TokenSource.TARGET,), split, done.ended, looping=done.looping)


def _verify(
    context: Context,
    pending: Pending,
    drafter: Drafter,
    observer: Observer | None,
    plan: DraftPlan,
    observation: RoundObservation,
) -> Round:
    """Run the pending tokens through the target on its full cache, and commit the tokens that rejection sampling
    gives.
    """
    clock, waited = time.perf_counter(), context.full.waited_s
    proposed = pending.ids(context.backend)
    ids = torch.cat([context.backend.ids(context.tokens[-1:]), proposed])
    p = context.sampler(_verify_pass(context, ids, observer), proposed)
    judge = context.judge if plan.passes else rejection_sample
    sampled = judge(proposed, pending.distributions(), p, context.generator)
    if pending.drawn is not None:
        drafter.accept(sampled.tokens[: sampled.num_accepted])
    done = context.commit(sampled.tokens)
    sources = [*pending.sources[: sampled.num_accepted], TokenSource.TARGET][: len(done.tokens)]
    outcomes = observation.middle_outcomes if plan.passes else observation.draft_outcomes
    outcomes += _outcomes(pending.confidences, sampled.num_accepted)
    acceptance = Acceptance(sampled.num_accepted, len(proposed))
    return Round(
        done.tokens,
        tuple(sources),
        replace(_verify_split(context.full, clock, waited), draft=pending.draft_ms, middle=pending.middle_ms),
        done.ended,
        Acceptance(pending.accepted, pending.proposed),
        Acceptance() if plan.copy else acceptance,
        passes=len(observation.passes),
        lookup=acceptance if plan.copy else Acceptance(),
        looping=done.looping,
    )


def _verify_pass(context: Context, ids: torch.Tensor, observer: Observer | None) -> torch.Tensor:
    """Run the last committed token and the proposals that follow it, ``ids`` (n,), through the target on its full
    cache. Return the logits of all n tokens.
    """
    logits = full_pass(context.backend, context.full, len(context.tokens) - 1, ids, observer)
    context.full.advance(len(ids))
    return logits


def _verify_split(full: FullCache, clock: float, waited_s: float) -> TimeSplit:
    """Divide the time of a verification into computing and waiting for spilled KV. The verification began at ``clock``,
    when ``full.waited_s`` was ``waited_s``.
    """
    transfer = (full.waited_s - waited_s) * 1000.0
    return TimeSplit(verify=since(clock) - transfer, transfer=transfer)


# Passes --------------------------------------------------------------------------------------------------------


def full_pass(
    backend: Backend,
    full: FullCache,
    start: int,
    tokens: Sequence[int] | torch.Tensor,
    observer: Observer | None = None,
) -> torch.Tensor:
    """Run tokens through the target on its full cache, the first token at position ``start``. Return logits (n,
    vocabulary).

    The tokens belong to the cache only after ``full.advance`` has been called.

    Args:
        tokens: ids (n,) as integers, or as a tensor on the device, which the host need not have read.
        observer: reads each layer's queries after the attention of the layer; None reads no queries.
    """

    def work() -> torch.Tensor:
        ids = tokens if isinstance(tokens, torch.Tensor) else backend.ids(list(tokens))
        full.reserve(start + len(ids))
        return backend.forward(ids, full.extend(start, observer))

    logits = retry_with_spill(full, work)
    if full.hidden is not None:
        full.hidden.note(start)
    return logits


def middle_logits(backend: Backend, retrieval: RetrievalCache, ids: torch.Tensor, rows: int) -> torch.Tensor:
    """Run the newest tokens (n,) through the target on the retrieval cache. Return the logits of the last ``rows``
    tokens.

    The tokens belong to the retrieval cache only after ``retrieval.advance`` has been called.
    """
    full = retrieval.full
    logits = retry_with_spill(full, lambda: backend.forward(ids, retrieval.extend(), rows=rows))
    if full.hidden is not None:
        full.hidden.note(retrieval.length + ids.shape[0] - rows)
    return logits


def pass_ms(backend: Backend, full: FullCache, tokens: Sequence[int], count: int, observer: Observer | None) -> float:
    """Time a pass over ``count`` tokens that begins with the context's last token, in milliseconds. Leaves the cache
    unchanged.
    """
    clock = time.perf_counter()
    with backend.decoding():
        full_pass(backend, full, len(tokens) - 1, newest(tokens, count), observer).argmax(-1).tolist()
    return since(clock)


def newest(tokens: Sequence[int], count: int) -> list[int]:
    """Make the input of a timed pass: the last ``count`` tokens, newest first, repeated if there are fewer. Different
    tokens are used, so that the pass chooses as many different experts as a real pass does.
    """
    return [tokens[-1 - at % len(tokens)] for at in range(count)]


def until_end(tokens: list[int], stop_ids: frozenset[int]) -> list[int]:
    """The tokens up to and including the first token that ends the text; all tokens if none does."""
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[: index + 1]
    return tokens


def since(clock: float) -> float:
    """Milliseconds since the time ``clock`` of ``time.perf_counter``."""
    return (time.perf_counter() - clock) * 1000.0
