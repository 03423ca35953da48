"""Whether words stand in the book as an answer has them: the check behind "verified" and "not found".

Letters and digits decide, in their order; spacing, case, accents, hyphens and punctuation do not. Numbers must be the
same numbers. Parts that an ellipsis divides must follow each other. Knows no attention: this is a fact, not a guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from app.pages.folding import fold, numbers
from app.pages.index import BookIndex, PageSpan
from app.pages.sentences import words

FEWEST_WORDS = 3
"""A shorter one between quotation marks is a name or a term, not a quotation."""

_ELLIPSIS = re.compile(r"\[?\s*(?:…|\.\s?\.\s?\.)\s*\]?")
_MARKUP = re.compile(r"[*_`]+|^\s*>\s?", re.M)
_APART = 4000  # folded characters within which the parts of one quotation follow each other
_FEWEST_SHARED = 4  # neighbouring words that a quotation which is not found must share with the book to be shown them
_MOST_WORDS = 150  # of a quotation which is not found that are compared


@dataclass(frozen=True)
class Check:
    """Args:
    verified: every word stands in the book.
    spans: where; of a quotation that was not found, where the longest run of its words stands.
    """

    verified: bool
    spans: tuple[PageSpan, ...] = ()
    matched: int = 0
    total: int = field(default=0, compare=False)


def check(index: BookIndex, passage: str, favour: Sequence[float] = ()) -> Check | None:
    """Look a quoted passage up.

    Args:
        favour: a weight per page; where the words stand more than once, the page with the highest is named.

    Returns:
        None if it is too short to be a quotation.
    """
    passage = _MARKUP.sub("", passage)
    total = len(words(passage))
    if total < FEWEST_WORDS:
        return None
    parts = [part for part in _ELLIPSIS.split(passage) if fold(part)]
    spans = _in_order(index, parts, favour)
    if spans:
        return Check(True, spans, total, total)
    matched, spans = _longest_run(index, passage, favour)
    return Check(False, spans, matched, total)


def _in_order(index: BookIndex, parts: list[str], favour: Sequence[float]) -> tuple[PageSpan, ...]:
    """Where all parts stand behind each other, each as whole words."""
    folded = [fold(part) for part in parts]
    found: list[tuple[PageSpan, ...]] = []
    for start in index.find(folded[0]):
        at, stretches = start, [(start, start + len(folded[0]))]
        for part in folded[1:]:
            end = stretches[-1][1]
            at = next((place for place in index.find(part) if end <= place <= end + _APART), -1)
            if at < 0:
                break
            stretches.append((at, at + len(part)))
        if len(stretches) < len(folded):
            continue
        spans = tuple(span for first, last in stretches for span in index.spans(first, last))
        if numbers(" ".join(parts)) == numbers(" ".join(index.text(span) for span in spans)):
            found.append(spans)
    return max(found, key=lambda spans: _weight(spans, favour), default=())


def _longest_run(index: BookIndex, passage: str, favour: Sequence[float]) -> tuple[int, tuple[PageSpan, ...]]:
    """The most neighbouring words of the passage that stand in the book, if they are enough to mean something."""
    places = [match.span() for match in re.finditer(r"\w+(?:[’'-]\w+)*", passage)][:_MOST_WORDS]
    best: tuple[int, tuple[PageSpan, ...]] = (0, ())
    first, size = 0, _FEWEST_SHARED
    while first + size <= len(places):
        spans = _in_order(index, [passage[places[first][0] : places[first + size - 1][1]]], favour)
        if spans:
            best = (size, spans)
            size += 1
        else:
            first += 1
    return best


def _weight(spans: tuple[PageSpan, ...], favour: Sequence[float]) -> float:
    page = spans[0].page
    return favour[page] if page < len(favour) else 0.0
