"""Reads tables in text files (CSV, TSV). Each row is one line, and the header row is repeated in every section.

A row of a CSV stays as written, with its separators and quotation marks. The cells of a TSV are joined with " | ". A
line break in a quoted cell becomes a space. Runs only in the child process (``app.readers.child``).
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Literal

from app.readers import cleaning
from app.readers.parsed import Opening, Section
from app.readers.sections import PART

NAMES = {".csv": ",;\t|", ".tsv": "\t,;", ".tab": "\t,;"}
"""File name extensions of tables, with their possible separators, the most likely one first."""

CELLS = " | "
"""Separator between the cells of a row."""

_SAMPLE = 200  # leading rows that are used to find the separator
_FEWEST_ROWS = 3
# Minimum cells per row of a table. Applies only to files without an extension for tables (``NAMES``).
_FEWEST_CELLS = 3
# Maximum characters of a cell of a table. Applies only to files without an extension for tables (``NAMES``).
_LONGEST_CELL = 120
# Maximum line breaks in a row. A row with more has an unclosed quotation mark, and all quotation marks are then read as
# ordinary characters.
_LONGEST_ROW = 60
_SAME_WIDTH = 0.9  # minimum share of rows with the same number of cells in a table whose cells are separated by tabs
_LONGEST_HEAD = 80  # maximum characters of a cell in a header row; a row with a longer cell is data
_SEPARATOR = re.compile(r"^\ufeff?sep=(.)\n")  # matches a first line that tells Excel the separator
_NUMBER = re.compile(r"^[-+(]?[^\w\s]?\d[\d.,' ]*\W{0,2}$|^\d{1,4}[-./]\d{1,2}[-./]\d{1,4}\b")

Row = tuple[str, list[str]]  # a row as written, and its cells


def is_table(opening: Opening) -> bool:
    """Whether a text is a table, by its name or by its rows."""
    text = opening.text.replace("\r\n", "\n").replace("\r", "\n")
    return separator_of(text, opening.suffix) is not None


def separator_of(text: str, suffix: str) -> str | None:
    """Find the character that separates a table's cells; None if the text is no table.

    Args:
        text: the start of the file; its last line may be cut.
        suffix: the extension of the file name, in lowercase.
    """
    if named := _SEPARATOR.match(text):
        return named[1]
    lines = text.split("\n")[: 4 * _SAMPLE]
    best, most = None, 0.0
    for separator in NAMES.get(suffix, "\t;,"):
        rows = [cells for _, cells in _rows(lines, separator) if any(cells)][:_SAMPLE]
        width, share = _width(rows)
        if width > 1 and share > most and (suffix in NAMES or _is_table(rows, width, share, separator)):
            best, most = separator, share
    return best if best or suffix not in NAMES else NAMES[suffix][0]


def _is_table(rows: list[list[str]], width: int, share: float, separator: str) -> bool:
    """Whether rows are regular enough to be a table. Called only for files without an extension for tables."""
    if len(rows) < _FEWEST_ROWS or any(len(cell) > _LONGEST_CELL for cells in rows for cell in cells):
        return False
    if separator == "\t":
        return share >= _SAME_WIDTH
    cells = [cell for row in rows for cell in row[1:]]
    # number of cells that start with a space; many do if the separators are commas of sentences
    spaced = sum(cell.startswith(" ") for cell in cells)
    return share == 1 and width >= _FEWEST_CELLS and spaced < len(cells) / 2


def _width(rows: list[list[str]]) -> tuple[int, float]:
    """Return the most frequent number of cells per row, and the share of rows with this number."""
    if not rows:
        return 0, 0.0
    width, count = Counter(map(len, rows)).most_common(1)[0]
    return width, count / len(rows)


def _rows(lines: list[str], separator: str) -> Iterator[Row]:
    """Yield rows with their cells. If a quotation mark seems unclosed, all quotation marks are read as ordinary
    characters.
    """
    quoted = list(_read(lines, separator, csv.QUOTE_MINIMAL))
    if any(written.count("\n") > _LONGEST_ROW for written, _ in quoted) or _is_torn(quoted, lines, separator):
        quoted = list(_read(lines, separator, csv.QUOTE_NONE))
    yield from quoted


def _is_torn(quoted: list[Row], lines: list[str], separator: str) -> bool:
    """Whether an unclosed quotation mark has joined rows. This is so if a larger share of rows has the same number of
    cells when all quotation marks are read as ordinary characters. Return False if no quoted cell has a line break.
    """
    if not any("\n" in written for written, _ in quoted):
        return False
    plain = [cells for _, cells in _read(lines, separator, csv.QUOTE_NONE) if any(cells)]
    return _width(plain)[1] > _width([cells for _, cells in quoted if any(cells)])[1]


def _read(lines: list[str], separator: str, quoting: Literal[0, 3]) -> Iterator[Row]:
    csv.field_size_limit(max(1, sum(map(len, lines)) + len(lines)))
    reader, start = csv.reader((line + "\n" for line in lines), delimiter=separator, quoting=quoting), 0
    with suppress(StopIteration):
        while True:
            cells = next(reader)
            yield "\n".join(lines[start : reader.line_num]), cells
            start = reader.line_num


def pages(text: str, separator: str) -> tuple[list[Section], list[str]]:
    """Split a table into sections of whole rows, each with the header row. Return the sections and the warnings.

    Sections are named by row numbers, counted as in a spreadsheet.
    """
    named = _SEPARATOR.match(text)
    lines = text[named.end() if named else 0 :].split("\n")
    filled: list[tuple[int, str, list[str]]] = []
    empty = number = 0
    for written, cells in _rows(lines, separator):
        if not written.strip():
            number += bool(filled)
            continue
        number += 1
        cells = [one_line(cell) for cell in cells]
        if not any(cells):
            empty += 1
            continue
        row = " ".join(CELLS.join(cells).split()) if separator == "\t" else one_line(written)
        filled.append((number, row, cells))
    said = [f"{empty:,} rows without anything in them are left out."] if empty else []
    return by_rows(filled), said


def by_rows(rows: Sequence[tuple[int, str, list[str]]]) -> list[Section]:
    """Split a table into sections of whole rows, each with the header row.

    Args:
        rows: the number of each row, by which the sections are named; the row as written; its cells.
    """
    head = _head([cells for _, _, cells in rows])
    heads = [row for _, row, _ in rows[: head + 1]] if head is not None else []
    return [
        Section(_label(part[0][0], part[-1][0]), "\n".join([*(heads if at else ()), *(row for _, row in part)]))
        for at, part in enumerate(_parted([(number, row) for number, row, _ in rows], sum(map(len, heads))))
    ]


def one_line(text: str) -> str:
    """Return a cell's text without line breaks and tabs."""
    return " ".join(cleaning.characters(text.replace("\t", " ")).split())


def _label(first: int, last: int) -> str:
    return f"row {first:,}" if first == last else f"rows {first:,}–{last:,}"


def _parted(rows: Iterable[tuple[int, str]], heads: int) -> Iterator[list[tuple[int, str]]]:
    part: list[tuple[int, str]] = []
    length = heads
    for number, row in rows:
        if part and length + len(row) > PART:
            yield part
            part, length = [], heads
        part.append((number, row))
        length += len(row) + 1
    if part:
        yield part


def _head(rows: list[list[str]]) -> int | None:
    """Return the index of the header row; None in doubt, because a row of data must not be repeated in each section."""
    width, _ = _width(rows[:_SAMPLE])
    for at, cells in enumerate(rows[:5]):
        filled = [cell for cell in cells if cell]
        if len(cells) != width or len(filled) < max(2, 0.6 * width):
            continue
        below = rows[at + 1 : at + 1 + _SAMPLE]
        return at if _names_columns(cells, below) and sum(map(len, cells)) < PART // 2 else None
    return None


def _names_columns(cells: list[str], below: list[list[str]]) -> bool:
    filled = [cell for cell in cells if cell]
    if any(len(cell) > _LONGEST_HEAD for cell in filled) or not below:
        return False
    numbers = [cell for cell in cells if _NUMBER.match(cell)]
    # header cells may be consecutive numbers, such as years or weeks
    counted = numbers == sorted(numbers) and all(cell.isdigit() for cell in numbers)
    if _NUMBER.match(cells[0]) or (numbers and not counted):
        return False
    for column, cell in enumerate(cells):
        values = [row[column] for row in below if len(row) > column and row[column]]
        if values and not _NUMBER.match(cell) and sum(bool(_NUMBER.match(one)) for one in values) > len(values) / 2:
            return True
        if cell and cell in values:
            return False
    return len(set(filled)) == len(filled)
