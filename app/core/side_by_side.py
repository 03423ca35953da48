"""Puts a question that compares the open documents to each of them alone, and shows the answers side by side.

    if (table := SideBySide.of(document, asked, card)) is not None:
        for _ in table.ask(engine, asked, cancel): ...      yields whenever the table has grown
        table.written     its beginning that no longer changes, for a stream
        table.answer      "| | Lease A | Lease B |\\n|---|---|---|\\n| **rent** | It is 890 euros. | It is 980 euros. |"
        table.chips       the evidence of each cell, as ``Citations.record`` has it

Asked about all documents at once, a small model mixes them up or leaves some out. Each document answers from the
passages that fit best, in a context of its own (``engine.aside``), so the KV of the open documents stays as it is. A
question that names several points ("Compare the rent and the deposit") is asked point by point.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

from app.core import best_passages
from app.core.abilities import Abilities
from app.core.part_run import shifted
from app.core.question import Ask
from app.core.versions import plain, subject
from app.trust.book_words import BookWords
from app.trust.citations import CitationFinder
from engine import HANDOVER_S, EngineLike
from engine.document import Document, Page
from engine.events import AnswerDone, Event, Figures, StopReason, TextDelta
from engine.languages import language_of_question

SIDE_BY_SIDE = "side_by_side"
"""How an answer of this module is called in JSON."""
MOST = 12
"""Maximum documents that are asked one by one. Beyond this, the question is asked of all at once."""
_MOST_POINTS = 6
"""Maximum points of a question. A question that names more is one point."""
_MOST_WORDS = 6
"""Maximum words of a point."""
_TOKENS = 96
"""Maximum tokens of a cell."""
_SHORT = best_passages.MOST_READ * best_passages.LONGEST
"""Maximum characters of a document that is given whole to a question without points, because the passages of a longer
one are as long, and a lease names its parties without the word "parties".
"""
_BEGINNING = 2 * best_passages.LONGEST
"""Characters of the beginning of a longer document that are given with its passages to a question without points: who
wrote it and how it begins stand there, in other words than those of the question.
"""
NOTHING = "–"
"""The cell of a document that has no word of the question."""
_DOCUMENT = (
    r"(?:agreements?|articles?|books?|contracts?|documents?|files?|leases?|letters?|offers?|papers?|policies|policy"
    r"|reports?|texts?|versions?|angebote?n?|berichte?n?|briefe?n?|bücher\w*|dokumente?n?|texte?n?|\w*verträgen?"
    r"|baux|contrats?|documents|lettres?|livres?|offres?|rapports?|textes"
    r"|artículos?|cartas?|contratos?|documentos?|informes?|libros?|ofertas?|textos?)"
)
_COUNTING = r"(?:how many|wie ?vielen?|combien de|cuánt[oa]s) (?:of (?:the |these )?|der |dieser )?"
# behind what is counted within a document: "how many letters did she write"
_WITHIN = (
    r" (?:(?:did|do)(?! ?n[o']t)|does|had|has|was|hat|hatte|ist|war|wird|wurde|kann|soll|\w+ (?:er|ich|man|sie|wir)"
    r"|(?:are|can|could|have|may|must|should|were|will|would) (?:he|i|it|she|there|they|we|you))\b"
)
# a question that compares documents, asks which or how many of them, or asks each of them
_COMPARES = re.compile(
    r"\b(?:differ\w*|compar\w*|contrast\w*|versus|vs|unterschied\w*|unterscheid\w*|vergleich\w*|diff[èé]r\w*"
    r"|difieren?|diferen\w*|both|beide[nrm]?|ambos|ambas|les deux|which of|welche[mnrs]? (?:der|von)"
    rf"|(?:which|welche[mnrs]?|quel(?:le)?s?|qué|each|every|chaque|cada|all(?: the)?|two|three|jede[mnrs]?|alle[nr]?"
    rf"|zwei|drei) (?:of the )?{_DOCUMENT}"
    rf"|(?:in|bei|dans|en) {_COUNTING}{_DOCUMENT}|{_COUNTING}{_DOCUMENT}(?!{_WITHIN}))\b",
    re.IGNORECASE,
)
# what is to be compared: the points behind "compare" or "differ in"
_POINTS = re.compile(
    r"\b(?:compare|contrast|vergleiche?n?|comparez?|compara)\b(?: (?:me|mir))? (?P<first>.+)"
    r"|\b(?:differ|differences?|unterscheiden|unterschiede?|diffèrent|différences?|difieren|diferencias?)\b.*?"
    r" (?:in|about|regarding|concerning|as to|bei|hinsichtlich|bezüglich|sur|pour|dans|en) (?P<last>.+)",
    re.IGNORECASE,
)
# the end of a question that names the documents: "of the two leases"
_OF_THE_DOCUMENTS = re.compile(
    rf"[\s,](?:of|in|between|from|across|for|von|in|bei|zwischen|aus|der|de|des|dans|entre|en)"
    rf"(?: (?:the|these|those|both|all|two|three|den|der|beiden|allen?|diesen|zwei|drei|les|ces|deux|trois|los|las))*"
    rf" {_DOCUMENT}\W*$",
    re.IGNORECASE,
)
_OF_EACH = re.compile(rf"\b(?:each|every|jede[mnrs]?|chaque|cada) (?:of the |der )?{_DOCUMENT}\b", re.IGNORECASE)
# what is said of the documents that are counted: "have a deposit over 1,500"
_COUNTED = re.compile(rf"\b{_COUNTING}{_DOCUMENT} (?P<what>[^?]+)", re.IGNORECASE)
# a number with what compares it: "over 1,500"
_FIGURE = re.compile(
    r"(?:\b(?:over|above|under|below|beyond|exceeding|at (?:least|most)|\w+er than|(?:more|less) than|über|unter|ab|bis"
    r"|mindestens|höchstens|mehr als|\w+er als|(?:plus|moins) de|(?:más|menos) de) )?\d[\d.,]*",
    re.IGNORECASE,
)
_BETWEEN_POINTS = re.compile(r",? (?:and|und|et|y|&) |, |; ")
_ARTICLE = re.compile(r"(?:the|their|its|der|die|das|den|dem|le|la|les|el|los|las) ", re.IGNORECASE)
_SAID = {
    "en": ("What does it say about {}?", "Answer for this document alone, in one sentence."),
    "de": ("Was steht darin über {}?", "Antworte nur für dieses Dokument, in einem Satz."),
    "fr": ("Que dit-il sur {} ?", "Réponds seulement pour ce document, en une phrase."),
    "es": ("¿Qué dice sobre {}?", "Responde solo para este documento, en una frase."),
}
"""For each language: the question for one point, and what is added to a question that is put to one document."""


@dataclass
class SideBySide:
    """The answers of several documents to one question, a column for each and a row for each point.

    ``document``: the open documents. ``points``: what the question compares; its only point is "" if it is put to each
    document as it is. ``figures``: the tokens of all answers. ``is_cut``: whether a cell ended at its maximum.
    """

    document: Document
    question: str
    points: tuple[str, ...]
    _cells: dict[tuple[int, int], str] = field(default_factory=dict)
    _found: dict[tuple[int, int], list[dict[str, Any]]] = field(default_factory=dict)
    stopped: StopReason = StopReason.END
    is_cut: bool = False
    figures: Figures = field(default_factory=partial(Figures.none, SIDE_BY_SIDE))

    @classmethod
    def of(cls, document: Document, asked: Ask, card: Abilities) -> SideBySide | None:
        """Return an empty table; None if the question does not compare the documents, if these are too many, if it is
        to be answered from all pages or in parts, or if the model has limits.

        Args:
            card: the card of the model that is to answer.
        """
        question = asked.text
        if card.has_limits or asked.whole or asked.parts:
            return None
        if not 1 < len(document.members) <= MOST or not _COMPARES.search(question):
            return None
        compares = subject(question, document) or _OF_EACH.search(question)
        return cls(document, question, points_of(question)) if compares else None

    @property
    def answer(self) -> str:
        """The table in Markdown."""
        return self._told()[0]

    @property
    def written(self) -> str:
        """The beginning of the table up to the first cell that has not been answered."""
        text, _, settled = self._told()
        return text[:settled]

    @property
    def lines(self) -> list[str]:
        """The answers by document, for a terminal, in which a table would be too wide."""
        lines = list[str]()
        for column, member in enumerate(self.document.members):
            lines.append(f"{member.title}:")
            for row, point in enumerate(self.points):
                said = self._cells.get((row, column), "…").replace("\\|", "|")
                lines.append(f"  {f'{point}: ' if point else ''}{said}")
        return lines

    @property
    def chips(self) -> list[dict[str, Any]]:
        """The evidence of the cells that have been answered, as in ``Citations.record``."""
        return self._told()[1]

    def ask(self, engine: EngineLike, asked: Ask, cancel: threading.Event) -> Iterator[None]:
        """Ask each document each point. Yields whenever the table has grown. Once ``cancel`` is set, the table ends
        with ``stopped``.

        Raises:
            TrifoldError: the engine could not answer.
        """
        about, added = _SAID.get(language_of_question(self.question) or "en", _SAID["en"])
        sampling = replace(asked.sampling, max_tokens=min(asked.sampling.max_tokens, _TOKENS))
        asked = replace(asked, history=(), chat="", begun="", thought="", sampling=sampling, wait=HANDOVER_S)
        opened = _opened(self.document)
        for (row, point), column in product(enumerate(self.points), range(len(self.document.members))):
            part, finder = opened[column]
            words = finder.prepare(part).result().words
            question = about.format(point) if point else _asked_alone(self.question, about)
            excerpt = best_passages.excerpt(words, point) if point else _with_beginning(part, words, question)
            if excerpt.pages and not cancel.is_set():
                request = engine.ask(replace(asked, text=f"{question} {added}", excerpt=excerpt), cancel=cancel)
                yield from self._follow(request, (row, column))
            if cancel.is_set():
                self.stopped = StopReason.CANCELLED
                return
            said = self._cells.setdefault((row, column), NOTHING)
            self._found[row, column] = _evidence(part, finder, question, said)
            yield

    def _follow(self, request: Iterable[Event], cell: tuple[int, int]) -> Iterator[None]:
        """Write a document's answer into its cell."""
        text = ""
        for event in request:
            if isinstance(event, TextDelta | AnswerDone):
                text = event.text if isinstance(event, AnswerDone) else text + event.text
                self._cells[cell] = " ".join(text.split()).replace("|", "\\|") or NOTHING
                if isinstance(event, AnswerDone):
                    self._count(event.figures)
                    self.is_cut = self.is_cut or event.stop_reason is StopReason.LENGTH
                yield

    def _count(self, of: Figures) -> None:
        """Add the tokens of one answer to those of the table."""
        names = ("prompt_tokens", "prefilled_tokens", "answer_tokens")
        self.figures = replace(
            self.figures, **{name: getattr(self.figures, name) + getattr(of, name) for name in names}
        )

    def _told(self) -> tuple[str, list[dict[str, Any]], int]:
        """The table, its citations, and the number of its characters that no longer change."""
        members, chips, settled = self.document.members, list[dict[str, Any]](), None
        pointed = self.points != ("",)  # without points there is no column for them
        text = f"{'| ' * pointed}| {' | '.join(plain(member.title) for member in members)} |"
        text += f"\n|{'---|' * (len(members) + pointed)}"
        for row, point in enumerate(self.points):
            text += f"\n| **{plain(point)}** |" if point else "\n|"
            for column in range(len(members)):
                text += " "
                if settled is None and (row, column) not in self._found:
                    settled = len(text)
                chips += shifted({"chips": self._found.get((row, column), [])}, len(text))["chips"]
                text += f"{self._cells.get((row, column), '…')} |"
        return text, chips, len(text) if settled is None else settled


def points_of(question: str) -> tuple[str, ...]:
    """The points that a question compares, without article: ("rent", "deposit"); ("",) if it names none."""
    match = _POINTS.search(question.strip())
    if match is None:
        return ("",)
    named = _OF_THE_DOCUMENTS.sub("", match["first"] or match["last"]).rstrip(" ,.?!")
    points = [_ARTICLE.sub("", point.strip(), count=1) for point in _BETWEEN_POINTS.split(named)]
    points = [point for point in dict.fromkeys(points) if point]
    fits = 0 < len(points) <= _MOST_POINTS and all(len(point.split()) <= _MOST_WORDS for point in points)
    return tuple(points) if fits else ("",)


def _asked_alone(question: str, about: str) -> str:
    """A question without points, as one document can answer it. It cannot count the others. A number is left out
    with what compares it, because a small model repeats both: of a deposit of 1,400 it said that it is over 1,500.
    """
    counted = _COUNTED.search(question)
    return question if counted is None else about.format(f"“{_FIGURE.sub('…', counted['what'])}”")


def _opened(document: Document) -> list[tuple[Document, CitationFinder]]:
    """Each of several documents by itself, with its own page numbers, and its citations."""
    own = {document.member_at(stretch.pages[0].number): stretch.pages for stretch in document.stretches}
    return [
        (
            Document(
                member.title,
                member.author,
                tuple(replace(page, number=page.number - member.page_offset) for page in own.get(member, ())),
                member.kind,
                member.sha256,
                member.unit,
            ),
            CitationFinder(),
        )
        for member in document.members
    ]


def _with_beginning(part: Document, words: BookWords, question: str) -> Document:
    """What is given of a document to a question without points: all of it if it is short."""
    if part.characters <= _SHORT:
        return part
    excerpt = best_passages.excerpt(words, question)
    texts = [f"[The beginning]\n{part.text[:_BEGINNING]}", *(page.text for page in excerpt.pages)]
    return replace(excerpt, pages=tuple(Page(number, str(number), text) for number, text in enumerate(texts, start=1)))


def _evidence(part: Document, finder: CitationFinder, question: str, cell: str) -> list[dict[str, Any]]:
    """The citations of a cell. Each names its document, as in a book of several documents. That no passage supports the
    cell is left out: a cell of one sentence, in the model's own words, is right too often.
    """
    citations = finder.begin(part, question, cell)
    citations.close()
    of = {"of": part.sha256, "document": part.title, "unit": part.unit}
    told = [chip for chip in citations.record()["chips"] if chip["kind"] != "absent" or chip["missing"]]
    return [{**chip, **(of if chip["pages"] else {})} for chip in told]
