"""Decides whether and how an answer's speed is stated: under the answer, in the figures panel, in the race and in the
terminal.

The speed is measured by the engine, from plain steps that were timed while the answer was written
(``engine.generation.PlainSteps``). After a race with the same text, the race's plain run is used instead. The speed is
shown only if it is meaningful (``uncounted``): repeated text is copied, and copying is fast with any book.
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
"""Maximum factor between two figures for the same text. If they differ more, they contradict each other, and neither is
shown.
"""

_EQUAL = 0.05  # relative difference that may occur by chance between two runs on a busy machine
_SPAN = 6  # neighbouring words that are compared to find a repetition
_FEWEST = 3 * _SPAN  # minimum words of an answer that is searched for repetition
_HALF = 0.5
# average characters of a word above which the text counts as written without spaces, and is examined character by
# character
_LONGEST_WORD = 16


def speedup(figures: Figures | None, why_not: str = "") -> float | None:
    """By what factor an answer was written faster than plain decoding; None if unknown.

    Args:
        why_not: the result of ``uncounted`` for the answer.
    """
    if figures is None or why_not or figures.mode == "plain":
        return None
    return figures.speedup_vs_plain


def speed_in_words(times: float | None) -> str:
    """A speedup in words: 1.42 -> "1.4 times faster", 1.01 -> "equally fast", 0.8 -> "1.2 times slower"."""
    if times is None:
        return "speed not measured"
    if abs(times - 1.0) < _EQUAL:
        return "equally fast"
    return f"{times:.1f} times faster" if times > 1 else f"{1 / times:.1f} times slower"


def than_plain(times: float | None) -> str:
    """A speedup in words that name the comparison, such as "1.4 times faster than plain"; "" if it was not measured."""
    if times is None:
        return ""
    said = speed_in_words(times)
    return "as fast as plain" if said == "equally fast" else f"{said} than plain"


def speeds_agree(one: float | None, other: float | None) -> bool:
    """Whether two speedups of one text agree. A missing speedup agrees with any."""
    if not one or not other:
        return True
    return max(one, other) <= AGREE * min(one, other)


def uncounted(answer: str, earlier: Sequence[str] = (), *, refused: bool = False, ended: bool = True) -> str:
    """The reason why an answer's speed does not count: a refusal or repeated text is fast with any book. Empty if the
    speed counts.

    Args:
        earlier: the preceding answers.
        refused: whether the answer is one of the model's refusals.
        ended: whether the answer is complete. An unfinished answer of fewer than ``_SPAN`` words is not compared with
            earlier answers.

    Returns:
        a key of ``WHY_NO_SPEED``.
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
    """The number of words of an answer; 0 for writing without spaces, which is counted in tokens."""
    words = answer.split()
    return 0 if len(answer) > _LONGEST_WORD * max(1, len(words)) else len(words)


def _words(text: str) -> list[str]:
    words = text.lower().split()
    return words if words_of(text) else list(text.replace(" ", ""))


def _spans(words: Sequence[str], length: int = _SPAN) -> Iterator[tuple[str, ...]]:
    """All sequences of ``length`` consecutive words; the whole text if it is shorter."""
    length = min(length, len(words)) or 1
    return (tuple(words[at : at + length]) for at in range(len(words) - length + 1))
