"""Questions that are worth asking a book that brings none of its own: from its table of contents, and of any book.

They ask where and what the book says, not what to think of it: that is what a small model can answer too. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.document import Document

MOST = 5
_FROM_CONTENTS = 3
_SHORTEST, _LONGEST = 4, 60  # characters of a heading that can stand in a question
_FRAME = re.compile(
    r"\b(contents|index|preface|foreword|cover|title page|copyright|half[- ]title|imprint|dedication|bibliography|"
    r"acknowledge?ments?|notes|endnotes|glossary|about the author|inhalt|inhaltsverzeichnis|vorwort|register|"
    r"table des matières|sommaire)\b",
    re.I,
)
_ONLY_COUNTED = re.compile(r"(chapter|part|book|section|kapitel|teil|chapitre|page)?\s*([ivxlcdm]+|\d+)\.?", re.I)
_GENERAL = ("How does the book begin?", "Who is named in the book?", "How does the book end?")


def suggestions(document: Document, pages_read: int) -> tuple[str, ...]:
    """Questions about what has been read of a document.

    Args:
        pages_read: pages from its start; the headings of others are left out, and its end is not asked about.
    """
    headings = telling_headings(document, pages_read)
    asked = [f"What does the book say in “{heading}”?" for heading in _spread(headings, _FROM_CONTENTS)]
    general = _GENERAL if pages_read >= len(document.pages) else _GENERAL[:-1]
    return (*asked, *general)[:MOST]


def telling_headings(document: Document, pages_read: int) -> list[str]:
    """Headings of the outermost levels that say what their chapter is about, in order."""
    first = document.pages[0].number if document.pages else 1
    found: dict[str, None] = {}
    for level in (0, 1):
        for item in document.outline:
            title = " ".join(item.title.split())
            fits = (
                _SHORTEST <= len(title) <= _LONGEST and not _FRAME.search(title) and not _ONLY_COUNTED.fullmatch(title)
            )
            if item.level == level and item.page - first < pages_read and fits and title != document.title:
                found.setdefault(title)
        if len(found) >= _FROM_CONTENTS:
            break
    return list(found)


def _spread(headings: Sequence[str], count: int) -> list[str]:
    """Some of them, from all over the book."""
    if len(headings) <= count:
        return list(headings)
    return [headings[(2 * number + 1) * len(headings) // (2 * count)] for number in range(count)]
