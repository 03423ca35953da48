"""The computed round, by hand."""

from __future__ import annotations

import pytest

from engine.decode.tuning import TUNING
from engine.plan.round_model import FEW_TRIPS, KEPT, LAUNCH_US, Pass, Rates, RoundModel

CARD = Rates(memory=1e12, bus=3e10)
MIDDLE, HOST = Pass(17e9), Pass(13e9, bus_bytes=60e9)


def test_a_pass_takes_the_longest_of_reading_moving_and_launching() -> None:
    assert Pass(10e9).ms(CARD) == pytest.approx(10.0)
    assert HOST.ms(CARD) == pytest.approx(2000.0)
    assert HOST.ms(Rates(1e12, 3e10, buses=2)) == pytest.approx(1000.0)
    assert Pass(1e9, launches=1000).ms(CARD) == pytest.approx(1000 * LAUNCH_US / 1000)
    assert Rates(1e12).pass_s(1e12, 5e9) == 1.0  # nothing moves where there is no bus


def test_kv_in_memory_is_verified_in_long_rounds() -> None:
    model = RoundModel(CARD, Pass(2e8), MIDDLE, HOST, drafts=TUNING.most_draft)
    assert model.plain_ms == pytest.approx(2000.0)
    assert model.first_word_s == pytest.approx(FEW_TRIPS * 2.0)
    fast, slow = model.token_ms()
    assert 2000 / 20 < fast < slow < 2000 / 3
    for kept, ms in zip(KEPT, (slow, fast), strict=True):
        speed = model.speed(kept)
        assert speed.gain == pytest.approx(2000.0 / ms)
        drafted = speed.plan.passes * speed.plan.draft * 0.2
        assert speed.round_ms == pytest.approx(2000.0 + speed.plan.passes * 17.0 + drafted)
    assert model.speed(0.9, plain_ms=4000.0).gain == pytest.approx(2 * model.speed(0.9).gain)


def test_kv_on_the_card_gains_less_and_answers_at_once() -> None:
    here = RoundModel(CARD, None, MIDDLE, Pass(33e9))
    assert here.first_word_s == pytest.approx(FEW_TRIPS * 0.033)
    assert here.speed(0.9).plan.draft == 0
    assert 1.0 <= here.speed(0.8).gain <= here.speed(0.95).gain < 2.0
