"""Words of an answer found in the book: quotations checked, passages placed on pages, sentences and excerpts cut.

Text is folded to what two printings of the same words share: letters and digits, in their order, without case, accents
and joints. Spacing, hyphens (also those at the end of a line) and punctuation do not matter; numbers must be the same
numbers, and parts that an ellipsis divides must follow each other. That a quotation is verified is a fact.
"""

from __future__ import annotations

import bisect
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from engine.document import Document

_DROPPED = re.compile(r"[\W_]+")
_NUMBER = re.compile(r"\d+(?:[.,:/]\d+)*")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_MOST_PLACES = 32  # occurrences of one passage that are looked at
_MOST_MAPPED = 64  # pages whose way back is remembered
# Code is no prose; the same shapes that the chat leaves alone.
_CODE = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n]*\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)|`[^`\n]{1,500}`", re.S | re.M)
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Capt|Prof|Rev|Lt|Sgt|vs|etc|cf|pp?|No|vol|ch)|\b[A-Z])\.$")
# A sentence ends at its mark with whatever closes behind it, or where its paragraph does.
_END = re.compile(
    r"(?:[.!?]+|(?<![“„«\"])…(?!\s*[a-z]))[\"'”’»)\]*_]*(?=\s|$)"
    r"|(?=\n[ \t]*\n)|(?=\n[ \t]*(?:[-*+>]|\d{1,9}[.)])\s)|\Z"
)
_WORD = re.compile(r"\w+(?:[’'-]\w+)*")
_LONGEST_QUOTE = 3000
_QUOTED = re.compile(
    rf"“([^“”]{{1,{_LONGEST_QUOTE}}}(?:“[^“”]{{1,500}}”[^“”]{{0,500}}){{0,4}})(”|\n[ \t]*\n|\Z)"
    rf"|„([^„“”]{{1,{_LONGEST_QUOTE}}})([“”]|\n[ \t]*\n|\Z)"
    rf"|«([^«»]{{1,{_LONGEST_QUOTE}}})(»|\n[ \t]*\n|\Z)"
    rf'|(?<!\w)"(?!\s)([^"\n]{{1,{_LONGEST_QUOTE}}})(")(?!\w)'
)
_CLOSERS = ("”", "“", "»", '"')

_FEWEST_WORDS = 3
"""A shorter one between quotation marks is a name or a term, not a quotation."""

_ELLIPSIS = re.compile(r"\[?\s*(?:…|\.\s?\.\s?\.)\s*\]?")
_MARKUP = re.compile(r"[*_`]+|^\s*>\s?", re.M)
_APART = 4000  # folded characters within which the parts of one quotation follow each other
_FEWEST_SHARED = 4  # neighbouring words that a quotation which is not found must share with the book to be shown them
_MOST_WORDS = 150  # of a quotation which is not found that are compared
_EXCERPT_AROUND = 160  # characters on either side
_LONGEST_EXCERPT = 700
_FEWEST_LETTERS = 4  # of a word that says something
_SPACES = re.compile(r"\s+")


def fold(text: str) -> str:
    """The letters and digits of a text. The fold of a join is the join of the folds."""
    return _DROPPED.sub("", unicodedata.normalize("NFKD", text).casefold())


def places(text: str) -> list[int]:
    """For every character of ``fold(text)`` the index in ``text`` that it comes from."""
    return [index for index, sign in enumerate(text) for _ in fold(sign)]


def numbers(text: str) -> list[str]:
    """The numbers in a text, as a reader tells them apart: 10.5 is not 105, but 1,912 is 1912."""
    return [_THOUSANDS.sub("", number) for number in _NUMBER.findall(text)]


@dataclass(frozen=True)
class PageSpan:
    """Characters [start, end) of the text of ``document.pages[page]``."""

    page: int
    start: int
    end: int


class BookIndex:
    """A book in which passages are found, whatever their spacing and across the borders of pages.

    Args:
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
        while passage and found >= 0 and seen < _MOST_PLACES:
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


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of an answer."""

    start: int
    end: int

    def touches(self, other: Span) -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True)
class Quotation:
    """What stands between two quotation marks; ``whole`` runs from mark to mark. ``closed``: the second has come."""

    inner: Span
    whole: Span
    closed: bool


def sentences(text: str) -> list[Span]:
    """The sentences of an answer in Markdown, without the white space around them. Code belongs to none."""
    masked = _masked(text)
    found, start = [], 0
    for end in _END.finditer(masked):
        if _ABBREVIATION.search(masked[start : end.end()]):
            continue
        body = masked[start : end.end()]
        words = body.strip()
        if words and _WORD.search(words):
            begin = start + len(body) - len(body.lstrip())
            found.append(Span(begin, begin + len(words)))
        start = end.end()
    return found


def quotations(text: str) -> list[Quotation]:
    """Passages in quotation marks, in order. A single quotation mark may be an apostrophe and opens none."""
    masked = _masked(text)
    found = []
    for match in _QUOTED.finditer(masked):
        group = next(number for number in (1, 3, 5, 7) if match[number] is not None)
        closed = match[group + 1] in _CLOSERS
        end = match.end(group + 1) if closed else match.end(group)
        found.append(Quotation(Span(*match.span(group)), Span(match.start(), end), closed))
    return found


def words(text: str) -> list[str]:
    """Words as they stand."""
    return _WORD.findall(text)


def _masked(text: str) -> str:
    return _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code.group(0)), text)


@dataclass(frozen=True)
class QuotationCheck:
    """Whether words stand in the book as an answer has them.

    Args:
        verified: every word stands in the book.
        spans: where; of a quotation that was not found, where the longest run of its words stands.
        matched: words of that run, of ``total`` words.
    """

    verified: bool
    spans: tuple[PageSpan, ...] = ()
    matched: int = 0
    total: int = field(default=0, compare=False)


def check_quotation(index: BookIndex, passage: str, favour: Sequence[float] = ()) -> QuotationCheck | None:
    """Look a quoted passage up.

    Args:
        favour: a weight per page; where the words stand more than once, the page with the highest is named.

    Returns:
        None if it is too short to be a quotation.
    """
    passage = _MARKUP.sub("", passage)
    total = len(words(passage))
    if total < _FEWEST_WORDS:
        return None
    parts = [part for part in _ELLIPSIS.split(passage) if fold(part)]
    spans = _in_order(index, parts, favour)
    if spans:
        return QuotationCheck(True, spans, total, total)
    matched, spans = _longest_run(index, passage, favour)
    return QuotationCheck(False, spans, matched, total)


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
    places = [match.span() for match in _WORD.finditer(passage)][:_MOST_WORDS]
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


@dataclass(frozen=True)
class Excerpt:
    """``hit`` is the passage, as it is printed; ``before`` and ``after`` what stands around it, spaces between kept."""

    before: str
    hit: str
    after: str


def excerpt(text: str, start: int, end: int) -> Excerpt:
    """The characters [start, end) of a page with their surroundings, lines joined, cut at words."""
    left, right = max(0, start - _EXCERPT_AROUND), min(len(text), end + _EXCERPT_AROUND)
    before, after = text[left:start], text[end:right]
    if left:
        before = "…" + before[before.find(" ") + 1 :]
    if right < len(text):
        after = after[: after.rfind(" ") + 1].rstrip() + "…"
    hit = text[start:end]
    if len(hit) > _LONGEST_EXCERPT:
        hit, after = hit[:_LONGEST_EXCERPT].rstrip() + "…", ""
    before, hit, after = (_SPACES.sub(" ", part) for part in (before, hit, after))
    return Excerpt(before.lstrip(), hit, after.rstrip())


def closest_sentence(page: str, sentence: str) -> tuple[int, int] | None:
    """Characters [start, end) of the page's sentence that shares most words with another one; None if none does."""
    wanted = _telling(sentence)
    best, found = 1, None
    for span in sentences(page):
        shared = sum((wanted & _telling(page[span.start : span.end])).values())
        if shared > best:
            best, found = shared, (span.start, span.end)
    return found


def _telling(text: str) -> Counter[str]:
    return Counter(folded for word in words(text) if len(folded := fold(word)) >= _FEWEST_LETTERS)
