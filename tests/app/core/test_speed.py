"""The one rule for what is said of speed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import speed
from tests.app.scripted import figures

QUOTE = "Maren Holt kept the north light, as her mother had kept it before her, and she counted every lamp in Orre."


@pytest.mark.parametrize(
    ("times", "said", "alone"),
    [
        (2.94, "2.9 times faster", "2.9 times faster than plain"),
        (1.03, "equally fast", "as fast as plain"),
        (0.97, "equally fast", "as fast as plain"),
        (0.5, "2.0 times slower", "2.0 times slower than plain"),
        (None, "speed not measured", ""),
    ],
)
def test_slower_is_called_slower(times: float | None, said: str, alone: str) -> None:
    assert (speed.speed_in_words(times), speed.than_plain(times)) == (said, alone)


def test_only_text_about_the_book_has_a_speed() -> None:
    done = replace(figures(40), speedup_vs_plain=2.9)
    assert speed.speedup(done) == 2.9
    assert speed.speedup(done, speed.CIRCLES) is None
    assert speed.speedup(replace(done, mode="plain")) is None
    assert speed.speedup(None) is None


@pytest.mark.parametrize(
    ("answer", "earlier", "why"),
    [
        (QUOTE, (), ""),
        (QUOTE, ("Nobody else would climb the stairs at night after the winter of the gale.",), ""),
        (QUOTE, (QUOTE,), speed.REPEATS),
        ("“" + QUOTE + "” It says so.", ("He asks. " + QUOTE,), speed.REPEATS),
        (QUOTE + " " + QUOTE, (), ""),  # said twice: a person does that, too
        ("Who kept it? " + QUOTE * 4, (), speed.CIRCLES),
        ("the light " * 30, (), speed.CIRCLES),
        ("the light", ("the light",), speed.REPEATS),
        ("灯塔的光照亮了大海" * 6, (), speed.CIRCLES),
        ("灯塔的光照亮了大海，她每天晚上都数一遍灯，从不间断。", (), ""),
        ("", ("",), ""),
    ],
)
def test_circles_and_repetitions_are_counted_apart(answer: str, earlier: tuple[str, ...], why: str) -> None:
    assert speed.uncounted(answer, earlier) == why


def test_the_first_words_of_an_answer_repeat_none() -> None:
    """Below an answer of one word, "The", stood that it repeats an earlier one."""
    assert speed.uncounted("The", (QUOTE, "the light"), ended=False) == ""
    assert speed.uncounted(QUOTE, (QUOTE,), ended=False) == speed.REPEATS
    assert speed.uncounted("The", ("the",)) == speed.REPEATS


def test_a_refusal_is_no_text_to_be_fast_at() -> None:
    assert speed.uncounted("The book does not say that.", refused=True) == speed.REFUSED


def test_two_figures_of_one_text_agree_or_are_not_shown() -> None:
    assert speed.speeds_agree(5.6, 4.0)
    assert not speed.speeds_agree(5.6, 3.3)
    assert not speed.speeds_agree(0.7, 3.6)
    assert speed.speeds_agree(None, 3.3)
