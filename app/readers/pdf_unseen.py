"""Text of a PDF page that nobody sees: white on white, or drawn with no ink at all.

What a reader cannot see is not what the reader asked about, and a favourite place for words meant for the model alone.
Only ink tells a suspect; whether it is seen is told by the drawn page, so that white letters on a dark ground stay. The
unseen letters behind the picture of a scanned page are its text and are not suspected. Runs in the child only.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_uint

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from app.readers.lines import Line

_WHITE = 0xF4  # of 255 in every colour
_FAINT = 0x0C  # of 255 opaque
_CONTRAST = 10  # of 255 between the lightest and the darkest point where there is anything to see
_MOST_POINTS = 4_000_000  # of the drawn page
_IMAGE_DEPTH = 4


class Ink:
    """How the characters of one page are drawn."""

    def __init__(self, page: pdfium.PdfPage, text_page: pdfium.PdfTextPage) -> None:
        self._page = page
        self._raw = text_page.raw
        self._parts = [c_uint() for _ in range(4)]
        self._refs = [byref(part) for part in self._parts]
        self._has_image: bool | None = None

    def is_suspect(self, index: int) -> bool:
        """Whether a character may be drawn so that nobody sees it."""
        if raw.FPDFText_GetFillColor(self._raw, index, *self._refs):
            red, green, blue, alpha = (part.value for part in self._parts)
            if min(red, green, blue) >= _WHITE or alpha <= _FAINT:
                return True
        piece = raw.FPDFText_GetTextObject(self._raw, index)
        inkless = bool(piece) and raw.FPDFTextObj_GetTextRenderMode(piece) == raw.FPDF_TEXTRENDERMODE_INVISIBLE
        return inkless and not self._is_scan()

    def _is_scan(self) -> bool:
        if self._has_image is None:
            self._has_image = has_image(self._page)
        return self._has_image


def has_image(page: pdfium.PdfPage) -> bool:
    """Whether a page holds a picture."""
    images = page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=_IMAGE_DEPTH)
    return next(iter(images), None) is not None


def hide(page: pdfium.PdfPage, lines: Sequence[Line]) -> None:
    """Mark those suspects among the lines as unseen behind which the drawn page is all of one colour."""
    suspects = [line for line in lines if line.suspect and line.shown]
    if not suspects:
        return
    width, height = page.get_size()
    scale = min(1.0, (_MOST_POINTS / max(width * height, 1.0)) ** 0.5)
    try:
        drawn = page.render(scale=scale, grayscale=True, may_draw_forms=False).to_numpy()
    except pdfium.PdfiumError:  # then nothing speaks against them
        return
    for line in suspects:
        rows = slice(max(0, int(line.top * scale)), int(line.bottom * scale) + 1)
        part = drawn[rows, max(0, int(line.x0 * scale)) : int(line.x1 * scale) + 1]
        if part.size and int(part.max()) - int(part.min()) < _CONTRAST:
            line.shown, line.unseen = False, True
