"""How many tokens to draft at each level: chosen every round from measured costs and acceptance.

The decision is a pure function, ``best_lengths``: it maximises expected tokens per millisecond over a small grid of
lengths, with plain decoding as one of the candidates, so a level that does not pay is dropped. ``Controller`` keeps the
running estimates that it decides from, and now and then tries what it would not choose, because acceptance changes with
the text. Lengths change only speed, never the law of the text. Knows no model and no tensors.

Model of a round: k middle passes, each over g drafted tokens, give E(a1, g) tokens each; m of them pending give
E(a2, m) committed tokens, where E(a, n) = 1 + a + ... + a^n is the expected accepted prefix with its extra token
(Leviathan et al. 2023, arXiv 2211.17192, equation 1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from engine.events import Round

# Weight of the newest round in running estimates: about six rounds are remembered.
_NEWEST = 0.15
# Beliefs before anything has been seen: a weak draft, a good retrieval selection.
_FIRST_MIDDLE, _FIRST_VERIFY = 0.5, 0.85
# Cost of one more token in a pass, as a share of the pass with one token, before it has been measured.
_FIRST_SLOPE = 0.04
# A choice must promise this much more than the present one before it replaces it: estimates are noisy.
_WORTH_CHANGING = 1.03
# After so many rounds without speculation one round tries it again; each try that finds nothing doubles the wait.
_FIRST_PROBE, _LAST_PROBE = 16, 512
# Trials of acceptance that are remembered, per level: older ones fade.
_MEMORY = 40.0
# How many trials the first beliefs count for.
_FIRST_TRIALS = 4.0
MOST_PENDING = 48
"""Tokens that one verification judges at most, its last proposals' overhang apart."""

# Acceptance is never believed to be certain.
_SUREST = 0.995


@dataclass(frozen=True)
class PassCost:
    """Milliseconds of one forward pass: ``base`` with one token, ``slope`` more for each further one."""

    base: float
    slope: float

    def ms(self, tokens: float) -> float:
        return self.base + self.slope * max(0.0, tokens - 1.0)


@dataclass(frozen=True)
class Costs:
    """What the stages of a round cost on this machine and this context."""

    draft: float  # milliseconds of one drafted token
    middle: PassCost
    verify: PassCost


@dataclass(frozen=True)
class Rates:
    """Chance that a proposed token is accepted, at each level."""

    middle: float
    verify: float


@dataclass(frozen=True)
class _Record:
    """Fading counts of accepted proposals and of trials."""

    accepted: float
    trials: float

    @property
    def rate(self) -> float:
        return self.accepted / self.trials

    def plus(self, accepted: int, trials: int) -> _Record:
        """Only the accepted prefix and the rejection that ended it are trials: what came after was not looked at."""
        fade = max(0.0, 1.0 - trials / _MEMORY)
        return _Record(fade * self.accepted + accepted, fade * self.trials + trials) if trials else self


@dataclass(frozen=True)
class Choice:
    """Lengths for a round: ``draft`` tokens per middle pass, ``passes`` of them; no pass is plain decoding.

    Passes end early once ``pending`` tokens wait for verification.
    """

    draft: int
    passes: int
    pending: int = MOST_PENDING


PLAIN = Choice(0, 0)


def expected_tokens(rate: float, proposed: float) -> float:
    """Expected accepted prefix of ``proposed`` tokens, with the token that follows it."""
    rate = min(rate, _SUREST)
    return float((1.0 - rate ** (proposed + 1.0)) / (1.0 - rate))


def tokens_per_ms(choice: Choice, costs: Costs, rates: Rates) -> float:
    """Expected speed of a round."""
    if choice.passes == 0:
        return 1.0 / costs.verify.ms(1)
    made = expected_tokens(rates.middle, choice.draft) if choice.draft else 1.0
    pending = choice.passes * made
    ms = choice.passes * (choice.draft * costs.draft + costs.middle.ms(choice.draft + 1)) + costs.verify.ms(pending + 1)
    return expected_tokens(rates.verify, pending) / ms


def best_lengths(costs: Costs, rates: Rates, most_draft: int, most_passes: int) -> Choice:
    """The fastest of all lengths, plain decoding among them."""
    choices = [PLAIN]
    choices += [Choice(draft, passes) for draft in range(most_draft + 1) for passes in range(1, most_passes + 1)]
    return max(choices, key=lambda choice: tokens_per_ms(choice, costs, rates))


class Pace(Protocol):
    """Says how much to speculate in the next round, and learns from it."""

    def next(self) -> Choice:
        """Lengths for the next round."""

    def observe(self, choice: Choice, done: Round) -> None:
        """A round was run with ``choice``."""


class FixedLengths:
    """The same lengths in every round: for tests, for sweeps, and for sampling that a seed must be able to repeat."""

    def __init__(self, draft: int, pending: int) -> None:
        self.choice = Choice(draft, pending, pending)

    def next(self) -> Choice:
        return self.choice

    def observe(self, choice: Choice, done: Round) -> None:
        pass


class Controller:
    """Chooses the lengths of the next round.

    Args:
        plain_ms: one plain step measured on this context.
        most_draft, most_passes: bounds of the choice; ``most_draft`` is 0 without a draft model.
    """

    def __init__(self, plain_ms: float, most_draft: int, most_passes: int) -> None:
        self.most_draft = most_draft
        self.most_passes = most_passes
        verify = PassCost(plain_ms, _FIRST_SLOPE * plain_ms)
        # Unknown yet: assumed cheap, so that the first round tries them and measures.
        self.costs = Costs(0.02 * plain_ms, PassCost(0.15 * plain_ms, _FIRST_SLOPE * 0.15 * plain_ms), verify)
        self._middle = _Record(_FIRST_MIDDLE * _FIRST_TRIALS, _FIRST_TRIALS)
        self._verify = _Record(_FIRST_VERIFY * _FIRST_TRIALS, _FIRST_TRIALS)
        self.choice = best_lengths(self.costs, self.rates, most_draft, most_passes)
        self._plain_rounds = 0
        self._wait = _FIRST_PROBE
        self._measured = False

    @property
    def rates(self) -> Rates:
        """Acceptance as it is believed now."""
        return Rates(self._middle.rate, self._verify.rate)

    def next(self) -> Choice:
        """Lengths for the next round."""
        best = best_lengths(self.costs, self.rates, self.most_draft, self.most_passes)
        gain = tokens_per_ms(best, self.costs, self.rates) / tokens_per_ms(self.choice, self.costs, self.rates)
        if gain > _WORTH_CHANGING:
            self.choice = best
        if self.choice.passes:
            self._plain_rounds, self._wait = 0, _FIRST_PROBE
            return self.choice
        self._plain_rounds += 1
        if self._plain_rounds < self._wait:
            return PLAIN
        self._plain_rounds, self._wait = 0, min(_LAST_PROBE, 2 * self._wait)
        return Choice(min(2, self.most_draft), 1)

    def observe(self, choice: Choice, done: Round) -> None:
        """Learn from a round that was run with ``choice``."""
        costs, weight = self.costs, _NEWEST if self._measured else 1.0
        pending = done.verify.proposed
        verify = _learn_pass(costs.verify, done.split.verify, pending + 1, _NEWEST)
        if done.passes:
            self._measured = True
            per_pass = done.middle.proposed / done.passes
            middle = _learn_pass(costs.middle, done.split.middle / done.passes, per_pass + 1, weight)
            draft = costs.draft
            if choice.draft and done.middle.proposed:
                draft = _blend(draft, done.split.draft / done.middle.proposed, weight)
            costs = replace(costs, draft=draft, middle=middle)
        self.costs = replace(costs, verify=verify)
        self._middle = self._middle.plus(done.middle.accepted, done.middle_trials)
        self._verify = self._verify.plus(done.verify.accepted, min(pending, done.verify.accepted + 1))


def _learn_pass(cost: PassCost, ms: float, tokens: float, weight: float) -> PassCost:
    """Split a measured pass between base and slope: a short pass says more of the base, a long one of the slope."""
    if tokens <= 1.0:
        return replace(cost, base=_blend(cost.base, ms, weight))
    error = ms - cost.ms(tokens)
    share = cost.base / cost.ms(tokens)
    base = cost.base + weight * share * error
    slope = cost.slope + weight * (1.0 - share) * error / (tokens - 1.0)
    return PassCost(max(base, 1e-3), max(slope, 0.0))


def _blend(old: float, new: float, weight: float) -> float:
    return old + weight * (new - old)
