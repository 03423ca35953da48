"""Writes the limits of sums, products, integrals and the like of a PDF page on one line, such as "∑_(i=1)^n". Runs only
in the child process (``app.readers.child``).

pdfium returns the limits after the sign, each on a line of its own, so that they would be read as text between the sign
and what is summed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.readers import formulas
from app.readers.pdf_grids import Box
from app.readers.pdf_signs import BREAK, CharacterBoxes, NewText

_SIGNS = "∏∐∑∫∬∭∮⋀⋁⋂⋃⨀⨁⨂⨄"
_WORDS = ("lim", "max", "min", "sup", "inf")  # pdfium puts what stands under such a word on a line of its own
_SIGN = re.compile(rf"[{_SIGNS}](?=\s{{0,2}}\S)")
_SIGN_OR_WORD = re.compile(rf"{_SIGN.pattern}|\b(?:arg ?)?(?:{'|'.join(_WORDS)})(?=\r\n\S)")
# matches what stands under a word such as "lim", not the unit under "max." in the head of a table
_UNDER_WORD = re.compile(r"[→∈=<>≤≥⊂∞|]|^\w$")
_MOST = 4  # maximum rows of the limits of a sign
_NEXT_ROW = 0.6  # maximum distance between two rows of a limit, in heights of a row
_LONGEST = 40  # maximum characters of a limit
_SIDE = 0.12  # minimum distance of a limit's middle from the sign's, in heights of the sign
_FAR_SIDE = 1.6  # maximum distance of a limit's middle from the sign's, in heights of the sign
_SMALLER = 0.8  # maximum height of a limit, as a share of the height of the text in which the sign stands
_CENTRED = 0.3  # maximum distance of a limit's middle from the sign's to the left or right, in heights of the sign
_BESIDE = 0.6  # maximum gap between a sign and the limit at its right, in heights of the text
_IN_FRACTION = 1.5  # maximum distance of the middle of a sign in a fraction from the bar, in heights of the sign
_ROW = 0.35  # maximum distance of the middle of the text in which the sign stands from the sign's, in its heights


@dataclass(frozen=True)
class _Written:
    """A sign with its limits, written on one line as ``text``. It replaces the characters of the page from ``start`` up
    to ``end``. ``box`` is the place of the sign, on the height of the text beside it.
    """

    start: int
    end: int
    text: str
    box: Box


def with_limits(text: str, boxes: CharacterBoxes, bars: Sequence[Box] | None = None) -> str:
    """Return the text of a page with the limits of each sign on one line. Renumber ``boxes`` to match the new text.

    Args:
        text: the page's text.
        boxes: boxes of its characters.
        bars: fraction bars; only signs above or below one of them are examined. None to examine all signs.
    """
    # few pages have such a word at the end of a line
    pattern = _SIGN_OR_WORD if any(f"{word}{BREAK}" in text for word in _WORDS) else _SIGN
    written = list(_all(text, pattern, boxes, bars)) if boxes.upright and bars != [] else []
    if not written:
        return text
    new = NewText(text)
    for one in written:
        new.keep(one.start)
        new.write(one.text, one.start, one.box)
        new.write(" ", one.start)
        new.at = one.end
    return new.end(boxes)


def _all(text: str, pattern: re.Pattern[str], boxes: CharacterBoxes, bars: Sequence[Box] | None) -> Iterator[_Written]:
    end = 0
    for match in pattern.finditer(text):
        if bars is not None and not _is_in_fraction(boxes.span(match.start(), match.end() - 1), bars):
            continue
        written = _written(text, match, boxes) if match.start() >= end else None
        if written is not None:
            yield written
            end = written.end


def _is_in_fraction(sign: Box | None, bars: Sequence[Box]) -> bool:
    """Whether a sign stands above or below a fraction bar, as near as in a numerator or denominator."""
    if sign is None:
        return False
    x, y, reach = (sign[0] + sign[1]) / 2, (sign[2] + sign[3]) / 2, _IN_FRACTION * (sign[3] - sign[2])
    return any(bar[0] < x < bar[1] and abs((bar[2] + bar[3]) / 2 - y) < reach for bar in bars)


def _written(text: str, match: re.Match[str], boxes: CharacterBoxes) -> _Written | None:
    """Return the sign with its limits; None if it has none."""
    sign = boxes.span(match.start(), match.end() - 1)
    if sign is None or sign[3] - sign[2] < 1:
        return None
    parts, places, end = _limits(text, boxes, match.end(), sign)
    start = _begun_before(text, boxes, match.start(), sign, places[-1]) if -1 in parts else match.start()
    beside = _beside(text, boxes, start, end, sign) if parts else {}
    height = max((box[3] - box[2] for box in beside.values()), default=0.0)
    if not beside or not all(_belongs(limit, sign, height) for limit in places.values()):
        return None
    if match[0][0].isalpha() and (-1 in parts or not _UNDER_WORD.search(parts[1])):
        return None
    while end < len(text) and text[end].isspace():
        end += 1
    over = text[start : match.start()].strip() + parts.get(-1, "")
    written = formulas.with_limits(match[0], parts.get(1, ""), over)
    first = min(beside)
    if first < start - 1:
        start, written = first + 1, f" {written}"
    _, _, top, bottom = next((box for at, box in beside.items() if text[at].isalnum()), beside[first])
    return _Written(start, end, written, (sign[0], sign[1], top, bottom))


def _limits(text: str, boxes: CharacterBoxes, end: int, sign: Box) -> tuple[dict[int, str], dict[int, Box], int]:
    """Return the limits of the sign that ends at ``end``, their boxes, both keyed by their side, and their end."""
    parts: dict[int, str] = {}
    places: dict[int, Box] = {}
    for _ in range(_MOST):
        start = end
        while start < len(text) and text[start].isspace():
            start += 1
        side = _side(boxes, start, sign) if start < len(text) else 0
        if not side or (side in parts and side < 0):
            break
        last = _end(text, boxes, start, sign, side)
        box = boxes.span(start, last - 1)
        if box is None or last - start > _LONGEST:
            break
        words = " ".join(text[start:last].split())
        if side in parts:  # a limit of several rows
            above = places[side]
            height = above[3] - above[2]
            if abs(box[2] - above[3]) > _NEXT_ROW * height or box[3] - box[2] > height / _SMALLER:
                break
            words, box = f"{parts[side]}, {words}", above
        parts[side], places[side], end = words, box, last
    return parts, places, end


def _side(boxes: CharacterBoxes, at: int, sign: Box) -> int:
    """Return 1 for a character below the middle of a sign, -1 for one above it, 0 for one beside it or far away."""
    one = boxes.span(at, at)
    if one is None:
        return 0
    away = ((one[2] + one[3]) - (sign[2] + sign[3])) / 2 / (sign[3] - sign[2])
    if not _SIDE < abs(away) < _FAR_SIDE:
        return 0
    return 1 if away > 0 else -1


def _end(text: str, boxes: CharacterBoxes, start: int, sign: Box, side: int) -> int:
    """Return the end of the limit that begins at ``start``: of the characters at the same side of the sign."""
    end = start + 1
    row = boxes.span(start, start)
    while end < len(text) and end - start <= _LONGEST:
        if text[end].isspace():
            if text[end] in "\r\n" or _side(boxes, min(end + 1, len(text) - 1), sign) != side:
                break
        elif _side(boxes, end, sign) != side:
            break
        here = boxes.span(end, end)
        if not text[end].isspace() and here and row and here[3] - here[2] > (row[3] - row[2]) / _SMALLER:
            break
        end += 1
    return end


def _beside(text: str, boxes: CharacterBoxes, start: int, end: int, sign: Box) -> dict[int, Box]:
    """Return the boxes of those characters before and after a sign that stand in its row, keyed by their index."""
    middle, height = (sign[2] + sign[3]) / 2, sign[3] - sign[2]
    beside = {}
    for order in (range(start - 1, -1, -1), range(end, len(text))):
        at = next((at for at in order if not text[at].isspace()), None)
        box = boxes.span(at, at) if at is not None else None
        if at is not None and box is not None and abs((box[2] + box[3]) / 2 - middle) < _ROW * height:
            beside[at] = box
    return beside


def _begun_before(text: str, boxes: CharacterBoxes, start: int, sign: Box, limit: Box) -> int:
    """Return the index at which an upper limit begins. If the limit is wider than the sign, pdfium returns its first
    characters before the sign, whose index is ``start``; otherwise return ``start``.
    """
    height = limit[3] - limit[2]
    while start and (box := boxes.span(start - 1, start - 1)) is not None and _side(boxes, start - 1, sign) < 0:
        if not 0 <= limit[0] - box[0] < _BESIDE * height + box[1] - box[0] or abs(box[2] - limit[2]) > height / 2:
            break
        start, limit = start - 1, box
    return start


def _belongs(limit: Box, sign: Box, height: float) -> bool:
    """Whether a limit is smaller than text of the given height, and stands over, under or right behind a sign."""
    if limit[3] - limit[2] > _SMALLER * height:
        return False
    centred = abs(limit[0] + limit[1] - sign[0] - sign[1]) / 2 < _CENTRED * (sign[3] - sign[2])
    return centred or (sign[0] + sign[1]) / 2 < limit[0] < sign[1] + _BESIDE * height
