"""Compares sentences in which a document allows, forbids or requires something with its passages.

    passive("The lease allows dogs.")                                     "dogs are allowed."
    states("Dogs and cats are allowed.", "dogs are allowed.", words)      True

Passages do not name the document that they stand in, so such a sentence is compared in the passive voice. A passage
states it in one clause: "Nets are forbidden, but lines are allowed" allows no nets. English only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from app.language.words import without_ending
from app.trust.book_words import is_negated
from app.trust.roles import Words
from engine.languages import sentence_ends

_PARTICIPLES = {
    "allow": "allowed",
    "forbid": "forbidden",
    "permit": "permitted",
    "prohibit": "prohibited",
    "recommend": "recommended",
    "require": "required",
}
_VERBS = frozenset(without_ending(form) for verb, done in _PARTICIPLES.items() for form in (verb, f"{verb}s", done))
_OF_THE_DOCUMENT = re.compile(
    r"^\W*(?:(?:yes|no),? )?(?:the|this) (?:agreement|book|contract|document|guide|handbook|law|lease|manual|policy"
    r"|report|rules?|text)(?: \w+ly)?(?P<denied> (?:do|does)(?: not|n['’]t))?"
    rf" (?P<verb>{'|'.join(_PARTICIPLES)})s? (?P<what>[^.!?;]+)",
    re.IGNORECASE,
)
_PROVIDED = re.compile(rf"\b(?:is|are|was|were|be|been|not|and|but|\w+ly) ({'|'.join(_PARTICIPLES.values())})\b")
_WHERE = re.compile(r" (?=(?:in|on|at|from|with|for|during|between|after|before|without|inside|outside)\b)")
_CONTRAST = re.compile(r"[,;:]\s|\s(?=(?:but|while|whereas|unless|except)\b)")
_BETWEEN_TWO = re.compile(rf"{_CONTRAST.pattern}|\s(?=and\b)")


def is_verb(word: str) -> bool:
    """Whether a word is a form of a verb such as "allow"."""
    return without_ending(word) in _VERBS


def passive(sentence: str) -> str:
    """Return a sentence in which the document allows or requires something in the passive voice; "" for any other."""
    if (found := _OF_THE_DOCUMENT.match(sentence)) is None:
        return ""
    what, *rest = _WHERE.split(found["what"], maxsplit=1)
    return " ".join([what, "are not" if found["denied"] else "are", _PARTICIPLES[found["verb"].lower()], *rest]) + "."


def states(passage: str, provision: str, words: Words) -> bool:
    """Whether a clause of a passage has all words of a provision, its verb in the same form behind its first word, its
    "not", and no "not" that the provision lacks.

    Args:
        provision: what ``passive`` returned.
        words: finds the meaningful words of a text.
    """
    verb = next(_PROVIDED.finditer(provision))
    every = [key for key, _ in words(provision)]
    return any(
        found[1] == verb[1]
        and {key for key, _ in words(clause)}.issuperset(every)
        and {key for key, _ in words(clause[: found.start()])}.issuperset(every[:1])
        and is_negated(clause) == is_negated(provision)
        for clause in _clauses(passage)
        for found in _PROVIDED.finditer(clause)
    )


def _clauses(passage: str) -> Iterator[str]:
    """Cut a passage into clauses, each of which allows or requires something at most once."""
    for start, end in pairwise((0, *sentence_ends(passage), len(passage))):
        begun = start
        for first, second in pairwise(_PROVIDED.finditer(passage, start, end)):
            if border := _BETWEEN_TWO.search(passage, first.end(), second.start(1)):
                yield passage[begun : border.start()]
                begun = border.end()
        last = next(_PROVIDED.finditer(passage, begun, end), None)
        border = last and _CONTRAST.search(passage, last.end(), end)
        yield passage[begun : border.start() if border else end]
