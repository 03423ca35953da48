"""Takes the words of drawn pie charts from a PDF's page, and puts each slice's name and number together. Runs only in
the child process (``app.readers.child``).

A number is given to a slice only if the slice is as large as the number says, and a name only if no other slice is as
near to it, or if a legend has it beside the slice's colour. Other names and numbers are listed apart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from ctypes import addressof, c_int
from dataclasses import dataclass, replace

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from app.readers import pdf_calls
from app.readers.chart_labels import Group, middle
from app.readers.layout import Line
from app.readers.pdf_charts import CAPTION, as_rows
from app.readers.pdf_grids import Box, Path, Turn, turned

_MOST_PATHS = 2_000  # maximum drawn paths of a page that are examined
_MOST_SLICES = 60  # maximum slices of a page
_SMALLEST = 25.0  # minimum width or height of a slice in points
_SEGMENTS = (6, 300)  # minimum and maximum segments of a slice's path
_ROUND = 0.02  # maximum difference of a point's distance from the middle of the pie, as a share of its radius
_TOUCH = 0.1  # maximum distance in points between two curves of one arc
_STRAIGHT = 1e-6  # maximum of twice the area of a triangle in square points whose corners are on a line
_SAME_PIE = 0.3  # maximum distance between the middles of two slices, one of which is pulled out, in radii
_WHOLE = 0.05  # maximum difference of the sum of all slices from a whole circle, in radians
_LABEL = 8  # maximum words of a label
_INNER = 0.1  # minimum distance of a label from the middle of the pie, in radii
_OUTER = 1.1  # maximum distance of a label from the middle of the pie, in radii
_BEYOND = 1.0  # maximum further distance of a label from the pie, in line heights
_ASIDE = 1.0  # maximum distance of a label from the ray through the middle of its slice, in line heights
_NEARER = 0.3  # minimum difference of this distance to that of the next slice, in line heights
_NUMBER = re.compile(r"(\d+(?:[.,]\d+)?)\s?%")
_PLAIN = re.compile(r"\d+(?:[.,]\d+)?")
_TITLE = 1.0  # maximum distance of the title from the pie, in radii
_LARGER = 1.1  # minimum type size of a title near the pie, as a factor of that of its numbers
_TITLE_ASIDE = 0.5  # maximum distance between the middles of title and pie, in radii
_ROUNDED = 1.0  # maximum difference of a number from the size of its slice, in units of the number's last digit
_ALIGNED = 2.0  # maximum distance in points between the edges or middles of two lines of one label
_SWATCH = 2.5  # maximum size of a colour in a legend, and of its distance from its name, in line heights
_LINE = 0.6  # maximum gap between two lines of one name, in line heights

Point = tuple[float, float]
_Curve = tuple[Point, Point, Point]


@dataclass(frozen=True)
class _Slice:
    """A slice of a pie: its middle, its radius, the direction of the ray through it, its size in radians, its
    colour.
    """

    x: float
    y: float
    radius: float
    direction: float
    size: float
    colour: tuple[int, ...]

    def aside(self, box: Box) -> float:
        """Return the distance of a label from the ray through the slice; infinite if the label is too far away."""
        x0, x1, top, bottom = box
        x, y = (x0 + x1) / 2, (top + bottom) / 2
        near = min(max(self.x, x0), x1), min(max(self.y, top), bottom)
        if (
            not _INNER * self.radius
            < math.dist(near, (self.x, self.y))
            < _OUTER * self.radius + _BEYOND * (bottom - top)
        ):
            return math.inf
        across, down = math.cos(self.direction), math.sin(self.direction)
        best = math.inf
        for px, py in ((x, y), (x0, y), (x1, y), (x, top), (x, bottom), near):
            dx, dy = px - self.x, py - self.y
            if dx * across + dy * down > 0 and self._holds(dx, dy):
                best = min(best, abs(dy * across - dx * down))
        return best

    def _holds(self, dx: float, dy: float) -> bool:
        return abs(_turn(math.atan2(dy, dx) - self.direction)) <= self.size / 2

    def fits(self, number: str, total: float) -> bool:
        """Whether a number is the size of the slice, if all numbers of the pie sum up to ``total``."""
        digits = len(number.replace(",", ".").partition(".")[2])
        value = float(number.replace(",", ".")) / total * 100
        share = self.size / math.tau * 100
        return abs(value - share) <= _ROUNDED * 10.0**-digits * 100 / total + 0.05


def pies(pieces: list[Line], page: pdfium.PdfPage, paths: Sequence[Path]) -> list[list[Line]]:
    """Take the words of the pie charts from a page's pieces of text. Return the rows of each pie."""
    large = [
        path
        for path in paths[:_MOST_PATHS]
        if (path[3] - path[1] >= _SMALLEST or path[4] - path[2] >= _SMALLEST)
        and _SEGMENTS[0] <= pdf_calls.count_segments(path[0]) <= _SEGMENTS[1]
    ]
    if len(large) < 2 or page.get_rotation() or not any(_is_size(one) or "%" in one.text for one in pieces):
        return []
    charts = []
    for pie in _pies(list(_slices(page, large))):
        rows = _rows(pieces, pie, page, paths)
        charts += [rows] if rows else []
    return charts


def _slices(page: pdfium.PdfPage, paths: Sequence[Path]) -> Iterator[_Slice]:
    turn, mode, stroke = turned(page), c_int(), c_int()
    for item, *_ in paths:
        pdf_calls.draw_mode(item, addressof(mode), addressof(stroke))
        if mode.value == raw.FPDF_FILLMODE_NONE:
            continue
        part = _slice(item, turn)
        if part is not None:
            yield part


def _slice(item: int, turn: Turn) -> _Slice | None:
    """Return the slice that a path draws; None if it draws something else: the ends of its curves must be on a circle,
    or on two circles around one middle.
    """
    curves, corners = _curves(item, turn)
    circle = _circle(curves, corners) if curves else None
    if circle is None:
        return None
    x, y, radius = circle
    away = [math.dist((x, y), end) for curve in curves for end in (curve[0], curve[2])]
    outer, near = max(away), _ROUND * max(away)
    inner = [one for one in away if outer - one > near]
    if min(abs(outer - radius), abs(min(away) - radius)) > near or (inner and max(inner) - min(inner) > near):
        return None
    arcs = [
        (math.atan2(one[1] - y, one[0] - x), math.atan2(two[1] - y, two[0] - x))
        for one, _, two in curves
        if outer - math.dist((x, y), one) <= near >= outer - math.dist((x, y), two)
    ]
    steps = [_turn(end - start) for start, end in arcs]
    size = abs(sum(steps))
    if not 0 < size < math.tau - _WHOLE or sum(map(abs, steps)) > size + _WHOLE:
        return None
    # the path may begin within the arc
    first = next((at for at in range(1, len(arcs)) if abs(_turn(arcs[at][0] - arcs[at - 1][1])) > _ROUND), 0)
    return _Slice(x, y, outer, arcs[first][0] + sum(steps) / 2, size, pdf_calls.colour_of(item))


def _turn(angle: float) -> float:
    """Return an angle as one between minus and plus half a circle."""
    return (angle + math.pi) % math.tau - math.pi


def _longest(curves: Sequence[_Curve]) -> _Curve:
    """Return start, middle and end of the longest arc of curves that follow one another."""
    arcs: list[list[_Curve]] = []
    for curve in curves:
        if arcs and math.dist(arcs[-1][-1][2], curve[0]) < _TOUCH:
            arcs[-1].append(curve)
        else:
            arcs.append([curve])
    arc = max(arcs, key=lambda arc: sum(math.dist(curve[0], curve[2]) for curve in arc))
    return arc[0][0], arc[len(arc) // 2][0] if len(arc) > 1 else arc[0][1], arc[-1][2]


def _curves(item: int, turn: Turn) -> tuple[list[_Curve], list[Point]]:
    """Return start, middle and end of each curve of a path, and its corners, as points on the page as displayed."""
    matrix, place = pdf_calls.Floats(6), pdf_calls.Floats(2)
    pdf_calls.matrix(item, matrix.places[0])
    a, b, c, d, e, f = matrix.get()
    curves: list[_Curve] = []
    corners: list[Point] = [(0.0, 0.0)]
    points: list[Point] = []
    for at in range(pdf_calls.count_segments(item)):
        segment = pdf_calls.segment(item, at)
        if not pdf_calls.segment_point(segment, *place.places):
            break
        across, up = place.get()
        x, y = a * across + c * up + e, b * across + d * up + f
        left, _, top, _ = turn(x, y, x, y)
        if pdf_calls.segment_kind(segment) != raw.FPDF_SEGMENT_BEZIERTO:
            points = []
            corners.append((left, top))
            continue
        points.append((left, top))
        if len(points) == 3:
            last = corners[-1]
            one, two, end = points
            x, y = ((last[of] + 3 * one[of] + 3 * two[of] + end[of]) / 8 for of in (0, 1))
            curves.append((last, (x, y), end))
            points = []
            corners.append(end)
    ends = {end for curve in curves for end in (curve[0], curve[2])}
    return curves, [corner for corner in corners[1:] if corner not in ends]


def _circle(curves: Sequence[_Curve], corners: Sequence[Point]) -> tuple[float, float, float] | None:
    """Return (x, y, radius) of the circle on which the curves are; None if they are straight. A corner as far from all
    ends of curves is its middle.
    """
    for corner in corners:
        away = [math.dist(corner, end) for curve in curves for end in (curve[0], curve[2])]
        if max(away) - min(away) < _ROUND * max(away):
            return *corner, sum(away) / len(away)
    (ax, ay), (bx, by), (cx, cy) = _longest(curves)
    twice = 2 * (ax * (by - cy) + bx * (cy - ay) + cx * (ay - by))
    if abs(twice) < _STRAIGHT:
        return None
    one, two, three = ax * ax + ay * ay, bx * bx + by * by, cx * cx + cy * cy
    x = (one * (by - cy) + two * (cy - ay) + three * (ay - by)) / twice
    y = (one * (cx - bx) + two * (ax - cx) + three * (bx - ax)) / twice
    return x, y, math.dist((x, y), (ax, ay))


def _pies(slices: Sequence[_Slice]) -> list[list[_Slice]]:
    """Group the slices of a page by pie. A pie is a whole circle. A slice that is drawn twice is one."""
    groups: list[list[_Slice]] = []
    for one in slices[:_MOST_SLICES]:
        group = next((some for some in groups if _are_of_one_pie(some[0], one)), None)
        if group is None:
            groups.append([one])
        elif not any(abs(one.direction - other.direction) % math.tau < _ROUND for other in group):
            group.append(one)
    return [some for some in groups if len(some) > 1 and abs(sum(one.size for one in some) - math.tau) < _WHOLE]


def _are_of_one_pie(one: _Slice, two: _Slice) -> bool:
    near = math.dist((one.x, one.y), (two.x, two.y)) < _SAME_PIE * one.radius
    return near and abs(one.radius - two.radius) < 2 * _ROUND * one.radius


def _rows(pieces: list[Line], pie: Sequence[_Slice], page: pdfium.PdfPage, paths: Sequence[Path]) -> list[Line]:
    """Take the words of a pie from a page's pieces of text, and return them as rows: each slice's name and number."""
    upright = [one for one in pieces if one.shown and not one.turned and len(one.text.split()) <= _LABEL]
    parted = [(part, one) for one in upright for part in _parted(one)]
    words = [part for part, _ in parted]
    near = [one for one in words if min(part.aside(_box([one])) for part in pie) < math.inf]
    numbers = [one for one in near if _is_size(one)]
    if not numbers:
        return []
    for one in sorted(words, key=lambda one: -one.top):  # the first lines of a label, and the number below a name
        if one not in near and any(_is_over(one, other) or (_is_size(one) and _is_over(other, one)) for other in near):
            near.append(one)
    title = _title(words, near, pie[0], numbers[0].size)
    legend = _legend(words, pie, page, paths)
    stacks = _stacks([one for one in near if one not in title])
    names = legend or _nearest(pie, [stack for stack in stacks if not _is_size(stack[-1])])
    sizes = _fitting(pie, [stack for stack in stacks if _is_size(stack[-1])])
    texts, told = ([_said(title)] if title else []), list(title)
    for at in range(len(pie)):
        number = sizes.get(at, [])
        name = number[:-1] or names.get(at, [])
        if name:
            texts.append(": ".join(map(_said, filter(None, (name, number[-1:])))))
            told += [*name, *number]
    taken = [*near, *(one for name in legend.values() for one in name), *title]
    for kind in (False, True):
        left = [_said([one]) for one in near if one not in told and _is_size(one) == kind]
        texts += [", ".join(left)] if left else []
    gone = {id(whole) for part, whole in parted if any(part is one for one in taken)}
    pieces[:] = [piece for piece in pieces if id(piece) not in gone]
    x, y, radius = pie[0].x, pie[0].y, pie[0].radius
    groups = [Group(float(row), x, text) for row, text in enumerate(texts)]
    return as_rows(groups, (x - radius, x + radius, y - radius, y + radius), numbers[0].size)


def _is_size(piece: Line) -> bool:
    return (_NUMBER.fullmatch(piece.text) or _PLAIN.fullmatch(piece.text)) is not None


def _parted(piece: Line) -> list[Line]:
    """Split a piece of text before and after each percentage; two labels side by side may be one piece."""
    if "%" not in piece.text or len(piece.words) < 2:
        return [piece]
    groups: list[list[tuple[str, float, float]]] = []
    for word in piece.words:
        if not groups or _NUMBER.fullmatch(word[0]) or _NUMBER.fullmatch(groups[-1][-1][0]):
            groups.append([])
        groups[-1].append(word)
    return [
        replace(piece, text=" ".join(word for word, _, _ in some), words=some, x0=some[0][1], x1=some[-1][2])
        for some in groups
    ]


def _is_over(piece: Line, number: Line) -> bool:
    """Whether a piece of text is the line right above another, in one label."""
    near = -number.height / 2 < number.top - piece.bottom < _LINE * number.height
    edges = abs(piece.x0 - number.x0), abs(piece.x1 - number.x1), abs(middle(piece) - middle(number))
    return near and min(edges) < _ALIGNED


def _stacks(pieces: Sequence[Line]) -> list[list[Line]]:
    """Join the lines of each label, which stand one below the other. A number is the last of them."""
    stacks: list[list[Line]] = []
    for one in sorted(pieces, key=lambda one: one.top):
        above = next((some for some in stacks if _is_over(some[-1], one) and not _is_size(some[-1])), None)
        if above is None:
            stacks.append([one])
        else:
            above.append(one)
    return stacks


def _said(pieces: Sequence[Line]) -> str:
    return " ".join(piece.text for piece in pieces)


def _title(pieces: Sequence[Line], near: Sequence[Line], part: _Slice, size: float) -> list[Line]:
    """Return the line above the middle of a pie; [] if there is none, or if it is the last of several lines. ``near``
    are words that may be the name of a slice, unless they are in larger type than ``size``.
    """
    above = [
        one
        for one in pieces
        if 0 <= part.y - part.radius - one.bottom < _TITLE * part.radius
        and abs(part.x - middle(one)) < part.radius + (one.x1 - one.x0) / 2
        and (one not in near or one.type_size > _LARGER * size)
    ]
    last = max(above, key=lambda one: one.bottom, default=None)
    if last is None or abs(middle(last) - part.x) > _TITLE_ASIDE * part.radius or CAPTION.match(last.text):
        return []
    return [] if any(_is_over(one, last) for one in pieces) else [last]


def _box(pieces: Sequence[Line]) -> Box:
    return (
        min(one.x0 for one in pieces),
        max(one.x1 for one in pieces),
        min(one.top for one in pieces),
        max(one.bottom for one in pieces),
    )


def _nearest(pie: Sequence[_Slice], labels: Sequence[list[Line]]) -> dict[int, list[Line]]:
    """Return the name of each slice: the only one that is nearer to it than to any other slice."""
    names: dict[int, list[list[Line]]] = {}
    for label in labels:
        row = [part.aside(_box(label)) for part in pie]
        height = label[0].height
        first, second = sorted([*row, math.inf])[:2]
        if first <= _ASIDE * height and second - first >= _NEARER * height:
            names.setdefault(row.index(first), []).append(label)
    return {at: some[0] for at, some in names.items() if len(some) == 1}


def _fitting(pie: Sequence[_Slice], numbers: Sequence[list[Line]]) -> dict[int, list[Line]]:
    """Return the number of each slice, the nearest first. A number is only given to a slice of its size."""
    values = [number[-1].text.rstrip("% ") for number in numbers]
    total = 100.0
    if not any("%" in number[-1].text for number in numbers):
        total = sum(float(value.replace(",", ".")) for value in values) or math.inf
    pairs = sorted(
        (part.aside(_box(numbers[of])), of, at)
        for of, value in enumerate(values)
        for at, part in enumerate(pie)
        if part.fits(value, total)
    )
    given: dict[int, int] = {}
    for away, of, at in pairs:
        if away < math.inf and at not in given and of not in given.values():
            given[at] = of
    return {at: numbers[of] for at, of in given.items()}


def _legend(
    pieces: Sequence[Line], pie: Sequence[_Slice], page: pdfium.PdfPage, paths: Sequence[Path]
) -> dict[int, list[Line]]:
    """Return the names of a legend, which has them beside the colours of the slices; {} if not all of them."""
    colours = {one.colour: at for at, one in enumerate(pie)}
    turn, names = turned(page), dict[int, list[Line]]()
    if len(colours) < len(pie):
        return {}
    for item, *edges in paths[:_MOST_PATHS]:
        x0, x1, top, bottom = turn(*edges)
        if x1 - x0 > _SMALLEST or bottom - top > _SMALLEST or (at := colours.get(pdf_calls.colour_of(item))) is None:
            continue
        y = (top + bottom) / 2
        beside = [one for one in pieces if one.top < y < one.bottom and 0 < one.x0 - x1 < _SWATCH * one.height]
        if beside and bottom - top < _SWATCH * beside[0].height:
            names.setdefault(at, [min(beside, key=lambda one: one.x0)])
    return names if len(names) == len(pie) else {}
