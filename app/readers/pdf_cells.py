"""Makes the cells of a table on a PDF page: splits lines into cells, joins printed rows, writes rows as lines. A piece
is a printed line or a part of a line.

``pdf_tables`` finds where a table starts and ends. Runs only in the child process (``app.readers.child``).
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from app.readers import cleaning
from app.readers.layout import Line

MARK = " | "
"""Separator between two cells. A model finds twice as many cells as with tabs as separators
(assets/measurements/NOTES.md).
"""
# minimum vertical overlap of two consecutive rows that are joined, as a share of the second row's height
_OVERLAP = 0.25
_BESIDE = 0.5  # minimum vertical overlap of two pieces of text in one row, as a share of the smaller height
FINE = 0.5  # minimum gap between cells, in line heights, if nearby rows have a gap at the same place
# minimum gap between two words, in line heights, at which a line of text is cut at a column border; wider than a space
_NARROW = 0.3
ALIGNED = 0.6  # minimum share of aligned cells in a column that counts as aligned
SAME_RULE = 2.0  # maximum distance in points between two edges or ruling lines that count as one
_MOST_LINES = 15  # maximum printed lines that can be one row of a table
LOOSER = 1.2  # minimum distance between lines of different rows, as a factor of the smallest distance in the table
CELL_PITCH = 1.7  # maximum distance, in line heights, between two lines of one cell
_TOUCH = 0.15  # maximum gap, in line heights, between two parts of one word
NUMBERS = 0.6  # minimum share of numbers in a column of numbers
NUMBER = re.compile(r"^(?:[A-Z]{3}\s?)?[(\-+−–~<>≤≥±$€£¥]*\s*\d[\d.,:'’\s/–-]*\s*(?:[%‰°€$£¥)]|[A-Za-z]{1,4})?$")
_FEW_ROWS = 3  # in a table with at most this many rows, two header rows are not joined
_LEADERS = (".", "..", "...", "·", "_", "…")
_RTL = re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_TEXT = 20  # minimum mean characters per line of a wide column; a narrow column of prose has at least half as many
_GOES_ON = 0.35  # minimum share of lines in a wide column of prose that start with a lowercase letter
# minimum share of lines that reach the margin, in a column of prose whose script has no lowercase letters
_FILLED = 0.6
_IN_SHORT = 0.5  # minimum share of lines in a narrow column of prose that start with a lowercase letter
Word = tuple[str, float, float]
"""A word with its left and right edges."""
Cells = list[list[Line]]
"""The pieces of a row, one list per column."""
# matches an item of a list that has its mark in the same piece of text
_ITEM = re.compile(r"(?:[•·▪◦‣■□●○☐☑☒\uf0b7]|\d{1,2}[.)]) ?[^\W\d_]|[☐☑☒•] ?\S|[-–—*] [^\W\d_]")
_MARK = re.compile(r"[•·▪◦‣■□●○☐☑☒\uf0b7*–—-]|\d{1,2}[.)]")
MARK_REACH = 3.0  # maximum distance, in line heights, from a list's mark to its item
_FEWEST_ITEMS = 2  # minimum items of a list that stands beside another
MARKER = re.compile(r"^(?:[•·▪◦‣■□●○–—*\uf0b7-]|\(?(?:\d{1,3}|[A-Za-z]|[ivxlc]{1,5})[.):]|[(\[]\w{1,4}[)\]]|\d{1,3})$")
_STOPS = (".", "!", "?", ":", "。")  # characters with which a sentence ends
_BETWEEN = 1.2  # minimum gap, in line heights, between columns of text
_NEXT_LINE = 3.0  # maximum distance, in line heights, between the first two lines of a column of text
_SAME_START = 2.0  # maximum distance in points between the left edges of a column's lines
_SAME_PITCH = 1.5  # maximum distance between two lines of a short column, as a factor of the smallest


def in_rows(cell: Sequence[Line]) -> list[Line]:
    return [piece for row in printed_rows(cell) for piece in row] if len(cell) > 1 else list(cell)


def printed_rows(pieces: Sequence[Line]) -> list[list[Line]]:
    """Group pieces of text into printed rows. The rows are sorted from top to bottom, and their pieces from left to
    right.
    """
    rows: list[list[Line]] = []
    top = bottom = 0.0
    for piece in sorted(pieces, key=lambda piece: piece.top):
        overlap = min(bottom, piece.bottom) - max(top, piece.top)
        if rows and overlap > _BESIDE * min(bottom - top, piece.height):
            rows[-1].append(piece)
        else:
            rows.append([piece])
            top, bottom = piece.top, piece.bottom
    for row in rows:
        row.sort(key=lambda piece: piece.x0)
    return rows


def fine_parts(piece: Line) -> list[Line]:
    """Split a piece of text at each gap between words that is wider than a space."""
    if len(piece.words) < 2 or piece.widest_gap <= FINE * piece.height:
        return [piece]
    groups = [[piece.words[0]]]
    for before, word in pairwise(piece.words):
        led = before[0] in _LEADERS or word[0] in _LEADERS  # dot leaders of a table of contents are no gap
        if _gap(before, word) > FINE * piece.height and not led:
            groups.append([])
        groups[-1].append(word)
    if len(groups) == 1:
        return [piece]
    return _parts(piece, groups)


def _gap(previous: Word, word: Word) -> float:
    """Return the gap in points between two words of left-to-right or right-to-left text."""
    return max(word[1] - previous[2], previous[1] - word[2])


def _parts(piece: Line, groups: Sequence[list[Word]]) -> list[Line]:
    """Split ``piece`` into one piece for each group of its words."""
    parts = []
    for at, words in enumerate(groups):
        cut = piece.cut and at == len(groups) - 1
        text = cleaning.tidy(" ".join(word for word, _, _ in words)) + ("-" if cut else "")
        doubled = 0 if at else piece.doubled
        parts.append(
            piece.changed(
                doubled=doubled,
                text=text,
                x0=min(word[1] for word in words),
                x1=max(word[2] for word in words),
                words=words,
                cut=cut,
            )
        )
    return [part for part in parts if part.text]


def levelled(rows: Sequence[Cells]) -> list[Cells]:
    """Join consecutive printed rows that overlap vertically and fill different columns. Such rows belong to one row of
    the table whose cells are vertically centred.
    """
    made: list[Cells] = []
    for row in rows:
        if made and not any(one and two for one, two in zip(made[-1], row, strict=True)):
            bottom = max(piece.bottom for cell in made[-1] for piece in cell)
            first = next(piece for cell in row for piece in cell)
            if bottom - first.top > _OVERLAP * first.height:
                made[-1] = [one or two for one, two in zip(made[-1], row, strict=True)]
                continue
        made.append(row)
    return made


def put_right(cells: Sequence[Cells], borders: Sequence[float]) -> None:
    """Move a cell that spans several columns, such as a total, to the last of these columns if its right edge is
    aligned with the cells of that column.
    """
    ends = []
    for column in range(len(borders) + 1):
        edges = sorted(row[column][-1].x1 for row in cells if row[column])
        middle = edges[len(edges) // 2] if edges else 0.0
        ends.append(middle if sum(abs(x - middle) < SAME_RULE for x in edges) > max(1, ALIGNED * len(edges)) else None)
    for row in cells:
        for column, cell in enumerate(row[:-1]):
            last = sum(x < cell[-1].x1 for x in borders) if cell else 0
            end = ends[last]
            if last > column and end is not None and not row[last] and abs(cell[-1].x1 - end) < SAME_RULE:
                row[column], row[last] = [], cell


def cells_of(row: Sequence[Line], borders: Sequence[float]) -> Cells:
    """Divide the pieces of a row among the columns. A piece is cut at a column border that lies between two of its
    words.
    """
    cells: Cells = [[] for _ in range(len(borders) + 1)]
    for piece in row:
        for part in cut_at(piece, borders, _NARROW):
            inner = part.x0 + 0.1 * (part.x1 - part.x0)
            cells[sum(border <= inner for border in borders)].append(part)
    return cells


def cut_at(piece: Line, borders: Sequence[float], gap: float) -> list[Line]:
    """Split a piece of text at every column border that lies between two of its words.

    Args:
        piece: the piece of text.
        borders: x positions of the borders.
        gap: minimum gap between the words, in line heights.
    """
    crossed = [x for x in borders if piece.x0 < x < piece.x1]
    if not crossed or len(piece.words) < 2:
        return [piece]
    groups = [[piece.words[0]]]
    for before, word in pairwise(piece.words):
        if _gap(before, word) >= gap * piece.height and any(
            min(before[2], word[2]) - 1 <= x <= max(before[1], word[1]) + 1 for x in crossed
        ):
            groups.append([])
        groups[-1].append(word)
    return _parts(piece, groups)


def grouped_rows(rows: Sequence[Cells], floors: Sequence[float], height: float) -> list[Cells]:
    """Join printed rows into rows of the table, because a cell may have several lines.

    Args:
        rows: the cells of each printed row.
        floors: y positions of the ruling lines between rows; empty if there are none.
        height: usual line height.
    """
    tops = [min(piece.top for cell in row for piece in cell) for row in rows]
    steps = [below - above for above, below in pairwise(tops)]
    tight = min((step for step in steps if step > 0.8 * height), default=height)
    loose = floors or any(step > LOOSER * tight for step in steps)
    edges = _edges(rows)
    bands: list[list[Cells]] = []
    for at, row in enumerate(rows):
        floor = at and any(tops[at - 1] + height / 2 < y < tops[at] + height / 2 for y in floors)
        apart = at and steps[at - 1] > (CELL_PITCH * height if floors else LOOSER * tight)
        if not at or not loose or floor or apart:
            bands.append([])
        bands[-1].append(row)
    grouped: list[Cells] = []
    for band in bands:
        if len(band) > 1 and _is_one_row(band, bool(floors)):
            grouped.append([[piece for row in band for piece in row[column]] for column in range(len(edges))])
            continue
        for row in band:
            may_go_on = row is not band[0] or not (loose or row[0])
            if grouped and may_go_on and _goes_on(grouped[-1], row, edges):
                for above, below in zip(grouped[-1], row, strict=True):
                    above += below
            else:
                grouped.append([list(cell) for cell in row])
    return grouped


def _is_one_row(band: Sequence[Cells], ruled: bool) -> bool:
    """Whether printed rows that are close to each other form a single row of the table.

    Args:
        band: the printed rows.
        ruled: whether ruling lines are drawn between the table's rows.
    """
    if len(band) > _MOST_LINES:
        return False
    columns = list(zip(*band, strict=True))
    filled = [sum(map(bool, column)) for column in columns]
    if ruled:
        figures = [sum(bool(cell and NUMBER.match(joined(cell).text)) for cell in column) for column in columns]
        return max(figures) < 2 and filled[0] < 2
    numbers = sum(any(cell and NUMBER.match(joined(cell).text) for cell in row) for row in band)
    return numbers < 2 and filled[0] == 1 and max(filled) == len(band)


def _goes_on(above: Cells, row: Cells, edges: Sequence[float]) -> bool:
    """Whether all cells of a printed row continue cells of the row above. Where every cell of both rows is a single
    word, they are two rows.
    """
    small = False
    if (
        all(row)
        and all(above)
        and not any(" " in cell[end].text for cells, end in ((above, -1), (row, 0)) for cell in cells)
    ):
        return False
    for column, cell in enumerate(row):
        if not cell:
            continue
        piece = cell[0]
        if (
            not above[column]
            or NUMBER.match(piece.text)
            or NUMBER.match(above[column][-1].text)
            or piece.top - above[column][-1].top > CELL_PITCH * piece.height
        ):
            return False
        last = above[column][-1]
        word = piece.text.split(" ", 1)[0]
        room = (piece.x1 - piece.x0) / max(len(piece.text), 1) * (len(word) + 1)
        full = edges[column] - last.x1 < room and not last.text.endswith(":")
        if not full and (row[0] or not piece.text[0].islower()):
            return False
        small = small or piece.text[0].islower()
    return small or not row[0]


def with_joined_head(rows: list[Cells], height: float) -> list[Cells]:
    """Join column names that continue in the next printed row, in a table of numbers.

    A name that spans several columns stays in its own row, because each of these columns has a name below.
    """
    while len(rows) > _FEW_ROWS and _is_upper_head(rows, height):
        head = [above + below for above, below in zip(rows[0], rows[1], strict=True)]
        rows = [head, *rows[2:]]
    return rows


def _is_upper_head(rows: Sequence[Cells], height: float) -> bool:
    upper, lower = rows[:2]
    covered = [column for column, cell in enumerate(upper) if cell]
    if not covered or covered[0] == 0 or not all(lower[column] for column in covered):
        return False
    names = [joined(cell).text if cell else "" for cell in lower]
    if any(NUMBER.match(joined(cell).text) for cell in upper if cell) or any(map(NUMBER.match, names)):
        return False
    if not any(
        sum(bool(row[column] and NUMBER.match(joined(row[column]).text)) for row in rows[2:]) > 1 for column in covered
    ):
        return False
    for column in covered:
        above, below = upper[column][-1], lower[column][0]
        if below.top - above.top > CELL_PITCH * height or not _is_over(above, below, height):
            return False
    rest = [column for column in range(1, len(lower)) if column not in covered]
    goes_on = [not name[:1].isupper() for name in names]
    return not rest or (
        all(goes_on[column] for column in covered) and not any(goes_on[column] for column in rest if names[column])
    )


def _is_over(above: Line, below: Line, height: float) -> bool:
    """Whether two lines have the same left edge, right edge or centre."""
    left, right = above.x0 - below.x0, above.x1 - below.x1
    return min(abs(left), abs(right), abs(left + right) / 2) < FINE * height


def as_lines(rows: Sequence[Cells], starts: tuple[float, ...]) -> list[Line]:
    texts = [[_cell_text(cell) for cell in row] for row in rows]
    signs = "".join(map("".join, texts))
    letters = sum(map(str.isalpha, signs))
    right_to_left = 2 * len(_RTL.findall(signs)) > letters
    head = _has_head(texts)
    lines = []
    for at, (row, cells) in enumerate(zip(rows, texts, strict=True)):
        pieces = [piece for cell in row for piece in cell]
        cells = cells[::-1] if right_to_left else cells
        alone = sum(map(bool, cells)) == 1 and bool(cells[0])
        lines.append(
            Line(
                cells[0] if alone else _row_text(cells),
                min(piece.x0 for piece in pieces),
                max(piece.x1 for piece in pieces),
                min(piece.top for piece in pieces),
                max(piece.bottom for piece in pieces),
                size=max(piece.size for piece in pieces),
                shown=pieces[0].shown,
                columns=starts,
                doubled=sum(piece.doubled for piece in pieces),
                head=head and at == 0,
            )
        )
    return lines


def _row_text(cells: Sequence[str]) -> str:
    """Join the texts of cells with the separator ``MARK``. A label that ends in a colon is joined to its value with a
    space.
    """
    text = cells[0]
    for before, cell in pairwise(cells):
        text += (" " if before.endswith(":") and not cell.endswith(":") else MARK) + cell
    return text.strip()


def joined(cell: Sequence[Line]) -> Line:
    """Join the pieces of a cell into one line."""
    if len(cell) == 1:
        return cell[0]
    x0, x1 = min(piece.x0 for piece in cell), max(piece.x1 for piece in cell)
    return cell[0].changed(text=_cell_text(cell), x0=x0, x1=x1)


def _cell_text(cell: Sequence[Line]) -> str:
    parts: list[str] = []
    last: Line | None = None
    for piece in cell:
        beside = last is not None and abs(piece.top - last.top) < 0.6 * last.height
        touches = beside and last is not None and piece.x0 - last.x1 < _TOUCH * last.height
        parts += [piece.text] if last is None or touches or (not beside and last.cut) else [" ", piece.text]
        last = piece
    return "".join(parts)


def _has_head(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row has the names of the columns: no numbers in it, and numbers below at least one name."""
    if len(rows) < 3 or any(NUMBER.match(text) for text in rows[0] if text):
        return False
    for column, name in enumerate(rows[0]):
        below = [row[column] for row in rows[1:] if row[column]]
        if name and below and sum(bool(NUMBER.match(text)) for text in below) >= NUMBERS * len(below):
            return True
    return False


def average(column: Sequence[Line]) -> float:
    return sum(len(line.text) for line in column) / max(len(column), 1)


def is_prose(column: Sequence[Line]) -> bool:
    texts = [line.text for line in column]
    if average(column) < _TEXT / 2:
        return False
    cased = [text for text in texts if text[0].isupper() or text[0].islower()]
    if len(cased) >= 0.5 * len(texts):
        going_on = sum(text[0].islower() for text in cased)
        return going_on > (_GOES_ON if average(column) >= _TEXT else _IN_SHORT) * len(texts)
    if average(column) < _TEXT:
        return False
    right = max(line.x1 for line in column)
    return sum(right - line.x1 < 1.5 * line.height for line in column) > _FILLED * len(column)


def in_columns(rows: Sequence[list[Line]], start: int) -> list[Cells]:
    """Return the cells of the rows, from ``start``, whose pieces begin where those of the first row do, or where the
    text of a list's item does. A row far below the row before is no longer one of them.
    """
    if len(rows[start]) < 2:
        return []
    first = _with_marks(rows[start])
    starts = [group[0].x0 for group in first]
    apart = all(two[0].x0 - one[-1].x1 > _BETWEEN * one[0].height for one, two in pairwise(first))
    if len(first) < 2 or not apart or any(len(group) == 1 and MARKER.match(group[0].text) for group in first):
        return []
    cells: list[Cells] = []
    items: dict[int, float] = {}  # where the text of the last item begins, keyed by the column
    ends = [*starts[1:], math.inf]
    step = _NEXT_LINE * rows[start][0].height
    for above, row in pairwise([rows[start], *rows[start:]]):
        pitch = row[0].top - above[0].top
        if cells and not 0 < pitch <= step:
            break
        by_column: dict[int, list[Line]] = {}
        for group in _with_marks(row):
            column = bisect_right(starts, group[0].x0 + _SAME_START) - 1
            begins = (starts[column], items.get(column, starts[column])) if column >= 0 else ()
            if (
                not any(abs(group[0].x0 - x) <= _SAME_START for x in begins)
                or group[-1].x1 > ends[column]
                or column in by_column
            ):
                return cells
            by_column[column] = group
            items[column] = _item_start(group) or items.get(column, starts[column])
        if any(piece.row for piece in row):
            break
        step = min(step, _SAME_PITCH * pitch) if cells else step
        cells.append([by_column.get(column, []) for column in range(len(starts))])
    return cells


def _with_marks(row: Sequence[Line]) -> list[list[Line]]:
    """Put the mark of a list's item and the item together."""
    groups: list[list[Line]] = []
    for piece in row:
        last = groups[-1][-1] if groups else None
        if last is not None and _MARK.fullmatch(last.text) and piece.x0 - last.x1 < MARK_REACH * last.height:
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return groups


def _item_start(group: Sequence[Line]) -> float | None:
    """Return where the text of a list's item begins behind its mark; None if there is no mark."""
    words = group[0].words
    if len(group) > 1:
        return group[1].x0
    return words[1][1] if len(words) > 1 and _MARK.fullmatch(words[0][0]) else None


def are_columns_of_text(rows: Sequence[Cells]) -> bool:
    """Whether printed rows, as ``in_columns`` returns them, are columns of text and no rows of a table."""
    if len(rows) < 2:
        return False
    columns = [[piece for row in rows for piece in row[column]] for column in range(len(rows[0]))]
    return are_woven(rows) or all(is_prose(one) and _has_words(one) for one in columns) or _go_on_together(rows)


def _has_words(column: Sequence[Line]) -> bool:
    """Whether most lines of a column have several words, or are in a script that has no blanks. Lines of one sign row
    each, such as names of files and settings, are cells of a table.
    """
    texts = [line.text for line in column]
    return 2 * sum(" " in text or _is_uncased(text[0]) for text in texts) > len(texts)


def _is_uncased(letter: str) -> bool:
    return letter.isalpha() and not (letter.isupper() or letter.islower())


def _go_on_together(rows: Sequence[Cells]) -> bool:
    """Whether every line below the first one or two goes on with the line above it, in several columns at once. Beside
    a line that goes on, another column may begin a sentence; a row of a table begins in all of its columns.
    """
    together, edges = False, _edges(rows)
    for at, (above, below) in enumerate(pairwise(rows)):
        filled = [cell for cell in zip(above, below, edges, strict=True) if cell[1]]
        rest = [last for last, cell, edge in filled if not _is_next_line(last, cell, edge, 1)]
        if at and (len(rest) == len(filled) or not all(last and last[-1].text.endswith(_STOPS) for last in rest)):
            return False
        together = together or (not rest and len(filled) > 1)
    return together


def _edges(rows: Sequence[Cells]) -> list[float]:
    """Return the right edge of each column."""
    return [max((cell[-1].x1 for row in rows if (cell := row[column])), default=0.0) for column in range(len(rows[0]))]


def are_woven(rows: Sequence[Cells]) -> bool:
    """Whether printed rows are columns of text, no rows of a table: in one row a line goes on beside the first line of
    something new in another column, and in another row it is the other way round. Two lists side by side are columns
    too.
    """
    count = len(rows[0])
    edges = _edges(rows)
    begun: set[tuple[int, int]] = set()
    for above, below in pairwise(rows):
        on = [column for column in range(count) if _is_next_line(above[column], below[column], edges[column])]
        new = [
            column
            for column in range(count)
            if below[column] and below[column][0].text[0].isupper() and column not in on
        ]
        begun.update((one, other) for one in on for other in new)
    lists = sum(_is_list_of_items([row[column] for row in rows]) for column in range(count))
    return lists > 1 or any((other, one) in begun for one, other in begun)


def _is_list_of_items(column: Sequence[Sequence[Line]]) -> bool:
    """Whether each cell of a column, but for its head, is an item of a list with its mark, or goes on with one."""
    cells = [joined(cell) for cell in column if cell]
    items = [at for at, cell in enumerate(cells) if _ITEM.match(cell.text)]
    if len(items) < _FEWEST_ITEMS or items[0] > 1:
        return False
    edge = max(cell.x1 for cell in cells)
    return all(two in items or not _has_room(cells[one], cells[two], edge) for one, two in pairwise(range(len(cells))))


def _is_next_line(above: Sequence[Line], below: Sequence[Line], edge: float, blanks: int = 2) -> bool:
    """Whether a cell goes on with the line above it, which has at least ``blanks`` blanks and no room for another
    word.
    """
    if not above or not below or not below[0].text[0].islower():
        return False
    return not _has_room(above[-1], below[0], edge) and above[-1].text.count(" ") >= blanks


def _has_room(last: Line, line: Line, edge: float) -> bool:
    """Whether the first word of ``line`` would have fit behind ``last``, in a column with this right edge."""
    room = (line.x1 - line.x0) / max(len(line.text), 1) * (len(line.text.split(" ", 1)[0]) + 1)
    return edge - last.x1 >= room + _NARROW * last.height
