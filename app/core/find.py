"""Searches the book for a person's words, ignoring case and accents, and across hyphens, line ends and page borders.

    finder = Finder()                         one per program
    finder.find(document, "north light")      every place, in the order of the book

A phrase is searched at the beginnings of words. If it is not found there, it is searched inside words, and then as
separate words that are near each other. If nothing is found, these steps are repeated with other spellings of the
words, and then with the words without their endings. A phrase in quotation marks is searched exactly.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from app.language.quoting import wholly_quoted
from app.language.spellings import spellings, without_endings
from app.language.tokens import RUN
from app.trust.quoted import BookIndex, PageSpan, fold
from engine.document import Document

How = Literal["words", "inside", "near", "forms"]
"""How a phrase was found: at the beginning of a word, inside words, with all its words near each other, or with other
endings of its words.
"""

MOST_HITS = 1_000  # maximum places that a search returns
LONGEST = 200  # maximum characters of a search
_MOST_LOOKED_AT = 20_000  # maximum occurrences of one phrase that a search examines
# The same for a search with all spellings and words of its phrase: at most some three seconds of one core. Short words
# took 190 s.
_MOST_IN_ALL = 100_000
# maximum distance between the rarest word and each other word, in letters from beginning to beginning
_NEAR = 250
# minimum letters of a phrase that is also found inside words; a shorter phrase is only found as a whole word
_FEWEST_LETTERS = 2

# Matches a hyphen that divides a word, also at the end of a line, or a soft hyphen anywhere.
_DIVIDED = re.compile(r"(?:\u00ad|[-\u2010\u2011]\u00ad?\s*|\u00ad\s*)")


@dataclass(frozen=True)
class Hit:
    """One place that was found. ``spans``: the pieces of text to highlight, in the order of the book."""

    spans: tuple[PageSpan, ...]

    @property
    def page(self) -> int:
        """Index of the page with the first piece; this page is shown for the place."""
        return self.spans[0].page


@dataclass(frozen=True)
class Found:
    """The result of a search. ``how``: which kind of search has found the places. ``more``: whether there are more
    places than ``hits``.
    """

    hits: tuple[Hit, ...] = ()
    how: How = "words"
    more: bool = False


class _Search:
    """Counts what a search examines, and ends it when it is not wanted any more.

    Args:
        index: the index of the book.
        unwanted: returns whether the search is not wanted any more.
    """

    def __init__(self, index: BookIndex, unwanted: Callable[[], bool]) -> None:
        self.index, self._unwanted, self._left = index, unwanted, _MOST_IN_ALL

    def may_go_on(self) -> bool:
        """Count one examined occurrence. Return False if there may be no more."""
        self._left -= 1
        return self._left >= 0 and not self._unwanted()


@dataclass(frozen=True)
class _Phrase:
    """A phrase to search.

    - ``letters``: the phrase after ``fold``, which keeps only letters and digits
    - ``begins``: offsets in ``letters`` where the book must have a gap between two letters, because the phrase has a
      space
    - ``may_begin``: offsets in ``letters`` where the book may have a gap or none, because the phrase has a sign such as
      a hyphen
    - ``exact``: whether the place must begin and end at the borders of words
    """

    letters: str
    begins: frozenset[int]
    may_begin: frozenset[int]
    exact: bool = False


@dataclass(frozen=True)
class _Place:
    """A place where a phrase was found. ``start`` and ``end`` are offsets in ``BookIndex.letters``, the book's letters
    and digits without gaps. ``spans``: the same place in the text of the pages.
    """

    start: int
    end: int
    spans: tuple[PageSpan, ...]
    begins_word: bool
    ends_word: bool


class Finder:
    """Finds words in books. Caches the index of the book that was searched most recently, and the result of that
    search.
    """

    def __init__(self) -> None:
        self._index = BookIndex(Document("", "", (), "", ""))
        self._last: tuple[Document | None, tuple[str, bool], Found] = None, ("", False), Found()

    def find(
        self, document: Document, words: str, *, from_end: bool = False, unwanted: Callable[[], bool] = lambda: False
    ) -> Found:
        """Find the places of ``words``. Return at most ``MOST_HITS`` places: the first ones in the book or, with
        ``from_end``, the last ones. The search examines at most ``_MOST_IN_ALL`` occurrences.

        Args:
            unwanted: returns whether the result is not wanted any more; it is then incomplete, and not cached.
        """
        words = words[:LONGEST]
        if self._last[0] is document and self._last[1] == (words, from_end):
            return self._last[2]
        if self._index.document is not document:
            self._index = BookIndex(document)
        search = _Search(self._index, unwanted)
        tried = (_find(search, each, from_end) for each in _tried(words))
        found = next(filter(lambda found: found.hits, tried), Found())
        if not found.hits and (forms := without_endings(words)) != words and not wholly_quoted(words):
            found = _find(search, forms, from_end)
            found = replace(found, how="forms") if found.how != "near" else found
        if not unwanted():
            self._last = document, (words, from_end), found
        return found


def _tried(words: str) -> Iterator[str]:
    """Yield the searched words, then their other German and French spellings. Words in quotation marks are yielded only
    as they are.
    """
    yield words
    if not wholly_quoted(words):
        yield from spellings(words)[1:]


def _find(search: _Search, words: str, from_end: bool) -> Found:
    quoted = wholly_quoted(words)
    phrase = _phrase(quoted or words, exact=bool(quoted))
    if not phrase.letters:
        return Found()
    inside: list[_Place] = []
    whole: list[_Place] = []
    for place in _places(search, phrase):
        (whole if place.begins_word else inside).append(place)
        if len(whole) > MOST_HITS and not from_end:
            break
    if whole or phrase.exact:
        return _found(whole, "words", from_end)
    if inside:
        return _found(inside, "inside", from_end)
    near = _near(search, [_phrase(word, exact=False) for word in words.split()])
    hits = list(islice(near, None if from_end else MOST_HITS + 1))
    return Found(tuple(hits[_most(from_end)]), "near", len(hits) > MOST_HITS)


def _found(places: list[_Place], how: How, from_end: bool) -> Found:
    return Found(tuple(Hit(place.spans) for place in places[_most(from_end)]), how, len(places) > MOST_HITS)


def _most(from_end: bool) -> slice:
    """The slice that selects the places to return: the last ``MOST_HITS`` places if ``from_end`` is True, otherwise the
    first ones.
    """
    return slice(-MOST_HITS, None) if from_end else slice(MOST_HITS)


def _phrase(words: str, exact: bool) -> _Phrase:
    begins: set[int] = set()
    may_begin: set[int] = set()
    letters, end = "", 0
    for word in RUN.finditer(words):
        if letters:
            apart = any(sign.isspace() for sign in words[end : word.start()])
            (begins if apart else may_begin).add(len(letters))
        letters += fold(word[0])
        end = word.end()
    return _Phrase(letters, frozenset(begins), frozenset(may_begin), exact or len(letters) < _FEWEST_LETTERS)


def _places(search: _Search, phrase: _Phrase) -> Iterator[_Place]:
    """Yield the places of the phrase in the order of the book, without overlaps. At most ``_MOST_LOOKED_AT``
    occurrences of its letters are examined.
    """
    text, size = search.index.letters, len(phrase.letters)
    at = text.find(phrase.letters) if size else -1
    for _ in range(_MOST_LOOKED_AT):
        if at < 0 or not search.may_go_on():
            return
        place = _place(search.index, phrase, at)
        if place is not None:
            yield place
        at = text.find(phrase.letters, at + (size if place else 1))


def _place(index: BookIndex, phrase: _Phrase, start: int) -> _Place | None:
    """Return the place that begins at offset ``start`` of ``BookIndex.letters``, where the letters of the phrase occur.
    Return None if the gaps between these letters in the text do not fit the phrase, or if ``phrase.exact`` is set and
    the place begins or ends inside a word.
    """
    spans = index.spans(start, start + len(phrase.letters))
    if not spans:
        return None
    number, gap = 0, ""
    for sign in "\n".join(index.text(span) for span in spans):
        folded = fold(sign)
        if not folded:
            gap += "" if _combines(sign) else sign
            continue
        if number and not _fits(gap, number, phrase):
            return None
        number, gap = number + len(folded), ""
    pages = index.document.pages
    before = pages[spans[0].page].text[: spans[0].start][-1:]
    after = pages[spans[-1].page].text[spans[-1].end :][:1]
    place = _Place(start, start + len(phrase.letters), spans, not before.isalnum(), not after.isalnum())
    return None if phrase.exact and not (place.begins_word and place.ends_word) else place


def _fits(gap: str, number: int, phrase: _Phrase) -> bool:
    if number in phrase.begins:
        return bool(gap)
    return not gap or number in phrase.may_begin or _DIVIDED.fullmatch(gap) is not None


def _combines(sign: str) -> bool:
    """Whether a character is an accent that combines with the preceding letter."""
    return "\u0300" <= sign <= "\u036f"


def _near(search: _Search, words: list[_Phrase]) -> Iterator[Hit]:
    """Yield the places where every word begins within ``_NEAR`` letters of an occurrence of the word that is rarest in
    the book.
    """
    words = [word for word in words if word.letters]
    if len(words) < 2:
        return
    stand = [[place for place in _places(search, word) if place.begins_word] for word in words]
    rarest = min(range(len(stand)), key=lambda at: len(stand[at]))
    starts = [[place.start for place in places] for places in stand]
    end = -1
    for place in stand[rarest]:
        chosen = [place]
        for at, places in enumerate(stand):
            if at != rarest and places:
                around = places[max(0, bisect_left(starts[at], place.start) - 1) :][:2]
                chosen.append(min(around, key=lambda other: abs(other.start - place.start)))
        close = len(chosen) == len(words) and all(abs(one.start - place.start) <= _NEAR for one in chosen)
        if close and min(one.start for one in chosen) > end:
            end = max(one.start for one in chosen)
            yield Hit(
                tuple(sorted({span for one in chosen for span in one.spans}, key=lambda span: (span.page, span.start)))
            )
