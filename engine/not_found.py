"""The rules by which a sentence is "not found" in a book, and which words of its question the book never uses.

A sentence is *not found* in three cases. First, the book never mentions the subject of the question, or only far from
the best passage. Second, the question counts a thing ("how many horses") or names it with its owner ("David's horse"),
and the book mentions this thing only far from the best passage. Third, the sentence only repeats the question.

Takes the question's words and the place of the best passage. The levels are decided in ``engine.evidence``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.book_words import AROUND, ROMAN, BookWords, Term, is_negated, is_title
from engine.passages import asks_for_whole
from engine.words import fold_word, tokenize, without_ending

FAR = 8
"""Maximum distance, in passages, of the question's names and nouns from the best passage."""
ELSEWHERE = 0.4
"""Minimum share of a question's names and nouns within ``FAR`` of a passage. Below it, the passage is about a different
subject.
"""
ABOUT = 0.5
"""Minimum share of the question's known words near a passage, for the passage to count as about the question."""

ABOUT_IT = 0.7
"""Like ``ABOUT``, if the question's names are far from the passage. The passage may still be about them, because the
book may say "he".
"""

_ASKING = (
    "happen happened happens narrator author writer writers animal job work works earn earned income person "
    "people man woman place city town country year date time age old colour color number amount cost costs price "
    "reason way thing type title word words mean meaning book text document page chapter story character role "
    "purpose end beginning main allowed summary overview list table sentence paragraph passage example difference "
    "relationship argument theme plot moral conclusion tone genre style topic subject point idea problem fact kind "
    "sort detail quote quotation section protagonist hero distance height length weight width depth size speed "
    "duration hauteur longueur poids largeur Höhe Länge Gewicht Breite Größe Entfernung day week month hour minute "
    "mile meter metre kilometer kilometers kilometre foot feet percent dollar euro pound Tag Tagen Woche Monat Stunde "
    "Prozent"
)
"""Words of questions that do not depend on what the book is about, with the units in which an answer may be given."""
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
_OPEN = re.compile(  # German "was" is left out, because it is a verb in English
    r"\W*(?:who|whom|whose|what|which|when|where|how (?:many|much)|wer|wen|wem|wessen|welche[mnrs]?|wann|wo|wie ?viele?"
    r"|qui|quand|où|combien|quel(?:le)?s?)\b(?!.*\b(?:or|oder|ou)\b)",
    re.IGNORECASE | re.DOTALL,
)
_YES_OR_NO = re.compile(  # a second part of a question that is answered by yes or no
    r"(?:,|\band)\s+(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would)\b"
    r"|(?:,|\bund)\s+(?:ist|sind|war|waren|hat|hatte|wird|wurde|kann)\b|(?:,|\bet)\s+(?:est|sont|était)\b",
    re.IGNORECASE,
)
_CHOICE = re.compile(  # "Which of Karl and Hans ..."
    r"\W*(?:who|which|wer|welche[mnrs]?|qui)\b.{0,60}?\b(?:of|between|among|von|zwischen|unter|de|entre)\b"
    r".{1,60}?\b(?:and|und|et)\b",
    re.IGNORECASE | re.DOTALL,
)
_COUNTING = re.compile(r"\W*(?:how many|wie ?viele|combien)\b", re.IGNORECASE)
_ONE = re.compile(r"\b(?:one|zero)\b", re.IGNORECASE)
_ONE_COUNTED = re.compile(r"\b(?:one|zero|an?|eine?[mnr]?|une?)\b", re.IGNORECASE)  # in answers to ``_COUNTING``
_THING = re.compile(r"(?:\bhow (?:many|much) |['’]s? )([^\W\d_]+)", re.IGNORECASE)
_PRICE = "price cost amount income"
_MONEY = re.compile(
    r"[$€£¥]|\b(?:dollars?|cents?|euros?|pounds?|shillings?|pence|francs?|marks?|mark|yen)\b", re.IGNORECASE
)
_GENERIC = frozenset(without_ending(fold_word(word)) for word in _ASKING.split())
_PLAIN = frozenset(_ADJECTIVES.split())
_PRICES = frozenset(without_ending(word) for word in _PRICE.split())
_NOUN_FOLLOWS = frozenset(_BEFORE_NOUNS.split())


class Absence:
    """Decides which words and which subject of a question a book lacks."""

    def __init__(self, words: BookWords) -> None:
        self._words = words
        self._has_money = _MONEY.search(words.document.text) is not None

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
        nouns = nouns_of(question)
        asked = [term for term in self._words.terms(question) if term.raw in nouns]
        found = [term.raw for term in asked if self.is_unknown(term) or self._is_price_of_nothing(term)]
        kinds = {match[1] for match in _KIND.finditer(question)} if answered else set()
        return tuple(word for word in dict.fromkeys(found) if word not in kinds)

    def is_unknown(self, term: Term) -> bool:
        """Whether the book never uses a word of the question.

        In a language that joins words, such as German, a word also counts as known if ``BookWords.is_joined``. There
        only nouns count as unknown, because the forms of verbs differ too much.
        """
        if self._words.has(term) or is_generic(term) or ROMAN.fullmatch(term.whole):
            return False
        if not self._words.nouns_capitalized:
            return True
        return term.raw[0].isupper() and not self._words.is_joined(term)

    def is_beside_the_point(
        self, nouns: Sequence[Term], asked: Sequence[Term], said: set[str], best: int | None
    ) -> bool:
        """Whether the book mentions the subject of the question nowhere, or not near the best passage.

        Args:
            nouns: names and nouns of the question.
            asked: words of the question.
            said: keys of the sentence's words.
            best: index of the passage that supports the sentence best, if any.
        """
        if best is None:
            return bool(nouns)
        known = [term for term in asked if self._words.has(term)]
        about = self._words.share(known, self._words.keys_around(best, AROUND)) if known else 1.0
        near = self._words.share(nouns, self._words.keys_around(best, FAR)) if nouns else 1.0
        unknown = [term for term in nouns if self.is_unknown(term)]
        if near < ELSEWHERE and (about < ABOUT_IT or any(term.kind == "name" for term in unknown)):
            return True
        if not unknown:
            return False
        return len(unknown) > 1 or about < ABOUT or any(term.key in said for term in unknown)

    def is_elsewhere(self, question: str, nouns: Sequence[Term], best: int | None) -> bool:
        """Whether the book mentions a thing that the question counts, or names with its owner ("David's horse"), but
        not near the best passage.
        """
        things = {match[1] for match in _THING.finditer(question)}
        near = self._words.keys_around(best, FAR) if best is not None else set()
        return any(term.raw in things and self._words.has(term) and term.key not in near for term in nouns)

    def _is_price_of_nothing(self, term: Term) -> bool:
        """Whether the question asks for a price, and the book has neither the word nor any amount of money."""
        return not self._has_money and without_ending(term.whole) in _PRICES and not self._words.has(term)


def only_repeats(question: str, sentence: str, terms: Sequence[Term], asked: Sequence[Term]) -> bool:
    """Whether a sentence answers "who", "which" or the like with no words but the question's: "The barber attended a
    university."

    False for a heading, which introduces the answer; for a sentence with an answer that is not compared, such as "no",
    "nobody" or "one"; and for a question that contains its answer: with "or", with "which of ... and ...", or with a
    second part such as "and is it ...?".
    """
    if _OPEN.match(question) is None or _YES_OR_NO.search(question) or _CHOICE.match(question):
        return False
    one = _ONE_COUNTED if _COUNTING.match(question) else _ONE
    if is_title(sentence) or is_negated(sentence) or one.search(sentence):
        return False
    known = {term.key for term in asked}
    return all(term.key in known for term in terms)


def is_generic(term: Term) -> bool:
    """Whether a word of a question does not depend on what the book is about."""
    return without_ending(term.whole) in _GENERIC


def nouns_of(question: str) -> set[str]:
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
