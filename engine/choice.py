"""Ways to speculate in a round, and which is fastest: pure functions of costs and acceptance.

Ways to speculate, and their model, where E(a, n) = 1 + a + ... + a^n is the expected accepted prefix of n proposals
with the token that follows it (Leviathan et al. 2023, arXiv 2211.17192, equation 1):

    hierarchy   k middle passes, each over g drafted tokens, give m = k E(a1, g) pending, and E(a2, m) committed tokens
    draft       g drafted tokens straight to the full cache: E(a, g) tokens
    copy        n tokens of the book straight to the full cache: E(a, n) tokens, with a by the length of the match
    plain       one token

Within a round, proposing ends early once the chance that everything so far stands is so small that what one more step
would add in expected tokens is worth less than its time (``Patience``), at the speed that the choice promises.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.beliefs import ENDLESS, Patience, Rates, Trial
from engine.costs import Costs

# Patience is never so short that a sure token ends it.
_MOST_LEAST = 0.9
MOST_PENDING = 48
"""Tokens that one verification judges at most, its last proposals' overhang apart."""

COPY_LENGTHS = (4, 8, 16, 24, 32, 48, 64)
"""Tokens of the book that may be verified at once."""


@dataclass(frozen=True)
class Offer:
    """What the book offers: ``tokens`` followed the last ``match`` tokens of the text at an earlier place."""

    match: int = 0
    tokens: tuple[int, ...] = ()


NOTHING = Offer()


@dataclass(frozen=True)
class Choice:
    """How to speculate in a round.

    ``passes`` middle passes over ``draft`` tokens each, ended early once ``pending`` tokens wait for verification; no
    pass: ``draft`` tokens go straight to verification; ``copy``: so many tokens of the book do. All zero is plain.
    """

    draft: int = 0
    passes: int = 0
    pending: int = MOST_PENDING
    copy: int = 0
    draft_patience: Patience = ENDLESS
    middle_patience: Patience = ENDLESS

    @property
    def speculates(self) -> bool:
        return self.passes > 0 or self.draft > 0 or self.copy > 0


PLAIN = Choice()


@dataclass(frozen=True)
class Limits:
    """Bounds of the choice. ``draft`` is 0 without a draft model, ``copy`` where the book offers nothing."""

    draft: int
    passes: int
    copy: int = 0


@dataclass
class Lesson:
    """What a round showed beside its tokens.

    ``drafted`` and ``judged`` are the draft model's and the middle level's proposals that were looked at; ``passes``
    are (tokens, ms) of the middle passes; ``draft_ms`` is the time of ``draft_steps`` steps of the draft model.
    """

    offer: Offer = NOTHING
    drafted: list[Trial] = field(default_factory=list)
    judged: list[Trial] = field(default_factory=list)
    passes: list[tuple[int, float]] = field(default_factory=list)
    draft_steps: int = 0
    draft_ms: float = 0.0


def expected_tokens(rate: float, proposed: float) -> float:
    """Expected accepted prefix of ``proposed`` tokens, with the token that follows it."""
    rate = min(rate, 0.9999)
    return float((1.0 - rate ** (proposed + 1.0)) / (1.0 - rate))


def tokens_per_ms(choice: Choice, costs: Costs, rates: Rates) -> float:
    """Expected speed of a round."""
    if choice.copy:
        return expected_tokens(rates.book, choice.copy) / costs.verify.ms(choice.copy + 1)
    if choice.passes == 0:
        ms = choice.draft * costs.draft + costs.verify.ms(choice.draft + 1)
        return expected_tokens(rates.direct, choice.draft) / ms if choice.draft else 1.0 / ms
    pending = choice.passes * expected_tokens(rates.middle, choice.draft)
    ms = choice.passes * (choice.draft * costs.draft + costs.middle.ms(choice.draft + 1)) + costs.verify.ms(pending + 1)
    return expected_tokens(rates.verify, pending) / ms


def best_choice(costs: Costs, rates: Rates, limits: Limits) -> Choice:
    """The fastest of all ways to speculate, plain decoding among them."""
    choices = [PLAIN, *(Choice(draft, 0) for draft in range(1, limits.draft + 1))]
    choices += [Choice(draft, passes) for draft in range(limits.draft + 1) for passes in range(1, limits.passes + 1)]
    choices += [Choice(copy=copy) for copy in COPY_LENGTHS if copy <= limits.copy]
    return max(choices, key=lambda choice: tokens_per_ms(choice, costs, rates))


def least_chances(choice: Choice, costs: Costs, rates: Rates) -> tuple[float, float]:
    """Chance of standing below which one more drafted token, and one more middle pass, no longer pays."""
    speed = tokens_per_ms(choice, costs, rates)
    if choice.passes == 0:
        return min(_MOST_LEAST, speed * (costs.draft + costs.verify.slope)), 0.0
    made = expected_tokens(rates.middle, choice.draft)
    pass_ms = choice.draft * costs.draft + costs.middle.ms(choice.draft + 1) + made * costs.verify.slope
    gain = rates.verify * expected_tokens(rates.verify, made - 1.0)
    # A drafted token is worth what is left of it after the middle of the round's proposals have been verified.
    worth = rates.verify ** (0.5 * choice.passes * made)
    token_ms = costs.draft + costs.middle.slope + costs.verify.slope
    return min(_MOST_LEAST, speed * token_ms / worth), min(_MOST_LEAST, speed * pass_ms / gain)
