"""Learns acceptance rates and the costs of passes for the controller, and decides when the chunks of the retrieval
cache are chosen again (a refresh).

An outcome is a proposed token that was accepted or rejected. A token to which its proposer gave a high probability
(confidence) is accepted more often, and so is a token that is copied from the book after a long match. So rates are
kept separately for each level, each class of confidence and each class of match lengths. Older outcomes fade. Every
rate starts from a prior of little weight, so that the first rounds are sensible.

A refresh needs queries and KV that a verification computes and reads anyway. So a refresh in the same pass costs only
the time of scoring chunks and of copying newly chosen chunks. TriForce's published code never refreshes (policy
"never"). The policy "every" with a count of 1 refreshes at every verification.

The costs of a round's passes on this machine and this context are measured or derived once, then updated. A pass over n
tokens costs about base + slope * (n - 1) milliseconds. The base is the time of reading weights and KV once, the slope
is the time of computing one more token. Base and slope are fitted by least squares. Older passes fade in the fit, so
that it follows a growing book or a machine that becomes slower. A pass over one token multiplies matrices by a vector
and costs less than the fit predicts, so its cost is estimated separately.

Pure: no model, no tensors, no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from engine.decode.lookup import NO_MATCH, LookupMatch
from engine.decode.tuning import TUNING, Tuning

if TYPE_CHECKING:
    from engine.events import Acceptance


@dataclass(frozen=True)
class ProposalOutcome:
    """One proposed token after its verification: the probability that its proposer gave to it, and whether the target
    accepted it.
    """

    confidence: float
    accepted: bool


@dataclass(frozen=True)
class AcceptanceRates:
    """Probabilities that a proposed token is accepted.

    ``middle``: a drafted token, judged by the target on the retrieval cache. ``verify``: a token of the target on the
    retrieval cache, judged by the target on the full cache. ``direct``: a drafted token, judged on the full cache.
    ``lookup``: a token copied from the book, judged on the full cache.
    """

    middle: float
    verify: float
    direct: float = 0.0
    lookup: float = 0.0


@dataclass(frozen=True)
class EarlyStop:
    """Ends a proposal when the probability that all its tokens are accepted falls below ``threshold``.

    ``rates``: acceptance rate of each class of confidence (probability that the proposer gave to a token). ``edges``:
    borders of these classes.
    """

    threshold: float = 0.0
    rates: tuple[float, ...] = TUNING.middle_priors
    edges: tuple[float, ...] = TUNING.confidence_edges

    def chance(self, confidence: float) -> float:
        """The probability that the target accepts a token, if the token's proposer gave it the probability
        ``confidence``.
        """
        return self.rates[bisect_right(self.edges, confidence)]


NO_EARLY_STOP = EarlyStop()


# Number of tokens by which all rates age (lose weight) when the book changes. It is so large that every rate falls to
# its minimum weight (``Tuning.aged_outcomes``).
_ANOTHER_BOOK = 100_000


class FadingRate:
    """An acceptance rate, estimated from outcomes (accepted or rejected tokens). Older outcomes weigh less.

    Args:
        prior: the rate before any outcome.
        memory: time constant, in outcomes, with which older outcomes lose weight; None takes ``Tuning.memory``.
        firm: whether the prior is good evidence, so that a few unlucky outcomes do not outweigh it.
    """

    def __init__(
        self, prior: float, memory: float | None = None, tuning: Tuning = TUNING, *, firm: bool = False
    ) -> None:
        self.prior = prior
        self._tuning = tuning
        self._firmness = tuning.firmness if firm else 1.0
        self._memory = tuning.memory if memory is None else memory
        self._accepted = self._outcomes = 0.0

    @property
    def rate(self) -> float:
        """The current estimate."""
        tuning, weight = self._tuning, self._prior_weight
        return min(tuning.highest_rate, (self._accepted + self.prior * weight) / (self._outcomes + weight))

    @property
    def num_outcomes(self) -> float:
        """Sum of the weights of all outcomes. Older outcomes weigh less."""
        return self._outcomes

    @property
    def doubt(self) -> float:
        """Share of the estimate that comes from the prior. It is 1 before the first outcome."""
        return self._prior_weight / (self._outcomes + self._prior_weight)

    @property
    def _prior_weight(self) -> float:
        firmness = self._firmness
        return (
            firmness * self._tuning.prior_outcomes / (1.0 + self._outcomes / (firmness * self._tuning.prior_half_life))
        )

    def begin_answer(self) -> None:
        """Make the current estimate the prior, and drop all outcomes. So the outcomes of the new answer soon outweigh
        those of earlier answers.
        """
        self.prior, self._accepted, self._outcomes = self.rate, 0.0, 0.0

    def add(self, accepted: float, outcomes: float) -> None:
        """Add the outcome of a proposal. ``outcomes`` is the number of ``accepted`` tokens, plus 1 if a token was
        rejected. Tokens after the rejected token do not count.
        """
        fade = max(0.0, 1.0 - outcomes / self._memory)
        self._accepted = fade * self._accepted + accepted
        self._outcomes = fade * self._outcomes + outcomes

    def add_indirect(self, accepted: float, outcomes: float) -> None:
        """Add ``outcomes`` proposed tokens that another level judged. ``accepted`` is an estimate of how many of them
        this level would have accepted. Such outcomes have the weight ``Tuning.indirect_weight``.
        """
        weight = self._tuning.indirect_weight
        self.add(weight * accepted, weight * outcomes)

    def age(self, tokens: int = 1) -> None:
        """Reduce the weight of all outcomes so far, because ``tokens`` tokens were made without an outcome and the text
        may have changed. The weight falls no lower than ``Tuning.aged_outcomes``.
        """
        tuning = self._tuning
        if self._outcomes > tuning.aged_outcomes:
            kept = max(tuning.aged_outcomes / self._outcomes, (1.0 - tuning.ageing) ** tokens)
            self._accepted, self._outcomes = kept * self._accepted, kept * self._outcomes


class RatesByConfidence:
    """Acceptance rates for each class of confidence, which is the probability that a proposer gave to its token."""

    def __init__(self, priors: tuple[float, ...], tuning: Tuning = TUNING) -> None:
        self._edges = tuning.confidence_edges
        self._rates = [FadingRate(prior, tuning=tuning) for prior in priors]

    def add(self, outcomes: list[ProposalOutcome]) -> None:
        for outcome in outcomes:
            self._rates[bisect_right(self._edges, outcome.confidence)].add(int(outcome.accepted), 1)

    def age(self, tokens: int = 1) -> None:
        """Reduce the weight of the outcomes in every class (``FadingRate.age``)."""
        for rate in self._rates:
            rate.age(tokens)

    def table(self) -> tuple[float, ...]:
        """Return the current estimate of each class."""
        return tuple(rate.rate for rate in self._rates)


class AcceptanceStatistics:
    """All observations of acceptance so far. ``middle``, ``verify`` and ``direct`` mean the same as in
    ``AcceptanceRates``.
    """

    def __init__(self, tuning: Tuning = TUNING) -> None:
        self._match_edges = tuning.match_edges
        self.middle = FadingRate(tuning.middle_prior, tuning=tuning)
        self.verify = FadingRate(tuning.verify_prior, tuning=tuning)
        self.direct = FadingRate(tuning.direct_prior, tuning=tuning, firm=True)
        priors = (*tuning.lookup_priors, tuning.agreed_prior, tuning.disputed_prior)
        self._clear_match = tuning.clear_match
        # The rates of matches by class of length, and as the last two, of agreed and of disputed matches
        self._lookup = [FadingRate(prior, tuning.lookup_memory, tuning) for prior in priors]
        self.draft_by_confidence = RatesByConfidence(tuning.draft_priors, tuning)
        self.middle_by_confidence = RatesByConfidence(tuning.middle_priors, tuning)
        self.loses = False
        """Whether speculation has lost time although its rates promised a gain. Then the controller decodes plainly
        until a trial gains time.
        """

    def add_draft(self, accepted: int, outcomes: int, *, direct: bool) -> None:
        """Learn from proposals of the draft model that the target judged on the full cache (``direct``) or on the
        retrieval cache.

        From the same outcomes, the rate on the other cache is inferred. Without this inference, a plan that failed once
        would never be tried again.
        """
        verify = self.verify.rate
        if direct:
            self.direct.add(accepted, outcomes)
            self.middle.add_indirect(min(outcomes, accepted / verify), outcomes)
        else:
            self.middle.add(accepted, outcomes)
            self.direct.add_indirect(accepted * verify, outcomes)

    def age(self, tokens: int) -> None:
        """Reduce the weight of the rates after ``tokens`` tokens that were made without speculation. The rates of
        copied tokens keep their weight, because they are learned without speculation too: in every round, the text
        shows whether a copy from the book would have been right.
        """
        self.verify.age(tokens)
        self.middle_by_confidence.age(tokens)
        self.age_draft(tokens)

    def age_draft(self, rounds: int = 1) -> None:
        """Reduce the weight of the rates of drafted tokens after ``rounds`` rounds without the draft model."""
        for rate in (self.middle, self.direct, self.draft_by_confidence):
            rate.age(rounds)

    @property
    def tried(self) -> bool:
        """Whether any proposal of the draft model, or of the target on the retrieval cache, has been verified."""
        return any(rate.num_outcomes for rate in (self.verify, self.middle, self.direct))

    def begin_answer(self) -> None:
        """Begin another answer. The current rates of copied tokens become priors, which the answer's own outcomes soon
        outweigh.
        """
        for rate in self._lookup:
            rate.begin_answer()

    def for_another_book(self) -> AcceptanceStatistics:
        """Reduce the weight of all observations to a few outcomes, and return these statistics. For the next book, the
        old observations are still better than priors, but the new outcomes must soon outweigh them.
        """
        for rate in (self.verify, self.middle, self.direct, *self._lookup):
            rate.age(_ANOTHER_BOOK)
        for rates in (self.draft_by_confidence, self.middle_by_confidence):
            rates.age(_ANOTHER_BOOK)
        return self

    def lookup(self, match: LookupMatch) -> FadingRate:
        """Return the acceptance rate of tokens that are copied from the book after ``match``. All match lengths of a
        class share one rate. All agreed matches, and all disputed matches, share one rate if they are shorter than
        ``Tuning.clear_match``.
        """
        if match.agreed is not None and match.length < self._clear_match:
            return self._lookup[-2 if match.agreed else -1]
        return self._lookup[bisect_right(self._match_edges, match.length)]

    def rates(self, match: LookupMatch = NO_MATCH) -> AcceptanceRates:
        """Return the current rates. ``lookup`` is the rate of tokens copied after ``match``; 0 without a match."""
        lookup = self.lookup(match).rate if match.length else 0.0
        return AcceptanceRates(self.middle.rate, self.verify.rate, self.direct.rate, lookup)


# Refresh policies ----------------------------------------------------------------------------------------------


class RefreshPolicy(Protocol):
    """Decides whether the retrieval cache's chunks are chosen again (a refresh) with the next verification."""

    def due(self) -> bool:
        """Whether the next verification should be a refresh."""

    def observe(self, verify: Acceptance, *, refreshed: bool, round_ms: float = 0.0, refresh_ms: float = 0.0) -> None:
        """Learn from a round with passes over the retrieval cache. ``refreshed``: whether the round chose this cache's
        chunks again. ``round_ms``: milliseconds of the round. ``refresh_ms``: milliseconds of its refresh.
        """


class Never:
    """Never refreshes, so the retrieval cache keeps the chunks that were chosen for the question."""

    def due(self) -> bool:
        return False

    def observe(self, verify: Acceptance, *, refreshed: bool, round_ms: float = 0.0, refresh_ms: float = 0.0) -> None:
        pass


class Every:
    """Refreshes at every ``count``-th verification. Only verifications that follow passes over the retrieval cache are
    counted.

    Args:
        first: number of the verification with the first refresh, counted from 1; 0 takes ``count``.
        tokens: minimum number of tokens between two refreshes.
        share: maximum share of the rounds' time that refreshes may take, if the next refresh takes as long as the
            previous one; None sets no limit.
    """

    def __init__(self, count: int, first: int = 0, tokens: int = 0, share: float | None = 1.0) -> None:
        self._count, self._tokens, self._share = count, tokens, share
        self._since, self._verified = count - (first or count), 0
        # ``_rounds_ms``: milliseconds of all rounds since the previous refresh. ``_refresh_ms``: milliseconds of that
        # refresh.
        self._rounds_ms = self._refresh_ms = 0.0

    def due(self) -> bool:
        saved = self._share is None or self._rounds_ms * self._share >= self._refresh_ms
        return saved and self._since + 1 >= self._count and self._verified >= self._tokens

    def observe(self, verify: Acceptance, *, refreshed: bool, round_ms: float = 0.0, refresh_ms: float = 0.0) -> None:
        if refreshed:
            self._since, self._verified, self._rounds_ms, self._refresh_ms = 0, 0, 0.0, refresh_ms
            return
        self._since += 1
        self._verified += verify.accepted + 1
        self._rounds_ms += round_ms


class WhenAcceptanceDrops:
    """Refreshes when the acceptance rate of the newest verifications is lower than the usual rate by more than
    ``Tuning.acceptance_drop``.
    """

    def __init__(self, tuning: Tuning = TUNING) -> None:
        self._tuning = tuning
        self._newest = _WindowRate(tuning.drop_newest)
        self._usual = _WindowRate(tuning.drop_usual)
        self._usual.add(tuning.usual_rate * tuning.usual_outcomes, tuning.usual_outcomes)
        self._pause = 0

    def due(self) -> bool:
        return self._pause == 0 and self._newest.rate < self._usual.rate - self._tuning.acceptance_drop

    def observe(self, verify: Acceptance, *, refreshed: bool, round_ms: float = 0.0, refresh_ms: float = 0.0) -> None:
        outcomes = min(verify.proposed, verify.accepted + 1)
        for past in (self._newest, self._usual):
            past.add(verify.accepted, outcomes)
        self._pause = self._tuning.drop_pause if refreshed else max(0, self._pause - 1)
        if refreshed:
            self._newest = _WindowRate(self._tuning.drop_newest)


class _WindowRate:
    """An acceptance rate over about the last ``memory`` outcomes, without a prior. It is 1 before the first outcome."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._accepted = self._outcomes = 0.0

    @property
    def rate(self) -> float:
        return self._accepted / self._outcomes if self._outcomes else 1.0

    def add(self, accepted: float, outcomes: float) -> None:
        fade = max(0.0, 1.0 - outcomes / self._memory)
        self._accepted = fade * self._accepted + accepted
        self._outcomes = fade * self._outcomes + outcomes


def policy_of(name: str, interval: int | None, *, timed: bool = True) -> RefreshPolicy:
    """Make the refresh policy ``name``: "never", "drop" or "every". ``interval`` is the number of verifications between
    two refreshes of the policy "every"; None takes the numbers in ``TUNING``. If ``timed`` is False, the policy does
    not depend on a clock.
    """
    if name == "every":
        share = TUNING.refresh_share if timed else None
        own = TUNING.refresh_every, TUNING.refresh_first, TUNING.refresh_tokens, share
        return Every(interval, share=1.0 if timed else None) if interval else Every(*own)
    return Never() if name == "never" else WhenAcceptanceDrops()


@dataclass(frozen=True)
class ExpertReads:
    """Describes which experts a pass reads in a mixture of experts. A token uses ``chosen`` of the ``count`` experts of
    a layer. ``share`` is the experts' share of all bytes that a pass over one token reads.
    """

    count: int = 1
    chosen: int = 1
    share: float = 0.0

    def growth(self, tokens: float) -> float:
        """Return the bytes that a pass over ``tokens`` tokens reads, as a multiple of the bytes that a pass over one
        token reads. Tokens are assumed to choose experts at random.
        """
        missed = (1.0 - self.chosen / self.count) ** tokens
        return 1.0 + self.share * (self.count * (1.0 - missed) / self.chosen - 1.0)


NO_EXPERTS = ExpertReads()


@dataclass(frozen=True)
class PassCost:
    """Milliseconds of one forward pass.

    ``base``: milliseconds for reading weights and KV once. If the model has ``experts``, this time grows with the
    number of tokens, because more tokens use more experts. ``slope``: milliseconds of computing each token after the
    first. ``one``: milliseconds of a pass over one token; None if such a pass takes ``base``.
    """

    base: float
    slope: float
    one: float | None = None
    experts: ExpertReads = NO_EXPERTS

    def ms(self, tokens: float) -> float:
        if tokens <= 1.0:
            return self.base if self.one is None else self.one
        return self.base * self.experts.growth(tokens) + self.slope * (tokens - 1.0)

    def scaled(self, factor: float) -> PassCost:
        """The cost if every pass takes ``factor`` times as long."""
        one = None if self.one is None else factor * self.one
        return replace(self, base=factor * self.base, slope=factor * self.slope, one=one)

    def further(self, tokens: float) -> float:
        """Milliseconds that one more token adds to a pass over ``tokens`` tokens."""
        growth = self.experts.growth
        return self.slope + self.base * (growth(tokens + 1.0) - growth(tokens))


@dataclass(frozen=True)
class Costs:
    """The costs of the passes of a round on this machine and in this context."""

    draft: float  # milliseconds to draft one token
    middle: PassCost
    verify: PassCost
    # Milliseconds that a round with passes over the retrieval cache takes in addition to drafting, these passes and the
    # verification. In this time, newest tokens are fed to the draft model and copied to the retrieval cache, and chunks
    # are chosen again.
    overhead: float = 0.0
    # milliseconds to choose the chunks of the retrieval cache before the answer's first pass over this cache
    selection: float = 0.0
    # Whether the costs rest on the time of a single plain step, the first after a prompt
    is_derived: bool = False

    def behind_another_book(self, plain_ms: float) -> Costs:
        """Estimate the costs on another book, on which a plain step takes ``plain_ms``. All costs of a verification
        change in proportion to a plain step. The costs of the draft model and of passes over the retrieval cache stay
        the same, because these passes read as many bytes on any book.
        """
        return replace(self, verify=self.verify.scaled(plain_ms / self.verify.ms(1)), is_derived=True)


def cost_of(
    one_ms: float,
    long_ms: float,
    long_tokens: int,
    experts: ExpertReads = NO_EXPERTS,
    two_ms: float | None = None,
) -> PassCost:
    """Derive the cost of a pass from measured passes.

    Args:
        one_ms: milliseconds of a pass over one token.
        long_ms: milliseconds of a pass over ``long_tokens`` tokens.
        experts: the experts that a pass reads, if the model is a mixture of experts.
        two_ms: milliseconds of a pass over two tokens. If it is given, base and slope follow from the passes over two
            and over ``long_tokens`` tokens, and the pass over one token is kept apart from them (``PassCost.one``).
    """
    if two_ms is None:
        slope = (long_ms - one_ms * experts.growth(long_tokens)) / (long_tokens - 1)
        return PassCost(max(one_ms, TUNING.least_ms), max(0.0, slope), experts=experts)
    two, long = experts.growth(2), experts.growth(long_tokens)
    base = ((long_tokens - 1) * two_ms - long_ms) / ((long_tokens - 1) * two - long)
    base = min(max(base, TUNING.least_ms), two_ms / two)
    # If the one-token pass took longer than the two-token pass, another program slowed it down.
    one_ms = min(one_ms, two_ms)
    return PassCost(base, two_ms - base * two, max(one_ms, TUNING.least_ms), experts)


class PassCostEstimate:
    """The estimated cost of a pass, which is updated from measured durations.

    Args:
        first: the initial cost, measured or assumed.
        is_known: whether the initial cost was measured for passes over one and over several tokens. Otherwise it was
            derived from a single pass: the first measurement of a pass over one token replaces this pass, and the
            initial cost is scaled accordingly.
    """

    def __init__(self, first: PassCost, tuning: Tuning = TUNING, *, is_known: bool = True) -> None:
        self.cost = first
        self._first, self._tuning, self._is_known = first, tuning, is_known
        self._one, self._ones = first.ms(1), int(is_known)
        self._newest_ones = deque([first.ms(1)], tuning.undisturbed_passes)
        # Weighted sums of gg, gx, xx, gy and xy, from which base and slope are fitted by least squares. g:
        # ``ExpertReads.growth`` (1 without experts), x: tokens - 1, y: milliseconds.
        self._sums = [0.0] * 5

    def add(self, tokens: float, ms: float) -> None:
        """Learn that a pass over ``tokens`` tokens took ``ms`` milliseconds."""
        tuning = self._tuning
        if tokens <= 1:
            self._ones += 1
            self._newest_ones.append(ms)
            weight = max(tuning.newest_weight, 1.0 / self._ones)
            self._one = min(self._one, tuning.most_disturbed * ms)
            self._one += weight * (min(ms, tuning.most_disturbed * self._one) - self._one)
            self._estimate()
            return
        x, y = tokens - 1.0, min(ms, tuning.most_disturbed * self.cost.ms(tokens))
        g = self._first.experts.growth(tokens)
        new = (g * g, g * x, x * x, g * y, x * y)
        self._sums = [tuning.cost_fade * old + value for old, value in zip(self._sums, new, strict=True)]
        self._estimate()

    @property
    def num_ones(self) -> int:
        """Number of passes over one token from which their time was estimated."""
        return self._ones

    @property
    def undisturbed_one(self) -> float:
        """Milliseconds of the fastest of the newest passes over one token (``Tuning.undisturbed_passes``), because
        other programs have probably not slowed down the fastest pass.
        """
        return min(self._newest_ones)

    def forget(self, steps: int, *, one: bool) -> None:
        """Reduce the weight of earlier passes, because in ``steps`` plain steps no pass over several tokens was
        measured. The initial cost then weighs more. If ``one`` is true, no pass over one token was measured either, and
        the estimate for one token also returns towards the initial cost.
        """
        kept = self._tuning.cost_forgetting**steps
        self._sums = [kept * old for old in self._sums]
        if one:
            self._one += (1.0 - kept) * (self._first.ms(1) - self._one)
        self._estimate()

    def _estimate(self) -> None:
        n, x, xx, y, xy = self._sums
        # Base and slope are each drawn towards the initial cost. Without this, the slope would be arbitrary if all
        # measured passes had the same length.
        first, weight = self._first, self._tuning.first_cost_weight
        if not self._is_known:
            # What was derived from one pass follows the passes over one token since. If that pass was slow, two tokens
            # would otherwise seem to cost too much (95 ms, where they took 82 and a plain step 68).
            first = first.scaled(self._one / max(self._tuning.least_ms, first.ms(1)))
        pull = weight * (self._tuning.long_pass - 1) ** 2
        n, y, xx, xy = n + weight, y + weight * first.base, xx + pull, xy + pull * first.slope
        slope = max(0.0, (n * xy - x * y) / (n * xx - x * x))
        self.cost = replace(first, base=max(self._tuning.least_ms, (y - slope * x) / n), slope=slope, one=self._one)
