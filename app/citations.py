"""Finds the evidence for an answer in the book: its quotations, the passages for its sentences, and the source of its
tokens.

    taker = NoteTaker()                    one per program
    notes = taker.begin(document, question)    one per answer
    notes.take(event)                      every event of the engine; True when the notes have changed
    notes.record()                         plain JSON, kept with the exchange

A quotation is checked against the text of the pages: that is a fact. Text is folded to the part that two printings of
the same words share: letters and digits in order, without case, accents and ligatures. Spacing, hyphens (also those at
the end of a line) and punctuation do not matter; numbers must be the same numbers, and parts that an ellipsis divides
must follow each other.

A sentence without quotation marks is supported by the passage that shares its words (``engine.evidence``): that is a
fact about two texts, in the levels of that module. It is looked for when the question is known.

A page that the model attended to is only a hint. Attention is spread over every page, and a few pages draw it whatever
the question. So a page counts only when its share is several times an even one, and well above its usual share in this
book.

The record's keys ("ink", "drew", "extract") are those of all stored chats.
"""

from __future__ import annotations

import bisect
import re
import unicodedata
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cached_property
from statistics import median_low
from typing import Any, Literal

from engine.document import Document, Page
from engine.events import AnswerDone, PagesScored, TextDelta, TokenSource
from engine.evidence import Evidence, EvidenceIndex

Kind = Literal["quoted", "verbatim", "missing", "says", "near", "absent", "drew"]
"""Kinds of citations, in this order: a quotation that is in the book; a sentence without quotation marks that is in the
book; a quotation that is not; a passage that says the same as a sentence; a passage that is only related; a sentence
with names or numbers that occur nowhere in the book; a page that the model attended to.
"""

UNQUOTED: tuple[Kind, ...] = ("says", "near", "absent", "drew")
"""Kinds of citations for a sentence that is no quotation."""

VERSION = 1  # version of the record
MOST_PAGES = 3  # pages that one sentence is said to attend to at most
_TIMES_EVEN = 6.0  # factor of an even share of attention that a page needs
_TIMES_USUAL = 2.0  # factor of its own usual share that a page needs
_REMEMBERED = 15  # answers over which a page's usual share is computed
# hints in one answer at most: more are noise, and cost the page more than the answer costs the engine
MOST_ATTENDED = 30
FEWEST_VERBATIM = 6  # words from which on a sentence without quotation marks is called the book's own
_KINDS: dict[str, Kind] = {"says so": "says", "near": "near", "not found": "absent"}
TARGET = "T"
_WRITERS = {TokenSource.DRAFT: "D", TokenSource.LOOKUP: "L", TokenSource.MIDDLE: "R", TokenSource.TARGET: TARGET}
_POINTS = re.compile(r"[.,;:!?)*_]*")  # signs after which a citation stands
_RUN = re.compile(r"([A-Z])(\d+)")
_ENDS = (".", "!", "?", "…", "”", "“", "»", '"', "\n")

_BORDER = "\n"  # a sign that no fold contains
_DROPPED = re.compile(r"[\W_]+")
_NUMBER = re.compile(r"\d+(?:[.,:/]\d+)*")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_MOST_PLACES = 32  # occurrences of one passage that are examined
_MOST_MAPPED = 64  # pages whose offsets are remembered
# Code, which is no prose, in the same forms that the chat leaves unchanged.
_CODE = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n]*\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)|`[^`\n]{1,500}`", re.S | re.M)
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Capt|Prof|Rev|Lt|Sgt|vs|etc|cf|pp?|No|vol|ch)|\b[A-Z])\.$")
# The end of a sentence: its mark with any closing signs after it, or the end of its paragraph.
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
"""Words of a quotation at least: fewer between quotation marks are a name or a term."""

_ELLIPSIS = re.compile(r"\[?\s*(?:…|\.\s?\.\s?\.)\s*\]?")
_MARKUP = re.compile(r"[*_`]+|^\s*>\s?", re.M)
_APART = 4000  # folded characters within which the parts of one quotation follow each other
_FEWEST_SHARED = 4  # neighbouring words that a missing quotation must share with the book for them to be shown
_MOST_WORDS = 150  # words of a missing quotation that are compared
_EXCERPT_AROUND = 160  # characters on either side of an excerpt
_LONGEST_EXCERPT = 700
_FEWEST_LETTERS = 4  # letters of a meaningful word at least
_SPACES = re.compile(r"\s+")


# Words of an answer in the book ----------------------------------------------------------------------------------


def fold(text: str) -> str:
    """The letters and digits of a text. The fold of a join is the join of the folds."""
    return _DROPPED.sub("", unicodedata.normalize("NFKD", text).casefold())


def places(text: str) -> list[int]:
    """For every character of ``fold(text)``, the index in ``text`` that it comes from."""
    return [index for index, sign in enumerate(text) for _ in fold(sign)]


def numbers(text: str) -> list[str]:
    """The numbers in a text, by their value: 10.5 is not 105, but 1,912 is 1912."""
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
        document: the book, whose pages are folded at the first search.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self._mapped: dict[int, list[int]] = {}

    @cached_property
    def _folded(self) -> tuple[str, list[int]]:
        parts: list[str] = []
        starts, length = [], 0
        for stretch in self.document.stretches:
            if length:  # no passage is found across the border of two documents
                parts.append(_BORDER)
                length += len(_BORDER)
            for part in (fold(page.text) for page in stretch.pages):
                parts.append(part)
                starts.append(length)
                length += len(part)
        return "".join(parts), starts

    @property
    def letters(self) -> str:
        """The fold of the whole book."""
        return self._folded[0]

    def find(self, passage: str) -> Iterator[int]:
        """The places of a folded passage as whole words: offsets for ``spans``, in the order of the book."""
        text, _ = self._folded
        found, seen = text.find(passage), 0
        while passage and found >= 0 and seen < _MOST_PLACES:
            seen += 1
            if self._whole_words(found, found + len(passage)):
                yield found
            found = text.find(passage, found + 1)

    def spans(self, start: int, end: int) -> tuple[PageSpan, ...]:
        """The characters of the folded stretch [start, end) on each of its pages."""
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
    """The text between two quotation marks. ``whole`` includes the marks. ``closed``: whether the second mark has
    come.
    """

    inner: Span
    whole: Span
    closed: bool


def sentences(text: str) -> list[Span]:
    """The sentences of an answer in Markdown, without white space around them and without code."""
    masked = _masked(text)
    found, start = [], 0
    for end in _END.finditer(masked):
        if end.end() < len(masked) and _ABBREVIATION.search(masked[start : end.end()]):
            continue
        body = masked[start : end.end()]
        words = body.strip()
        if words and _WORD.search(words):
            begin = start + len(body) - len(body.lstrip())
            found.append(Span(begin, begin + len(words)))
        start = end.end()
    return found


def quotations(text: str) -> list[Quotation]:
    """Passages in quotation marks, in order. A single quotation mark may be an apostrophe, and opens none."""
    masked = _masked(text)
    found = []
    for match in _QUOTED.finditer(masked):
        group = next(number for number in (1, 3, 5, 7) if match[number] is not None)
        closed = match[group + 1] in _CLOSERS
        end = match.end(group + 1) if closed else match.end(group)
        found.append(Quotation(Span(*match.span(group)), Span(match.start(), end), closed))
    return found


def words(text: str) -> list[str]:
    """The words of a text, unchanged."""
    return _WORD.findall(text)


def _masked(text: str) -> str:
    return _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code.group(0)), text)


@dataclass(frozen=True)
class QuotationCheck:
    """The result of looking an answer's quotation up in the book.

    Args:
        verified: whether the whole quotation is in the book.
        spans: its place; for a quotation that was not found, the place of the longest run of its words.
        matched: words of that run, of ``total`` words.
    """

    verified: bool
    spans: tuple[PageSpan, ...] = ()
    matched: int = 0
    total: int = field(default=0, compare=False)


def check_quotation(index: BookIndex, passage: str, favour: Sequence[float] = ()) -> QuotationCheck | None:
    """Look a quoted passage up in the book.

    Args:
        favour: a weight for each page; among several places, the page with the highest weight is named.

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
    """The places where all parts follow each other, each as whole words."""
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
    """The longest run of the passage's neighbouring words that is in the book, if it is long enough."""
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
    """A passage with its surroundings. ``hit`` is the passage as printed; ``before`` and ``after`` are the text around
    it, with spaces kept.
    """

    before: str
    hit: str
    after: str


def excerpt(text: str, start: int, end: int, around: int = _EXCERPT_AROUND) -> Excerpt:
    """The characters [start, end) of a page with ``around`` characters on either side, lines joined, cut at words."""
    left, right = max(0, start - around), min(len(text), end + around)
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
    """Characters [start, end) of the page's sentence that shares most words with a given one; None if none shares
    any.
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


# The notes of an answer ------------------------------------------------------------------------------------------


class AttentionBaseline:
    """The usual share of attention of each page of a book, whatever the question: the median over the newest answers.

    Args:
        pages: number of pages of the book.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._answers: deque[tuple[float, ...]] = deque(maxlen=_REMEMBERED)

    def add(self, scores: Sequence[float]) -> None:
        """Add the mean scores of one whole answer."""
        if len(scores) == self.pages and sum(scores) > 0:
            self._answers.append(tuple(scores))

    def share(self, page: int) -> float:
        even = 1.0 / max(1, self.pages)
        return median_low([even, *(scores[page] for scores in self._answers)])


def mean_scores(readings: Sequence[Sequence[float]]) -> list[float]:
    """The mean scores over the tokens of one sentence."""
    return [sum(column) / len(readings) for column in zip(*readings, strict=True)] if readings else []


def attended_pages(scores: Sequence[float], baseline: AttentionBaseline) -> list[tuple[int, float]]:
    """(page, factor of an even share) for the pages that stand out, the strongest first, at most ``MOST_PAGES``."""
    pages = len(scores)
    if pages <= 1 or sum(scores) <= 0:
        return []
    standing = [
        (page, score * pages)
        for page, score in enumerate(scores)
        if score * pages >= _TIMES_EVEN and score >= _TIMES_USUAL * baseline.share(page)
    ]
    return sorted(standing, key=lambda item: -item[1])[:MOST_PAGES]


class NoteTaker:
    """Begins the notes of every answer, and keeps the data that all answers about one book share."""

    def __init__(self) -> None:
        self._index: BookIndex | None = None
        self._evidence: tuple[Document, Future[EvidenceIndex]] | None = None
        self._aside = ThreadPoolExecutor(1, "trifold-evidence")
        self._baseline = AttentionBaseline(0)

    def begin(
        self,
        document: Document | None,
        question: str | None = None,
        so_far: str = "",
        record: Mapping[str, Any] | None = None,
        pages_read: int = 0,
    ) -> Notes:
        """Begin the notes of one answer about a document.

        Args:
            question: the answered question; None looks for no evidence.
            so_far, record: existing text and notes of an answer that is continued.
            pages_read: number of first pages that the answer is from; 0 if from all.
        """
        document = document or Document("", "", (), "", "")
        index = self.index_of(document)
        support = None if question is None else Support(self.prepare(document), question, pages_read)
        return Notes(index, self._baseline, support, so_far, str((record or {}).get("ink", "")), pages_read)

    def prepare(self, document: Document) -> Future[EvidenceIndex]:
        """Index the words of a document, once, in a thread of its own, so that no request waits."""
        if self._evidence is None or self._evidence[0] is not document:
            self._evidence = document, self._aside.submit(EvidenceIndex, document)
        return self._evidence[1]

    def index_of(self, document: Document) -> BookIndex:
        """The index of a document's words, for looking quotations up."""
        if self._index is None or self._index.document is not document:
            self._index = BookIndex(document)
            self._baseline = AttentionBaseline(len(document.pages))
        return self._index


class Support:
    """Finds the evidence for the sentences of an answer to one question, each once while the answer grows.

    Args:
        index: the book's evidence index; while it is being made, no evidence is found.
        pages_read: number of first pages that the answer is from; 0 if from all.
    """

    def __init__(self, index: Future[EvidenceIndex], question: str, pages_read: int = 0) -> None:
        self._index = index
        self._question = question
        self._pages_read = pages_read or None
        self._known: dict[str, Evidence] = {}
        self._unmentioned: dict[bool, tuple[str, ...]] = {}

    def unmentioned(self, answered: bool) -> tuple[str, ...]:
        """Words of the question that the book never uses. ``answered``: whether a passage supports the answer."""
        if answered not in self._unmentioned and self._index.done():
            self._unmentioned[answered] = self._index.result().unmentioned(self._question, answered)
        return self._unmentioned.get(answered, ())

    def find(self, sentence: str, favour: Sequence[float], last: bool) -> Evidence | None:
        """Find the evidence for a sentence. ``last``: whether the answer is whole, so that the index is waited for."""
        if not last and not self._index.done():
            return None
        if last or sentence not in self._known:
            self._known[sentence] = self._index.result().find(self._question, sentence, favour, self._pages_read)
        return self._known[sentence]


class Notes:
    """The notes of one answer, which grow with it.

    Args:
        index: the book's index of quotations.
        baseline: usual attention to its pages; the finished answer is added to it.
        support: finds evidence for its sentences; None looks for none.
        so_far, provenance: the beginning of an answer that is continued, and its sources.
        pages_read: number of first pages that the answer is from; 0 if from all.
    """

    def __init__(
        self,
        index: BookIndex,
        baseline: AttentionBaseline,
        support: Support | None = None,
        so_far: str = "",
        provenance: str = "",
        pages_read: int = 0,
    ) -> None:
        self._index = index
        self._pages_read = pages_read or len(index.document.pages)
        self._baseline = baseline
        self._support = support
        self._text = so_far
        self._origin = len(so_far)
        self._ends: list[int] = []  # for every token, the number of characters of the answer up to its end
        self._runs = [(run[0], int(run[1])) for run in _RUN.findall(provenance)]
        self._scored: list[PagesScored] = []
        self._done = self._stale = False  # whether words have come since the citations were looked up
        self._chips: list[dict[str, Any]] = []
        self._checked: dict[str, QuotationCheck | None] = {}
        self._near: dict[tuple[int, str], tuple[int, int]] = {}
        self._missing: list[str] = []

    def take(self, event: object) -> bool:
        """Take an event of the engine. Return whether the citations may have changed."""
        if isinstance(event, TextDelta):
            self._add(event)
            if not event.text.rstrip().endswith(_ENDS) and not any(mark in event.text for mark in _ENDS):
                return False
        elif isinstance(event, PagesScored):
            self._scored.append(event)
            return False
        elif isinstance(event, AnswerDone):
            self._done = True
            self._scored = list(event.pages_scored) or self._scored
        else:
            return False
        self._stale = True
        if self._done:
            self._look_up()
            self._baseline.add(mean_scores([reading.scores for reading in self._scored]))
        return True

    def close(self) -> None:
        """End the answer without its final event."""
        self._done = self._stale = True

    def record(self) -> dict[str, Any]:
        """The notes as plain JSON: citations (``chips``, in the order of their places) and the sources of the letters
        (``ink``).

        ``missing``, where the book does not support the answer: names and numbers that occur nowhere in it, and words
        of the question that it never uses; none where no passage was found for any sentence.
        """
        self._look_up()
        return self.sketch()

    def sketch(self) -> dict[str, Any]:
        """The record with the citations that were looked up last, since looking them up takes time while an answer
        grows.
        """
        record = {"v": VERSION, "unit": self._index.document.unit, "ink": self.provenance(), "chips": self._chips}
        kinds = {chip["kind"] for chip in self._chips}
        bare = "absent" in kinds and not kinds & {"quoted", "verbatim", "says", "near"}
        missing = [*(self._support.unmentioned("says" in kinds) if self._support and kinds else ()), *self._missing]
        return record | ({"missing": list(dict.fromkeys(missing))} if missing or bare else {})

    def provenance(self) -> str:
        """The sources of the answer's letters, as runs: "D12T3" is twelve letters of the draft, then three of the
        target.

        Only letters count, so that a page can count them too, whatever formatting has done to the other signs.
        """
        return "".join(f"{writer}{count}" for writer, count in self._runs if count)

    def _look_up(self) -> None:
        if self._stale:
            self._stale = False
            self._chips = sorted(self._cite(), key=lambda chip: chip["at"])

    def _add(self, event: TextDelta) -> None:
        start = len(self._text)
        self._text += event.text
        lengths = event.lengths or _spread(len(event.text), len(event.token_ids))
        for length, stage in zip(lengths, event.sources, strict=True):
            letters = sum(map(str.isalpha, self._text[start : start + length]))
            start += length
            self._ends.append(start)
            if self._runs and self._runs[-1][0] == _WRITERS[stage]:
                letters += self._runs.pop()[1]
            self._runs.append((_WRITERS[stage], letters))

    def _cite(self) -> Iterator[dict[str, Any]]:
        taken: list[Span] = []
        for quotation in quotations(self._text):
            if not (quotation.closed or self._done):
                continue
            found = self._check(self._text[quotation.inner.start : quotation.inner.end], quotation.whole)
            if found is not None:
                taken.append(quotation.whole)
                yield self._quoted("quoted" if found.verified else "missing", found, quotation.whole)
        whole = sentences(self._text)
        self._missing = []
        left, said = (
            MOST_ATTENDED,
            frozenset[tuple[str | None, int]](),
        )  # the pages that the previous sentence attended to
        for sentence in whole if self._done else whole[:-1]:
            if any(sentence.touches(span) for span in taken):
                continue
            chips = list(self._unquoted(sentence))
            attended = frozenset(
                (chip.get("of"), chip["pages"][0]["number"]) for chip in chips if chip["kind"] == "drew"
            )
            if attended and (attended <= said or len(attended) > left):
                continue
            left, said = left - len(attended), attended
            yield from chips

    def _unquoted(self, sentence: Span) -> Iterator[dict[str, Any]]:
        passage = self._text[sentence.start : sentence.end]
        if len(words(passage)) >= FEWEST_VERBATIM:
            found = self._check(passage, sentence)
            if found is not None and found.verified and all(span.page < self._pages_read for span in found.spans):
                yield self._quoted("verbatim", found, sentence)
                return
        evidence = self._support and self._support.find(passage, self._scores(sentence), self._done)
        if evidence and (evidence.level or not evidence.claims):
            yield from self._rests_on(evidence, sentence)
            return
        for page, times in attended_pages(self._scores(sentence), self._baseline):
            yield self._attended(page, times, sentence, passage)

    def _check(self, passage: str, where: Span) -> QuotationCheck | None:
        """Check a quotation, unless it was looked up already while the answer grew."""
        if self._done or passage not in self._checked:
            self._checked[passage] = check_quotation(self._index, passage, self._scores(where))
        return self._checked[passage]

    def _scores(self, where: Span) -> list[float]:
        """The attention to the pages while the characters of ``where`` were decoded."""
        pages = len(self._index.document.pages)
        return mean_scores(
            [one.scores for one in self._scored if len(one.scores) == pages and self._span(one).touches(where)]
        )

    def _span(self, reading: PagesScored) -> Span:
        if reading.last_token < reading.first_token or reading.first_token >= len(self._ends):
            return Span(0, 0)
        start = self._ends[reading.first_token - 1] if reading.first_token else self._origin
        return Span(start, self._ends[min(reading.last_token, len(self._ends) - 1)])

    def _quoted(self, kind: Kind, found: QuotationCheck, where: Span) -> dict[str, Any]:
        at = where.end + len(_POINTS.match(self._text, where.end)[0])  # type: ignore[index]
        chip: dict[str, Any] = {"kind": kind, "at": at, "from": where.start, "pages": [], "marks": []}
        if kind == "missing":
            chip |= {"matched": found.matched, "total": found.total}
        if found.spans:
            chip |= self._places(found.spans)
        return chip

    def _rests_on(self, evidence: Evidence, where: Span) -> Iterator[dict[str, Any]]:
        chip: dict[str, Any] = {"kind": _KINDS.get(evidence.level), "at": where.end, "from": where.start}
        if evidence.passages:
            spans = (PageSpan(part.page, part.start, part.end) for found in evidence.passages for part in found.parts)
            yield chip | self._places(tuple(spans))
        elif evidence.level:
            self._missing += evidence.missing
            yield chip | {"pages": [], "marks": [], "missing": list(evidence.missing)}

    def _attended(self, page: int, times: float, where: Span, sentence: str) -> dict[str, Any]:
        text = self._index.document.pages[page].text
        if (page, sentence) not in self._near:
            self._near[page, sentence] = closest_sentence(text, sentence) or (0, 0)
        chip = {
            "kind": "drew",
            "at": where.end,
            "from": where.start,
            "times": round(times, 1),
        }
        return chip | self._places((PageSpan(page, *self._near[page, sentence]),))

    def _places(self, spans: tuple[PageSpan, ...]) -> dict[str, Any]:
        """Pages by number and printed label, with the characters to mark on them and a short excerpt.

        With several documents, each place names its document and that document's own page numbers, so that the record
        stays valid when others are added or removed.
        """
        document, first = self._index.document, spans[0]
        member = document.member_at(document.pages[first.page].number)
        before = member.before if member else 0
        pages: dict[int, Page] = {span.page: document.pages[span.page] for span in spans}
        pages = {at: page for at, page in pages.items() if document.member_at(page.number) is member}
        around = excerpt(pages[first.page].text, first.start, first.end)
        found: dict[str, Any] = {
            "pages": [
                {"number": page.number - before, "label": page.label, **_recognised(page)} for page in pages.values()
            ],
            "marks": [
                [pages[span.page].number - before, span.start, span.end]
                for span in spans
                if span.end > span.start and span.page in pages
            ],
            "extract": asdict(around),
        }
        return found | ({"of": member.sha256, "document": member.title, "unit": member.unit} if member else {})


_LEVELS = {"quoted": "says so", "verbatim": "says so"} | {kind: level for level, kind in _KINDS.items()}


def _recognised(page: Page) -> dict[str, bool]:
    """Whether the words of a page come from its picture, or its picture was not read."""
    known = {"recognised": "recognised", "figure": "unread", "unread": "unread"}.get(page.picture)
    return {known: True} if known else {}


def evidence(record: Mapping[str, Any], answer: str) -> list[dict[str, Any]]:
    """The evidence for each sentence of an answer, for other programs, from the record of its notes.

    Returns:
        in the answer's order: ``sentence``; ``level`` ("says so", "near", "not found"); ``pages``, each with its
        ``number`` from 1 and its printed ``label``; ``passage``, the book's words; ``missing``, names and numbers that
            occur nowhere in the book; with several documents ``document``, the title of one. A quotation represents its
            sentence, and its passage is the quotation.
    """
    spans, found = sentences(answer), []
    for chip in record.get("chips", ()):
        if chip["kind"] not in _LEVELS:
            continue
        start, end = next(
            ((s.start, s.end) for s in spans if s.start <= chip["from"] < s.end), (chip["from"], chip["at"])
        )
        found.append(
            {
                "sentence": answer[start:end],
                "level": _LEVELS[chip["kind"]],
                "pages": chip["pages"],
                "passage": (chip.get("extract") or {}).get("hit", ""),
                "missing": chip.get("missing", []),
                **({"document": chip["document"]} if "document" in chip else {}),
            }
        )
    return found


def _spread(characters: int, tokens: int) -> list[int]:
    """Divide text into lengths of tokens, as evenly as possible, where they were not measured."""
    return [(number + 1) * characters // tokens - number * characters // tokens for number in range(tokens)]
