"""Finds the evidence for an answer in the book: pages for quotations, and passages for the other sentences. Also
records which model or lookup proposed each token of the answer.

    finder = CitationFinder()                     one per program
    citations = finder.begin(document, question)  one per answer
    citations.take(event)                         every event of the engine; True if citations may have changed
    citations.record()                            plain JSON, kept with the exchange

A quotation is looked up in the text of the pages (``app.trust.quoted``). So it is certain whether the book has the
quotation.

For a sentence without quotation marks, a passage with the same words is searched (``app.trust.evidence``), but only if
the question is known. The shared words are certain too.

If no passage is found, pages that the model attended to are cited. Such a citation is only a hint. Attention is spread
over every page, and a few pages attract attention whatever the question is. So a page is cited only if its share of
attention is several times an even share, and well above its usual share in this book.

Stored chats contain the record's words "ink", "drew" and "extract", so these words must not be renamed.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import pairwise
from statistics import median_low
from typing import Any, Literal

from app.language.sentences import is_ended
from app.language.titles import short_title
from app.readers.recognised import picture_at
from app.trust.book_words import PageRange, Passage
from app.trust.evidence import Evidence, EvidenceIndex, Form
from app.trust.not_found import Premise
from app.trust.quoted import (
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
from app.trust.speakers import asks_who_said, not_said_by, not_the_speaker, words_for_a_speaker
from engine.document import Document, Page
from engine.events import AnswerDone, PagesScored, StopReason, TextDelta, TokenSource

Kind = Literal["quoted", "verbatim", "missing", "says", "near", "absent", "drew"]
"""Kinds of citations.

- "quoted": a quotation that is in the book
- "verbatim": a sentence without quotation marks that is in the book word for word
- "missing": a quotation that is not in the book
- "says": a passage that says the same as the sentence
- "near": a passage that is only related to the sentence
- "absent": a sentence whose content, such as a name or a number, was not found in the book
- "drew": a page that the model attended to
"""

UNQUOTED: tuple[Kind, ...] = ("says", "near", "absent", "drew")
"""Kinds of citations for sentences that are not quotations."""

VERSION = 1  # format version of the JSON that ``record()`` returns
MOST_PAGES = 3  # maximum number of pages that are cited for one sentence because the model attended to them
_TIMES_EVEN = 6.0  # minimum share of attention of a cited page, as a multiple of an even share (1 / number of pages)
_TIMES_USUAL = 2.0  # minimum share of attention of a cited page, as a multiple of the page's usual share
_REMEMBERED = 15  # number of most recent answers from which a page's usual share is computed
# Maximum number of pages in one answer that are cited because the model attended to them. More would distract, and the
# web page would take longer to show them than the engine needs for the answer.
MOST_ATTENDED = 30
FEWEST_VERBATIM = 6  # minimum words of a sentence without quotation marks that is looked up in the book word for word
_KINDS: dict[str, Kind] = {"says so": "says", "near": "near", "not found": "absent"}
TARGET = "T"
_WRITERS = {TokenSource.DRAFT: "D", TokenSource.LOOKUP: "L", TokenSource.MIDDLE: "R", TokenSource.TARGET: TARGET}
# matches punctuation after a quotation; the citation is placed after the punctuation
# matches a line that is no item of a list, or whose item is in bold type
_HEADING = re.compile(r"(?:(?:[-*+•]|\d{1,2}[.)])\s+(?=[*_]{2}))?(?![-*+•] |\d{1,2}[.)] ).+", re.DOTALL)
_ITEM = re.compile(r"[ \t]*(?:[-*+•]|\d{1,2}[.)])\s")
_LONGEST_HEADING = 8  # maximum words of a line without a full stop that is taken for a heading
_POINTS = re.compile(r"[.,;:!?)*_]*")
_RUN = re.compile(r"([A-Z])(\d+)")
_ENDS = (".", "!", "?", "…", "”", "“", "»", '"', "\n")


class AttentionBaseline:
    """The usual share of attention of each page of a book: the median of the page's shares in the newest
    ``_REMEMBERED`` answers and of an even share (1 / number of pages).

    Args:
        pages: number of pages of the book.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._answers: deque[tuple[float, ...]] = deque(maxlen=_REMEMBERED)

    def add(self, scores: Sequence[float]) -> None:
        """Add one complete answer. ``scores``: the mean share of attention of each page during this answer."""
        if len(scores) == self.pages and sum(scores) > 0:
            self._answers.append(tuple(scores))

    def share(self, page: int) -> float:
        even = 1.0 / max(1, self.pages)
        return median_low([even, *(scores[page] for scores in self._answers)])


def mean_scores(readings: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean score of each page. Every item of ``readings`` has one score per page. Return [] if ``readings``
    is empty.
    """
    return [sum(column) / len(readings) for column in zip(*readings, strict=True)] if readings else []


def attended_pages(scores: Sequence[float], baseline: AttentionBaseline) -> list[tuple[int, float]]:
    """Find the pages whose share of attention stands out. Return (page index, multiple of an even share) of at most
    ``MOST_PAGES`` pages, in descending order of attention.
    """
    pages = len(scores)
    if pages <= 1 or sum(scores) <= 0:
        return []
    standing = [
        (page, score * pages)
        for page, score in enumerate(scores)
        if score * pages >= _TIMES_EVEN and score >= _TIMES_USUAL * baseline.share(page)
    ]
    return sorted(standing, key=lambda item: -item[1])[:MOST_PAGES]


class CitationFinder:
    """Creates the ``Citations`` of every answer, and keeps the data that all answers about one book share."""

    def __init__(self) -> None:
        self._index: BookIndex | None = None
        self._evidence: tuple[Document, Future[EvidenceIndex]] | None = None
        self._aside = ThreadPoolExecutor(1, "trifold-evidence")
        self._baseline = AttentionBaseline(0)

    def forget(self) -> None:
        """Give back what is kept of the last book."""
        self._index = self._evidence = None

    def begin(
        self,
        document: Document | None,
        question: str | None = None,
        so_far: str = "",
        record: Mapping[str, Any] | None = None,
        pages_read: int = 0,
    ) -> Citations:
        """Begin the citations of one answer about a document.

        Args:
            question: the answered question; without it no evidence is searched.
            so_far, record: the existing text and its record, if an answer is continued.
            pages_read: number of leading pages that the answer is based on; 0 for all pages.
        """
        document = document or Document("", "", (), "", "")
        index = self.index_of(document)
        support = None if question is None else Support(self.prepare(document), question, pages_read)
        return Citations(index, self._baseline, support, so_far, str((record or {}).get("ink", "")), pages_read)

    def prepare(self, document: Document) -> Future[EvidenceIndex]:
        """Index the words of a document once, in a thread, so that no request waits for the index."""
        known = self._evidence
        if known is None or known[0] is not document:
            known = self._evidence = document, self._aside.submit(EvidenceIndex, document)
        return known[1]

    def index_of(self, document: Document) -> BookIndex:
        """Return the index of a document's words, in which quotations are looked up."""
        known = self._index
        if known is None or known.document is not document:
            known = self._index = BookIndex(document)
            self._baseline = AttentionBaseline(len(document.pages))
        return known


class Support:
    """Finds the evidence for the sentences of an answer while it grows. Each sentence is looked up once while the
    answer grows, and once more when the answer is complete.

    Args:
        index: the book's evidence index. If the index is still being made, a complete answer waits for it, and a
            growing answer gets no evidence.
        pages_read: number of leading pages that the answer is based on; 0 for all pages.
    """

    def __init__(self, index: Future[EvidenceIndex], question: str, pages_read: int = 0) -> None:
        self._index = index
        self.question = question
        self._pages_read = pages_read or None
        self._known: dict[str, Evidence] = {}
        self._unmentioned: dict[bool, tuple[str, ...]] = {}
        self._premise: tuple[Premise, Passage | None] | None = None
        self._looked_for_premise = False

    def unmentioned(self, answered: bool) -> tuple[str, ...]:
        """Nouns and names of the question that the book never uses; () while the index is being made.

        Args:
            answered: whether a passage supports the answer. If so, the noun right after "which" or "what" is left out,
                because a book may name a ship without using the word "ship".
        """
        if answered not in self._unmentioned and self._index.done():
            self._unmentioned[answered] = self._index.result().unmentioned(self.question, answered)
        return self._unmentioned.get(answered, ())

    def premise(self) -> tuple[Premise, Passage | None] | None:
        """What the question takes for granted and no passage says; None while the index is being made."""
        if not self._looked_for_premise and self._index.done():
            self._looked_for_premise = True
            self._premise = self._index.result().premise(self.question)
        return self._premise

    def unnamed(self, cited: Sequence[PageRange]) -> tuple[str, ...]:
        """The names of the question, if none of the cited places is near one of them."""
        return self._index.result().unnamed(self.question, cited) if self._index.done() else ()

    def clauses(self, sentence: str) -> list[tuple[int, int]]:
        """Return the start and end of each clause of a sentence that needs evidence of its own (``EvidenceIndex``). A
        sentence is one clause while the index is being made.
        """
        return self._index.result().clauses(sentence) if self._index.done() else [(0, len(sentence))]

    def find(self, sentence: str, favour: Sequence[float], last: bool, form: Form, under: str) -> Evidence | None:
        """Find the evidence for a sentence. ``last``: whether the answer is complete. Only then the call waits for an
        index that is still being made; otherwise it returns None.
        """
        if not last and not self._index.done():
            return None
        if last or sentence not in self._known:
            self._known[sentence] = self._index.result().find(
                self.question, sentence, favour, self._pages_read, form, under
            )
        return self._known[sentence]


class Citations:
    """The citations of one answer, which grow with it.

    Args:
        index: the book's index of quotations.
        baseline: the usual attention to the book's pages; the finished answer is added to it.
        support: finds evidence for the sentences; None finds none.
        so_far: the existing text of an answer that is continued.
        provenance: the sources of the letters of ``so_far``, as ``Citations.provenance`` returns them.
        pages_read: number of leading pages that the answer is based on; 0 for all pages.
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
        self._ends: list[int] = []  # for every token, the number of characters of the answer up to the token's end
        self._runs = [(run[0], int(run[1])) for run in _RUN.findall(provenance)]
        self._scored: list[PagesScored] = []
        # ``_done``: whether the answer has ended. ``_stale``: whether the citations must be looked up again.
        self._done = self._stale = False
        self._was_cut = False
        self._chips: list[dict[str, Any]] = []
        self._checked: dict[str, QuotationCheck | None] = {}
        self._near: dict[tuple[int, str], tuple[int, int]] = {}
        self._missing: list[str] = []

    def take(self, event: object) -> bool:
        """Handle an event of the engine. Return whether the citations may have changed."""
        if isinstance(event, TextDelta):
            self._add(event)
            if not event.text.rstrip().endswith(_ENDS) and not any(mark in event.text for mark in _ENDS):
                return False
        elif isinstance(event, PagesScored):
            self._scored.append(event)
            return False
        elif isinstance(event, AnswerDone):
            self._done = True
            self._was_cut = event.stop_reason is not StopReason.END
            self._scored = list(event.pages_scored) or self._scored
        else:
            return False
        self._stale = True
        if self._done:
            self._look_up()
            self._baseline.add(mean_scores([reading.scores for reading in self._scored]))
        return True

    def close(self) -> None:
        """End an answer for which the engine sends no ``AnswerDone``."""
        self._done = self._stale = self._was_cut = True

    def record(self) -> dict[str, Any]:
        """Return the record as plain JSON, with these keys:

        ``chips``: the citations, ordered by their place in the answer (``_joined``). ``ink``: the source of each
        letter, such as the draft model (see ``provenance``).

        ``missing``: names and numbers of the answer that occur nowhere in the book, and nouns and names of the
        question that the book never uses. The key is present only if there are such words, or if the answer makes
        claims and the book supports none of them. In the second case the list may be empty, and the page says that no
        passage says this.

        ``assumed``: words of the question's premise that no passage has together with its other words, as "cancelled"
        in "Why was the survey cancelled?". Left out if a passage supports the answer. ``assumed_at``: the nearest
        passage, as in a citation, with ``denied`` if it denies what the question assumes.

        ``unnamed``: the names of the question, if none of them stands near a cited passage. Left out if one does.

        ``read``: the number of leading pages that the answer is based on, in words: "76 pages and 4 sections". Left
        out if the answer is based on all pages.
        """
        self._look_up()
        return self.sketch()

    def sketch(self) -> dict[str, Any]:
        """The same as ``record``, but with the citations of the most recent look-up. The answer's new text is not
        looked up, which would take too long for every event of a growing answer.
        """
        document = self._index.document
        record = {"v": VERSION, "unit": document.unit, "ink": self.provenance(), "chips": self._chips}
        if self._pages_read < len(document.pages):
            record["read"] = document.extent(self._pages_read)
        kinds = {chip["kind"] for chip in self._chips}
        bare = "absent" in kinds and not kinds & {"quoted", "verbatim", "says", "near"}
        missing = [*(self._support.unmentioned("says" in kinds) if self._support and kinds else ()), *self._missing]
        each = {word.casefold(): word for word in missing}
        record |= {"missing": list(each.values())} if missing or bare else {}
        # a passage that supports the answer answers the question, whatever words it has for what the question assumes
        says = kinds & {"quoted", "verbatim", "says"}
        if self._support and self._done and (unnamed := self._support.unnamed(self._marked())):
            record["unnamed"] = list(unnamed)
        return record | (self._assumed(missing) if not says and (self._chips or self._done) else {})

    def _marked(self) -> list[PageRange]:
        """The places of all citations except those that the model only attended to, in a book of one document."""
        if self._index.document.members:
            return []
        pages = {page.number: at for at, page in enumerate(self._index.document.pages)}
        marks = [mark for chip in self._chips if chip["kind"] != "drew" for mark in chip.get("marks", ())]
        return [PageRange(pages[number], start, end) for number, start, end in marks if number in pages]

    def _assumed(self, missing: Sequence[str]) -> dict[str, Any]:
        """What the question takes for granted and no passage says, apart from ``missing`` words."""
        found = self._support.premise() if self._support else None
        words = [word for word in found[0].words if word not in missing] if found else []
        if found is None or not words:
            return {}
        premise, passage = found
        if passage is None:
            return {"assumed": words}
        spans = tuple(PageSpan(part.page, part.start, part.end) for part in passage.parts)
        place = placed(self._index.document, spans)
        return {"assumed": words, "assumed_at": place | ({"denied": True} if premise.is_denied else {})}

    def provenance(self) -> str:
        """The sources of the answer's letters, as runs: "D12T3" means that twelve letters come from the draft model,
        then three from the target model.

        Only letters are counted, because formatting on the web page may remove or change other characters.
        """
        return "".join(f"{writer}{count}" for writer, count in self._runs if count)

    def _look_up(self) -> None:
        if self._stale:
            self._stale = False
            self._chips = _joined(sorted(self._cite(), key=lambda chip: chip["at"]), self._text)

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
        whole = sentences(self._text)
        for quotation in quotations(self._text):
            if not (quotation.closed or self._done):
                continue
            found = self._check(self._text[quotation.inner.start : quotation.inner.end], quotation.whole)
            if found is not None:
                taken.append(self._around(quotation.whole, whole))
                yield self._of_a_quotation(found, quotation.whole, taken[-1])
        self._missing = []
        # ``said``: the pages that the previous sentence attended to
        left, said = MOST_ATTENDED, frozenset[tuple[str | None, int]]()
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

    def _around(self, where: Span, sentences: Sequence[Span]) -> Span:
        """The sentences of the answer that a quotation is in. A sentence that goes on behind it belongs to them:
        "Where?" asked Tom.
        """
        inside = [one for one in sentences if one.touches(where)]
        if not inside:
            return where
        behind = next((one for one in sentences if one.start >= inside[-1].end), None)
        if behind is not None and where.end >= inside[-1].end and self._text[behind.start].islower():
            inside.append(behind)
        return Span(inside[0].start, inside[-1].end)

    def _of_a_quotation(self, found: QuotationCheck, where: Span, around: Span) -> dict[str, Any]:
        """The citation of a quotation. If the book has it, but says that somebody else said it, its page is near."""
        if not found.verified:
            return self._quoted("missing", found, where)
        sentence = self._text[around.start : around.end]
        start, end = where.start - around.start, where.end - around.start
        others = not_the_speaker(sentence, start, end, *self._in_book(found))
        if others:
            return self._quoted("near", found, where) | {"lacks": list(others)}
        return self._quoted("quoted", found, where)

    def _in_book(self, found: QuotationCheck) -> tuple[str, int, int]:
        """The text of the pages that have a quotation, and the quotation's first and last character in it."""
        first, last = found.spans[0], found.spans[-1]
        texts = [page.text for page in self._index.document.pages[first.page : last.page + 1]]
        return "\n".join(texts), first.start, sum(len(text) + 1 for text in texts[:-1]) + last.end

    def _not_the_speaker(self, sentence: str) -> tuple[str, ...]:
        """The words of a sentence that answers who said something, if the book has another speaker there."""
        question = self._support.question if self._support else ""
        if not asks_who_said(question):
            return ()
        for quotation in quotations(question):
            found = self._check(question[quotation.inner.start : quotation.inner.end], Span(0, 0))
            if found is not None and found.verified:
                return not_said_by(words_for_a_speaker(sentence), *self._in_book(found))
        return ()

    def _unquoted(self, sentence: Span) -> Iterator[dict[str, Any]]:
        passage = self._text[sentence.start : sentence.end]
        if len(words(passage)) >= FEWEST_VERBATIM:
            found = self._check(passage, sentence)
            if found is not None and found.verified and all(span.page < self._pages_read for span in found.spans):
                yield self._quoted("verbatim", found, sentence)
                return
        clauses = self._support.clauses(passage) if self._support else []
        if len(clauses) > 1:
            for start, end in clauses:
                yield from self._unquoted(Span(sentence.start + start, sentence.start + len(passage[:end].rstrip())))
            return
        evidence = self._support and self._support.find(
            passage, self._scores(sentence), self._done, self._form(sentence), self._above(sentence)
        )
        if evidence and evidence.level == "says so" and (others := self._not_the_speaker(passage)):
            evidence = replace(evidence, level="near", lacks=others)
        if evidence and (evidence.level or not evidence.claims):
            yield from self._rests_on(evidence, sentence)
            return
        for page, times in attended_pages(self._scores(sentence), self._baseline):
            yield self._attended(page, times, sentence, passage)

    def _form(self, sentence: Span) -> Form:
        """Whether a sentence of the answer is a heading or cut. A line without a full stop above other text is a
        heading, unless it is an item of a list.
        """
        text = self._text[sentence.start : sentence.end]
        if is_ended(text):
            return "sentence"
        if sentence.end >= len(self._text.rstrip()):
            return "cut" if self._was_cut else "sentence"
        line = self._text[self._text.rfind("\n", 0, sentence.start) + 1 : sentence.end]
        alone = not self._text[sentence.end :].partition("\n")[0].strip()
        return "heading" if alone and _HEADING.fullmatch(line) and len(words(text)) <= _LONGEST_HEADING else "sentence"

    def _above(self, sentence: Span) -> str:
        """Return the last line above a list of which the sentence is an item; "" if it is no item."""
        lines = self._text[: sentence.end].split("\n")
        at = self._text.count("\n", 0, sentence.start)
        if not _ITEM.match(lines[at]):
            return ""
        return next((line for line in reversed(lines[:at]) if line.strip() and not _ITEM.match(line)), "")

    def _check(self, passage: str, where: Span) -> QuotationCheck | None:
        """Look up a passage of the answer in the book. While the answer grows, each passage is looked up only once."""
        if self._done or passage not in self._checked:
            self._checked[passage] = check_quotation(self._index, passage, self._scores(where))
        return self._checked[passage]

    def _scores(self, where: Span) -> list[float]:
        """The mean attention to each page while the characters of ``where`` were generated."""
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
            chip |= placed(self._index.document, found.spans)
        return chip

    def _rests_on(self, evidence: Evidence, where: Span) -> Iterator[dict[str, Any]]:
        chip: dict[str, Any] = {"kind": _KINDS.get(evidence.level), "at": where.end, "from": where.start}
        if evidence.passages:
            spans = (PageSpan(part.page, part.start, part.end) for found in evidence.passages for part in found.parts)
            lacks = {"lacks": list(evidence.lacks)} if evidence.lacks else {}
            yield chip | placed(self._index.document, tuple(spans)) | lacks
            return
        self._missing += evidence.missing
        if evidence.level:
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
        return chip | placed(self._index.document, (PageSpan(page, *self._near[page, sentence]),))


def _joined(chips: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Mark each citation that the next one stands for (``with_next``), because both sentences follow each other on a
    line of the answer and are supported by the same pages.

    Args:
        chips: in the order of the answer.
    """
    for chip, after in pairwise(chips):
        between = text[chip["at"] : after["from"]]
        same = chip["kind"] == after["kind"] == "says" and (chip["pages"], chip.get("of")) == (
            after["pages"],
            after.get("of"),
        )
        if same and not between.strip() and "\n" not in between:
            chip["with_next"] = True
    return chips


def placed(document: Document, spans: Sequence[PageSpan]) -> dict[str, Any]:
    """List pages with number, printed label, the characters to mark and a short excerpt.

    With several documents, each place names its document and the page number within it, so that the record stays
    valid when other documents are added or removed.
    """
    first = spans[0]
    member = document.member_at(document.pages[first.page].number)
    before = member.page_offset if member else 0
    pages: dict[int, Page] = {span.page: document.pages[span.page] for span in spans}
    pages = {at: page for at, page in pages.items() if document.member_at(page.number) is member}
    around = excerpt(pages[first.page].text, first.start, first.end)
    found: dict[str, Any] = {
        "pages": [
            {"number": page.number - before, "label": page.label, **_recognised(page, spans, at)}
            for at, page in pages.items()
        ],
        "marks": [
            [pages[span.page].number - before, span.start, span.end]
            for span in spans
            if span.end > span.start and span.page in pages
        ],
        "extract": asdict(around),
    }
    if member is None:
        return found
    found |= {"of": member.sha256, "document": member.title, "unit": member.unit}
    called = short_title(member.title, [other.title for other in document.members])
    return found if called == short_title(member.title) else found | {"called": called}


_LEVELS = {"quoted": "says so", "verbatim": "says so"} | {kind: level for level, kind in _KINDS.items()}


def _recognised(page: Page, spans: Sequence[PageSpan], at: int) -> dict[str, bool]:
    """Return {"recognised": True} if a page's words, or those of a span on it, were recognised in a picture, {"unread":
    True} if the picture that takes most of the page was not read, and {} otherwise. ``at`` is the page's index.
    """
    if any(span.page == at and span.end > span.start and picture_at(page.text, span.start) for span in spans):
        return {"recognised": True}
    known = {"recognised": "recognised", "figure": "unread", "unread": "unread"}.get(page.picture)
    return {known: True} if known else {}


def evidence(record: Mapping[str, Any], answer: str) -> list[dict[str, Any]]:
    """The evidence for each sentence of an answer, as other programs get it. ``record`` is the answer's. Each
    entry has:

    - ``sentence``: for a quotation, the sentence that contains it; of a table, only what is in the cell
    - ``level``: "says so", "near" or "not found"
    - ``pages``: each with its ``number`` from 1 and its printed ``label``
    - ``passage``: the text of the book; for a quotation, the quoted text
    - ``missing``: names and numbers that occur nowhere in the book
    - ``document``: the title of the document that has the pages; only in a book of several documents

    The list is in the order of the answer. Quotations that are not in the book, and pages that the model only attended
    to, are left out.
    """
    spans, found = sentences(answer), []
    for chip in record.get("chips", ()):
        if chip["kind"] not in _LEVELS:
            continue
        start, end = next(
            ((s.start, s.end) for s in spans if s.start <= chip["from"] < s.end), (chip["from"], chip["at"])
        )
        if answer.startswith("|", line := answer.rfind("\n", 0, chip["from"]) + 1):
            start = max(start, line, answer.rfind("| ", line, chip["from"]) + 2)
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
    """Divide ``characters`` among ``tokens`` as evenly as possible. Used if the engine did not report the lengths of
    the tokens.
    """
    return [(number + 1) * characters // tokens - number * characters // tokens for number in range(tokens)]
