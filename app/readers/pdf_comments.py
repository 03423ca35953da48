"""Reads the annotations of a PDF page: reviewers' comments, typed text, form ticks, attached files. Runs only in the
child process (``app.readers.child``).
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import POINTER, byref, c_ulong, cast, create_string_buffer
from dataclasses import dataclass, field
from typing import Any

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from app.readers import cleaning
from app.readers.layout import Line
from app.readers.pdf_grids import Box, turned
from app.readers.pdf_signs import RTL, CharacterBoxes, text_as_read

_MOST = 2_000  # maximum annotations read of a page
_PASSAGE = 80  # maximum characters of the passage that a comment marks; a longer passage is cut
_NAME = 60  # maximum characters of a file name; a longer name is cut
_TYPE_SIZE = 12.0  # type size in points of typed text whose size is unknown
_MARKUP = {
    raw.FPDF_ANNOT_TEXT, raw.FPDF_ANNOT_LINE, raw.FPDF_ANNOT_SQUARE, raw.FPDF_ANNOT_CIRCLE, raw.FPDF_ANNOT_POLYGON,
    raw.FPDF_ANNOT_POLYLINE, raw.FPDF_ANNOT_CARET, raw.FPDF_ANNOT_INK, raw.FPDF_ANNOT_STAMP, raw.FPDF_ANNOT_HIGHLIGHT,
    raw.FPDF_ANNOT_UNDERLINE, raw.FPDF_ANNOT_SQUIGGLY, raw.FPDF_ANNOT_STRIKEOUT,
}  # fmt: skip
_BOXES = (raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON)
TICKS = ("☐", "☒")
"""Characters for an empty and a ticked box of a form."""

_UNSEEN = 0b100010  # bit mask of the flags Hidden and NoView of an annotation


@dataclass
class PageAnnotations:
    """The annotations of a page.

    ``comments`` are texts to be put after the page's text. ``typed`` are typed notes as lines at their places on the
    page. ``files`` are the names of attached files.
    """

    comments: list[str] = field(default_factory=list)
    typed: list[Line] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


def read_comments(page: pdfium.PdfPage) -> PageAnnotations:
    """Read the annotations of an open page."""
    annotations = PageAnnotations()
    count = raw.FPDFPage_GetAnnotCount(page.raw)
    if not count:
        return annotations
    for annotation in _annotations(page, min(count, _MOST)):
        kind = raw.FPDFAnnot_GetSubtype(annotation)
        if kind == raw.FPDF_ANNOT_FILEATTACHMENT:
            annotations.files.append(_file_name(raw.FPDFAnnot_GetFileAttachment(annotation)))
        elif kind == raw.FPDF_ANNOT_FREETEXT:
            annotations.typed += _typed(page, annotation)
        elif kind in _MARKUP and not raw.FPDFAnnot_GetFlags(annotation) & _UNSEEN:
            comment = _comment(annotation, kind, page)
            annotations.comments += [comment] if comment else []
    return annotations


def attached_files(document: pdfium.PdfDocument) -> list[str]:
    """Return the names of the files attached to a document, including those of a portfolio."""
    count = min(max(raw.FPDFDoc_GetAttachmentCount(document.raw), 0), _MOST)
    return [_file_name(raw.FPDFDoc_GetAttachment(document.raw, at)) for at in range(count)]


def _file_name(attachment: Any) -> str:
    size = raw.FPDFAttachment_GetName(attachment, None, 0) if attachment else 0
    if size <= 2:
        return "a file without a name"
    buffer = create_string_buffer(size)
    raw.FPDFAttachment_GetName(attachment, cast(buffer, POINTER(raw.FPDF_WCHAR)), size)
    return cleaning.one_line(cleaning.tidy(buffer.raw[: size - 2].decode("utf-16-le", "surrogatepass")), _NAME)


def _annotations(page: pdfium.PdfPage, count: int) -> Iterator[Any]:
    for at in range(count):
        annotation = raw.FPDFPage_GetAnnot(page.raw, at)
        if annotation:
            yield annotation
            raw.FPDFPage_CloseAnnot(annotation)


def _comment(annotation: Any, kind: int, page: pdfium.PdfPage) -> str:
    """Return a comment with its author and the passage that it marks. Return "" for a comment without text, unless it
    strikes out the passage.
    """
    words, author = _string(annotation, b"Contents"), _string(annotation, b"T")
    struck = kind == raw.FPDF_ANNOT_STRIKEOUT
    if not words and not struck:
        return ""
    passage = _marked(annotation, page)
    head = "Struck out" if struck else "Comment"
    head += f" by {author}" if author else ""
    head += f" on “{passage}”" if passage else ""
    return f"[{head}: {words}]" if words else f"[{head}]"


def _marked(annotation: Any, page: pdfium.PdfPage) -> str:
    count = min(raw.FPDFAnnot_CountAttachmentPoints(annotation), _PASSAGE)
    if not count:
        return ""
    parts, corners = [], raw.FS_QUADPOINTSF()
    text_page = page.get_textpage()
    for at in range(count):
        if raw.FPDFAnnot_GetAttachmentPoints(annotation, at, byref(corners)):
            xs = (corners.x1, corners.x2, corners.x3, corners.x4)
            ys = (corners.y1, corners.y2, corners.y3, corners.y4)
            part = text_page.get_text_bounded(min(xs), min(ys), max(xs), max(ys))
            if RTL.search(part):
                part = _read_within(page, text_page, (min(xs), min(ys), max(xs), max(ys)))
            parts.append(part)
    text_page.close()
    return cleaning.one_line(cleaning.tidy(" ".join(parts)), _PASSAGE)


def _read_within(page: pdfium.PdfPage, text_page: pdfium.PdfTextPage, place: Box) -> str:
    """Return the text within (left, bottom, right, top) of a page, with right-to-left words in reading order."""
    x0, x1, top, bottom = turned(page)(*place)
    boxes = CharacterBoxes(text_page, page.get_rotation(), page.get_bbox())
    signs = []
    for at, sign in enumerate(text_as_read(page, text_page)):
        box = boxes.span(at, at)
        if box and x0 <= (box[0] + box[1]) / 2 <= x1 and top <= (box[2] + box[3]) / 2 <= bottom:
            signs.append(sign)
    return "".join(signs)


def _typed(page: pdfium.PdfPage, annotation: Any) -> list[Line]:
    """Return the text of a typed note as one line; [] if the note is hidden or empty. Also return [] if the note has an
    appearance stream, because ``form_values`` reads such notes.
    """
    words, box = _string(annotation, b"Contents"), raw.FS_RECTF()
    if not words or raw.FPDFAnnot_GetFlags(annotation) & _UNSEEN or _has_appearance(annotation):
        return []
    raw.FPDFAnnot_GetRect(annotation, byref(box))
    left, _, _, top = page.get_bbox()
    x0, y0 = box.left - left, top - max(box.top, box.bottom)
    return [Line(words, x0, x0 + abs(box.right - box.left), y0, y0 + _TYPE_SIZE, size=_TYPE_SIZE)]


def read_ticks(document: pdfium.PdfDocument, page: pdfium.PdfPage) -> list[Line]:
    """Return the checkboxes and radio buttons of a form as lines with one character each."""
    form = document.formenv
    count = raw.FPDFPage_GetAnnotCount(page.raw)
    if form is None or count > _MOST:
        return []
    ticks, box, turn = [], raw.FS_RECTF(), turned(page)
    for annotation in _annotations(page, count):
        kind = raw.FPDFAnnot_GetFormFieldType(form.raw, annotation)
        if kind not in _BOXES or raw.FPDFAnnot_GetFlags(annotation) & _UNSEEN:
            continue
        raw.FPDFAnnot_GetRect(annotation, byref(box))
        x0, x1, top, bottom = turn(
            min(box.left, box.right), min(box.top, box.bottom), max(box.left, box.right), max(box.top, box.bottom)
        )
        sign = TICKS[bool(raw.FPDFAnnot_IsChecked(form.raw, annotation))]
        ticks.append(Line(sign, x0, x1, top, bottom, size=bottom - top))
    return ticks


def _has_appearance(annotation: Any) -> bool:
    return raw.FPDFAnnot_GetObjectCount(annotation) > 0


def _string(annotation: Any, key: bytes) -> str:
    size = raw.FPDFAnnot_GetStringValue(annotation, key, None, 0)
    if size <= 2:
        return ""
    buffer = create_string_buffer(size)
    raw.FPDFAnnot_GetStringValue(annotation, key, cast(buffer, POINTER(raw.FPDF_WCHAR)), size)
    return cleaning.tidy(buffer.raw[: size - 2].decode("utf-16-le", "surrogatepass"))


def layer_of(item: Any) -> str | None:
    """Return the name of an object's layer; "" for a layer without a name, None for an object on no layer."""
    buffer, length = create_string_buffer(512), c_ulong()
    place = cast(buffer, POINTER(raw.FPDF_WCHAR))
    for at in range(max(raw.FPDFPageObj_CountMarks(item), 0)):
        mark = raw.FPDFPageObj_GetMark(item, at)
        if not raw.FPDFPageObjMark_GetName(mark, place, 512, byref(length)):
            continue
        if buffer.raw[: length.value].decode("utf-16-le", "ignore").rstrip("\0") != "OC":
            continue
        if raw.FPDFPageObjMark_GetParamStringValue(mark, b"Name", place, 512, byref(length)) and length.value > 2:
            return buffer.raw[: length.value].decode("utf-16-le", "ignore").rstrip("\0")
        return ""
    return None
