"""Reads the rules of a style sheet that change the text: list numbers, hidden text, superscripts and subscripts.

Understands selectors that name an element, a class, or both. A selector such as ``.a li`` is for the list items in such
an element. Rules for an element have the lowest precedence, rules for a class a higher one, and rules for both the
highest. Among rules with the same selector, the last one wins. Other selectors, other properties and at-rules such as
``@media`` are ignored. Runs only in the child process (``app.readers.child``).

A parser of the library tinycss2 in place of the patterns read the same text of 40 books and pages, was 14 lines longer,
took 17 times as long for a sheet and 35 times for an attribute, and passed on lone surrogates, which UTF-8 cannot hold.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping

_COMMENT = re.compile(r"/\*.*?\*/|<!--|-->", re.S)
_RULE = re.compile(r"([^{}@;]{1,2000})\{([^{}]{0,5000})\}")
_AT_BLOCK = re.compile(r"@[^{};]{0,500}(?:;|\{(?:[^{}]*\{[^{}]*\})*[^{}]*\})")
# an element, its class, list items in it, what is generated before or after
_SELECTOR = re.compile(r"([a-z][\w-]*)?(?:\.([\w-]+))?((?:\s*>\s*|\s+)li)?(?::{1,2}(before|after))?$", re.I)
_WANTED = frozenset(
    (
        "content",
        "list-style",
        "list-style-type",
        "display",
        "visibility",
        "vertical-align",
        "text-decoration",
        "white-space",
    )
)
_CONTENT = re.compile(r"\"([^\"]{0,40})\"|'([^']{0,40})'|attr\(\s*([\w-]{1,40})\s*\)|(/)|(\S)")
_STRING = re.compile(r"\"([^\"]{0,40})\"|'([^']{0,40})'")
_ESCAPE = re.compile(r"\\([0-9a-f]{1,6})\s?", re.I)
_COUNTER = re.compile(r"\"([^\"]{0,40})\"|counter\(\s*([\w-]+)\s*(?:,\s*([\w-]+)\s*)?\)")
_LONGEST = 200_000  # maximum characters read of a style sheet
_NOT_A_TYPE = frozenset(("inside", "outside", "inherit", "initial", "unset", "!important"))

Declarations = dict[str, str]
_NONE: Declarations = {}


class Styles:
    """The rules of style sheets, keyed by element, class, whether they are for list items in the element, and "before"
    or "after" for what is generated there.
    """

    def __init__(self, *sheets: str) -> None:
        self._rules: dict[tuple[str, str, bool, str], Declarations] = {}
        for sheet in sheets:
            self._add(sheet)

    def joined(self, sheet: str) -> Styles:
        """Return new styles with the rules of ``sheet`` added. The added rules take precedence."""
        joined = Styles()
        joined._rules = {key: dict(values) for key, values in self._rules.items()}
        joined._add(sheet)
        return joined

    def _add(self, sheet: str) -> None:
        sheet = _AT_BLOCK.sub("", _COMMENT.sub("", sheet[:_LONGEST]))
        for selectors, body in _RULE.findall(sheet):
            values = declarations(body)
            for selector in selectors.split(",") if values else ():
                match = _SELECTOR.match(selector.strip())
                if match and (match[1] or match[2]):
                    key = (match[1] or "").casefold(), match[2] or "", bool(match[3]), (match[4] or "").casefold()
                    self._rules.setdefault(key, {}).update(values)

    def __bool__(self) -> bool:
        return bool(self._rules)

    def generated(self, tag: str, attributes: Mapping[str, str], place: str) -> str:
        """Return the text that a browser puts before or after the text of an element, such as a tick. Signs of icon
        fonts are left out.

        Args:
            tag: the element.
            attributes: its attributes.
            place: "before" or "after".
        """
        style = self.of(tag, attributes.get("class", "").split(), place=place)
        return "" if hides(style) else _content(style.get("content", ""), attributes)

    def of(self, tag: str, classes: Iterable[str], *, items: bool = False, place: str = "") -> Declarations:
        """Return the declarations for an element. ``items``: for the list items in it. ``place``: for what is generated
        there, "before" or "after".
        """
        if not self._rules:
            return _NONE
        style: Declarations = {}
        for key in ((tag, ""), *(("", name) for name in classes), *((tag, name) for name in classes)):
            style.update(self._rules.get((*key, items, place), _NONE))
        return style


def _content(value: str, attributes: Mapping[str, str]) -> str:
    """Return the text of a property ``content``; "" if it has something else than strings and attributes."""
    text = ""
    for double, single, name, alternative, other in _CONTENT.findall(value):
        if alternative:
            break
        if other:
            return ""
        text += attributes.get(name, "") if name else _ESCAPE.sub(_escaped, double or single)
    text = "".join(sign for sign in text if unicodedata.category(sign) != "Co")
    return "" if text.strip() in ("", ".") else text


def keeps_space(found: Declarations) -> bool | None:
    """Whether white space is shown as it is written; None if the declarations do not say so."""
    value = found.get("white-space", "")
    return value.startswith(("pre", "break-spaces")) if value else None


def declarations(body: str) -> Declarations:
    """Return the declarations in a rule's body or a ``style`` attribute. Properties that cannot change the text are
    dropped.
    """
    values: Declarations = {}
    for part in body.split(";"):
        name, _, value = part.partition(":")
        name = name.strip().casefold().removesuffix("-line")
        if name in _WANTED:
            values["list-style-type" if name == "list-style" else name] = (
                value.strip() if name == "content" else value.strip().casefold()
            )
    return values


def list_type(found: Declarations) -> str:
    """Return the numbering style of a list, for example "lower-roman" or "none"; "" if the declarations state none."""
    words = [word for word in found.get("list-style-type", "").split() if word not in _NOT_A_TYPE]
    return words[0] if words else ""


def counters(found: Declarations) -> list[tuple[str, str]]:
    """Return what a style sheet generates in front of a list item, as pairs: (name, style) for a counter, ("", text)
    for the text around counters. Return [] if there is no counter.
    """
    parts = [
        (name, style or "decimal") if name else ("", text)
        for text, name, style in _COUNTER.findall(found.get("content", ""))
    ]
    return parts if any(name for name, _ in parts) else []


def bullet(found: Declarations) -> str:
    """Return the character that a style sheet generates in front of a list item; "" if there is none. Circles, squares
    and icons all become "•".
    """
    content = found.get("content", "")
    match = _STRING.match(content)
    if match is None or match.end() != len(content):
        return ""
    sign = _ESCAPE.sub(_escaped, match[1] or match[2] or "").strip()
    return "•" if sign and (sign in "●○■□•◦▪▫·o" or unicodedata.category(sign[0]) == "Co") else sign


def _escaped(escape: re.Match[str]) -> str:
    """Return the character of a CSS escape; "" for a control, surrogate or unassigned code."""
    sign = chr(min(int(escape[1], 16), sys.maxunicode))
    return "" if unicodedata.category(sign) in ("Cc", "Cs", "Cn") else sign


def strikes(found: Declarations) -> bool:
    """Whether a browser draws a line through the text of an element with these declarations."""
    return "line-through" in found.get("text-decoration", "")


def hides(found: Declarations) -> bool:
    """Whether a browser hides an element with these declarations."""
    return found.get("display", "").startswith("none") or found.get("visibility", "").startswith("hidden")
