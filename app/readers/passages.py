"""Finds a passage among the letters of a page, ignoring spacing and punctuation. Standard library only."""

from __future__ import annotations

import unicodedata

_MOST_PLACES = 500  # places of one passage that are examined
_SHORTEST = 12  # letters of a passage's beginning and end, by which it is found if the whole is not found


def folded(text: str) -> str:
    """Fold a text to letters and digits in lower case, with accents composed and ligatures spelled out."""
    return "".join(sign for sign in unicodedata.normalize("NFKC", text).casefold() if sign.isalnum())


def locate(text: str, passage: str, before: str = "", after: str = "") -> tuple[int, int] | None:
    """Find a folded passage in a folded text: as a whole, or else by its beginning and its end.

    Args:
        before, after: the text around the passage, which decides if it occurs at several places.
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
            end = start + len(passage)
            return _shared(text[:start][-len(before) :][::-1], before[::-1]) + _shared(text[end:][: len(after)], after)

        best = max(starts, key=alike)
        return best, best + len(passage)
    size = max(_SHORTEST, min(40, len(passage) // 3))
    if len(passage) < 2 * size:
        return None
    head, tail = text.find(passage[:size]), text.find(passage[-size:])
    if head >= 0 and head < tail <= head + 2 * len(passage):
        return head, tail + size
    if head >= 0:  # the passage continues on the next page
        return head, min(len(text), head + len(passage))
    if tail >= 0:
        return max(0, tail + size - len(passage)), tail + size
    return None


def _shared(one: str, other: str) -> int:
    """The number of letters that two texts share at their beginning."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
