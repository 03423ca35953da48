"""Computes the list numbers that Word shows in front of paragraphs. Runs only in the child process
(``app.readers.child``).

Source: ECMA-376, part 1, 17.9. A list has levels. A paragraph increments the counter of its level and restarts the
counters of deeper levels. Lists (``w:num``) of one abstract list (``w:abstractNum``) share their counters. A list that
overrides the start sets the counter anew.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.etree import ElementTree

from app.readers import numerals, symbols
from app.readers.archive import attribute, local

_LEVELS = 9
_MOST_ZEROS = 6
_PLACE = re.compile(r"%([1-9])")
_TICKS = "☐☑☒✓✗✔✘"
_BULLET = "•"
_INDENT = "  "  # spaces for each level of a list
_NO = ("0", "false", "off")


@dataclass
class _Level:
    start: int = 1
    form: str = "decimal"
    text: str = ""
    # Maximum level (from 1) of a paragraph that restarts this level's numbers. 0: nothing restarts them. None: a
    # paragraph of any smaller level restarts them.
    restart: int | None = None
    legal: bool = False
    style: str = ""
    font: str = ""
    hidden: bool = False
    digits: int = 0  # minimum digits, padded with zeros; 0 for no padding


@dataclass
class _List:
    """One list of the document (``w:num``). ``abstract``: id of its abstract list. ``starts``: start numbers that
    override those of ``levels``, keyed by level.
    """

    abstract: str
    levels: dict[int, _Level]
    starts: dict[int, int] = field(default_factory=dict)


_LISTNUM = re.compile(r'LISTNUM\s+"?(\w+)', re.I)
_LISTNUM_LEVEL = re.compile(r"\\l\s*(\d)", re.I)
_LISTNUM_START = re.compile(r"\\s\s*(\d{1,6})", re.I)
_LISTNUM_LEVELS = 9
# built-in lists of LISTNUM fields: for each level, the number format and the text around the number
_LISTNUM_FORMS: dict[str, list[tuple[str, str]]] = {
    "NumberDefault": [
        ("decimal", "{})"), ("lowerLetter", "{})"), ("lowerRoman", "{})"), ("decimal", "({})"), ("lowerLetter", "({})"),
        ("lowerRoman", "({})"), ("decimal", "{}."), ("lowerLetter", "{}."), ("lowerRoman", "{}."),
    ],
    "OutlineDefault": [
        ("upperRoman", "{}."), ("upperLetter", "{}."), ("decimal", "{}."), ("lowerLetter", "{})"), ("decimal", "({})"),
        ("lowerLetter", "({})"), ("lowerRoman", "({})"), ("lowerLetter", "({})"), ("lowerRoman", "({})"),
    ],
    "LegalDefault": [],
}  # fmt: skip


class Numbering:
    """Counts the items of all lists of a document."""

    def __init__(self, root: ElementTree.Element | None = None) -> None:
        self._lists: dict[str, _List] = {}
        self._counts: dict[str, dict[int, int]] = {}
        self._started: set[tuple[str, int]] = set()
        self._listnums: dict[str, dict[int, int]] = {}
        abstracts: dict[str, dict[int, _Level]] = {}
        # ids of abstract lists, keyed by the name of the list style that the abstract list defines (``w:styleLink``)
        links: dict[str, str] = {}
        # names of list styles (``w:numStyleLink``), keyed by the id of the abstract list that refers to the style
        linked: dict[str, str] = {}
        for node in root or ():
            if local(node.tag) != "abstractNum":
                continue
            identity = attribute(node, "abstractNumId")
            abstracts[identity] = {}
            for part in node:
                tag = local(part.tag)
                if tag == "lvl":
                    abstracts[identity][_whole(attribute(part, "ilvl"), 0)] = _level(part)
                elif tag == "styleLink":
                    links[attribute(part, "val")] = identity
                elif tag == "numStyleLink":
                    linked[identity] = attribute(part, "val")
        for node in root or ():
            if local(node.tag) == "num":
                self._add(node, abstracts, {name: links.get(style, name) for name, style in linked.items()})

    def _add(self, node: ElementTree.Element, abstracts: dict[str, dict[int, _Level]], linked: dict[str, str]) -> None:
        numbering = _List("", {})
        for part in node:
            if local(part.tag) == "abstractNumId":
                name = attribute(part, "val")
                numbering.abstract = linked.get(name, name)
                numbering.levels = dict(abstracts.get(numbering.abstract, {}))
        for part in node:
            if local(part.tag) != "lvlOverride":
                continue
            level = _whole(attribute(part, "ilvl"), 0)
            for change in part:
                if local(change.tag) == "startOverride":
                    numbering.starts[level] = _whole(attribute(change, "val"), 1)
                elif local(change.tag) == "lvl":
                    numbering.levels[level] = _level(change)
        self._lists[attribute(node, "numId")] = numbering

    def listnum(self, code: str) -> str:
        """Return the number that a LISTNUM field shows. A field with an unknown list name counts in "NumberDefault"."""
        name, level, start = (pattern.search(code) for pattern in (_LISTNUM, _LISTNUM_LEVEL, _LISTNUM_START))
        kind = name[1] if name and name[1] in _LISTNUM_FORMS else "NumberDefault"
        depth = min(max(int(level[1]), 1), _LISTNUM_LEVELS) - 1 if level else 0
        counts = self._listnums.setdefault(kind, {})
        counts[depth] = int(start[1]) if start else counts.get(depth, 0) + 1
        for below in [other for other in counts if other > depth]:
            del counts[below]
        if kind == "LegalDefault":
            return ".".join(str(counts.get(above, 1)) for above in range(depth + 1)) + "."
        form, around = _LISTNUM_FORMS[kind][depth]
        return around.format(numerals.written(counts[depth], form))

    def level_of(self, number: str, style: str) -> int | None:
        """Return the level of list ``number`` that is linked to the paragraph style ``style``; None if no level is."""
        found = self._lists.get(number)
        return (
            next((depth for depth, level in found.levels.items() if style and level.style == style), None)
            if found
            else None
        )

    def count(self, number: str, depth: int) -> str:
        """Count a paragraph of list ``number`` at level ``depth`` (from 0). Return the number or bullet to put in front
        of the paragraph; "" for none.
        """
        found = self._lists.get(number)
        if found is None or depth not in found.levels or depth >= _LEVELS:
            return ""
        level = found.levels[depth]
        counts = self._counts.setdefault(found.abstract, {})
        if depth in found.starts and (number, depth) not in self._started:
            counts[depth] = found.starts[depth]
        else:
            counts[depth] = counts[depth] + 1 if depth in counts else level.start
        self._started.add((number, depth))
        for below in [below for below in counts if below > depth]:
            restart = found.levels[below].restart if below in found.levels else None
            if restart is None or (restart and depth < restart):
                del counts[below]
        return self._spelled(found, level, counts)

    def indent(self, number: str, depth: int, inset: int) -> str:
        """Return the spaces before an item at level ``depth`` (from 0), in a list inside ``inset`` others. A number
        such as "2.1" needs none, because it says itself to which item it belongs.
        """
        found = self._lists.get(number)
        level = found.levels.get(depth) if found is not None else None
        return _INDENT * (depth + inset) if level is not None and len(_PLACE.findall(level.text)) < 2 else ""

    def _spelled(self, found: _List, level: _Level, counts: dict[int, int]) -> str:
        if level.hidden:
            return ""
        if level.form == "bullet":
            return _bullet(level)

        def place(match: re.Match[str]) -> str:
            depth = int(match[1]) - 1
            one = found.levels.get(depth)
            if one is None or one.form == "none":
                return ""
            value = counts.get(depth, one.start)
            if one.digits:
                return str(value).zfill(one.digits)
            return numerals.written(value, "decimal" if level.legal else one.form)

        return _PLACE.sub(place, level.text).strip()


def _level(node: ElementTree.Element) -> _Level:
    level = _Level()
    for part in node.iter():
        tag, value = local(part.tag), attribute(part, "val")
        if tag == "start":
            level.start = _whole(value, 1)
        elif tag == "numFmt":
            level.form = value
            zeros = attribute(part, "format").partition(",")[0]
            level.digits = level.digits or (min(len(zeros), _MOST_ZEROS) if zeros.isdigit() else 0)
        elif tag == "lvlText":
            level.text = value
        elif tag == "lvlRestart":
            level.restart = _whole(value, 0)
        elif tag == "isLgl":
            level.legal = value not in _NO
        elif tag == "pStyle":
            level.style = value
        elif tag == "rFonts":
            level.font = attribute(part, "ascii") or attribute(part, "hAnsi")
        elif tag == "vanish":
            level.hidden = value not in _NO
    return level


def _bullet(level: _Level) -> str:
    """Return a bullet's character. Boxes and ticks are kept, because they have a meaning; all other shapes become
    "•".
    """
    if not level.text.strip():
        return ""
    sign = symbols.sign(level.font, ord(level.text[0])) if symbols.is_symbolic(level.font) else level.text[0]
    return sign if sign in _TICKS else _BULLET


def _whole(text: str, default: int) -> int:
    return int(text) if re.fullmatch(r"-?\d{1,6}", text) else default
