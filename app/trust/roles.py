"""Compares roles: finds passages that attribute a sentence's statement to another person.

    contradicts("The tenant insures it.", "The landlord insures it.", words, ordered=True, told=False)    True

Shared words cannot distinguish two persons who are both named in or near a passage. Therefore the clause of the passage
with most of the sentence's words must name the sentence's subject or refer back to it ("it", "her husband"). Also,
subject, verb and object must be in the same order in clause and sentence, or in the reverse order if only one of the
two is passive.

Uses no grammar except some words of English, German and French. In unclear cases the statement counts as attributed to
another person, so some correct sentences are not recognised as such.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from heapq import merge
from itertools import pairwise

from app.language.tokens import RUN
from app.language.words import FIRST_PERSON, THIRD_PERSON
from engine.languages import sentence_ends

Words = Callable[[str], Sequence[tuple[str, int]]]
"""A function that returns the words of a text without stop words. Each word is a pair: the form in which words are
compared, and the offset in the text.
"""

AGENT_WITHIN = 40
"""Maximum distance in characters between the start of a verb and its agent ("by the landlord")."""
INVERTED_WITHIN = 12
"""Maximum distance in characters between the start of a verb and a pronoun that is its subject: "entdeckte er"."""

FEWEST_SHARED = 0.5
"""Minimum share of a sentence's words, apart from its subject, that a clause must have. With a smaller share, the
passage counts as about another person.
"""

_APART = re.compile(
    r";[”\"’)]*\s+(?=\S)|\s\|\s|\n\s*\n"
)  # what separates clauses within a sentence, cells and paragraphs
_AUXILIARY = re.compile(
    r"\b(?:is|are|was|were|has|have|had|will|would|can|could|may|might|must|shall|should|did|does|do"
    r"|ist|sind|war|waren|wird|werden|wurde|wurden|hat|haben|hatte|kann|muss|darf|soll"
    r"|est|sont|était|étaient|fut|furent|ont|avait|avaient|doit|peut|sera)\b",
    re.IGNORECASE,
)
_IS = re.compile(
    r"(?:is|are|was|were|ist|sind|war|waren|est|sont|était|étaient|fut|furent)\b(?! to [a-z])", re.IGNORECASE
)
_WHO = re.compile(r",\s+(?:who|der|die|qui)\s")
_PRONOUN = re.compile(rf"\b(?:{THIRD_PERSON}|them|him|you)\b", re.IGNORECASE)
_NARRATOR = re.compile(r"\b(?:I|[Ww]e|ich|wir|je|nous)\b|\b(?i:my|our|mein|unser|mon|ma|notre)\b")
_HE = re.compile(rf"\W*(?:{THIRD_PERSON}|{FIRST_PERSON})\s", re.IGNORECASE)
_POSSESSIVE = re.compile(
    r"\W*(?:and |but |when |then |und |et |mais )?"
    r"(?:his|her|its|their|sein|seine[mnrs]?|ihr|ihre[mnrs]?|son|sa|ses|leurs?)\b",
    re.IGNORECASE,
)
_PART = re.compile(r"[,;:]|\b(?:that|which|who|because|when|if|dass|weil|que|qui)\b", re.IGNORECASE)
_AGENT = re.compile(r"\b(?:by|par)\s", re.IGNORECASE)


def contradicts(sentence: str, passage: str, words: Words, *, ordered: bool, told: bool) -> bool:
    """Whether a passage attributes a sentence's statement to a person other than the sentence's subject.

    Args:
        words: finds the meaningful words of a text.
        ordered: whether the language puts the subject before the verb.
        told: whether the sentence's subject is the narrator of the text, so that "I" and "we" may mean this person.
    """
    said = [(key, start) for key, start in words(sentence) if not _AUXILIARY.match(sentence, start)]
    if _plain(sentence) in _plain(passage):
        return False
    auxiliary = _AUXILIARY.search(sentence)
    if auxiliary is not None and _PART.search(sentence, 0, auxiliary.start()):
        auxiliary = None
    subject = set() if _HE.match(sentence) else _subject(sentence, said, auxiliary)
    others = [key for key, _ in said if key not in subject]
    if not subject or not others:
        return False
    clause = max(_clauses(passage), key=lambda one: len({key for key, _ in words(one)}.intersection(others)))
    there = words(clause)
    places = dict(reversed(there))
    shared = [(key, start) for key, start in said if key in places and key not in subject]
    if len(shared) < FEWEST_SHARED * len(others):
        return True
    verb = places[shared[0][0]]
    stands = min((places[key] for key in subject if key in places), default=None)
    is_passive = _has_agent(sentence, shared[0][1])
    is_state = auxiliary is not None and _IS.match(sentence, auxiliary.start()) is not None and not is_passive
    if stands is None:
        elsewhere = is_state and not subject.isdisjoint(key for key, _ in words(passage))
        return not elsewhere and not _refers_back(clause, verb, told)
    if (is_state or is_passive) and _is_of_another_clause(sentence, said, auxiliary, there, words(passage)):
        return True
    if is_state or not ordered:
        return False
    objects = [places[key] for key, _ in shared[1:]]
    if is_passive != _has_agent(clause, verb):
        return stands < verb and any(place > verb for place in objects)
    turned = stands > verb and any(place < verb for place in objects)
    return turned or (not is_passive and _is_anothers(clause, there, verb, subject))


def _plain(text: str) -> str:
    """Join the casefolded words of a text with single spaces, and put a space before and after, so that ``in`` finds
    only whole words.
    """
    return f" {' '.join(RUN.findall(text.casefold()))} "


def _clauses(passage: str) -> list[str]:
    cuts = merge(sentence_ends(passage), (match.end() for match in _APART.finditer(passage)))
    clauses = (passage[start:end] for start, end in pairwise((0, *cuts, len(passage))))
    return [clause for clause in clauses if clause.strip(" |\n")] or [passage]


def _subject(sentence: str, words: Sequence[tuple[str, int]], auxiliary: re.Match[str] | None) -> set[str]:
    """The keys of a sentence's words before its auxiliary verb. If there are no such words, the keys of the first word
    and of the capitalized words right after it, which may belong to the same name.
    """
    if auxiliary is not None and (before := {key for key, start in words if start < auxiliary.start()}):
        return before
    found: set[str] = set()
    for key, start in words:
        if found and not (sentence[start].isupper() and sentence[start - 1] in " -."):
            break
        found.add(key)
    return found


def _refers_back(clause: str, verb: int, told: bool) -> bool:
    """Whether a clause refers to a person named before the clause: by a possessive at its beginning, or by a pronoun
    before its verb or shortly after. A clause about "me" only refers to the narrator (``told``).
    """
    found = [*_PRONOUN.finditer(clause, 0, verb + INVERTED_WITHIN), *_NARRATOR.finditer(clause, 0, verb)]
    # the one before the verb, or else right after it
    nearest = max(found, key=lambda one: (one.start() < verb, one.start()), default=None)
    if nearest is not None and nearest.re is _NARRATOR:
        return told
    return nearest is not None or _POSSESSIVE.match(clause) is not None


def _has_agent(text: str, verb: int) -> bool:
    return _AGENT.search(text, verb, verb + AGENT_WITHIN) is not None


def _is_of_another_clause(
    sentence: str,
    said: Sequence[tuple[str, int]],
    auxiliary: re.Match[str] | None,
    there: Sequence[tuple[str, int]],
    passage: Sequence[tuple[str, int]],
) -> bool:
    """Whether what a sentence says its subject is ("X was Harry's cook") stands in the passage, but not in the clause
    ``there`` with the subject.
    """
    start = auxiliary.end() if auxiliary is not None else 0
    end = next((match.start() for match in _PART.finditer(sentence, start)), len(sentence))
    own, every = {key for key, _ in there}, {key for key, _ in passage}
    return any(key in every - own for key, at in said if start <= at < end)


def _is_anothers(clause: str, words: Sequence[tuple[str, int]], verb: int, subject: set[str]) -> bool:
    """Whether a name other than the subject stands directly before the verb, without a comma in between, or with
    nothing but "who".
    """
    before = [(key, start) for key, start in words if start < verb]
    if not before or not clause[before[-1][1]].isupper():
        return False
    between = clause[before[-1][1] : verb]
    if "," in between and not _WHO.search(between):
        return False
    return not subject.intersection(key for key, start in before if start == before[-1][1])
