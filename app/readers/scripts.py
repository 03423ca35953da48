"""Writes superscripts and subscripts on the line: an exponent as 10^6, a reference to a note as 1871[3], a chemical
formula as H2O. Runs only in the child process (``app.readers.child``).
"""

from __future__ import annotations

import re

_LAST = re.compile(r"[^\W\d_]+$|\d[\d.,]*$|\)$")
_COUNT = re.compile(r"\d{1,4}(?:\s?[,;–-]\s?\d{1,4})*$|[a-z](?:\s?,\s?[a-z])+$")
_SIGNED = re.compile(r"[+\-−–]?\d*[.,]?\d+$|\d*[+\-−–]$")
_ORDINAL = re.compile(r"st|nd|rd|th|er|re|ère|e|ème|es|os|as|mo|ma", re.I)
_CHEMISTRY = re.compile(r"(?:[A-Z][a-z]?|[)\]])$")
_YEAR = re.compile(r"1[0-9]\d\d|20\d\d")
_OF_FORMULAS = frozenset(
    re.findall(
        r"\w+",
        "sin cos tan cot sec csc sinh cosh tanh log ln exp det mol nm mm cm dm km hm ms ns ft yd ha sq px",
    )
)
"""Names with several letters that take powers: functions and units."""

_NOTE_IN_BRACKET = re.compile(r"\w{1,3}\)$")
_FIRST_CJK = "\u2e80"  # first CJK character; a CJK character is a word, so a superscript after it refers to a note
_INDEX = re.compile(r"\w+(?:[.,]\d+)?$")
_UPPER_PART = re.compile(r"(\d?)(?:\^|\[)(\d{1,4})\]?(?=\s?[/⁄∕]\s?$)")
_OPEN_END = re.compile(r"[\^_][\w+−–-]*\d$")
_VOWEL = re.compile("[aeiouyäöüàáâèéêìíòóôùú]")
_OPERATOR = re.compile(r"[=+*/×·÷±∝≈<>]\s*$")
_SHORTENED = "rstdo"  # letters that are often raised after a capital in abbreviations such as Mr, St and No
_SEEN_BACK = 24  # number of characters that are examined before a superscript
_LONGEST_MARK = 12  # maximum characters of a superscript that refers to a note


def raised(line: str, text: str, *, linked: bool = False) -> str:
    """Return a superscript as text on the line, such as "^2" for an exponent or "[2]" for a reference to a note.

    Args:
        line: the line before the superscript. It shows whether the superscript is an exponent or a reference to a note.
        text: the superscript.
        linked: whether the superscript links to a note.
    """
    inner = text.strip()
    last = _LAST.search(line[-_SEEN_BACK:])
    base = last[0] if last else ""
    if not any(sign.isalnum() for sign in inner) or inner[0] in "[(*†‡§¶" or inner in "ªº°":
        return f"^{inner}" if base and inner in ("+", "-", "−", "–") else text
    if len(inner) <= _LONGEST_MARK and (linked or (_COUNT.match(inner) and _takes_notes(line, base))):
        return f"[{inner}]"
    if base and (_NOTE_IN_BRACKET.match(inner) or base[-1] >= _FIRST_CJK):
        return f"[{inner}]"
    if not base or _is_shortened(base, inner):
        return text
    if inner.isalpha() and len(inner) == 1 and _is_word(base):
        return f"[{inner}]"
    return f"^{inner}" if inner.isalnum() or _SIGNED.match(inner) else f"^({inner})"


def _takes_notes(line: str, base: str) -> bool:
    """Whether a raised number after ``line`` refers to a note: after a word, a year or the end of a sentence, or at the
    start of a line.
    """
    if not base:
        return not line or not line[-1].isspace()
    if base.isalpha() and _OPERATOR.search(line[: len(line) - len(base)][-_SEEN_BACK:]):
        return False
    return _is_word(base) or bool(_YEAR.fullmatch(base)) or base[-1] in ".,"


def _is_word(base: str) -> bool:
    """Whether ``base`` is a word, so that a superscript after it is no exponent. Two letters are a word only if both
    are small and one is a vowel.
    """
    if not base.isalpha() or base in _OF_FORMULAS:
        return False
    return len(base) > 2 or base[-1] >= _FIRST_CJK or (len(base) == 2 and base.islower() and bool(_VOWEL.search(base)))


def _is_shortened(base: str, inner: str) -> bool:
    """Whether the superscript ``inner`` is the end of an abbreviation or an ordinal, as in 1st, XIXe, Mr, Mlle."""
    if not inner.isalpha():
        return False
    if len(inner) == 1:
        return (inner == "e" and (base.isdigit() or base.isupper())) or (inner in _SHORTENED and base.isupper())
    return bool(_ORDINAL.fullmatch(inner)) or (base.isalpha() and not (len(base) == 1 and base.islower()))


def lowered(line: str, text: str) -> str:
    """Return a subscript as text on the line, such as "_i". ``line`` is the line before the subscript."""
    inner = text.strip()
    if not inner or not line or not (line[-1].isalnum() or line[-1] in ")]∑∫∏"):
        return text
    if inner.isdigit() and _CHEMISTRY.search(line[-_SEEN_BACK:]):
        return inner
    return f"_{inner}" if _INDEX.match(inner) else f"_({inner})"


def fuses(line: str, text: str) -> bool:
    """Whether ``text`` starts with a digit that would fuse with a superscript or subscript at the end of ``line``."""
    return text[:1].isdigit() and _OPEN_END.search(line[-_SEEN_BACK:]) is not None


def over_a_line(line: str) -> str:
    """Write the raised numerator at the end of ``line`` as an ordinary number: "2^1/" becomes "2 1/". Only for a line
    that a denominator follows.
    """
    return _UPPER_PART.sub(lambda found: f"{found[1]} {found[2]}" if found[1] else found[2], line)
