"""Writes the roots of a PDF page on one line, such as "√(x + 1)". Runs only in the child process
(``app.readers.child``).

Without the line above what stands in a root, "√x + 1" and "√(x + 1)" would be the same. pdfium also puts what stands in
a root on a line of its own, so that a fraction with a root in it would be torn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.readers import formulas
from app.readers.pdf_grids import Box
from app.readers.pdf_shapes import Shapes
from app.readers.pdf_signs import BREAK, TOUCH, WORD, CharacterBoxes, NewText, is_raised, with_raised
from app.readers.symbols import FILLER

_SIGN = "√"
# matches the sign of a sum and the like whose limits are not on one line with it
_OPEN_SIGN = re.compile(r"[∏∐∑∫∬∭∮⋀⋁⋂⋃](?![_^])")
_MEETS = 1.5  # maximum distance in points between the upper end of the root's sign and the start of its line
_INSIDE = 1.5  # tolerance in points for characters before the start of the line
_SHORT = 5.0  # maximum length in points of the end of the line below which there is no character
_LONGEST = 60  # maximum characters in a root
_BESIDE = 1.5  # maximum gap, in line heights, between a root and the text next to it
_ROW = 0.5  # minimum height that the text next to a root has in common with it, as a share of the text's height


@dataclass(frozen=True)
class _Root:
    """A root, written on one line as ``text``. It replaces the characters of the page from ``start`` up to ``end``,
    and the white space between the text beside it and the root: from ``before``, and up to ``after``.
    """

    start: int
    end: int
    text: str
    bar: Box
    box: Box
    before: int
    after: int


def with_roots(text: str, boxes: CharacterBoxes, shapes: Shapes) -> str:
    """Return the text of a page with each root written on one line. Renumber ``boxes`` to match the new text.

    A root is left as it is as long as a fraction, a root or a sum in it is not written on one line.
    """
    if _SIGN not in text or not boxes.upright:
        return text
    bars = [bar for bar in shapes.bars if bar not in shapes.read]
    roots = list(_roots(text, boxes, bars)) if bars else []
    if not roots:
        return text
    new = NewText(text)
    for one in roots:
        shapes.read.add(one.bar)
        new.keep(max(one.before, new.at))
        if new.at < one.start and _are_apart(boxes.span(new.at - 1, new.at - 1), one.box):
            new.write(" ", new.at)
        new.write(one.text, one.start, one.box)
        new.at = one.end
        if one.end < one.after < len(text):
            if _are_apart(one.box, boxes.span(one.after, one.after)):
                new.write(" ", one.end)
            new.at = one.after
    return new.end(boxes)


def _are_apart(left: Box | None, right: Box | None) -> bool:
    """Whether there is a space between two boxes in a row."""
    return left is None or right is None or right[0] - left[1] > TOUCH * (right[3] - right[2])


def _roots(text: str, boxes: CharacterBoxes, bars: Sequence[Box]) -> Iterator[_Root]:
    at = text.find(_SIGN)
    while at >= 0:
        root = _root(text, at, boxes, bars)
        if root is not None:
            yield root
        at = text.find(_SIGN, at + 1 if root is None else root.end)


def _root(text: str, at: int, boxes: CharacterBoxes, bars: Sequence[Box]) -> _Root | None:
    """Return the root whose sign has the index ``at``; None if no line begins at the sign, or if what stands in the
    root is not yet written on one line.
    """
    begin, sign = _sign(text, at, boxes)
    bar = None if sign is None else next((bar for bar in bars if _meets(sign, bar)), None)
    if sign is None or bar is None or any(_is_inside(other, sign, bar) for other in bars if other is not bar):
        return None
    end = last = start = _after_degree(text, at + 1, sign, boxes)
    while last < len(text) and last - start <= _LONGEST:
        if not text[last].isspace():
            box = boxes.ink(last, last) if text[last] == _SIGN else boxes.span(last, last)
            if box is None or not _is_inside(box, sign, bar):
                break
            end = last + 1
        last += 1
    while start < end and text[start].isspace():
        start += 1
    first, final = (boxes.span(index, index) for index in (start, end - 1))
    words = "" if end <= start else _on_one_line(text, start, end, boxes)
    if not words or first is None or final is None or bar[1] - final[1] > _SHORT or _OPEN_SIGN.search(words):
        return None
    box = (sign[0], bar[1], first[2], first[3])
    before, after = _beside(text, begin, -1, box, boxes), _beside(text, end - 1, 1, box, boxes)
    written = formulas.root(words, text[at + 1 : start].strip())
    return _Root(
        begin, end, written, bar, box, begin if before is None else before + 1, end if after is None else after
    )


def _after_degree(text: str, start: int, sign: Box, boxes: CharacterBoxes) -> int:
    """Return the end of a root's degree, which stands above its sign; the index ``start`` behind the sign if it has
    none.
    """
    end = start
    for at in range(start, len(text)):
        if not text[at].isspace():
            x = boxes.place(at)
            if x is None or x > sign[1]:
                break
            end = at + 1
    return end


def _sign(text: str, at: int, boxes: CharacterBoxes) -> tuple[int, Box | None]:
    """Return start and box of a root's sign. TeX makes tall ones of several parts, of which the last is the sign."""
    box, start = boxes.ink(at, at), at
    while box is not None and start and text[start - 1] == FILLER:
        part = boxes.ink(start - 1, start - 1)
        if part is None:
            break
        box, start = (box[0], max(box[1], part[1]), min(box[2], part[2]), max(box[3], part[3])), start - 1
    return start, box


def _meets(sign: Box, bar: Box) -> bool:
    return abs(bar[0] - sign[1]) < _MEETS and abs((bar[2] + bar[3]) / 2 - sign[2]) < _MEETS


def _is_inside(box: Box, sign: Box, bar: Box) -> bool:
    """Whether the middle of a box is right of a root's sign and below its line."""
    x, y = (box[0] + box[1]) / 2, (box[2] + box[3]) / 2
    return bar[0] - _INSIDE < x < bar[1] and bar[3] < y < sign[3]


def _on_one_line(text: str, start: int, end: int, boxes: CharacterBoxes) -> str:
    """Return what stands in a root, with its powers marked. pdfium has put a power on a line of its own."""
    written, at = "", start
    for line in text[start:end].split(BREAK):
        if written:
            base, power = boxes.span(at - len(BREAK) - 1, at - len(BREAK) - 1), boxes.span(at, at)
            is_power = base is not None and power is not None and is_raised(power, base)
            written += "^" if is_power else " " if _are_apart(base, power) else ""
        words = (with_raised(word[0], word.start(), boxes) for word in WORD.finditer(text, at, at + len(line)))
        written += " ".join(words)
        at += len(line) + len(BREAK)
    return written


def _beside(text: str, index: int, step: int, box: Box, boxes: CharacterBoxes) -> int | None:
    """Return the index of the character that stands before (``step`` -1) or after (1) a root; None if that character
    is not in the root's row.
    """
    index += step
    while 0 <= index < len(text) and text[index].isspace():
        index += step
    other = boxes.span(index, index) if 0 <= index < len(text) else None
    if other is None:
        return None
    height = min(other[3] - other[2], box[3] - box[2])
    gap = box[0] - other[1] if step < 0 else other[0] - box[1]
    near = -_INSIDE < gap < _BESIDE * height
    return index if near and min(other[3], box[3]) - max(other[2], box[2]) > _ROW * height else None
