"""The chapters of a book, from its bookmarks, headings or navigation: which pages they cover, and what is asked of one.

Pure functions of a document.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.citations import fold
from engine.document import Document, OutlineItem

_TOP = 40  # letters before a heading that still stands at the top of its page: a number, a running head


@dataclass(frozen=True)
class Chapter:
    """An entry of the table of contents with the numbers of its pages, both included; ``level`` from 0."""

    title: str
    level: int
    first: int
    last: int


def chapters(document: Document) -> tuple[Chapter, ...]:
    """Every entry of the table of contents, in its order; one ends where the next one of its level or above begins."""
    end = document.pages[-1].number if document.pages else 0
    outline = document.outline
    found = []
    for at, item in enumerate(outline):
        following = next((other for other in outline[at + 1 :] if other.level <= item.level), None)
        last = end if following is None else following.page - _starts_its_page(document, following)
        found.append(Chapter(item.title, item.level, item.page, max(item.page, last)))
    return tuple(found)


def _starts_its_page(document: Document, item: OutlineItem) -> bool:
    """Whether the chapter before ends on the page before; where the heading cannot be found, it is taken to."""
    if document.members and item.level == 0:  # a document
        return True
    page = document.page(item.page)
    return page is None or fold(page.text).find(fold(item.title)) < _TOP


def questions(chapter: Chapter, document: Document) -> tuple[str, str]:
    """What is worth asking of one chapter: "Summarize the chapter “The Gale” (pages 12 to 25)."; or of one of several
    documents."""
    member = document.member_at(chapter.first)
    if member is not None and chapter.level == 0:
        return f"Summarize “{chapter.title}”.", f"What does “{chapter.title}” say?"
    unit, before = (member.unit, member.before) if member else (document.unit, 0)
    first, last = chapter.first - before, chapter.last - before
    where = f"{unit} {first}" if first == last else f"{unit}s {first} to {last}"
    where = f"{member.title}, {where}" if member else where
    named = f"“{chapter.title}” ({where})"
    return f"Summarize the chapter {named}.", f"What happens in the chapter {named}?"
