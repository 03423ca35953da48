"""The controller without a model: right choices at the extremes, and never slower than plain for long."""

from __future__ import annotations

import random

import pytest

from engine.controller import (
    PLAIN,
    Choice,
    Controller,
    Costs,
    PassCost,
    Rates,
    best_lengths,
    expected_tokens,
    tokens_per_ms,
)
from engine.events import Acceptance, Round, Stage, TimeSplit

LONG_BOOK = Costs(draft=1.0, middle=PassCost(8.0, 0.3), verify=PassCost(100.0, 2.0))
SHORT_TEXT = Costs(draft=1.0, middle=PassCost(8.0, 0.3), verify=PassCost(8.0, 0.3))


def test_expected_tokens_by_hand() -> None:
    assert expected_tokens(0.0, 5) == 1.0
    assert expected_tokens(0.5, 2) == pytest.approx(1.75)
    assert expected_tokens(0.9, 1) == pytest.approx(1.9)
    assert expected_tokens(1.0, 4) == pytest.approx(5.0, rel=0.02)


def test_speed_of_a_round_by_hand() -> None:
    # 2 passes of 3 drafts at 0.5: 1.875 tokens each, 3.75 pending; middle 2 x (3 + 8.9), verify of 4.75 tokens 107.5.
    speed = tokens_per_ms(Choice(3, 2), LONG_BOOK, Rates(0.5, 0.9))
    pending = 2 * 1.875
    assert speed == pytest.approx((1 - 0.9 ** (pending + 1)) / 0.1 / (2 * (3 + 8.9) + 100 + 2 * pending))


def test_choices_at_the_extremes() -> None:
    assert best_lengths(SHORT_TEXT, Rates(0.1, 0.9), 8, 8) == PLAIN
    assert best_lengths(LONG_BOOK, Rates(0.5, 0.0), 8, 8) == PLAIN
    long = best_lengths(LONG_BOOK, Rates(0.7, 0.97), 8, 8)
    assert long.passes * expected_tokens(0.7, long.draft) > 10
    assert best_lengths(LONG_BOOK, Rates(0.0, 0.97), 8, 8).draft == 0
    copying = best_lengths(LONG_BOOK, Rates(0.98, 0.99), 8, 8)
    assert copying.draft == 8
    better = best_lengths(LONG_BOOK, Rates(0.5, 0.95), 8, 8)
    worse = best_lengths(LONG_BOOK, Rates(0.5, 0.7), 8, 8)
    assert better.passes > worse.passes


class World:
    """A machine and a text with known costs and rates, for rounds without a model."""

    def __init__(self, costs: Costs, rates: Rates, seed: int) -> None:
        self.costs, self.rates = costs, rates
        self.rng = random.Random(seed)

    def prefix(self, rate: float, count: int) -> int:
        accepted = 0
        while accepted < count and self.rng.random() < rate:
            accepted += 1
        return accepted

    def round(self, choice: Choice) -> Round:
        drafted = [self.prefix(self.rates.middle, choice.draft) for _ in range(choice.passes)]
        pending = sum(drafted) + choice.passes
        accepted = self.prefix(self.rates.verify, pending)
        noise = self.rng.uniform(0.9, 1.2)
        split = TimeSplit(
            draft=noise * choice.passes * choice.draft * self.costs.draft,
            middle=noise * choice.passes * self.costs.middle.ms(choice.draft + 1),
            verify=noise * self.costs.verify.ms(pending + 1),
        )
        tokens = (0,) * (accepted + 1)
        return Round(
            tokens,
            (Stage.TARGET,) * len(tokens),
            split,
            False,
            Acceptance(sum(drafted), choice.passes * choice.draft),
            Acceptance(accepted, pending),
            passes=choice.passes,
            middle_trials=sum(min(choice.draft, count + 1) for count in drafted),
        )


def speed(world: World, controller: Controller, rounds: int) -> float:
    tokens, ms = 0, 0.0
    for _ in range(rounds):
        choice = controller.next()
        done = world.round(choice)
        controller.observe(choice, done)
        tokens += len(done.tokens)
        ms += done.split.total
    return tokens / ms


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("costs", [LONG_BOOK, SHORT_TEXT, Costs(3.0, PassCost(20, 1), PassCost(50, 4))])
@pytest.mark.parametrize("rates", [Rates(0.2, 0.5), Rates(0.5, 0.9), Rates(0.8, 0.98), Rates(0.05, 0.05)])
def test_finds_nearly_the_best_and_is_never_slower_than_plain(costs: Costs, rates: Rates, seed: int) -> None:
    world = World(costs, rates, seed)
    found = speed(world, Controller(costs.verify.base, 8, 8), 600)
    best = tokens_per_ms(best_lengths(costs, rates, 8, 8), costs, rates) / 1.05  # mean of the noise
    plain = 1.0 / costs.verify.base / 1.05
    assert found > 0.85 * best
    assert found > 0.95 * plain


def test_follows_a_change_of_the_text() -> None:
    """A copy ends, prose begins, and a copy again: the lengths follow."""
    world = World(LONG_BOOK, Rates(0.97, 0.99), 1)
    controller = Controller(100.0, 8, 8)
    speed(world, controller, 60)
    copying = controller.choice
    world.rates = Rates(0.3, 0.6)
    speed(world, controller, 60)
    prose = controller.choice
    assert copying.passes * (copying.draft + 1) > 2 * prose.passes * (prose.draft + 1)
    world.rates = Rates(0.97, 0.99)
    speed(world, controller, 150)
    assert controller.choice.passes * (controller.choice.draft + 1) > 2 * prose.passes * (prose.draft + 1)


def test_without_a_draft_only_passes_are_chosen() -> None:
    world = World(LONG_BOOK, Rates(0.0, 0.95), 2)
    controller = Controller(100.0, 0, 8)
    speed(world, controller, 50)
    assert controller.choice.draft == 0
    assert controller.choice.passes > 3
