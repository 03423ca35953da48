"""Where the characters of a PDF page stand, as a reader sees it who holds the page upright. Runs in the child only."""

from __future__ import annotations

from ctypes import byref

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from app.readers.lines import Line

Box = tuple[float, float, float, float]


class Boxes:
    """Character boxes, turned the way a reader holds the page, measured from the visible part's corner."""

    def __init__(self, text_page: pdfium.PdfTextPage, rotation: int, visible: Box) -> None:
        self._raw = text_page.raw
        self._rect = raw.FS_RECTF()
        self._ref = byref(self._rect)
        self._rotation = rotation
        self._left, self._bottom, self._right, self._top = visible
        across, down = self._right - self._left, self._top - self._bottom
        self._width, self._height = (down, across) if rotation % 180 else (across, down)

    def shows(self, line: Line) -> bool:
        """Whether the middle of a line lies on the visible part of the page."""
        across, down = (line.x0 + line.x1) / 2, (line.top + line.bottom) / 2
        return 0 <= across <= self._width and 0 <= down <= self._height

    def place(self, index: int) -> float | None:
        """Where a character stands across the page; None where pdfium has no box."""
        box = self._one(index)
        return None if box is None else (box[0] + box[1]) / 2

    def span(self, first: int, last: int) -> Box | None:
        """(x0, x1, top, bottom) around two characters and what is between them; None where pdfium has no box."""
        one = self._one(first)
        two = one if last == first else self._one(last)
        if one is None or two is None:
            return one or two
        return min(one[0], two[0]), max(one[1], two[1]), min(one[2], two[2]), max(one[3], two[3])

    def _one(self, index: int) -> Box | None:
        if not raw.FPDFText_GetLooseCharBox(self._raw, index, self._ref):
            return None
        box = self._rect
        left, right = box.left - self._left, self._right - box.right
        low, high = box.bottom - self._bottom, self._top - box.top
        width, height = box.right - box.left, box.top - box.bottom
        if self._rotation == 90:
            return low, low + height, left, left + width
        if self._rotation == 180:
            return right, right + width, low, low + height
        if self._rotation == 270:
            return high, high + height, right, right + width
        return left, left + width, high, high + height
