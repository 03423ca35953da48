"""One estimate: a range at first, corrected by what is seen, and never rising."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from app.core.forecast import PROBED, SEEN, Experience, Range, Remaining, expected, pace, stretch
from engine.events import BookRead, KvBytes, ReadingProgress
from engine.plan.memory_budget import BookFit
from tests.app.scripted import figures, model_info

TOKENS = 20_000


@pytest.mark.parametrize(
    ("span", "said"),
    [
        (Range(13.5, 13.5), "about 15 s"),
        (Range(20.0, 41.0), "20 to 40 s"),
        (Range(40.0, 130.0), "40 s to 2 min"),
        (Range(58.0, 62.0), "about 1 min"),
        (Range(240.0, 360.0), "4 to 6 min"),
        (Range(5400.0, 7300.0), "1.5 to 2 h"),
    ],
)
def test_a_stretch_of_time_in_words(span: Range, said: str) -> None:
    assert stretch(span) == said


def test_words_a_second() -> None:
    assert pace(Range(14.6, 15.2)) == "about 15 words a second"
    assert pace(Range(0.1, 0.3)) == "a word in 3 to 10 s"
    assert pace(Range(0.42, 1.3)) == "0.4 to 1 words a second"
    assert expected(Range(55.0, 62.0), Range(15.0, 15.0)) == "about 1 min to read, then about 15 words a second"
    assert expected(Range(20.0, 41.0), None) == "20 to 40 s to read"


def looks(rates: list[float], total: Range | None = None) -> list[Remaining]:
    """A reading in steps of 5 %, each of which takes the given seconds; the engine goes by the mean so far."""
    seen, seconds = [Remaining(total)], 0.0
    for step, rate in enumerate([0.0, *rates]):
        seconds += rate
        part = step / len(rates)
        left = seconds * (1 - part) / max(part, 1e-9)
        seen.append(seen[-1].after(ReadingProgress(int(TOKENS * part), TOKENS, 0, 9, 1.0, left)))
    return seen[1:]


def said_at_most(remaining: list[Remaining]) -> list[float]:
    return [one.left.high for one in remaining if one.left]


@pytest.mark.parametrize(
    "rates",
    [[1.0] * 20, [5.0, 3.0, *[1.0] * 18], [1.0] * 10 + [4.0] * 10, [0.2] * 3 + [2.0] * 17],
    ids=["steady", "slow at first", "slow at last", "fast at first"],
)
@pytest.mark.parametrize("total", [None, Range(8.0, 32.0)], ids=["unknown", "probed"])
def test_what_is_left_never_rises(rates: list[float], total: Range | None) -> None:
    remaining = looks(rates, total)
    said = said_at_most(remaining)
    assert all(later <= earlier for earlier, later in pairwise(said))
    assert said[-1] == pytest.approx(0.0, abs=0.1)
    assert remaining[-1].words == "a few seconds left"


def test_it_is_a_range_at_first_and_then_a_number() -> None:
    remaining = looks([2.0] * 20, Range(20.0, 80.0))
    assert [remaining[at].words for at in (0, 1, 4)] == ["20 s to 1 min left", "30 s to 1 min left", "about 30 s left"]
    assert looks([2.0] * 20)[0].words == "", "nothing is said before anything is known"


@pytest.mark.parametrize(
    "total", [Range(10_000.0, 57_600.0), Range(500.0, 2000.0)], ids=["busy probes", "quiet probes"]
)
def test_what_the_first_blocks_took_says_more_than_probes(total: Range) -> None:
    """Probes beside other programs said 2.8 to 16 hours of a reading that took 26 minutes, also long after it began."""
    measured = looks([15.6] * 100, total)
    for at in (1, 5, 10, 16, 50):
        left, true = measured[at].left, 1560.0 * (1 - at / 100)
        assert left is not None
        assert true / PROBED < left.low <= true * SEEN
        assert true * 0.99 < left.high < true * PROBED
    assert measured[50].words == "about 13 min left"


def test_a_machine_that_grows_slow_is_called_slow() -> None:
    remaining = looks([1.0] * 10 + [6.0] * 10)
    words = [one.words for one in remaining]
    assert words[10] == "about 10 s left"
    assert words[13].startswith("slower than expected, at least 10 s left")


def fit(seconds: float, step_ms: float) -> BookFit:
    words = f"about {seconds:.0f} s to read"
    return BookFit(TOKENS, 131_072, True, 60, 0, f"It fits. Expect {words}.", KvBytes(), seconds, step_ms, words)


def whole(seconds: float, tokens: int = TOKENS) -> BookRead:
    return BookRead(tokens, tokens, 60, 60, seconds, tokens / seconds, KvBytes(), False)


def test_a_restart_says_what_was_seen_and_not_what_it_probes_now(tmp_path: Path) -> None:
    """Probes beside other programs said eight minutes and 567 ms; the reading took one minute."""
    file, model = tmp_path / "experience.json", model_info()
    first = Experience(file).corrected(model, fit(480.0, 567.0))
    assert first.estimate == "4 to 16 min to read, then 0.7 to 3 words a second"
    assert first.sentence == f"It fits. Expect {first.estimate}."
    seen = Experience(file)
    seen.read(model, whole(60.0))
    seen.answered(model, replace(figures(40), tokens_per_s=20.0, context_tokens=TOKENS))
    for probed in ((480.0, 567.0), (58.0, 69.0)):
        assert Experience(file).corrected(model, fit(*probed)).estimate == (
            "50 s to 1 min to read, then 12 to 19 words a second"
        )
    assert Experience(file).corrected(model_info(device="cuda"), fit(58.0, 69.0)).estimate.startswith("30 s to 2 min")


def test_little_is_learned_from_little(tmp_path: Path) -> None:
    file, model = tmp_path / "experience.json", model_info()
    seen = Experience(file)
    seen.read(model, whole(60.0, tokens=100))
    seen.read(model, replace(whole(60.0), stopped=True))
    seen.read(model, replace(whole(0.1), source="snapshot"))
    seen.answered(model, figures(40, "plain"))
    seen.answered(model, figures(3))
    seen.read(None, whole(60.0))
    assert not file.exists()
    assert seen.reading(model, TOKENS, None) is None


def test_a_longer_book_takes_longer_and_is_less_certain() -> None:
    model, seen = model_info(), Experience()
    seen.read(model, whole(10.0, 10_000))
    near, far = seen.reading(model, 20_000, 1.0), seen.reading(model, 100_000, 1.0)
    assert near is not None
    assert far is not None
    assert near.low < 2 * 10.0 * 2**0.15 < near.high
    assert far.high / far.low > near.high / near.low


def test_a_file_that_somebody_changed_is_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "experience.json"
    for text in ("not json", "[]", '{"a": {"readings": [[1, "x"]], "answers": []}}', '{"a": {"readings": [[-1, 2]]}}'):
        file.write_text(text, encoding="utf-8")
        assert Experience(file).reading(model_info(), TOKENS, 30.0) == Range(15.0, 60.0)
