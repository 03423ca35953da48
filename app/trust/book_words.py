"""The words of a book by passage: which words a passage has, how rare they are, and which are names.

    words = BookWords(document)
    words.page_scores("Who kept the light?")      how promising each page is for a question

A passage is a sentence or a row of a table. Passages are ranked by BM25 (Robertson and Zaragoza 2009). Words are
compared without case, accents and endings, numbers by their value: "thirteen" is 13, and 1,912 is 1912. Names and
numbers weigh most.

Uses no model. Stop words are listed for English, German, French and Spanish. In other languages only rarity
distinguishes words.
"""

from __future__ import annotations

import bisect
import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, groupby, pairwise
from typing import Literal

from app.language.tokens import tokenize
from app.language.words import (
    ENGLISH_TOO,
    FORMS_OF_ADDRESS,
    NUMBER_WORDS,
    SILENT_WORDS,
    THIRD_PERSON,
    fold_word,
    is_first_name,
    is_german,
    numbers_in,
    says_nothing,
    values_in,
    without_ending,
)
from app.trust import table_rows
from app.trust.meaning import Meaning
from engine.document import Document, Member
from engine.languages import language_of, language_of_question
from engine.passages import STEM, spans

CANDIDATES = 12
"""Number of best passages by BM25 that are compared word by word with a sentence of an answer."""
LENGTH_SHARE = 0.4
"""BM25's parameter b. BM25's k1 is not needed, because a word counts only once in a sentence."""
NEIGHBOURS = 0.3
"""Weight in BM25 of a word that is not in a passage, but in the passage before or after it. A word in the passage
itself has the weight 1.
"""
NAMED = 0.5
"""Minimum share of the words of a title that must stand in a sentence in lower case for the sentence to name this one
of several documents.
"""
AROUND = 3
"""Number of passages before and after a passage in which a name counts, because the passage may refer to the name by
"he" or "it".
"""
NAME = 2.0
"""Weight of a name, relative to a word of the same rarity."""
NUMBER = 2.5
"""Weight of a number, relative to a word of the same rarity."""
ASKED = 0.45
"""Factor on the weight of a word that occurs in the question, but not in the sentence of the answer."""
UNKNOWN = 0.5
"""Weight of a word that the book never uses, relative to the book's rarest words. It is below 1, because an answer may
use words of its own.
"""
NOUNS_CAPITALIZED = 0.2
"""If more than this share of the words within sentences is capitalised, the book's language is assumed to capitalise
every noun, as German does.
"""
FAVOUR = 0.1
"""Share by which the most favoured page raises the scores of its passages. A less favoured page raises them by a
proportionally smaller share.
"""
FEW_LETTERS = 4
"""Minimum letters of a word of the book for it to count as the beginning of a longer word, as "Prof" of "Professor".
Also the minimum letters of a verb's stem from which a noun is derived (``BookWords.is_joined``).
"""
FEW_WORDS = 2
"""Maximum words of a sentence that counts as a fragment. Each capitalised word in a fragment that the book lacks counts
as a name (``BookWords._as_fact``).
"""
ABOVE = 2
"""Number of passages above a table that count as near each of its rows."""
SHORTEST_HEADING = 3
"""Minimum words of a sentence for it to count as a heading because most of its words are capitalised."""
ROMAN = re.compile(r"[ivxlc]{2,}")
"""Matches a folded word that is a Roman numeral, such as the number of a chapter or a clause. Such a word is never a
name.
"""

_SIGNS_AT_END = re.compile(r"(?<![\s*_“„\"«(\[])[\s*_“„\"«(\[]*+$")
_OPENERS = frozenset('\n“„"«([*')
_LAST_SIGNS = frozenset(".:!?;#>|–—-")
_QUOTED = re.compile(r"[^\W\d_] [“„\"«‘]$")  # the end of a text that is followed by a quoted word within a sentence
_NEGATION = re.compile(
    r"\b(?:not?|never|nothing|nobody|none|neither|nor|without|cannot|nicht|nie|niemals|niemand|nichts|ohne|weder|pas|"
    r"jamais|rien|aucune?|sans)\b|n['’]t\b|\bkein|\bpersonne ne\b",
    re.IGNORECASE,
)
# Matches a "not" and up to three negated words after it. A "not" before "until" does not match: "not lit until May"
# means that the light is lit in May.
_DENIED = re.compile(
    r"(?:\b(?:not?|never|cannot|nicht|nie|niemals|keine?[mnrs]?|ohne|without)|n['’]t)"
    r"(?!(?: [^\W\d_]+){0,4} (?:until|before|bis|bevor)\b)"
    r"((?: (?!(?:only|just|merely|but|nur|bloß|erst)\b)[^\W\d_]+){1,3})",
    re.IGNORECASE,
)
# "but diving is not": the word before a "not" at the end of a clause, which leaves out the verb
_DENIED_BEFORE = re.compile(
    r"(?<![^\W_])([^\W\d_]++) (?:is|are|was|were|do|does|did|has|have|had|will|can|may|must)(?: not|n['’]t)"
    r"(?=[.,;:!?)]|$)",
    re.IGNORECASE,
)
_HE = re.compile(rf"\b(?:{THIRD_PERSON}|his|her|its|their|him|them|ihr|sein)\b", re.IGNORECASE)
_BETWEEN_WORDS = r"[\W_]{1,12}+"  # signs and spaces between two words of a quotation
# a pronoun that begins a sentence or a clause
_SUBJECT = re.compile(
    r"(?:^|[.;!?]\s+)\W*(?:(?:And|But|Then|So|Here|Und|Aber|Dann|Et|Mais)\s+)?(he|she|it|they|er|sie|es|ils?|elles?)\b",
    re.IGNORECASE,
)
# words for the person or the people who tell a text
_I = re.compile(
    r"\b(?:I|[Mm]e|[Mm]y|myself|[Ww]e|us|[Oo]ur|ich|mich|mir|meine?[mnrs]?|wir|uns|je|moi|mon|ma|mes|nous|yo|mi)\b"
)
# First code point of the scripts without spaces between words. Text in such a script is compared by pairs of
# characters.
_NO_SPACES = "\u2e80"
_OF_A_VERB = re.compile(r"ung(?:en)?$")  # the end of German nouns derived from verbs: "Wohnung" from "wohnen"
_ADJECTIVE_ENDINGS = ("e", "em", "en", "er", "es")
_ALSO_ENGLISH = frozenset(["dank", "falls"])  # German prepositions and conjunctions that are English words too
_TITLE = re.compile(r"#|(?:(?:[-+*•]|\d{1,2}[.)])\s+)?(\*\*|__)(?:(?!\1).)*[^\s.!?]\1\s*$")
# A label: the words before a colon at the start of a line or of bold type, such as "Name des Vermieters:". The marks
# around it have a maximum, because a line of many marks took a time that grew with their square.
_LABEL = re.compile(
    r"(?:^|\n|\*\*|__)[ \t]*(?:(?:[-+*•]|\d{1,2}[.)])\s+)?[*_]{0,3}((?:[^\W\d_]+[ /-])*[^\W\d_]+)[*_ ]{0,8}:(?!\d)"
)
_CALLED = frozenset(["heißt", "hieß", "heißen", "hießen", "namens"])
_ENDS = re.compile(r"[,;:.!?)]|\s[–—(-]")  # the end of a clause
# "hieß Gäste willkommen" means "welcomed guests", so "hieß" introduces no name here.
_WELCOMED = re.compile(r"\bwillkommen\b", re.IGNORECASE)
LONGEST = 20_000
"""Maximum characters of a sentence or question that are looked at. The time grows with the square of their number: a
question of 5 MB took nine minutes.
"""
_TITLE_PAGE = 300
"""Number of characters at the beginning of a text in which a line "by ..." names its author."""
_BYLINE = re.compile(r"^[ \t]*(?:[Bb]y|BY|[Vv]on)[ \t]+([A-ZÀ-ÖØ-Þ][^\n\d]{2,60})$", re.MULTILINE)
_LINE_NUMBER = re.compile(r"^[ \t]*(?:[-*+•]\s+)?\d{1,2}[.)](?=\s|$)", re.MULTILINE)


def _author_above(text: str) -> str:
    """The author whom a line at the beginning of a text names."""
    found = _BYLINE.search(text, 0, _TITLE_PAGE)
    return found[1] if found else ""


def _starts_after(text: str) -> bool:
    """Whether a sentence, a line or a cell begins behind ``text``."""
    signs = _SIGNS_AT_END.search(text)
    if signs is None:
        return False
    return not signs.start() or text[signs.start() - 1] in _LAST_SIGNS or not _OPENERS.isdisjoint(signs[0])


def is_negated(sentence: str) -> bool:
    """Whether a sentence negates something."""
    return _NEGATION.search(sentence) is not None


def is_title(sentence: str) -> bool:
    """Whether a sentence of an answer is a heading: it begins with "#", is a line in bold type, or ends with a
    colon.
    """
    return sentence.rstrip("*_ \n").endswith(":") or _TITLE.match(sentence.lstrip()) is not None


def _labels(text: str) -> list[tuple[int, int]]:
    """Find the spans of labels, such as "Name" in "Name: Karl Lindemann". Each word of a label is capitalised or a stop
    word.
    """
    return [
        match.span(1)
        for match in _LABEL.finditer(text)
        if all(word[0].isupper() or says_nothing(word) for word in re.split(r"[ /-]", match[1]))
    ]


@dataclass(frozen=True)
class PageRange:
    """Characters [start, end) of the text of ``document.pages[page]``."""

    page: int
    start: int
    end: int


@dataclass(frozen=True)
class Passage:
    """The text of a passage of the book, as one line. ``parts`` are its places on the pages, one for each page."""

    text: str
    parts: tuple[PageRange, ...]


@dataclass(frozen=True)
class Term:
    """A word of a sentence in three forms: ``key`` (folded and shortened) is compared with passages, ``whole`` (folded)
    is compared with the book's names, and ``raw`` is shown to the person. The word's weight depends on its ``kind``.
    """

    key: str
    whole: str
    raw: str
    kind: Literal["word", "name", "number"] = "word"


@dataclass
class Place:
    """A passage, characters [start, end) of the document's text, and the keys of its words. ``negated``: whether the
    passage negates something. ``denied``: keys of words that occur in the passage only as negated words. ``table``:
    number of the table of which the passage is a row.
    """

    start: int
    end: int
    keys: frozenset[str] = field(default_factory=frozenset)
    negated: bool = False
    denied: frozenset[str] = frozenset()
    table: int | None = None


class BookWords:
    """Indexes a book's sentences, in about 0.5 s for 300 pages.

    ``places``: the book's passages, in order. ``nouns_capitalized``: whether the book's language capitalises every
    noun.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        text = document.text
        self._forms: dict[str, tuple[str, str]] = {}
        self._lower: set[str] = set()  # words that the book writes in lower case somewhere
        self._capital: set[str] = set()  # words that the book writes with a capital within a sentence
        self._large: set[str] = set()  # words that the book writes with a capital anywhere
        self.places = [Place(start, end, table=table) for start, end, table in _passages(text)]
        self._postings: defaultdict[str, list[int]] = defaultdict(list)
        capitals = words = 0
        for number, place in enumerate(self.places):
            tokens = list(tokenize(text[place.start : place.end]))
            for at, (raw, _) in enumerate(tokens):
                if raw[0].isalpha():
                    whole = self._form(raw)[0]
                    if raw[0].isupper():
                        self._large.add(whole)
                        if at:
                            self._capital.add(whole)
                            capitals += 1
                    else:
                        self._lower.add(whole)
                    words += bool(at)
            place.negated = _NEGATION.search(text, place.start, place.end) is not None
            place.keys = frozenset(key for key in self._keys(tokens) if key)
            if place.negated:
                place.denied = frozenset(self.denied_in(text[place.start : place.end]))
            for key in place.keys:
                self._postings[key].append(number)
        # a contract in English has as many capitals as a German text ("the Tenant")
        self.nouns_capitalized = language_of(text) in ("de", None) and capitals > NOUNS_CAPITALIZED * max(1, words)
        titles = f"{document.title} {document.author or _author_above(text)}"
        for known in (self._lower, self._large):
            known.update(self._form(raw)[0] for raw, _ in tokenize(titles))
        self._own_forms = tuple(self._forms.values())
        self._heads: dict[int, frozenset[str]] = {}  # keys of the head of a row's table, by the row's index
        self._joined: dict[str, bool] = {}  # results of ``is_joined`` by folded word
        self._mean = max(1.0, sum(len(place.keys) for place in self.places) / max(1, len(self.places)))
        self._titles, self._told_apart = self._index_titles()
        self._in_titles = self._title_keys(titles).union(*self._titles)

    @cached_property
    def _tables(self) -> dict[int, range]:
        """The indexes of the rows of each table."""
        return _ranges([place.table for place in self.places])

    @cached_property
    def _known(self) -> set[str]:
        """The stems of the book's words."""
        return {without_ending(whole) for whole, _ in self._own_forms}

    @cached_property
    def meaning(self) -> Meaning | None:
        """What the words and passages of an English book mean; None for a book in another language."""
        if language_of(self.document.text) != "en":
            return None
        return Meaning(
            self._own_forms, [sorted(place.keys) for place in self.places], lambda key: self.rarity(self.count(key))
        )

    @cached_property
    def _names(self) -> set[str]:
        """The stems of the words that the book writes with a capital anywhere."""
        return {without_ending(whole) for whole in self._large}

    def _index_titles(self) -> tuple[list[frozenset[str]], list[tuple[range, frozenset[str]]]]:
        """Index the titles of several documents. For a book of one document, all keys and the second list are empty.

        Returns:
            For each passage, the keys of its document's title. For each document, its passages and the keys that only
                its title has.
        """
        titles: list[frozenset[str]] = [frozenset()] * len(self.places)
        titled = [(places, self._title_keys(title)) for title, places in self._places_by_document()]
        counts = Counter(key for _, title in titled for key in title)
        for places, title in titled:
            titles[places.start : places.stop] = [title] * len(places)
        return titles, [(places, frozenset(key for key in title if counts[key] == 1)) for places, title in titled]

    def _places_by_document(self) -> Iterator[tuple[str, range]]:
        """For each of several documents, yield its title and the indexes of its passages. Yields nothing for a book of
        one document.
        """
        if len(self.document.members) < 2:
            return
        for member, run in groupby(range(len(self.places)), key=self._member_of):
            places = list(run)
            if member is not None:
                yield member.title, range(places[0], places[-1] + 1)

    def _member_of(self, place: int) -> Member | None:
        return self.document.member_at(self.document.pages[self._page_of(self.places[place].start)].number)

    def _title_keys(self, title: str) -> frozenset[str]:
        return frozenset(key for key in self._keys(list(tokenize(title))) if key)

    def denied_in(self, passage: str) -> Iterator[str]:
        """Yield the key of the first meaningful word after each "not", or of the word before a "not" at the end of a
        clause. A word that occurs again later is left out, because it occurs without "not" there.
        """
        text = " ".join(passage.split())
        last = dict(self.words_of(text))
        for match in chain(_DENIED.finditer(text), _DENIED_BEFORE.finditer(text)):
            first = next((key for raw in match[1].split() for key, _, _ in self._words(raw)), "")
            if first and last.get(first, 0) < match.end():
                yield first

    def terms(self, sentence: str) -> list[Term]:
        """Return the meaningful words, the names and the numbers of a sentence or a question, each once. Characters
        after the first ``LONGEST`` are left out.
        """
        text = _LINE_NUMBER.sub(lambda match: " " * len(match[0]), sentence[:LONGEST])
        tokens = list(tokenize(text))
        found: dict[str, Term] = {}
        capitals = [raw[0].isupper() for raw, _ in tokens if raw[0].isalpha()]
        heading = len(capitals) >= SHORTEST_HEADING and sum(capitals) > 0.7 * len(capitals)
        german = is_german(raw for raw, _ in tokens)
        title = is_title(text)
        labels = [(0, len(text))] if _TITLE.match(text.lstrip()) else _labels(text)
        for key, raw, _ in numbers_in(tokens, text):
            found.setdefault(key, Term(key, key, raw, "number"))
        unknown_names = self._unknown_names(tokens, text, labels) if self.nouns_capitalized else ()
        for raw, start in tokens:
            if not raw[0].isalpha():
                continue
            titled = heading or any(begin <= start < end for begin, end in labels)
            for key, whole, piece in self._words(raw):
                if whole in ENGLISH_TOO and (german or language_of_question(text) not in (None, "en")):
                    continue  # an article in a question of another language
                behind = text[start + len(raw) :]
                name = piece[0].isupper() and not german and self._is_name(whole, text[:start], behind, titled)
                name = name or start in unknown_names or self._is_unknown_first_name(piece, whole)
                found.setdefault(key, Term(key, whole, piece, "name" if name else "word"))
        if len(tokens) <= FEW_WORDS and not german and not title:
            return [self._as_fact(term) for term in found.values()]
        return list(found.values())

    def lacks(self, words: str) -> bool:
        """Whether the book lacks at least one word, name or number of ``words``."""
        return not all(self.has(term) for term in self.terms(words))

    def page_scores(self, question: str) -> list[float]:
        """Score each page for a question: the BM25 score of the page's best passage."""
        found = [0.0] * len(self.document.pages)
        for place, score in self._scores({term.key: self.weight(term) for term in self.terms(question)}).items():
            if 0 <= place < len(self.places):
                page = self._page_of(self.places[place].start)
                found[page] = max(found[page], score / self._length(place))
        return found

    def places_within(self, pages: int) -> int:
        """Number of passages that end within the first ``pages`` pages."""
        end = self.document.page_starts[pages]
        return bisect.bisect_right(self.places, end, key=lambda place: place.end)

    def has(self, term: Term) -> bool:
        """Whether the book, or the title of one of its documents, has this word."""
        return term.key in self._postings or term.key in self._in_titles

    def is_narrator(self, term: Term, place: int) -> bool:
        """Whether a name is in the title or is the author's, and a passage says "I" or "we" instead of it."""
        return self.is_of_title(term) and self.is_told_by_one(place)

    def is_told_by_one(self, place: int) -> bool:
        """Whether a passage says "I" or "we"."""
        return _I.search(self.row(place)) is not None

    def is_of_title(self, term: Term) -> bool:
        """Whether a name is in the title, or is the author's."""
        return term.raw[0].isupper() and term.key in self._in_titles

    def is_meant(self, term: Term, place: int) -> bool:
        """Whether a passage begins a clause with a pronoun for ``term``, which a passage shortly before it has: "it"
        or "they" for a thing, "he" or "she" for the person who was named last.
        """
        pronouns = {match[1].lower() for match in _SUBJECT.finditer(self.row(place))}
        before = range(place - 1, max(-1, place - AROUND - 1), -1)
        if self.is_proper(term):
            if pronouns.isdisjoint(("he", "she", "er", "sie", "il", "elle")):
                return False
            named = (at for at in before if any(map(self.is_proper, self.terms(self.row(at)))))
            return term.key in self.places[next(named, place)].keys
        is_plural = term.whole.endswith(("s", "en")) and not term.whole.endswith("ss")
        wanted = ("they", "sie", "ils", "elles") if is_plural else ("it", "er", "sie", "es", "il", "elle")
        return not pronouns.isdisjoint(wanted) and any(term.key in self.places[at].keys for at in before)

    def last_name(self, place: int, begun: str) -> str:
        """The key of the last name in ``begun``, the beginning of a passage, or else in the nearest passage before that
        has one; "" if there is none.
        """
        for text in (begun, *(self.row(at) for at in range(place - 1, max(-1, place - AROUND - 1), -1))):
            for raw, _ in reversed(list(tokenize(text))):
                for key, whole, piece in self._words(raw):
                    if self.is_proper(Term(key, whole, piece)):
                        return key
        return ""

    def has_pronoun(self, place: int) -> bool:
        """Whether a passage refers to somebody by a pronoun such as "he"."""
        return _HE.search(self.row(place)) is not None

    def is_like_a_name(self, term: Term) -> bool:
        """Whether a word that the book lacks has a capital within it, as the name of a product does."""
        return any(letter.isupper() for letter in term.raw[1:]) and not term.raw.isupper()

    def is_missing(self, term: Term) -> bool:
        """Whether ``term`` is a name or a number that the book lacks."""
        if term.kind == "number":
            return not self.has(term)
        return term.kind == "name" and without_ending(term.whole) not in self._names

    def is_joined(self, term: Term) -> bool:
        """Whether the book has a word that is related to ``term``: a word that contains ``term``, a word with which
        ``term`` begins, or a word that begins with the stem of the verb from which ``term`` is derived ("Wohnfläche"
        for "Wohnung").
        """
        joined = self._joined.get(term.whole)
        if joined is None:
            key, verb = term.key, _OF_A_VERB.sub("", term.whole)
            is_verb = verb != term.whole and len(verb) >= FEW_LETTERS
            joined = self._joined[term.whole] = any(
                key in whole
                or (len(whole) >= FEW_LETTERS and key.startswith(whole))
                or (is_verb and whole.startswith(verb))
                for whole in self._known
            )
        return joined

    # Passages --------------------------------------------------------------------------------------------------

    def ranked(
        self, terms: Sequence[Term], question_terms: Sequence[Term], favour: Sequence[float], places: int
    ) -> list[int]:
        """Rank passages by BM25, and return the indexes of the ``CANDIDATES`` best.

        Args:
            terms: words of the sentence for which passages are searched.
            question_terms: words of the question, which weigh less (``ASKED``).
            favour: a weight for each page, such as its attention. Passages of pages with more weight rank higher. May
                be empty.
            places: number of passages to rank, from the first.
        """
        said = {term.key for term in terms}
        weights = {term.key: self.weight(term) for term in terms}
        weights |= {term.key: ASKED * self.weight(term) for term in question_terms if term.key not in said}
        scores = self._scores(weights)
        return heapq.nlargest(
            CANDIDATES,
            (place for place in scores if 0 <= place < places),
            key=lambda place: (
                scores[place] / self._length(place) * self._favour(place, favour) + self._title_score(place, weights),
                -place,
            ),
        )

    def _scores(self, weights: Mapping[str, float]) -> dict[int, float]:
        """Score passages, keyed by index. A word adds its weight to every passage that has the word. It adds
        ``NEIGHBOURS`` times its weight to the passages before and after, if they lack the word. So the result may also
        have the indexes -1 and ``len(self.places)``, which are no passages.
        """
        scores: defaultdict[int, float] = defaultdict(float)
        for key, weight in weights.items():
            having = self._postings.get(key, [])
            beside = {place + step for place in having for step in (-1, 1)}
            for place in having:
                scores[place] += weight
            for place in beside.difference(having):
                scores[place] += NEIGHBOURS * weight
        return scores

    def _title_score(self, place: int, weights: Mapping[str, float]) -> float:
        """Sum the weights of words that a passage lacks and that its document's title has; 0 in a book of one document.
        BM25's factor for the passage's length does not apply, because a long passage needs the title's words no more
        often than a short one.
        """
        return math.fsum(weights.get(key, 0.0) for key in self._titles[place] - self.places[place].keys)

    def _length(self, place: int) -> float:
        """BM25's factor for the length of a passage; 1 for a passage of mean length."""
        return 1 - LENGTH_SHARE + LENGTH_SHARE * len(self.places[place].keys) / self._mean

    def _favour(self, place: int, favour: Sequence[float]) -> float:
        page = self._page_of(self.places[place].start)
        return 1.0 + FAVOUR * favour[page] / max(favour) if page < len(favour) and max(favour) > 0 else 1.0

    def keys_of(self, place: int) -> frozenset[str]:
        """Return the keys of a passage. In a book of several documents, the keys of the document's title are added,
        because an answer names the document and the passage may not. For the same reason the keys of the table's head
        are added to a row.
        """
        if place not in self._heads:
            self._heads[place] = self._title_keys(self.table_head(place))
        return self.places[place].keys | self._titles[place] | self._heads[place]

    def documents_named(self, terms: Sequence[Term], least: float = NAMED) -> list[range]:
        """Return the passages of each document that ``terms`` name by its title. Only those words of a title count that
        no other document's title has. ``terms`` name the document if they have one of these words with a capital, or if
        they have at least the share ``least`` of these words. Empty for a book of one document.
        """
        capitalized = {term.key: term.raw[0].isupper() for term in terms}
        found = []
        for places, own in self._told_apart:
            said = own & capitalized.keys()
            if said and (any(capitalized[key] for key in said) or len(said) >= least * len(own)):
                found.append(places)
        return found

    def names_another_document(self, terms: Sequence[Term], place: int) -> bool:
        """Whether ``terms`` name one or more of several documents, but not the document of the passage ``place``. Words
        that occur in the passage do not count.
        """
        named = self.documents_named([term for term in terms if term.key not in self.places[place].keys])
        return bool(named) and not any(place in places for places in named)

    def keys_around(self, place: int, reach: int) -> set[str]:
        """The keys of a passage (``keys_of``) and of up to ``reach`` passages before and after. For a row, the passages
        above its table count too, which say what the table is about.
        """
        near = self.places[max(0, place - reach) : place + reach + 1]
        if rows := self.table_of(place):
            near = [*near, *self.places[max(0, rows[0] - ABOVE) : rows[0]]]
        return set(self.keys_of(place)).union(*(other.keys for other in near))

    def table_of(self, number: int) -> range:
        """Return the indexes of the rows of the table to which a passage belongs; empty if it is no row."""
        table = self.places[number].table if 0 <= number < len(self.places) else None
        return self._tables[table] if table is not None else range(0)

    def table_head(self, number: int) -> str:
        """Return the line with the heads of the table's columns, if the passage is a row below it; "" otherwise. It is
        the first row, or the line above the rows if these have no bars and the first one has figures.
        """
        rows = self.table_of(number)
        if not rows or number == rows[0]:
            return ""
        first = self.row(rows[0])
        if table_rows.is_head(first):
            return first
        if table_rows.CELLS in first:
            return ""
        text, start = self.document.text, self.places[rows[0]].start
        end = text.rfind("\n", 0, start)
        return text[text.rfind("\n", 0, end) + 1 : end] if end > 0 else ""

    def row(self, number: int) -> str:
        """Return the text of a passage with its spaces, which separate the cells of a row."""
        place = self.places[number]
        return self.document.text[place.start : place.end]

    def passage(self, number: int) -> Passage:
        """Return the text of the passage with this index, and its places on the pages."""
        return self.stretch(range(number, number + 1))

    def text_of(self, numbers: range) -> str:
        """The text of consecutive passages, with its line breaks. ``numbers`` are their indexes."""
        return self.document.text[self.places[numbers[0]].start : self.places[numbers[-1]].end]

    def stretch(self, numbers: range) -> Passage:
        """Return consecutive passages as one. ``numbers`` are their indexes."""
        start, end = self.places[numbers[0]].start, self.places[numbers[-1]].end
        text = " ".join(self.text_of(numbers).split())
        pages = range(self._page_of(start), self._page_of(end - 1) + 1)
        parts = (self._part(page, start, end) for page in pages)
        return Passage(text, tuple(part for part in parts if part.end > part.start))

    def places_from(self, number: int, longest: int) -> range:
        """Return the indexes of the passage ``number`` and of those after it that begin on the same page and together
        have at most ``longest`` characters.
        """
        start, page, end = self.places[number].start, self.page_of(number), number + 1
        while end < len(self.places) and self.places[end].end - start <= longest and self.page_of(end) == page:
            end += 1
        return range(number, end)

    def has_together(self, terms: Sequence[Term], reach: int) -> bool:
        """Whether a passage has all ``terms``, together with up to ``reach`` passages before and after it, or the
        titles of the documents have them.
        """
        keys = {term.key for term in terms}
        rarest = min(keys, key=self.count)
        return keys <= self._in_titles or any(
            keys <= self.keys_around(place, reach) for place in self._postings[rarest]
        )

    def having(self, key: str) -> Sequence[int]:
        """Return the indexes of the passages with this key."""
        return self._postings.get(key, ())

    def quoting(self, words: str) -> list[int]:
        """Return the indexes of the passages in which these words begin, one after the other, whatever signs and line
        ends are between them and whether they are capitalised.
        """
        parts = [re.escape(word) for word in re.findall(r"[^\W_]+", words[:LONGEST])]
        if not parts:
            return []
        found = re.finditer(rf"(?<![^\W_]){_BETWEEN_WORDS.join(parts)}(?![^\W_])", self.document.text, re.IGNORECASE)
        return sorted({self._place_of(match.start()) for match in found})

    def count(self, key: str) -> int:
        """Return the number of passages with this key."""
        return len(self.having(key))

    def place_at(self, part: PageRange) -> int:
        """Return the index of the passage at the beginning of a part of a page."""
        return self._place_of(self.document.page_starts[part.page] + part.start)

    def _place_of(self, character: int) -> int:
        """The index of the passage at a character of the document's text."""
        return max(0, bisect.bisect_right(self.places, character, key=lambda place: place.start) - 1)

    def page_of(self, number: int) -> int:
        """Return the index of the page on which the passage with this index begins."""
        return self._page_of(self.places[number].start)

    def _part(self, page: int, first: int, stop: int) -> PageRange:
        """The part of characters [first, stop) of the document that is on one page, as offsets in the page's text."""
        text = self.document.pages[page].text
        body = text.strip("\n")
        lead, begin = len(text) - len(text.lstrip("\n")), self.document.page_starts[page]
        start, end = max(first - begin, 0), min(stop - begin, len(body))
        words = body[start:end]
        start += len(words) - len(words.lstrip())
        return PageRange(page, lead + start, lead + start + len(words.strip()))

    def _page_of(self, character: int) -> int:
        return max(0, bisect.bisect_right(self.document.page_starts, character) - 1)

    # Words -----------------------------------------------------------------------------------------------------

    def weight(self, term: Term) -> float:
        """Return the weight of a word: its rarity in the book, times the factor of a name or a number (``NAME``,
        ``NUMBER``), times ``UNKNOWN`` if the book lacks it.
        """
        known = len(self._postings.get(term.key, ()))
        return (
            self.rarity(known) * {"word": 1.0, "name": NAME, "number": NUMBER}[term.kind] * (1.0 if known else UNKNOWN)
        )

    def rarity(self, count: int) -> float:
        """The weight of what ``count`` passages have."""
        return math.log(1 + (len(self.places) - max(1, count) + 0.5) / (max(1, count) + 0.5))

    def share(self, terms: Sequence[Term], keys: set[str]) -> float:
        """The share of ``terms``, by weight, that are among ``keys``."""
        return sum(self.weight(term) for term in terms if term.key in keys) / sum(map(self.weight, terms))

    def words_of(self, text: str) -> list[tuple[str, int]]:
        """Return (key, offset) for each meaningful word of a text."""
        return [(key, at) for raw, at in tokenize(text) if raw[0].isalpha() for key, _, _ in self._words(raw) if key]

    def _is_name(self, word: str, text_before: str, text_after: str, heading: bool) -> bool:
        """Whether a capitalised word is a name. The first rule that applies decides:

        - A Roman numeral is no name.
        - If the book also writes the word in lower case, or its language capitalises every noun, the word is a name
          only if it is quoted within a sentence and the book never capitalises it.
        - At the start of a sentence or in a heading, the word is a name only if the book capitalises it within
          sentences. A quoted word within a sentence does not count as the start of a sentence.
        - Any other word is a name.

        Args:
            text_before: the text before the word.
            text_after: the text after the word.
            heading: whether the word is in a heading or a label.
        """
        if ROMAN.fullmatch(word):
            return False
        if self.nouns_capitalized or word in self._lower:
            return bool(_QUOTED.search(text_before)) and word not in self._large
        is_start = _starts_after(text_before) and not (_QUOTED.search(text_before) and text_after[:1] in '”“"»’')
        return word in self._capital if heading or is_start else True

    def _unknown_names(
        self, tokens: Sequence[tuple[str, int]], text: str, labels: Sequence[tuple[int, int]]
    ) -> set[int]:
        """Return the offsets of names that the book lacks. This is for a book whose language capitalises every noun, so
        that a capital does not mark a name.

        A word is strange if it is capitalised and the book has neither this word nor a related one (``_is_strange``).
        These are names:

        - Two neighbouring strange words ("Karl Lindemann"), unless a number before them makes them a quantity ("fünf
          Liter Milch"). At the start of a sentence of more than ``FEW_WORDS`` words, the first of the two words may
          neither have an adjective's ending ("Hohe Mieten sind ...") nor be in ``_ALSO_ENGLISH``.
        - A strange word after a form of address ("Herr Lindemann") or after "heißt".
        - A strange word after a first name, if the first name begins the sentence ("Tony Lindemann fragt") or is not in
          the book.

        In a heading or a label, a name is recognised only after a first name or a form of address.
        """
        found: set[int] = set()
        for number, ((first, start), (second, then)) in enumerate(pairwise(tokens)):
            apart = text[start + len(first) : then].removeprefix(".") != " "
            if apart or fold_word(second) in FORMS_OF_ADDRESS or not self._is_strange(second):
                continue
            starts = _starts_after(text[:start])
            behind = tokens[number + 2][0] if number + 2 < len(tokens) else ""
            if first[0].isupper() and is_first_name(fold_word(first)):
                if self._is_unknown_first_name(first, fold_word(first)) or (starts and not behind[:1].isupper()):
                    found.add(then)
            elif fold_word(first) in FORMS_OF_ADDRESS:
                found.add(then)
            elif any(begin <= then < end for begin, end in labels):
                continue
            elif first.lower() in _CALLED:
                before = tokens[number - 1][0].lower() if number else ""
                # "heißt" also means "means", so a name after it must end the clause
                ends = not behind[:1].islower() or behind in ("und", "oder") or _ENDS.match(text, then + len(second))
                if (ends or first.lower() == "namens") and before != "das" and not _WELCOMED.search(text):
                    found.add(then)
            elif self._is_strange(first) and not (number and _is_number(tokens[number - 1][0])):
                begins = starts and len(tokens) > FEW_WORDS
                if not (begins and (first.endswith(_ADJECTIVE_ENDINGS) or fold_word(first) in _ALSO_ENGLISH)):
                    found.update((start, then))
        return found

    def is_proper(self, term: Term) -> bool:
        """Whether the book writes a word like a name: with a capital within sentences, and never in lower case."""
        return term.raw[0].isupper() and term.whole in self._capital and term.whole not in self._lower

    def is_unknown_first_name(self, term: Term) -> bool:
        """Whether a word is a common first name that the book never uses."""
        return term.kind != "number" and self._is_unknown_first_name(term.raw, term.whole)

    def _is_unknown_first_name(self, raw: str, word: str) -> bool:
        """Whether a capitalised word is a common first name that the book never uses, with or without the genitive's s.
        A use in lower case ("clara") also counts as a use.
        """
        forms = {without_ending(form) for form in (word, word.removesuffix("s"), f"{word}s")}
        return raw[0].isupper() and is_first_name(word) and not forms & self._known

    def _is_strange(self, raw: str) -> bool:
        """Whether a word is capitalised, and the book has neither this word nor a related one (``is_joined``). False
        for stop words, number words and Roman numerals.
        """
        terms = [Term(key, whole, raw) for key, whole, _ in self._words(raw) if raw[0].isupper()]
        return bool(terms) and not any(
            self.has(term) or self.is_joined(term) or ROMAN.fullmatch(term.whole) for term in terms
        )

    def _as_fact(self, term: Term) -> Term:
        """If a capitalised word of a short answer is not in the book, turn it into a name, because the word is probably
        the fact that the answer states. An answer is short if it has at most ``FEW_WORDS`` words. Returns any other
        word unchanged, and every word if the book's language capitalises every noun.
        """
        known = term.kind != "word" or not term.raw[0].isupper() or self.nouns_capitalized or term.key in self._postings
        return term if known else replace(term, kind="name")

    @cached_property
    def _spoken(self) -> frozenset[str]:
        """The stop words that say something in the book's language."""
        return ENGLISH_TOO if language_of(self.document.text) == "en" else frozenset()

    def _words(self, raw: str) -> Iterator[tuple[str, str, str]]:
        """Yield the key, the folded form and the raw form of a word. Yields nothing for a stop word or a number word.
        In a script without spaces between words, each pair of neighbouring characters counts as a word.
        """
        if raw[0] >= _NO_SPACES:
            for at in range(max(1, len(raw) - 1)):
                yield raw[at : at + 2], raw[at : at + 2], raw[at : at + 2]
            return
        whole, key = self._form(raw)
        if key and whole not in NUMBER_WORDS:
            yield key, whole, raw

    def _form(self, raw: str) -> tuple[str, str]:
        """Return the folded form of a word, and its key: the folded form without its ending, cut to ``STEM`` letters.
        The key of a stop word is "".
        """
        known = self._forms.get(raw)
        if known is None:
            whole = fold_word(raw)
            silent = (
                (whole in SILENT_WORDS and whole not in self._spoken)
                or whole.endswith("n't")
                or (len(whole) < 2 and not (raw.isupper() and raw not in "AI"))
            )
            known = self._forms[raw] = (whole, "" if silent else without_ending(whole)[:STEM])
        return known

    def _keys(self, tokens: Sequence[tuple[str, int]]) -> Iterator[str]:
        for raw, _ in tokens:
            if raw[0].isalpha():
                yield from (key for key, _, _ in self._words(raw))
        yield from values_in(tokens)


def _is_number(raw: str) -> bool:
    return raw[0].isdigit() or fold_word(raw) in NUMBER_WORDS


def _passages(text: str) -> Iterator[tuple[int, int, int | None]]:
    """Yield the start, the end and the number of the table of each passage of a text. A passage is a sentence, or a row
    of a table.
    """
    found: list[tuple[int, int, int | None]] = list(table_rows.rows(text))
    starts = [start for start, _, _ in found]
    for start, end in spans(text):
        at = start
        for row in found[max(0, bisect.bisect_right(starts, start) - 1) : bisect.bisect_left(starts, end)]:
            if at < row[0] and text[at : row[0]].strip():
                yield at, row[0], None
            if start <= row[0]:
                yield row
            at = max(at, row[1])
        if at < end and text[at:end].strip():
            yield at, end, None


def _ranges(numbers: Sequence[int | None]) -> dict[int, range]:
    """For each number, the indexes at which it stands in a row."""
    found = {}
    at = 0
    for number, run in groupby(numbers):
        count = sum(1 for _ in run)
        if number is not None:
            found[number] = range(at, at + count)
        at += count
    return found
