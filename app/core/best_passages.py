"""Finds the passages of a book that fit a question best, by words alone: before a model has read anything, or without a
model.

    best_passages(index.words, "How far is Orre?")     two to four passages, the best first
    found = records(index.words, "How far is Orre?")   the same as plain JSON, stored with the exchange
    heading(len(found), "How far is Orre?")            "3 passages with words of your question"
    as_evidence(found)                                 the same for other programs

A passage is a stretch of consecutive sentences or rows of a table. It is ranked by the rarity of the question's words
that it has; what the question quotes counts as one word. Words just before and after it count less, because a passage
may refer to them by "he" or "it". Words that stand together in one sentence count more, and so does a number if the
question asks for one. If a question names a page or a chapter, only passages of these pages are ranked. A question that
compares documents gets a passage of each. A question about the whole text gets its beginning and passages that are
typical of it.

This module has no side effects. Measured: ``assets/evaluation/README.md``.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
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
from app.trust.book_words import NAME, BookWords, Passage
from app.trust.citations import placed
from app.trust.quoted import PageSpan
from engine.document import Document, Page
from engine.passages import OFTEN, asks_about_several, asks_for_whole

MOST = 4
"""Maximum number of passages."""
FEWEST = 2
"""Minimum number of passages, if the book has as many with a word of the question."""
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
"""Minimum score of such a passage, as a share of the best score."""
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
_MOST_TITLES = 40  # maximum number of chapters that are named to a model
_CANDIDATES = 200  # maximum number of sentences, the best alone, around which passages are formed


def best_passages(words: BookWords, question: str) -> list[Passage]:
    """Return up to ``MOST`` passages that fit a question, the best first. Those of a question about the whole text are
    in the order of the book. Empty if the book has no word of the question.
    """
    return [words.stretch(places) for places in _chosen(words, question, MOST, CLEAR)]


def _chosen(words: BookWords, question: str, most: int, clear: float) -> list[range]:
    """Choose up to ``most`` stretches for a question. ``clear``: minimum score, as a share of the best score."""
    document, question = words.document, question[:MOST_ASKED]
    if not words.places:
        return []
    if asks_for_whole(question):
        return _throughout(words, most)
    _, pages = reach_of(question, document)
    numbers = {at for at, page in enumerate(document.pages) if page.number in pages}
    figure, kind = asks_for_a_figure(question), asked_kind(question)
    ranked = _ranked(words, _asked(words, question), numbers, most, clear, figure=figure, kind=kind)
    if numbers and not ranked:
        ranked = _beginnings(words, numbers, most)
    if asks_about_several(question) and len(document.members) > 1:
        ranked = _of_each_document(words, ranked)
    return ranked


@dataclass(frozen=True)
class _Asked:
    """A word of a question that the book has, or words that the question quotes: the sentences that have it, and its
    weight. ``key``: of the word; of quoted words, the words in quotation marks.
    """

    key: str
    places: Sequence[int]
    weight: float


def _asked(words: BookWords, question: str) -> list[_Asked]:
    terms = [
        _Asked(term.key, places, words.weight(term)) for term in words.terms(question) if (places := words.having(term))
    ]
    quoted = ((text, words.quoting(text)) for text in quoted_words(question) if " " in text)
    return terms + [_Asked(f'"{text}"', places, NAME * words.rarity(len(places))) for text, places in quoted if places]


def _ranked(
    words: BookWords,
    asked: Sequence[_Asked],
    pages: Collection[int],
    most: int,
    clear: float,
    *,
    figure: bool,
    kind: re.Pattern[str] | None,
) -> list[range]:
    """Rank stretches by what is asked for.

    Args:
        pages: indexes of the only pages that count; empty for all.
        figure: whether the question asks for a number.
        kind: what the figure that it asks for looks like, if that is known.
    """
    weights = {one.key: one.weight for one in asked}
    keys: defaultdict[int, set[str]] = defaultdict(set)
    for one in asked:
        for place in one.places:
            if not pages or words.page_of(place) in pages:
                keys[place].add(one.key)
    alone = heapq.nlargest(_CANDIDATES, keys, key=lambda place: (_weight(keys[place], weights), -place))
    before = {place - 1 for place in alone if place and place in words.places_from(place - 1, LONGEST)}
    scored = sorted(
        (-_score(words, start, keys, weights, figure=figure, kind=kind), start) for start in before.union(alone)
    )
    chosen: list[range] = []
    for score, start in scored:
        places = words.places_from(start, LONGEST)
        if len(chosen) == most or (len(chosen) >= FEWEST and score > clear * scored[0][0]):
            break
        if not any(places.start < other.stop and other.start < places.stop for other in chosen):
            chosen.append(places)
    return chosen


def _score(
    words: BookWords,
    start: int,
    keys: Mapping[int, set[str]],
    weights: Mapping[str, float],
    *,
    figure: bool,
    kind: re.Pattern[str] | None,
) -> float:
    """Score the stretch that begins at the sentence ``start``. ``keys``: the question's words in each sentence."""
    places = words.places_from(start, LONGEST)
    within = _union(keys, places)
    around = _union(keys, range(start - AROUND, places.stop + AROUND)) - within
    best = max(_weight(keys.get(place, ()), weights) for place in places)
    score = _weight(within, weights) + BESIDE * _weight(around, weights) + TOGETHER * best
    has_figure = figure and any(_is_figure(key, weights) for place in places for key in words.places[place].keys)
    is_of_the_kind = kind is not None and kind.search(words.text_of(places)) is not None
    return score * (1 + FIGURE * has_figure) * (1 + OF_THE_KIND * is_of_the_kind)


def _is_figure(key: str, asked: Collection[str]) -> bool:
    """Whether the key of a word is a number that the question does not have."""
    return key.startswith("#") and key not in asked


def _union(keys: Mapping[int, set[str]], places: range) -> set[str]:
    return set[str]().union(*(keys.get(place, ()) for place in places))


def _weight(keys: Iterable[str], weights: Mapping[str, float]) -> float:
    return sum(weights[key] for key in keys)


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
    too. A question without a word of the book gets passages from all of the book.
    """
    document = words.document
    chosen = _chosen(words, question, MOST_READ, FAINT) or _throughout(words, MOST_READ)
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
    for places in _chosen(words, question, MOST, CLEAR):
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
    return f"{counted(count, 'passage')} with words of your question"


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
