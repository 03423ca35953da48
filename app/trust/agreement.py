"""Compares the facts of a sentence with a passage that has its words: whether each number has the same unit, belongs to
the same words, and stands in the same column of a table.

    disagrees("Oil costs 6.", "", "Flour costs 6 and oil 8.")      True

A passage is divided into segments, at commas, brackets and words such as "and" and "to". A word of the sentence that
stands only in segments with other numbers than the sentence's belongs to these numbers. A row of a table is divided
into cells, and the words of its head say which cell is meant.

Knows nothing of a book's other passages. In unclear cases sentence and passage agree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from app.language.tokens import tokenize
from app.language.words import fold_word, numbers_in, says_nothing, without_ending

CELLS = " | "  # between the cells of a table's row
_SEGMENT = re.compile(
    r"[,;:)\]](?!\d)|\s[–—-]\s|\b(?:and|or|to|than|but|while|whereas|from|versus|vs|compared|up|down"
    r"|und|oder|auf|als|aber|während|gegenüber|et|ou|mais|contre|y|o|pero|frente)\b",
    re.IGNORECASE,
)
_RANGE = re.compile(r"(?<!\d)(\d++(?:[.,]\d++)?)\s*+[–-]\s*+(\d+(?:[.,]\d+)?)")
_YEAR = re.compile(r"#(?:1\d|20)\d\d")
_ONLY = re.compile(r"\b(?:only|solely|exclusively|nur|ausschließlich|seulement|uniquement|solo|sólo|solamente)\b", re.I)
_UNIT_AFTER = 2
"""Maximum number of words after a number among which its unit stands ("1.3 trillion dollars")."""
_RATE_AFTER = 6
"""Maximum number of words after a number among which the period stands that it is counted for ("a month")."""
_UNITS = {
    "%": "% percent per cent prozent pourcent",
    "dollar": "$ dollar",
    "euro": "€ euro",
    "pound": "£ pound pfund livre sterling",
    "yen": "¥ yen",
    "trillion": "trillion",
    "day": "day tag jour dia",
    "week": "week woche semaine semana",
    "month": "month monat mois mes",
    "year": "year jahr an annee ano",
    "hour": "hour stunde heure hora",
    "minute": "minute minuto",
    "second": "second sekunde seconde segundo",
    "length": "mile kilometer kilometre meter metre foot feet inch yard km cm mm",
    "mass": "kilogram kilo gram ton tonne kg",
}
_UNIT_OF = {word: unit for unit, words in _UNITS.items() for word in words.split()}
_UNIT_OF |= {without_ending(fold_word(word)): unit for word, unit in list(_UNIT_OF.items())}
_PERIODS = frozenset(["day", "week", "month", "year", "hour", "minute", "second"])
_PER = frozenset(["per", "a", "an", "each", "every", "pro", "im", "je", "par", "chaque", "por", "al", "calendar"])
_SIGNS = "$€£¥%"


@dataclass(frozen=True)
class _Figure:
    """A number of a text: its value, the units beside it, and the period that it is counted for."""

    value: str
    start: int
    units: frozenset[str]
    period: str


def disagrees(sentence: str, question: str, passage: str, head: str = "") -> bool:
    """Whether a passage has the numbers of a sentence, but for another thing, unit, column or period than the sentence.

    Args:
        question: the question that the sentence answers. Its words name the column of a table, too.
        head: the first row of the table, if the passage is another row of it.
    """
    if _ONLY.search(sentence) and not _ONLY.search(passage) and not _ONLY.search(question):
        return True
    said, there = _figures(sentence), _figures(passage)
    if not said:
        return False
    if _differs_in_unit(said, there) or _splits_a_range(sentence, passage):
        return True
    if CELLS in passage:
        return _in_another_column(said, f"{sentence} {question}", passage, head)
    return _belongs_to_others(said, sentence, passage)


def _figures(text: str) -> list[_Figure]:
    tokens = list(tokenize(text))
    found = []
    for value, raw, start in numbers_in(tokens, text):
        end = start + len(raw)
        after = [fold_word(word) for word, at in tokens if at >= end][:_RATE_AFTER]
        near = [_unit(word) for word in after[:_UNIT_AFTER]]
        signs = text[max(0, start - 1) : start] + raw[:1] + raw[-1:] + text[end : end + 1]
        units = {unit for unit in (*near, *(_UNIT_OF[sign] for sign in signs if sign in _SIGNS)) if unit}
        period = next((_unit(two) for one, two in pairwise(after) if one in _PER and _is_period(two)), "")
        found.append(_Figure(value, start, frozenset(units - {period}), period))
    return found


def _unit(word: str) -> str:
    return _UNIT_OF.get(word) or _UNIT_OF.get(without_ending(word), "")


def _is_period(word: str) -> bool:
    return _unit(word) in _PERIODS


def _differs_in_unit(said: Sequence[_Figure], there: Sequence[_Figure]) -> bool:
    """Whether a number of the sentence has a unit or a period, and the passage has the number only with others."""
    for one in said:
        same = [other for other in there if other.value == one.value]
        if same and one.units and all(other.units and not other.units & one.units for other in same):
            return True
        if same and one.period and all(other.period and other.period != one.period for other in same):
            return True
    return False


def _splits_a_range(sentence: str, passage: str) -> bool:
    """Whether the sentence has a range ("2 - 4 years") and the passage only other ranges."""
    there = {match.groups() for match in _RANGE.finditer(passage)}
    return bool(there) and any(match.groups() not in there for match in _RANGE.finditer(sentence))


def _stems(text: str) -> set[str]:
    return {
        without_ending(fold_word(raw))
        for raw, _ in tokenize(text)
        if raw[0].isalpha() and not says_nothing(raw) and not _unit(fold_word(raw))
    }


def _belongs_to_others(said: Sequence[_Figure], sentence: str, passage: str) -> bool:
    """Whether a word or a year of the sentence stands in the passage only beside numbers that the sentence lacks.

    Words before the first number of the passage belong to all its numbers, unless the number of the sentence has words
    of its own before it.
    """
    values = {figure.value for figure in said}
    years = all(map(_YEAR.fullmatch, values))
    main = {value for value in values if years or not _YEAR.fullmatch(value)}
    words = _stems(sentence) | (values - main)
    with_it: set[str] = set()
    with_others: set[str] = set()
    behind: set[str] = set()  # words of later segments with other numbers
    leading: set[str] = set()
    is_first, has_own_subject = True, False
    for segment in _SEGMENT.split(passage):
        every = _figures(segment)
        figures = [one for one in every if years == bool(_YEAR.fullmatch(one.value))]
        keys = _stems(segment) | {one.value for one in every}
        before = _stems(segment[: figures[0].start]) if figures else keys
        if main & {one.value for one in figures}:
            with_it |= keys
            has_own_subject |= not is_first and not before <= words
        elif figures:
            with_others |= keys
            leading |= before if is_first else set()
            behind |= set() if is_first else keys
        else:
            leading |= keys
        is_first &= not figures
    shared = set() if has_own_subject else leading - behind
    return bool(with_it) and bool(words & (with_others - with_it - shared))


def _in_another_column(said: Sequence[_Figure], words: str, row: str, head: str) -> bool:
    """Whether ``words`` name a column by its head, and the numbers stand in other columns of the row; or whether they
    share no word with the row's first cell.
    """
    cells, heads = row.split("|"), head.split("|") if head else []
    asked = _stems(words)
    first = _stems(cells[0])
    if first and not first & asked:
        return True
    if len(heads) != len(cells):
        return False
    named = [at for at, one in enumerate(heads) if at and _stems(one) and _stems(one) <= asked]
    if not named:
        return False
    there = {figure.value for at in named for figure in _figures(f"{cells[at]} {heads[at]}")}
    new = {figure.value for figure in said} - {figure.value for figure in _figures(cells[0])}
    return bool(new) and not new & there
