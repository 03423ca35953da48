"""Takes the words of drawn charts from a PDF's page, and puts them into the order in which a person reads them. Runs
only in the child process (``app.readers.child``).

A chart is a drawn box beside which the marks of an axis stand. Its words are rows of a table to the rest of the page.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from app.readers.chart_labels import (
    FEWEST_MARKS,
    VALUE,
    AxisName,
    Group,
    axes_of,
    bars,
    grouped,
    middle,
    row_of_marks,
    with_powers,
)
from app.readers.layout import Line
from app.readers.pdf_grids import THIN, Box, Path, Turn

_NARROWEST = 60.0  # minimum width of a chart's box in points
_LOWEST = 40.0  # minimum height of a chart's box in points
_MOST_OF_PAGE = 0.85  # a box that takes at least this share of the page is a background
_MOST_PATHS = 2_000  # maximum drawn paths of a page that are examined
_MOST_BOXES = 40  # maximum boxes of a page that are examined
_MOST_MARKS = 200  # maximum numbers on a page with charts; one with more has tables
_BESIDE = 6.0  # maximum distance, in line heights, between an axis and the box beside it
_ABOVE = 2.5  # maximum distance, in line heights, between the box and the title above it
_BELOW = 3.5  # maximum distance, in line heights, between the box and the name of the axis below it
_FEWEST_BARS = 2
_LABEL = 8  # maximum words of a label outside of the box; longer lines are text of the page
_SENTENCE = 6.0  # mean words of a line in a box from which it is a box of text
CAPTION = re.compile(r"(?:fig(?:ure)?|abb(?:ildung)?|chart|table|tabelle|exhibit)\b\.?\s?\d", re.I)
_TURN = 0.1  # maximum difference in radians of the angle of words that run upwards or downwards from a quarter turn


def boxes_of(shapes: Sequence[Box], width: float, height: float) -> list[Box]:
    """Return the shapes of a page that may be the box of a chart, the smallest first."""
    candidates = {
        (x0, x1, top, bottom)
        for x0, x1, top, bottom in shapes
        if x1 - x0 > _NARROWEST
        and bottom - top > _LOWEST
        and (x1 - x0) * (bottom - top) < _MOST_OF_PAGE * width * height
    }
    return sorted(candidates, key=lambda box: (box[1] - box[0]) * (box[3] - box[2]))[:_MOST_BOXES]


def gridded(paths: Sequence[Path], turn: Turn) -> list[Box]:
    """Return the boxes of lines that are drawn parallel and begin and end at the same places, such as the grid of a
    chart without a frame. ``turn`` converts positions in the file to positions on the page.
    """
    across: dict[tuple[int, int], list[float]] = defaultdict(list)
    down: dict[tuple[int, int], list[float]] = defaultdict(list)
    for _, x0, y0, x1, y1 in paths[:_MOST_PATHS]:
        if y1 - y0 <= THIN and x1 - x0 > _NARROWEST:
            across[round(x0), round(x1)].append((y0 + y1) / 2)
        elif x1 - x0 <= THIN and y1 - y0 > _LOWEST:
            down[round(y0), round(y1)].append((x0 + x1) / 2)
    rows = [turn(x0, min(ys), x1, max(ys)) for (x0, x1), ys in across.items() if len(ys) >= FEWEST_MARKS]
    return rows + [turn(min(xs), y0, max(xs), y1) for (y0, y1), xs in down.items() if len(xs) >= FEWEST_MARKS]


def charts(pieces: list[Line], boxes: Sequence[Box]) -> list[list[Line]]:
    """Take the words of the charts from a page's pieces of text.

    Args:
        pieces: the page's pieces, before those at an angle are levelled. The words of charts are removed.
        boxes: shapes that may be the box of a chart, the smallest first.

    Returns:
        The rows of each chart, in reading order.
    """
    if not boxes:
        return []
    marks = [piece for piece in pieces if piece.shown and not piece.turned and VALUE.fullmatch(piece.text)]
    if not FEWEST_MARKS <= len(marks) <= _MOST_MARKS:
        return []
    pieces[:] = with_powers(_with_ends(pieces))
    upright = [piece for piece in pieces if piece.shown and not piece.turned]
    of_box: dict[Box, list[list[Line]]] = {}
    for axis in axes_of(upright):
        box = next((box for box in boxes if _stands_beside(axis, box)), None)
        if box is not None:
            of_box.setdefault(box, []).append(axis)
    chart_rows = []
    for box, axes in of_box.items():
        taken = {id(mark) for other, some in of_box.items() if other != box for axis in some for mark in axis}
        words = [piece for piece in pieces if piece.shown and id(piece) not in taken and _belongs(piece, box, axes)]
        inside = [len(piece.text.split()) for piece in words]
        if sum(inside) >= _SENTENCE * len(inside):
            continue
        gone = set(map(id, words))
        pieces[:] = [piece for piece in pieces if id(piece) not in gone]
        chart_rows.append(_rows(words, axes, box))
    for box in boxes:
        rows = _bar_chart(pieces, box) if not any(_touch(box, other) for other in of_box) else []
        chart_rows += [rows] if rows else []
    return chart_rows


def _with_ends(pieces: Sequence[Line]) -> list[Line]:
    """Join single letters to the words that run upwards or downwards before or after them. A letter alone does not tell
    that it is turned, and some programs draw each letter by itself.
    """
    joined = list(pieces)
    for piece in [piece for piece in pieces if piece.turned and abs(abs(math.sin(piece.angle)) - 1) < _TURN]:
        wide = piece.x1 - piece.x0
        for one in [one for one in joined if len(one.text) == 1 and one.text.isalpha() and not one.turned]:
            if one.x0 < piece.x0 - 1 or one.x1 > piece.x1 + 1:
                continue
            below, above = abs(one.top - piece.bottom) < wide / 3, abs(one.bottom - piece.top) < wide / 3
            if below or above:
                is_first = below == (math.sin(piece.angle) < 0)
                piece.text = one.text + piece.text if is_first else piece.text + one.text
                piece.top, piece.bottom = min(piece.top, one.top), max(piece.bottom, one.bottom)
                joined = [other for other in joined if other is not one]
    return joined


def _bar_chart(pieces: list[Line], box: Box) -> list[Line]:
    """Take the words of a chart with horizontal bars in ``box`` from a page's pieces of text. Return its rows; [] if it
    is none: the marks of its axis stand in a row below the box, and the names of its bars at the left of the box.
    """
    x0, x1, top, bottom = box
    upright = [piece for piece in pieces if piece.shown and not piece.turned]
    below = [
        one
        for one in upright
        if one.bottom > bottom < one.top + one.height / 2 and x0 - one.height < middle(one) < x1 + one.height
    ]
    first = min(below, key=lambda one: one.top, default=None)
    row = [one for one in below if first and one.top < first.top + first.height / 2]
    marks = row_of_marks(row) if first and first.top < bottom + _ABOVE * first.height else []
    if not marks:
        return []
    height = marks[0].height
    names = [
        one
        for one in upright
        if -height < x0 - one.x1 < _BESIDE * height and top <= (one.top + one.bottom) / 2 <= bottom
        if not VALUE.fullmatch(one.text) and len(one.text.split()) <= _LABEL
    ]
    names.sort(key=lambda one: one.top)
    if len(names) < _FEWEST_BARS or any(two.top < one.bottom for one, two in pairwise(names)):
        return []
    taken = {*map(id, marks), *map(id, names)}
    others = [
        one for one in pieces
        if one.shown and id(one) not in taken and (_belongs(one, box, [marks]) or _is_title(one, marks))
    ]  # fmt: skip
    if sum(len(one.text.split()) for one in others) >= _SENTENCE * max(len(others), 1):
        return []
    taken |= set(map(id, others))
    pieces[:] = [piece for piece in pieces if id(piece) not in taken]
    left = min(one.x0 for one in names)
    return as_rows(bars(others, marks, names), (left, x1, top, bottom), height)


def _is_title(piece: Line, marks: Sequence[Line]) -> bool:
    """Whether a piece of text is the name of the axis whose ``marks`` stand right above it."""
    near = 0 <= piece.top - marks[0].bottom + piece.height / 2 < _BELOW * piece.height
    is_label = len(piece.text.split()) <= _LABEL and not CAPTION.match(piece.text)
    return near and is_label and marks[0].x0 <= middle(piece) <= marks[-1].x1


def _touch(one: Box, two: Box) -> bool:
    return one[0] < two[1] and two[0] < one[1] and one[2] < two[3] and two[2] < one[3]


def _stands_beside(axis: Sequence[Line], box: Box) -> bool:
    """Whether an axis stands at the left or right edge of a box, and all its marks are on the height of the box."""
    x0, x1, top, bottom = box
    height = axis[0].height
    left, right = min(mark.x0 for mark in axis), max(mark.x1 for mark in axis)
    middles = [(mark.top + mark.bottom) / 2 for mark in axis]
    if min(middles) < top - height or max(middles) > bottom + height:
        return False
    if max(middles) - min(middles) < (bottom - top) / 3:
        return False
    reach = _BESIDE * height
    return -reach < x0 - right < reach or -reach < left - x1 < reach


def _belongs(piece: Line, box: Box, axes: Sequence[Sequence[Line]]) -> bool:
    """Whether a piece of text is one of the words of the chart in ``box``."""
    x0, x1, top, bottom = box
    x, y = middle(piece), (piece.top + piece.bottom) / 2
    if x0 <= x <= x1 and top <= y <= bottom:
        return True
    if len(piece.text.split()) > _LABEL or CAPTION.match(piece.text):
        return False
    height = axes[0][0].height
    left = min(x0, min(mark.x0 for axis in axes for mark in axis) - 2 * height)
    right = max(x1, max(mark.x1 for axis in axes for mark in axis) + 2 * height)
    if piece.turned:
        return left - height <= x <= right + height and top - height <= y <= bottom + height + piece.height
    beside = left <= piece.x0 and piece.x1 <= right + height
    return beside and top - _ABOVE * height <= y <= bottom + _BELOW * height


def _rows(words: Sequence[Line], axes: Sequence[Sequence[Line]], box: Box) -> list[Line]:
    """Return the words of a chart as rows, which have the place of the chart's box."""
    names, labels = [], []
    for piece in words:
        x = middle(piece)
        if piece.turned and abs(abs(math.sin(piece.angle)) - 1) < _TURN and not box[0] < x < box[1]:
            names.append(AxisName(piece.text, x, piece.top, piece.bottom))
        else:
            top = max(piece.top, piece.bottom - piece.size) if piece.turned else piece.top
            labels.append(replace(piece, top=top) if piece.turned else piece)
    return as_rows(grouped(labels, axes, names), box, labels[0].size)


def as_rows(groups: Sequence[Group], box: Box, size: float) -> list[Line]:
    """Return what is read together as rows, which have the place of the chart's box."""
    texts = [text for group in groups for text in group.text.split("\n")]
    x0, x1, top, bottom = box
    step = (bottom - top) / max(len(texts), 1)
    return [
        Line(text, x0, x1, top + row * step, top + (row + 1) * step, size=size, columns=(x0, x1))
        for row, text in enumerate(texts)
    ]


def with_charts(lines: list[Line], found: Sequence[Sequence[Line]]) -> list[Line]:
    """Insert the rows of each chart after the last line above it in its column, or else before the first line below."""
    for rows in found:
        x0, x1, top = rows[0].x0, rows[0].x1, rows[0].top
        beside = [at for at, line in enumerate(lines) if line.x0 < x1 and line.x1 > x0]
        above = [at for at in beside if lines[at].bottom <= top + lines[at].height]
        below = next((at for at in beside if lines[at].top >= top), len(lines))
        at = above[-1] + 1 if above else below
        lines[at:at] = rows
    return lines
