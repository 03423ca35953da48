"""Compares the facts of a sentence with a passage that has its words: whether each number has the same unit, belongs to
the same words.

    disagrees("Oil costs 6.", "", "Flour costs 6 and oil 8.")      True

A passage is divided into segments, at commas, brackets and words such as "and" and "to". A word of the sentence that
stands only in segments with other numbers than the sentence's belongs to these numbers.

Knows nothing of a book's other passages. In unclear cases sentence and passage agree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.trust.figures import Quantity, differs_in_unit, figures, stems

_SEGMENT = re.compile(
    r"[,;:)\]](?!\d)|\s[–—-]\s|\b(?:and|or|to|than|but|while|whereas|from|versus|vs|compared|up|down"
    r"|und|oder|auf|als|aber|während|gegenüber|et|ou|mais|contre|y|o|pero|frente)\b",
    re.IGNORECASE,
)
_RANGE = re.compile(r"(?<!\d)(\d++(?:[.,]\d++)?)\s*+[–-]\s*+(\d+(?:[.,]\d+)?)")
_YEAR = re.compile(r"#(?:1\d|20)\d\d")
_ONLY = re.compile(r"\b(?:only|solely|exclusively|nur|ausschließlich|seulement|uniquement|solo|sólo|solamente)\b", re.I)


def disagrees(sentence: str, question: str, passage: str) -> bool:
    """Whether a passage has the numbers of a sentence, but for another thing, unit or period than the sentence.

    Args:
        question: the question that the sentence answers.
    """
    if _ONLY.search(sentence) and not _ONLY.search(passage) and not _ONLY.search(question):
        return True
    said, there = figures(sentence), figures(passage)
    if not said:
        return False
    if differs_in_unit(said, there) or _splits_a_range(sentence, passage):
        return True
    return _belongs_to_others(said, sentence, passage)


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
