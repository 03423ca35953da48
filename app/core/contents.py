"""Finds the chapters of a book and their pages in the book's table of contents.

The functions have no side effects.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from app.trust.quoted import fold
from engine.contents import chapter_asked_for, chapters_of
from engine.document import Document, OutlineItem
from engine.errors import OptionError

MOST_NAMED = 12
"""Maximum chapters that an error lists if a requested chapter is missing."""
_RANGE = re.compile(r"(\d{1,4})(?:\s*[-–]\s*(\d{1,4}))?")
# matches several chapter numbers, such as "2, 5-7"
_SEVERAL = re.compile(r"\s*\d+\s*[,;–-][\d\s,;–-]*")
# maximum characters before a heading that counts as the top of its page. They may be a page number and a running head.
_TOP = 40


@dataclass(frozen=True)
class ContentsEntry:
    """A chapter in the table of contents. ``first`` and ``last`` are the numbers of its first and last page. ``level``
    is its depth in the table, from 0.
    """

    title: str
    level: int
    first: int
    last: int


def chapters(document: Document) -> tuple[ContentsEntry, ...]:
    """Every entry of the table of contents, in order. A chapter ends where the next chapter of the same or an outer
    level begins.
    """
    end = document.pages[-1].number if document.pages else 0
    outline = document.outline
    entries = []
    for at, item in enumerate(outline):
        following = next((other for other in outline[at + 1 :] if other.level <= item.level), None)
        last = end if following is None else following.page - _starts_its_page(document, following)
        entries.append(ContentsEntry(item.title, item.level, item.page, max(item.page, last)))
    return tuple(entries)


def _starts_its_page(document: Document, item: OutlineItem) -> bool:
    """Whether the heading of a chapter is at the top of its page. If so, the preceding chapter ends on the preceding
    page. True also if the heading cannot be found on the page.
    """
    # an outermost entry of a collection stands for a whole document, which begins at the top of a page
    if document.members and item.level == 0:
        return True
    page = document.page(item.page)
    return page is None or fold(page.text).find(fold(item.title)) < _TOP


def chosen(document: Document, chapter_names: str) -> frozenset[int]:
    """Find the pages of chapters that a person names by number or title: "2, 5-7", "The Gale; 9".

    A number means the chapter with this number in its title. If there is none, it means the chapter at this position in
    the table of contents. A part of a title is enough to name a chapter.

    Raises:
        OptionError: the document has no chapters, or lacks a chapter that is named.
    """
    every = chapters(document)
    if not every:
        raise OptionError(
            "This document names no chapters: it has neither bookmarks nor headings.", "Choose pages instead (--pages)."
        )
    if not _SEVERAL.fullmatch(chapter_names) and (whole := _titled(every, chapter_names)):
        return _pages_of(whole)
    pages: set[int] = set()
    for name in filter(None, map(str.strip, re.split(r"[,;]", chapter_names))):
        numbers = _RANGE.fullmatch(name)
        if numbers is None:
            pages |= _pages_of(_titled(every, name) or _none(document, name))
            continue
        first, last = int(numbers[1]), int(numbers[2] or numbers[1])
        if first > last:
            raise OptionError(f"Chapters {name} is no range.", "Name the lower number first.")
        for number in range(first, last + 1):
            pages |= _pages_of(_numbered(document, every, number) or _none(document, str(number)))
    if not pages:
        raise OptionError("No chapter is named.", "Name one by its number or its title.")
    return frozenset(pages)


def _titled(entries: tuple[ContentsEntry, ...], name: str) -> ContentsEntry | None:
    """The chapter with the title ``name``, or else the first chapter whose title contains ``name``; None if there is
    none. A number is compared only with whole titles.
    """
    words = fold(name)
    exact = next((chapter for chapter in entries if words and fold(chapter.title) == words), None)
    part = (
        None if name.strip().isdecimal() else next((one for one in entries if words and words in fold(one.title)), None)
    )
    return exact or part


def _numbered(document: Document, entries: tuple[ContentsEntry, ...], number: int) -> ContentsEntry | None:
    listed = chapters_of(document, len(document.pages)) or [item for item in document.outline if item.level == 0]
    item = chapter_asked_for(f"chapter {number}", listed)
    return next((one for one in entries if item and (one.title, one.first) == (item.title, item.page)), None)


def _pages_of(chapter: ContentsEntry) -> frozenset[int]:
    return frozenset(range(chapter.first, chapter.last + 1))


def _none(document: Document, name: str) -> NoReturn:
    titles = [" ".join(item.title.split()) for item in document.outline]
    more = f" and {len(titles) - MOST_NAMED} more" if len(titles) > MOST_NAMED else ""
    raise OptionError(
        f"There is no chapter “{name}” in this document.", f"It has: {'; '.join(titles[:MOST_NAMED])}{more}."
    )
