"""The one rule for what is said of an answer's speed: below it, in the panel, in the race and in the terminal.

The figure is the engine's: plain steps that were timed while the answer was written (``engine.generation.PlainSteps``),
or, once the same text has been raced, its run in plain steps from end to end. It is shown only where the text is one
that it says something about (``uncounted``): text that repeats itself is copied, and copying is fast whatever the book.
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
"""Two figures of one text that differ by more than this have no business on one screen: then neither is shown."""

_EQUAL = 0.05  # a difference that two runs on a busy machine can have by chance
_SPAN = 6  # neighbouring words that make a repetition
_FEWEST = 3 * _SPAN  # words; in fewer there is no circle to see
_HALF = 0.5
_LONGEST_WORD = 16  # characters on average; beyond, the writing has no spaces and is looked at sign by sign


def speedup(figures: Figures | None, why_not: str = "") -> float | None:
    """How many times as fast as plain decoding an answer was written; None where nothing can be said.

    Args:
        why_not: what ``uncounted`` says of the answer.
    """
    if figures is None or why_not or figures.mode == "plain":
        return None
    return figures.speedup_vs_plain


def speed_in_words(times: float | None) -> str:
    """1.42 -> "1.4 times faster", with the honest words for the other cases."""
    if times is None:
        return "speed not measured"
    if abs(times - 1.0) < _EQUAL:
        return "equally fast"
    return f"{times:.1f} times faster" if times > 1 else f"{1 / times:.1f} times slower"


def than_plain(times: float | None) -> str:
    """The speed as a sentence of its own; empty where nothing was measured."""
    if times is None:
        return ""
    said = speed_in_words(times)
    return "as fast as plain" if said == "equally fast" else f"{said} than plain"


def speeds_agree(one: float | None, other: float | None) -> bool:
    """Whether two speedups of one text tell the same story; one that is missing contradicts nothing."""
    if not one or not other:
        return True
    return max(one, other) <= AGREE * min(one, other)


def uncounted(answer: str, earlier: Sequence[str] = (), *, refused: bool = False) -> str:
    """Why the speed of an answer says nothing of the book; empty where it does.

    Args:
        earlier: the answers that stood before it.
        refused: it is one of the model's refusals.

    Returns:
        a key of ``WHY_NO_SPEED``.
    """
    if refused:
        return REFUSED
    spans = list(_spans(_words(answer)))
    if len(spans) > _FEWEST - _SPAN and len(set(spans)) <= _HALF * len(spans):
        return CIRCLES
    known = {span for text in earlier for span in _spans(_words(text), len(spans[0]) if spans else _SPAN)}
    if spans and sum(span in known for span in spans) > _HALF * len(spans):
        return REPEATS
    return ""


def words_of(answer: str) -> int:
    """How many words an answer has; 0 for writing without spaces, which is counted in tokens."""
    words = answer.split()
    return 0 if len(answer) > _LONGEST_WORD * max(1, len(words)) else len(words)


def _words(text: str) -> list[str]:
    words = text.lower().split()
    return words if words_of(text) else list(text.replace(" ", ""))


def _spans(words: Sequence[str], length: int = _SPAN) -> Iterator[tuple[str, ...]]:
    """Every run of neighbouring words; of a text that is shorter, all of it."""
    length = min(length, len(words)) or 1
    return (tuple(words[at : at + length]) for at in range(len(words) - length + 1))
