"""Puts the words of a chart into the order in which a person reads them: the title, an axis with its name, legends,
labels, numbers with the names of their columns. Runs only in the child process (``app.readers.child``).

The words are recognised in a picture (``app.readers.picture_words``) or stand on a PDF's page
(``app.readers.pdf_charts``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from app.readers.layout import Line

VALUE = re.compile(
    r"[<>≤≥~≈$€£¥]?\s?[-+−–]?\d[\d.,\s]*\s?(?:%|°C?|[kKMB]|bn|m|\^[-−]?\d{1,3})?"
)  # matches a mark of an axis
_POWER = re.compile(r"\^[-−]?\d{1,3}")
_TOUCH = 0.2  # maximum gap, in line heights, between a mark and its power
_NOT_OF_VALUE = re.compile(r"[^\d.\-−–]")
FEWEST_MARKS = 3  # minimum marks of an axis
_EVEN = 0.2  # maximum difference of a distance between two marks of an axis from the median, as a share of it
_ALIGNED = 0.6  # maximum distance, in line heights, between the edges or middles of aligned words
_STACKED = 0.7  # maximum gap, in line heights, between lines one below the other that belong together
_LEVEL = 0.6  # minimum vertical overlap of two words in a row, as a share of the smaller height
_AXIS_REACH = 8.0  # maximum distance, in line heights, between an axis and the name beside it
_HIGHEST_POWER = 100.0  # powers of marks beyond it count as this one
_STRAIGHT = (
    0.2  # maximum distance between the middles of a number and its column's name, as a share of two columns' gap
)


@dataclass
class Group:
    """Pieces that are read together. ``top`` and ``x0`` decide when."""

    top: float
    x0: float
    text: str


@dataclass
class AxisName:
    """Words that run upwards, such as the name of an axis. ``x`` is their middle."""

    text: str
    x: float
    top: float
    bottom: float


def middle(piece: Line) -> float:
    return (piece.x0 + piece.x1) / 2


_EDGES: tuple[Callable[[Line], float], ...] = (lambda one: one.x1, lambda one: one.x0, middle)


def axes_of(pieces: Sequence[Line]) -> list[list[Line]]:
    """Find the marks of vertical axes: numbers one above the other, evenly spaced, whose values are evenly spaced
    too or grow by a factor, and beside which no row of a table stands.
    """
    found: list[list[Line]] = []
    marks = sorted((one for one in pieces if VALUE.fullmatch(one.text)), key=lambda one: one.top)
    places = [[edge(one) for one in marks] for edge in _EDGES]
    for at, first in enumerate(marks):
        if any(first is one for axis in found for one in axis):
            continue
        near = _ALIGNED * first.height
        columns = [
            [one for one, place in zip(marks, row, strict=True) if abs(place - row[at]) < near] for row in places
        ]
        if axes := [column for column in columns if _is_axis(column, pieces)]:
            found.append(max(axes, key=len))
    return found


def _is_axis(column: Sequence[Line], pieces: Sequence[Line]) -> bool:
    if len(column) < FEWEST_MARKS:
        return False
    distances = [two.top - one.top for one, two in pairwise(column)]
    usual = sorted(distances)[len(distances) // 2]
    if any(abs(distance - usual) > _EVEN * usual for distance in distances):
        return False
    values = [_value(one.text) for one in column]
    if not _are_steps(values):
        return False
    # numbers of a table that happen to be evenly spaced have other cells beside them
    beside = sum(
        any(one.top < other.bottom and other.top < one.bottom and _is_beside(one, other) for other in pieces)
        for one in column
    )
    return 2 * beside <= len(column) or (values[0] > values[1] and beside < len(column))


def _are_steps(values: Sequence[float]) -> bool:
    """Whether values are evenly spaced, or grow by a factor."""
    steps = [two - one for one, two in pairwise(values)]
    if max(steps) - min(steps) <= 1e-6 + 0.02 * max(map(abs, steps)) and steps[0] != 0:
        return True
    ratios = [two / one for one, two in pairwise(values)] if all(values) else []
    return bool(ratios) and max(ratios) - min(ratios) <= 0.02 * max(ratios) and ratios[0] != 1


def _value(text: str) -> float:
    base, power = text.rpartition("^")[::2]
    if base:  # a mark of an axis that grows by a factor, such as 10^3
        return float(_value(base) ** min(max(_value(power), -_HIGHEST_POWER), _HIGHEST_POWER)) if _value(base) else 0.0
    plain = _NOT_OF_VALUE.sub("", text.replace(",", "")).replace("−", "-").replace("–", "-")
    try:
        return float(plain)
    except ValueError:
        return 0.0


def grouped(pieces: Sequence[Line], axes: Sequence[Sequence[Line]], sideways: Sequence[AxisName]) -> list[Group]:
    """Return what is read together, in reading order. The name of an axis stands before its marks, which are listed
    from the lowest.
    """
    groups: list[Group] = []
    placed: set[int] = set()
    for axis in axes:
        placed |= {id(one) for one in axis}
        top, left, height = axis[0].top, min(one.x0 for one in axis), axis[0].height
        text = ", ".join(one.text for one in reversed(axis))
        near = [one for one in sideways if id(one) not in placed and abs(one.x - left) < _AXIS_REACH * height]
        if near and (name := min(near, key=lambda one: abs(one.x - left))).bottom > top:
            placed.add(id(name))
            text = f"{name.text}: {text}"
        groups.append(Group(top - height / 2, left, text))
    groups += [Group(one.top, one.x, one.text) for one in sideways if id(one) not in placed]
    rest = sorted((one for one in pieces if id(one) not in placed), key=lambda one: (one.top, one.x0))
    labels = _labelled(rest)
    rest = [one for one in rest if id(one) not in {id(label) for label in labels.values()}]
    while rest:
        row = [one for one in rest if one is rest[0] or _overlap(one, rest[0]) > _LEVEL]
        block = _stack(rest, row[0]) if len(row) == 1 else row
        rest = [one for one in rest if not any(one is other for other in block)]
        if len(row) == 1:
            joint = " " if len(block) > 1 and abs(block[0].x0 - block[1].x0) >= _ALIGNED * block[0].height else "\n"
        else:
            block, joint = sorted(row, key=lambda one: one.x0), ", "
        texts = [f"{one.text}: {labels[id(one)].text}" if id(one) in labels else one.text for one in block]
        groups.append(Group(block[0].top, block[0].x0, joint.join(texts)))
    return sorted(groups, key=lambda group: (group.top, group.x0))


def _labelled(pieces: Sequence[Line]) -> dict[int, Line]:
    """Return the numbers above the names of a chart's columns, keyed by the ``id`` of the name's piece. The names are
    the lowest row of several pieces; the number of a column stands straight above its name.
    """
    rows = [[one for one in pieces if _overlap(one, low) > _LEVEL] for low in reversed(pieces)]
    names = sorted(next((row for row in rows if len(row) >= FEWEST_MARKS), []), key=lambda one: one.x0)
    if not names:
        return {}
    apart = min(middle(two) - middle(one) for one, two in pairwise(names))
    numbers: dict[int, Line] = {}
    for name in names:
        above = [
            one
            for one in pieces
            if abs(middle(one) - middle(name)) < apart / 2 and one.bottom <= name.top and VALUE.fullmatch(one.text)
        ]
        if len(above) > 1:
            return {}  # the columns of several series stand over each name
        if above and abs(middle(above[0]) - middle(name)) < _STRAIGHT * apart:
            numbers[id(name)] = above[0]
    return numbers if 2 * len(numbers) > len(names) else {}


def bars(pieces: Sequence[Line], marks: Sequence[Line], names: Sequence[Line]) -> list[Group]:
    """Return what is read together of a chart with horizontal bars, in reading order. A bar has its number only if each
    bar has one, and no number is left over.

    Args:
        pieces: the other words of the chart.
        marks: the marks of the axis of numbers, from the left.
        names: the names of the bars.
    """
    left, right = marks[0].x0, marks[-1].x1
    numbers = [one for one in pieces if VALUE.fullmatch(one.text) and one.bottom <= marks[0].top]
    beside = [[one for one in numbers if _overlap(one, name) > _LEVEL] for name in names]
    sure = len(numbers) == len(names) and all(len(row) == 1 for row in beside)
    titles = [one for one in pieces if one.top > marks[0].bottom - one.height / 2 and left <= middle(one) <= right]
    title = min(titles, key=lambda one: one.top) if titles else None
    text = ", ".join(one.text for one in marks)
    top = min(name.top for name in names)
    groups = [Group(top - marks[0].height / 2, left, f"{title.text}: {text}" if title else text)]
    for name, row in zip(names, beside, strict=True):
        groups.append(Group(name.top, name.x0, f"{name.text}: {row[0].text}" if sure else name.text))
    used = {id(title), *map(id, numbers)}
    if numbers and not sure:
        bottom = max(name.bottom for name in names)
        groups.append(Group(bottom, left, ", ".join(one.text for one in sorted(numbers, key=lambda one: one.top))))
    groups += grouped([one for one in pieces if id(one) not in used], [], [])
    return sorted(groups, key=lambda group: (group.top, group.x0))


def row_of_marks(pieces: Sequence[Line]) -> list[Line]:
    """Return the marks of a horizontal axis among pieces in one row, from the left: evenly spaced numbers whose values
    are evenly spaced too, or grow by a factor; [] if there are none.
    """
    marks = sorted((one for one in pieces if VALUE.fullmatch(one.text)), key=middle)
    if len(marks) < FEWEST_MARKS or len(marks) < len(pieces):
        return []
    distances = [middle(two) - middle(one) for one, two in pairwise(marks)]
    usual = sorted(distances)[len(distances) // 2]
    even = all(abs(distance - usual) <= _EVEN * usual for distance in distances)
    return marks if even and _are_steps([_value(one.text) for one in marks]) else []


def with_powers(pieces: Sequence[Line]) -> list[Line]:
    """Join the marks of an axis that grows by a factor, such as 10^3, whose power is a piece of its own."""
    joined: list[Line] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        joins = last is not None and _POWER.fullmatch(piece.text) and VALUE.fullmatch(last.text)
        if last is not None and joins and abs(piece.x0 - last.x1) < _TOUCH * last.height and _overlap(last, piece) > 0:
            joined[-1] = replace(last, text=f"{last.text}{piece.text}", x1=piece.x1, words=[*last.words, *piece.words])
        else:
            joined.append(piece)
    return joined


def _stack(pieces: Sequence[Line], first: Line) -> list[Line]:
    """Return a piece and the pieces one below the other beneath it: the entries of a legend, or a label of several
    lines.
    """
    stack = [first]
    for one in pieces:
        last = stack[-1]
        aligned = min(abs(one.x0 - first.x0), abs(one.x0 + one.x1 - first.x0 - first.x1) / 2)
        near = (
            0 <= (one.top + one.bottom - last.top - last.bottom) / 2 - last.height / 2 < last.height * (0.5 + _STACKED)
        )
        alone = not any(other is not one and _overlap(one, other) > _LEVEL for other in pieces)
        if one is not first and near and alone and aligned < _ALIGNED * first.height:
            stack.append(one)
    return stack


def _is_beside(one: Line, other: Line) -> bool:
    return one is not other and _overlap(one, other) > _LEVEL


def _overlap(one: Line, two: Line) -> float:
    return (min(one.bottom, two.bottom) - max(one.top, two.top)) / min(one.height, two.height)
