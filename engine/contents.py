"""Adds chapter titles from the book's table of contents to a question about the whole text or one of its chapters.

When asked for a summary of a long book, a model summarises only its beginning. When asked about chapter 3, a model must
first find the chapter. So a question for a summary gets the titles of all chapters that the summary should follow, and
a question about one chapter gets that chapter's title. (The chapter's first words are not added, because a model would
then copy the text that follows them in the book.) The tokens of the book before the question do not change, and equal
questions get equal additions.

Uses no model and no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from engine.document import Document, OutlineItem
from engine.passages import Whole, names_length, whole_asked_in

__all__ = ["chapter_asked_for", "chapters_of"]

FEWEST_CHAPTERS = 3
"""Minimum number of chapters that a summary follows. If a book has fewer chapters, no titles are added."""
MOST_CHAPTERS = 12
"""Maximum number of chapters that a summary follows. If a book has more, the summary follows this many of them, spread
evenly over the book.
"""
ALONG: Mapping[Whole, str] = {
    "en": "Say in your own words, in one sentence for each of these parts and in this order, what happens or is said "
    "in it. Do not list the titles.",
    "de": "Sage mit eigenen Worten, in einem Satz für jeden dieser Teile und in dieser Reihenfolge, was darin "
    "geschieht oder gesagt wird. Zähle nicht die Titel auf.",
    "fr": "Dis avec tes propres mots, en une phrase pour chacune de ces parties et dans cet ordre, ce qui s’y passe ou "
    "ce qui y est dit. N’énumère pas les titres.",
    "es": "Di con tus propias palabras, en una frase para cada una de estas partes y en este orden, qué ocurre o "
    "qué se dice en ella. No enumeres los títulos.",
}
"""The instruction before the titles for a summary, keyed by the question's language, because the model answers in the
language of the instruction. It asks for sentences, because a model that was told only to follow the parts repeated the
titles.
"""
LONGEST_TITLE = 80
"""Maximum characters of a chapter's title in a question. A longer title is cut."""

_SUMMARY = re.compile(
    r"\b(?:summ|sum up|gist|outline|overview|describe|about|happen|main points?|zusammenf|fasse|worum|geschieht"
    r"|passiert|résum|de quoi|se passe|resum|trata|ocurre|sucede)",
    re.IGNORECASE,
)
_UNITS = "chapter|part|section|book|story|kapitels?|teils?|abschnitts?|chapitre|partie|capítulo|parte|sección"
_NAMED = re.compile(
    rf"\b(?:{_UNITS})\s+(\d{{1,3}}|[ivxl]{{1,7}}|[^\W\d_]{{3,9}})\b",
    re.IGNORECASE,
)
_ORDINAL = re.compile(rf"\b([^\W\d_]{{4,10}}|\d{{1,3}}(?:st|nd|rd|th|e|er|ème|\.)?)\s+(?:{_UNITS})\b", re.IGNORECASE)
_WORDS = tuple(
    words.split()
    for words in (
        "one two three four five six seven eight nine ten eleven twelve",
        "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth",
        "eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf",
        "erste zweite dritte vierte fünfte sechste siebte achte neunte zehnte elfte zwölfte",
        "un deux trois quatre cinq six sept huit neuf dix onze douze",
        "premier deuxième troisième quatrième cinquième sixième septième huitième neuvième dixième onzième douzième",
        "uno dos tres cuatro cinco seis siete ocho nueve diez once doce",
        "première deuxième troisième quatrième cinquième sixième septième huitième neuvième dixième onzième douzième",
        "primera segunda tercera cuarta quinta sexta séptima octava novena décima undécima duodécima",
        "primer segundo tercer cuarto quinto sexto séptimo octavo noveno décimo undécimo duodécimo",
    )
)
_VALUES = {"i": 1, "v": 5, "x": 10, "l": 50}
_NUMBERED = re.compile(
    r"\W*+(?:chapter|part|section|book|kapitel|teil|abschnitt|chapitre|partie|capítulo|parte)?\s*(\d{1,3}|[IVXL]{1,7})\b[.:]?",
    re.IGNORECASE,
)
_FRAME = re.compile(
    r"contents|copyright|\bcover|title ?page|imprint|colophon|\bindex|notes\b|verzeichnis|dedication|acknowledg"
    r"|bibliography|quellen\b|literatur\b",
    re.IGNORECASE,
)


def guided(question: str, document: Document, pages_read: int) -> str:
    """Return the question as it is put to the model: with chapter titles if it asks for a summary or about a chapter,
    otherwise unchanged. A summary whose length the question names stays unchanged too: the reader wrote a sentence for
    each title, 314 words where "in three sentences" was asked.

    Args:
        pages_read: number of pages, from the first, that the model has read.
    """
    whole = whole_asked_in(question)
    if not (whole or _SUMMARY.search(question)):
        return question
    chapters = chapters_of(document, pages_read)
    if not whole:
        chapter = chapter_asked_for(question, chapters)
        return question if chapter is None or chapter.title in question else f"{question} (“{_title(chapter)}”)"
    named = [item for item in chapters if item.title.strip() and not _NUMBERED.fullmatch(item.title.strip())]
    if len(named) < FEWEST_CHAPTERS or names_length(question):
        return question
    titles = "; ".join(_title(item) for item in _spread(named))
    return f"{question}\n\n{ALONG[whole]} {titles}"


def chapters_of(document: Document, pages_read: int) -> list[OutlineItem]:
    """Choose the outline entries that are the chapters, among the entries of the pages read so far. All chapters are of
    one level of the outline. A level counts only if its entries are on at least ``FEWEST_CHAPTERS`` pages. Of these
    levels, the level with the most numbered entries is chosen, or the outermost level if no entries are numbered.
    """
    read = {page.number for page in document.pages[:pages_read]}
    shown = [item for item in document.outline if item.page in read and not _FRAME.search(item.title)]
    levels = [[item for item in shown if item.level == level] for level in sorted({item.level for item in shown})]
    levels = [items for items in levels if len({item.page for item in items}) >= FEWEST_CHAPTERS]
    return max(levels, key=lambda items: sum(_number_of(item.title) is not None for item in items), default=[])


def chapter_asked_for(question: str, chapters: Sequence[OutlineItem]) -> OutlineItem | None:
    """Return the chapter that a question names by its number or its title. None if the question names no chapter, or if
    no chapter has this number.
    """
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
    numbers = (_value(match[1]) for pattern in (_NAMED, _ORDINAL) for match in pattern.finditer(question))
    return next(filter(None, numbers), None)


def _value(word: str) -> int | None:
    word = word.lower()
    if digits := re.match(r"\d+", word):
        return int(digits[0])
    for words in _WORDS:
        for form in (word, word[:-1]):  # "dritten" is listed as "dritte"
            if form in words:
                return words.index(form) + 1
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
    """Pick at most ``MOST_CHAPTERS`` entries, spread evenly over the book."""
    count = min(len(chapters), MOST_CHAPTERS)
    return [chapters[(2 * number + 1) * len(chapters) // (2 * count)] for number in range(count)]
