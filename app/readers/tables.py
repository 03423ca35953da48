"""Writes a table as lines: one line for each row, cells separated by " | ", empty cells kept. Runs only in the child
process (``app.readers.child``).

First decides whether the table holds data or only lays out a page. A table of data becomes lines. A table with
headings, a single column or very long cells only lays out a page, and becomes the blocks in its cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from app.readers.sections import Block

_BAR = " | "
_LONGEST_SPAN = 60  # maximum columns or rows that a cell spans; a larger number is a mistake or an attack
_MOST_GAPS = 20_000  # maximum empty places in a table for merged cells; beyond it, a merged cell takes a single place
_LONGEST_RUN = 2_000  # the header of a table is repeated each time that rows with this many characters are written
_LONGEST_HEADER = 400  # maximum characters of a header that is repeated in a long table
# If at least this share of a table's columns is empty, the empty columns are only spacing and are dropped.
_MOST_EMPTY = 1 / 3
_COLUMNS_NAMED = 3  # minimum cells of a first row that may be a header although the file does not mark it as a header
_LONGEST_CELL = 3_000  # maximum characters of a cell with data; a table with a longer cell only lays out a page
_MOST_BLOCKS = 12  # maximum paragraphs of a cell with data; a table with more paragraphs in a cell only lays out a page
DEEPEST = 20
"""Maximum nesting of tables. A deeper table becomes part of the text of the cell around it."""


@dataclass(slots=True)
class Cell:
    """The content of a cell in order, and the number of columns and rows it spans."""

    content: list[Block | Table] = field(default_factory=list)
    columns: int = 1
    rows: int = 1

    def blocks(self) -> list[Block]:
        return [part for part in self.content if isinstance(part, Block)]

    def tables(self) -> list[Table]:
        return [part for part in self.content if isinstance(part, Table)]


@dataclass(slots=True)
class Row:
    """The cells of a row.

    ``skipped``: number of empty columns before the first cell. ``header``: whether the row names the columns.
    ``footer``: whether the row is shown below the other rows, wherever it is in the file.
    """

    cells: list[Cell] = field(default_factory=list)
    header: bool = False
    skipped: int = 0
    footer: bool = False


@dataclass
class Table:
    """The rows of a table. ``layout``: whether the file says that the table only lays out a page."""

    rows: list[Row] = field(default_factory=list)
    layout: bool = False


def as_blocks(table: Table) -> list[Block]:
    """Convert a table to blocks. The rows of a table of data become blocks of lines, each of which starts with the
    header. A layout table becomes the blocks in its cells.
    """
    if _lays_out(table):
        return list(_contents(table))
    lines = list(_lines(table))
    anchors = tuple(anchor for block in _all_blocks(table) for anchor in block.anchors)
    texts = _runs(lines, _header(table, lines))
    if not texts:
        return [Block("", 0, anchors)] if anchors else []
    return [Block(text, 0, anchors if at == 0 else ()) for at, text in enumerate(texts)]


def _lays_out(table: Table) -> bool:
    cells = [cell for row in table.rows for cell in row.cells]
    if table.layout or any(_is_headed(cell) for cell in cells):
        return True
    if not any(_is_full(cell) for row in table.rows for cell in row.cells[1:]):
        return not (len(cells) > 1 and all(_is_short(cell) for cell in cells))
    return any(
        len(cell.content) > _MOST_BLOCKS or sum(len(block.text) for block in cell.blocks()) > _LONGEST_CELL
        for cell in cells
        if cell.content
    )


def _is_headed(cell: Cell) -> bool:
    """Whether a cell has a heading and also other content."""
    return len(cell.content) > 1 and any(block.level for block in cell.blocks())


def _is_short(cell: Cell) -> bool:
    """Whether a cell is short enough to be a line of a table with one column."""
    return len(cell.content) <= 1 and not cell.tables() and len(_text(cell)) < _LONGEST_HEADER


def _is_full(cell: Cell) -> bool:
    return any(isinstance(part, Table) or part.text for part in cell.content)


def _contents(table: Table) -> Iterator[Block]:
    for row in table.rows:
        for cell in row.cells:
            for part in cell.content:
                if isinstance(part, Block):
                    yield part
                else:
                    yield from as_blocks(part)


def _all_blocks(table: Table) -> Iterator[Block]:
    stack: list[Block | Table] = [table]
    while stack:
        part = stack.pop()
        if isinstance(part, Block):
            yield part
        else:
            stack.extend(reversed([held for row in part.rows for cell in row.cells for held in cell.content]))


def _text(cell: Cell) -> str:
    """Return the text of a cell on one line, including small tables in it."""
    if not cell.content:
        return ""
    first = cell.content[0]
    if len(cell.content) == 1 and isinstance(first, Block):
        if first.kept and "\n" not in first.text:
            return first.text.rstrip()
        return " ".join(first.text.split()) if "\n" in first.text or "  " in first.text else first.text
    parts = []
    for part in cell.content:
        if isinstance(part, Block):
            parts.append(" ".join(part.text.split()))
        elif _is_small(part):
            parts.append("; ".join(" ".join(filter(None, map(_text, row.cells))) for row in part.rows))
    return " ".join(part for part in parts if part)


def _is_small(table: Table) -> bool:
    """Whether a table has one row or one column, so that it fits on the line of the cell around it."""
    return len(table.rows) <= 1 or all(len(row.cells) <= 1 for row in table.rows)


def _lines(table: Table) -> Iterator[tuple[str, bool]]:
    """Yield each row as a line, with a flag that tells whether the row is a header. The lines of a large table in a
    cell follow the line of the cell's row.
    """
    grid = _grid(table)
    used = _used(table, grid)
    for row, parts in zip(table.rows, grid, strict=True):
        filled = [part for part in parts if part]
        if code := [cell for cell in row.cells if _is_code(cell)]:
            yield from ((line, False) for line in _code_lines(row, code))
        elif len(filled) == len(row.cells) == 1 and parts[0]:
            yield filled[0], row.header  # the row has only one cell, which spans all columns
        elif filled:
            joined = _BAR.join(parts[column] for column in used if column < len(parts))
            keeps = any(block.kept for cell in row.cells for block in cell.blocks())
            yield joined.rstrip() if keeps else joined.replace("  ", " ").strip(), row.header
        for cell in row.cells:
            for inner in _large_tables(cell):
                yield from ((f"  {line}", False) for line, _ in _lines(inner))


def _is_code(cell: Cell) -> bool:
    """Whether a cell has several lines that are shown as they are written."""
    return len(cell.content) == 1 and any(block.kept and "\n" in block.text for block in cell.blocks())


def _code_lines(row: Row, code: list[Cell]) -> Iterator[str]:
    """Yield the lines of a row with program text. Lines of several cells stand beside each other, such as program text
    and the numbers of its lines. A cell without program text stands before the first line.
    """
    columns = [
        cell.blocks()[0].text.split("\n") if any(cell is one for one in code) else [_text(cell)] for cell in row.cells
    ]
    columns = [lines for lines in columns if any(lines)]
    for at in range(max(map(len, columns))):
        yield _BAR.join(lines[at] for lines in columns if at < len(lines)).rstrip()


def _large_tables(cell: Cell) -> Iterator[Table]:
    """Yield the tables in a cell that are too large for the cell's line, including large tables within small tables."""
    for inner in cell.tables():
        if _is_small(inner):
            for row in inner.rows:
                for held in row.cells:
                    yield from _large_tables(held)
        else:
            yield inner


def _used(table: Table, grid: list[list[str]]) -> list[int]:
    """Return the indices of the columns to write. Empty columns are left out if there are many, because they are only
    spacing then, or if a cell of the table spans several columns.
    """
    filled = {column for parts in grid for column, part in enumerate(parts) if part}
    if any(cell.columns > 1 for row in table.rows for cell in row.cells):
        return sorted(filled)  # an empty column may be a part of a merged cell
    width = max(map(len, grid), default=0)
    empty = [column for column in range(width) if column not in filled]
    return list(range(width)) if len(empty) < _MOST_EMPTY * width else sorted(filled)


def _grid(table: Table) -> list[list[str]]:
    """Return the texts of the cells by row and column. A merged cell has its text in its top left place, and "" in its
    other places.
    """
    grid = []
    gaps, above = 0, dict[int, int]()  # ``above``: number of rows that a cell above still spans, keyed by column
    for row in table.rows:
        parts: list[str] = [""] * min(row.skipped, _LONGEST_SPAN)
        taken: dict[int, int] = {}

        def pass_over(parts: list[str] = parts, taken: dict[int, int] = taken, above: dict[int, int] = above) -> None:
            while above.get(len(parts), 0) > 0:
                taken[len(parts)] = above[len(parts)] - 1
                parts.append("")

        for cell in row.cells:
            pass_over()
            columns, rows = min(max(cell.columns, 1), _LONGEST_SPAN), min(max(cell.rows, 1), _LONGEST_SPAN)
            gaps += columns * rows - 1
            if gaps > _MOST_GAPS:
                columns = rows = 1
            if rows > 1:
                taken.update(dict.fromkeys(range(len(parts), len(parts) + columns), rows - 1))
            parts += [_text(cell), *[""] * (columns - 1)]
        pass_over()
        above = taken
        grid.append(parts)
    return grid


def _header(table: Table, lines: list[tuple[str, bool]]) -> str:
    """Return the header lines to repeat; "" if there is no header or if it is too long. If the file marks no row as a
    header, a first row of names above numbers is the header.
    """
    marked = 0
    while marked < len(lines) and lines[marked][1]:
        marked += 1
    if not marked and len(table.rows) > 1 and len(table.rows[0].cells) >= _COLUMNS_NAMED:
        names = [_text(cell) for cell in table.rows[0].cells]
        below = [text for row in table.rows[1:] for cell in row.cells[1:] if (text := _text(cell))]
        marked = int(all(name and not name[0].isdigit() for name in names[1:]) and any(t[0].isdigit() for t in below))
    header = "\n".join(line for line, _ in lines[:marked])
    return header if len(header) <= _LONGEST_HEADER and marked < len(lines) else ""


def _runs(lines: list[tuple[str, bool]], header: str) -> list[str]:
    texts: list[str] = []
    current: list[str] = []
    length = 0
    for line, _ in lines:
        if length > _LONGEST_RUN:
            texts.append("\n".join(current))
            current, length = ([header] if header else []), 0
        current.append(line)
        length += len(line) + 1
    if current:
        texts.append("\n".join(current))
    return texts
