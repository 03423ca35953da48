"""Decides whether an answer's speed is stated, and in which words. The line under the answer, the figures panel, the
race and the terminal all use these words.

The speed is measured by the engine, from plain steps that were timed while the answer was written
(``engine.generation.PlainSteps``). If a race produced the same text, the plain run of the race is used instead. The
speed is not shown for a refusal or for repeated text (``uncounted``). Speculation decodes such text fast with any book,
so its speed would say nothing about other answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.events import Figures

REFUSED, CIRCLES, REPEATS = "refused", "circles", "repeats"
WHY_NO_SPEED = {
    REFUSED: "no answer from the book, so no speed to compare",
    CIRCLES: "repeats itself, so no speed to compare",
    REPEATS: "repeats an earlier answer, so no speed to compare",
}

AGREE = 1.5
"""Maximum quotient of two measured speedups of the same text. If the quotient is larger, the speedups contradict each
other, and neither is shown.
"""

# maximum difference between a speedup and 1 at which the speeds count as equal, because a busy machine may slow one run
# more than the other
_EQUAL = 0.05
_SPAN = 6  # length in words of the sequences that are compared to find repetition
_FEWEST = 3 * _SPAN  # minimum words of an answer that is searched for repetitions within itself
_HALF = 0.5
# maximum mean number of characters per word. A text with a higher mean counts as written without spaces, such as
# Chinese, and its characters are compared instead of its words.
_LONGEST_WORD = 16


STEPS_FOR_SLOWER = 30
"""Minimum plain steps that were timed before an answer is called slower than plain decoding. The first rounds of an
answer try which way of decoding pays. If none does, plain steps follow, so that a slow answer soon has this many.
"""


def speedup(figures: Figures | None, why_not: str = "") -> float | None:
    """The speedup of an answer over plain decoding; None if the speedup is unknown or does not count, or if the answer
    was slower and has too few plain steps to say so.

    Args:
        why_not: the result of ``uncounted`` for the answer.
    """
    if figures is None or why_not or figures.mode == "plain":
        return None
    times = figures.speedup_vs_plain
    is_slower = times is not None and times < 1 - _EQUAL
    return None if is_slower and figures.plain_steps < STEPS_FOR_SLOWER else times


def speed_in_words(times: float | None) -> str:
    """A speedup in words: 1.42 -> "1.4 times faster", 1.01 -> "equally fast", 0.8 -> "1.2 times slower"."""
    if times is None:
        return "speed not measured"
    if abs(times - 1.0) < _EQUAL:
        return "equally fast"
    return f"{times:.1f} times faster" if times > 1 else f"{1 / times:.1f} times slower"


def than_plain(times: float | None) -> str:
    """A speedup over plain decoding in words: "1.4 times faster than plain"; "" if the speedup was not measured."""
    if times is None:
        return ""
    said = speed_in_words(times)
    return "as fast as plain" if said == "equally fast" else f"{said} than plain"


def speeds_agree(one: float | None, other: float | None) -> bool:
    """Whether two measured speedups of the same text agree. An unknown speedup agrees with any other."""
    if not one or not other:
        return True
    return max(one, other) <= AGREE * min(one, other)


def uncounted(answer: str, earlier: Sequence[str] = (), *, refused: bool = False, ended: bool = True) -> str:
    """The reason why an answer's speed does not count; "" if it counts. The speed of a refusal or of repeated text does
    not count, because such text is decoded fast with any book.

    Args:
        earlier: the preceding answers.
        refused: whether the answer is one of the model's refusals.
        ended: whether the answer is complete. An unfinished answer of fewer than ``_SPAN`` words is not compared with
            earlier answers.

    Returns:
        a key of ``WHY_NO_SPEED``, or "".
    """
    if refused:
        return REFUSED
    words = _words(answer)
    spans = list(_spans(words))
    if len(spans) > _FEWEST - _SPAN and len(set(spans)) <= _HALF * len(spans):
        return CIRCLES
    if not ended and len(words) < _SPAN:
        return ""
    known = {span for text in earlier for span in _spans(_words(text), len(spans[0]) if spans else _SPAN)}
    if spans and sum(span in known for span in spans) > _HALF * len(spans):
        return REPEATS
    return ""


def words_of(answer: str) -> int:
    """The number of words of an answer; 0 for a text written without spaces, such as Chinese."""
    words = answer.split()
    return 0 if len(answer) > _LONGEST_WORD * max(1, len(words)) else len(words)


def _words(text: str) -> list[str]:
    words = text.lower().split()
    return words if words_of(text) else list(text.replace(" ", ""))


def _spans(words: Sequence[str], length: int = _SPAN) -> Iterator[tuple[str, ...]]:
    """All sequences of ``length`` consecutive words. If the text is shorter, the whole text is the only sequence."""
    length = min(length, len(words)) or 1
    return (tuple(words[start : start + length]) for start in range(len(words) - length + 1))
