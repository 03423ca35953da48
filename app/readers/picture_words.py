"""Puts the words that were recognised in a picture (``app.readers.ocr``) into the order in which a person reads them:
the title, an axis with its name, legends, labels and the rows of tables. Runs only in the child process
(``app.readers.child``).

Finds the place of these words in a page's text, where they are a paragraph ``[picture: ...]`` with one line for each
row. Knows nothing of the file that has the picture.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from app.readers.layout import Line, reflow
from app.readers.locating import folded, locate
from app.readers.pdf_grids import Box as PageBox
from app.readers.pdf_lines import recognised_lines
from app.readers.recognised import Box, RecognisedLine, RecognisedPage, bracketed, pieces_of

Shows = Callable[[Box], bool]
"""Whether a box (x0, y0, x1, y1) of a picture, as fractions of it, has words that are no text of the page."""

_VALUE = re.compile(r"[<>≤≥~≈$€£¥]?\s?[-+−–]?\d[\d.,\s]*\s?(?:%|°C?|[kKMB]|bn|m)?")  # matches a mark of an axis
_NOT_OF_VALUE = re.compile(r"[^\d.\-−–]")
_FEWEST_MARKS = 3  # minimum marks of an axis
_EVEN = 0.2  # maximum difference of a distance between two marks of an axis from the median, as a share of it
_ALIGNED = 0.6  # maximum distance, in line heights, between the edges or middles of aligned words
_STACKED = 0.7  # maximum gap, in line heights, between lines one below the other that belong together
_SENTENCE = 5.0  # minimum mean words of a line in a picture of text
_LEVEL = 0.6  # minimum vertical overlap of two words in a row, as a share of the smaller height
_UPRIGHT = 1.5  # minimum ratio of height to width of words that run upwards or downwards
_STRAIGHT = (
    0.2  # maximum distance between the middles of a number and its column's name, as a share of two columns' gap
)
_BAR = " | "  # the separator of a row's cells
_CAPTION_REACH = 60.0  # maximum distance in points between a picture and its caption
_CAPTION = re.compile(
    r"(?:fig(?:ure)?|abb(?:ildung)?|chart|graph|grafik|schaubild|diagram\w?|exhibit|table|tabelle|tab|image|bild|photo"
    r"|plate|map|karte|scheme|box|figura|tableau)\b\.?\s?(?:\d|[IVX]+\b|[A-Z]\b)",
    re.I,
)  # matches the beginning of a caption
_LABEL = 3  # maximum words of the name of an axis mark
_TICK = re.compile(r"(?<=\w)[-–—_]$")  # matches a drawn mark that was read as a hyphen
_AXIS_REACH = 8.0  # maximum distance, in line heights, between an axis and the name beside it


@dataclass
class _Group:
    """Pieces that are read together. ``top`` and ``x0`` decide when."""

    top: float
    x0: float
    text: str


@dataclass
class _Name:
    """Words that run upwards, such as the name of an axis. ``x`` is their middle."""

    text: str
    x: float
    top: float
    bottom: float


def words_of(record: dict[str, Any], shows: Shows = lambda box: True) -> str:
    """Return the words of a picture in reading order, one line for each row; "" if it has none.

    Args:
        record: the picture's record, as ``app.readers.ocr.recognise_picture`` made it.
        shows: tells which words count; the page's own text may stand on the picture.
    """
    page = RecognisedPage.from_json(record)
    width, height = page.size
    page.lines = [
        line
        for line in page.lines
        if shows((line.words[0].x0 / width, line.top / height, line.words[-1].x1 / width, line.bottom / height))
    ]
    if not page.lines:
        return ""
    for line in page.lines:
        if len(line.words) <= _LABEL:  # the mark of an axis stands close behind its name
            line.words[-1] = replace(line.words[-1], text=_TICK.sub("", line.words[-1].text))
    sideways = _names_of_axes([line for line in page.lines if _is_sideways(line)])
    upright = [line for line in page.lines if not _is_sideways(line)]
    page.lines = upright
    pieces = pieces_of(page) if upright else []
    axes = _axes(pieces)
    if not axes and not sideways:
        lines = recognised_lines(page)
        is_prose = sum(len(line.text.split()) for line in lines) >= _SENTENCE * len(lines)
        if is_prose or any(line.row for line in lines):
            return re.sub(r"\n{2,}", "\n", reflow(lines, Counter()))
    return "\n".join(group.text for group in _groups(pieces, axes, sideways))


def _is_sideways(line: RecognisedLine) -> bool:
    wide = line.words[-1].x1 - line.words[0].x0
    return line.bottom - line.top > _UPRIGHT * wide and len(line.words[0].text) > 2


def _names_of_axes(lines: Sequence[RecognisedLine]) -> list[_Name]:
    """Join words that run upwards one after the other."""
    found: list[_Name] = []
    for line in sorted(lines, key=lambda line: -line.bottom):
        x0, x1, text = line.words[0].x0, line.words[-1].x1, " ".join(word.text for word in line.words)
        wide = x1 - x0
        last = next(
            (one for one in found if abs(one.x - (x0 + x1) / 2) < wide / 2 and one.top - line.bottom < wide), None
        )
        if last is None:
            found.append(_Name(text, (x0 + x1) / 2, line.top, line.bottom))
        else:
            last.text, last.top = f"{last.text} {text}", line.top
    return found


def _middle(piece: Line) -> float:
    return (piece.x0 + piece.x1) / 2


_EDGES: tuple[Callable[[Line], float], ...] = (lambda one: one.x1, lambda one: one.x0, _middle)


def _axes(pieces: Sequence[Line]) -> list[list[Line]]:
    """Find the marks of vertical axes: numbers one above the other, evenly spaced, whose values are evenly spaced
    too or grow by a factor, and beside which no row of a table stands.
    """
    found: list[list[Line]] = []
    marks = sorted((one for one in pieces if _VALUE.fullmatch(one.text)), key=lambda one: one.top)
    for first in marks:
        if any(first is one for axis in found for one in axis):
            continue
        columns = [[one for one in marks if abs(edge(one) - edge(first)) < _ALIGNED * first.height] for edge in _EDGES]
        if axes := [column for column in columns if _is_axis(column, pieces)]:
            found.append(max(axes, key=len))
    return found


def _is_axis(column: Sequence[Line], pieces: Sequence[Line]) -> bool:
    if len(column) < _FEWEST_MARKS:
        return False
    distances = [two.top - one.top for one, two in pairwise(column)]
    usual = sorted(distances)[len(distances) // 2]
    if any(abs(distance - usual) > _EVEN * usual for distance in distances):
        return False
    beside = sum(any(one is not other and _overlap(one, other) > _LEVEL for other in pieces) for one in column)
    values = [_value(one.text) for one in column]
    steps = [two - one for one, two in pairwise(values)]
    even = max(steps) - min(steps) <= 1e-6 + 0.02 * max(map(abs, steps)) and steps[0] != 0
    ratios = [two / one for one, two in pairwise(values)] if all(values) else []
    grows = bool(ratios) and max(ratios) - min(ratios) <= 0.02 * max(ratios) and ratios[0] != 1
    # numbers of a table that happen to be evenly spaced have other cells beside them
    return (even or grows) and (2 * beside <= len(column) or (steps[0] < 0 and beside < len(column)))


def _value(text: str) -> float:
    plain = _NOT_OF_VALUE.sub("", text.replace(",", "")).replace("−", "-").replace("–", "-")
    try:
        return float(plain)
    except ValueError:
        return 0.0


def _groups(pieces: Sequence[Line], axes: Sequence[Sequence[Line]], sideways: Sequence[_Name]) -> list[_Group]:
    """Return what is read together, in reading order. The name of an axis stands before its marks, which are listed
    from the lowest.
    """
    groups: list[_Group] = []
    placed: set[int] = set()
    for axis in axes:
        placed |= {id(one) for one in axis}
        top, left, height = axis[0].top, min(one.x0 for one in axis), axis[0].height
        text = ", ".join(one.text for one in reversed(axis))
        near = [one for one in sideways if id(one) not in placed and abs(one.x - left) < _AXIS_REACH * height]
        if near and (name := min(near, key=lambda one: abs(one.x - left))).bottom > top:
            placed.add(id(name))
            text = f"{name.text}: {text}"
        groups.append(_Group(top - height / 2, left, text))
    groups += [_Group(one.top, one.x, one.text) for one in sideways if id(one) not in placed]
    rest = sorted((one for one in pieces if id(one) not in placed), key=lambda one: (one.top, one.x0))
    labels = _labelled(rest)
    rest = [one for one in rest if id(one) not in {id(label) for label in labels.values()}]
    while rest:
        row = [one for one in rest if _overlap(one, rest[0]) > _LEVEL]
        block = _stack(rest, row[0]) if len(row) == 1 else row
        rest = [one for one in rest if not any(one is other for other in block)]
        if len(row) == 1:
            joint = " " if len(block) > 1 and abs(block[0].x0 - block[1].x0) >= _ALIGNED * block[0].height else "\n"
        else:
            block, joint = sorted(row, key=lambda one: one.x0), ", "
        texts = [f"{one.text}: {labels[id(one)].text}" if id(one) in labels else one.text for one in block]
        groups.append(_Group(block[0].top, block[0].x0, joint.join(texts)))
    return sorted(groups, key=lambda group: (group.top, group.x0))


def _labelled(pieces: Sequence[Line]) -> dict[int, Line]:
    """Return the numbers above the names of a chart's columns, keyed by the ``id`` of the name's piece. The names are
    the lowest row of several pieces; the number of a column stands straight above its name.
    """
    rows = [[one for one in pieces if _overlap(one, low) > _LEVEL] for low in reversed(pieces)]
    names = sorted(next((row for row in rows if len(row) >= _FEWEST_MARKS), []), key=lambda one: one.x0)
    if not names:
        return {}
    apart = min(_middle(two) - _middle(one) for one, two in pairwise(names))
    found: dict[int, Line] = {}
    for name in names:
        above = [
            one
            for one in pieces
            if abs(_middle(one) - _middle(name)) < _STRAIGHT * apart
            and one.bottom <= name.top
            and _VALUE.fullmatch(one.text)
        ]
        if len(above) == 1:
            found[id(name)] = above[0]
    return found if 2 * len(found) > len(names) else {}


def _stack(pieces: Sequence[Line], first: Line) -> list[Line]:
    """Return a piece and the pieces one below the other beneath it: the entries of a legend, or a label of several
    lines.
    """
    found = [first]
    for one in pieces:
        last = found[-1]
        aligned = min(abs(one.x0 - first.x0), abs(one.x0 + one.x1 - first.x0 - first.x1) / 2)
        near = (
            0 <= (one.top + one.bottom - last.top - last.bottom) / 2 - last.height / 2 < last.height * (0.5 + _STACKED)
        )
        alone = not any(other is not one and _overlap(one, other) > _LEVEL for other in pieces)
        if one is not first and near and alone and aligned < _ALIGNED * first.height:
            found.append(one)
    return found


def _overlap(one: Line, two: Line) -> float:
    return (min(one.bottom, two.bottom) - max(one.top, two.top)) / min(one.height, two.height)


def with_words(text: str, placed: Sequence[tuple[str, str, bool]]) -> str:
    """Insert the words of pictures into a page's text, each as a paragraph.

    Args:
        text: the page's text.
        placed: of each picture, in reading order: its words, the line of the page beside which they belong ("" for
            the end of the page), and whether they stand before the paragraph of this line instead of after it.
    """
    signs = [(sign, at) for at, letter in enumerate(text) for sign in folded(letter)]
    letters = "".join(sign for sign, _ in signs)
    found: list[tuple[int, str]] = []
    for words, line, is_before in placed:
        span = locate(letters, folded(line)) if line else None
        at = len(text)
        if span is not None:
            at = _break(text, signs[span[0]][1] if is_before else signs[span[1] - 1][1], is_before=is_before)
        found.append((at, bracketed(words)))
    found.sort(key=lambda one: one[0])
    for at, words in reversed(found):
        before, after = text[:at].rstrip("\n"), text[at:].lstrip("\n")
        text = "\n\n".join(filter(None, (before, words, after)))
    return text


def _break(text: str, at: int, *, is_before: bool) -> int:
    """Return the end of the line in which the position ``at`` is, or its start if ``is_before``. A table is not cut."""
    start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
    end = len(text) if end < 0 else end
    if is_before:
        return start
    after = text[end + 1 :].split("\n", 1)[0]
    if _BAR in text[start:end] and _BAR in after:
        end = text.find("\n\n", end)
    return len(text) if end < 0 else end


def on_page(record: dict[str, Any] | None, box: PageBox, lines: Sequence[Line]) -> tuple[str, str, bool] | None:
    """Return the words of a picture on a page of a PDF and where they belong, as ``with_words`` takes them; None if the
    picture has no words beside the page's own text.

    Args:
        record: as of ``words_of``.
        box: the picture on the page as (x0, x1, top, bottom).
        lines: the page's lines that are shown.
    """
    words = words_of(record, lambda part: not _is_printed(part, box, lines)) if record else ""
    return (words, *_anchor(box, lines)) if words else None


def _anchor(box: PageBox, lines: Sequence[Line]) -> tuple[str, bool]:
    """Return the line of a page beside which the words of a picture belong, and whether they stand before the paragraph
    of this line. The line is the picture's caption, or else the last one above the picture, or the first one below; ""
    if there is none.

    Args:
        box: the picture on the page as (x0, x1, top, bottom).
        lines: the page's lines that are shown.
    """
    x0, x1, top, bottom = box
    beside = [line for line in lines if line.x0 < x1 and line.x1 > x0 and len(line.text) > 1]
    below = [line for line in beside if line.top > bottom - line.height / 2]
    above = [line for line in beside if line.bottom < top + line.height / 2]
    captions = [(line.top - bottom, line) for line in below] + [(top - line.bottom, line) for line in above]
    near = [(gap, line) for gap, line in captions if gap < _CAPTION_REACH and _CAPTION.match(line.text)]
    if near:
        return min(near, key=lambda one: one[0])[1].text, False
    if above:
        return max(above, key=lambda line: line.bottom).text, False
    return (min(below, key=lambda line: line.top).text, True) if below else ("", False)


def _is_printed(part: Box, box: PageBox, lines: Sequence[Line]) -> bool:
    """Whether words of a picture are text of the page that stands on the picture.

    Args:
        part: the place of the words (x0, y0, x1, y1) as fractions of the picture.
        box: the picture on the page as (x0, x1, top, bottom).
        lines: the page's lines that are shown.
    """
    x0, x1, top, bottom = box
    x, y = x0 + (part[0] + part[2]) / 2 * (x1 - x0), top + (part[1] + part[3]) / 2 * (bottom - top)
    return any(line.x0 <= x <= line.x1 and line.top <= y <= line.bottom for line in lines)
