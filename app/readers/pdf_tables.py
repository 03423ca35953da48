"""Finds tables on a PDF page, and writes their rows as lines of cells with a separator. Runs only in the child process
(``app.readers.child``).

A table with ruling lines is found by these lines (``pdf_drawn_tables``), any other table by the empty vertical stripes
between its columns. Cells may be empty or have several lines. Two columns of prose also have a stripe between them, but
are no table, because each line continues the line above. In doubt, text is not taken for a table.

pdfplumber is not used, because it needs 80 ms per page to find words and tables, while this package reads a page in 7
ms. Also, it finds tables without ruling lines only in a mode that takes every page for a table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from app.readers import pdf_grids
from app.readers.layout import Line
from app.readers.pdf_cells import (
    ALIGNED,
    CELL_PITCH,
    FINE,
    LOOSER,
    MARKER,
    NUMBER,
    NUMBERS,
    SAME_RULE,
    Cells,
    are_columns_of_text,
    are_woven,
    as_lines,
    cells_of,
    fine_parts,
    grouped_rows,
    in_columns,
    is_prose,
    joined,
    levelled,
    printed_rows,
    put_right,
    with_joined_head,
)
from app.readers.pdf_drawn_tables import drawn_tables
from app.readers.pdf_grids import Rules

_FEWEST_DRAWINGS = 4  # minimum drawn objects on a page with a drawn table
_FULL = 0.6  # minimum pieces of text in a full row, as a share of the usual number per row
_MANY_COLUMNS = 4
_DEEPEST = 5  # maximum number of times that rows are split in two, and the parts split again, to find a table in them
_NEXT_ROW = 3.5  # maximum distance, in line heights, from one row of a table to the next
_BACK_UP = 12.0  # minimum distance, in line heights, from a column's bottom up to the top of the next column
_WIDE = 1.2  # minimum gap, in line heights, between columns that have neither numbers nor exactly equal left edges
_CLEAR = 0.8  # minimum gap, in line heights, between columns whose cells have exactly equal left edges
_STRIPE = 0.4  # minimum width of an empty stripe between columns, in line heights
_CROSSED = 0.1  # maximum share of rows that cross the stripe between two columns
_FEW_ROWS = 3  # minimum full rows of a table; a table with only this many has to pass stricter tests
_UNPARTED = 0.3  # maximum share of rows that are a single piece of text across a column border
# minimum share of a table's printed rows that have several pieces of text; a row that continues a cell has only one
# piece
_SEVERAL = 0.3
_FULL_ROWS = 0.5  # minimum share of a table's rows that have cells in at least two columns
# maximum distance between two rows of a table, as a factor of the third quartile of the distances between rows
_FAR = 1.6
_TITLE = 1.3  # minimum type size of a title, as a factor of the usual size
_LEVEL = 0.35  # maximum difference, in line heights, between edges that count as aligned
_FILL = 0.5  # minimum share of filled cells in a table without ruling lines
_WELL_FILL = 0.8  # minimum share of filled cells in a table without ruling lines that has few rows
_LONG_PIECE = 30  # minimum characters of a piece of text that may be a line of prose
# minimum mean characters of cells in a table without numbers; shorter cells belong to a drawing or a formula
_SHORT = 3
# minimum share of a column's pieces of text whose bottom edges align with pieces of the preceding columns
_LEVEL_COLUMN = 0.9
_ENDS = (".", ",", ";", ":", "!", "?", "—", "-", "。", "、")  # characters with which lines of verse and prose often end
_ENDED = 0.3  # minimum share of lines in a column of verse or prose that end with a punctuation mark
_SORTED = 0.8  # minimum share of consecutive lines of an alphabetical list that are in alphabetical order
_RULED = 0.4  # minimum length of a ruling line, as a share of the table's height or width
_GRID = 3  # minimum vertical ruling lines of a drawn table, including the lines at its left and right edge
_SAME_LEFT = 6.0  # maximum difference in points between the left edges of one table on two pages
_SAME_COLUMN = 30.0  # maximum difference in points between the column positions of one table on two pages
_DIGIT = re.compile(r"\d")
_TO_PAGE = re.compile(r"(?:,|\.\.) ?\d[\d, –-]*$")  # matches the end of an entry in an index or a table of contents


def with_tables(pieces: Sequence[Line], rules: Callable[[], Rules], drawings: int) -> list[Line]:
    """Replace the pieces of text in each table on a page by the table's rows. Other pieces stay in order, but hidden
    pieces come last.

    Args:
        pieces: runs of text without wide gaps.
        rules: returns the ruling lines; called only if there may be a drawn table.
        drawings: number of drawn objects on the page, which may be ruling lines.
    """
    drawn = rules() if drawings >= _FEWEST_DRAWINGS else None
    shown = [piece for piece in pieces if piece.shown]
    tables = drawn_tables(shown, pdf_grids.grids(drawn)) if drawn is not None else {}
    result: list[Line] = []
    run: list[Line] = []
    for piece in shown:
        if id(piece) in tables:
            result += _plain_tables(run, drawn or Rules()) + tables[id(piece)]
            run = []
        else:
            run.append(piece)
    return result + _plain_tables(run, drawn or Rules()) + [piece for piece in pieces if not piece.shown]


def _plain_tables(pieces: Sequence[Line], drawn: Rules) -> list[Line]:
    """Find the tables whose cells are not drawn as a grid, and replace the pieces of text in each table by its rows.
    Other pieces stay in order.
    """
    result: list[Line] = []
    for chunk in _chunks(pieces):
        parts = [(part, at) for at, piece in enumerate(chunk) for part in fine_parts(piece)]
        origin = {id(part): at for part, at in parts}
        rows = printed_rows([part for part, _ in parts])
        if sum(len(row) > 1 for row in rows) < 2:
            result += chunk
            continue
        made: dict[int, list[Line]] = {}
        taken: set[int] = set()
        for some, lines in (table for part in _without_columns(rows) for table in _framed(part, drawn)):
            inside = {origin[id(part)] for row in some for part in row}
            taken |= inside
            made[min(inside)] = lines
        for at, piece in enumerate(chunk):
            result += made.get(at, []) if at in taken else [piece]
    return result


def _without_columns(rows: list[list[Line]]) -> Iterator[list[list[Line]]]:
    """Yield the rows between columns of text, which may have no space between them and the table below."""
    begin = at = 0
    while at < len(rows):
        columns = in_columns(rows, at)
        if are_columns_of_text(columns):
            yield rows[begin:at]
            begin = at + len(columns)
        at += max(len(columns), 1)
    yield rows[begin:]


def _framed(rows: list[list[Line]], drawn: Rules) -> Iterator[tuple[list[list[Line]], list[Line]]]:
    """Yield each table among ``rows`` as (the rows of cells, the lines of text made from them). Rows between
    horizontal ruling lines with the same ends are tried first. The row above and the row below these ruling lines may
    belong to the table.
    """
    start = 0
    for top, bottom, _ in pdf_grids.frames(drawn):
        inside = [at for at, row in enumerate(rows) if at >= start and top < _middle(row) < bottom]
        if len(inside) < 2:
            continue
        first, last = inside[0], inside[-1] + 1
        above = _reach_up(rows, start, first)
        reached = [(above, last + 1), (above, last)] if above < first - 1 else []
        for begin, end in (*reached, (first - 1, last + 1), (first - 1, last), (first, last + 1), (first, last)):
            some = rows[begin:end] if start <= begin and end <= len(rows) else []
            several = sum(len(row) > 1 for row in some) > 1 and (begin == first or len(some[0]) > 1)
            several = several and (end == last or len(some[-1]) > 1)
            lines = _table(some, drawn) if several and _is_close(some) else []
            if lines:
                yield from _tables(rows[start:begin], drawn, _DEEPEST)
                yield some, lines
                start = end
                break
    yield from _tables(rows[start:], drawn, _DEEPEST)


def _reach_up(rows: Sequence[Sequence[Line]], start: int, first: int) -> int:
    """Return the index of the first row, from ``start``, that may belong to the table whose row ``first`` is the first
    between ruling lines. Only some rows of a table may have lines between them, such as those above a sum.
    """
    step = LOOSER * max(rows[first + 1][0].top - rows[first][0].top, rows[first][0].height)
    while first > start and rows[first][0].top - rows[first - 1][0].top <= step:
        first -= 1
    while len(rows[first]) == 1:
        first += 1
    return first


def _is_close(rows: Sequence[Sequence[Line]]) -> bool:
    """Whether the first and the last row are about as close to their neighbours as the inner rows are to each other."""
    steps = [below[0].top - above[0].top for above, below in pairwise(rows)]
    return max(steps[0], steps[-1]) <= _FAR * max(steps[1:-1], default=steps[0])


def _middle(row: Sequence[Line]) -> float:
    return (row[0].top + row[0].bottom) / 2


def _tables(rows: list[list[Line]], drawn: Rules, depth: int) -> Iterator[tuple[list[list[Line]], list[Line]]]:
    """Yield each table among ``rows`` as (the rows of cells, the lines of text made from them). Rows that are no
    table as a whole are split at their widest vertical gap, and each part is tried. Parts are split again, down to the
    depth ``depth``.
    """
    if len(rows) < 2 or (depth < _DEEPEST and len(drawn.vertical) < _GRID and not _has_wide_gaps(rows)):
        return
    for some in map(_without_prose_above, _segments(rows)):
        full = _first_full(some)
        if depth and full >= _FEW_ROWS:
            yield from _tables(some[:full], drawn, depth - 1)
            yield from _tables(some[full:], drawn, depth - 1)
            continue
        lines = _table(some, drawn, sure=depth < _DEEPEST)
        if lines:
            yield some, lines
        elif depth and len(some) > _FEW_ROWS:
            steps = [(below[0].top - above[0].top, at) for at, (above, below) in enumerate(pairwise(some), 1)]
            widest, at = max(steps)
            if widest > LOOSER * median(step for step, _ in steps):
                yield from _tables(some[:at], drawn, depth - 1)
                yield from _tables(some[at:], drawn, depth - 1)


def _has_wide_gaps(rows: Sequence[Sequence[Line]]) -> bool:
    """Whether at least two rows have a gap that is wide enough to separate columns."""
    several = [row for row in rows if len(row) > 1]
    if len(several) < 2:
        return False
    gap = _WIDE * min(piece.bottom - piece.top for row in several for piece in row)
    return sum(any(two.x0 - one.x1 > gap for one, two in pairwise(row)) for row in several) > 1


def _without_prose_above(rows: list[list[Line]]) -> list[list[Line]]:
    """Drop the first row if it is a line of prose above the table. Such a row is farther from the next row than usual,
    and has a long piece of text above several cells of the next row.

    A line of prose looks like a row of several cells if its spaces are wide, or if it mixes left-to-right and
    right-to-left text.
    """
    if len(rows) <= _FEW_ROWS:
        return rows
    first, second = rows[0], rows[1]
    usual = median(below[0].top - above[0].top for above, below in pairwise(rows))
    over = any(
        len(piece.text) > _LONG_PIECE and sum(piece.x0 < cell.x1 and cell.x0 < piece.x1 for cell in second) > 1
        for piece in first
    )
    return rows[1:] if over and second[0].top - first[0].top > LOOSER * usual else rows


def repeat_heads(pages: Sequence[list[Line]]) -> None:
    """Repeat a table's header on every page on which the table continues, unless the page has it already."""
    head: Line | None = None
    for above, below in pairwise(pages):
        last, first = above[-1] if above else None, below[0] if below else None
        if last is None or first is None or not _is_same_table(last.columns, first.columns):
            head = None
            continue
        start = next((line for line in reversed(above) if line.columns != last.columns or line.head), None)
        if start is not None and start.head and start.columns == last.columns:
            head = start
        if head is not None and not first.head and first.text != head.text:
            below.insert(0, replace(head, columns=first.columns, top=first.top - 2 * first.height, bottom=first.top))


def _is_same_table(above: Sequence[float], below: Sequence[float]) -> bool:
    return (
        len(above) == len(below) > 1
        and abs(above[0] - below[0]) < _SAME_LEFT
        and all(abs(one - two) < _SAME_COLUMN for one, two in zip(above, below, strict=True))
    )


def _chunks(pieces: Sequence[Line]) -> list[list[Line]]:
    """Split pieces of text into runs. A piece far below the preceding pieces starts a new run. So does a piece far
    above the preceding pieces, unless it starts the next column of a table.
    """
    chunks: list[list[Line]] = []
    bottom = 0.0
    for at, piece in enumerate(pieces):
        near = bool(chunks) and piece.top - bottom < _NEXT_ROW * piece.height
        up = near and bottom - piece.top >= _BACK_UP * piece.height and piece.top < chunks[-1][-1].top
        if near and (not up or _is_next_column(chunks[-1], _descending(pieces, at))):
            chunks[-1].append(piece)
            bottom = max(bottom, piece.bottom)
        else:
            chunks.append([piece])
            bottom = piece.bottom
    return chunks


def _descending(pieces: Sequence[Line], start: int) -> list[Line]:
    """Return the pieces of text from ``start`` up to the first piece that is above, or far below, the preceding
    piece.
    """
    end = start + 1
    while (
        end < len(pieces)
        and -pieces[end].height / 2 < pieces[end].top - pieces[end - 1].top < _BACK_UP * pieces[end].height
    ):
        end += 1
    return list(pieces[start:end])


def _is_next_column(chunk: Sequence[Line], column: Sequence[Line]) -> bool:
    """Whether ``column`` is the next column of a table that the file stores column by column. The preceding columns are
    in ``chunk``.

    In such a column, the lines or at least the first lines of the cells are level with the rows of ``chunk``. The text
    is neither prose, verse nor a list, and does not continue an alphabetical list from the last column of ``chunk``.
    """
    height = median(piece.height for piece in column)
    top, bottom = column[0].top - height / 2, column[-1].bottom + height / 2
    beside = [piece for piece in chunk if top < (piece.top + piece.bottom) / 2 < bottom]
    left, right = min(piece.x0 for piece in column), max(piece.x1 for piece in column)
    start = max(piece.x0 for piece in beside) if beside else 0.0
    last = [piece for piece in beside if piece.x1 > start]
    if min(len(last), len(column)) < _FEW_ROWS or any(piece.x0 < right and left < piece.x1 for piece in beside):
        return False
    level = {round(piece.bottom / (_LEVEL * height)) for piece in beside}
    level |= {place + 1 for place in level} | {place - 1 for place in level}
    aligned = sum(round(piece.bottom / (_LEVEL * height)) in level for piece in column)
    if aligned < _LEVEL_COLUMN * len(column):
        return _is_of_cells(last) and _begin_cells(last, column, height)
    return all(_is_of_cells(some) for some in (last, column)) and not _is_sorted_on(last, column)


def _begin_cells(names: Sequence[Line], column: Sequence[Line], height: float) -> bool:
    """Whether each piece of text in ``names`` is level with the first line of a cell in ``column``. A first line does
    not start with a lowercase letter.
    """
    begun = [
        next((line for line in column if abs(line.bottom - name.bottom) < _LEVEL * height), None) for name in names
    ]
    return all(line is not None and not line.text[0].islower() for line in begun)


def _is_of_cells(column: Sequence[Line]) -> bool:
    """Whether a column may consist of cells: numbers, or words that are neither prose, verse nor items of a list."""
    words = [piece.text for piece in column if not NUMBER.match(piece.text)]
    if len(words) < _FULL_ROWS * len(column):
        return True
    ended = sum(text.endswith(_ENDS) for text in words)
    marked = sum(" " in text and MARKER.match(text.split(" ", 1)[0]) is not None for text in words)
    led = sum(_TO_PAGE.search(text) is not None for text in words)
    return not is_prose(column) and max(ended, marked, led) < _ENDED * len(words)


def _is_sorted_on(above: Sequence[Line], below: Sequence[Line]) -> bool:
    """Whether the words of two columns, one after the other, are an alphabetical list."""
    columns = [[piece.text.casefold() for piece in some if piece.text[0].isalpha()] for some in (above, below)]
    if any(len(words) < _FEW_ROWS for words in columns):
        return False
    words = columns[0] + columns[1]
    return sum(one <= two for one, two in pairwise(words)) > _SORTED * (len(words) - 1)


def _first_full(rows: Sequence[Sequence[Line]]) -> int:
    """Return the index of the first row with nearly the usual number of pieces of text. Return 0 if the usual number is
    small.
    """
    counts = [len(row) for row in rows]
    usual = sorted(counts)[len(counts) * 3 // 4]
    return next(at for at, count in enumerate(counts) if count >= _FULL * usual) if usual >= _MANY_COLUMNS else 0


def _segments(rows: Sequence[list[Line]]) -> list[list[list[Line]]]:
    """Split rows into segments at paragraphs, titles and large distances between rows. A segment starts and ends with a
    row that has cells.
    """
    left = min(piece.x0 for row in rows for piece in row)
    right = max(piece.x1 for row in rows for piece in row)
    steps = [below[0].top - above[0].top for above, below in pairwise(rows)]
    far = _FAR * sorted(steps)[len(steps) * 3 // 4]
    large = _TITLE * median(piece.type_size for row in rows for piece in row)
    segments: list[list[list[Line]]] = [[]]
    wide = 0
    for at, row in enumerate(rows):
        wide = wide + 1 if len(row) == 1 and row[0].x1 - row[0].x0 > 0.6 * (right - left) else 0
        if wide == 2:
            segments[-1].pop()
            segments.append([])
        elif at and (steps[at - 1] > far or (len(row) == 1 and row[0].type_size > large)):
            segments.append([])
        if wide < 2:
            segments[-1].append(row)
    return [inner for some in segments if (inner := _inner(some))]


def _inner(rows: list[list[Line]]) -> list[list[Line]]:
    """Return the rows from the first to the last row with cells; [] if too few rows have cells. A row above or below is
    included if it is a further line of a cell in the first or the last of these rows.
    """
    several = [at for at, row in enumerate(rows) if _has_cells(row)]
    if len(several) < 2 or len(several) < _SEVERAL * (several[-1] - several[0] + 1):
        return []
    first, last = several[0], several[-1]
    while first and _is_line_of_cell(rows[first - 1], rows[several[0]], rows[first]):
        first -= 1
    while last + 1 < len(rows) and _is_line_of_cell(rows[last + 1], rows[several[-1]], rows[last]):
        last += 1
    return rows[first : last + 1]


def _has_cells(row: Sequence[Line]) -> bool:
    """Whether a row has separate pieces of text, and these are more than a list marker and its item."""
    if len(row) < 2:
        return False
    marks = next((at for at, piece in enumerate(row) if not MARKER.match(piece.text)), 0)
    if marks and marks == len(row) - 1 and not NUMBER.match(row[-1].text):
        return False
    return any(two.x0 - one.x1 > FINE * min(one.height, two.height) for one, two in pairwise(row))


def _is_line_of_cell(row: Sequence[Line], table_row: Sequence[Line], neighbour: Sequence[Line]) -> bool:
    """Whether ``row`` is a further line of a cell in ``table_row``, but not of its first cell. Such a row is a single
    piece of text, has the cell's left edge, and is close to the row ``neighbour`` next to it.
    """
    piece = row[0]
    near = abs(piece.top - neighbour[0].top) < CELL_PITCH * piece.height
    return len(row) == 1 and near and any(abs(piece.x0 - other.x0) < SAME_RULE for other in table_row[1:])


def _table(rows: list[list[Line]], rules: Rules, *, sure: bool = False) -> list[Line]:
    """Return the rows of a table as lines; empty if it is no table.

    Args:
        rows: the printed rows.
        rules: the ruling lines of the page.
        sure: if True, a table with few vertical ruling lines is accepted only if it has a column of numbers.
    """
    left = min(piece.x0 for row in rows for piece in row)
    right = max(piece.x1 for row in rows for piece in row)
    top, bottom = rows[0][0].top, max(piece.bottom for piece in rows[-1])
    height = median(piece.height for row in rows for piece in row)
    down = _rules_down(rules, left, right, top, bottom, height)
    if sure and len(down) < _GRID and sum(any(_DIGIT.search(piece.text) for piece in row) for row in rows) < 2:
        return []  # at most one row has a digit, so no column has numbers
    walls = [x for x in down if left < x < right]
    stripes = [x for x in _stripes(rows, height) if all(abs(x - wall) > height for wall in walls)]
    borders = _named(_used(sorted(walls + stripes), rows), rows, height)
    if not borders or (len(down) < _GRID and all(_crossed(rows, [x]) > _UNPARTED * len(rows) for x in borders)):
        return []
    floors = _floors(rules, left, right, top, bottom)
    cells = levelled([cells_of(row, borders) for row in rows])
    grid = len(down) >= _GRID and len(floors) > 1 and any(x in walls for x in borders)
    if not grid:
        kept = [x for column, x in enumerate(borders) if _is_column([bool(row[column + 1]) for row in cells])]
        if kept != borders:
            borders, cells = kept, levelled([cells_of(row, kept) for row in rows])
    if not borders:
        return []
    if not grid and (_is_list(cells) or are_woven(cells)):
        return []
    parted = floors if grid or len(rows) <= 3 * len(floors) else []
    if not grid and not _is_tabular(rows, cells, borders, height, len(parted) + 1 if parted else len(rows), sure):
        return []
    if grid and _is_all_prose(cells):
        return []
    put_right(cells, borders)
    return as_lines(with_joined_head(grouped_rows(cells, parted, height), height), (left, *borders))


def _is_column(filled: Sequence[bool]) -> bool:
    """Whether a column has at least two filled cells, or only a filled header in a table of many rows."""
    return sum(filled) > 1 or (filled[0] and len(filled) > _FEW_ROWS)


def _rules_down(rules: Rules, left: float, right: float, top: float, bottom: float, height: float) -> list[float]:
    """Return the x positions of the vertical ruling lines that cover a large part of a table's height."""
    beside = [span for span in rules.vertical if left - 2 * height < span[0] < right + 2 * height]
    return _long(beside, top - height, bottom + height, _RULED * (bottom - top))


def _floors(rules: Rules, left: float, right: float, top: float, bottom: float) -> list[float]:
    """Return the y positions of the ruling lines between a table's rows that cover a large part of the table's
    width.
    """
    between = [span for span in rules.horizontal if top < span[0] < bottom]
    return _long(between, left, right, _RULED * (right - left))


def _long(lines: Sequence[pdf_grids.Span], start: float, end: float, least: float) -> list[float]:
    """Return the positions of the lines that have at least the length ``least`` between ``start`` and ``end``. Lines at
    nearly the same position are one.
    """
    lengths: dict[float, float] = {}
    last = -math.inf
    for place, one, two in sorted(lines):
        inside = min(two, end) - max(one, start)
        if inside > 0:
            last = last if place - last < SAME_RULE else place
            lengths[last] = lengths.get(last, 0.0) + inside
    return [place for place, length in lengths.items() if length >= least]


def _stripes(rows: Sequence[Sequence[Line]], height: float) -> list[float]:
    """Return the x positions of the stripes between columns. Hardly any row of several pieces of text crosses a stripe.
    The position of a stripe is the centre of its emptiest part.
    """
    several = [row for row in rows if len(row) > 1]
    usual = sorted(map(len, several))[len(several) * 3 // 4] if several else 0
    full = [row for row in several if 2 * len(row) >= usual]  # rows with few pieces have cells across several columns
    if len(full) < _FEW_ROWS:
        full, usual = several, 0
    allowed = max(int(_CROSSED * len(full)), 1 if len(full) > _FEW_ROWS else 0)
    edges = sorted(
        (edge, step, 2 * len(row) >= usual)
        for row in several
        for piece in row
        for edge, step in ((piece.x0, 1), (piece.x1, -1))
    )
    stripes: list[float] = []
    # for each part of a stripe: (number of rows that cross the part, its negative width, its centre)
    parts: list[tuple[int, float, float]] = []
    depth, inside = 0, False
    for (x, step, is_full), (after, _, _) in pairwise(edges):
        depth += step * is_full
        inside = inside or depth > allowed
        if depth <= allowed and inside:
            parts.append((depth, x - after, (x + after) / 2))
        elif parts:
            if -sum(width for _, width, _ in parts) > _STRIPE * height:
                stripes.append(min(part for part in parts if part[1] < 0)[2])
            parts = []
    return stripes


def _used(borders: list[float], rows: Sequence[Sequence[Line]]) -> list[float]:
    """Keep a column border only if at least two rows have text on both sides of the border, and if some piece of text
    starts between the preceding border and this border.
    """
    kept: list[float] = []
    for x in borders:
        parts = sum(row[0].x0 < x < row[-1].x1 for row in rows)
        between = not kept or any(kept[-1] <= piece.x0 < x for row in rows for piece in row)
        if between and parts > 1:
            kept.append(x)
    return kept


def _named(borders: list[float], rows: Sequence[Sequence[Line]], height: float) -> list[float]:
    """Add the column borders that only the header shows, in a table of many columns. Such a border is between two
    pieces of text in the first row, and hardly any row crosses it.
    """
    more = []
    for one, two in pairwise(rows[0]):
        middle = (one.x1 + two.x0) / 2
        apart = two.x0 - one.x1 > FINE * height and not any(one.x1 - 1 < x < two.x0 + 1 for x in borders)
        if apart and len(rows) > _FEW_ROWS and len(rows[0]) >= _MANY_COLUMNS:
            crossed = sum(piece.x0 < middle < piece.x1 for row in rows for piece in row)
            more += [middle] if crossed <= _CROSSED * len(rows) else []
    return sorted(borders + more)


def _is_tabular(
    rows: Sequence[Sequence[Line]],
    cells: Sequence[Cells],
    borders: Sequence[float],
    height: float,
    most: int,
    sure: bool,
) -> bool:
    """Whether rows without ruling lines form a table, not a list with markers, columns of prose, or parts of a formula.

    Args:
        rows: the printed rows.
        cells: the cells of each row.
        borders: x positions of the borders between columns.
        height: usual line height.
        most: maximum number of table rows; there may be fewer table rows than printed rows.
        sure: if True, rows are accepted only if they have a column of numbers.
    """
    several = [row for row in cells if sum(map(bool, row)) > 1]
    begun = [row for at, row in enumerate(cells) if not at or not _only_goes_on(cells[at - 1], row)]
    if (
        len(several) < 2
        or (len(several) == 2 and len(borders) < 2)
        or len(several) < _FULL_ROWS * min(len(begun), most)
    ):
        return False
    if _crossed(rows, borders) > _UNPARTED * len(rows):
        return False
    columns = [[joined(row[at]) for row in cells if row[at]] for at in range(len(borders) + 1)]
    numeric = any(map(_is_numeric, columns))
    wide = sum(_has_gap(row, _WIDE * height) for row in several)
    exact = len(several) == len(rows) > 2 and _is_exact(several, columns, height)
    if wide < 2 and not numeric and not exact:
        return False
    filled = [line.text for column in columns for line in column]
    worded = sum(sum(map(str.isalpha, text)) > 2 for text in filled)
    if sure and not (numeric and wide > 1 and len(begun) > 2 and 4 * worded >= len(filled)):
        return False
    printed = min(len(begun), most)
    least = (
        _FILL if (numeric and worded) or (exact and len(rows) > _FEW_ROWS) or len(several) > _FEW_ROWS else _WELL_FILL
    )
    if len(filled) < (least if worded else 1) * printed * len(columns):
        return False
    if not numeric and sum(map(len, filled)) < _SHORT * len(filled):
        return False
    level = sum(_is_level(row, height) for row in several)
    if level < ALIGNED * len(several):
        return False
    return not _is_all_prose(cells) and all(_is_aligned(column, height) for column in columns if len(column) > 1)


def _is_exact(several: Sequence[Cells], columns: Sequence[Sequence[Line]], height: float) -> bool:
    """Whether all cells of each column have the same left edge, and each row has a clear gap between two cells."""
    level = all(max(line.x0 for line in column) - min(line.x0 for line in column) < 1 for column in columns)
    return level and all(_has_gap(row, _CLEAR * height) for row in several)


def _has_gap(row: Cells, width: float) -> bool:
    """Whether two neighbouring pieces of text in a row are more than ``width`` apart."""
    return any(two.x0 - one.x1 > width for one, two in pairwise(part for cell in row for part in cell))


def _is_numeric(column: Sequence[Line]) -> bool:
    """Whether a column has more than two cells, and most of them are numbers."""
    return len(column) > 2 and sum(bool(NUMBER.match(line.text)) for line in column) >= NUMBERS * len(column)


def _crossed(rows: Sequence[Sequence[Line]], borders: Sequence[float]) -> int:
    """Count the rows that are a single piece of text across a column border."""
    return sum(len(row) == 1 and any(row[0].x0 < x < row[0].x1 for x in borders) for row in rows)


def _only_goes_on(above: Cells, row: Cells) -> bool:
    """Whether a printed row is only a further line of one cell in the row ``above``, and not of its first cell."""
    filled = [column for column, cell in enumerate(row) if cell]
    if len(filled) != 1 or not filled[0] or not above[filled[0]]:
        return False
    piece, last = row[filled[0]][0], above[filled[0]][0]
    return piece.top - last.top < CELL_PITCH * piece.height and abs(piece.x0 - last.x0) < SAME_RULE


def _is_level(row: Cells, height: float) -> bool:
    """Whether the first lines of a row's cells are level with each other."""
    bottoms = [cell[0].bottom for cell in row if cell]
    return max(bottoms) - min(bottoms) < _LEVEL * height


def _is_list(cells: Sequence[Cells]) -> bool:
    """Whether there are two columns, and the first column has the markers or numbers of a list."""
    if len(cells[0]) != 2:
        return False
    marks = [joined(row[0]).text for row in cells if row[0]]
    bare = [int(text) for text in marks if text.isdigit()]
    if len(bare) == len(marks):
        return len(bare) > 1 and {two - one for one, two in pairwise(bare)} == {1}
    return sum(bool(MARKER.match(text)) for text in marks) > 0.6 * len(marks)


def _is_aligned(column: Sequence[Line], height: float) -> bool:
    """Whether most cells of a column have the same left edge, right edge or centre."""
    for place in (lambda line: line.x0, lambda line: line.x1, lambda line: (line.x0 + line.x1) / 2):
        places = sorted(map(place, column))
        most = max(sum(0 <= other - here <= 2 * _LEVEL * height for other in places) for here in places)
        if most >= ALIGNED * len(places):
            return True
    return False


def _is_all_prose(cells: Sequence[Cells]) -> bool:
    """Whether most columns, and at least two, are prose that continues from row to row."""
    columns = [[joined(row[at]) for row in cells if row[at]] for at in range(len(cells[0]))]
    prose = [is_prose(column) for column in columns if column]
    return len(prose) > 1 and sum(prose) >= 0.6 * len(prose) and sum(prose) > 1
