"""The live figures: kept up from round to round, equal to what all rounds together give."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from engine.events import KvBytes, Round, TimeSplit, TokenSource
from engine.generation import Meter


def percentile(values: list[float], share: float) -> float:
    """The value below which ``share`` of the values lie, by nearest rank."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def one_token(meter: Meter, elapsed: float) -> None:
    meter.add(Round((1,), (TokenSource.TARGET,), TimeSplit(), ended=False), elapsed, 0.5)


def test_figures_after_every_round_are_those_of_all_tokens_so_far() -> None:
    dice, meter, latencies = random.Random(7), Meter("hierarchical", 100, 10, 4096), []
    for number in range(1, 60):
        count, elapsed = dice.randint(1, 9), dice.choice([1.0, 2.5, 40.0, dice.random()])
        done = Round(tuple(range(count)), (TokenSource.TARGET,) * count, TimeSplit(), ended=False)
        meter.add(done, elapsed, 0.5 + number)
        latencies += [elapsed / count] * count
        figures = meter.figures(KvBytes(), 100 + len(latencies))
        assert (figures.answer_tokens, figures.rounds, figures.ttft_s) == (len(latencies), number, 1.5)
        assert figures.ms_per_token_p50 == percentile(latencies, 0.50) == meter.median_ms()
        assert figures.ms_per_token_p95 == percentile(latencies, 0.95)
        assert figures.ms_per_token_mean == pytest.approx(fmean(latencies))


def test_before_any_token_nothing_is_known() -> None:
    figures = Meter("plain", 100, 10, 4096).figures(KvBytes(), 100)
    assert figures.answer_tokens == 0
    assert figures.ms_per_token_p50 is figures.ms_per_token_p95 is figures.ms_per_token_mean is None
    assert figures.tokens_per_s is None


@pytest.mark.parametrize(
    ("latencies", "p50", "p95"),
    [
        ([3.0], 3.0, 3.0),
        ([3.0, 1.0, 2.0], 2.0, 3.0),
        ([4.0, 1.0, 3.0, 2.0], 3.0, 4.0),
        ([float(n) for n in range(100)], 50.0, 95.0),
    ],
)
def test_the_nearest_rank_by_hand(latencies: list[float], p50: float, p95: float) -> None:
    meter = Meter("plain", 100, 10, 4096)
    for elapsed in latencies:
        one_token(meter, elapsed)
    figures = meter.figures(KvBytes(), 100)
    assert (figures.ms_per_token_p50, figures.ms_per_token_p95) == (p50, p95)
