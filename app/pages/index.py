"""A book prepared for finding passages in it, whatever their spacing, and across the borders of pages.

Owns the folded text of one document and the way back from it to the pages. Knows no answer and no user interface.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from app.pages.folding import fold, places
from engine.document import Document

MOST_PLACES = 32  # occurrences of one passage that are looked at
_MOST_MAPPED = 64  # pages whose way back is remembered


@dataclass(frozen=True)
class PageSpan:
    """Characters [start, end) of the text of ``document.pages[page]``."""

    page: int
    start: int
    end: int


class BookIndex:
    """Args:
    document: the book; its pages are folded when the first passage is looked for.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self._mapped: dict[int, list[int]] = {}

    @cached_property
    def _folded(self) -> tuple[str, list[int]]:
        parts = [fold(page.text) for page in self.document.pages]
        starts, length = [], 0
        for part in parts:
            starts.append(length)
            length += len(part)
        return "".join(parts), starts

    def find(self, passage: str) -> Iterator[int]:
        """Where a folded passage stands, as whole words: offsets for ``spans``, in the order of the book."""
        text, _ = self._folded
        found, seen = text.find(passage), 0
        while passage and found >= 0 and seen < MOST_PLACES:
            seen += 1
            if self._whole_words(found, found + len(passage)):
                yield found
            found = text.find(passage, found + 1)

    def spans(self, start: int, end: int) -> tuple[PageSpan, ...]:
        """The folded stretch [start, end) on the pages that it covers."""
        _, starts = self._folded
        spans = []
        page = max(0, bisect.bisect_right(starts, start) - 1)
        while page < len(starts) and starts[page] < end:
            way = self._way_back(page)
            first, last = max(0, start - starts[page]), min(len(way), end - starts[page])
            if first < last:
                spans.append(PageSpan(page, way[first], way[last - 1] + 1))
            page += 1
        return tuple(spans)

    def text(self, span: PageSpan) -> str:
        return self.document.pages[span.page].text[span.start : span.end]

    def on_page(self, page: int, passage: str) -> tuple[int, int] | None:
        """Characters [start, end) of a page at which a passage stands; None if it does not."""
        way, wanted = self._way_back(page), fold(passage)
        found = fold(self.document.pages[page].text).find(wanted) if wanted else -1
        return None if found < 0 else (way[found], way[found + len(wanted) - 1] + 1)

    def _whole_words(self, start: int, end: int) -> bool:
        spans = self.spans(start, end)
        if not spans:
            return False
        before = self.document.pages[spans[0].page].text[: spans[0].start][-1:]
        after = self.document.pages[spans[-1].page].text[spans[-1].end :][:1]
        return not (before.isalnum() or after.isalnum())

    def _way_back(self, page: int) -> list[int]:
        if page not in self._mapped:
            while len(self._mapped) >= _MOST_MAPPED:
                self._mapped.pop(next(iter(self._mapped)))
            self._mapped[page] = places(self.document.pages[page].text)
        return self._mapped[page]
