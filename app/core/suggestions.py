"""Questions that are worth asking a book: the bundled one's own, or made from a table of contents, or of any book.

They ask where and what the book says, not what to think of it: that is what a small model can answer too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

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
_DESCRIPTION = "sample.json"
_FORMS = (".pdf", ".epub", ".txt")


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


class Sample:
    """Args:
    folder: holds the book and ``sample.json``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def file(self) -> Path | None:
        """The book in the best form there is."""
        named = self._folder / str(self._description.get("file", ""))
        if named.is_file():
            return named
        return next((file for form in _FORMS for file in sorted(self._folder.glob(f"*{form}"))), None)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.file.read_bytes()).hexdigest() if self.file else ""

    @cached_property
    def questions(self) -> tuple[str, ...]:
        found = self._description.get("questions", ())
        return tuple(str(item["question"]) for item in found if isinstance(item, dict) and "question" in item)

    @cached_property
    def _description(self) -> dict:
        try:
            found = json.loads((self._folder / _DESCRIPTION).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}
