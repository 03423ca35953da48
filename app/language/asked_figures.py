"""Recognises questions for a figure, and texts that have one of the kind that is asked for.

    asked_kind("How much did the elephant cost?").search("for two thousand pounds")     a match

English, German and French.
"""

from __future__ import annotations

import re

# Matches a question that asks for a number or a date.
_FIGURE = re.compile(
    r"\b(?:how (?:many|much|far|long|old|big|large|heavy|deep|high|tall|wide|cold|hot|fast|often|late|early)|when"
    r"|(?:at |until |by )?what (?:time|hour|age|date|year|day)|(?:which|what) (?:year|date|day|month)|until what"
    r"|what (?:is|was) the (?:price|cost|rent|date|number|age|length|deposit|fee)"
    r"|wie ?(?:viele?|hoch|lange?|alt|groß|weit|teuer|oft|schwer)|wann|combien|quand)\b",
    re.IGNORECASE,
)
_DATE = (
    r"\b(?:1\d|20)\d\d\b|\b(?:[A-Z][a-z]+day|[A-Z][a-z]+tag|Mittwoch|o['’]clock|noon|midnight|morning|evening)\b"
    r"|\b(?:Jan(?:uar)?y?|Feb(?:ruar)?y?|M(?:arch|ärz|ay|ai)|April?|Jun[ei]?|Jul[iy]?|Aug(?:ust)?|Sept?(?:ember)?"
    r"|O[ck]t(?:ober)?|Nov(?:ember)?|De[cz](?:ember)?)\b|\b\d{1,2}(?::\d\d)? ?[ap]\.?m\b"
)
_MONEY = r"[$€£]|\b(?:pounds?|dollars?|shillings?|guineas?|francs?|[Ee]uros?|roubles?|crowns?|millions?|cents?|Mark)\b"
_NUMBER = (
    r"\b(?:(?<!\d[,.])\d++(?:[,.]\d++)*+|an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen"
    r"|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand|half|several|few|many|zwei|drei|vier"
    r"|fünf|sechs|sieben|acht|neun|zehn|elf|zwölf|\w+zehn|\w+zig|hundert|tausend)"
)
_OF = r"\W{1,3}(?:\w+\W{1,3})?"  # between a number and its unit
_TIME = (
    r"(?:years?|months?|weeks?|days?|hours?|minutes?|fortnights?|nights?|Jahren?|Monaten?|Wochen?|Tagen?|Stunden?"
    r"|Minuten)\b"
)
_LENGTH = (
    r"(?:miles?|leagues?|feet|foot|yards?|inch(?:es)?|fathoms?|[kcm]?m|kilomet\w+|met(?:er|re)s?|Metern?|Kilometern?"
    r"|Meilen)\b"
)
_AGE = (
    rf"{_NUMBER}\W{{1,3}}(?:years?|months?|Jahre)\b|\bage[ds]? (?:of |about )?{_NUMBER}\b|\b(?:years? old|Jahre alt)\b"
)
_KINDS = tuple(
    (re.compile(rf"\b(?:{asks})\b", re.IGNORECASE), re.compile(has))
    for asks, has in (
        (
            r"(?<!\w )(?:when|wann|quand)|(?:and|und|et) (?:when|wann|quand)|what (?:is|was) the date"
            r"|(?:which|what) (?:year|date|day|month|time)|an welchem tag|in welchem jahr|en quelle année",
            _DATE,
        ),
        (
            r"how much (?:money|did|does|do|is|was|were|can)|price|cost|rent|salary|fee|deposit|income|earn"
            r"|was kostete?|wie ?viel geld|wie teuer|combien coûtait?",
            _MONEY,
        ),
        (r"how (?:warm|hot|cold)|temperature|wie (?:warm|heiß|kalt)|temperatur", r"°|\b(?:degrees?|Grad|degrés)\b"),
        (r"(?:what|which) (?:share|percentage|proportion)|welcher anteil", r"\d ?%|\b(?:per ?cent|Prozent)\b"),
        (r"how long|wie lange|combien de temps", _NUMBER + _OF + _TIME),
        (
            r"how (?:far|fast|high|tall|deep|wide|broad|large|big)|wie (?:weit|hoch|tief|breit|groß)",
            _NUMBER + _OF + _LENGTH,
        ),
        (r"how old|wie alt|quel âge", _AGE),
    )
)
"""For each kind of figure: a question that asks for it, and what it looks like."""


def asks_for_a_figure(question: str) -> bool:
    """Whether a question asks for a number or a date."""
    return _FIGURE.search(question) is not None


def asked_kind(question: str) -> re.Pattern[str] | None:
    """Return what finds the kind of figure that a question asks for; None if it asks for no such figure."""
    return next((has for asks, has in _KINDS if asks.search(question)), None)
