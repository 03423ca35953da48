"""Reads old Excel workbooks (XLS) with the library xlrd: the cells of every sheet as Excel shows them, and comments.

xlrd tells the format of a number, so that 0.15 is read as "15%"; python-calamine does not. Runs only in the child
process (``app.readers.child``).
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xlrd
from xlrd.sheet import Sheet as XlsSheet

from app.readers import number_formats
from app.readers.number_formats import BUILT_IN, GENERAL
from app.readers.parsed import Limits, Parsed, Refused, Step, damaged
from app.readers.spreadsheet import ALIVE, Sheet, Workbook

_NUMBERS = (xlrd.XL_CELL_NUMBER, xlrd.XL_CELL_DATE)


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read an XLS file. Each sheet becomes sections with labels such as "sheet Costs, rows 1–40"."""
    step(0, 1, None)
    book = Workbook(limits, lambda: step(0, 1, None), comments=request.get("comments", True))
    try:
        # xlrd would write about damage to the standard output
        with xlrd.open_workbook(path, logfile=io.StringIO(), formatting_info=True, on_demand=True) as workbook:
            for at in range(workbook.nsheets):
                step(at, workbook.nsheets, None)
                _read(workbook.sheet_by_index(at), workbook, book, step)
                workbook.unload_sheet(at)
            author = workbook.user_name or ""
    except Refused:
        raise
    except xlrd.XLRDError as error:
        if "encrypted" in str(error):
            raise Refused("is locked by a password.", "Save it without a password and open that.") from None
        raise damaged("is damaged: its sheets cannot be read.") from None
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - xlrd fails on damaged files with errors of many kinds
        raise damaged("is damaged: its sheets cannot be read.") from None
    return book.parsed("", author)


def _read(found: XlsSheet, workbook: xlrd.Book, book: Workbook, step: Step) -> None:
    sheet = Sheet(found.name)
    book.sheets.append(sheet)
    for row in range(found.nrows):
        if row % ALIVE == 0:
            step(0, 1, None)
        hidden_row = found.visibility != 0 or (row in found.rowinfo_map and bool(found.rowinfo_map[row].hidden))
        for column, text in _cells(found, workbook, row):
            hidden = hidden_row or (column in found.colinfo_map and bool(found.colinfo_map[column].hidden))
            book.put(sheet, row + 1, column, text, hidden=hidden)
    for (row, column), note in sorted(found.cell_note_map.items()) if not found.visibility else ():
        sheet.comments[f"{xlrd.formula.colname(column)}{row + 1}"] = note.text


def _cells(found: XlsSheet, workbook: xlrd.Book, row: int) -> Iterator[tuple[int, str]]:
    for column in range(found.row_len(row)):
        cell = found.cell(row, column)
        if cell.ctype in _NUMBERS:
            yield column, number_formats.shown(cell.value, _code(workbook, cell), from_1904=bool(workbook.datemode))
        elif cell.ctype == xlrd.XL_CELL_BOOLEAN:
            yield column, "TRUE" if cell.value else "FALSE"
        elif cell.ctype == xlrd.XL_CELL_ERROR:
            yield column, xlrd.error_text_from_code.get(cell.value, "#ERROR")
        elif cell.value:
            yield column, str(cell.value)


def _code(workbook: xlrd.Book, cell: Any) -> str:
    """Return the format code of a cell."""
    if cell.xf_index is None or not 0 <= cell.xf_index < len(workbook.xf_list):
        return GENERAL
    key = workbook.xf_list[cell.xf_index].format_key
    if key in BUILT_IN:
        return BUILT_IN[key]
    return workbook.format_map[key].format_str if key in workbook.format_map else GENERAL
