"""Draws and searches one page of a PDF with pdfium, and recognises the words of those that are pictures. Child only."""

from __future__ import annotations

import base64
import io
import time
import unicodedata
from ctypes import byref, c_int
from functools import partial
from pathlib import Path
from typing import Any

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from app.readers import pdf_lines
from app.readers.parsed import Refused, damaged
from app.readers.pdf import open_pdf
from app.readers.pdf_signs import text_as_read
from app.readers.pictures import is_picture
from app.readers.recognised import RecognisedPage, letters_of, rectangles
from engine.sandbox import Voice

_TALLEST = 4.0  # heights of a page in widths; a longer one is drawn smaller
_UNIT = 100_000  # steps of a page's width in which positions are asked for
_MOST_PLACES = 500  # of one passage that are looked at
_SHORTEST = 12  # letters of the beginning and of the end of a passage that find it when the whole is not there


def render(request: dict[str, Any]) -> str:
    """The page as base64 of a PNG."""
    document, page = _page(request)
    width, height = page.get_size()
    scale = float(request["width"]) / max(width, 1.0)
    if height > _TALLEST * width:
        scale *= _TALLEST * width / height
    stream = io.BytesIO()
    page.render(scale=scale).to_pil().save(stream, "PNG")
    page.close()
    document.close()
    return base64.b64encode(stream.getvalue()).decode("ascii")


def recognise(request: dict[str, Any], voice: Voice) -> None:
    """Say of each of the pages ``numbers`` what was recognised in its picture, and the seconds that it took."""
    from app.readers import ocr

    total = len(request["numbers"])
    document = open_pdf(Path(request["path"]), request.get("password"), beat=lambda: voice.step(0, total))
    if document is None:
        raise damaged()
    for done, number in enumerate(request["numbers"]):
        started = time.monotonic()
        beat = partial(voice.step, done, total, number)
        beat()
        page = document[number - 1]
        size = page.get_size()
        drawn = page.render(scale=ocr.LONG_SIDE / max(*size, 1.0), rev_byteorder=False).to_numpy()
        found = ocr.recognise(drawn, size, beat)
        page.close()
        seconds = round(time.monotonic() - started, 2)
        voice.say({"type": "recognised", "number": number, "page": found.as_json(), "seconds": seconds})
    document.close()


def find(request: dict[str, Any]) -> list[list[list[float]]]:
    """Rectangles of every passage, one per line. Of several places that of the likest surroundings is taken."""
    if request.get("recognised"):
        return _find_recognised(request)
    document, page = _page(request)
    page = pdf_lines.flattened(document, int(request["number"]) - 1, page) or page
    text_page = page.get_textpage()
    letters: list[str] = []
    places: list[int] = []
    for index, character in enumerate(text_as_read(page, text_page)):
        for sign in folded(character):
            letters.append(sign)
            places.append(index)
    text = "".join(letters)
    spans = [locate(text, *map(folded, (passage, before, after))) for before, passage, after in request["passages"]]
    found = [_rectangles(page, text_page, places[span[0]], places[span[1] - 1]) if span else [] for span in spans]
    text_page.close()
    page.close()
    document.close()
    return found


def _find_recognised(request: dict[str, Any]) -> list[list[list[float]]]:
    page = RecognisedPage.from_json(request["recognised"])
    boxes = [(sign, box) for letter, box in letters_of(page) for sign in folded(letter)]
    text = "".join(sign for sign, _ in boxes)
    spans = [locate(text, *map(folded, (passage, before, after))) for before, passage, after in request["passages"]]
    return [rectangles(page, [box for _, box in boxes[slice(*span)]]) if span else [] for span in spans]


def folded(text: str) -> str:
    """Letters and digits only, without case, accents composed in one way, ligatures spelled out."""
    return "".join(sign for sign in unicodedata.normalize("NFKC", text).casefold() if sign.isalnum())


def locate(text: str, passage: str, before: str = "", after: str = "") -> tuple[int, int] | None:
    """Where a folded passage stands in a folded text: whole, or by its beginning and its end.

    Args:
        before, after: what stands around it, by which one of several places is told from the others.
    """
    if not passage:
        return None
    starts: list[int] = []
    start = text.find(passage)
    while start >= 0 and len(starts) < _MOST_PLACES:
        starts.append(start)
        start = text.find(passage, start + 1)
    if starts:

        def alike(start: int) -> int:
            end = start + len(passage)
            return _shared(text[:start][-len(before) :][::-1], before[::-1]) + _shared(text[end:][: len(after)], after)

        best = max(starts, key=alike)
        return best, best + len(passage)
    size = max(_SHORTEST, min(40, len(passage) // 3))
    if len(passage) < 2 * size:
        return None
    head, tail = text.find(passage[:size]), text.find(passage[-size:])
    if head >= 0 and head < tail <= head + 2 * len(passage):
        return head, tail + size
    if head >= 0:  # it runs on to the next page
        return head, min(len(text), head + len(passage))
    if tail >= 0:
        return max(0, tail + size - len(passage)), tail + size
    return None


def _shared(one: str, other: str) -> int:
    """Letters that two texts have in common at their beginning."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _rectangles(page: pdfium.PdfPage, text_page: pdfium.PdfTextPage, first: int, last: int) -> list[list[float]]:
    left, bottom, right, top = page.get_bbox()
    found: list[list[float]] = []
    for index in range(text_page.count_rects(first, last - first + 1)):
        x0, y0, x1, y1 = text_page.get_rect(index)
        if x1 < left or x0 > right or y1 < bottom or y0 > top:
            continue
        one, two = _device(page, x0, y0), _device(page, x1, y1)
        box = [min(one[0], two[0]), min(one[1], two[1]), max(one[0], two[0]), max(one[1], two[1])]
        found.append([round(min(max(value, 0.0), 1.0), 5) for value in box])
    return _rows(found)


def _device(page: pdfium.PdfPage, x: float, y: float) -> tuple[float, float]:
    """A point of the page as fractions of its picture."""
    across, down = c_int(), c_int()
    raw.FPDF_PageToDevice(page.raw, 0, 0, _UNIT, _UNIT, 0, x, y, byref(across), byref(down))
    return across.value / _UNIT, down.value / _UNIT


def _rows(boxes: list[list[float]]) -> list[list[float]]:
    """Boxes of one printed line made one."""
    rows: list[list[float]] = []
    for box in boxes:
        last = rows[-1] if rows else None
        if last is not None:
            overlap = min(last[3], box[3]) - max(last[1], box[1])
            near = box[0] - last[2] < 0.05 and last[0] - box[2] < 0.05
            if near and overlap > 0.5 * min(last[3] - last[1], box[3] - box[1]):
                rows[-1] = [min(last[0], box[0]), min(last[1], box[1]), max(last[2], box[2]), max(last[3], box[3])]
                continue
        rows.append(box)
    return rows


def _page(request: dict[str, Any]) -> tuple[pdfium.PdfDocument, pdfium.PdfPage]:
    path = Path(request["path"])
    with path.open("rb") as file:
        if b"%PDF-" not in file.read(1024) and not is_picture(path):
            raise Refused("is not a PDF; it has no page images.", "Its text can be read all the same.")
    number = int(request["number"])
    document = open_pdf(path, request.get("password"), only=number)
    if document is None:
        raise damaged()
    if number > len(document):
        raise Refused(f"has no page {number}; it has {len(document)}.", "Choose a page inside it.")
    try:
        return document, document[number - 1]
    except pdfium.PdfiumError:
        raise damaged(f"is damaged on page {number}.") from None
