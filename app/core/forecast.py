"""Estimates how long a reading takes and how fast answers come, from earlier observations or from the engine's probes.

``Experience`` stores how long earlier readings and answers of a model took on this machine. Before the first
observation, estimates come from the engine's short probes and are wide ranges. ``Remaining`` gives the remaining time
of one reading. At first this time is the estimate; during the reading, the measured time gets more and more weight. The
shown remaining time never rises.
"""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.core.whole_files import write_whole
from engine.events import BookRead, Figures, ModelInfo, ReadingProgress
from engine.plan import BookFit

logger = logging.getLogger(__name__)

WORDS_PER_TOKEN = 0.75
"""Words per token of English text. The number is about the same for most vocabularies."""

PROBED = 2.0
"""Maximum factor by which a forecast made from short probes is expected to be wrong in either direction, because other
programs use the machine too.
"""

SEEN = 1.25
"""Maximum factor by which a forecast made from a reading of a similar length is expected to be wrong."""

_SETTLED = 0.15  # share of a reading after which its remaining time is shown as one number instead of a range
_TRUST = 0.05  # share of a reading at which the measured time and the earlier estimate have equal weight
# minimum factor by which the measured remaining time exceeds the shown time before the reading is called slower than
# expected
_SLOWER = 1.25
# An observation counts as similar to a forecast if their numbers of tokens differ at most by this factor.
_LIKE = 4.0
# exponent of the tokens in the time to read them: the time grows more than linearly, and less than with the square
_GROWTH = 1.15
_FEWEST_TOKENS = 512  # minimum tokens of a reading that is stored as an observation
_FEWEST_WRITTEN = 16  # minimum tokens of an answer that is stored as an observation
_KEPT = 8  # maximum number of observations of each kind (readings, answers) that are stored; older ones are dropped
# Minimum seconds by which the measured remaining time also has to exceed the shown time. A person hardly notices a
# smaller difference.
_HARDLY = 2.0
_A_MOMENT = 8.0  # remaining seconds below which "a few seconds" are shown
_MINUTE = 60  # seconds
_HOUR = 3600  # seconds
_MANY_MINUTES = 20  # number of minutes above which minutes are rounded to a multiple of five

Point = tuple[float, float]
"""An observation: the number of context tokens, and the value measured with them (the seconds of a reading, or the
tokens per second of an answer).
"""


@dataclass(frozen=True)
class Range:
    """A range of numbers from ``low`` to ``high``. Both are equal if the value is known."""

    low: float
    high: float

    @classmethod
    def about(cls, value: float, times: float) -> Range:
        return cls(value / times, value * times)

    def times(self, factor: float) -> Range:
        return Range(self.low * factor, self.high * factor)


def stretch(span: Range) -> str:
    """Seconds in words: "20 to 40 s", "about 3 min", "1 to 2 min"."""
    low, high = _rough(span.low), _rough(span.high)
    if low == high:
        return f"about {high[0]} {high[1]}"
    if low[1] == high[1]:
        return f"{low[0]} to {high[0]} {high[1]}"
    return f"{low[0]} {low[1]} to {high[0]} {high[1]}"


def _rough(seconds: float, step: int = 5) -> tuple[str, str]:
    """Round seconds, the longer the time the more coarsely. Return the number and its unit (s, min or h). Below a
    minute, seconds are rounded to multiples of ``step``.
    """
    if seconds < _MINUTE - 5:
        return str(max(step, step * round(seconds / step))), "s"
    if seconds < _HOUR:
        minutes = round(seconds / _MINUTE)
        return str(5 * round(minutes / 5) if minutes > _MANY_MINUTES else max(1, minutes)), "min"
    hours = seconds / _HOUR
    return (f"{hours:.1f}".removesuffix(".0") if hours < 10 else f"{hours:.0f}"), "h"


def pace(span: Range) -> str:
    """Words per second in words: "about 15 words a second", "5 to 20 words a second", "a word in 3 to 7 s"."""
    if span.high < 1:
        slow, fast = (_rough(1 / max(number, 1e-6), step=1) for number in (span.low, span.high))
        if fast[1] == slow[1] and fast != slow:
            return f"a word in {fast[0]} to {slow[0]} {slow[1]}"
        return f"a word in {' '.join(slow)}"
    low, high = _few(span.low), _few(span.high)
    return f"about {high} words a second" if low == high else f"{low} to {high} words a second"


def _few(number: float) -> str:
    if number < 1:
        return f"{max(0.1, number):.1f}"
    if number < 20:
        return str(round(number))
    return str(5 * round(number / 5) if number < 100 else 10 * round(number / 10))


def expected(reading: Range, writing: Range | None) -> str:
    """A forecast in words: "about 1 min to read, then about 15 words a second"."""
    then = f", then {pace(writing)}" if writing else ""
    return f"{stretch(reading)} to read{then}"


# One reading ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Remaining:
    """The remaining time of one reading. ``total``: the forecast seconds of the whole reading; None without a forecast.
    ``left``: the seconds to show. ``slower``: whether the measured remaining time clearly exceeds ``left``.
    """

    total: Range | None = None
    left: Range | None = None
    slower: bool = False
    # share of the book that was read at the first report of progress; None before that report
    _began: float | None = None

    def after(self, progress: ReadingProgress) -> Remaining:
        """Return the remaining time after another report of the reading's progress."""
        part = progress.tokens_done / progress.tokens_total if progress.tokens_total else 1.0
        began = part if self._began is None else self._began
        seen = part - began
        known, clock = self.total, progress.seconds_left
        if seen <= 0.0:
            # The first tokens touch new memory and are slow, so the time measured with them is not used.
            left = Range(known.low * (1 - part), known.high * (1 - part)) if known else None
            return replace(self, left=_at_most(left, self.left), _began=began)
        trust = seen / (seen + _TRUST) if known else 1.0
        low, high = clock, clock
        if known:  # what was measured says more than an estimate that is far from it
            most = PROBED if seen < _SETTLED else SEEN
            low, high = (
                trust * clock + (1 - trust) * min(max(end * (1 - part), clock / most), clock * most)
                for end in (known.low, known.high)
            )
        if seen < _SETTLED:  # the shown range becomes narrower with every report of progress
            wide = 1.0 + (SEEN - 1.0) * (1.0 - seen / _SETTLED)
            left = _at_most(Range(min(low, clock / wide), max(high, clock * wide)), self.left)
        else:
            middle = (low + high) / 2
            left = Range(middle, middle) if self.left is None else Range(*[min(middle, self.left.high)] * 2)
        slower = left is not None and clock > _SLOWER * left.high + _HARDLY
        return replace(self, left=left, slower=slower, _began=began)

    @property
    def words(self) -> str:
        """The remaining time in words: "1 to 2 min left", "about 20 s left"; empty while nothing is known."""
        if self.left is None:
            return ""
        if self.slower:
            return f"slower than expected, at least {' '.join(_rough(self.left.high))} left"
        if self.left.high < _A_MOMENT:
            return "a few seconds left"
        return f"{stretch(self.left)} left"


def _at_most(span: Range | None, bound: Range | None) -> Range | None:
    if span is None or bound is None:
        return span or bound
    high = min(span.high, bound.high)
    return Range(min(span.low, high), high)


# Observations on this machine -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Seen:
    readings: tuple[Point, ...] = ()
    answers: tuple[Point, ...] = ()


class Experience:
    """Stores this machine's observations of all models.

    Args:
        file: the file with the observations, made on first use. None keeps the observations in memory.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._seen: dict[str, _Seen] = _load(file)

    def read(self, model: ModelInfo | None, read: BookRead) -> None:
        """Store how long a reading took. A reading is ignored if it was stopped, if it was restored from disk, or if it
        had fewer than ``_FEWEST_TOKENS`` tokens.
        """
        if read.source == "read" and not read.stopped and read.tokens >= _FEWEST_TOKENS and read.seconds > 0:
            self._note(model, "readings", (float(read.tokens), read.seconds))

    def answered(self, model: ModelInfo | None, figures: Figures) -> None:
        """Store the speed of an answer. Answers of plain decoding, and answers with fewer than ``_FEWEST_WRITTEN``
        tokens, are ignored.
        """
        if figures.mode != "plain" and figures.answer_tokens >= _FEWEST_WRITTEN and figures.tokens_per_s:
            self._note(model, "answers", (float(figures.context_tokens), figures.tokens_per_s))

    def reading(self, model: ModelInfo | None, tokens: int, probed: float | None) -> Range | None:
        """Estimate the seconds that a model needs to read ``tokens``; None without any observation or probe.

        Args:
            model: the model that reads; None if no model is loaded.
            probed: seconds that the engine's probes predict; None without probes. Used only if this model has no
                observation.
        """
        point = _nearest(self._of(model).readings, tokens)
        if point is not None:
            near = max(point[0], tokens) <= _LIKE * min(point[0], tokens)
            return Range.about(point[1] * (tokens / point[0]) ** _GROWTH, SEEN if near else PROBED)
        return Range.about(probed, PROBED) if probed else None

    def reading_on(self, model: ModelInfo | None, fit: BookFit) -> Range | None:
        """Estimate the seconds to read a book whose first ``fit.kept`` tokens are restored from disk."""
        whole = self.reading(model, fit.tokens, fit.reading_s)
        if whole is None or not fit.tokens:
            return whole
        part = 1.0 - (fit.kept / fit.tokens) ** _GROWTH
        return Range(whole.low * part, whole.high * part)

    def a_token(self, model: ModelInfo | None, fit: BookFit) -> Range | None:
        """Estimate the seconds per token for reading the parts of a book that exceeds the window. The estimate is made
        from the time for a full window.
        """
        tokens = max(1, min(fit.tokens, fit.room))
        time = self.reading(model, tokens, fit.reading_s)
        return time.times(1 / tokens) if time else None

    def writing(self, model: ModelInfo | None, tokens: int, step_ms: float | None) -> Range | None:
        """Estimate how many words per second an answer has after ``tokens`` of context; None without any observation or
        probe.

        Args:
            model: the model that answers; None if no model is loaded.
            step_ms: milliseconds of a plain decoding step, from the engine's probes. Used only if there is no similar
                observation. The speedup by speculation is unknown in this case, so the estimate does not include it.
        """
        point = _nearest(self._of(model).answers, tokens)
        if point is not None and max(point[0], tokens) <= _LIKE * max(1.0, min(point[0], tokens)):
            return Range.about(WORDS_PER_TOKEN * point[1], SEEN)
        return Range.about(WORDS_PER_TOKEN * 1000.0 / step_ms, PROBED) if step_ms else None

    def corrected(self, model: ModelInfo | None, fit: BookFit) -> BookFit:
        """Replace the engine's estimate of the reading time in ``fit`` by an estimate from this machine's observations,
        so that every place in the app shows the same time.
        """
        tokens = fit.tokens if fit.fits else min(fit.tokens, fit.limit)
        reading = self.reading(model, tokens, fit.reading_s)
        if reading is None:
            return fit
        words = expected(reading, self.writing(model, tokens, fit.step_ms))
        sentence = fit.sentence.replace(fit.estimate, words) if fit.estimate else fit.sentence
        return replace(fit, estimate=words, sentence=sentence)

    def _of(self, model: ModelInfo | None) -> _Seen:
        with self._lock:
            return _Seen() if model is None else self._seen.get(identity(model), _Seen())

    def _note(self, model: ModelInfo | None, kind: str, point: Point) -> None:
        if model is None:
            return
        with self._lock:
            name = identity(model)
            seen = self._seen.get(name, _Seen())
            self._seen[name] = replace(seen, **{kind: (*getattr(seen, kind), point)[-_KEPT:]})
            self._save()

    def _save(self) -> None:
        if self._file is None:
            return
        kept = {name: {"readings": seen.readings, "answers": seen.answers} for name, seen in self._seen.items()}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, json.dumps(kept, indent=1))
        except OSError:
            logger.exception("what was seen of this machine could not be written down")


def identity(model: ModelInfo) -> str:
    """Make the key under which observations of a loaded model and its draft model are stored. The key contains
    everything that the speed and the text of answers depend on. The name of a model includes the number of bits of its
    weights, so every quantization has its own key.
    """
    parts = [model.path, model.name, model.parameters, model.draft_name, model.draft_parameters, model.dtype]
    return " | ".join(map(str, [*parts, model.device, model.kv_note]))


def _nearest(points: tuple[Point, ...], tokens: int) -> Point | None:
    """The observation whose number of tokens is nearest to ``tokens``. Of equally near observations, the newest is
    taken.
    """
    return min(reversed(points), key=lambda point: abs(point[0] - tokens), default=None)


def _load(file: Path | None) -> dict[str, _Seen]:
    try:
        kept = json.loads(file.read_text(encoding="utf-8")) if file else {}
        return {name: _Seen(_points(seen["readings"]), _points(seen["answers"])) for name, seen in kept.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return {}  # a file that cannot be read counts as a file without observations


def _points(stored: Any) -> tuple[Point, ...]:
    points = tuple((float(tokens), float(value)) for tokens, value in stored[-_KEPT:])
    if not all(0.0 < number < 1e12 for point in points for number in point):
        raise ValueError("a number out of range")
    return points
