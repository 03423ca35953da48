"""What the controller knows: acceptance statistics, what passes cost, and when the retrieval selection is refreshed.

A proposer that is sure of a token is accepted more often; how often is counted, not assumed: fading counts per level,
per confidence of the proposer, per length of a match. The counts start from weak priors, so that the first rounds are
sensible.

The queries and the KV are at hand in a verification pass, so a refresh there costs the scoring and the copy of the
chunks that changed. "never" is the published code of TriForce; "every" with 1 refreshes at every verification.

What the passes of a round cost on this machine and this context is measured once, then followed: a pass over n tokens
costs about base + slope * (n - 1) milliseconds, for reading weights and KV once, and computing for every token. One
token is apart: its products are of a matrix with a vector, and cost less than the line of the others says. The estimate
is a least squares whose older passes fade, so a book that grows or a machine that slows down is noticed.

Pure: no model, no tensors, no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from engine.decode.tuning import TUNING, Tuning

if TYPE_CHECKING:
    from engine.events import Acceptance


@dataclass(frozen=True)
class ProposalOutcome:
    """One proposal that was verified: how sure its proposer was of it, and whether it was accepted."""

    confidence: float
    accepted: bool


@dataclass(frozen=True)
class AcceptanceRates:
    """Chance that a proposed token is accepted.

    ``middle``: of the draft by the middle level; ``verify``: of the middle level by the full cache; ``direct``: of the
    draft by the full cache; ``lookup``: of the book's tokens by the full cache.
    """

    middle: float
    verify: float
    direct: float = 0.0
    lookup: float = 0.0


@dataclass(frozen=True)
class EarlyStop:
    """Ends a proposal once the chance that all of it is accepted falls below ``threshold``.

    ``rates``: acceptance by class of confidence; ``edges``: borders of these classes.
    """

    threshold: float = 0.0
    rates: tuple[float, ...] = TUNING.middle_priors
    edges: tuple[float, ...] = TUNING.confidence_edges

    def chance(self, confidence: float) -> float:
        """Chance that a token of this confidence is accepted."""
        return self.rates[bisect_right(self.edges, confidence)]


NO_EARLY_STOP = EarlyStop()


# Tokens without a trial that a change of the book counts for: rates age as far as they do.
_ANOTHER_BOOK = 100_000


class FadingRate:
    """A rate of acceptance whose older trials fade.

    Args:
        prior: acceptance before any trial.
        memory: trials that are remembered; the usual number if none is given.
    """

    def __init__(self, prior: float, memory: float | None = None, tuning: Tuning = TUNING) -> None:
        self.prior = prior
        self._tuning = tuning
        self._memory = tuning.memory if memory is None else memory
        self._accepted = self._trials = 0.0

    @property
    def rate(self) -> float:
        """The estimate now."""
        return self.rate_from(self.prior)

    @property
    def num_trials(self) -> float:
        """Trials that are still remembered."""
        return self._trials

    def rate_from(self, prior: float) -> float:
        """The estimate with another prior."""
        tuning = self._tuning
        weight = tuning.prior_trials / (1.0 + self._trials / tuning.prior_half_life)
        return min(tuning.highest_rate, (self._accepted + prior * weight) / (self._trials + weight))

    def add(self, accepted: float, trials: float) -> None:
        """Only the accepted prefix and the rejection that ended it are trials: what came after was not looked at."""
        fade = max(0.0, 1.0 - trials / self._memory)
        self._accepted = fade * self._accepted + accepted
        self._trials = fade * self._trials + trials

    def add_indirect(self, accepted: float, trials: float) -> None:
        """As ``add``, of trials at the other level: ``accepted`` of them would have been accepted here."""
        weight = self._tuning.indirect_weight
        self.add(weight * accepted, weight * trials)

    def age(self, tokens: int = 1) -> None:
        """This many tokens were made without a trial: the text may have become another one."""
        tuning = self._tuning
        if self._trials > tuning.aged_trials:
            kept = max(tuning.aged_trials / self._trials, (1.0 - tuning.ageing) ** tokens)
            self._accepted, self._trials = kept * self._accepted, kept * self._trials


class RatesByConfidence:
    """Acceptance by class of confidence."""

    def __init__(self, priors: tuple[float, ...], tuning: Tuning = TUNING) -> None:
        self._edges = tuning.confidence_edges
        self._rates = [FadingRate(prior, tuning=tuning) for prior in priors]

    def add(self, trials: list[ProposalOutcome]) -> None:
        for trial in trials:
            self._rates[bisect_right(self._edges, trial.confidence)].add(int(trial.accepted), 1)

    def age(self, tokens: int = 1) -> None:
        """As every ``FadingRate.age``."""
        for rate in self._rates:
            rate.age(tokens)

    def table(self) -> tuple[float, ...]:
        """The estimate of each class."""
        return tuple(rate.rate for rate in self._rates)


class AcceptanceStatistics:
    """All that rounds have shown of acceptance; ``middle``, ``verify``, ``direct`` as in ``AcceptanceRates``."""

    def __init__(self, tuning: Tuning = TUNING) -> None:
        self._match_edges = tuning.match_edges
        self.middle = FadingRate(tuning.middle_prior, tuning=tuning)
        self.verify = FadingRate(tuning.verify_prior, tuning=tuning)
        self.direct = FadingRate(tuning.middle_prior * tuning.verify_prior, tuning=tuning)
        self._lookup = [FadingRate(prior, tuning.lookup_memory, tuning) for prior in tuning.lookup_priors]
        self.draft_by_confidence = RatesByConfidence(tuning.draft_priors, tuning)
        self.middle_by_confidence = RatesByConfidence(tuning.middle_priors, tuning)
        self.loses = False
        """Whether speculation lost time, whatever the rates promise: until a try wins some."""

    def add_draft(self, accepted: int, trials: int, *, direct: bool) -> None:
        """The draft's proposals were verified by the full cache, ``direct``, or by the middle level. Either tells what
        the other would say: without that a plan that failed once is never looked at again."""
        verify = self.verify.rate
        if direct:
            self.direct.add(accepted, trials)
            self.middle.add_indirect(min(trials, accepted / verify), trials)
        else:
            self.middle.add(accepted, trials)
            self.direct.add_indirect(accepted * verify, trials)

    def age(self, tokens: int) -> None:
        """This many tokens were made without speculation. What the book says is learned all the same."""
        self.verify.age(tokens)
        self.middle_by_confidence.age(tokens)
        self.age_draft(tokens)

    def age_draft(self, rounds: int = 1) -> None:
        """This many rounds were run without the draft model."""
        for rate in (self.middle, self.direct, self.draft_by_confidence):
            rate.age(rounds)

    @property
    def tried(self) -> bool:
        """Whether anything was speculated."""
        return any(rate.num_trials for rate in (self.verify, self.middle, self.direct))

    def for_another_book(self) -> AcceptanceStatistics:
        """The same, in which all that was seen counts as a few trials from now on: it is a better guess than a prior,
        and soon overruled."""
        for rate in (self.verify, self.middle, self.direct, *self._lookup):
            rate.age(_ANOTHER_BOOK)
        for rates in (self.draft_by_confidence, self.middle_by_confidence):
            rates.age(_ANOTHER_BOOK)
        return self

    def lookup(self, match_length: int) -> FadingRate:
        """The rate of matches of this length."""
        return self._lookup[bisect_right(self._match_edges, match_length)]

    def rates(self, match_length: int = 0) -> AcceptanceRates:
        """Rates now, where the book offers a match of this length."""
        middle, verify = self.middle.rate, self.verify.rate
        lookup = self.lookup(match_length).rate if match_length else 0.0
        return AcceptanceRates(middle, verify, self.direct.rate_from(middle * verify), lookup)


# When the selection is refreshed -------------------------------------------------------------------------------


class RefreshPolicy(Protocol):
    """Says whether the verification that comes refreshes the selection."""

    def due(self) -> bool:
        """Whether to refresh now."""

    def observe(self, verify: Acceptance, *, renewed: bool, round_ms: float = 0.0, refresh_ms: float = 0.0) -> None:
        """A speculating round was verified, and the selection ``renewed`` with it or not; milliseconds of the round,
        and those of them that a refresh took."""


class Never:
    """The selection made for the question stays."""

    def due(self) -> bool:
        return False

    def observe(self, verify: Acceptance, *, renewed: bool, round_ms: float = 0.0, refresh_ms: float = 0.0) -> None:
        pass


class Every:
    """Refreshes at every ``count``-th verification of a speculating round, and first at the ``first``-th.

    Args:
        tokens: that must have been verified since, too.
        share: of the rounds' time that refreshes may take; the last one tells what the next will. None: any.
    """

    def __init__(self, count: int, first: int = 0, tokens: int = 0, share: float | None = 1.0) -> None:
        self._count, self._tokens, self._share = count, tokens, share
        self._since, self._verified = count - (first or count), 0
        self._rounds_ms = self._refresh_ms = 0.0  # since the last one; of that

    def due(self) -> bool:
        saved = self._share is None or self._rounds_ms * self._share >= self._refresh_ms
        return saved and self._since + 1 >= self._count and self._verified >= self._tokens

    def observe(self, verify: Acceptance, *, renewed: bool, round_ms: float = 0.0, refresh_ms: float = 0.0) -> None:
        if renewed:
            self._since, self._verified, self._rounds_ms, self._refresh_ms = 0, 0, 0.0, refresh_ms
            return
        self._since += 1
        self._verified += verify.accepted + 1
        self._rounds_ms += round_ms


class WhenAcceptanceDrops:
    """Refreshes once the newest verifications accept clearly less than those before them."""

    def __init__(self, tuning: Tuning = TUNING) -> None:
        self._tuning = tuning
        self._newest = _WindowRate(tuning.drop_newest)
        self._usual = _WindowRate(tuning.drop_usual)
        self._usual.add(tuning.usual_rate * tuning.usual_trials, tuning.usual_trials)
        self._pause = 0

    def due(self) -> bool:
        return self._pause == 0 and self._newest.rate < self._usual.rate - self._tuning.drop

    def observe(self, verify: Acceptance, *, renewed: bool, round_ms: float = 0.0, refresh_ms: float = 0.0) -> None:
        trials = min(verify.proposed, verify.accepted + 1)
        for past in (self._newest, self._usual):
            past.add(verify.accepted, trials)
        self._pause = self._tuning.drop_pause if renewed else max(0, self._pause - 1)
        if renewed:
            self._newest = _WindowRate(self._tuning.drop_newest)


class _WindowRate:
    """A rate over about the last ``memory`` trials, without a prior; 1 before any."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._accepted = self._trials = 0.0

    @property
    def rate(self) -> float:
        return self._accepted / self._trials if self._trials else 1.0

    def add(self, accepted: float, trials: float) -> None:
        fade = max(0.0, 1.0 - trials / self._memory)
        self._accepted = fade * self._accepted + accepted
        self._trials = fade * self._trials + trials


def policy_of(name: str, every: int | None, *, timed: bool = True) -> RefreshPolicy:
    """The policy that a configuration names: "never", "drop" or "every" (with its count, or ours). Unless it is
    ``timed`` no clock decides."""
    if name == "every":
        share = TUNING.refresh_share if timed else None
        own = TUNING.refresh_every, TUNING.refresh_first, TUNING.refresh_tokens, share
        return Every(every, share=1.0 if timed else None) if every else Every(*own)
    return Never() if name == "never" else WhenAcceptanceDrops()


@dataclass(frozen=True)
class ExpertReads:
    """What a mixture of experts reads in one pass: of ``count`` experts in a layer a token asks ``chosen``, and these
    are ``share`` of all bytes that a pass over one token reads."""

    count: int = 1
    chosen: int = 1
    share: float = 0.0

    def growth(self, tokens: float) -> float:
        """Bytes that a pass reads, in those of a pass over one token, if tokens choose at random."""
        missed = (1.0 - self.chosen / self.count) ** tokens
        return 1.0 + self.share * (self.count * (1.0 - missed) / self.chosen - 1.0)


NO_EXPERTS = ExpertReads()


@dataclass(frozen=True)
class PassCost:
    """Milliseconds of one forward pass: ``base`` with one token, which grows with the ``experts`` that more tokens ask,
    and ``slope`` more for each further one; ``one`` with one token where that has been seen to differ."""

    base: float
    slope: float
    one: float | None = None
    experts: ExpertReads = NO_EXPERTS

    def ms(self, tokens: float) -> float:
        if tokens <= 1.0:
            return self.base if self.one is None else self.one
        return self.base * self.experts.growth(tokens) + self.slope * (tokens - 1.0)

    def further(self, tokens: float) -> float:
        """Milliseconds of one token more than ``tokens``."""
        growth = self.experts.growth
        return self.slope + self.base * (growth(tokens + 1.0) - growth(tokens))


@dataclass(frozen=True)
class Costs:
    """What the levels of a round cost on this machine and this context."""

    draft: float  # milliseconds of one drafted token
    middle: PassCost
    verify: PassCost
    beside: float = 0.0  # milliseconds of a round with middle passes beside its passes: refreshes, levels that catch up

    def behind_another_book(self, plain_ms: float) -> Costs:
        """The same where a plain step takes ``plain_ms``: what a verification takes beyond it grows with the book as it
        does, and the cheap levels read as much as before."""
        longer = plain_ms / self.verify.ms(1)
        verify = replace(self.verify, base=longer * self.verify.base, slope=longer * self.verify.slope, one=plain_ms)
        return replace(self, verify=verify)


def cost_of(
    one_ms: float,
    long_ms: float,
    long_tokens: int,
    experts: ExpertReads = NO_EXPERTS,
    two_ms: float | None = None,
) -> PassCost:
    """The cost behind measured passes over one token and over ``long_tokens``, and over two, where a step is apart."""
    if two_ms is None:
        slope = (long_ms - one_ms * experts.growth(long_tokens)) / (long_tokens - 1)
        return PassCost(max(one_ms, TUNING.least_ms), max(0.0, slope), experts=experts)
    two, long = experts.growth(2), experts.growth(long_tokens)
    base = ((long_tokens - 1) * two_ms - long_ms) / ((long_tokens - 1) * two - long)
    base = min(max(base, TUNING.least_ms), two_ms / two)
    one_ms = min(one_ms, two_ms)  # where one token took longer the moment was a slow one
    return PassCost(base, two_ms - base * two, max(one_ms, TUNING.least_ms), experts)


class PassCostEstimate:
    """Follows a pass's cost by the durations of passes.

    Args:
        first: what was measured or assumed before.
    """

    def __init__(self, first: PassCost, tuning: Tuning = TUNING) -> None:
        self.cost = first
        self._first, self._tuning = first, tuning
        self._one, self._ones = first.ms(1), 1
        # Sums of gg, gx, xx, gy, xy with g = growth, 1 without experts, x = tokens - 1 and y = ms.
        self._sums = [0.0] * 5

    def add(self, tokens: float, ms: float) -> None:
        """A pass over ``tokens`` took ``ms``."""
        tuning = self._tuning
        if tokens <= 1:
            self._ones += 1
            weight = max(tuning.newest_weight, 1.0 / self._ones)
            self._one = min(self._one, tuning.most_disturbed * ms)
            self._one += weight * (min(ms, tuning.most_disturbed * self._one) - self._one)
            self.cost = replace(self.cost, one=self._one)
            return
        x, y = tokens - 1.0, min(ms, tuning.most_disturbed * self.cost.ms(tokens))
        g = self._first.experts.growth(tokens)
        new = (g * g, g * x, x * x, g * y, x * y)
        self._sums = [tuning.cost_fade * old + value for old, value in zip(self._sums, new, strict=True)]
        self._estimate()

    def forget(self, steps: int, *, one: bool) -> None:
        """During this many plain steps there was no pass over several tokens, nor over ``one``: earlier ones count for
        less from now on, and what was measured first for more."""
        kept = self._tuning.cost_forgetting**steps
        self._sums = [kept * old for old in self._sums]
        if one:
            self._one += (1.0 - kept) * (self._first.ms(1) - self._one)
        self._estimate()

    def _estimate(self) -> None:
        n, x, xx, y, xy = self._sums
        # The first measurement holds base and slope each by itself: passes of one length must not bend the slope.
        first, weight = self._first, self._tuning.first_cost_weight
        pull = weight * (self._tuning.long_pass - 1) ** 2
        n, y, xx, xy = n + weight, y + weight * first.base, xx + pull, xy + pull * first.slope
        slope = max(0.0, (n * xy - x * y) / (n * xx - x * x))
        self.cost = replace(first, base=max(self._tuning.least_ms, (y - slope * x) / n), slope=slope, one=self._one)
