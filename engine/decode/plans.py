"""Describes plans of a round: how many tokens are proposed, and who proposes them. Finds the fastest plan from costs of
passes and acceptance rates. Pure: no tensors.

E(a, n) = 1 + a + ... + a^n is the expected number of tokens from verifying n proposals with the acceptance rate a: the
accepted prefix, and the token that follows it (Leviathan et al. 2023, arXiv 2211.17192, equation 1). The plans, and the
number of tokens that a round with each plan makes (a1 is the rate on the retrieval cache, a2 the rate on the full
cache):

    hierarchy   k passes over the retrieval cache, with g drafted tokens each: m = k E(a1, g) pending tokens, which give
                E(a2, m) tokens
    draft       g drafted tokens straight to the full cache: E(a, g) tokens
    copy        n tokens of the book straight to the full cache: E(a, n) tokens, where a depends on the match's length
    plain       one token

A round stops proposing early (``EarlyStop``) if one more step would add fewer expected tokens than the plan makes in
the time of this step. This happens when the tokens proposed so far are unlikely to be all accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from engine.decode.acceptance import NO_EARLY_STOP, AcceptanceRates, Costs, EarlyStop
from engine.decode.tuning import TUNING, Tuning


@dataclass(frozen=True)
class DraftPlan:
    """The plan of a round: how to speculate.

    - If ``passes`` is above 0, the round has up to ``passes`` middle passes (passes of the target over the retrieval
      cache) with ``draft`` drafted tokens each. Once at least ``pending`` tokens wait for verification, no further pass
      is made.
    - If ``passes`` is 0, ``draft`` tokens go straight to verification.
    - If ``copy`` is above 0, ``copy`` tokens of the book go straight to verification.
    - If all three are 0, the round is a plain step.

    ``draft_stop`` ends drafting early, and ``middle_stop`` ends the middle passes early.
    """

    draft: int = 0
    passes: int = 0
    pending: int = TUNING.most_pending
    copy: int = 0
    draft_stop: EarlyStop = NO_EARLY_STOP
    middle_stop: EarlyStop = NO_EARLY_STOP

    @property
    def speculates(self) -> bool:
        return self.passes > 0 or self.draft > 0 or self.copy > 0


PLAIN = DraftPlan()


@dataclass(frozen=True)
class PlanLimits:
    """The maximum numbers in a plan: tokens drafted at once (``draft``; 0 without a draft model), passes over the
    retrieval cache (``passes``), and tokens copied from the book (``copy``; 0 if nothing is copied).
    """

    draft: int
    passes: int
    copy: int = 0


def expected_tokens(rate: float, proposed: float) -> float:
    """Return the expected number of tokens from verifying ``proposed`` tokens: the accepted prefix, and the token that
    follows it.
    """
    rate = min(rate, 0.9999)
    return float((1.0 - rate ** (proposed + 1.0)) / (1.0 - rate))


def expected_round(plan: DraftPlan, costs: Costs, rates: AcceptanceRates) -> tuple[float, float]:
    """Return the expected number of tokens that a round makes, and its expected milliseconds."""
    if plan.copy:
        return expected_tokens(rates.lookup, plan.copy), costs.verify.ms(plan.copy + 1)
    if plan.passes == 0:
        ms = plan.draft * costs.draft + costs.verify.ms(plan.draft + 1)
        return expected_tokens(rates.direct, plan.draft) if plan.draft else 1.0, ms
    pending = min(plan.pending, plan.passes * expected_tokens(rates.middle, plan.draft))
    ms = plan.passes * (plan.draft * costs.draft + costs.middle.ms(plan.draft + 1)) + costs.verify.ms(pending + 1)
    return expected_tokens(rates.verify, pending), ms + costs.overhead


def tokens_per_ms(plan: DraftPlan, costs: Costs, rates: AcceptanceRates) -> float:
    """Return the expected tokens of a round divided by its expected milliseconds."""
    tokens, ms = expected_round(plan, costs, rates)
    return tokens / ms


def most_passes(costs: Costs, tuning: Tuning = TUNING) -> int:
    """Return the maximum number of passes over the retrieval cache in a round.

    The maximum is ``Tuning.most_passes``, or the number of passes that together take no longer than a verification, if
    this number is larger. It is larger, for example, if a verification takes seconds because spilled KV comes over a
    bus. In any case, at most ``Tuning.most_pending`` passes are allowed.
    """
    beside = int(costs.verify.ms(1) / costs.middle.ms(1))
    return max(tuning.most_passes, min(tuning.most_pending, beside))


def best_plan(costs: Costs, rates: AcceptanceRates, limits: PlanLimits) -> DraftPlan:
    """Return the fastest plan within ``limits``. Plain decoding is one of the plans."""
    return max(_plans(limits), key=lambda plan: tokens_per_ms(plan, costs, rates))


@lru_cache(maxsize=32)
def _plans(limits: PlanLimits) -> tuple[DraftPlan, ...]:
    drafts = (DraftPlan(draft) for draft in range(1, limits.draft + 1))
    passes = (DraftPlan(draft, n) for draft in range(limits.draft + 1) for n in range(1, limits.passes + 1))
    return PLAIN, *drafts, *passes, *(DraftPlan(copy=copy) for copy in TUNING.copy_lengths if copy <= limits.copy)


def stop_thresholds(
    plan: DraftPlan, costs: Costs, rates: AcceptanceRates, highest: float = TUNING.highest_threshold
) -> tuple[float, float]:
    """Return two thresholds for the probability that all proposals so far are accepted. Below the first, drafting
    another token costs more time than it gains. Below the second, another middle pass (pass of the target over the
    retrieval cache) costs more time than it gains. The second threshold is 0 if the plan has no middle passes. Neither
    threshold exceeds ``highest``.
    """
    speed = tokens_per_ms(plan, costs, rates)
    if plan.passes == 0:
        return min(highest, speed * (costs.draft + costs.verify.further(plan.draft + 1))), 0.0
    made = expected_tokens(rates.middle, plan.draft)
    verify_ms = costs.verify.further(plan.passes * made)
    pass_ms = plan.draft * costs.draft + costs.middle.ms(plan.draft + 1) + made * verify_ms
    gain = rates.verify * expected_tokens(rates.verify, made - 1.0)
    # A drafted token is useful only if all earlier proposals of the round are accepted. On average, half of the round's
    # proposals are earlier. So the value of a token is multiplied by the probability that half of the proposals are
    # accepted.
    worth = rates.verify ** (0.5 * plan.passes * made)
    token_ms = costs.draft + costs.middle.further(plan.draft + 1) + verify_ms
    return min(highest, speed * token_ms / worth), min(highest, speed * pass_ms / gain)
