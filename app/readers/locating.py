"""Finds a passage in a page's text, ignoring spaces and punctuation. Uses the standard library only."""

from __future__ import annotations

import unicodedata

_MOST_PLACES = 500  # maximum occurrences of a passage that are compared; later occurrences are ignored
_SHORTEST = 12  # if a passage is not found, its start and its end are searched, with at least this many letters


def folded(text: str) -> str:
    """Reduce a text to its letters and digits: without case, accents composed, ligatures expanded."""
    return "".join(sign for sign in unicodedata.normalize("NFKC", text).casefold() if sign.isalnum())


def locate(text: str, passage: str, text_before: str = "", text_after: str = "") -> tuple[int, int] | None:
    """Find a folded passage in a folded text: the whole passage, or else its start or its end.

    Args:
        text: the folded text.
        passage: the folded passage.
        text_before: the folded text before the passage. Of several occurrences, the one is returned whose surroundings
            agree best with ``text_before`` and ``text_after``.
        text_after: the folded text after the passage.

    Returns:
        Start and end of the passage in ``text``; None if it is not found.
    """
    if not passage:
        return None
    starts: list[int] = []
    start = text.find(passage)
    while start >= 0 and len(starts) < _MOST_PLACES:
        starts.append(start)
        start = text.find(passage, start + 1)
    if starts:

        def alike(start: int) -> int:
            left, right = text[:start][-len(text_before) :], text[start + len(passage) :][: len(text_after)]
            return _shared(left[::-1], text_before[::-1]) + _shared(right, text_after)

        best = max(starts, key=alike)
        return best, best + len(passage)
    size = max(_SHORTEST, min(40, len(passage) // 3))
    if len(passage) < 2 * size:
        return None
    head, tail = text.find(passage[:size]), text.find(passage[-size:])
    if head >= 0 and head < tail <= head + 2 * len(passage):
        return head, tail + size
    if head >= 0:  # only the start is found, so the passage continues on the next page
        return head, min(len(text), head + len(passage))
    if tail >= 0:
        return max(0, tail + size - len(passage)), tail + size
    return None


def _shared(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
