"""What is noted about one answer while it is written: citations after its sentences, and who produced its tokens.

Collects the engine's events of one answer and puts the parts of this package together. The record is plain JSON; how
it looks is decided elsewhere. Knows no engine at work and no page of the app.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Literal

from app.pages import drawing, quoting
from app.pages.index import BookIndex, PageSpan
from app.pages.passages import closest, extract
from app.pages.sentences import Span, quotations, sentences, words
from engine.document import Document, Page
from engine.events import AnswerDone, PagesScored, Stage, TextDelta

Kind = Literal["quoted", "verbatim", "missing", "drew"]
"""Words in quotation marks that stand in the book; a sentence without marks that does; words in quotation marks that
stand nowhere; a page that drew attention."""

VERSION = 1
MOST_DRAWN = 30  # hints in one answer: more are noise, and cost the page more than the answer costs the engine
FEWEST_VERBATIM = 6  # words of a sentence without quotation marks that are called the book's own
_INK = {Stage.DRAFT: "D", Stage.LOOKUP: "L", Stage.RETRIEVAL: "R", Stage.TARGET: "T"}
_POINTS = re.compile(r"[.,;:!?)*_]*")  # a citation stands behind them
_RUN = re.compile(r"([A-Z])(\d+)")
_ENDS = (".", "!", "?", "…", "”", "“", "»", '"', "\n")


class NoteTaker:
    """Begins the notes of every answer; keeps what is the same for all answers about one book."""

    def __init__(self) -> None:
        self._index: BookIndex | None = None
        self._usual = drawing.Usual(0)

    def begin(self, document: Document | None, so_far: str = "", record: Mapping[str, Any] | None = None) -> Notes:
        """Notes of one answer about a document.

        Args:
            so_far, record: of an answer that is continued, what there is of it and its notes.
        """
        document = document or Document("", "", (), "", "")
        if self._index is None or self._index.document is not document:
            self._index = BookIndex(document)
            self._usual = drawing.Usual(len(document.pages))
        return Notes(self._index, self._usual, so_far, str((record or {}).get("ink", "")))


class Notes:
    """Args:
    index: of the book.
    usual: what its pages draw usually; the answer is added to it when it is done.
    so_far, ink: the beginning of an answer that is continued, and who wrote it.
    """

    def __init__(self, index: BookIndex, usual: drawing.Usual, so_far: str = "", ink: str = "") -> None:
        self._index = index
        self._usual = usual
        self._text = so_far
        self._origin = len(so_far)
        self._ends: list[int] = []  # of every token: characters of the answer up to it
        self._runs = [(run[0], int(run[1])) for run in _RUN.findall(ink)]
        self._readings: list[PagesScored] = []
        self._done = self._stale = False  # whether words have come since the citations were looked up
        self._chips: list[dict[str, Any]] = []
        self._checked: dict[str, quoting.Check | None] = {}
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
            self._usual.add(drawing.mean([reading.scores for reading in self._readings]))
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
        return {"v": VERSION, "unit": self._index.document.unit, "ink": self.ink(), "chips": self._chips}

    def ink(self) -> str:
        """Who wrote the letters of the answer, as runs: "D12T3" is twelve of the draft, three of the target's own.

        Only letters count: a page that shows the answer can count them too, whatever the marks became.
        """
        return "".join(f"{ink}{count}" for ink, count in self._runs if count)

    def _look_up(self) -> None:
        if self._stale:
            self._stale = False
            self._chips = sorted(self._cite(), key=lambda chip: chip["at"])

    def _add(self, event: TextDelta) -> None:
        start = len(self._text)
        self._text += event.text
        lengths = event.lengths or _spread(len(event.text), len(event.token_ids))
        for length, stage in zip(lengths, event.stages, strict=True):
            letters = sum(map(str.isalpha, self._text[start : start + length]))
            start += length
            self._ends.append(start)
            if self._runs and self._runs[-1][0] == _INK[stage]:
                letters += self._runs.pop()[1]
            self._runs.append((_INK[stage], letters))

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
        drawn, said = MOST_DRAWN, frozenset[int]()  # what the sentence before was said to have drawn on
        for sentence in whole if self._done else whole[:-1]:
            if any(sentence.touches(span) for span in taken):
                continue
            chips = list(self._unquoted(sentence))
            drew = frozenset(chip["pages"][0]["number"] for chip in chips if chip["kind"] == "drew")
            if drew and (drew <= said or len(drew) > drawn):
                continue
            drawn, said = drawn - len(drew), drew
            yield from chips

    def _unquoted(self, sentence: Span) -> Iterator[dict[str, Any]]:
        passage = self._text[sentence.start : sentence.end]
        if len(words(passage)) >= FEWEST_VERBATIM:
            found = self._check(passage, sentence)
            if found is not None and found.verified:
                yield self._quoted("verbatim", found, sentence)
                return
        for page, times in drawing.sharp_pages(self._scores(sentence), self._usual):
            yield self._drew(page, times, sentence, passage)

    def _check(self, passage: str, where: Span) -> quoting.Check | None:
        """A quotation that was looked up while the answer grew is not looked up again."""
        if self._done or passage not in self._checked:
            self._checked[passage] = quoting.check(self._index, passage, self._scores(where))
        return self._checked[passage]

    def _scores(self, where: Span) -> list[float]:
        """What the pages drew while the characters of ``where`` were decoded."""
        pages = len(self._index.document.pages)
        return drawing.mean(
            [one.scores for one in self._readings if len(one.scores) == pages and self._span(one).touches(where)]
        )

    def _span(self, reading: PagesScored) -> Span:
        if reading.last_token < reading.first_token or reading.first_token >= len(self._ends):
            return Span(0, 0)
        start = self._ends[reading.first_token - 1] if reading.first_token else self._origin
        return Span(start, self._ends[min(reading.last_token, len(self._ends) - 1)])

    def _quoted(self, kind: Kind, found: quoting.Check, where: Span) -> dict[str, Any]:
        at = where.end + len(_POINTS.match(self._text, where.end)[0])  # type: ignore[index]
        chip: dict[str, Any] = {"kind": kind, "at": at, "from": where.start, "pages": [], "marks": []}
        if kind == "missing":
            chip |= {"matched": found.matched, "total": found.total}
        if found.spans:
            chip |= self._places(found.spans)
        return chip

    def _drew(self, page: int, times: float, where: Span, sentence: str) -> dict[str, Any]:
        text = self._index.document.pages[page].text
        if (page, sentence) not in self._near:
            self._near[page, sentence] = closest(text, sentence) or (0, 0)
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
        around = extract(pages[first.page].text, first.start, first.end)
        return {
            "pages": [{"number": page.number, "label": page.label} for page in pages.values()],
            "marks": [[pages[span.page].number, span.start, span.end] for span in spans if span.end > span.start],
            "extract": asdict(around),
        }


def _spread(characters: int, tokens: int) -> list[int]:
    """Lengths of tokens that nobody measured: as even as can be."""
    return [(number + 1) * characters // tokens - number * characters // tokens for number in range(tokens)]
