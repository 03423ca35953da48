"""What was filled in on a PDF page: values of form fields, typed notes and stamps, as far as a reader sees them.

pdfium's text of a page leaves all of it out. A page that has been flattened holds it as ordinary text behind its own,
what is hidden left out. Flattening changes the document in memory and never the file. Runs in the child only.
"""

from __future__ import annotations

import re

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from app.readers.lines import Line
from app.readers.pdf_boxes import Boxes
from app.readers.pdf_lines import raw_text, same_row, tidy

_WITH_TEXT = (raw.FPDF_ANNOT_WIDGET, raw.FPDF_ANNOT_FREETEXT, raw.FPDF_ANNOT_STAMP)
_MOST = 2_000  # annotations of a page; pdfium's time grows with the square of them, and no form has so many
_WORD = re.compile(r"\S+")
_APART = 1.2  # line heights between two words of one value


def flattened(document: pdfium.PdfDocument, index: int, page: pdfium.PdfPage) -> pdfium.PdfPage | None:
    """The page with what was filled in as text of its own; None where there is nothing. ``page`` stays as it was."""
    if not _is_filled_in(page) or raw.FPDFPage_Flatten(page.raw, raw.FLAT_NORMALDISPLAY) != raw.FLATTEN_SUCCESS:
        return None
    return document[index]


def values(document: pdfium.PdfDocument, index: int, page: pdfium.PdfPage) -> list[Line]:
    """What was filled in on a page, value by value, where it stands."""
    if not _is_filled_in(page):
        return []
    own = page.get_textpage()
    before = raw_text(own)
    own.close()
    whole = flattened(document, index, page)
    if whole is None:
        return []
    text_page = whole.get_textpage()
    try:
        text = raw_text(text_page)
        boxes = Boxes(text_page, whole.get_rotation(), whole.get_bbox())
        return _lines(text, len(before), boxes) if text.startswith(before) else []
    finally:
        text_page.close()
        whole.close()


def _lines(text: str, start: int, boxes: Boxes) -> list[Line]:
    """pdfium strings values together wherever they stand: they are parted where they are apart."""
    found: list[Line] = []
    for match in _WORD.finditer(text, start):
        box = boxes.span(match.start(), match.end() - 1)
        word = tidy(match.group())
        if box is None or not word:
            continue
        x0, x1, top, bottom = box
        piece = Line(word, x0, x1, top, bottom, size=bottom - top)
        last = found[-1] if found else None
        if last is not None and same_row(last, piece) and x0 - last.x0 >= 0 and x0 - last.x1 < _APART * last.height:
            last.text, last.x1 = f"{last.text} {word}", max(last.x1, x1)
        else:
            found.append(piece)
    for line in found:
        line.shown = boxes.shows(line)
    return found


def _is_filled_in(page: pdfium.PdfPage) -> bool:
    count = raw.FPDFPage_GetAnnotCount(page.raw)
    for at in range(count if count <= _MOST else 0):
        annotation = raw.FPDFPage_GetAnnot(page.raw, at)
        if annotation:
            kind = raw.FPDFAnnot_GetSubtype(annotation)
            raw.FPDFPage_CloseAnnot(annotation)
            if kind in _WITH_TEXT:
                return True
    return False
