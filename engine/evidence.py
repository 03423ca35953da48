"""Finds the evidence for an answer's sentence: the passage of the book that supports it, whichever model wrote it.

    index = EvidenceIndex(document)
    found = index.find("How far is Orre?", "It lies eleven miles from the mainland.")
    found.level, found.passages        "says so", (Passage(text="The island of Orre lies eleven miles ...", ...),)

The words of the sentence and of its question are looked up among the book's sentences by BM25 (Robertson and Zaragoza
2009). Names and numbers weigh most. Words are compared without case, accents and endings, numbers by their value:
"thirteen" is 13, and 1,912 is 1912. A passage *says so* if it has the sentence's names, its numbers and most of its
other words, and does not attribute the statement to another person (``roles``). A passage is *near* if it is related
but does not say so. A sentence is *not found* if the book lacks one of its names or numbers; if the book mentions the
subject of the question, or a thing that it counts or calls somebody's, nowhere or only far from the nearest passage; or
if the sentence only repeats the question and no passage says so. A sentence that claims nothing about the book (small
talk, an opinion, a refusal) has no level. Words of the question that the book never uses are reported separately
(``EvidenceIndex.unmentioned``), because a passage may say so and still not answer the question.

Knows no model. Weights of pages, such as the model's attention, only decide between equal passages. The model itself is
not asked whether a passage says so: a 1.5B model says yes to 9 of 16 sentences that give an action to another person
(assets/evaluation), and asking takes a good part of an answer's time. Words without meaning of their own are listed for
English, German, French and Spanish. In other languages only rarity distinguishes words.
"""

from __future__ import annotations

import bisect
import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from engine import roles
from engine.document import Document
from engine.passages import STEM, asks_for_whole, spans
from engine.words import (
    NUMBER_WORDS,
    SILENT_WORDS,
    fold_word,
    is_german,
    numbers_in,
    tokenize,
    values_in,
    without_ending,
)

Level = Literal["says so", "near", "not found", ""]
"""How far passages support a sentence. "" for a sentence that claims nothing about the book, or has no related passage.
"""

CANDIDATES = 12
"""Number of best passages by BM25 that are compared with a sentence word by word."""
LENGTH_SHARE = 0.4
"""BM25's parameter b. There is no k1, because passages are sentences, in which a word counts once."""
NEIGHBOURS = 0.3
"""Weight in BM25 of a word that occurs only in the passage before or after."""
AROUND = 3
"""Number of passages before and after in which a name counts, because "he" or "it" in a passage may refer to it."""
FAR = 8
"""Number of passages before and after an answering passage in which the question's names and nouns may occur."""
ELSEWHERE = 0.4
"""Minimum share of a question's names and nouns within ``FAR`` of a passage. Below it, the passage is about a different
subject.
"""
NAME, NUMBER = 2.0, 2.5
"""Weights of a name and of a number, relative to a word of the same rarity."""
ASKED = 0.45
"""Weight of a word that occurs only in the question."""
UNKNOWN = 0.5
"""Weight of a word that the book never uses, relative to the book's rarest words. It is below 1, because an answer may
use words of its own.
"""
MOST_OF_IT = 0.6
"""Minimum share of a sentence's words, by weight, that a passage must have to say so."""
FACT, SUBJECT = 0.8, 0.2
"""Weights, in a passage's rank, of the share of new words (those not in the question), and of the share of the
question's words. The share of all the sentence's words has the weight 1.
"""
MANY, NEARLY_ALL = 4, 0.85
"""Minimum number of new words, and minimum share of the new words in one passage, for a match that is no coincidence.
"""
OF_THE_SUBJECT = 0.45
"""Minimum share of the question's words that a passage and its surroundings must have to say so."""
OF_A_FRAGMENTS_SUBJECT = 0.65
"""Minimum share of the question's words for fragments such as "Seventeen." and "It was a gull.", which are only
understood as answers to the question.
"""
ABOUT = 0.5
"""Minimum share of the question's known words that the surroundings of a passage must have to be about the question."""
OTHER_WORDS = 0.1
"""Maximum share of a sentence's words that occur elsewhere in the book but not at the supporting passage. In a short
sentence one such word changes the meaning. Words that the book never uses do not count, because they may be synonyms.
"""
RELATED = 0.3
"""Minimum share of a sentence's words, or of its new words, that a passage must have to be near."""
NOUNS_CAPITALIZED = 0.2
"""Share of capitalised words within sentences above which a book's language is assumed to capitalise every noun, as
German does.
"""
BESIDE = 0.5
"""Weight of a word that a passage lacks but the passage before or after has, or of a name that occurs within ``AROUND``
passages.
"""
FAVOUR = 0.1
"""Maximum share by which a favoured page raises the score of its passages."""
FEW_LETTERS = 4
"""Minimum letters of a book's word that counts as the abbreviation or the first part of a longer word: "Prof." of
"Professor".
"""
FEW_WORDS = 2
"""Maximum words of an answer that counts as a fragment, in which each capitalised word is a fact."""
SHORTEST_HEADING = 3
"""Minimum words of a sentence that counts as a heading if most of its words are capitalised."""

_STARTS = re.compile(r"(?:^|[.:!?;\n“„\"«(\[*#>|–—-])[\s*_“„\"«(\[]*$")
_QUOTED = re.compile(r"[^\W\d_] [“„\"«‘]$")  # a word in quotation marks within a sentence
_ROMAN = re.compile(r"[ivxlc]{2,}")  # numbers of chapters and clauses
_NEGATION = re.compile(
    r"\b(?:not?|never|nothing|nobody|none|neither|nor|without|cannot|nicht|nie|niemals|niemand|nichts|ohne|weder|pas|"
    r"jamais|rien|aucune?|sans)\b|n['’]t\b|\bkein|\bpersonne ne\b",
    re.IGNORECASE,
)
_DENIED = re.compile(  # words that a "not" negates, up to the end of its clause; "not lit until May" means lit in May
    r"(?:\b(?:not?|never|cannot|nicht|nie|niemals|keine?[mnrs]?|ohne|without)|n['’]t)"
    r"(?!(?: [^\W\d_]+){0,4} (?:until|before|bis|bevor)\b)"
    r"((?: (?!(?:only|just|merely|but|nur|bloß|erst)\b)[^\W\d_]+){1,3})",
    re.IGNORECASE,
)
# First character of the scripts without spaces between words, of which pairs of characters are compared.
_NO_SPACES = "\u2e80"
_ROW = re.compile(r" \| ")
_LINE_NUMBER = re.compile(r"^[ \t]*(?:[-*+•]\s+)?\d{1,2}[.)](?=\s|$)", re.MULTILINE)
_TALK = re.compile(
    r"^\W*(?:hello|hi|hey|good (?:day|morning|evening|afternoon)|you(?:['’]re| are) welcome|welcome|thanks?|sorry"
    r"|please|my name|feel free|let me|if you have|here (?:is|are)|goodbye|bye|as an? (?:ai|language)"
    r"|(?:yes|no|sure|certainly|of course|okay)\W*$|i(?:['’]m| am) (?:an?|here|sorry|glad|happy|not|just|able|unable)"
    r"|i (?:think|believe|feel|hope|can|could|would|do|don|have no|cannot|apologi[sz]e|find|like)"
    r"|hallo|guten|danke|gern|bitte|bonjour|merci|désolé"
    r"|ich (?:bin|denke|glaube|kann|finde|habe keine)|je (?:suis|pense|crois|peux|ne))\b",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"\b(?:book|text|document|passage|story|excerpt|report|article|context|author|material|paper|it|section|content)\b"
    r"[^.!?]{0,40}?\b(?:does not|doesn['’]t|do not|don['’]t|did not|never|contains no|has no|provides no|gives no)\b"
    r"[^.!?]{0,40}?\b(?:say|state|mention|provide|contain|specify|describe|include|indicate|give|discuss|tell|name|"
    r"explain|information|details?|answer|refer|have|explicitly|directly)\b"
    r"|\b(?:is|are|was|were)(?: not|n['’]t)(?: \w+){0,2} (?:mentioned|stated|specified|provided|given|described|"
    r"indicated|included|available|discussed|named|clear|explicit)"
    r"|\b(?:is|are|was|were|contains?|provides?|gives?|have|find|found) no (?:\w+ )?(?:information|mention|indication|"
    r"details?|reference|record|answer)"
    r"|^\W*there (?:is|are|was|were) no\b"
    r"|^\W*(?:not (?:mentioned|specified|stated|provided|given|in the)|no information|unknown)"
    r"|\b(?:cannot|can['’]t|could not|couldn['’]t) (?:\w+ )?(?:answer|determine|find|tell|provide|say)"
    r"|\b(?:keine?|nicht)\b[^.!?]{0,40}\b(?:angaben?|information|informationen|erwähnt|genannt|angegeben|enthalten|hervor)"
    r"|\b(?:ne|n['’])\s?\w+ (?:pas|rien)\b[^.!?]{0,40}|aucune? (?:information|mention)",
    re.IGNORECASE,
)
_ASKING = (
    "happen happened happens narrator author writer writers animal job work works earn earned income person "
    "people man woman place city town country year date time age old colour color number amount cost costs price "
    "reason way thing type title word words mean meaning book text document page chapter story character role "
    "purpose end beginning main allowed summary overview list table sentence paragraph passage example difference "
    "relationship argument theme plot moral conclusion tone genre style topic subject point idea problem fact kind "
    "sort detail quote quotation section protagonist hero distance height length weight width depth size speed "
    "duration hauteur longueur poids largeur Höhe Länge Gewicht Breite Größe Entfernung"
)
"""Words of questions that do not depend on what the book is about."""
_BEFORE_NOUNS = (
    "the a an which what many much of his her their its my your our any some no other der die das den dem des ein eine "
    "einen einem eines welche welcher welches welchem welchen viele le la les un une des quel quelle quels quelles"
)
_ADJECTIVES = (
    "new old big small large great little long short high low good bad best worst first last next other same main "
    "whole early late young full own real true only second third neue neuen neuer alte alten alter große großen erste "
    "ersten letzte letzten nouveau nouvelle vieux vieille grand grande petit petite premier première dernier dernière"
)
"""Words that may stand between "the" and a noun of a question, and are no nouns themselves."""
_KIND = re.compile(r"\b(?:which|what|welche[mnrs]?|quel(?:le)?s?) ([^\W\d_]+)", re.IGNORECASE)
_OPEN = re.compile(  # "was" asks in German, but is a verb in English
    r"\W*(?:who|whom|whose|what|which|when|where|how (?:many|much)|wer|wen|wem|wessen|welche[mnrs]?|wann|wo|wie ?viele?"
    r"|qui|quand|où|combien|quel(?:le)?s?)\b(?!.*\b(?:or|oder|ou)\b)",
    re.IGNORECASE | re.DOTALL,
)
_THING = re.compile(r"(?:\bhow (?:many|much) |['’]s? )([^\W\d_]+)", re.IGNORECASE)
_PRICE = "price cost amount income"
_MONEY = re.compile(
    r"[$€£¥]|\b(?:dollars?|cents?|euros?|pounds?|shillings?|pence|francs?|marks?|mark|yen)\b", re.IGNORECASE
)
_GENERIC = frozenset(without_ending(fold_word(word)) for word in _ASKING.split())
_PLAIN = frozenset(_ADJECTIVES.split())
_PRICES = frozenset(without_ending(word) for word in _PRICE.split())
_NOUN_FOLLOWS = frozenset(_BEFORE_NOUNS.split())


def is_refusal(sentence: str) -> bool:
    """Whether a sentence only says that the book does not answer the question."""
    return _REFUSAL.search(sentence) is not None


@dataclass(frozen=True)
class Part:
    """Characters [start, end) of the text of ``document.pages[page]``."""

    page: int
    start: int
    end: int


@dataclass(frozen=True)
class Passage:
    """A sentence of the book, on one line. ``parts`` are its places on the pages: one part for each page."""

    text: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Evidence:
    """The evidence for a sentence of an answer.

    ``missing``: names and numbers of the sentence that occur nowhere in the book, as the sentence spells them.
    ``claims``: whether the sentence claims anything about the book; small talk, opinions and refusals do not.
    """

    sentence: str
    level: Level
    passages: tuple[Passage, ...] = ()
    missing: tuple[str, ...] = ()
    claims: bool = True


@dataclass(frozen=True)
class _Term:
    """A word of a sentence in three forms: ``key`` (folded and shortened) is compared with passages, ``whole`` (folded)
    with the book's names, and ``raw`` is shown.
    """

    key: str
    whole: str
    raw: str
    kind: Literal["word", "name", "number"] = "word"


@dataclass
class _Place:
    """The words of one passage, the characters [start, end) of the document's text. ``negated``: whether the passage
    negates something. ``denied``: keys that occur in it only negated.
    """

    start: int
    end: int
    keys: frozenset[str] = field(default_factory=frozenset)
    negated: bool = False
    denied: frozenset[str] = frozenset()


class EvidenceIndex:
    """Indexes a book's sentences, in about 0.5 s for 300 pages."""

    def __init__(self, document: Document) -> None:
        self.document = document
        text = document.text
        self._forms: dict[str, tuple[str, str]] = {}
        self._lower: set[str] = set()  # words that the book also writes in lower case
        self._capital: set[str] = set()  # words with a capital within a sentence
        self._large: set[str] = set()  # words with a capital anywhere
        self._places = [_Place(start, end) for start, end in _passages(text)]
        self._postings: defaultdict[str, list[int]] = defaultdict(list)
        capitals = words = 0
        for number, place in enumerate(self._places):
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
                place.denied = frozenset(self._denied(text[place.start : place.end], tokens))
            for key in place.keys:
                self._postings[key].append(number)
        self._nouns = capitals > NOUNS_CAPITALIZED * max(1, words)
        for raw, _ in tokenize(f"{document.title} {document.author}"):
            self._lower.add(self._form(raw)[0])
            self._large.add(self._form(raw)[0])
        self._names = {without_ending(whole) for whole in self._large}
        self._known = {without_ending(whole) for whole, _ in self._forms.values()}
        self._mean = max(1.0, sum(len(place.keys) for place in self._places) / max(1, len(self._places)))
        self._has_money = _MONEY.search(text) is not None

    def _denied(self, passage: str, tokens: Sequence[tuple[str, int]]) -> Iterator[str]:
        """The key of the first meaningful word after each "not", unless the word occurs in the passage once more."""
        counts = Counter(self._keys(tokens))
        for match in _DENIED.finditer(" ".join(passage.split())):
            first = next((key for raw in match[1].split() for key, _, _ in self._words(raw)), "")
            if counts[first] == 1:
                yield first

    def unmentioned(self, question: str, answered: bool = False) -> tuple[str, ...]:
        """The nouns and names of a question that the book never uses.

        Empty for a question about the whole book. Also empty for a request without a question mark, in which a noun may
        name the form of the answer ("as a table").

        Args:
            answered: whether a passage supports the answer. If so, the noun right after "which" is left out: a book may
                have the name of a disease and never the word "disease".
        """
        if not question.rstrip().endswith("?") or asks_for_whole(question):
            return ()
        nouns = _nouns(question)
        asked = [term for term in self._terms(question) if term.raw in nouns]
        found = [term.raw for term in asked if self._is_unknown(term) or self._is_price_of_nothing(term)]
        kinds = {match[1] for match in _KIND.finditer(question)} if answered else set()
        return tuple(word for word in dict.fromkeys(found) if word not in kinds)

    def lacks(self, words: str) -> bool:
        """Whether the book lacks at least one of these words, names and numbers."""
        return any(term.key not in self._postings for term in self._terms(words))

    def _is_price_of_nothing(self, term: _Term) -> bool:
        """Whether the question asks for a price, and the book has neither the word nor any amount of money."""
        return not self._has_money and without_ending(term.whole) in _PRICES and term.key not in self._postings

    def find(
        self, question: str, sentence: str, favour: Sequence[float] = (), pages_read: int | None = None
    ) -> Evidence:
        """Find the evidence for one sentence of an answer.

        Args:
            question: the question, whose words decide between passages that share the same words with the sentence.
            favour: a weight for each page, such as its attention, which decides between equal passages.
            pages_read: number of the first pages that the answer is based on. Evidence is taken only from these; None
                means all pages. Names and numbers count as not found only if the whole book lacks them.
        """
        if pages_read is None or pages_read >= len(self.document.pages):
            return self._find(question, sentence, favour, len(self._places))
        found = self._find(question, sentence, favour, self._places_within(pages_read))
        beyond = found.level == "not found" and not found.missing  # the subject may be in the part that was not read
        return replace(found, level="") if beyond else found

    def _places_within(self, pages: int) -> int:
        """Number of passages that end within the first ``pages`` pages."""
        end = self.document.page_starts[pages]
        return bisect.bisect_right(self._places, end, key=lambda place: place.end)

    def _find(self, question: str, sentence: str, favour: Sequence[float], places: int) -> Evidence:
        """Find the evidence among the first ``places`` passages."""
        terms, asked = self._terms(sentence), self._terms(question)
        if not terms or sentence.rstrip().endswith("?") or _REFUSAL.search(sentence):
            return Evidence(sentence, "", claims=False)
        talk = bool(_TALK.match(sentence))
        missing = tuple(dict.fromkeys(term.raw for term in terms if self._is_missing(term)))
        if missing and not talk:
            return Evidence(sentence, "not found", missing=missing)
        nouns = _nouns(question)
        said = {term.key for term in terms}
        stranger = any(self._is_unknown(term) and term.key in said for term in asked)
        negated = _NEGATION.search(sentence) is not None
        found = [
            self._judged(place, terms, asked, stranger, negated) for place in self._ranked(terms, asked, favour, places)
        ]
        found = [self._if_same_subject(judged, sentence) for judged in found]
        best = min(found, key=lambda judged: (judged.level != "says so", -judged.support), default=None)
        if talk and (best is None or best.level != "says so"):
            return Evidence(sentence, "", claims=False)
        if best is not None and best.level == "says so":
            return Evidence(sentence, best.level, (self._passage(best.place),))
        subject = [term for term in asked if term.raw in nouns and not _is_generic(term)]
        # If the best passage has nearly all new words of the sentence (``is_sure``), only the question's names decide
        # whether it is about the question's subject.
        if best is not None and best.is_sure:
            subject = [term for term in subject if term.kind == "name"]
        beside = self._is_beside_the_point(subject, asked, said, best) or self._is_elsewhere(question, subject, best)
        if (beside or _only_repeats(question, sentence, terms, asked)) and not asks_for_whole(question):
            strange = tuple(term.raw for term in subject if self._is_unknown(term))
            return Evidence(sentence, "not found", missing=strange)
        if best is None or not best.level:
            return Evidence(sentence, "")
        return Evidence(sentence, best.level, (self._passage(best.place),))

    def _is_beside_the_point(
        self, nouns: Sequence[_Term], asked: Sequence[_Term], said: set[str], best: _Judged | None
    ) -> bool:
        """Whether the book mentions the subject of the question nowhere, or not near the best passage.

        Args:
            nouns: names and nouns of the question.
            asked: words of the question.
            said: keys of the sentence's words.
            best: the passage that supports the sentence best, if any.
        """
        if best is None:
            return bool(nouns)
        if nouns and self._share(nouns, self._keys_around(best.place, FAR)) < ELSEWHERE:
            return True
        unknown = [term for term in nouns if self._is_unknown(term)]
        if not unknown:
            return False
        known = [term for term in asked if term.key in self._postings]
        about = self._share(known, self._keys_around(best.place, AROUND)) if known else 1.0
        return len(unknown) > 1 or about < ABOUT or any(term.key in said for term in unknown)

    def _is_elsewhere(self, question: str, nouns: Sequence[_Term], best: _Judged | None) -> bool:
        """Whether the book mentions a thing that the question counts, or calls somebody's ("David's horse"), but not
        near the best passage.
        """
        things = {match[1] for match in _THING.finditer(question)}
        near = self._keys_around(best.place, FAR) if best else set()
        return any(term.raw in things and term.key in self._postings and term.key not in near for term in nouns)

    def _share(self, terms: Sequence[_Term], keys: set[str]) -> float:
        """The share of ``terms``, by weight, that are among ``keys``."""
        return sum(self._weight(term) for term in terms if term.key in keys) / sum(map(self._weight, terms))

    def _is_unknown(self, term: _Term) -> bool:
        """Whether the book never uses a word of the question.

        If the book's language joins words, a word also counts as known if it is part of one of the book's words, or
        begins with one. Only nouns count as unknown, because verbs change too much.
        """
        if term.key in self._postings or _is_generic(term) or _ROMAN.fullmatch(term.whole):
            return False
        if not self._nouns:
            return True
        return term.raw[0].isupper() and not any(
            term.key in whole or (len(whole) >= FEW_LETTERS and term.key.startswith(whole)) for whole in self._known
        )

    def _is_missing(self, term: _Term) -> bool:
        """Whether the book lacks this name or number."""
        if term.kind == "number":
            return term.key not in self._postings
        return term.kind == "name" and without_ending(term.whole) not in self._names

    def page_scores(self, question: str) -> list[float]:
        """How promising each page is for a question: the BM25 score of its best passage."""
        found = [0.0] * len(self.document.pages)
        for place, score in self._scores({term.key: self._weight(term) for term in self._terms(question)}).items():
            if 0 <= place < len(self._places):
                page = self._page_of(self._places[place].start)
                found[page] = max(found[page], score / self._length(place))
        return found

    # Passages --------------------------------------------------------------------------------------------------

    def _ranked(
        self, terms: Sequence[_Term], asked: Sequence[_Term], favour: Sequence[float], places: int
    ) -> list[int]:
        """Rank the first ``places`` passages by BM25, and return the best."""
        said = {term.key for term in terms}
        weights = {term.key: self._weight(term) for term in terms}
        weights |= {term.key: ASKED * self._weight(term) for term in asked if term.key not in said}
        scores = self._scores(weights)
        return heapq.nlargest(
            CANDIDATES,
            (place for place in scores if 0 <= place < places),
            key=lambda place: (scores[place] / self._length(place) * self._favour(place, favour), -place),
        )

    def _scores(self, weights: Mapping[str, float]) -> dict[int, float]:
        """The summed weights of the words in each passage and in its neighbours, keyed by index of the passage. Keys
        may be one below or above the valid indices.
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

    def _length(self, place: int) -> float:
        return 1 - LENGTH_SHARE + LENGTH_SHARE * len(self._places[place].keys) / self._mean

    def _favour(self, place: int, favour: Sequence[float]) -> float:
        page = self._page_of(self._places[place].start)
        return 1.0 + FAVOUR * favour[page] / max(favour) if page < len(favour) and max(favour) > 0 else 1.0

    def _judged(
        self, place: int, terms: Sequence[_Term], asked: Sequence[_Term], stranger: bool, negated: bool
    ) -> _Judged:
        """Judge a passage by the share of a sentence's words that the passage has.

        Args:
            stranger: whether the sentence repeats a word of the question that the book never uses. If so, no passage
                can reach the level "says so".
            negated: whether the sentence negates something.
        """
        own = self._places[place].keys
        beside = self._keys_around(place, 1)
        around = self._keys_around(place, AROUND)
        question = {term.key for term in asked}

        def share(some: Sequence[_Term]) -> float:
            whole = sum(self._weight(term) for term in some)
            had = 0.0
            for term in some:
                if term.key in own:
                    had += self._weight(term)
                elif term.key in (around if term.kind == "name" else beside):
                    had += BESIDE * self._weight(term)
            return had / whole if whole else 1.0

        new = [term for term in terms if term.key not in question]
        numbers = all(term.key in own for term in new if term.kind == "number")
        names = all(term.key in own for term in new if term.kind == "name")
        others = sum(term.key in self._postings and term.key not in beside for term in new if term.kind == "word")
        same = others <= OTHER_WORDS * len(terms)
        if negated:
            same = same and self._places[place].negated
        else:
            same = same and not any(term.key in self._places[place].denied for term in terms)
        # A sentence without new words needs all its words in the passage.
        adds = bool(new) or all(term.key in own for term in terms)
        words = [term for term in terms if term.kind != "number"]
        plain = [term for term in terms if term.kind == "word"]
        said, fact, subject = share(terms), share(new), share(asked)
        needed = OF_THE_SUBJECT if len(terms) > FEW_WORDS else OF_A_FRAGMENTS_SUBJECT
        most = min(said, fact, share(words), share(plain)) >= MOST_OF_IT and subject >= needed
        if most and numbers and names and same and adds and not stranger:
            level: Level = "says so"
        else:
            level = "near" if max(said, fact if new else 0.0) >= RELATED else ""
        return _Judged(place, said + FACT * fact + SUBJECT * subject, level, len(new) >= MANY and fact >= NEARLY_ALL)

    def _if_same_subject(self, judged: _Judged, sentence: str) -> _Judged:
        """Lower the level to near if the passage attributes the sentence's statement to another person."""
        place = self._places[judged.place]
        passage = self.document.text[place.start : place.end]
        ordered = not is_german(raw for raw, _ in tokenize(sentence))
        if judged.level == "says so" and roles.contradicts(sentence, passage, self._words_of, ordered=ordered):
            return replace(judged, level="near")
        return judged

    def _words_of(self, text: str) -> list[tuple[str, int]]:
        """The meaningful words of a text, as keys, with their offsets."""
        return [(key, at) for raw, at in tokenize(text) if raw[0].isalpha() for key, _, _ in self._words(raw) if key]

    def _keys_around(self, place: int, reach: int) -> set[str]:
        near = self._places[max(0, place - reach) : place + reach + 1]
        return set().union(*(other.keys for other in near))

    def _passage(self, number: int) -> Passage:
        place = self._places[number]
        text = " ".join(self.document.text[place.start : place.end].split())
        last = self._page_of(place.end - 1)
        parts = (self._part(page, place) for page in range(self._page_of(place.start), last + 1))
        return Passage(text, tuple(part for part in parts if part.end > part.start))

    def _part(self, page: int, place: _Place) -> Part:
        """The part of a passage on one page, as character offsets in the page's own text."""
        text = self.document.pages[page].text
        body = text.strip("\n")
        lead, begin = len(text) - len(text.lstrip("\n")), self.document.page_starts[page]
        start, end = max(place.start - begin, 0), min(place.end - begin, len(body))
        words = body[start:end]
        start += len(words) - len(words.lstrip())
        return Part(page, lead + start, lead + start + len(words.strip()))

    def _page_of(self, character: int) -> int:
        return max(0, bisect.bisect_right(self.document.page_starts, character) - 1)

    # Words -----------------------------------------------------------------------------------------------------

    def _weight(self, term: _Term) -> float:
        """The weight of a word: its rarity in the book, multiplied for names and numbers."""
        known = len(self._postings.get(term.key, ()))
        count = max(1, known)
        rarity = math.log(1 + (len(self._places) - count + 0.5) / (count + 0.5))
        return rarity * {"word": 1.0, "name": NAME, "number": NUMBER}[term.kind] * (1.0 if known else UNKNOWN)

    def _terms(self, sentence: str) -> list[_Term]:
        """The meaningful words and the numbers of a sentence, each once."""
        text = _LINE_NUMBER.sub(lambda match: " " * len(match[0]), sentence)
        tokens = list(tokenize(text))
        found: dict[str, _Term] = {}
        capitals = [raw[0].isupper() for raw, _ in tokens if raw[0].isalpha()]
        heading = len(capitals) >= SHORTEST_HEADING and sum(capitals) > 0.7 * len(capitals)
        german = is_german(raw for raw, _ in tokens)
        for key, raw, _ in numbers_in(tokens, text):
            found.setdefault(key, _Term(key, key, raw, "number"))
        for raw, start in tokens:
            if not raw[0].isalpha():
                continue
            for key, whole, piece in self._words(raw):
                behind = text[start + len(raw) :]
                name = piece[0].isupper() and not german and self._is_name(whole, text[:start], behind, heading)
                found.setdefault(key, _Term(key, whole, piece, "name" if name else "word"))
        if len(tokens) <= FEW_WORDS and not german:
            return [self._as_fact(term) for term in found.values()]
        return list(found.values())

    def _is_name(self, whole: str, before: str, behind: str, heading: bool) -> bool:
        """Whether a capitalised word is a name.

        If the book also writes the word in lower case, or capitalises every noun, only a quoted word that the book
        never capitalises is a name. Otherwise, at the start of a sentence and in a heading, a word is a name if the
        book capitalises it within sentences; elsewhere it always is. A single word in quotation marks starts no
        sentence.

        Args:
            before: the sentence up to the word.
            behind: the sentence after the word.
            heading: whether the word is in a heading.
        """
        if _ROMAN.fullmatch(whole):
            return False
        if self._nouns or whole in self._lower:
            return bool(_QUOTED.search(before)) and whole not in self._large
        is_start = _STARTS.search(before) and not (_QUOTED.search(before) and behind[:1] in '”“"»’')
        return whole in self._capital if heading or is_start else True

    def _as_fact(self, term: _Term) -> _Term:
        """Turn a capitalised word of a very short answer into a name if the book lacks the word, because the word is
        the answer's fact. Returns any other word unchanged.
        """
        known = term.kind != "word" or not term.raw[0].isupper() or self._nouns or term.key in self._postings
        return term if known else replace(term, kind="name")

    def _words(self, raw: str) -> Iterator[tuple[str, str, str]]:
        """The key, the folded form and the letters of a word, if it has a meaning. In scripts without spaces, those of
        each pair of characters.
        """
        if raw[0] >= _NO_SPACES:
            for at in range(max(1, len(raw) - 1)):
                yield raw[at : at + 2], raw[at : at + 2], raw[at : at + 2]
            return
        whole, key = self._form(raw)
        if key and whole not in NUMBER_WORDS:
            yield key, whole, raw

    def _form(self, raw: str) -> tuple[str, str]:
        """The folded form of a word, and the key that is compared, which is "" for a word without meaning."""
        known = self._forms.get(raw)
        if known is None:
            whole = fold_word(raw)
            silent = (
                whole in SILENT_WORDS
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


@dataclass(frozen=True)
class _Judged:
    """A passage compared with a sentence. ``support`` is its rank among other passages. ``is_sure``: whether the
    passage has nearly all new words (those not in the question), and these are many.
    """

    place: int
    support: float
    level: Level
    is_sure: bool


def _passages(text: str) -> Iterator[tuple[int, int]]:
    """The starts and ends of a text's passages, which are sentences and rows of tables."""
    for start, end in spans(text):
        if _ROW.search(text, start, end) is None:
            yield start, end
            continue
        for line in re.finditer(r"[^\n]+", text[start:end]):
            yield start + line.start(), start + line.end()


def _only_repeats(question: str, sentence: str, terms: Sequence[_Term], asked: Sequence[_Term]) -> bool:
    """Whether a sentence answers "who", "which" or the like with no words but the question's: "The barber attended a
    university." A sentence that ends with a colon introduces the answer. A question with "or" contains its answer.
    """
    known = {term.key for term in asked}
    open_question = _OPEN.match(question) is not None and not sentence.rstrip("* \n").endswith(":")
    return open_question and all(term.key in known for term in terms)


def _is_generic(term: _Term) -> bool:
    return without_ending(term.whole) in _GENERIC


def _nouns(question: str) -> set[str]:
    """The words of a question that are nouns, judged by the word before, or by a capital within the question."""
    words = [raw for raw, _ in tokenize(question)]
    found = {word for word in words[1:] if word[0].isupper()}
    expected = False
    for word in words:
        if expected and word.lower() not in _PLAIN:
            found.add(word)
        plain = expected and word.lower() in _PLAIN
        expected = plain or word.lower() in _NOUN_FOLLOWS or word.endswith(("'s", "’s", "s'", "s’"))
        if word[:2].lower() in ("l'", "l’", "d'", "d’"):
            found.add(word)
    return found
