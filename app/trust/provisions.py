"""Compares sentences in which a document allows, forbids or requires something with its passages.

    passive("The lease allows dogs.")                                     "dogs are allowed."
    states("Dogs and cats are allowed.", "dogs are allowed.", "passive", words)      True

Passages do not name the document that they stand in, so such a sentence is compared in the passive voice. A passage
states it in one clause, in either voice: "Nets are forbidden, but lines are allowed" allows no nets. A condition or an
exception of the clause belongs to it: "All pets except dogs are allowed" allows no dogs. English only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
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
# "are allowed", or "allows"; a permit is a noun before some words
_PROVIDED = re.compile(
    rf"\b(?:(?:is|are|be|been|not|and|but|\w+ly) (?P<passive>{'|'.join(_PARTICIPLES.values())})"
    rf"|(?P<active>{'|'.join(_PARTICIPLES)})s?(?! (?:for|to|of|from|is|are|was|were|must|has|have)\b))\b"
)
_LIMITS = re.compile(
    r"\b(?:only (?:after|at|by|for|from|in|on|to|when|with|within)|if|whether|unless|until"
    r"|except|excluding|besides|other than|apart from|outside|without|against|might|could|would|may be|was|were)\b",
    re.IGNORECASE,
)
_NOT_ONLY = re.compile(r"\bnot (?:only|just|merely)\b")
_WHERE = re.compile(r" (?=(?:in|on|at|from|with|for|during|between|after|before|without|inside|outside)\b)")
_BUT = r"[;:]\s|\s(?=(?:but|while|whereas|unless|except)\b)"
_CONTRAST = re.compile(rf",\s|{_BUT}")
_AFTER_LIST = re.compile(_BUT)  # things behind a verb in the active are listed with commas
_BETWEEN_TWO = re.compile(rf"{_CONTRAST.pattern}|\s(?=and\b)")


def is_verb(word: str) -> bool:
    """Whether a word is a form of a verb such as "allow"."""
    return without_ending(word) in _VERBS


def passive(sentence: str) -> str:
    """Return a sentence in which the document allows or requires something in the passive voice; "" for any other, also
    for one with a second such verb.
    """
    found = _OF_THE_DOCUMENT.match(sentence)
    if found is None or _PROVIDED.search(found["what"]):
        return ""
    what, *rest = _WHERE.split(found["what"], maxsplit=1)
    return " ".join([what, "are not" if found["denied"] else "are", _PARTICIPLES[found["verb"].lower()], *rest]) + "."


def states(passage: str, provision: str, voice: str, words: Words) -> bool:
    """Whether a clause of a passage has all words of a provision, its "not", and neither a "not" nor a limit that the
    provision lacks. The provision's first word stands before a verb in the passive, and behind one in the active.

    Args:
        provision: what ``passive`` returned.
        voice: "active" or "passive", that of the clause.
        words: finds the meaningful words of a text.
    """
    verb = next(found["passive"] for found in _PROVIDED.finditer(provision) if found["passive"])
    every = [key for key, _ in words(provision)]
    return any(
        found[voice] is not None
        and _PARTICIPLES.get(found[voice], found[voice]) == verb
        and {key for key, _ in words(clause)}.issuperset(every)
        and {key for key, _ in words(_things(clause, found))}.issuperset(every[:1])
        and is_negated(clause) == is_negated(provision)
        and _limits(clause) <= _limits(provision)
        for clause in map(partial(_NOT_ONLY.sub, ""), _clauses(passage))
        for found in _PROVIDED.finditer(clause)
    )


def _things(clause: str, found: re.Match[str]) -> str:
    """What is allowed or required: the words before a verb in the passive, or behind one in the active."""
    return clause[: found.start()] if found["passive"] else clause[found.end() :]


def _limits(text: str) -> set[str]:
    return set(map(str.lower, _LIMITS.findall(text)))


def _clauses(passage: str) -> Iterator[str]:
    """Cut a passage into clauses, each of which allows or requires something at most once."""
    for start, end in pairwise((0, *sentence_ends(passage), len(passage))):
        begun = start
        for first, second in pairwise(_PROVIDED.finditer(passage, start, end)):
            borders = list(_BETWEEN_TWO.finditer(passage, first.end(), second.start(second.lastgroup or 0)))
            if borders:
                border = borders[-1 if second["active"] else 0]
                yield passage[begun : border.start()]
                begun = border.end()
        last = next(_PROVIDED.finditer(passage, begun, end), None)
        ends = _AFTER_LIST if last and last["active"] else _CONTRAST
        ended = last and ends.search(passage, last.end(), end)
        yield passage[begun : ended.start() if ended else end]
