"""Looks up the quotations of an answer in the book. Also splits answers and pages into sentences, and makes excerpts.

    index = BookIndex(document)
    check_quotation(index, "it burns thirteen lamps")     QuotationCheck(verified=True, spans=(PageSpan(...),), ...)

The quotation and the text of the pages are folded before they are compared. Folding keeps only letters and digits, and
drops case, accents and ligatures. Spacing, hyphens (also at a line end) and punctuation do not matter, because two
printings of the same words may differ in them. Numbers must be equal. If a quotation has an ellipsis, the parts before
and after the ellipsis must follow each other in the book.
"""

from __future__ import annotations

import bisect
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import merge

from app.language.tokens import WORD
from engine.document import Document
from engine.languages import sentence_ends

_BORDER = "\n"  # separates two documents in the folded text; folded text never contains this character
_DROPPED = re.compile(r"[\W_]+")
_DROPPED_IN_WORDS = re.compile(r"[^\w\s]+|_+")
_SIGNS = str.maketrans("", "", string.punctuation)
_NUMBER = re.compile(r"\d+(?:[.,:/]\d+)*")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_MOST_PLACES = 32  # maximum occurrences of one passage that are examined; later occurrences are ignored
_MOST_MAPPED = 64  # maximum pages whose offsets are cached; beyond this, the oldest page is dropped from the cache
# matches fenced and inline code, which is not searched for sentences and quotations
_CODE = re.compile(r"^ {0,3}(`{3,}+|~{3,}+)[^\n]*+\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)|`[^`\n]{1,500}`", re.S | re.M)
# matches the end of a paragraph or of an item of a list
_BREAK = re.compile(r"(?=\n[ \t]*\n)|(?=\n[ \t]*(?:[-*+>]|\d{1,9}[.)])\s)|\Z")
_LONGEST_QUOTE = 3000  # maximum characters of a quotation; the characters of a nested quotation are not counted
_QUOTED = re.compile(
    rf"“([^“”]{{1,{_LONGEST_QUOTE}}}(?:“[^“”]{{1,500}}”[^“”]{{0,500}}){{0,4}})(”|\n[ \t]*\n|\Z)"
    rf"|„([^„“”]{{1,{_LONGEST_QUOTE}}})([“”]|\n[ \t]*\n|\Z)"
    rf"|«([^«»]{{1,{_LONGEST_QUOTE}}})(»|\n[ \t]*\n|\Z)"
    rf'|(?<!\w)"(?!\s)([^"\n]{{1,{_LONGEST_QUOTE}}})(")(?!\w)'
)
_CLOSERS = ("”", "“", "»", '"')

_FEWEST_WORDS = 3
"""Minimum words of a quotation: fewer words in quotation marks are a name or a term."""

_ELLIPSIS = re.compile(r"(?:\[|(?<!\s))\s*+(?:…|\.\s?\.\s?\.)\s*\]?")
_MARKUP = re.compile(r"[*_`]+|^[^\S\n]*>\s?", re.M)
_APART = 4000  # maximum folded characters between two consecutive parts of one quotation
# If the book lacks a quotation, the longest run of words that both the quotation and the book have is shown. This is
# the minimum number of words of such a run.
_FEWEST_SHARED = 4
# maximum words of a quotation in which shared runs are searched; later words are ignored
_MOST_WORDS = 150
_EXCERPT_AROUND = 160  # default number of characters before and after the passage of an excerpt
_LONGEST_EXCERPT = 700  # maximum characters of a passage in an excerpt; a longer passage is cut
_FEWEST_LETTERS = 4  # minimum letters of a word that ``closest_sentence`` compares
_SPACES = re.compile(r"\s+")


def fold(text: str) -> str:
    """Return the letters and digits of a text without case and accents. The pieces of a text may be folded separately:
    ``fold(a + b) == fold(a) + fold(b)``.
    """
    return _DROPPED.sub("", unicodedata.normalize("NFKD", text).casefold())


def fold_words(text: str) -> str:
    """The letters and digits of every word of a text, with a space between words."""
    letters = unicodedata.normalize("NFKD", text).casefold()
    return letters.translate(_SIGNS) if letters.isascii() else _DROPPED_IN_WORDS.sub("", letters)


def places(text: str) -> list[int]:
    """For every character of ``fold(text)``, the index of its source character in ``text``."""
    lengths = {sign: len(fold(sign)) for sign in set(text)}
    return [index for index, sign in enumerate(text) for _ in range(lengths[sign])]


def numbers(text: str) -> list[str]:
    """The values of the numbers in a text: 10.5 differs from 105, but 1,912 equals 1912."""
    return [_THOUSANDS.sub("", number) for number in _NUMBER.findall(text)]


@dataclass(frozen=True)
class PageSpan:
    """A range of a page's text: the characters [start, end) of ``document.pages[page]``."""

    page: int
    start: int
    end: int


class BookIndex:
    """Finds passages in a book, also across page ends. Spacing, punctuation, case and accents are ignored.

    Args:
        document: the book. Its pages are folded at the first search.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self._mapped: dict[int, list[int]] = {}
        vars(self)  # as in ``Document.__post_init__``

    @cached_property
    def _folded(self) -> tuple[str, list[int]]:
        parts: list[str] = []
        starts, length = [], 0
        for stretch in self.document.stretches:
            if length:  # put ``_BORDER`` between documents, so that no passage is found across two of them
                parts.append(_BORDER)
                length += len(_BORDER)
            for part in (fold(page.text) for page in stretch.pages):
                parts.append(part)
                starts.append(length)
                length += len(part)
        return "".join(parts), starts

    @property
    def letters(self) -> str:
        """The folded letters and digits of the whole book (``fold``)."""
        return self._folded[0]

    def find(self, passage: str) -> Iterator[int]:
        """Yield the offset in ``letters`` of each occurrence of a folded passage. An occurrence must begin and end at
        word boundaries.
        """
        text, _ = self._folded
        found, seen = text.find(passage), 0
        while passage and found >= 0 and seen < _MOST_PLACES:
            seen += 1
            if self._whole_words(found, found + len(passage)):
                yield found
            found = text.find(passage, found + 1)

    def spans(self, start: int, end: int) -> tuple[PageSpan, ...]:
        """Return the parts of pages that the characters [start, end) of ``letters`` come from."""
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
        return not (_joins(before, self.letters[start : start + 1]) or _joins(self.letters[end - 1 : end], after))

    def _way_back(self, page: int) -> list[int]:
        if page not in self._mapped:
            while len(self._mapped) >= _MOST_MAPPED:
                self._mapped.pop(next(iter(self._mapped)))
            self._mapped[page] = places(self.document.pages[page].text)
        return self._mapped[page]


def _joins(sign: str, after: str) -> bool:
    """Whether two consecutive characters belong to one word. In scans a number may touch a word ("1,485pounds")."""
    return sign.isalnum() and after.isalnum() and sign.isdigit() == after.isdigit()


@dataclass(frozen=True)
class Span:
    """A range of an answer's text: the characters [start, end)."""

    start: int
    end: int

    def touches(self, other: Span) -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True)
class Quotation:
    """The text between two quotation marks. ``inner`` is its span without the marks, ``whole`` with them. ``closed`` is
    false if the closing mark is missing, for example because the answer is still being written.
    """

    inner: Span
    whole: Span
    closed: bool


def sentences(text: str) -> list[Span]:
    """The sentences of an answer in Markdown, without surrounding white space and without code."""
    masked = _masked(text)
    breaks = (match.end() for match in _BREAK.finditer(masked))
    found, start = [], 0
    for end in merge(sentence_ends(masked), breaks):
        body = masked[start:end]
        words = body.strip()
        if words and WORD.search(words):
            begin = start + len(body) - len(body.lstrip())
            found.append(Span(begin, begin + len(words)))
        start = end
    return found


def quotations(text: str) -> list[Quotation]:
    """Return the passages in quotation marks, in order. Single quotation marks are ignored, because they may be
    apostrophes.
    """
    masked = _masked(text)
    found = []
    for match in _QUOTED.finditer(masked):
        group = next(number for number in (1, 3, 5, 7) if match[number] is not None)
        closed = match[group + 1] in _CLOSERS
        end = match.end(group + 1) if closed else match.end(group)
        found.append(Quotation(Span(*match.span(group)), Span(match.start(), end), closed))
    return found


def words(text: str) -> list[str]:
    """Return the words of a text without folding them."""
    return WORD.findall(text)


def _masked(text: str) -> str:
    return _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code.group(0)), text)


@dataclass(frozen=True)
class QuotationCheck:
    """The result of looking up an answer's quotation in the book.

    Args:
        verified: whether the whole quotation is in the book.
        spans: where the quotation is in the book. If ``verified`` is false, where the longest run of its words is.
        matched: number of words at ``spans``; equals ``total`` if ``verified`` is true.
        total: number of words of the quotation.
    """

    verified: bool
    spans: tuple[PageSpan, ...] = ()
    matched: int = 0
    total: int = field(default=0, compare=False)


def check_quotation(index: BookIndex, passage: str, favour: Sequence[float] = ()) -> QuotationCheck | None:
    """Look a quoted passage up in the book.

    Args:
        favour: a weight for each page. If the book has the passage several times, the place on the page with the
            highest weight is returned.

    Returns:
        None if the passage is too short to be a quotation.
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


def check_answer(index: BookIndex, answer: str) -> list[QuotationCheck]:
    """Look up every quotation of a finished answer."""
    inner = (answer[quotation.inner.start : quotation.inner.end] for quotation in quotations(answer))
    return [found for passage in inner if (found := check_quotation(index, passage)) is not None]


def _in_order(index: BookIndex, parts: list[str], favour: Sequence[float]) -> tuple[PageSpan, ...]:
    """Return the place at which all parts follow one another, each as whole words; () if there is none. If there are
    several such places, return the one whose page has the highest weight in ``favour``.
    """
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
    """Find the longest run of consecutive words that the passage shares with the book. Return its number of words and
    its place; (0, ()) if no run has at least ``_FEWEST_SHARED`` words.
    """
    places = [match.span() for match in WORD.finditer(passage)][:_MOST_WORDS]
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
    """A passage with its surroundings. ``hit`` is the passage as printed. ``before`` and ``after`` are the surrounding
    text, including the spaces next to the passage.
    """

    before: str
    hit: str
    after: str


def excerpt(text: str, start: int, end: int, margin: int = _EXCERPT_AROUND) -> Excerpt:
    """Return the characters [start, end) of a page with up to ``margin`` characters before and after. Line breaks
    become spaces; around the passage, headings and paragraphs have a dot between them. No word is cut at the ends of
    the excerpt.
    """
    left, right = max(0, start - margin), min(len(text), end + margin)
    before, after = text[left:start], text[end:right]
    if left:
        before = "…" + before[before.find(" ") + 1 :]
    if right < len(text):
        after = after[: after.rfind(" ") + 1].rstrip() + "…"
    hit = text[start:end]
    if len(hit) > _LONGEST_EXCERPT:
        hit, after = hit[:_LONGEST_EXCERPT].rstrip() + "…", ""
    before, hit, after = _line(before), _SPACES.sub(" ", hit), _line(after)
    return Excerpt(before.lstrip(" ·"), hit, after.rstrip(" ·"))


def _line(text: str) -> str:
    """A text as one line. A paragraph that begins with a small letter is the rest of a sentence."""
    line, *others = (_SPACES.sub(" ", paragraph) for paragraph in text.split("\n\n"))
    for paragraph in others:
        line = f"{line.rstrip()}{' ' if paragraph[:1].islower() else ' · '}{paragraph.lstrip()}"
    return line


def closest_sentence(page: str, sentence: str) -> tuple[int, int] | None:
    """Return the place [start, end) of the page's sentence that shares the most words with ``sentence``; None if no
    sentence shares at least two. Words with fewer than ``_FEWEST_LETTERS`` letters do not count.
    """
    wanted = _telling(sentence)
    best, found = 1, None
    for span in sentences(page):
        shared = sum((wanted & _telling(page[span.start : span.end])).values())
        if shared > best:
            best, found = shared, (span.start, span.end)
    return found


def _telling(text: str) -> Counter[str]:
    return Counter(folded for word in words(text) if len(folded := fold(word)) >= _FEWEST_LETTERS)
