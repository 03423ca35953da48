"""Puts a question about a whole text or one of its chapters to a model, with the book's table of contents as a guide.

A model asked for a summary of a long book retells its beginning; asked for chapter 3, it has to find the chapter first.
Where the book has contents, the question names the chapters to follow, or the title of the chapter that is asked for.
(A chapter's first words in the question would make a model copy the text after them.) The book before the question
stays unchanged, token for token, and equal questions give equal words.

Knows no model and no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.document import Document, OutlineItem
from engine.passages import asks_for_whole

FEWEST_CHAPTERS, MOST_CHAPTERS = 3, 12
"""Minimum and maximum number of chapters that a summary follows. Of a book with more chapters it follows some from all
parts.
"""
ALONG = (
    "Say in your own words, in one sentence for each of these parts and in this order, what happens or is said in it. "
    "Do not list the titles."
)
"""The words that ask for a summary. A model that was told only to follow the parts repeated their titles."""
LONGEST_TITLE = 80
"""Maximum characters of a chapter's title."""

_SUMMARY = re.compile(
    r"\b(?:summ|sum up|gist|outline|overview|describe|about|happen|main points?|zusammenf|fasse|worum|résum|de quoi)",
    re.IGNORECASE,
)
_NAMED = re.compile(
    r"\b(?:chapter|part|section|book|story|kapitel|teil|abschnitt|chapitre|partie)\s+(\d{1,3}|[ivxl]{1,7}|[a-z]{3,9})\b",
    re.IGNORECASE,
)
_ORDINAL = re.compile(r"\b([a-z]{4,8}|\d{1,3}(?:st|nd|rd|th))\s+(?:chapter|part|section|book|story)\b", re.IGNORECASE)
_WORDS = "one two three four five six seven eight nine ten eleven twelve".split()  # noqa: SIM905
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()  # noqa: SIM905
_VALUES = {"i": 1, "v": 5, "x": 10, "l": 50}
_NUMBERED = re.compile(
    r"\W*(?:chapter|part|section|book|kapitel|teil|chapitre)?\s*(\d{1,3}|[IVXL]{1,7})\b[.:]?", re.IGNORECASE
)
_FRAME = re.compile(
    r"contents|copyright|\bcover|title ?page|imprint|colophon|\bindex|notes\b|verzeichnis|dedication|acknowledg"
    r"|bibliography|quellen\b|literatur\b",
    re.IGNORECASE,
)


def guided(question: str, document: Document, pages_read: int) -> str:
    """Word a question for the model.

    Args:
        pages_read: number of pages, from the first, that the model has read.
    """
    whole = asks_for_whole(question)
    if not (whole or _SUMMARY.search(question)):
        return question
    chapters = chapters_of(document, pages_read)
    if not whole:
        chapter = chapter_asked_for(question, chapters)
        return question if chapter is None or chapter.title in question else f"{question} (“{_title(chapter)}”)"
    named = [item for item in chapters if _NUMBERED.sub("", item.title).strip()]
    if len(named) < FEWEST_CHAPTERS:
        return question
    titles = "; ".join(_title(item) for item in _spread(named))
    return f"{question}\n\n{ALONG} {titles}"


def chapters_of(document: Document, pages_read: int) -> list[OutlineItem]:
    """Choose the chapters among the outline entries of the pages read so far: the level with the most numbered entries,
    or, if no entries are numbered, the outermost level with several entries.
    """
    read = {page.number for page in document.pages[:pages_read]}
    shown = [item for item in document.outline if item.page in read and not _FRAME.search(item.title)]
    levels = [[item for item in shown if item.level == level] for level in sorted({item.level for item in shown})]
    levels = [found for found in levels if len({item.page for item in found}) >= FEWEST_CHAPTERS]
    return max(levels, key=lambda found: sum(_number_of(item.title) is not None for item in found), default=[])


def chapter_asked_for(question: str, chapters: Sequence[OutlineItem]) -> OutlineItem | None:
    """The chapter that a question names by its number, or by its title."""
    number = _number(question)
    if number is not None:
        numbered = [item for item in chapters if _number_of(item.title) == number]
        if numbered:
            return numbered[0]
        unnumbered = not any(_number_of(item.title) for item in chapters)
        return chapters[number - 1] if unnumbered and 0 < number <= len(chapters) else None
    lowered = question.lower()
    named = [item for item in chapters if len(item.title.split()) > 1 and item.title.lower() in lowered]
    return max(named, key=lambda item: len(item.title), default=None)


def _number(question: str) -> int | None:
    if match := _NAMED.search(question):
        return _value(match[1])
    match = _ORDINAL.search(question)
    return _value(match[1]) if match else None


def _value(word: str) -> int | None:
    word = word.lower()
    if digits := re.match(r"\d+", word):
        return int(digits[0])
    for words in (_WORDS, _ORDINALS):
        if word in words:
            return words.index(word) + 1
    return _roman(word)


def _roman(word: str) -> int | None:
    values = [_VALUES.get(sign, 0) for sign in word]
    if not all(values):
        return None
    after = [*values[1:], 0]
    return sum(-value if value < following else value for value, following in zip(values, after, strict=True))


def _number_of(title: str) -> int | None:
    match = _NUMBERED.match(title)
    return _value(match[1]) if match else None


def _title(item: OutlineItem) -> str:
    return " ".join(item.title.split())[:LONGEST_TITLE]


def _spread(chapters: Sequence[OutlineItem]) -> list[OutlineItem]:
    """Pick some entries, spread evenly over the book."""
    count = min(len(chapters), MOST_CHAPTERS)
    return [chapters[(2 * number + 1) * len(chapters) // (2 * count)] for number in range(count)]
