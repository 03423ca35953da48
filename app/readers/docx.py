"""Word files (DOCX): paragraphs in order, sections by heading styles, notes at the end. Child only.

Our own walk over the XML, because mammoth reads text that Word hides out to the model, gives up a book for a broken
list of styles or notes, and takes eight times as long without a sign of life.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from xml.etree import ElementTree

from app.readers import archive, cleaning
from app.readers.archive import local
from app.readers.parsed import Limits, Parsed, Refused, Step, damaged
from app.readers.sections import Block, Chapter, by_headings, finish, split_levels

_Found = TypeVar("_Found")

_BODY = "word/document.xml"
_TYPES = "[Content_Types].xml"
_BODY_TYPE = re.compile(r"(?:wordprocessingml|ms-word)\..*main\+xml$")
_STYLES = "word/styles.xml"
_CORE = "docProps/core.xml"
_NOTES = (
    ("word/footnotes.xml", "Footnotes", "footnoteReference"),
    ("word/endnotes.xml", "Endnotes", "endnoteReference"),
)
_MARK = "note-mark"  # what a reference to a note is made into: its number in the text
_SIGNS = {"tab": " ", "br": "\n", "cr": "\n", "noBreakHyphen": "-", "softHyphen": ""}
_LEFT_OUT = {"Fallback", "del", "moveFrom", "pPr", "rPr", "instrText", "delText"}
_DEEPEST = 6
_ALIVE = 500  # paragraphs between two signs of life


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read a DOCX file."""
    step(0, 1, None)
    try:
        with archive.open_bounded(path, limits) as files:
            names = set(files.namelist())
            warnings: list[str] = []
            styles: dict[str, int] = {}
            if _STYLES in names:
                styles = _attempt(lambda: _heading_styles(files), styles, warnings)
            root = archive.read_xml(files.read(body(files)), "its text")
            marks = {kind: _number_notes(root, kind) for _, _, kind in _NOTES}
            blocks = _blocks(root, styles, step)
            notes = [
                _attempt(partial(_notes, files, name, title, marks[kind]), Chapter(title, ""), warnings)
                for name, title, kind in _NOTES
                if name in names
            ]
            title, author = _attempt(lambda: _names(files), ("", ""), warnings) if _CORE in names else ("", "")
    except (zipfile.BadZipFile, OSError, NotImplementedError, KeyError):
        raise damaged("is damaged: its zip container cannot be read.") from None
    chapters = by_headings(blocks, split_levels(blocks))
    sections, outline = finish([*chapters, *(note for note in notes if note.text)])
    title = title or next((block.text for block in blocks if block.level == 1), "")
    return Parsed("docx", "section", sections, title, author, outline, warnings)


def body(files: zipfile.ZipFile) -> str:
    """The name of the part that holds the text; "" where this is no Word file."""
    names = files.namelist()
    if _BODY in names:
        return _BODY
    if _TYPES not in names:
        return ""
    for part in archive.read_xml(files.read(_TYPES), "its list of parts"):
        name = part.get("PartName", "").lstrip("/")
        if _BODY_TYPE.search(part.get("ContentType", "")) and name in names:
            return name
    return ""


def _attempt(work: Callable[[], _Found], otherwise: _Found, warnings: list[str]) -> _Found:
    """What is beside the text: where it is damaged, the book is not lost for it."""
    try:
        return work()
    except Refused as refused:
        warnings.append(f"A part of the file {refused.cause}")
        return otherwise


def _heading_styles(files: zipfile.ZipFile) -> dict[str, int]:
    """Style ids that are headings, whatever the language of the program that wrote them."""
    levels: dict[str, int] = {}
    for style in archive.read_xml(files.read(_STYLES), "its list of styles"):
        if local(style.tag) != "style":
            continue
        identity = _attribute(style, "styleId")
        for node in style.iter():
            name = local(node.tag)
            value = _attribute(node, "val").casefold()
            if name == "name" and value == "title":
                levels[identity] = 1
            elif name == "name" and value.startswith("heading ") and value[8:].isdigit():
                levels[identity] = int(value[8:])
            elif name == "outlineLvl" and value.isdigit() and int(value) < _DEEPEST:
                levels.setdefault(identity, int(value) + 1)
    return levels


def _attribute(node: ElementTree.Element, name: str) -> str:
    return next((value for key, value in node.attrib.items() if local(key) == name), "")


def _blocks(root: ElementTree.Element, styles: dict[str, int], step: Step) -> list[Block]:
    blocks = []
    for at, node in enumerate(_rows(root)):
        if at % _ALIVE == 0:
            step(0, 1, None)
        if local(node.tag) == "tr":
            cells = [" ".join("".join(_texts(cell)).split()) for cell in node if local(cell.tag) == "tc"]
            text, level = " | ".join(cell for cell in cells if cell), 0
        else:
            text, level = "".join(_texts(node)), _level(node, styles)
        text = cleaning.spaces(cleaning.characters(text))
        if text:
            blocks.append(Block(" ".join(text.split()) if level else text, level))
    return blocks


def _rows(node: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """Paragraphs and table rows in reading order."""
    stack = [node]
    while stack:
        current = stack.pop()
        name = local(current.tag)
        if name in ("p", "tr"):
            yield current
        elif name not in _LEFT_OUT:
            stack.extend(reversed(current))


def _texts(node: ElementTree.Element) -> Iterator[str]:
    stack: list[ElementTree.Element | str] = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, str):
            yield current
            continue
        name = local(current.tag)
        if name == "t":
            yield current.text or ""
        elif name in _SIGNS:
            yield _SIGNS[name]
        elif name == _MARK:
            yield f"[{current.text}]"
        elif name not in _LEFT_OUT and not (name == "r" and _is_hidden(current)):
            if name == "p" and current is not node:  # a paragraph inside of a cell or a text box
                stack.append("\n")
            stack.extend(reversed(current))


def _is_hidden(run: ElementTree.Element) -> bool:
    """Whether the program that wrote it shows this text to nobody."""
    settings = [setting for node in run if local(node.tag) == "rPr" for setting in node]
    found = [_attribute(setting, "val") for setting in settings if local(setting.tag) == "vanish"]
    return bool(found) and found[-1] not in ("0", "false", "off")


def _number_notes(root: ElementTree.Element, kind: str) -> dict[str, str]:
    """Number the references to notes in the order of the text, as the page shows them: id -> number."""
    numbers: dict[str, str] = {}
    for node in root.iter():
        if local(node.tag) == kind:
            node.text = numbers.setdefault(_attribute(node, "id"), str(len(numbers) + 1))
            node.tag = _MARK
    return numbers


def _level(paragraph: ElementTree.Element, styles: dict[str, int]) -> int:
    for node in paragraph:
        if local(node.tag) != "pPr":
            continue
        for setting in node:
            value = _attribute(setting, "val")
            if local(setting.tag) == "pStyle" and value in styles:
                return styles[value]
            if local(setting.tag) == "outlineLvl" and value.isdigit() and int(value) < _DEEPEST:
                return int(value) + 1
    return 0


def _notes(files: zipfile.ZipFile, name: str, title: str, numbers: dict[str, str]) -> Chapter:
    texts = {}
    for note in archive.read_xml(files.read(name), "its notes"):
        text = cleaning.spaces(cleaning.characters("".join(_texts(note))))
        if text and not _attribute(note, "type"):
            texts[_attribute(note, "id")] = text
    order = [*(identity for identity in numbers if identity in texts), *sorted(texts.keys() - numbers.keys())]
    return Chapter(title, "\n\n".join(f"{numbers.get(at, at)}. {texts[at]}" for at in order))


def _names(files: zipfile.ZipFile) -> tuple[str, str]:
    found = {local(node.tag): node.text or "" for node in archive.read_xml(files.read(_CORE), "its list of properties")}
    return found.get("title", ""), found.get("creator", "")
