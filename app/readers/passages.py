"""Where a passage stands among the letters of a page, whatever its spacing and signs. Standard library only."""

from __future__ import annotations

import unicodedata

_MOST_PLACES = 500  # of one passage that are looked at
_SHORTEST = 12  # letters of the beginning and of the end of a passage that find it when the whole is not there


def folded(text: str) -> str:
    """Letters and digits only, without case, accents composed in one way, ligatures spelled out."""
    return "".join(sign for sign in unicodedata.normalize("NFKC", text).casefold() if sign.isalnum())


def locate(text: str, passage: str, before: str = "", after: str = "") -> tuple[int, int] | None:
    """Where a folded passage stands in a folded text: whole, or by its beginning and its end.

    Args:
        before, after: what stands around it, by which one of several places is told from the others.
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
    if head >= 0:  # it runs on to the next page
        return head, min(len(text), head + len(passage))
    if tail >= 0:
        return max(0, tail + size - len(passage)), tail + size
    return None


def _shared(one: str, other: str) -> int:
    """Letters that two texts have in common at their beginning."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
