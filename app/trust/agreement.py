"""Compares the facts of a sentence with a passage that has its words: whether each number has the same unit, belongs to
the same words.

    disagrees("Oil costs 6.", "", "Flour costs 6 and oil 8.")      True

A passage is divided into segments, at commas, brackets and words such as "and" and "to". A word of the sentence that
stands only in segments with other numbers than the sentence's belongs to these numbers.

Knows nothing of a book's other passages. In unclear cases sentence and passage agree.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

from app.language.tokens import tokenize
from app.language.words import fold_word, is_first_name, numbers_in, says_nothing, without_ending
from app.trust.figures import Quantity, differs_in_unit, figures, stems
from engine.languages import sentence_ends

_SEGMENT = re.compile(
    r"[,;:)\]](?!\d)|\s[–—-]\s|\b(?:and|or|to|than|but|while|whereas|from|versus|vs|compared|up|down"
    r"|und|oder|auf|als|aber|während|gegenüber|et|ou|mais|contre|y|o|pero|frente)\b",
    re.IGNORECASE,
)
_FEW = 4
"""Maximum number of words all of which must be in their places for an exchange of two to be sure."""
_MOST = 40
"""Maximum number of words whose order is compared, because the time grows with the fourth power of their number."""
_ITEM = re.compile(r"^[ \t]*+\d{1,2}[.)]\s", re.MULTILINE)  # the number of a list's item
_FEWEST_SHARED = 0.6
"""Minimum share of a sentence's words that a passage must have for their order to be compared."""
_RANGE = re.compile(r"(?<!\d)(\d++(?:[.,]\d++)?)\s*+[–-]\s*+(\d+(?:[.,]\d+)?)")
_YEAR = re.compile(r"#(?:1\d|20)\d\d")
_AGENT = re.compile(r"\b(?:by|von|par|por)\s", re.IGNORECASE)
_ONLY = re.compile(
    r"\b(?:only|solely|exclusively|nur|ausschließlich|seulement|uniquement|solo|sólo|solamente)\b"
    r"((?:\s+[^\s.,;:]+){0,2})",
    re.IGNORECASE,
)
_ONE = re.compile(r"\b(?:one|a single)[ -]([^\W\d_]+)", re.IGNORECASE)
_FULL_NAME = re.compile(r"\b([A-ZÀ-ÖØ-Þ][\w’'-]+) ([A-ZÀ-ÖØ-Þ][\w’'-]+)")
_THING = re.compile(r"[ -][“\"„«‘]?([^\W\d_]+)")  # what a number before it counts
# A verb that says little with a word that gives it its meaning: "given up", "went on".
_WITH_PARTICLE = re.compile(
    r"\b(?:g[aio]v\w+|goes|go|going|gone|went|t[ao]k\w+|put\w*|set\w*|turn\w*|c[ao]m(?:e|es|ing)|came|call\w*|carr\w+|br[io]\w+"
    r"|kept|keep\w*|held|hold\w*|ma[dk]e|making) (up|off|out|down|back|over|away|on|in)\b(?! the\b| an?\b| [A-Z\d])"
)
_PASSIVE = re.compile(
    r"\b(?:is|are|was|were|be|been|being)\s+(?:\w+ly\s+)?(\w{2,}(?:ed|en|wn|nt|pt|ght|ld|de))\b", re.I
)
_OPPOSITE_WORDS = (
    ("allow allowed permit permitted may", "prohibit prohibited forbid forbidden"),
    ("rise rose risen increase increased grow grew grown", "fall fell fallen decrease decreased shrink shrank decline"),
    ("buy bought purchase purchased", "sell sold"),
    ("before", "after"),
    ("above", "below beneath"),
    ("first", "last"),
    ("highest maximum most", "lowest minimum least"),
    ("more higher larger greater", "less fewer lower smaller"),
    ("north northern", "south southern"),
    ("east eastern", "west western"),
    ("left", "right"),
    ("win won", "lose lost"),
    ("accept accepted", "refuse refused reject rejected"),
    ("begin began begun start started", "end ended finish finished"),
    ("open opened", "close closed shut"),
    ("clockwise", "counterclockwise anticlockwise"),
    ("alive", "dead"),
    ("include included", "exclude excluded"),
)
"""Words that turn a statement, in pairs."""
_OPPOSITES = tuple(
    pair
    for one, other in _OPPOSITE_WORDS
    for first, second in ((frozenset(stems(one)), frozenset(stems(other))),)
    for pair in ((first, second), (second, first))
)


def disagrees(sentence: str, question: str, passage: str) -> bool:
    """Whether a passage has the numbers of a sentence, but for another thing, unit or period than the sentence.

    Args:
        question: the question that the sentence answers.
    """
    if not _only(sentence) <= _only(passage) | _only(question) or _has_opposite(sentence, passage):
        return True
    passage = _ITEM.sub("", passage)
    said, there = figures(sentence), figures(passage)
    if _names_relative(sentence, passage):
        return True
    if _counts_otherwise(sentence, passage) or _lacks_particle(sentence, question, passage):
        return True
    if not said:
        return False
    if differs_in_unit(said, there) or _splits_a_range(sentence, passage):
        return True
    return _belongs_to_others(said, sentence, passage)


def _names_relative(sentence: str, passage: str) -> bool:
    """Whether a sentence has a first name and a last name, of which the passage has the last name only with another
    first name.
    """
    said, there = _full_names(sentence), _full_names(passage)
    return any(last in there and not firsts & there[last] for last, firsts in said.items())


def _full_names(text: str) -> dict[str, set[str]]:
    """The first names before each last name of a text."""
    found = defaultdict(set)
    for match in _FULL_NAME.finditer(text):
        if is_first_name(fold_word(match[1])):
            found[fold_word(match[2])].add(fold_word(match[1]))
    return found


def _only(text: str) -> set[str]:
    """The meaningful words directly after "only"."""
    return {key for match in _ONLY.finditer(text) for key in sorted(stems(match[1])) or [""]}


def _has_opposite(sentence: str, passage: str) -> bool:
    """Whether a sentence has a word of ``_OPPOSITES``, and the passage only the opposite one, or the sentence of the
    passage that has most of the other words.
    """
    said = stems(sentence)
    parts = [stems(passage[start:end]) for start, end in pairwise((0, *sentence_ends(passage), len(passage)))]
    for first, second in _OPPOSITES:
        if not said & first or said & second:
            continue
        nearest = max(parts, key=lambda part: len(part & said - first))
        if any(there & second and not there & first for there in (stems(passage), nearest)):
            return True
    return False


def _counts_otherwise(sentence: str, passage: str) -> bool:
    """Whether a sentence has a number of some thing, of which the passage has only other numbers."""
    said, there = _counted(sentence), _counted(passage)
    return any(thing in there and not numbers & there[thing] for thing, numbers in said.items())


def _counted(text: str) -> dict[str, set[str]]:
    """The numbers directly before each word of a text, by the word."""
    found = defaultdict(set)
    for value, raw, start in numbers_in(list(tokenize(text)), text):
        if word := _THING.match(text, start + len(raw)):
            found[_stem(word[1])].add(value)
    for match in _ONE.finditer(text):
        found[_stem(match[1])].add("#1")
    return found


def _lacks_particle(sentence: str, question: str, passage: str) -> bool:
    """Whether a verb of the sentence has its meaning from a word that neither passage nor question has."""
    there = f"{question} {passage}".lower()
    return any(not re.search(rf"\b{match[1]}\b", there) for match in _WITH_PARTICLE.finditer(sentence))


def _stem(word: str) -> str:
    return without_ending(fold_word(word.strip(" -")))


def exchanges(sentence: str, passage: str) -> bool:
    """Whether a sentence has the words of a passage in the passage's order, but with two of them, or two groups of
    them, in each other's place: "5 (warm) to 1 (cold)" for "5 (cold) to 1 (warm)". Words that either has twice do not
    count. A sentence in the passive voice may exchange subject and object.
    """
    said, there = _once(sentence), _once(passage)
    every = len(said)
    verbs = {_stem(match[1]) for text in (sentence, passage) for match in _PASSIVE.finditer(text)}
    said = [key for key in said if key not in verbs]
    said, there = [key for key in said if key in there], [key for key in there if key in said]
    if len(said) < _FEWEST_SHARED * every or len(said) > _MOST:
        return False
    while said and said[0] == there[0]:
        del said[0], there[0]
    while said and said[-1] == there[-1]:
        del said[-1], there[-1]
    if bool(_AGENT.search(sentence)) != bool(_AGENT.search(passage)):
        return False
    without = [key for key in said if len(said) > _FEW and key != said[-1]]
    return _is_exchanged(said, there) or any(
        _is_exchanged([one for one in said if one != key], [one for one in there if one != key]) for key in without
    )


def _is_exchanged(said: Sequence[str], there: Sequence[str]) -> bool:
    """Whether two lists are the same, but the beginning and the end of one are exchanged in the other."""
    size = len(said)
    return any(
        said[:first] == there[size - first :]
        and said[size - last :] == there[:last]
        and said[first : size - last] == there[last : size - first]
        for first in range(1, size - 1)
        for last in range(1, size - first)
    )


def _once(text: str) -> list[str]:
    """The meaningful words and the numbers that a text has once, in order."""
    found = [(start, key) for key, _, start in numbers_in(list(tokenize(text)), text)]
    taken = {start for start, _ in found}
    found += [
        (start, without_ending(fold_word(raw)))
        for raw, start in tokenize(text)
        if raw[0].isalpha() and start not in taken and not says_nothing(raw)
    ]
    keys = [key for _, key in sorted(found)]
    counts = Counter(keys)
    return [key for key in keys if counts[key] == 1]


def _splits_a_range(sentence: str, passage: str) -> bool:
    """Whether the sentence has a range ("2 - 4 years") and the passage only other ranges."""
    there = {match.groups() for match in _RANGE.finditer(passage)}
    return bool(there) and any(match.groups() not in there for match in _RANGE.finditer(sentence))


def _belongs_to_others(said: Sequence[Quantity], sentence: str, passage: str) -> bool:
    """Whether a word or a year of the sentence stands in the passage only beside numbers that the sentence lacks.

    Words before the first number of the passage belong to all its numbers, unless the number of the sentence has words
    of its own before it.
    """
    values = {figure.value for figure in said}
    years = all(map(_YEAR.fullmatch, values))
    main = {value for value in values if years or not _YEAR.fullmatch(value)}
    words = stems(sentence) | (values - main)
    with_it: set[str] = set()
    with_others: set[str] = set()
    behind: set[str] = set()  # words of later segments with other numbers
    leading: set[str] = set()
    is_first, has_own_subject = True, False
    for segment in _SEGMENT.split(passage):
        every = figures(segment)
        those = [one for one in every if years == bool(_YEAR.fullmatch(one.value))]
        keys = stems(segment) | {one.value for one in every}
        before = stems(segment[: those[0].start]) if those else keys
        if main & {one.value for one in those}:
            with_it |= keys
            has_own_subject |= not is_first and not before <= words
        elif those:
            with_others |= keys
            leading |= before if is_first else set()
            behind |= set() if is_first else keys
        else:
            leading |= keys
        is_first &= not those
    shared = set() if has_own_subject else leading - behind
    return bool(with_it) and bool(words & (with_others - with_it - shared))
