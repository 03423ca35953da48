"""Holds the text that OCR recognised in a page's picture: lines with their positions on the upright, straightened page.

Puts these lines into reading order (``pieces_of``), and converts positions back to the picture (``rectangles``). Knows
nothing of the OCR engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from app.readers.layout import Line

Box = tuple[float, float, float, float]
"""(x0, y0, x1, y1), with y downwards."""

Placed = tuple[str, float, float]
"""A word with the x positions of its left and right edges."""

PICTURE = "[picture: "
"""Begins the paragraph with the words of a picture beside the text."""

_TAB = 1.2  # maximum gap, in line heights, within a run of words; a wider gap may separate columns or cells
# maximum ratio between the heights of two lines in the same type size, because the heights of detected boxes vary
_ALIKE = 1.25
_ROW = 0.5  # minimum vertical overlap of two pieces of text in one row, as a share of the smaller height
_COLUMN_ROWS = 6  # minimum lines of a column
_COLUMN_TEXT = 20  # minimum mean characters per line in a column of text; cells of tables have fewer
_EDGE = 0.25  # length, in line heights, by which a detected line may be too long at each end
_WORD_GAP = 0.75  # maximum gap, in line heights, between words of a sentence
_TITLE = 15  # a line across the gutter with fewer characters than this on either side is a title across both columns
_BINS = 400  # number of vertical strips into which a page is divided to search a gutter
# maximum share of lines that cross the gutter of a page; such lines are titles, or above or below the columns
_CROSSING = 0.4


@dataclass(frozen=True)
class Word:
    text: str
    x0: float
    x1: float


@dataclass(frozen=True)
class RecognisedLine:
    top: float
    bottom: float
    words: list[Word]


@dataclass
class RecognisedPage:
    """The recognised lines of a page, and how its picture was turned. Positions are in points, y downwards, on the page
    turned upright and then straightened about its centre.

    ``turns``: counterclockwise quarter turns that made the picture upright. ``slant``: slant of the lines on the
    upright page, in radians, clockwise. ``size``: width and height of the upright page in points. ``certainty``: the
    recogniser's mean certainty, 0 to 1. ``illegible``: number of lines that could not be read reliably, some of which
    are missing in ``lines``.
    """

    turns: int
    slant: float
    size: tuple[float, float]
    lines: list[RecognisedLine]
    certainty: float
    is_blank: bool = False  # True if no text was detected
    illegible: int = 0

    def straightened(self, x: float, y: float) -> tuple[float, float]:
        """Convert a point of the upright page to the straightened page, whose lines do not slant."""
        return self._swung(x, y, -self.slant)

    def on_picture(self, x: float, y: float) -> tuple[float, float]:
        """Convert a point of the straightened page to fractions of the page's picture, from its top left."""
        x, y = self._swung(x, y, self.slant)
        u, v = x / self.size[0], y / self.size[1]
        return ((u, v), (1 - v, u), (1 - u, 1 - v), (v, 1 - u))[self.turns % 4]

    def _swung(self, x: float, y: float, angle: float) -> tuple[float, float]:
        """Rotate a point around the middle of the page by ``angle``, in radians."""
        middle_x, middle_y = self.size[0] / 2, self.size[1] / 2
        dx, dy = x - middle_x, y - middle_y
        cosine, sine = math.cos(angle), math.sin(angle)
        return middle_x + dx * cosine - dy * sine, middle_y + dx * sine + dy * cosine

    def as_json(self) -> dict[str, Any]:
        return {
            "turns": self.turns,
            "slant": round(self.slant, 5),
            "size": [round(side, 2) for side in self.size],
            "certainty": round(self.certainty, 4),
            "blank": self.is_blank,
            "illegible": self.illegible,
            "lines": [
                [
                    round(line.top, 2),
                    round(line.bottom, 2),
                    [[word.text, round(word.x0, 2), round(word.x1, 2)] for word in line.words],
                ]
                for line in self.lines
            ],
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> RecognisedPage:
        """Read a page from JSON. Raises KeyError, TypeError or ValueError if the record is invalid."""
        lines = [
            RecognisedLine(float(top), float(bottom), [Word(str(text), float(x0), float(x1)) for text, x0, x1 in words])
            for top, bottom, words in record["lines"]
        ]
        width, height = record["size"]
        places = int(record["turns"]), float(record["slant"]), (float(width), float(height))
        return cls(*places, lines, float(record["certainty"]), bool(record["blank"]), illegible_lines(record))


def illegible_lines(record: dict[str, Any]) -> int:
    """Return the number of illegible lines from a page's record; 0 for a record of an earlier version, which did not
    count them.
    """
    return int(record.get("illegible", 0))


def bracketed(words: str) -> str:
    """Return the words of a picture beside the text as they stand in the text: a paragraph of their own."""
    return f"{PICTURE}{words}]"


def picture_at(text: str, start: int) -> str:
    """Return the paragraph with the words of a picture in which the position ``start`` of a page's text is; "" if it is
    in none.
    """
    begin = text.rfind("\n\n", 0, start + 1)
    begin = 0 if begin < 0 else begin + 2
    end = text.find("\n\n", start)
    paragraph = text[begin : len(text) if end < 0 else end]
    return paragraph if paragraph.startswith(PICTURE) else ""


def pieces_of(page: RecognisedPage) -> list[Line]:
    """Return the text of a page as runs of words without wide gaps. The runs are in reading order, column after
    column.
    """
    return _in_order(_of_one_size([piece for line in page.lines for piece in _pieces(line)]))


def _pieces(line: RecognisedLine) -> list[Line]:
    words = [(word.text, word.x0, word.x1) for word in line.words]
    return [_piece(run, line.top, line.bottom) for run in _parted(words, _TAB * (line.bottom - line.top))]


def _parted(words: Sequence[Placed], widest: float) -> list[list[Placed]]:
    """Split words into runs whose gaps are at most ``widest`` points."""
    runs: list[list[Placed]] = []
    for word in words:
        if runs and word[1] - runs[-1][-1][2] <= widest:
            runs[-1].append(word)
        else:
            runs.append([word])
    return runs


def _piece(words: Sequence[Placed], top: float, bottom: float) -> Line:
    gaps = [two[1] - one[2] for one, two in pairwise(words)] or [0.0]
    line = Line(" ".join(text for text, *_ in words), words[0][1], words[-1][2], top, bottom, size=bottom - top)
    line.words = list(words)
    line.first_gap, line.last_gap, line.widest_gap = gaps[0], gaps[-1], max(gaps)
    return line


def _of_one_size(pieces: list[Line]) -> list[Line]:
    """Give lines of similar height the same height. Each line keeps its centre."""
    sizes = [
        sorted(other.size for other in pieces if 1 / _ALIKE < other.size / piece.size < _ALIKE) for piece in pieces
    ]
    for piece, alike in zip(pieces, sizes, strict=True):
        middle, size = (piece.top + piece.bottom) / 2, alike[len(alike) // 2]
        piece.top, piece.bottom, piece.size = middle - size / 2, middle + size / 2, size
    return pieces


def _in_order(pieces: Sequence[Line]) -> list[Line]:
    """Put pieces of text in reading order: first the left column, then the right column, each row by row. At a piece
    across both columns, the columns above it end, and new columns begin below it.
    """
    gutter = _gutter(pieces)
    if gutter is None:
        return _in_rows(pieces)
    ordered: list[Line] = []
    left: list[Line] = []
    right: list[Line] = []
    for piece in sorted(pieces, key=lambda piece: piece.top):
        if _crosses(piece, gutter):
            ordered += _in_order(left) + _in_order(right) + [piece]
            left, right = [], []
            continue
        for column, words in zip((left, right), _sides(piece, gutter), strict=True):
            if words:
                column.append(_piece(words, piece.top, piece.bottom))
    return ordered + _in_order(left) + _in_order(right)


def _gutter(pieces: Sequence[Line]) -> float | None:
    """Return the x position of the gutter between two columns of text; None if there are no columns.

    The gutter is the middle of a vertical strip with columns on both sides. A strip that fewer lines cross is
    preferred, then a wider strip.
    """
    if len(pieces) < 2 * _COLUMN_ROWS:
        return None
    start, end = min(piece.x0 for piece in pieces), max(piece.x1 for piece in pieces)
    step = (end - start) / _BINS
    crossing = [0] * _BINS
    for piece in pieces:
        for x0, x1 in _runs(piece):
            for at in range(int((x0 - start) / step), min(_BINS, int((x1 - start) / step) + 1)):
                crossing[at] += 1
    for most in sorted({count for count in crossing if count <= _CROSSING * len(pieces)}):
        strips = _stretches([count <= most for count in crossing])
        for begin, after in sorted(strips, key=lambda strip: strip[0] - strip[1]):
            middle = start + step * (begin + after) / 2
            if _are_columns(pieces, middle):
                return middle
    return None


def _are_columns(pieces: Sequence[Line], gutter: float) -> bool:
    beside = [_sides(piece, gutter) for piece in pieces if not _crosses(piece, gutter)]
    for column in ([left for left, _ in beside if left], [right for _, right in beside if right]):
        letters = sum(len(text) + 1 for words in column for text, *_ in words)
        if len(column) < _COLUMN_ROWS or letters < _COLUMN_TEXT * len(column):
            return False
    return True


def _sides(piece: Line, gutter: float) -> tuple[list[Placed], list[Placed]]:
    """Return the words to the left of the gutter, and the words to the right of it."""
    left = [word for word in piece.words if word[1] + word[2] < 2 * gutter]
    return left, piece.words[len(left) :]


def _crosses(piece: Line, gutter: float) -> bool:
    if any(x0 < gutter < x1 for x0, x1 in _runs(piece)):
        return True
    left, right = _sides(piece, gutter)
    return bool(left and right) and max(sum(len(text) for text, *_ in side) for side in (left, right)) < _TITLE


def _runs(piece: Line) -> list[tuple[float, float]]:
    """Return the left and right edge of each run of words in a line. Runs are separated by wide gaps. A line has two
    runs if the recogniser has joined the lines of two columns.

    Each run is shortened at both ends, because detected boxes may be too long.
    """
    edge = _EDGE * piece.height
    runs = _parted(piece.words, _WORD_GAP * piece.height)
    return [(run[0][1] + edge, max(run[0][1], run[-1][2]) - edge) for run in runs]


def _stretches(flags: Sequence[bool]) -> list[tuple[int, int]]:
    """Return start and end of every run of true values."""
    edges = [at for at, (one, two) in enumerate(pairwise([False, *flags, False])) if one != two]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _in_rows(pieces: Sequence[Line]) -> list[Line]:
    rows: list[list[Line]] = []
    for piece in sorted(pieces, key=lambda piece: (piece.top, piece.x0)):
        row = rows[-1] if rows else None
        if row is not None and _overlap(row[-1], piece) > _ROW:
            row.append(piece)
        else:
            rows.append([piece])
    return [piece for row in rows for piece in sorted(row, key=lambda piece: piece.x0)]


def _overlap(one: Line, two: Line) -> float:
    return (min(one.bottom, two.bottom) - max(one.top, two.top)) / min(one.height, two.height)


def letters_of(page: RecognisedPage) -> list[tuple[str, Box]]:
    """Return every letter with its box on the straightened page, in reading order."""
    letters: list[tuple[str, Box]] = []
    for piece in pieces_of(page):
        for text, x0, x1 in piece.words:
            step = (x1 - x0) / len(text)
            letters += [
                (sign, (x0 + at * step, piece.top, x0 + (at + 1) * step, piece.bottom)) for at, sign in enumerate(text)
            ]
    return letters


def rectangles(page: RecognisedPage, boxes: Sequence[Box]) -> list[list[float]]:
    """Merge the boxes of consecutive letters into one box per line. Return the boxes as fractions of the page's
    picture, from its top left.
    """
    rows: list[Box] = []
    for box in boxes:
        if rows and rows[-1][1] == box[1] and box[0] >= rows[-1][0]:
            rows[-1] = (rows[-1][0], box[1], max(rows[-1][2], box[2]), box[3])
        else:
            rows.append(box)
    scaled = []
    for x0, top, x1, bottom in rows:
        points = [page.on_picture(x, y) for x, y in ((x0, top), (x1, top), (x1, bottom), (x0, bottom))]
        across, down = [point[0] for point in points], [point[1] for point in points]
        box = (min(across), min(down), max(across), max(down))
        scaled.append([round(min(max(value, 0.0), 1.0), 5) for value in box])
    return scaled
