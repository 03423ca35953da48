"""Resolves the properties that Word's paragraphs and runs inherit from their styles: heading level, list, font, hidden
text, superscript and subscript. Runs only in the child process (``app.readers.child``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.etree import ElementTree

from app.readers.archive import attribute, local

_DEEPEST_HEADING = 6
# matches the names of Word's styles for lists in lists, each of which is a list of one level
_INNER_LIST = re.compile(r"list (?:bullet|number) ([2-5])")
_NO = ("0", "false", "off")


@dataclass
class Look:
    """Character properties. A property is None if the file does not state it.

    ``script`` is "superscript", "subscript" or "baseline". For text that only has a vertical offset, ``script`` is
    ``RAISED`` or ``SUNK``.
    """

    hidden: bool | None = None
    script: str | None = None
    font: str | None = None
    struck: bool | None = None


@dataclass
class Numbered:
    """The list of a paragraph, and the level within the list. Either is None if the file does not state it."""

    number: str | None = None
    level: int | None = None


@dataclass
class Style:
    """A style with all inherited properties. ``heading`` is the heading level; 0 for text, None if the file states
    none. ``inset``: in how many lists the paragraphs of a style of lists are, beyond the first.
    """

    heading: int | None = None
    look: Look = field(default_factory=Look)
    numbered: Numbered = field(default_factory=Numbered)
    is_contents: bool = False
    inset: int = 0


_MOVED = 4  # minimum vertical offset, in half points, at which text counts as raised or lowered
RAISED, SUNK = "raised", "sunk"
"""Text with a vertical offset. Short text counts as a superscript or subscript, longer text as ordinary text."""

_PLAIN = Style()


class DocxStyles:
    """Styles keyed by id. Built-in styles are recognised by name, because ids differ by the language of Word."""

    def __init__(self, root: ElementTree.Element | None = None) -> None:
        self._found: dict[str, Style] = {}
        self._default = ""
        nodes = {attribute(node, "styleId"): node for node in root or () if local(node.tag) == "style"}
        for identity, node in nodes.items():
            if attribute(node, "default") in ("1", "true", "on") and attribute(node, "type") == "paragraph":
                self._default = identity
            self._resolve(identity, nodes)

    def of(self, identity: str) -> Style:
        """Return a style; the default style if ``identity`` is "", a plain style if ``identity`` is unknown."""
        return self._found.get(identity or self._default, _PLAIN)

    def _resolve(self, identity: str, nodes: dict[str, ElementTree.Element]) -> None:
        """Resolve a style. The styles on which it is based are resolved first."""
        chain: list[str] = []
        while identity in nodes and identity not in self._found and identity not in chain:
            chain.append(identity)
            based = next((node for node in nodes[identity] if local(node.tag) == "basedOn"), None)
            identity = attribute(based, "val") if based is not None else ""
        for name in reversed(chain):
            self._found[name] = _style(nodes[name], self._found.get(identity, _PLAIN))
            identity = name


def _style(node: ElementTree.Element, base: Style) -> Style:
    style = Style(base.heading, base.look, base.numbered, base.is_contents)
    named: int | None = None
    for part in node:
        tag = local(part.tag)
        if tag == "name":
            name = attribute(part, "val").casefold()
            named = 1 if name == "title" else None
            if name.startswith("heading ") and name[8:].isdigit():
                named = int(name[8:])
            if inner := _INNER_LIST.fullmatch(name):
                style.inset = int(inner[1]) - 1
            style.is_contents = name.startswith("toc ") or name == "table of figures"
        elif tag == "rPr":
            style.look = over(base.look, look(part))
        elif tag == "pPr":
            style.heading = heading(part, style.heading)
            own = numbered(part)
            style.numbered = Numbered(
                base.numbered.number if own.number is None else own.number,
                base.numbered.level if own.level is None else own.level,
            )
    style.heading = style.heading if named is None else named
    return style


def heading(properties: ElementTree.Element, default: int | None) -> int | None:
    """Return the heading level that a paragraph's properties state (0 for text); ``default`` if they state none."""
    for setting in properties:
        if local(setting.tag) == "outlineLvl" and (value := attribute(setting, "val")).isdigit():
            return int(value) + 1 if int(value) < _DEEPEST_HEADING else 0
    return default


def numbered(properties: ElementTree.Element) -> Numbered:
    """Return the list and the list level that a paragraph's properties state."""
    stated = Numbered()
    for setting in properties:
        if local(setting.tag) == "numPr":
            for part in setting:
                value = attribute(part, "val")
                if local(part.tag) == "numId":
                    stated.number = value
                elif local(part.tag) == "ilvl" and value.isdigit():
                    stated.level = int(value)
    return stated


def look(properties: ElementTree.Element) -> Look:
    """Return the character properties that a run states."""
    stated = Look()
    for setting in properties:
        tag = local(setting.tag)
        if tag == "vanish":
            stated.hidden = attribute(setting, "val") not in _NO
        elif tag in ("strike", "dstrike"):
            stated.struck = bool(stated.struck) or attribute(setting, "val") not in _NO
        elif tag == "vertAlign":
            stated.script = attribute(setting, "val")
        elif tag == "position" and stated.script is None:
            stated.script = _moved(attribute(setting, "val"))
        elif tag == "rFonts":
            stated.font = attribute(setting, "ascii") or attribute(setting, "hAnsi") or None
    return stated


def _moved(half_points: str) -> str | None:
    """Return ``RAISED`` or ``SUNK`` for a vertical offset; None if the offset is small or no integer."""
    try:
        height = int(half_points)
    except ValueError:
        return None
    return None if abs(height) < _MOVED else RAISED if height > 0 else SUNK


def over(below: Look, above: Look) -> Look:
    """Combine character properties. What ``above`` states takes precedence over ``below``."""
    return Look(
        below.hidden if above.hidden is None else above.hidden,
        below.script if above.script is None else above.script,
        below.font if above.font is None else above.font,
        below.struck if above.struck is None else above.struck,
    )
