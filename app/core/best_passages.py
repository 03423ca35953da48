"""Finds the passages of a book that fit a question best, by words and their vectors: before a model has read anything,
or without a model.

    best_passages(index.words, "How far is Orre?")     two to four passages, the best first
    found = records(index.words, "How far is Orre?")   the same as plain JSON, stored with the exchange
    heading(len(found), "How far is Orre?")            "3 passages that fit your question best"
    as_evidence(found)                                 the same for other programs

A passage is a stretch of consecutive sentences or rows of a table. It is ranked by the rarity of the question's words
that it has; what the question quotes counts as one word. Words just before and after it count less, because a passage
may refer to them by "he" or "it". Words that stand together in one sentence count more, and so does a number if the
question asks for one. In an English book, a word that is related to a word of the question ("malaria" to "disease")
counts a little for it, and so does what the whole passage is about (``app.trust.meaning``). If a question names a page
or a chapter, only passages of these pages are ranked. A question that compares documents gets a passage of each. A
question about the whole text gets its beginning and passages that are typical of it.

This module has no side effects. Measured: ``assets/evaluation/README.md``.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.core.format import counted, page_of
from app.core.parts import reach_of
from app.language.asked_figures import asked_kind, asks_for_a_figure
from app.language.quoting import quoted_words
from app.language.tokens import tokenize
from app.language.words import values_in
from app.trust.book_words import LONGEST as MOST_ASKED
from app.trust.book_words import NAME, BookWords, Passage, Term
from app.trust.citations import placed
from app.trust.meaning import Meaning
from app.trust.quoted import PageSpan
from engine.document import Document, Page
from engine.languages import language_of_question
from engine.passages import OFTEN, asks_about_several, asks_for_whole

MOST = 4
"""Maximum number of passages."""
FEWEST = 2
"""Number of passages that need no more than ``FAINT`` of the best score."""
LONGEST = 500
"""Maximum characters of a passage. With 450 characters, four passages had the fact for 84 % of the 148 questions of
``assets/starter`` and ``assets/evaluation``; with 500 and with 600 for 89 %.
"""
CLEAR = 0.5
"""Minimum score of the third and the fourth passage, as a share of the best score. With 0.5 there are 2.8 passages on
average instead of 3.3, and they have the fact for 88 instead of 89 %.
"""
MOST_READ = 10
"""Maximum number of passages from which a model answers at once."""
FAINT = 0.3
"""Minimum score of any passage, as a share of the best score."""
AROUND = 3
"""Number of sentences before and after a passage whose words count too."""
BESIDE = 0.6
"""Weight of a word that is only around a passage. A word in the passage has the weight 1. Of the 148 questions, 136 get
their fact, and 133 with 2 sentences and 0.3.
"""
FIGURE = 0.15
"""Share by which the score of a passage with a number grows, if the question asks for a number or a date."""
OF_THE_KIND = 0.8
"""Share by which the score of a passage grows that has what the question asks for: a date, a sum of money, a
temperature, a percentage, a length of time, a length or an age (``app.language.asked_figures``).
"""
TOGETHER = 0.5
"""Weight of the words that the passage's best sentence has, in addition to their weight in the passage."""
RELATED = 0.5
"""Weight of the nearest word that is related to a word of the question, relative to this word's own."""
MEANT = 0.4
"""Weight of a passage that has the question's direction, relative to that of all of the question's words."""
_MOST_TITLES = 40  # maximum number of chapters that are named to a model
_CANDIDATES = 200  # maximum number of sentences, the best alone, around which passages are formed
_MEANT_CANDIDATES = 100  # maximum number of sentences whose direction is nearest to the question's, for the same


def best_passages(words: BookWords, question: str) -> list[Passage]:
    """Return up to ``MOST`` passages that fit a question, the best first. Those of a question about the whole text are
    in the order of the book. Empty if the book has no word of the question.
    """
    return [words.stretch(places) for places in _shown(words, question)]


def _shown(words: BookWords, question: str) -> list[range]:
    return _chosen(words, question, MOST, CLEAR, by_related_words=False)


def _chosen(words: BookWords, question: str, most: int, clear: float, *, by_related_words: bool) -> list[range]:
    """Choose up to ``most`` stretches for a question.

    Args:
        clear: minimum score, as a share of the best score.
        by_related_words: whether words that are related to the question's suffice, if the book has none of these.
    """
    document, question = words.document, question[:MOST_ASKED]
    if not words.places:
        return []
    if asks_for_whole(question):
        return _throughout(words, most)
    _, pages = reach_of(question, document)
    numbers = {at for at, page in enumerate(document.pages) if page.number in pages}
    ranking = _Ranking(words, question, numbers)
    ranked = ranking.best(most, clear) if ranking.has_own_words or by_related_words else []
    if numbers and not ranked:
        ranked = _beginnings(words, numbers, most)
    if asks_about_several(question) and len(document.members) > 1:
        ranked = _of_each_document(words, ranked)
    return ranked


@dataclass(frozen=True)
class _Asked:
    """A word of a question, or words that the question quotes. ``weight``: 0 for a word that the book lacks.
    ``weights``: the weight of each sentence that has it, or a word that is related to it.
    """

    key: str
    weight: float
    weights: Mapping[int, float]


def _asked(words: BookWords, meaning: Meaning | None, terms: Iterable[Term], question: str) -> list[_Asked]:
    related = [_with_related(words, meaning, term) for term in terms]
    quoted = ((text, words.quoting(text)) for text in quoted_words(question) if " " in text)
    weighted = ((text, places, NAME * words.rarity(len(places))) for text, places in quoted)
    exact = [_Asked(f'"{text}"', weight, dict.fromkeys(places, weight)) for text, places, weight in weighted]
    return [one for one in (*related, *exact) if one.weights]


def _with_related(words: BookWords, meaning: Meaning | None, term: Term) -> _Asked:
    places, weight = words.having(term.key), words.weight(term)
    weights: dict[int, float] = {}
    for related in meaning.related(term.whole) if meaning and term.kind == "word" else ():
        if related.key != term.key:
            others = words.having(related.key)
            its = RELATED * related.share * min(weight, words.rarity(len(others)))
            weights |= {place: max(its, weights.get(place, 0.0)) for place in others}
    return _Asked(term.key, weight if places else 0.0, weights | dict.fromkeys(places, weight))


class _Ranking:
    """Ranks stretches of a book by what a question asks for. ``has_own_words``: whether the book has a word of it.

    Args:
        pages: indexes of the only pages that count; empty for all.
    """

    def __init__(self, words: BookWords, question: str, pages: Collection[int]) -> None:
        self._words = words
        # a word of another language may be one of English too: German "Gift" is a poison
        self._meaning = words.meaning if language_of_question(question) in (None, "en") else None
        terms = words.terms(question)
        asked = _asked(words, self._meaning, terms, question)
        self._asked = {one.key for one in asked}
        self._figure, self._kind = asks_for_a_figure(question), asked_kind(question)
        self._found: dict[int, dict[str, float]] = {}  # what each sentence has, and its weight
        for one in asked:
            for place, weight in one.weights.items():
                if not pages or words.page_of(place) in pages:
                    self._found.setdefault(place, {})[one.key] = weight
        self._pages = pages
        meant = [(term.whole, words.rarity(words.count(term.key))) for term in terms]
        self._direction = self._meaning.of_words(meant) if self._meaning else None
        weight = sum(one.weight for one in asked)
        self.has_own_words = weight > 0
        self._meant = MEANT * (weight or 1.0)

    def best(self, most: int, clear: float) -> list[range]:
        """Choose up to ``most`` stretches that do not overlap. ``clear``: minimum score, as a share of the best one."""
        scored = sorted((-self._score(start), start) for start in self._starts())
        chosen: list[range] = []
        for score, start in scored:
            places = self._words.places_from(start, LONGEST)
            least = clear if len(chosen) >= FEWEST else FAINT
            if len(chosen) == most or score > least * scored[0][0]:
                break
            if not any(places.start < other.stop and other.start < places.stop for other in chosen):
                chosen.append(places)
        return chosen

    def _starts(self) -> set[int]:
        """The sentences with which stretches begin that are scored. None if no sentence has a word of the question,
        or a related one.
        """
        words = self._words
        alone = heapq.nlargest(_CANDIDATES, self._found, key=lambda place: (self._alone(place), -place))
        if alone and self._meaning and self._direction is not None and not self._pages:
            alone += self._meaning.nearest(self._direction, _MEANT_CANDIDATES)
        return {place - 1 for place in alone if place and place in words.places_from(place - 1, LONGEST)}.union(alone)

    def _score(self, start: int) -> float:
        """Score the stretch that begins at a sentence."""
        words, places = self._words, self._words.places_from(start, LONGEST)
        within, around = self._have(places), self._have(range(start - AROUND, places.stop + AROUND))
        beside = sum(weight - within.get(key, 0.0) for key, weight in around.items())
        score = sum(within.values()) + BESIDE * beside + TOGETHER * max(map(self._alone, places))
        if self._meaning and self._direction is not None:
            score += self._meant * self._meaning.likeness(self._direction, places)
        has_figure = self._figure and any(
            key.startswith("#") and key not in self._asked for place in places for key in words.places[place].keys
        )
        is_of_the_kind = self._kind is not None and self._kind.search(words.text_of(places)) is not None
        return score * (1 + FIGURE * has_figure) * (1 + OF_THE_KIND * is_of_the_kind)

    def _alone(self, place: int) -> float:
        return sum(self._found.get(place, {}).values())

    def _have(self, places: range) -> dict[str, float]:
        """The largest weight of each word of the question in these sentences."""
        largest: dict[str, float] = {}
        for place in places:
            for key, weight in self._found.get(place, {}).items():
                largest[key] = max(weight, largest.get(key, 0.0))
        return largest


def _beginnings(words: BookWords, pages: Collection[int], most: int) -> list[range]:
    """The beginning of each of the pages with these indexes, at most ``most``."""
    first: dict[int, int] = {}
    for place in range(len(words.places)):
        if (page := words.page_of(place)) in pages:
            first.setdefault(page, place)
    return [words.places_from(place, LONGEST) for place in list(first.values())[:most]]


def _of_each_document(words: BookWords, ranked: list[range]) -> list[range]:
    """The best stretch of each of several documents first, then the others."""
    seen: set[str] = set()
    firsts: list[range] = []
    for places in ranked:
        member = words.document.member_at(words.document.pages[words.page_of(places.start)].number)
        if member is not None and member.sha256 not in seen:
            seen.add(member.sha256)
            firsts.append(places)
    return firsts + [places for places in ranked if places not in firsts]


def _throughout(words: BookWords, most: int) -> list[range]:
    """The beginning of a book and, from each of the ``most`` - 1 equal parts of the rest, the stretch around the most
    typical sentence: the one with most words that the book often has, relative to its length.
    """
    if not words.places:
        return []
    first = words.places_from(0, LONGEST)
    size, count = len(words.places), most - 1
    borders = [first.stop + (size - first.stop) * part // count for part in range(count + 1)]
    parts = [range(borders[part], borders[part + 1]) for part in range(count)]
    best = (max(part, key=lambda place: _typical(words, place)) for part in parts if part)
    return [first, *(words.places_from(place, LONGEST) for place in best)]


def _typical(words: BookWords, place: int) -> float:
    keys = words.places[place].keys
    return sum(min(words.count(key), OFTEN) for key in keys) / (OFTEN + len(keys))


def excerpt(words: BookWords, question: str) -> Document:
    """Make a short text of the passages from which a question can be answered at once, about 1,500 tokens. They are in
    the order of the book, each with the name of its page. A question about the whole text gets the table of contents
    too. A question without a word of the book, or a related one, gets passages from all of the book.
    """
    document = words.document
    chosen = _chosen(words, question, MOST_READ, FAINT, by_related_words=True) or _throughout(words, MOST_READ)
    stretches = sorted(chosen, key=lambda places: places.start)
    pages = [words.page_of(places.start) for places in stretches]
    texts = [words.text_of(places) for places in stretches]
    named = [
        f"[{page_of(document, document.pages[at], long=True)}]\n{text}" for at, text in zip(pages, texts, strict=True)
    ]
    if asks_for_whole(question[:MOST_ASKED]) and document.outline:
        named.insert(0, "\n".join(item.title for item in document.outline[:_MOST_TITLES]))
    read = tuple(Page(number, str(number), text) for number, text in enumerate(named, start=1))
    return Document(document.title, document.author, read, document.kind, "", "section")


def records(words: BookWords, question: str) -> list[dict[str, Any]]:
    """Return the passages that fit a question best as plain JSON. Each has the place and the marks of a citation
    (``app.trust.citations``), its ``text``, ``words``: the ranges [start, end) of characters in the text that are words
    of the question (none if it asks about the whole text), and ``lines``: the characters with which headings and
    paragraphs begin, but for the first.
    """
    asked = set() if asks_for_whole(question[:MOST_ASKED]) else {term.key for term in words.terms(question)}
    passages = []
    for places in _shown(words, question):
        passage = words.stretch(places)
        spans = [PageSpan(part.page, part.start, part.end) for part in passage.parts]
        place = {"kind": "passage", "at": 0, "from": 0, "unit": words.document.unit, **placed(words.document, spans)}
        text, lines = passage.text, _paragraphs(words, places)
        passages.append(place | {"text": text, "words": _asked_words(words, text, asked), "lines": lines})
    return passages


def heading(count: int, question: str) -> str:
    """What stands above ``count`` passages for a question."""
    if asks_for_whole(question[:MOST_ASKED]):
        return f"{counted(count, 'passage')} from all of the text"
    return f"{counted(count, 'passage')} that {'fits' if count == 1 else 'fit'} your question best"


def _paragraphs(words: BookWords, places: range) -> list[int]:
    """Where paragraphs begin in the text of a stretch, but for the first. One that begins with a small letter is the
    rest of a sentence on the next page.
    """
    at, begins = 0, []
    for paragraph in words.text_of(places).split("\n\n"):
        if line := " ".join(paragraph.split()):
            if at and not line[0].islower():
                begins.append(at)
            at += len(line) + 1
    return begins


def as_evidence(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the ``records`` of passages as other programs get them: ``passage``, ``pages`` with ``number`` and
    ``label`` and, in a book of several documents, ``document``.
    """
    kept = [{"passage": one["text"], "pages": one["pages"]} for one in found]
    return [
        one | {"document": of["document"]} if "document" in of else one for one, of in zip(kept, found, strict=True)
    ]


def _asked_words(words: BookWords, text: str, asked: Collection[str]) -> list[list[int]]:
    spans = []
    for raw, at in tokenize(text):
        keys = {key for key, _ in words.words_of(raw)}.union(values_in([(raw, 0)]))
        if keys & set(asked):
            spans.append([at, at + len(raw)])
    return spans
