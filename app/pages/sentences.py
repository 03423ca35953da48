"""An answer cut into sentences, and the passages in it that stand between quotation marks. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Code is no prose; the same shapes that the chat leaves alone.
_CODE = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n]*\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)|`[^`\n]{1,500}`", re.S | re.M)
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Capt|Prof|Rev|Lt|Sgt|vs|etc|cf|pp?|No|vol|ch)|\b[A-Z])\.$")
# A sentence ends at its mark with whatever closes behind it, or where its paragraph does.
_END = re.compile(
    r"(?:[.!?]+|(?<![“„«\"])…(?!\s*[a-z]))[\"'”’»)\]*_]*(?=\s|$)"
    r"|(?=\n[ \t]*\n)|(?=\n[ \t]*(?:[-*+>]|\d{1,9}[.)])\s)|\Z"
)
_WORD = re.compile(r"\w+(?:[’'-]\w+)*")
_LONGEST_QUOTE = 3000
_QUOTED = re.compile(
    rf"“([^“”]{{1,{_LONGEST_QUOTE}}}(?:“[^“”]{{1,500}}”[^“”]{{0,500}}){{0,4}})(”|\n[ \t]*\n|\Z)"
    rf"|„([^„“”]{{1,{_LONGEST_QUOTE}}})([“”]|\n[ \t]*\n|\Z)"
    rf"|«([^«»]{{1,{_LONGEST_QUOTE}}})(»|\n[ \t]*\n|\Z)"
    rf'|(?<!\w)"(?!\s)([^"\n]{{1,{_LONGEST_QUOTE}}})(")(?!\w)'
)
_CLOSERS = ("”", "“", "»", '"')


@dataclass(frozen=True)
class Span:
    """Characters [start, end) of an answer."""

    start: int
    end: int

    def touches(self, other: Span) -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True)
class Quotation:
    """What stands between two quotation marks; ``whole`` runs from mark to mark. ``closed``: the second has come."""

    inner: Span
    whole: Span
    closed: bool


def sentences(text: str) -> list[Span]:
    """The sentences of an answer in Markdown, without the white space around them. Code belongs to none."""
    masked = _masked(text)
    found, start = [], 0
    for end in _END.finditer(masked):
        if _ABBREVIATION.search(masked[start : end.end()]):
            continue
        body = masked[start : end.end()]
        words = body.strip()
        if words and _WORD.search(words):
            begin = start + len(body) - len(body.lstrip())
            found.append(Span(begin, begin + len(words)))
        start = end.end()
    return found


def quotations(text: str) -> list[Quotation]:
    """Passages in quotation marks, in order. A single quotation mark may be an apostrophe and opens none."""
    masked = _masked(text)
    found = []
    for match in _QUOTED.finditer(masked):
        group = next(number for number in (1, 3, 5, 7) if match[number] is not None)
        closed = match[group + 1] in _CLOSERS
        end = match.end(group + 1) if closed else match.end(group)
        found.append(Quotation(Span(*match.span(group)), Span(match.start(), end), closed))
    return found


def words(text: str) -> list[str]:
    """Words as they stand."""
    return _WORD.findall(text)


def _masked(text: str) -> str:
    return _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code.group(0)), text)
