"""Reads Excel workbooks (XLSX): the cells of every sheet as Excel shows them, text boxes and comments.

Walks the XML itself, because no library that is fast enough tells how a number is shown: python-calamine gives 0.15
for "15%". Runs only in the child process (``app.readers.child``).
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from app.readers import archive, cleaning, number_formats
from app.readers.archive import attribute, local
from app.readers.collector import NAMELESS
from app.readers.lists import whole
from app.readers.number_formats import GENERAL
from app.readers.office import Package
from app.readers.parsed import Limits, Parsed, Step, damaged
from app.readers.spreadsheet import ALIVE, MOST_COLUMNS, Sheet, Workbook, column_of

_MAIN = "xl/workbook.xml"
_YES = ("1", "true")
_MOST_HIDDEN = 1_000  # maximum ranges of hidden columns
_PIECE = 1 << 16  # bytes of a sheet that are parsed at once


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read an XLSX file. Each sheet becomes sections with labels such as "sheet Costs, rows 1–40"."""
    step(0, 1, None)
    with archive.opened_whole(path, limits) as files:
        book = Workbook(limits, lambda: step(0, 1, None), comments=request.get("comments", True))
        parser = _Xlsx(files, book, lambda: step(0, 1, None))
        parser.read()
        title, author = parser.title_and_author()
    book.warnings += parser.warnings
    return book.parsed(title, author)


class _Xlsx(Package):
    def __init__(self, files: zipfile.ZipFile, book: Workbook, progress: Callable[[], None]) -> None:
        super().__init__(files)
        self._book = book
        self._alive = progress
        self._strings: list[str] = []
        self._codes: list[str] = []  # the format code of each style of cells
        self._from_1904 = False

    def read(self) -> None:
        main = self.main(_MAIN)
        root = self.xml(main, "its list of sheets")
        if root is None:
            raise KeyError(main)
        parts = self.related(main)
        kinds = dict(parts.values())
        self._strings = self.attempt(lambda: list(self._shared(kinds.get("sharedStrings", ""))), [])
        self._codes = self.attempt(lambda: self._formats(kinds.get("styles", "")), [])
        for node in root.iter():
            if local(node.tag) == "workbookPr":
                self._from_1904 = node.get("date1904") in _YES
            elif local(node.tag) == "sheet":
                identity = next((value for key, value in node.attrib.items() if key.endswith("}id")), "")
                sheet = Sheet(node.get("name", ""))
                self._book.sheets.append(sheet)
                kind, name = parts.get(identity, ("", ""))
                if kind == "worksheet":
                    hidden = node.get("state", "visible") != "visible"
                    self.attempt(lambda name=name, sheet=sheet: self._sheet(name, sheet, hidden=hidden), None)  # type: ignore[misc] # noqa: B023

    def _shared(self, name: str) -> Iterator[str]:
        root = self.xml(name, "its list of texts")
        for count, node in enumerate(root if root is not None else ()):
            if count % ALIVE == 0:
                self._alive()
            yield _words(node)

    def _formats(self, name: str) -> list[str]:
        """Return the format code of each style of cells."""
        root = self.xml(name, "its list of styles")
        codes = dict(number_formats.BUILT_IN)
        formats: list[str] = []
        for node in root if root is not None else ():
            if local(node.tag) == "numFmts":
                codes |= {whole(one.get("numFmtId")) or 0: one.get("formatCode", GENERAL) for one in node}
            elif local(node.tag) == "cellXfs":
                formats = [codes.get(whole(one.get("numFmtId")) or 0, GENERAL) for one in node]
        return formats

    def _sheet(self, name: str, sheet: Sheet, *, hidden: bool) -> None:
        self._cells(name, sheet, hidden=hidden)
        for kind, part in self.related(name).values():
            if hidden:
                continue
            if kind == "comments":
                self.attempt(lambda part=part: self._comments(part, sheet), None)  # type: ignore[misc]
            elif kind == "drawing":
                self.attempt(lambda part=part: self._drawing(part, sheet), None)  # type: ignore[misc]

    def _cells(self, name: str, sheet: Sheet, *, hidden: bool) -> None:
        """Read the cells of a sheet piece by piece, because a sheet may be larger than a book."""
        place = self.names.find(name)
        if place is None:
            self.warnings.append(f"The sheet “{cleaning.one_line(sheet.name)}” is missing from the file.")
            return
        parser: Any = ElementTree.XMLPullParser(("start", "end"))
        state, before = _Rows(hidden), b""
        try:
            with self.files.open(place) as file:
                while data := file.read(_PIECE):
                    if b"<!ENTITY" in before + data:
                        raise damaged("is damaged: a sheet defines XML entities.")
                    before = data[-8:]
                    parser.feed(data)
                    for event, node in parser.read_events():
                        self._event(event, node, state, sheet)
        except (ElementTree.ParseError, *archive.DAMAGE, ValueError):
            self.warnings.append(f"The sheet “{cleaning.one_line(sheet.name)}” is damaged and is read in part.")

    def _event(self, event: str, node: ElementTree.Element, state: _Rows, sheet: Sheet) -> None:
        tag = local(node.tag)
        if event == "start":
            if tag == "row":
                state.row = whole(node.get("r")) or state.row + 1
                state.count += 1
                if state.count % ALIVE == 0:
                    self._alive()
                state.column = -1
                state.hidden_row = node.get("hidden") in _YES
            elif tag == "col" and node.get("hidden") in _YES and len(state.columns) < _MOST_HIDDEN:
                state.columns.append((whole(node.get("min")) or 0, whole(node.get("max")) or 0))
            return
        if tag == "c":
            row, column = column_of(node.get("r", ""))
            state.row, state.column = (row, column) if row else (state.row, state.column + 1)
            if state.column < MOST_COLUMNS:
                self._book.put(sheet, state.row, state.column, self._value(node), hidden=state.is_hidden())
        if tag in ("c", "row"):
            node.clear()

    def _value(self, cell: ElementTree.Element) -> str:
        kind = cell.get("t", "n")
        parts = {local(part.tag): part for part in cell}
        if kind == "inlineStr":
            return _words(parts["is"]) if "is" in parts else ""
        value = (parts["v"].text or "") if "v" in parts else ""
        if "f" in parts and not value:
            formula = parts["f"].text
            self._book.unvalued += kind != "str" and bool(formula)
            return f"={formula}" if formula and kind != "str" else ""
        if kind == "s":
            index = whole(value)
            return self._strings[index] if index is not None and 0 <= index < len(self._strings) else ""
        if kind == "b":
            return {"1": "TRUE", "0": "FALSE"}.get(value, value)
        if kind != "n":
            return value.replace("_x000D_", "\n")
        style = whole(cell.get("s")) or 0
        code = self._codes[style] if 0 <= style < len(self._codes) else GENERAL
        try:
            number = float(value)
            return number_formats.shown(number, code, from_1904=self._from_1904) if abs(number) < 1e300 else value
        except (ValueError, OverflowError):
            return value

    def _comments(self, name: str, sheet: Sheet) -> None:
        root = self.xml(name, "its comments")
        for node in root.iter() if root is not None else ():
            if local(node.tag) == "comment":
                sheet.comments[node.get("ref", "")] = _words(node)

    def _drawing(self, name: str, sheet: Sheet) -> None:
        """Read the text boxes of a sheet, and the descriptions of its pictures."""
        root = self.xml(name, "a drawing")
        for node in root.iter() if root is not None else ():
            if local(node.tag) == "txBody":
                lines = ("".join(part.itertext()).strip() for part in node if local(part.tag) == "p")
                sheet.texts.append(cleaning.characters("\n".join(line for line in lines if line)))
            elif local(node.tag) == "pic":
                said = next((attribute(part, "descr") for part in node.iter() if local(part.tag) == "cNvPr"), "")
                if said.strip() and not NAMELESS.match(said.strip()):
                    sheet.texts.append(f"[Image: {cleaning.one_line(said, 2_000)}]")
                else:
                    self._book.pictures += 1


class _Rows:
    """Where in a sheet the parser is."""

    def __init__(self, hidden: bool) -> None:
        self.row = 0
        self.count = 0
        self.column = -1
        self.columns: list[tuple[int, int]] = []  # first and last number of hidden columns, from 1
        self.hidden_row = False
        self._hidden = hidden

    def is_hidden(self) -> bool:
        number = self.column + 1
        return self._hidden or self.hidden_row or any(first <= number <= last for first, last in self.columns)


def _words(node: ElementTree.Element) -> str:
    """Return the text of a cell's content, without phonetic readings."""
    texts = []
    stack = [*reversed(node)]
    while stack:
        part = stack.pop()
        if local(part.tag) == "t":
            texts.append(part.text or "")
        elif local(part.tag) != "rPh":
            stack.extend(reversed(part))
    return "".join(texts).replace("_x000D_", "\n")
