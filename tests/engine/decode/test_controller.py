"""The controller without a model: right plans at the extremes, and never slower than plain for long."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.decode.acceptance import (
    AcceptanceRates,
    AcceptanceStatistics,
    Costs,
    EarlyStop,
    ExpertReads,
    FadingRate,
    PassCost,
    PassCostEstimate,
    ProposalOutcome,
    cost_of,
)
from engine.decode.controller import Controller, FixedLengths, RoundObservation, Unclocked
from engine.decode.lookup import NO_MATCH, LookupMatch
from engine.decode.plans import (
    PLAIN,
    DraftPlan,
    PlanLimits,
    best_plan,
    expected_tokens,
    most_passes,
    stop_thresholds,
    tokens_per_ms,
)
from engine.decode.tuning import TUNING
from engine.events import Acceptance, Round, TimeSplit, TokenSource

LONG_BOOK = Costs(draft=1.0, middle=PassCost(8.0, 0.3), verify=PassCost(100.0, 2.0))
SHORT_TEXT = Costs(draft=1.0, middle=PassCost(8.0, 0.3), verify=PassCost(8.0, 0.3))
SLOW_DRAFT = Costs(3.0, PassCost(20, 1), PassCost(50, 4))
# A pass over two tokens costs much more than one over one: what is measured first, with one and sixteen, hides it.
STEEP = Costs(2.5, PassCost(12.0, 0.5, 10.0), PassCost(21.0, 0.6, 17.0))
# A model with no draft, whose verification costs much for every row.
NO_DRAFT = Costs(0.0, PassCost(13.0, 1.6), PassCost(22.0, 2.7))
LIMITS = PlanLimits(8, 8, TUNING.copy_lengths[-1])


def rates(middle: float, verify: float, book: float = 0.0) -> AcceptanceRates:
    return AcceptanceRates(middle, verify, middle * verify, book)


def test_expected_tokens_by_hand() -> None:
    assert expected_tokens(0.0, 5) == 1.0
    assert expected_tokens(0.5, 2) == pytest.approx(1.75)
    assert expected_tokens(0.9, 1) == pytest.approx(1.9)
    assert expected_tokens(1.0, 4) == pytest.approx(5.0, rel=0.02)


def test_speed_of_a_round_by_hand() -> None:
    # 2 passes of 3 drafts at 0.5: 1.875 tokens each, 3.75 pending; middle 2 x (3 + 8.9), verify of 4.75 tokens 107.5.
    speed = tokens_per_ms(DraftPlan(3, 2), LONG_BOOK, rates(0.5, 0.9))
    pending = 2 * 1.875
    assert speed == pytest.approx((1 - 0.9 ** (pending + 1)) / 0.1 / (2 * (3 + 8.9) + 100 + 2 * pending))
    # Three drafted tokens at once: 1 + 0.4 + 0.16 + 0.064 tokens for three draft steps and a pass over four.
    assert tokens_per_ms(DraftPlan(3), SHORT_TEXT, AcceptanceRates(0, 0, 0.4)) == pytest.approx(1.624 / (3 + 8.9))
    assert tokens_per_ms(DraftPlan(copy=2), LONG_BOOK, rates(0, 0, 0.5)) == pytest.approx(1.75 / 104)
    # What a round with middle passes costs beside them.
    dearer = replace(LONG_BOOK, overhead=10.0)
    assert 1 / tokens_per_ms(DraftPlan(3, 2), dearer, rates(0.5, 0.9)) == pytest.approx(
        1 / speed + 10.0 / ((1 - 0.9 ** (pending + 1)) / 0.1)
    )
    assert tokens_per_ms(DraftPlan(3), dearer, rates(0, 0)) == tokens_per_ms(DraftPlan(3), LONG_BOOK, rates(0, 0))


def test_choices_at_the_extremes() -> None:
    assert best_plan(SHORT_TEXT, rates(0.1, 0.9), LIMITS) == PLAIN
    assert best_plan(LONG_BOOK, rates(0.01, 0.01), LIMITS) == PLAIN
    long = best_plan(LONG_BOOK, rates(0.7, 0.97), LIMITS)
    assert long.passes * expected_tokens(0.7, long.draft) > 10
    assert best_plan(LONG_BOOK, rates(0.0, 0.97), LIMITS).draft == 0
    copying = best_plan(LONG_BOOK, rates(0.3, 0.9, 0.99), LIMITS)
    assert copying.copy >= 32
    better = best_plan(LONG_BOOK, rates(0.5, 0.95), LIMITS)
    worse = best_plan(LONG_BOOK, rates(0.5, 0.7), LIMITS)
    assert better.passes > worse.passes
    # Where the middle level costs what verification costs, a good draft goes straight to verification.
    direct = best_plan(SHORT_TEXT, rates(0.8, 0.95), LIMITS)
    assert direct.passes == 0
    assert direct.draft > 0


def test_times_of_a_round_that_records_are_no_costs() -> None:
    """Recording a pass takes as long as ten of it; what was accepted counts all the same."""
    source, accepted = (TokenSource.TARGET,) * 5, Acceptance(4, 4)
    done = Round(tuple(range(5)), source, TimeSplit(900.0, 900.0, 900.0), False, accepted, accepted, passes=2)
    costs, trust = {}, {}
    for records in (False, True):
        controller = Controller(LONG_BOOK, LIMITS)
        before = controller.statistics.verify.rate
        shown = RoundObservation(passes=[(4, 450.0)] * 2, draft_steps=6, draft_ms=900.0, records=records)
        controller.observe(DraftPlan(3, 2), done, shown)
        costs[records], trust[records] = controller.costs, controller.statistics.verify.rate - before
    assert costs[True] == LONG_BOOK
    assert costs[False] != LONG_BOOK
    assert trust[True] == trust[False] != 0


def test_limits_are_of_cost_where_a_verification_takes_seconds() -> None:
    """KV that comes over a bus for 2.9 s: more middle passes than 12, from the first round on, while their tokens fit
    in one verification."""
    bus = Costs(draft=1.0, middle=PassCost(17.0, 0.3), verify=PassCost(2900.0, 0.3))
    assert most_passes(bus) == TUNING.most_pending
    assert most_passes(LONG_BOOK) == most_passes(SHORT_TEXT) == TUNING.most_passes
    assert best_plan(bus, rates(0.2, 0.98), PlanLimits(8, most_passes(bus))).passes > TUNING.most_passes
    controller = Controller(bus, PlanLimits(8, most_passes(bus)))
    assert controller.next().passes > TUNING.most_passes
    assert Controller(bus, controller.limits, replace(TUNING, first_share=0.0)).next().passes < TUNING.most_passes
    # More tokens than a verification takes promise nothing.
    sure, narrow = rates(0.99, 0.99), PlanLimits(8, 48)
    best = best_plan(bus, sure, narrow)
    assert (best.passes - 1) * expected_tokens(0.99, best.draft) <= TUNING.most_pending


def test_copies_grow_with_acceptance() -> None:
    lengths = [best_plan(LONG_BOOK, rates(0.0, 0.0, book), LIMITS).copy for book in (0.1, 0.5, 0.8, 0.95, 0.995)]
    assert lengths == sorted(lengths)
    assert lengths[-1] == TUNING.copy_lengths[-1]
    assert best_plan(LONG_BOOK, rates(0.0, 0.0, 0.995), PlanLimits(0, 0, 20)).copy == 16


def test_patience_is_short_where_time_is_dear() -> None:
    sure = rates(0.7, 0.95)
    long = stop_thresholds(DraftPlan(4, 4), LONG_BOOK, sure)
    # A middle pass that costs as much as verification must bring much more.
    short = stop_thresholds(DraftPlan(4, 4), Costs(1.0, PassCost(60.0, 1.0), LONG_BOOK.verify), sure)
    assert 0 < long[1] < short[1] <= 0.9
    # A further draft token pays exactly when what it brings is worth its time at the promised speed.
    plan = DraftPlan(3)
    speed = tokens_per_ms(plan, LONG_BOOK, sure)
    assert stop_thresholds(plan, LONG_BOOK, sure)[0] == pytest.approx(speed * (1.0 + 2.0))


def test_costs_are_found_from_passes() -> None:
    assert cost_of(10.0, 25.0, 16) == PassCost(10.0, 1.0)
    apart = cost_of(10.0, 27.0, 16, two_ms=13.0)
    assert [apart.ms(tokens) for tokens in (1, 2, 16)] == [10.0, 13.0, 27.0]
    assert cost_of(20.0, 27.0, 16, two_ms=13.0).ms(1) == 13.0, "no token is dearer than two"
    assert cost_of(10.0, 12.0, 16, two_ms=13.0) == PassCost(13.0, 0.0, 10.0)
    rng = random.Random(1)
    fit = PassCostEstimate(PassCost(30.0, 0.1))
    for _ in range(200):
        tokens = rng.randrange(2, 40)
        fit.add(tokens, rng.uniform(0.97, 1.03) * (50.0 + 1.5 * (tokens - 1)))
    assert fit.cost.base == pytest.approx(50.0, rel=0.08)
    assert fit.cost.slope == pytest.approx(1.5, rel=0.15)
    fit.add(2, 5000.0)  # the machine was busy elsewhere
    assert fit.cost.base < 70.0
    for _ in range(400):  # passes of one length say little of the slope: it stays near what is known
        fit.add(2, 51.5)
    assert fit.cost.base == pytest.approx(50.0, rel=0.1)


def test_experts_that_more_tokens_ask_are_a_part_of_a_pass() -> None:
    """Of 128 a token asks 8: the second token reads nearly as many again, the sixtieth hardly any."""
    reads = ExpertReads(128, 8, 0.75)
    true = PassCost(40.0, 0.2, experts=reads)
    assert true.ms(2) == pytest.approx(40.0 * (1 + 0.75 * 15 / 16) + 0.2)
    assert true.further(2) > 10 * true.further(60)
    assert cost_of(40.0, true.ms(16), 16, reads) == true
    fit = PassCostEstimate(PassCost(30.0, 1.0, experts=reads))
    for tokens in (2, 5, 9, 33) * 40:
        fit.add(tokens, true.ms(tokens))
    for tokens in (3, 17, 60):
        assert fit.cost.ms(tokens) == pytest.approx(true.ms(tokens), rel=0.05)
    # What is nearly free where all weights are read anyway costs more than it brings where each token has its own.
    sure, limits = rates(0.6, 0.9), PlanLimits(6, 6)
    dense, own = (Costs(4.0, cost, cost) for cost in (PassCost(40.0, 0.2), true))
    assert best_plan(dense, sure, limits).speculates
    assert best_plan(own, sure, limits) == PLAIN


def test_a_pass_over_one_token_is_a_cost_of_its_own() -> None:
    fit = PassCostEstimate(PassCost(30.0, 1.0))
    for tokens in (2, 5, 9) * 40:
        fit.add(tokens, 40.0 + 1.5 * (tokens - 1))
    assert fit.cost.ms(1) == 30.0  # nothing has been said of it since
    for _ in range(40):
        fit.add(1, 33.0)
    assert fit.cost.ms(1) == pytest.approx(33.0, rel=0.01)
    assert fit.cost.ms(2) == pytest.approx(41.5, rel=0.02)
    fit.add(1, 9999.0)  # the machine was busy elsewhere
    assert fit.cost.ms(1) < 45.0
    busy = PassCostEstimate(PassCost(3000.0, 1.0))  # as it was at the first measurement
    busy.add(1, 33.0)
    assert busy.cost.ms(1) < 100.0


def test_what_was_derived_from_a_slow_step_follows_the_next_steps() -> None:
    """After 32,000 tokens the first step took 86 ms, the next ones 67: two tokens seemed to cost 1.4 steps, not 1.1."""
    fit = PassCostEstimate(PassCost(75.0, 21.0, 86.0), is_known=False)
    for _ in range(3):
        fit.add(1, 67.0)
    assert fit.cost.ms(1) == pytest.approx(67.0)
    assert fit.cost.ms(2) / fit.cost.ms(1) == pytest.approx(96.0 / 86.0, rel=0.02)
    assert fit.cost.ms(5) / fit.cost.ms(1) == pytest.approx(159.0 / 86.0, rel=0.02)
    for _ in range(10):  # what is measured is believed, whatever steps take
        fit.add(2, 80.0)
        fit.add(1, 60.0)
    assert fit.cost.ms(2) == pytest.approx(80.0, rel=0.03)
    nothing = PassCostEstimate(PassCost(0.0, 0.0), is_known=False)  # a draft model that is not there
    nothing.forget(3, one=True)
    assert nothing.cost.ms(1) == 0.0


def test_nothing_is_drafted_behind_a_single_slow_step() -> None:
    """The first step took 123 ms, the next ones 72: drafting promised 1.4 times the speed and lost 5 %."""
    slow = Costs(14.0, PassCost(60.0, 24.0, 70.0), PassCost(111.0, 24.0, 123.0), is_derived=True)
    assert Controller(replace(slow, is_derived=False), PlanLimits(4, 8)).next().speculates
    controller = Controller(slow, PlanLimits(4, 8))
    world = World(Costs(14.0, PassCost(38.0, 20.0, 38.0), PassCost(72.0, 20.0, 72.0)), rates(0.3, 0.3), 1)
    for _ in range(TUNING.first_plain):
        plan = controller.next()
        assert plan == PLAIN
        assert controller.costs.is_derived, "another way of sampling begins as carefully"
        controller.observe(plan, *world.round(plan))
    assert not controller.costs.is_derived
    assert 60.0 < controller.costs.verify.ms(1) < 90.0
    assert controller.costs.verify.ms(2) == pytest.approx(135.0 / 123.0 * controller.costs.verify.ms(1))
    match = LookupMatch(30, tuple(range(64)))
    assert Controller(slow, PlanLimits(4, 8, 64)).next(match).copy, "copies are judged by what they cost more"


def test_records_fade() -> None:
    record = FadingRate(0.5)
    assert record.rate == 0.5
    record.add(30, 30)
    assert record.rate > 0.9
    for _ in range(20):
        record.add(0, 10)
    assert record.rate < 0.1


def test_confidence_is_calibrated() -> None:
    statistics, rng = AcceptanceStatistics(), random.Random(3)
    for _ in range(2000):
        confidence = rng.random()
        statistics.middle_by_confidence.add([ProposalOutcome(confidence, rng.random() < confidence**2)])
    stop = EarlyStop(0.1, statistics.middle_by_confidence.table())
    assert stop.chance(0.1) < 0.15
    assert stop.chance(0.7) == pytest.approx(0.49, abs=0.2)
    assert stop.chance(0.99) > 0.8


def measured(costs: Costs) -> Costs:
    """What the measurement at the start of a book makes of a machine: passes over one token and over several."""
    middle = cost_of(costs.middle.ms(1), costs.middle.ms(8), 8)
    return Costs(costs.draft, middle, cost_of(costs.verify.ms(1), costs.verify.ms(16), 16))


class World:
    """A machine and a text with known costs and rates, for rounds without a model."""

    def __init__(self, costs: Costs, known: AcceptanceRates, seed: int) -> None:
        self.costs, self.rates = costs, known
        self.rng = random.Random(seed)
        self.match = NO_MATCH
        self.slowness = 1.0
        self.noise = 0.9, 1.2

    def prefix(self, rate: float, count: int) -> int:
        accepted = 0
        while accepted < count and self.rng.random() < rate:
            accepted += 1
        return accepted

    @staticmethod
    def patient(stop: EarlyStop, count: int) -> int:
        """Tokens that are drafted before stop ends, where every token is half sure."""
        chance, made = 1.0, 0
        while made < count and chance >= stop.threshold:
            chance *= stop.chance(0.5)
            made += 1
        return made

    def round(self, plan: DraftPlan) -> tuple[Round, RoundObservation]:
        noise = self.slowness * self.rng.uniform(*self.noise)
        observation = RoundObservation(self.match)
        proposed = 0
        drafted: list[int] = []
        if plan.passes:
            pending, chance, rate = 0, 1.0, self.rates.verify
            while len(drafted) < plan.passes and chance >= plan.middle_stop.threshold:
                count = self.patient(plan.draft_stop, plan.draft)
                drafted.append(self.prefix(self.rates.middle, count))
                observation.draft_outcomes += [
                    ProposalOutcome(0.5, i < drafted[-1]) for i in range(min(drafted[-1] + 1, count))
                ]
                observation.passes.append((count + 1, noise * self.costs.middle.ms(count + 1)))
                proposed += count
                pending += drafted[-1] + 1
                chance *= plan.middle_stop.chance(0.5) ** (drafted[-1] + 1)
        elif plan.copy:
            pending, rate = plan.copy, self.rates.lookup
        else:
            pending, rate = self.patient(plan.draft_stop, plan.draft), self.rates.direct
            proposed = pending
        accepted = self.prefix(rate, pending)
        outcomes = [ProposalOutcome(0.5, i < accepted) for i in range(min(accepted + 1, pending))]
        if plan.passes:
            observation.middle_outcomes = outcomes
        elif not plan.copy:
            observation.draft_outcomes = outcomes
        observation.draft_steps = proposed
        observation.draft_ms = noise * observation.draft_steps * self.costs.draft
        split = TimeSplit(
            draft=observation.draft_ms,
            middle=sum(ms for _, ms in observation.passes),
            verify=noise * self.costs.verify.ms(pending + 1),
        )
        tokens = (*self.match.tokens[:accepted], -1) if plan.copy else (-1,) * (accepted + 1)
        judged = Acceptance(accepted, pending)
        done = Round(
            tokens,
            (TokenSource.TARGET,) * len(tokens),
            split,
            False,
            Acceptance(sum(drafted), proposed if plan.passes else 0),
            Acceptance() if plan.copy else judged,
            passes=len(observation.passes),
            lookup=judged if plan.copy else Acceptance(),
        )
        return done, observation


def speed(world: World, controller: Controller | Unclocked, rounds: int) -> float:
    tokens, ms = 0, 0.0
    for _ in range(rounds):
        plan = controller.next(world.match)
        done, observation = world.round(plan)
        controller.observe(plan, done, observation)
        tokens += len(done.tokens)
        ms += done.split.total
    return tokens / ms


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("costs", [LONG_BOOK, SHORT_TEXT, SLOW_DRAFT, STEEP])
@pytest.mark.parametrize("known", [rates(0.2, 0.5), rates(0.5, 0.9), rates(0.8, 0.98), rates(0.05, 0.05)])
def test_finds_nearly_the_best_and_is_never_slower_than_plain(costs: Costs, known: AcceptanceRates, seed: int) -> None:
    world = World(costs, known, seed)
    found = speed(world, Controller(measured(costs), LIMITS), 600)
    best = tokens_per_ms(best_plan(costs, known, LIMITS), costs, known) / 1.05  # mean of the noise
    plain = 1.0 / costs.verify.ms(1) / 1.05
    assert found > 0.8 * best
    assert found > 0.97 * plain


@pytest.mark.parametrize("costs", [LONG_BOOK, SLOW_DRAFT, NO_DRAFT])
@pytest.mark.parametrize("known", [rates(0.5, 0.9), rates(0.8, 0.98), rates(0.05, 0.05)])
def test_what_a_seed_must_repeat_is_chosen_without_a_clock(costs: Costs, known: AcceptanceRates) -> None:
    """The same rounds on a machine that is ten times as slow, and no slower than plain on it."""
    limits = PlanLimits(8 if costs.draft else 0, 8, TUNING.copy_lengths[-1])
    plans, speeds = [], []
    for slowness in (1.0, 10.0):
        world, policy, chosen = World(costs, known, seed=4), Unclocked(costs, limits, 0.0), list[DraftPlan]()
        world.slowness, choose = slowness, policy.next
        policy.next = lambda match, choose=choose, chosen=chosen: chosen.append(choose(match)) or chosen[-1]  # type: ignore[assignment, method-assign, misc]
        speeds.append(slowness * speed(world, policy, 300))
        plans.append(chosen)
    assert plans[0] == plans[1]
    assert speeds[0] > 0.95 / costs.verify.ms(1) / 1.05
    if known.verify > 0.95 and costs is LONG_BOOK:
        assert speeds[0] > 2.0 / costs.verify.ms(1), "and what speculation brings is there"


def speed_of_short_answers(
    costs: Costs, known: AcceptanceRates, limits: PlanLimits, offered: Callable[[random.Random], LookupMatch]
) -> float:
    """Tokens per millisecond over twenty first answers of ninety-six tokens; ``offered``: what the book says."""
    spent, tokens = 0.0, 0
    for seed in range(20):
        world, controller, made = World(costs, known, seed), Controller(measured(costs), limits), 0
        while made < 96:
            world.match = offered(world.rng)
            plan = controller.next(world.match)
            done, observation = world.round(plan)
            controller.observe(plan, done, observation)
            made += len(done.tokens)
            spent += done.split.total
        tokens += made
    return tokens / spent


@pytest.mark.parametrize("costs", [LONG_BOOK, SHORT_TEXT, SLOW_DRAFT, STEEP])
@pytest.mark.parametrize("known", [rates(0.0, 0.0), rates(0.1, 0.3), rates(0.4, 0.2), rates(0.3, 0.9)])
def test_a_short_answer_pays_little_for_trying(costs: Costs, known: AcceptanceRates) -> None:
    """Ninety-six tokens where speculation is hopeless: what trying it costs stays within the guard."""
    assert speed_of_short_answers(costs, known, LIMITS, lambda _: NO_MATCH) > 0.97 / costs.verify.ms(1) / 1.05


# 1.5 billion parameters behind 24,576 tokens on two cores: what its passes take, and what is derived for them.
REAL = Costs(0.0, PassCost(44.0, 11.0), PassCost(62.0, 20.0, 77.0))
DERIVED = Costs(0.0, PassCost(48.0, 20.0), PassCost(77.0, 20.0), selection=300.0)


class SteadyWorld(World):
    """A world without noise. An answer's first round with middle passes chooses chunks for ``selection_ms``; the token
    behind a match is the book's as often as in a copy."""

    def __init__(self, known: AcceptanceRates, seed: int, selection_ms: float = 0.0) -> None:
        super().__init__(REAL, known, seed)
        self.noise, self.selection_ms = (1.0, 1.0), selection_ms

    def answer(self, controller: Controller, tokens: int, offered: Callable[[random.Random], LookupMatch]) -> float:
        """How many times the time of plain decoding an answer takes."""
        controller.begin(0.0, controller.costs.selection, tokens)
        made, spent, selected = 0, 0.0, False
        while made < tokens:
            self.match = offered(self.rng)
            plan = controller.next(self.match)
            done, observation = self.round(plan)
            if plan.passes and not selected:
                observation.selection_ms, selected = self.selection_ms, True
                done = replace(done, split=replace(done.split, other=self.selection_ms))
            if self.match.length and not plan.copy:
                right = self.prefix(self.rates.lookup, len(done.tokens))
                done = replace(done, tokens=(*self.match.tokens[:right], *done.tokens[right:]))
            controller.observe(plan, done, observation)
            made += len(done.tokens)
            spent += done.split.total
        return spent / (made * REAL.verify.ms(1))


def misled(rng: random.Random) -> LookupMatch:
    """A text that shares words with the book in one of three places."""
    return LookupMatch(rng.choice((4, 9, 14, 20, 30)), tuple(range(64))) if rng.random() < 0.3 else NO_MATCH


@pytest.mark.parametrize("selection_ms", [35.0, 70.0, 300.0])
@pytest.mark.parametrize("verify", [0.0, 0.5, 0.9])
def test_a_selection_that_an_answer_does_not_repay_is_not_made(verify: float, selection_ms: float) -> None:
    """Its time was in no round, so that an answer of 64 tokens ended at 0.80 times plain decoding."""
    for seed in range(4):
        world, controller = SteadyWorld(rates(0.0, verify), seed, selection_ms), Controller(DERIVED, PlanLimits(0, 12))
        assert max(world.answer(controller, 64, lambda _: NO_MATCH) for _ in range(4)) < 1.03


def test_a_selection_is_made_where_it_pays() -> None:
    """More cores: a verification of many rows costs little, and a middle pass a third of a plain step."""
    costs = Costs(0.0, PassCost(25.0, 1.0), PassCost(77.0, 2.0), selection=60.0)

    def plain_steps(selection_ms: float, tokens: int) -> int:
        """Number of plain steps before the first pass over the retrieval cache."""
        controller, world = Controller(costs, PlanLimits(0, 12)), World(costs, rates(0.0, 0.9), 1)
        controller.begin(0.0, selection_ms, tokens)
        for made in range(tokens):
            if (plan := controller.next()).passes:
                return made
            controller.observe(plan, *world.round(plan))
        return tokens

    assert plain_steps(60.0, 64) == 0, "no more than may be lost"
    assert plain_steps(60.0, 2) == 2, "two tokens do not repay it"
    assert 16 < plain_steps(600.0, 64) < 48, "when the answer has as many tokens as repay it"
    assert plain_steps(2000.0, 64) == 64


def test_a_selection_that_was_paid_does_not_end_what_it_was_paid_for() -> None:
    """Four plain steps of it counted as a loss of the first two rounds, so that middle passes were given up."""

    class TwoAccepted(World):
        def prefix(self, rate: float, count: int) -> int:
            return min(count, 2)

    costs = Costs(0.0, PassCost(25.0, 1.0), PassCost(77.0, 2.0), selection=250.0)
    controller, world = Controller(costs, PlanLimits(0, 12)), TwoAccepted(costs, rates(0.0, 0.85), 1)
    world.noise = (1.0, 1.0)
    controller.begin(0.0, 250.0, 256)
    while not controller.plan.passes:
        controller.observe(controller.next(), *world.round(PLAIN))
    for number in range(12):
        plan = controller.next()  # may be a plain step that is timed again
        assert controller.plan.passes, number
        done, observation = world.round(plan)
        if not number:
            observation.selection_ms = 250.0
            done = replace(done, split=replace(done.split, other=250.0))
        controller.observe(plan, done, observation)


def test_plain_steps_in_a_slow_moment_do_not_speak_for_a_selection() -> None:
    """Another program was busy for four steps, and middle passes looked 1.6 times as fast as plain decoding."""
    controller = Controller(DERIVED, PlanLimits(0, 12))
    controller.begin(0.0, 300.0, 256)
    world = SteadyWorld(rates(0.0, 0.9), 1, 300.0)
    for step in range(TUNING.rethink_plain_rounds + 4):
        world.slowness = 3.0 if 12 <= step < 16 else 1.0
        plan = controller.next()
        assert not plan.passes
        controller.observe(plan, *world.round(plan))


def test_a_trial_waits_until_the_answer_can_pay_for_its_selection() -> None:
    """Most of what the trial costs is the selection."""
    costs = Costs(0.0, PassCost(50.0, 3.0), PassCost(77.0, 3.0), selection=30.0)

    def plain_tokens(controller: Controller, selection_ms: float) -> int:
        world, made = SteadyWorld(rates(0.0, 0.0), 1), 0
        controller.begin(0.0, selection_ms, 64)
        while made < 64 and not (plan := controller.next()).passes:
            controller.observe(plan, *world.round(plan))
            made += 1
        return made

    assert plain_tokens(Controller(costs, PlanLimits(0, 1)), 0.0) < 16
    assert 24 < plain_tokens(Controller(costs, PlanLimits(0, 1)), 30.0) < 64, "a hundredth of the time pays for it"
    rich = Controller(costs, PlanLimits(0, 1), replace(TUNING, trial_share=0.1))
    assert 14 < plain_tokens(rich, 30.0) < 64, "an answer that may end soon is not risked, whatever was saved"


def test_the_time_of_a_selection_is_lost_once_and_is_no_part_of_every_round() -> None:
    costs = replace(LONG_BOOK, selection=40.0)
    controller, plan = Controller(costs, LIMITS), DraftPlan(0, 2)
    controller.begin(0.0, 40.0, 64)
    done, observation = World(costs, rates(0.0, 1.0), 1).round(plan)
    observation.selection_ms = 80.0
    controller.observe(plan, replace(done, split=replace(done.split, other=83.0)), observation)
    assert controller.costs.overhead == pytest.approx(3.0)
    assert controller.costs.selection == 80.0


@pytest.mark.parametrize("right", [0.0, 0.1])
def test_copies_that_are_not_kept_cost_an_answer_little(right: float) -> None:
    """A copy of sixteen tokens of a long match that nothing but a prior spoke for took four plain steps, a tenth of an
    answer of 64 tokens, and what earlier answers had gained paid for the next."""
    for seed in range(8):
        world = SteadyWorld(AcceptanceRates(0.0, 0.5, 0.0, right), seed)
        controller = Controller(DERIVED, PlanLimits(0, 0, TUNING.copy_lengths[-1]))
        assert max(world.answer(controller, 64, misled) for _ in range(3)) < 1.03


@pytest.mark.parametrize(
    ("costs", "copies"),
    [
        (Costs(0.0, PassCost(25.0, 24.0), PassCost(54.0, 24.0, 78.0)), True),  # a second token costs nothing
        (Costs(0.0, PassCost(25.0, 25.0), PassCost(51.0, 25.0, 51.0)), False),  # half a plain step
    ],
)
def test_a_single_word_of_the_book_is_copied_where_a_second_token_costs_nothing(costs: Costs, copies: bool) -> None:
    """A text in its own words: one token in six is what followed the same word in the book."""
    match = LookupMatch(1, tuple(range(64)))
    world, lengths = SteadyWorld(AcceptanceRates(0.0, 0.0, 0.0, 0.17), 1), set[int]()
    controller = Controller(costs, PlanLimits(0, 0, TUNING.copy_lengths[-1]))
    spent = made = 0.0
    for _ in range(300):
        world.match, plan = match, controller.next(match)
        lengths.add(plan.copy)
        done, observation = world.round(plan)
        if not plan.copy:
            right = world.prefix(0.17, 1)
            done = replace(done, tokens=(match.tokens[0] if right else 999,))
        done = replace(done, split=TimeSplit(verify=costs.verify.ms(done.verified_rows)))
        controller.observe(plan, done, observation)
        spent, made = spent + done.split.total, made + len(done.tokens)
    assert (1 in lengths) is copies
    gained = made * costs.verify.ms(1) / spent
    assert gained > 1.1 if copies else gained == pytest.approx(1.0)


def test_matches_on_which_places_disagree_are_learned_apart() -> None:
    learned = AcceptanceStatistics()

    def rate(length: int, agreed: bool | None) -> float:
        return learned.rates(LookupMatch(length, (), agreed)).lookup

    agreed, disputed, alone = rate(2, True), rate(2, False), rate(2, None)
    assert disputed < alone < agreed
    for _ in range(20):
        learned.lookup(LookupMatch(2, (), False)).add(1, 1)
    assert rate(4, False) > disputed + 0.3, "of any short length"
    assert rate(2, True) == agreed
    assert rate(2, None) == alone
    long = LookupMatch(TUNING.clear_match)
    assert learned.lookup(replace(long, agreed=False)) is learned.lookup(long), "a long match speaks for itself"


def test_a_long_match_is_copied_further_with_every_token_that_it_gets_right() -> None:
    long, lengths = LookupMatch(30, tuple(range(64))), list[list[int]]()
    controller = Controller(DERIVED, PlanLimits(0, 0, TUNING.copy_lengths[-1]))
    world = SteadyWorld(AcceptanceRates(0.0, 0.0, 0.0, 1.0), 1)
    for _ in range(2):
        lengths.append([])
        controller.begin()
        while len(lengths[-1]) < 6:
            world.match, plan = long, controller.next(long)
            done, observation = world.round(plan)
            controller.observe(plan, replace(done, tokens=long.tokens[: len(done.tokens)]), observation)
            lengths[-1].append(plan.copy)
    for copied in lengths:  # what the first answer copied is no reason to begin the second with a long copy
        assert copied[0] <= 4
        assert copied[-1] >= 16
        assert copied == sorted(copied)


class ColdWorld(World):
    """A plain step behind another round finds nothing in the processor's cache, and takes longer than those behind it.
    A round with middle passes costs something beside them."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.was_plain = False

    def round(self, plan: DraftPlan) -> tuple[Round, RoundObservation]:
        done, observation = super().round(plan)
        split = replace(done.split, other=1.0 if plan.passes else 0.0)
        if not plan.speculates and not self.was_plain:
            split = replace(split, verify=1.3 * split.verify)
        self.was_plain = not plan.speculates
        return replace(done, split=split), observation


def test_a_cold_plain_step_does_not_speak_for_speculation() -> None:
    """A plain step takes 10 ms, a token of the plan 10.8. Where steps between two rounds alone were asked, which take
    13, the plan was kept."""
    costs, limits = Costs(0.0, PassCost(10.5, 0.1), PassCost(10.0, 0.2)), PlanLimits(0, 12)
    first = replace(costs, verify=PassCost(10.0, 0.2, 13.0))
    for seed in range(3):
        world, controller = ColdWorld(costs, rates(0.0, 0.98), seed), Controller(first, limits)
        assert speed(world, controller, 200) > 0.92 / 10.0 / 1.05
        assert not controller.plan.speculates
        assert controller.costs.overhead == pytest.approx(1.0)
        assert controller.costs.verify.ms(1) == pytest.approx(10.5, rel=0.1)
        assert speed(world, controller, 100) > 0.98 / 10.0 / 1.05


@pytest.mark.parametrize(("plain_ms", "starts"), [(10.0, False), (11.5, True)])
def test_what_nothing_but_a_prior_speaks_for_must_promise_more(plain_ms: float, starts: bool) -> None:
    """A pass of the middle level and a verification for 1.85 tokens, at 17.5 ms: 1.06 and 1.2 times plain decoding."""
    costs = Costs(0.0, PassCost(7.5, 0.0), PassCost(10.0, 0.0, plain_ms))
    assert Controller(costs, PlanLimits(0, 1)).next().speculates is starts
    told = Controller(costs, PlanLimits(0, 1))
    told.observe(DraftPlan(0, 1), *World(costs, rates(0.0, 0.85), 1).round(DraftPlan(0, 1)))
    assert told.next().speculates, "once something was tried less is enough"


@pytest.mark.parametrize("share", [0.1, 0.4, 0.9])
@pytest.mark.parametrize("right", [0.0, 0.2])
@pytest.mark.parametrize("costs", [NO_DRAFT, STEEP])
def test_a_book_that_misleads_costs_little(costs: Costs, right: float, share: float) -> None:
    """Ninety-six tokens of a text that shares words with the book, and goes on otherwise nearly every time."""

    def offered(rng: random.Random) -> LookupMatch:
        return LookupMatch(rng.choice((3, 4, 7, 9, 14, 20)), tuple(range(64))) if rng.random() < share else NO_MATCH

    known, limits = AcceptanceRates(0.0, 0.8, 0.0, right), PlanLimits(0, 12, TUNING.copy_lengths[-1])
    assert speed_of_short_answers(costs, known, limits, offered) > 0.965 / costs.verify.ms(1) / 1.05


def share_of_trials(costs: Costs, known: AcceptanceRates, seed: int, tokens: tuple[int, ...]) -> list[float]:
    """Behind so many tokens of a first answer: of its time, what rounds cost that tried another way than the one that
    the controller believes in, beside what that way takes for their tokens."""
    world, controller = World(costs, known, seed), Controller(measured(costs), LIMITS)
    made, spent, tried, shares = 0, 0.0, 0.0, []
    for wanted in tokens:
        while made < wanted:
            plan, held = controller.next(), controller.plan
            done, observation = world.round(plan)
            controller.observe(plan, done, observation)
            made += len(done.tokens)
            spent += done.split.total
            if plan.speculates != held.speculates or bool(plan.draft) != bool(held.draft):
                tried += done.split.total - 1.05 * len(done.tokens) / tokens_per_ms(held, costs, known)
        shares.append(tried / spent)
    return shares


def dear_draft(ms: float) -> Costs:
    """A long book and a draft that costs so much a token; a pass of the middle level takes 8 ms."""
    return replace(LONG_BOOK, draft=ms)


@pytest.mark.parametrize(
    ("costs", "known"),
    [
        (dear_draft(4.0), rates(0.0, 0.95)),
        (dear_draft(8.0), rates(0.0, 0.95)),
        (dear_draft(30.0), rates(0.1, 0.95)),
        (LONG_BOOK, rates(0.2, 0.55)),
        (STEEP, rates(0.0, 0.0)),
    ],
)
def test_trying_costs_a_hundredth_of_an_answer(costs: Costs, known: AcceptanceRates) -> None:
    """The first trials are counted too. Without a bound the draft of 8 ms cost 3.1 % of the first 128 tokens."""
    answers = [share_of_trials(costs, known, seed, (128, 256, 512)) for seed in range(20)]
    for shares in zip(*answers, strict=True):
        assert sum(shares) / len(shares) < 0.01


@pytest.mark.parametrize(("start_ms", "tokens"), [(20.0, 0), (500.0, 8), (3000.0, 50)])
def test_a_draft_is_started_when_the_answer_will_repay_it(start_ms: float, tokens: int) -> None:
    """An answer is expected to get as many tokens as it has. A step takes 100 ms, and the draft saves half of it."""
    known = rates(0.8, 0.97)
    world, controller = World(LONG_BOOK, known, 1), Controller(measured(LONG_BOOK), LIMITS)
    speed(world, controller, 60)
    assert controller.plan.draft
    controller.begin(start_ms)
    made, ms = 0, 0.0
    while not (plan := controller.next()).draft:
        done, observation = world.round(plan)
        controller.observe(plan, done, observation)
        made, ms = made + len(done.tokens), ms + done.split.total
    assert made >= tokens
    assert made == 0 or start_ms < ms
    done, observation = world.round(plan)
    done = replace(done, split=replace(done.split, draft=done.split.draft + start_ms))
    controller.observe(plan, done, replace(observation, draft_start_ms=start_ms))
    assert controller.plan.draft, "what was paid for is used"
    assert speed(world, controller, 60) > 1.3 * speed(World(LONG_BOOK, rates(0.0, 0.97), 1), controller, 1)
    controller.begin(start_ms, tokens=2)
    assert not controller.next().draft or start_ms < 100.0


@pytest.mark.parametrize(
    ("ms", "known"), [(30.0, rates(0.1, 0.95)), (100.0, rates(0.1, 0.95)), (100.0, rates(0.8, 0.97))]
)
def test_a_dear_trial_is_saved_for(ms: float, known: AcceptanceRates) -> None:
    """A draft whose trial costs many plain steps is tried all the same, as often as a hundredth of the time allows."""
    shares = [share_of_trials(dear_draft(ms), known, seed, (6000,))[0] for seed in range(3)]
    assert 0.005 < sum(shares) / len(shares) < 0.01


@pytest.mark.parametrize(("ms", "rounds"), [(30.0, 250), (100.0, 1000)])
def test_a_draft_that_was_slow_when_it_was_measured_is_found(ms: float, rounds: int) -> None:
    """A machine that was busy while a book was opened."""
    known = rates(0.8, 0.97)
    for seed in range(3):
        world, controller = World(LONG_BOOK, known, seed), Controller(measured(dear_draft(ms)), LIMITS)
        speed(world, controller, rounds)
        assert controller.plan.draft
        assert controller.costs.draft < 3.0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("before", "after", "known"),
    [
        (dear_draft(20.0), LONG_BOOK, rates(0.8, 0.97)),  # a draft is fast now
        (SHORT_TEXT, replace(SHORT_TEXT, verify=PassCost(24.0, 0.6)), rates(0.2, 0.95)),  # reading the book is slow now
        (LONG_BOOK, replace(LONG_BOOK, verify=PassCost(100.0, 2.0, 10.0)), rates(0.2, 0.6)),  # plain steps are fast now
    ],
)
def test_a_way_that_becomes_the_best_is_found(before: Costs, after: Costs, known: AcceptanceRates, seed: int) -> None:
    world, controller = World(before, known, seed), Controller(measured(before), LIMITS)
    speed(world, controller, 100)
    held, world.costs = controller.plan, after
    speed(world, controller, 250)
    best = tokens_per_ms(best_plan(after, known, LIMITS), after, known) / 1.05
    assert speed(world, controller, 100) > 0.8 * best > tokens_per_ms(held, after, known)


def test_follows_a_change_of_the_text() -> None:
    """Easy words, hard ones, and easy ones again: the lengths follow."""
    world = World(LONG_BOOK, rates(0.97, 0.99), 1)
    controller = Controller(LONG_BOOK, LIMITS)
    speed(world, controller, 60)
    easy = controller.plan
    world.rates = rates(0.3, 0.6)
    speed(world, controller, 60)
    hard = controller.plan
    assert easy.passes * (easy.draft + 1) > 2 * hard.passes * (hard.draft + 1)
    world.rates = rates(0.97, 0.99)
    speed(world, controller, 150)
    assert controller.plan.passes * (controller.plan.draft + 1) > 2 * hard.passes * (hard.draft + 1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("costs", [SHORT_TEXT, STEEP])
def test_speculation_comes_back_with_an_easy_text(costs: Costs, seed: int) -> None:
    """After a long hard text, read in part while the machine was slow, an easy one is not read plainly for ever."""
    hard, easy = rates(0.1, 0.3), AcceptanceRates(0.8, 0.97, 0.85)
    world, controller = World(costs, easy, seed), Controller(measured(costs), LIMITS)
    speed(world, controller, 100)
    world.slowness = 2.0
    speed(world, controller, 60)
    world.rates = hard
    speed(world, controller, 60)
    world.slowness = 1.0
    assert speed(world, controller, 600) > 0.9 / costs.verify.ms(1) / 1.05
    assert not controller.plan.speculates
    world.rates = easy
    speed(world, controller, 200)
    best = tokens_per_ms(best_plan(costs, easy, LIMITS), costs, easy) / 1.05
    assert speed(world, controller, 300) > 0.8 * best


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("costs", [LONG_BOOK, SHORT_TEXT, STEEP])
def test_what_was_won_is_not_lost_again(costs: Costs, seed: int) -> None:
    """A text that becomes hard after an easy one: the next hundred tokens cost little more than plain decoding."""
    world, controller = World(costs, AcceptanceRates(0.9, 0.98, 0.9), seed), Controller(measured(costs), LIMITS)
    speed(world, controller, 400)
    world.rates = rates(0.0, 0.0)
    assert speed(world, controller, 100) > 0.8 / costs.verify.ms(1) / 1.05


@pytest.mark.parametrize("seed", range(3))
def test_what_failed_in_a_hard_text_is_not_ruled_out_for_ever(seed: int) -> None:
    """What the middle level says of the draft's tokens tells what the full cache would say, and the other way."""
    easy = AcceptanceRates(0.9, 0.97, 0.9)
    for costs, failed in ((SHORT_TEXT, "direct"), (LONG_BOOK, "middle")):
        world, controller = World(costs, easy, seed), Controller(measured(costs), LIMITS)
        statistics = controller.statistics
        for name, record in (("direct", statistics.direct), ("middle", statistics.middle)):
            record.add(4 if name == failed else 36, 40)
        statistics.verify.add(39, 40)
        speed(world, controller, 100)
        best = best_plan(costs, easy, LIMITS)
        assert (controller.plan.passes > 0) == (best.passes > 0)
        assert speed(world, controller, 300) > 0.85 * tokens_per_ms(best, costs, easy) / 1.05


def test_an_unlucky_first_round_does_not_end_speculation() -> None:
    """A book that is read for the first time: its first answer often begins with a round that is rejected at once."""
    world, controller = World(LONG_BOOK, rates(0.0, 0.0), 1), Controller(measured(LONG_BOOK), LIMITS)
    while not (plan := controller.next()).passes:
        controller.observe(plan, *world.round(plan))
    for _ in range(2):
        done, observation = world.round(plan)
        assert len(done.tokens) == 1
        controller.observe(plan, done, observation)
    world.rates = rates(0.5, 0.9)
    assert speed(world, controller, 8) > 1.2 / LONG_BOOK.verify.ms(1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "true",
    [
        replace(LONG_BOOK, middle=PassCost(60.0, 2.0)),
        replace(LONG_BOOK, verify=PassCost(160.0, 12.0, 100.0)),
        replace(LONG_BOOK, draft=20.0),
    ],
)
def test_a_plan_that_loses_is_left_behind_two_rounds(true: Costs, seed: int) -> None:
    """What it was promised to cost was measured too low, and nothing is accepted: a draft of a billion bytes was asked
    in every round of 256 tokens, at three times what plain decoding takes."""
    world, controller = World(true, rates(0.0, 0.0), seed), Controller(measured(LONG_BOOK), LIMITS)
    in_a_row, lost = 0, 0.0
    for _ in range(200):
        plan = controller.next()
        done, observation = world.round(plan)
        controller.observe(plan, done, observation)
        lost += done.split.total / (1.05 * true.verify.ms(1)) - len(done.tokens)
        in_a_row = in_a_row + 1 if plan.speculates else 0
        assert in_a_row <= 2
    assert lost < 0.04 * 200


def test_what_was_learned_of_one_book_is_where_the_next_begins() -> None:
    """Nothing was accepted: the next book's first rounds are plain where they were not. Where words are easy that
    is soon found there too."""
    hard = World(LONG_BOOK, rates(0.0, 0.0), 1)
    learned = Controller(measured(LONG_BOOK), LIMITS)
    assert learned.next().speculates
    speed(hard, learned, 200)
    before = learned.statistics.rates()
    known = learned.statistics.for_another_book()
    assert known.rates().verify == pytest.approx(before.verify, abs=0.1)
    assert known.verify.num_outcomes <= TUNING.aged_outcomes
    again = Controller(measured(LONG_BOOK), LIMITS, statistics=known)
    assert not again.next().speculates
    easy = World(LONG_BOOK, rates(0.8, 0.97), 2)
    speed(easy, again, 100)
    assert again.plan.speculates
    assert speed(easy, again, 60) > 2 / LONG_BOOK.verify.ms(1)


def test_costs_behind_another_book_follow_its_plain_step() -> None:
    costs = Costs(2.0, PassCost(20.0, 4.0), PassCost(50.0, 10.0, 40.0), 3.0)
    longer = costs.behind_another_book(80.0)
    assert [longer.verify.ms(rows) for rows in (1, 2)] == pytest.approx([80.0, 120.0])
    assert (longer.draft, longer.middle, longer.overhead) == (costs.draft, costs.middle, costs.overhead)


def test_without_a_draft_only_passes_are_chosen() -> None:
    world = World(LONG_BOOK, rates(0.0, 0.95), 2)
    controller = Controller(LONG_BOOK, PlanLimits(0, 8))
    speed(world, controller, 50)
    assert controller.plan.draft == 0
    assert controller.plan.passes > 3


@pytest.mark.parametrize("known", [rates(0.3, 0.9, 0.99), rates(0.3, 0.3, 0.95)])
def test_a_copy_in_progress_goes_straight_to_verification(known: AcceptanceRates) -> None:
    world = World(LONG_BOOK, known, 4)
    world.match = LookupMatch(30, tuple(range(64)))
    controller = Controller(LONG_BOOK, LIMITS)
    assert controller.next(world.match).copy >= 16
    copying = speed(world, controller, 40)
    assert copying > 4 / LONG_BOOK.verify.base
    # Words that are always wrong are soon not copied any more.
    world.rates = rates(0.3, 0.3, 0.0)
    speed(world, controller, 60)
    assert controller.next(world.match).copy == 0


def test_what_the_book_would_have_said_is_learned_without_copying() -> None:
    controller = Controller(SHORT_TEXT, PlanLimits(0, 0))
    match = LookupMatch(4, (7, 8, 9))
    before = controller.statistics.lookup(match).rate
    for _ in range(10):
        done = Round((7,), (TokenSource.TARGET,), TimeSplit(verify=8.0), False)
        controller.observe(controller.next(match), done, RoundObservation(match))
    assert controller.statistics.lookup(match).rate > before
    assert controller.statistics.lookup(LookupMatch(30)).rate == pytest.approx(0.96)


def test_fixed_lengths_copy_only_where_that_was_asked_for() -> None:
    match = LookupMatch(20, tuple(range(64)))
    assert FixedLengths(3, 8).next(match).copy == 0
    fixed = FixedLengths(3, 8, copies=True)
    assert fixed.next(match).copy == 40
    assert fixed.next(LookupMatch(5, (1, 2))).copy == 0
    assert fixed.next().draft == 3


def test_a_record_of_its_own_says_where_the_classes_of_confidence_part() -> None:
    tuning = replace(TUNING, confidence_edges=(0.5,), draft_priors=(0.1, 0.9), middle_priors=(0.2, 0.8))
    plan = Controller(LONG_BOOK, LIMITS, tuning).next()
    assert plan.speculates
    assert [plan.draft_stop.chance(sure) for sure in (0.45, 0.55)] == pytest.approx([0.1, 0.9])
    assert [plan.middle_stop.chance(sure) for sure in (0.45, 0.55)] == pytest.approx([0.2, 0.8])
