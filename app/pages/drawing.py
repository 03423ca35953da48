"""Which pages stand out of the attention while a sentence was decoded: a hint at what the model drew on.

Attention is spread over every page, and a few pages draw it whatever is asked. So a page counts only when its share
is several times an even one and well above what it draws usually in this book. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median_low

MOST_PAGES = 3
SHARP = 6.0  # times an even share
LIFT = 2.0  # times what the page draws usually
_REMEMBERED = 15  # answers


class Usual:
    """What each page of one book draws whatever is asked: the median over the newest answers.

    Args:
        pages: of the book.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._answers: deque[tuple[float, ...]] = deque(maxlen=_REMEMBERED)

    def add(self, scores: Sequence[float]) -> None:
        """The mean scores of one whole answer."""
        if len(scores) == self.pages and sum(scores) > 0:
            self._answers.append(tuple(scores))

    def share(self, page: int) -> float:
        even = 1.0 / max(1, self.pages)
        return median_low([even, *(scores[page] for scores in self._answers)])


def mean(readings: Sequence[Sequence[float]]) -> list[float]:
    """The readings of one sentence as one."""
    return [sum(column) / len(readings) for column in zip(*readings, strict=True)] if readings else []


def sharp_pages(scores: Sequence[float], usual: Usual) -> list[tuple[int, float]]:
    """(page, how many times an even share) of the pages that stand out, the strongest first, three at most."""
    pages = len(scores)
    if pages <= 1 or sum(scores) <= 0:
        return []
    standing = [
        (page, score * pages)
        for page, score in enumerate(scores)
        if score * pages >= SHARP and score >= LIFT * usual.share(page)
    ]
    return sorted(standing, key=lambda item: -item[1])[:MOST_PAGES]
