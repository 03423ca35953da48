"""What the passes of a round cost on this machine and this context: measured once, then followed.

A pass over n tokens costs about base + slope * (n - 1) milliseconds: reading weights and KV once, and computing for
every token. One token is apart: its products are of a matrix with a vector, and cost less than the line of the others
says. The fit is a least squares whose older passes fade, so a book that grows or a machine that slows down is noticed.
Pure: durations are handed in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# What a pass counts after the next one has been seen: about twenty passes are remembered.
_FADE = 0.95
# What earlier passes count for after a plain step in their place: a slow moment must not be believed for ever.
_FORGETS = 0.98
# Weight of the first measurement's base, and of its slope, against the passes that follow it.
_FIRST_WEIGHT = 0.3
# A pass that took this many times what was expected was disturbed: it counts for no more than that.
_DISTURBED = 3.0
# Tokens of the long pass that the first measurement stands for.
_LONG_PASS = 16
_LEAST_MS = 1e-3
# Weight of the newest pass over one token in what such a pass costs, once there have been a few.
_NEWEST = 0.1


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
    """What the stages of a round cost on this machine and this context."""

    draft: float  # milliseconds of one drafted token
    middle: PassCost
    verify: PassCost


def cost_of(one_ms: float, long_ms: float, long_tokens: int) -> PassCost:
    """The cost behind two measured passes, over one token and over ``long_tokens``."""
    return PassCost(max(one_ms, _LEAST_MS), max(0.0, (long_ms - one_ms) / (long_tokens - 1)))


class CostFit:
    """Follows a pass's cost from what passes took.

    Args:
        first: what was measured or believed before.
    """

    def __init__(self, first: PassCost) -> None:
        self.cost = first
        self._first = first
        self._one, self._ones = first.ms(1), 1
        # Sums of 1, x, xx, y, xy with x = tokens - 1 and y = ms.
        self._sums = [0.0] * 5

    def add(self, tokens: float, ms: float) -> None:
        """A pass over ``tokens`` took ``ms``."""
        if tokens <= 1:
            self._ones += 1
            self._one += max(_NEWEST, 1.0 / self._ones) * (min(ms, _DISTURBED * self._one) - self._one)
            self.cost = replace(self.cost, one=self._one)
            return
        x, y = tokens - 1.0, min(ms, _DISTURBED * self.cost.ms(tokens))
        new = (1.0, x, x * x, y, x * y)
        self._sums = [_FADE * old + value for old, value in zip(self._sums, new, strict=True)]
        self._fit()

    def forget(self, steps: int, *, one: bool) -> None:
        """For so many plain steps no pass over several tokens was taken, nor over ``one``: what they took counts for
        less from now on, and what was measured first for more."""
        kept = _FORGETS**steps
        self._sums = [kept * old for old in self._sums]
        if one:
            self._one += (1.0 - kept) * (self._first.ms(1) - self._one)
        self._fit()

    def _fit(self) -> None:
        n, x, xx, y, xy = self._sums
        # The first measurement holds base and slope each by itself: passes of one length must not bend the slope.
        first, pull = self._first, _FIRST_WEIGHT * (_LONG_PASS - 1) ** 2
        n, y, xx, xy = n + _FIRST_WEIGHT, y + _FIRST_WEIGHT * first.base, xx + pull, xy + pull * first.slope
        slope = max(0.0, (n * xy - x * y) / (n * xx - x * x))
        self.cost = PassCost(max(_LEAST_MS, (y - slope * x) / n), slope, self._one)
