"""Reads the numbers of a text with their units and periods, and the words that the numbers may belong to.

figures("The tenant pays £1,485 a month.")     [Quantity(value="#1485", units={"pound"}, period="month", ...)]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from app.language.tokens import tokenize
from app.language.words import fold_word, numbers_in, says_nothing, without_ending

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
class Quantity:
    """A number of a text: its value, the units beside it, and the period that it is counted for."""

    value: str
    start: int
    units: frozenset[str]
    period: str


def figures(text: str) -> list[Quantity]:
    """The numbers of a text, in order."""
    tokens = list(tokenize(text))
    found = []
    for value, raw, start in numbers_in(tokens, text):
        end = start + len(raw)
        after = [fold_word(word) for word, at in tokens if at >= end][:_RATE_AFTER]
        near = [unit_of(word) for word in after[:_UNIT_AFTER]]
        signs = text[max(0, start - 1) : start] + raw[:1] + raw[-1:] + text[end : end + 1]
        units = {unit for unit in (*near, *(_UNIT_OF[sign] for sign in signs if sign in _SIGNS)) if unit}
        period = next((unit_of(two) for one, two in pairwise(after) if one in _PER and _is_period(two)), "")
        found.append(Quantity(value, start, frozenset(units - {period}), period))
    return found


def unit_of(word: str) -> str:
    """The unit that a folded word names; "" if it names none."""
    return _UNIT_OF.get(word) or _UNIT_OF.get(without_ending(word), "")


def _is_period(word: str) -> bool:
    return unit_of(word) in _PERIODS


def differs_in_unit(said: Sequence[Quantity], there: Sequence[Quantity]) -> bool:
    """Whether a number of the sentence has a unit or a period, and the passage has the number only with others."""
    for one in said:
        same = [other for other in there if other.value == one.value]
        if same and one.units and all(other.units and not other.units & one.units for other in same):
            return True
        if same and one.period and all(other.period and other.period != one.period for other in same):
            return True
    return False


def stems(text: str) -> set[str]:
    """The meaningful words of a text without units and numbers, as they are compared."""
    return {
        without_ending(fold_word(raw))
        for raw, _ in tokenize(text)
        if raw[0].isalpha() and not says_nothing(raw) and not unit_of(fold_word(raw))
    }
