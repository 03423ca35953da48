"""The single rule for statements about an answer's speed: below it, in the panel, in the race and in the terminal.

The figure is the engine's. It comes from plain steps that were timed while the answer was written
(``engine.generation.PlainSteps``) or, once the same text has been raced, from its run in plain steps. It is shown only
where it tells something (``uncounted``): text that repeats itself is copied, and copying is fast with any book.
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
"""Factor between two figures of one text above which neither is shown: they contradict each other."""

_EQUAL = 0.05  # relative difference that two runs on a busy machine may have by chance
_SPAN = 6  # neighbouring words that form a repetition
_FEWEST = 3 * _SPAN  # words of an answer below which no circle is looked for
_HALF = 0.5
# characters of a word on average; a longer average means writing without spaces, which is examined sign by sign
_LONGEST_WORD = 16


def speedup(figures: Figures | None, why_not: str = "") -> float | None:
    """How many times as fast as plain decoding an answer was written; None where this is unknown.

    Args:
        why_not: the result of ``uncounted`` for the answer.
    """
    if figures is None or why_not or figures.mode == "plain":
        return None
    return figures.speedup_vs_plain


def speed_in_words(times: float | None) -> str:
    """The speed in words: 1.42 -> "1.4 times faster", and honest words for other cases."""
    if times is None:
        return "speed not measured"
    if abs(times - 1.0) < _EQUAL:
        return "equally fast"
    return f"{times:.1f} times faster" if times > 1 else f"{1 / times:.1f} times slower"


def than_plain(times: float | None) -> str:
    """The speed as its own sentence; empty without a measurement."""
    if times is None:
        return ""
    said = speed_in_words(times)
    return "as fast as plain" if said == "equally fast" else f"{said} than plain"


def speeds_agree(one: float | None, other: float | None) -> bool:
    """Whether two speedups of one text agree; a missing one contradicts nothing."""
    if not one or not other:
        return True
    return max(one, other) <= AGREE * min(one, other)


def uncounted(answer: str, earlier: Sequence[str] = (), *, refused: bool = False, ended: bool = True) -> str:
    """Why the speed of an answer tells nothing about the book; empty where it tells something.

    Args:
        earlier: the answers before it.
        refused: whether it is one of the model's refusals.
        ended: whether it is all written: its first words alone are no repetition.

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
    """Number of words of an answer; 0 for writing without spaces, which is counted in tokens."""
    words = answer.split()
    return 0 if len(answer) > _LONGEST_WORD * max(1, len(words)) else len(words)


def _words(text: str) -> list[str]:
    words = text.lower().split()
    return words if words_of(text) else list(text.replace(" ", ""))


def _spans(words: Sequence[str], length: int = _SPAN) -> Iterator[tuple[str, ...]]:
    """Every run of ``_SPAN`` neighbouring words; the whole text where it is shorter."""
    length = min(length, len(words)) or 1
    return (tuple(words[at : at + length]) for at in range(len(words) - length + 1))
