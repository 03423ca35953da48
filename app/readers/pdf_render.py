"""Draws and searches a page of a PDF with pdfium, and passes pages that are pictures to OCR. Runs only in the child
process (``app.readers.child``).
"""

from __future__ import annotations

import base64
import io
import os
import time
from ctypes import byref, c_int
from functools import partial
from typing import Any

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from app.readers import pdf_values, picture_words
from app.readers.inner_pictures import place_of
from app.readers.locating import folded, locate
from app.readers.parsed import Refused, damaged, unpacked
from app.readers.pdf import open_pdf
from app.readers.pdf_signs import text_as_read
from app.readers.pictures import is_picture
from app.readers.recognised import PICTURE, RecognisedPage, letters_of, pieces_of, rectangles
from engine.sandbox import Voice

_NICE = 10  # by how much other programs go before the recognition of pictures, as the system's ``nice`` counts
_TALLEST = 4.0  # maximum ratio of an image's height to its width; a taller page is drawn at a smaller scale
_MOST_SIGNS = 50_000  # maximum characters of a page that can be selected; further characters cannot be selected
# width and height in pixels of an imaginary image of the page; large, because pdfium rounds positions to whole pixels
_UNIT = 100_000


def render(request: dict[str, Any]) -> str:
    """Draw the page. Return the image as a PNG in base64."""
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
    """Recognise the text of the pages ``request["numbers"]``. Send a message with the text of each page and the seconds
    that its recognition took.
    """
    from app.readers import ocr

    total = len(request["numbers"])
    document = open_pdf(unpacked(request["path"]), request.get("password"), beat=lambda: voice.step(0, total))
    if document is None:
        raise damaged()
    ocr.start()
    for done, number in enumerate(request["numbers"]):
        started = time.monotonic()
        beat = partial(voice.step, done, total, number)
        beat()
        page = document[number - 1]
        size = page.get_size()
        drawn = page.render(scale=ocr.LONG_SIDE / max(*size, 1.0), rev_byteorder=False).to_numpy()
        recognised = ocr.recognise(drawn, size, beat)
        page.close()
        seconds = round(time.monotonic() - started, 2)
        voice.say({"type": "recognised", "number": number, "page": recognised.as_json(), "seconds": seconds})
    document.close()


def recognise_pictures(request: dict[str, Any], voice: Voice) -> None:
    """Recognise the words of pictures inside a document, whose keys are ``request["keys"]``. Send a message with the
    words of each picture. Gives way to other programs, because nobody waits for these words.
    """
    from app.readers import ocr, picture_pixels

    if hasattr(os, "nice"):
        os.nice(_NICE)
    keys: list[str] = request["keys"]
    path, total = unpacked(request["path"]), len(keys)
    voice.step(0, total)
    with picture_pixels.opening(path, request.get("password"), partial(voice.step, 0, total)) as pixels_of:
        ocr.start()
        for done, key in enumerate(keys):
            started = time.monotonic()
            beat = partial(voice.step, done, total, done + 1)
            beat()
            pixels = pixels_of(key)
            recognised = (
                ocr.recognise_picture(pixels, (pixels.shape[1], pixels.shape[0]), beat) if pixels is not None else None
            )
            seconds = round(time.monotonic() - started, 2)
            voice.say({"type": "picture", "key": key, "words": recognised and recognised.as_json(), "seconds": seconds})


def find(request: dict[str, Any]) -> list[list[list[float]]]:
    """Find the passages of ``request["passages"]``. For each passage, return a list with one rectangle for each of its
    lines; [] if the page lacks the passage. Of several occurrences, the one is returned whose surroundings agree best
    with the text before and after the passage.
    """
    if request.get("recognised"):
        return _find_recognised(request)
    document, page = _page(request)
    in_pictures = [_find_picture(page, passage, request) for _, passage, _ in request["passages"]]
    page = pdf_values.flattened(document, int(request["number"]) - 1, page) or page
    text_page = page.get_textpage()
    letters: list[str] = []
    places: list[int] = []
    for index, character in enumerate(text_as_read(page, text_page)):
        for sign in folded(character):
            letters.append(sign)
            places.append(index)
    text = "".join(letters)
    spans = [locate(text, *map(folded, (passage, before, after))) for before, passage, after in request["passages"]]
    boxes = [
        of_picture or (_rectangles(page, text_page, places[span[0]], places[span[1] - 1]) if span else [])
        for span, of_picture in zip(spans, in_pictures, strict=True)
    ]
    text_page.close()
    page.close()
    document.close()
    return boxes


def _find_picture(page: pdfium.PdfPage, passage: str, request: dict[str, Any]) -> list[list[float]]:
    """Return the rectangle of the picture beside the text whose words are ``passage``; [] if there is none."""
    known = {key: record for key, record in request.get("pictures", {}).items() if record}
    if not known or not passage.startswith(PICTURE):
        return []
    wanted = set(passage.removeprefix(PICTURE).removesuffix("]").split())
    read = {key: set(picture_words.words_of(record).split()) for key, record in known.items()}
    key = max(read, key=lambda one: len(read[one] & wanted) / max(len(read[one] | wanted), 1))
    place = place_of(key)
    width, height = page.get_size()
    if (place.rotation - page.get_rotation()) % 180:
        width, height = height, width
    x0, x1, top, bottom = place.box
    points = [(x0 / width, top / height), (x1 / width, bottom / height)]
    for _ in range((page.get_rotation() - place.rotation) % 360 // 90):
        points = [(1 - y, x) for x, y in points]
    (a, b), (c, d) = points
    return [[round(min(max(edge, 0.0), 1.0), 5) for edge in (min(a, c), min(b, d), max(a, c), max(b, d))]]


def words(request: dict[str, Any]) -> list[list[Any]]:
    """Return every word of the page as [text, x0, y0, x1, y1], in reading order. The text ends in a space if a space
    follows the word.
    """
    signs = _recognised_signs(request["recognised"]) if request.get("recognised") else _printed_signs(request)
    joined: list[list[Any]] = []
    apart = True
    for sign, box in signs[:_MOST_SIGNS]:
        if box is None or sign.isspace():
            apart = True
            continue
        last = joined[-1] if joined else None
        if last is not None and _is_beside(last, box) and not apart:
            last[0] += sign
            last[1:] = [min(last[1], box[0]), min(last[2], box[1]), max(last[3], box[2]), max(last[4], box[3])]
        else:
            if last is not None:
                last[0] += " "
            joined.append([sign, *box])
        apart = False
    return [[text, *(round(value, 5) for value in box)] for text, *box in joined]


def _is_beside(word: list[Any], box: list[float]) -> bool:
    """Whether a character is on the same line as a word."""
    return min(word[4], box[3]) - max(word[2], box[1]) > 0


def _printed_signs(request: dict[str, Any]) -> list[tuple[str, list[float] | None]]:
    """Return the characters of a page, each with its box as fractions of the page's image. Skip characters outside of
    the image.
    """
    document, page = _page(request)
    page = pdf_values.flattened(document, int(request["number"]) - 1, page) or page
    text_page = page.get_textpage()
    left, bottom, right, top = page.get_bbox()
    signs: list[tuple[str, list[float] | None]] = []
    for index, character in enumerate(text_as_read(page, text_page)[:_MOST_SIGNS]):
        if not character.strip():
            signs.append((" ", None))
            continue
        x0, y0, x1, y1 = text_page.get_charbox(index, loose=True)
        if x1 < left or x0 > right or y1 < bottom or y0 > top:
            continue
        one, two = _device(page, x0, y0), _device(page, x1, y1)
        box = [min(one[0], two[0]), min(one[1], two[1]), max(one[0], two[0]), max(one[1], two[1])]
        signs.append((character, [min(max(value, 0.0), 1.0) for value in box]))
    text_page.close()
    page.close()
    document.close()
    return signs


def _recognised_signs(record: dict[str, Any]) -> list[tuple[str, list[float] | None]]:
    page = RecognisedPage.from_json(record)
    signs: list[tuple[str, list[float] | None]] = []
    for piece in pieces_of(page):
        for text, x0, x1 in piece.words:
            (box,) = rectangles(page, [(x0, piece.top, x1, piece.bottom)])
            signs += [(text, box), (" ", None)]
    return signs


def _find_recognised(request: dict[str, Any]) -> list[list[list[float]]]:
    page = RecognisedPage.from_json(request["recognised"])
    boxes = [(sign, box) for letter, box in letters_of(page) for sign in folded(letter)]
    text = "".join(sign for sign, _ in boxes)
    spans = [locate(text, *map(folded, (passage, before, after))) for before, passage, after in request["passages"]]
    return [rectangles(page, [box for _, box in boxes[slice(*span)]]) if span else [] for span in spans]


def _rectangles(page: pdfium.PdfPage, text_page: pdfium.PdfTextPage, first: int, last: int) -> list[list[float]]:
    left, bottom, right, top = page.get_bbox()
    boxes: list[list[float]] = []
    for index in range(text_page.count_rects(first, last - first + 1)):
        x0, y0, x1, y1 = text_page.get_rect(index)
        if x1 < left or x0 > right or y1 < bottom or y0 > top:
            continue
        one, two = _device(page, x0, y0), _device(page, x1, y1)
        box = [min(one[0], two[0]), min(one[1], two[1]), max(one[0], two[0]), max(one[1], two[1])]
        boxes.append([round(min(max(value, 0.0), 1.0), 5) for value in box])
    return _rows(boxes)


def _device(page: pdfium.PdfPage, x: float, y: float) -> tuple[float, float]:
    """Convert a point of the page to fractions of the width and height of the page's image."""
    across, down = c_int(), c_int()
    raw.FPDF_PageToDevice(page.raw, 0, 0, _UNIT, _UNIT, 0, x, y, byref(across), byref(down))
    return across.value / _UNIT, down.value / _UNIT


def _rows(boxes: list[list[float]]) -> list[list[float]]:
    """Merge the boxes that are on the same line of text."""
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
    path = unpacked(request["path"])
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
