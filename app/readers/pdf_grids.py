"""Finds the ruling lines of a PDF page, and the grids that they form. Runs only in the child process
(``app.readers.child``).

A grid is a drawn table: horizontal and vertical lines that cross. The lines divide the grid into rectangles, called
places. Adjacent places without a line between them are one cell, so a merged cell has several places. This module does
not know the content of cells.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from app.readers import pdf_calls

Box = tuple[float, float, float, float]
Path = tuple[int, float, float, float, float]
"""A drawn path: its pdfium address, and its left, bottom, right and top edges on the page."""

Turn = Callable[[float, float, float, float], Box]
"""Converts (left, bottom, right, top) in the file to (x0, x1, top, bottom) on the page as displayed (``turned``)."""

Span = tuple[float, float, float]
Line = tuple[float, list[tuple[float, float]]]

THIN = 3.0
"""Maximum thickness of a drawn line, in points."""

MOST_OBJECTS = 5_000
"""Maximum number of drawn objects examined on a page. Further objects are ignored."""

_SMALL = 6.0  # a drawn shape is too small for a table cell if its width and height are below this, in points
_SIDES = 5  # a shape that is too small for a cell counts as this many ruling lines when a page's lines are counted
_MOST_SEGMENTS = 1_500  # maximum ruling lines of a page; further lines are ignored
_CROSS = 3.0  # maximum distance in points between two lines that count as crossing
_ONE_LINE = 4.5  # maximum distance in points between two parallel lines that count as one
_WIDE = 60.0  # minimum length in points of a horizontal line that may belong to a table
# minimum horizontal lines of a grid, and also its minimum vertical lines; edges that are not drawn count too
_FEWEST = 3
_MOST_PLACES = 10_000  # maximum rectangles of a grid; a grid with more is a drawing
_MOST_GRIDS = 60
_FEWEST_LINES = 5  # minimum drawn lines of a grid, horizontal and vertical lines together


@dataclass
class Rules:
    """The straight lines drawn on a page: horizontal as (y, x0, x1), vertical as (x, top, bottom)."""

    horizontal: list[Span] = field(default_factory=list)
    vertical: list[Span] = field(default_factory=list)


@dataclass
class Grid:
    """A drawn table with vertical lines at ``xs`` and horizontal lines at ``ys``, edges included.

    The lines divide the grid into rectangles, and a cell has one or more of them. ``cells[row][column]`` is the (row,
    column) of the first rectangle of the cell to which a rectangle belongs. ``frames`` are cells that are no rectangle
    themselves, because they surround other cells.
    """

    xs: list[float]
    ys: list[float]
    cells: list[list[tuple[int, int]]]
    frames: set[tuple[int, int]]

    def row(self, y: float) -> int:
        return min(max(bisect_right(self.ys, y) - 1, 0), len(self.ys) - 2)

    def column(self, x: float) -> int:
        return min(max(bisect_right(self.xs, x) - 1, 0), len(self.xs) - 2)

    def holds(self, x: float, y: float) -> bool:
        return self.xs[0] <= x <= self.xs[-1] and self.ys[0] <= y <= self.ys[-1]

    def walls(self, y: float) -> list[float]:
        """Return the x positions of the lines between the cells of the row at ``y``."""
        row = self.cells[self.row(y)]
        return [self.xs[column + 1] for column, (one, two) in enumerate(pairwise(row)) if one != two]

    @property
    def area(self) -> float:
        return (self.xs[-1] - self.xs[0]) * (self.ys[-1] - self.ys[0])


def grids(rules: Rules) -> list[Grid]:
    """Return the grids of a page, sorted by area, so that a nested grid precedes the grid around it."""
    found = []
    for across, down in _crossing(rules):
        ys, xs = _lines(across), _lines(down)
        if len(xs) + len(ys) < _FEWEST_LINES:
            continue
        ys, xs = _closed(ys, down), _closed(xs, across)
        if len(xs) >= _FEWEST and len(ys) >= _FEWEST and len(xs) * len(ys) < _MOST_PLACES:
            found.append(_grid(xs, ys))
    return sorted(found, key=lambda grid: grid.area)[:_MOST_GRIDS]


def frames(rules: Rules) -> list[Span]:
    """Find groups of horizontal lines whose left ends and right ends are aligned.

    Returns:
        (top, bottom, left) of each group of at least two lines. The topmost group comes first.
    """
    runs: dict[tuple[int, int], list[tuple[float, float, float]]] = defaultdict(list)
    for y, drawn in _lines(rules.horizontal):
        for start, end in _joined(drawn):
            if end - start < _WIDE:
                continue
            key = next(
                (key for key in runs if abs(key[0] - start) < _CROSS and abs(key[1] - end) < _CROSS),
                (round(start), round(end)),
            )
            runs[key].append((y, start, end))
    return sorted((run[0][0], run[-1][0], run[0][1]) for run in runs.values() if len(run) > 1)


def _joined(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if joined and start - joined[-1][1] < _ONE_LINE:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _crossing(rules: Rules) -> Iterator[tuple[list[Span], list[Span]]]:
    """Yield groups of lines that cross one another: (horizontal lines, vertical lines)."""
    down = sorted(rules.vertical)
    places = [x for x, _, _ in down]
    group = list(range(len(rules.horizontal) + len(down)))

    def first(index: int) -> int:
        while group[index] != index:
            group[index] = group[group[index]]
            index = group[index]
        return index

    for at, (y, x0, x1) in enumerate(rules.horizontal):
        for other in range(bisect_left(places, x0 - _CROSS), bisect_right(places, x1 + _CROSS)):
            if down[other][1] - _CROSS <= y <= down[other][2] + _CROSS:
                group[first(len(rules.horizontal) + other)] = first(at)
    parts: dict[int, tuple[list[Span], list[Span]]] = defaultdict(lambda: ([], []))
    for at, line in enumerate(rules.horizontal):
        parts[first(at)][0].append(line)
    for at, line in enumerate(down, len(rules.horizontal)):
        parts[first(at)][1].append(line)
    yield from (part for part in parts.values() if part[0] and part[1])


def _lines(spans: list[Span]) -> list[Line]:
    """Join parallel lines at nearly the same position into one line: (mean position, [(start, end) of each drawn
    part]).
    """
    groups: list[tuple[list[float], list[tuple[float, float]]]] = []
    for place, start, end in sorted(spans):
        if not groups or place - groups[-1][0][-1] > _ONE_LINE:
            groups.append(([], []))
        groups[-1][0].append(place)
        groups[-1][1].append((start, end))
    return [(sum(places) / len(places), drawn) for places, drawn in groups]


def _closed(lines: list[Line], others: list[Span]) -> list[Line]:
    """Add the outer edges of a grid that are not drawn. An edge is missing if the crossing lines ``others`` extend
    beyond the first or the last of ``lines``.
    """
    start, end = min(start for _, start, _ in others), max(end for _, _, end in others)
    before: list[Line] = [(start, [])] if start < lines[0][0] - _ONE_LINE else []
    return [*before, *lines, *([(end, [])] if end > lines[-1][0] + _ONE_LINE else [])]


def _grid(vertical: list[Line], horizontal: list[Line]) -> Grid:
    xs, ys = [x for x, _ in vertical], [y for y, _ in horizontal]
    width = len(xs) - 1
    # Union-find over the rectangles of the grid: the parent of each rectangle. The root of a cell is its first
    # rectangle.
    first = list(range(width * (len(ys) - 1)))

    def root(place: int) -> int:
        while first[place] != place:
            first[place] = first[first[place]]
            place = first[place]
        return place

    for row, (top, bottom) in enumerate(pairwise(ys)):
        for column, (left, right) in enumerate(pairwise(xs)):
            place = row * width + column
            beside = above = place
            if column and not _is_drawn(vertical[column][1], (top + bottom) / 2):
                beside = root(place - 1)
            if row and not _is_drawn(horizontal[row][1], (left + right) / 2):
                above = root(place - width)
            first[place] = first[beside] = first[above] = min(beside, above)
    places: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    cells: list[list[tuple[int, int]]] = []
    for row in range(len(ys) - 1):
        cells.append([divmod(root(row * width + column), width) for column in range(width)])
        for column, cell in enumerate(cells[-1]):
            places[cell].append((row, column))
    return Grid(xs, ys, cells, {cell for cell, held in places.items() if not _is_box(held)})


def _is_box(places: list[tuple[int, int]]) -> bool:
    rows, columns = [row for row, _ in places], [column for _, column in places]
    return len(places) == (max(rows) - min(rows) + 1) * (max(columns) - min(columns) + 1)


def _is_drawn(spans: list[tuple[float, float]], place: float) -> bool:
    return any(start <= place <= end for start, end in spans)


def ruling_lines(turn: Turn, paths: Sequence[Path]) -> Rules:
    """Return the straight lines drawn on a page, including thin boxes and the edges of boxes. Positions refer to the
    page as displayed.

    A page with very many lines is a drawing. Its lines beyond a maximum are ignored.

    Args:
        turn: converts places in the file to places on the page.
        paths: the paths drawn on the page.
    """
    rules = Rules()
    left = _MOST_SEGMENTS
    matrix, place = pdf_calls.Floats(6), pdf_calls.Floats(2)  # once, because a page may have thousands of paths
    for item, a, b, c, d in paths:
        if left <= 0:
            break
        wide, tall = c - a, d - b
        if wide < _SMALL > tall and wide > THIN < tall:
            left -= _SIDES
            continue
        if wide <= THIN >= tall:  # a dot
            left -= 1
            continue
        boxes = list(_sides(item, left, matrix, place)) if wide > THIN < tall else [(a, b, c, d)]
        left -= len(boxes)
        for box in boxes:
            x0, x1, top, bottom = turn(*box)
            if bottom - top <= THIN < x1 - x0:
                rules.horizontal.append(((top + bottom) / 2, x0, x1))
            elif x1 - x0 <= THIN < bottom - top:
                rules.vertical.append(((x0 + x1) / 2, top, bottom))
    return rules


def _sides(item: int, most: int, matrix: pdf_calls.Floats, place: pdf_calls.Floats) -> Iterator[Box]:
    """Yield (left, bottom, right, top) of each side of a path. Stop at a curved or slanting side, because the path is a
    drawing then. pdfium writes the path's matrix into ``matrix``, and each point into ``place``.
    """
    count = pdf_calls.count_segments(item)
    if not 1 < count <= most:
        return
    pdf_calls.matrix(item, matrix.places[0])
    a, b, c, d, e, f = matrix.get()
    before = start = (0.0, 0.0)
    for at in range(count):
        segment = pdf_calls.segment(item, at)
        kind = pdf_calls.segment_kind(segment)
        if kind == raw.FPDF_SEGMENT_BEZIERTO or not pdf_calls.segment_point(segment, *place.places):
            return
        across, up = place.get()
        point = a * across + c * up + e, b * across + d * up + f
        if kind == raw.FPDF_SEGMENT_MOVETO:
            start = point
        else:
            if abs(point[0] - before[0]) > THIN < abs(point[1] - before[1]):
                return
            yield _around(before, point)
            if pdf_calls.segment_closes(segment):
                yield _around(point, start)
        before = point


def _around(one: tuple[float, float], two: tuple[float, float]) -> Box:
    x0, x1 = (one[0], two[0]) if one[0] < two[0] else (two[0], one[0])
    y0, y1 = (one[1], two[1]) if one[1] < two[1] else (two[1], one[1])
    return x0, y0, x1, y1


def turned(page: pdfium.PdfPage) -> Turn:
    """Return a function that converts (left, bottom, right, top) in page coordinates to (x0, x1, top, bottom) on the
    page as displayed.
    """
    rotation = page.get_rotation()
    left, low, right, high = page.get_bbox()

    def turn(x0: float, y0: float, x1: float, y1: float) -> Box:
        if rotation == 90:
            return y0 - low, y1 - low, x0 - left, x1 - left
        if rotation == 180:
            return right - x1, right - x0, y0 - low, y1 - low
        if rotation == 270:
            return high - y1, high - y0, right - x1, right - x0
        return x0 - left, x1 - left, high - y1, high - y0

    return turn
