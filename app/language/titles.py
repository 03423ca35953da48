"""Shortens titles of documents for use within a sentence, so that similar titles stay distinct."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

LONGEST = 28
"""Maximum characters of a title within a sentence. A longer title is cut."""
_HEAD = 10
"""Characters of the beginning that stay, if a title is cut in the middle."""


def short_title(title: str, others: Sequence[str] = ()) -> str:
    """Cut a title at its end; in its middle if it would then equal one of ``others``, so that what follows is the first
    word in which it differs from the most similar of them: "Frame cont…2024, signed".
    """
    title = " ".join(title.split())
    if len(title) <= LONGEST:
        return title
    begun = title[: LONGEST - 1]
    named = (" ".join(other.split()) for other in others)
    similar = [other for other in named if other != title and other.startswith(begun)]
    if not similar:
        return _cut(title, LONGEST)
    shared = max(_shared(title, other) for other in similar)
    head = title[:_HEAD].rstrip()
    # of a long word, such as the name of a file, only its end
    start = max(shared - LONGEST // 3, *(title.rfind(sign, 0, shared) + 1 for sign in " -_"))
    return f"{head}…{_cut(title[start:], LONGEST - len(head) - 1)}"


def _shared(one: str, other: str) -> int:
    """The number of first characters that two texts have in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"
