"""The live figures: kept up from round to round, equal to what all rounds together give."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from engine.events import KvBytes, Round, TimeSplit, TokenSource
from engine.metrics import Meter, percentile


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


def test_the_nearest_rank_of_few_values() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0], 0.95) == 3.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 3.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.95) == 4.0
