"""Finds the drawn tables of a PDF page. The cells of a drawn table lie between ruling lines (``pdf_grids``). Runs only
in the child process (``app.readers.child``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from app.readers.layout import Line
from app.readers.pdf_cells import (
    MARK,
    NUMBER,
    NUMBERS,
    Cells,
    as_lines,
    cut_at,
    grouped_rows,
    in_rows,
    is_prose,
    printed_rows,
)
from app.readers.pdf_grids import Grid

_FEWEST_CELLS = 3  # minimum cells with text in a drawn table
_FEWEST_FILLED = 0.3  # minimum share of filled cells in a drawn table
# minimum share of filled cells in a drawn table with long cells; frames around ordinary text have a smaller share
_WELL_FILLED = 0.6
_LONG_CELL = 300  # minimum characters of a cell that counts as long
_LONGEST_CELL = 1_500  # maximum characters of a cell; a longer text is no cell, but ordinary text in a frame
_FEWEST_PRINTED = 3  # minimum printed rows between two ruling lines that may be separate rows of the table
# minimum printed rows between two ruling lines that are separate rows of the table even if no column has numbers
_MANY_PRINTED = 8
# a row between two ruling lines is split only if two columns have text in more than this share of its printed rows
_MANY = 0.6


def drawn_tables(pieces: Sequence[Line], grids: Sequence[Grid]) -> dict[int, list[Line]]:
    """Find the tables that are drawn as ``grids``. The cells of a table need not be consecutive in ``pieces``.

    Returns:
        Lists of lines, keyed by the ``id`` of each piece of text in a table. The list of the table's first piece has
            the table's rows. The lists of its other pieces are empty.
    """
    tables: dict[int, list[Line]] = {}
    for grid in grids:
        inside = [piece for piece in pieces if grid.holds((piece.x0 + piece.x1) / 2, (piece.top + piece.bottom) / 2)]
        if len(inside) < _FEWEST_CELLS:
            continue
        parts: list[Line] = []
        for piece in inside:
            rows = tables.get(id(piece))
            if rows is None:
                parts += cut_at(piece, grid.walls((piece.top + piece.bottom) / 2), 0.0)
            elif rows:  # the piece starts a smaller table, which becomes a cell of the table around it
                parts.append(_one_piece(rows))
        lines = _drawn(parts, grid)
        if lines:
            for piece in inside:
                tables[id(piece)] = []
            tables[id(inside[0])] = lines
    return tables


def _one_piece(rows: Sequence[Line]) -> Line:
    """Return a table as one line of text, for the cell of the table around it."""
    text = "; ".join(row.text.replace(MARK, " ").replace(MARK.rstrip(), "") for row in rows)
    return replace(
        rows[0],
        text=text,
        x0=min(row.x0 for row in rows),
        x1=max(row.x1 for row in rows),
        bottom=max(row.bottom for row in rows),
        columns=(),
        head=False,
    )


def _drawn(parts: Sequence[Line], grid: Grid) -> list[Line]:
    """Return the rows of a drawn table as lines; empty if the grid is no table."""
    cells: dict[tuple[int, int], list[Line]] = {}
    for part in parts:
        x, y = part.x0 + 0.1 * (part.x1 - part.x0), (part.top + part.bottom) / 2
        cells.setdefault(grid.cells[grid.row(y)][grid.column(x)], []).append(part)
    rows, columns = len(grid.cells), len(grid.cells[0])
    filled = len(cells)
    if filled < _FEWEST_CELLS or filled < _FEWEST_FILLED * len({place for row in grid.cells for place in row}):
        return []
    if len({row for row, _ in cells}) < 2 or len({column for _, column in cells}) < 2:
        return []
    if grid.frames & cells.keys():
        return []
    height = median(part.height for part in parts)
    made: list[Cells] = []
    # cells of the preceding row that are taken over, because all its filled cells continue in this row
    held: Cells = [[] for _ in range(columns)]
    for row, places in enumerate(grid.cells):
        here = [
            held[column] or in_rows(cells.get((row, column), [])) if places[column] == (row, column) else held[column]
            for column in range(columns)
        ]
        held = [[] for _ in range(columns)]
        below = set(grid.cells[row + 1]) if row + 1 < rows else set()
        if below and all(places[column] in below for column, cell in enumerate(here) if cell):
            held = here
            continue
        goes_on = any(place[0] < row or place in below for place in places)
        printed = [] if goes_on else _several_rows(here)
        made += grouped_rows(printed, [], height) if printed else [here]
    used = [column for column in range(columns) if any(row[column] for row in made)]
    longest = max(sum(len(part.text) for part in cell) for cell in cells.values())
    least = _FEWEST_FILLED if longest < _LONG_CELL else _WELL_FILLED
    whole = len(used) * sum(map(any, made))
    if longest > _LONGEST_CELL or sum(bool(cell) for row in made for cell in row) < least * whole:
        return []
    made = [[row[column] for column in used] for row in made if any(row)]
    return as_lines(made, tuple(grid.xs[column] for column in used))


def _several_rows(cells: Cells) -> list[Cells]:
    """Split what is between two ruling lines into printed rows, because some tables have no ruling lines between rows.
    Return [] if it is a single row of the table.

    At least two columns must have text in most printed rows, and at least one of these columns must be no prose. Also,
    one of three conditions must be true: one of these columns has mainly numbers; or there are three or more columns,
    and all have text in every printed row; or there are many printed rows.
    """
    printed = printed_rows([piece for cell in cells for piece in cell])
    if len(printed) < _FEWEST_PRINTED:
        return []
    columns = [printed_rows(cell) for cell in cells]
    long = [column for column in columns if len(column) > _MANY * len(printed)]
    if len(long) < 2 or all(is_prose([row[0] for row in column]) for column in long):
        return []
    figures = any(sum(bool(NUMBER.match(row[0].text)) for row in column) > NUMBERS * len(column) for column in long)
    even = len(columns) > 2 and all(len(column) == len(printed) for column in columns)
    if not figures and not even and len(printed) < _MANY_PRINTED:
        return []
    of = {id(piece): at for at, cell in enumerate(cells) for piece in cell}
    return [[[piece for piece in row if of[id(piece)] == at] for at in range(len(cells))] for row in printed]
