"""Reads the form fields, typed notes and stamps of a PDF page, because pdfium's text lacks these. Runs only in the
child process (``app.readers.child``).
"""

from __future__ import annotations

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from app.readers import cleaning
from app.readers.layout import Line
from app.readers.pdf_comments import read_ticks
from app.readers.pdf_lines import same_row
from app.readers.pdf_signs import WORD, CharacterBoxes, raw_text

_WITH_TEXT = (raw.FPDF_ANNOT_WIDGET, raw.FPDF_ANNOT_FREETEXT, raw.FPDF_ANNOT_STAMP)
# Maximum annotations of a page. On a page with more, the filled-in text is not read, because pdfium's time grows
# quadratically with the number of annotations.
_MOST_ANNOTATIONS = 2_000
_VALUES_APART = 1.2  # maximum gap, in line heights, between two words of one filled-in value


def flattened(document: pdfium.PdfDocument, index: int, page: pdfium.PdfPage) -> pdfium.PdfPage | None:
    """Return the page with filled-in values flattened to ordinary text; None if there are no values, or if pdfium fails
    to flatten them.

    Flattening changes the document in memory, but never the file. The page is loaded again, because the loaded ``page``
    keeps its old content.
    """
    if not _is_filled_in(page) or raw.FPDFPage_Flatten(page.raw, raw.FLAT_NORMALDISPLAY) != raw.FLATTEN_SUCCESS:
        return None
    return document[index]


def form_values(document: pdfium.PdfDocument, index: int, page: pdfium.PdfPage, page_text: str) -> list[Line]:
    """Return the values that are filled in on a page, as lines at their positions. Leave out hidden values.

    The text of the flattened page starts with the page's own text (``page_text``), and the values follow. If the page
    cannot be flattened, or if its text does not start like this, only checkboxes and radio buttons are returned.
    """
    if not _is_filled_in(page):
        return []
    ticks = read_ticks(document, page)
    whole = flattened(document, index, page)
    if whole is None:
        return ticks
    text_page = whole.get_textpage()
    try:
        text = raw_text(text_page)
        boxes = CharacterBoxes(text_page, whole.get_rotation(), whole.get_bbox())
        values = _value_lines(text, len(page_text), boxes) if text.startswith(page_text) else []
        return ticks + [value for value in values if not any(_covers_value(tick, value) for tick in ticks)]
    finally:
        text_page.close()
        whole.close()


def _covers_value(tick: Line, value: Line) -> bool:
    """Whether a value is the mark inside a checkbox. ``read_ticks`` reads such marks."""
    x, y = (value.x0 + value.x1) / 2, (value.top + value.bottom) / 2
    return tick.x0 <= x <= tick.x1 and tick.top <= y <= tick.bottom


def _value_lines(text: str, start: int, boxes: CharacterBoxes) -> list[Line]:
    """Return the filled-in values as lines. The values are the part of ``text`` from ``start``. A wide gap between two
    words separates two values.
    """
    lines: list[Line] = []
    for match in WORD.finditer(text, start):
        box = boxes.span(match.start(), match.end() - 1)
        word = cleaning.tidy(match.group())
        if box is None or not word:
            continue
        x0, x1, top, bottom = box
        piece = Line(word, x0, x1, top, bottom, size=bottom - top)
        last = lines[-1] if lines else None
        if (
            last is not None
            and same_row(last, piece)
            and x0 - last.x0 >= 0
            and x0 - last.x1 < _VALUES_APART * last.height
        ):
            last.text, last.x1 = f"{last.text} {word}", max(last.x1, x1)
        else:
            lines.append(piece)
    for line in lines:
        line.shown = boxes.shows(line)
    return lines


def _is_filled_in(page: pdfium.PdfPage) -> bool:
    count = raw.FPDFPage_GetAnnotCount(page.raw)
    for at in range(count if count <= _MOST_ANNOTATIONS else 0):
        annotation = raw.FPDFPage_GetAnnot(page.raw, at)
        if annotation:
            kind = raw.FPDFAnnot_GetSubtype(annotation)
            raw.FPDFPage_CloseAnnot(annotation)
            if kind in _WITH_TEXT:
                return True
    return False
