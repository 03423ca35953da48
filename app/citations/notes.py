"""What is noted about one answer while it is written: citations after its sentences, and who produced its tokens.

Takes the engine's events of one answer. A citation of quoted words is a fact (``app.citations.match``). A page the
model attended to is a hint: attention is spread over every page, and a few pages draw it whatever is asked, so that a
page counts only when its share is several times an even one and well above its usual one in this book.

The record is plain JSON, kept with the exchange; its names ("ink", "drew", "extract") are those of every kept chat.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median_low
from typing import Any, Literal

from app.citations.match import (
    BookIndex,
    PageSpan,
    QuotationCheck,
    Span,
    check_quotation,
    closest_sentence,
    excerpt,
    quotations,
    sentences,
    words,
)
from engine.document import Document, Page
from engine.events import AnswerDone, PagesScored, TextDelta, TokenSource

Kind = Literal["quoted", "verbatim", "missing", "drew"]
"""Words in quotation marks that stand in the book; a sentence without marks that does; words in quotation marks that
stand nowhere; a page that the model attended to."""

VERSION = 1  # of the record
MOST_PAGES = 3  # that one sentence is said to attend to
_TIMES_EVEN = 6.0  # a page's share of attention over an even one
_TIMES_USUAL = 2.0  # and over its own usual one
_REMEMBERED = 15  # answers
MOST_ATTENDED = 30  # hints in one answer: more are noise, and cost the page more than the answer costs the engine
FEWEST_VERBATIM = 6  # words of a sentence without quotation marks that are called the book's own
_WRITERS = {TokenSource.DRAFT: "D", TokenSource.LOOKUP: "L", TokenSource.RETRIEVAL: "R", TokenSource.TARGET: "T"}
_POINTS = re.compile(r"[.,;:!?)*_]*")  # a citation stands behind them
_RUN = re.compile(r"([A-Z])(\d+)")
_ENDS = (".", "!", "?", "…", "”", "“", "»", '"', "\n")


class AttentionBaseline:
    """What share of attention each page of one book has whatever is asked: the median over the newest answers.

    Args:
        pages: of the book.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._answers: deque[tuple[float, ...]] = deque(maxlen=_REMEMBERED)

    def add(self, scores: Sequence[float]) -> None:
        """The mean scores of one whole answer."""
        if len(scores) == self.pages and sum(scores) > 0:
            self._answers.append(tuple(scores))

    def share(self, page: int) -> float:
        even = 1.0 / max(1, self.pages)
        return median_low([even, *(scores[page] for scores in self._answers)])


def mean_scores(readings: Sequence[Sequence[float]]) -> list[float]:
    """The readings of one sentence as one."""
    return [sum(column) / len(readings) for column in zip(*readings, strict=True)] if readings else []


def attended_pages(scores: Sequence[float], baseline: AttentionBaseline) -> list[tuple[int, float]]:
    """(page, times an even share) of the pages that stand out, the strongest first, ``MOST_PAGES`` at most."""
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
    """Begins the notes of every answer; keeps what is the same for all answers about one book."""

    def __init__(self) -> None:
        self._index: BookIndex | None = None
        self._baseline = AttentionBaseline(0)

    def begin(self, document: Document | None, so_far: str = "", record: Mapping[str, Any] | None = None) -> Notes:
        """Notes of one answer about a document.

        Args:
            so_far, record: of an answer that is continued, what there is of it and its notes.
        """
        document = document or Document("", "", (), "", "")
        if self._index is None or self._index.document is not document:
            self._index = BookIndex(document)
            self._baseline = AttentionBaseline(len(document.pages))
        return Notes(self._index, self._baseline, so_far, str((record or {}).get("ink", "")))


class Notes:
    """The notes of one answer, which grow with it.

    Args:
        index: of the book.
        baseline: the usual attention of its pages; the answer is added to it when it is done.
        so_far, provenance: the beginning of an answer that is continued, and who wrote it.
    """

    def __init__(self, index: BookIndex, baseline: AttentionBaseline, so_far: str = "", provenance: str = "") -> None:
        self._index = index
        self._baseline = baseline
        self._text = so_far
        self._origin = len(so_far)
        self._ends: list[int] = []  # of every token: characters of the answer up to it
        self._runs = [(run[0], int(run[1])) for run in _RUN.findall(provenance)]
        self._readings: list[PagesScored] = []
        self._done = self._stale = False  # whether words have come since the citations were looked up
        self._chips: list[dict[str, Any]] = []
        self._checked: dict[str, QuotationCheck | None] = {}
        self._near: dict[tuple[int, str], tuple[int, int]] = {}

    def take(self, event: object) -> bool:
        """Take an event of the engine; whether the citations may have changed."""
        if isinstance(event, TextDelta):
            self._add(event)
            if not event.text.rstrip().endswith(_ENDS) and not any(mark in event.text for mark in _ENDS):
                return False
        elif isinstance(event, PagesScored):
            self._readings.append(event)
            return False
        elif isinstance(event, AnswerDone):
            self._done = True
            self._readings = list(event.readings) or self._readings
        else:
            return False
        self._stale = True
        if self._done:
            self._look_up()
            self._baseline.add(mean_scores([reading.scores for reading in self._readings]))
        return True

    def close(self) -> None:
        """The answer ends here, without its last event."""
        self._done = self._stale = True

    def record(self) -> dict[str, Any]:
        """Plain JSON: citations (``chips``, by the place where they stand) and who wrote the letters (``ink``)."""
        self._look_up()
        return self.sketch()

    def sketch(self) -> dict[str, Any]:
        """The record with the citations that were looked up last: looking them up takes time while an answer grows."""
        return {"v": VERSION, "unit": self._index.document.unit, "ink": self.provenance(), "chips": self._chips}

    def provenance(self) -> str:
        """Who wrote the letters of the answer, as runs: "D12T3" is twelve of the draft, three of the target's own.

        Only letters count: a page that shows the answer can count them too, whatever the marks became.
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
        left, said = MOST_ATTENDED, frozenset[int]()  # the pages that the sentence before attended to
        for sentence in whole if self._done else whole[:-1]:
            if any(sentence.touches(span) for span in taken):
                continue
            chips = list(self._unquoted(sentence))
            attended = frozenset(chip["pages"][0]["number"] for chip in chips if chip["kind"] == "drew")
            if attended and (attended <= said or len(attended) > left):
                continue
            left, said = left - len(attended), attended
            yield from chips

    def _unquoted(self, sentence: Span) -> Iterator[dict[str, Any]]:
        passage = self._text[sentence.start : sentence.end]
        if len(words(passage)) >= FEWEST_VERBATIM:
            found = self._check(passage, sentence)
            if found is not None and found.verified:
                yield self._quoted("verbatim", found, sentence)
                return
        for page, times in attended_pages(self._scores(sentence), self._baseline):
            yield self._attended(page, times, sentence, passage)

    def _check(self, passage: str, where: Span) -> QuotationCheck | None:
        """A quotation that was looked up while the answer grew is not looked up again."""
        if self._done or passage not in self._checked:
            self._checked[passage] = check_quotation(self._index, passage, self._scores(where))
        return self._checked[passage]

    def _scores(self, where: Span) -> list[float]:
        """The attention of the pages while the characters of ``where`` were decoded."""
        pages = len(self._index.document.pages)
        return mean_scores(
            [one.scores for one in self._readings if len(one.scores) == pages and self._span(one).touches(where)]
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
        """Pages by number and printed label, the characters to mark on them, and a few lines for the eye."""
        pages: dict[int, Page] = {span.page: self._index.document.pages[span.page] for span in spans}
        first = spans[0]
        around = excerpt(pages[first.page].text, first.start, first.end)
        return {
            "pages": [{"number": page.number, "label": page.label} for page in pages.values()],
            "marks": [[pages[span.page].number, span.start, span.end] for span in spans if span.end > span.start],
            "extract": asdict(around),
        }


def _spread(characters: int, tokens: int) -> list[int]:
    """Lengths of tokens that nobody measured: as even as can be."""
    return [(number + 1) * characters // tokens - number * characters // tokens for number in range(tokens)]
