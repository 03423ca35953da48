"""What the passes of a round cost on this machine and this context: measured once, then followed.

A pass over n tokens costs about base + slope * (n - 1) milliseconds: reading weights and KV once, and computing for
every token. One token is apart: its products are of a matrix with a vector, and cost less than the line of the others
says. The estimate is a least squares whose older passes fade, so a book that grows or a machine that slows down is
noticed. Pure: durations are handed in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.decode.tuning import TUNING, Tuning

# Tokens of the long pass that the first measurement represents in the least squares.
_LONG_PASS = 16
_LEAST_MS = 1e-3


@dataclass(frozen=True)
class PassCost:
    """Milliseconds of one forward pass: ``base`` with one token, ``slope`` more for each further one; ``one`` with one
    token where that has been seen to differ."""

    base: float
    slope: float
    one: float | None = None

    def ms(self, tokens: float) -> float:
        if tokens <= 1.0:
            return self.base if self.one is None else self.one
        return self.base + self.slope * (tokens - 1.0)


@dataclass(frozen=True)
class Costs:
    """What the levels of a round cost on this machine and this context."""

    draft: float  # milliseconds of one drafted token
    middle: PassCost
    verify: PassCost


def cost_of(one_ms: float, long_ms: float, long_tokens: int) -> PassCost:
    """The cost behind two measured passes, over one token and over ``long_tokens``."""
    return PassCost(max(one_ms, _LEAST_MS), max(0.0, (long_ms - one_ms) / (long_tokens - 1)))


class PassCostEstimate:
    """Follows a pass's cost by the durations of passes.

    Args:
        first: what was measured or assumed before.
    """

    def __init__(self, first: PassCost, tuning: Tuning = TUNING) -> None:
        self.cost = first
        self._first, self._tuning = first, tuning
        self._one, self._ones = first.ms(1), 1
        # Sums of 1, x, xx, y, xy with x = tokens - 1 and y = ms.
        self._sums = [0.0] * 5

    def add(self, tokens: float, ms: float) -> None:
        """A pass over ``tokens`` took ``ms``."""
        tuning = self._tuning
        if tokens <= 1:
            self._ones += 1
            weight = max(tuning.newest_weight, 1.0 / self._ones)
            self._one += weight * (min(ms, tuning.most_disturbed * self._one) - self._one)
            self.cost = replace(self.cost, one=self._one)
            return
        x, y = tokens - 1.0, min(ms, tuning.most_disturbed * self.cost.ms(tokens))
        new = (1.0, x, x * x, y, x * y)
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
        pull = weight * (_LONG_PASS - 1) ** 2
        n, y, xx, xy = n + weight, y + weight * first.base, xx + pull, xy + pull * first.slope
        slope = max(0.0, (n * xy - x * y) / (n * xx - x * x))
        self.cost = PassCost(max(_LEAST_MS, (y - slope * x) / n), slope, self._one)
