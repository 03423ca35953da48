"""Finds the pictures of a document that may have words, by their sizes. Runs only in the child process
(``app.readers.child``).

A picture has a key, by which its recognised words are stored. In a PDF the key is the page, its rotation and the
picture's place, in other formats the name of its part or the hash of its data. Knows nothing of recognition.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from ctypes import byref, c_uint, cast
from dataclasses import dataclass
from itertools import islice

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from app.readers import pdf_calls
from app.readers.layout import Line
from app.readers.pdf_grids import Box, Turn

MOST = 2_000
"""Maximum pictures of a document that are recognised; further pictures are not read."""
NARROWEST = 72.0
"""Minimum length in points of the longer side of a picture that may have words. Smaller ones are icons."""
_LOWEST = 30.0  # minimum length in points of the shorter side
WIDEST_ICON = 96
"""Maximum pixels of the longer side of an icon."""
LOWEST_WORDS = 24
"""Minimum pixels of the shorter side of a picture that may have words."""
_TILE = 3.0  # maximum gap in points between the parts in which a picture is stored
_MOST_TILES = 400  # maximum pictures of a page that are examined
_MOST_PARTS = 300  # maximum objects of a form that are examined
_DEPTH = 3  # maximum depth of the forms that are examined
ON_PICTURE = 60
"""A picture with at least this many characters of text on it is a background, or a scan with its words.
"""
_REPEATED = 3  # minimum number of pages with the same picture that make it a logo or a background
_KEY = re.compile(r"(\d{1,6}):(\d{1,3}):(\d{1,6}),(\d{1,6}),(\d{1,6}),(\d{1,6}):(\d{1,10})")

Image = tuple[int, Box]
"""A picture on a page: pdfium's address of it, and its box on the page as displayed."""

Facts = tuple[int, int, int]
"""A picture's width and height in pixels, and the bytes that it takes in the file."""


def images_in(form: int, turn: Turn, depth: int = _DEPTH) -> Iterator[Image]:
    """Yield the pictures in a form of a page with their boxes on the page as displayed. A form is a group of objects
    that may have groups in it.

    Args:
        form: pdfium's address of the form.
        turn: converts a box of the page to the page as displayed (``app.readers.pdf_grids.turned``).
    """
    for item, (x0, y0, x1, y1) in islice(_inside(form, _IDENTITY, depth), _MOST_TILES):
        yield item, turn(x0, y0, x1, y1)


_IDENTITY = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0)


def _inside(form: int, outer: Sequence[float], depth: int) -> Iterator[tuple[int, tuple[float, float, float, float]]]:
    own, edges = pdf_calls.Floats(6), pdf_calls.Floats(4)
    if not pdf_calls.matrix(form, own.places[0]):
        return
    a, b, c, d, e, f = own.get()
    p, q, r, s, t, u = outer
    matrix = (a * p + b * r, a * q + b * s, c * p + d * r, c * q + d * s, e * p + f * r + t, e * q + f * s + u)
    for at in range(min(pdf_calls.count_parts(form), _MOST_PARTS)):
        part = pdf_calls.part(form, at)
        kind = pdf_calls.kind_of(part)
        if kind == raw.FPDF_PAGEOBJ_FORM and depth:
            yield from _inside(part, matrix, depth - 1)
        elif kind == raw.FPDF_PAGEOBJ_IMAGE and pdf_calls.bounds(part, *edges.places):
            x0, y0, x1, y1 = edges.get()
            a, b, c, d, e, f = matrix
            xs = [x * a + y * c + e for x in (x0, x1) for y in (y0, y1)]
            ys = [x * b + y * d + f for x in (x0, x1) for y in (y0, y1)]
            yield part, (min(xs), min(ys), max(xs), max(ys))


def pictures_on(page: pdfium.PdfPage, number: int, images: Sequence[Image], lines: Sequence[Line]) -> dict[str, Facts]:
    """Find the pictures of a page that may have words.

    Args:
        page: the page, rotated as its lines were read.
        number: number of the page, from 1.
        images: pdfium's address and the box of each picture of the page.
        lines: the page's lines of text.

    Returns:
        What tells whether two pictures are the same, keyed by the key of each picture, in the order of the file.
    """
    width, height = page.get_size()
    merged: list[tuple[list[float], list[int]]] = []
    for item, (x0, x1, top, bottom) in images[:_MOST_TILES]:
        box = [max(x0, 0.0), min(x1, width), max(top, 0.0), min(bottom, height)]
        if box[1] - box[0] < 1 or box[3] - box[2] < 1:
            continue
        near = next((one for one in merged if _are_parts(one[0], box)), None)
        across, down, size = _facts(item)
        if near is None:
            merged.append((box, [across, down, size]))
        else:
            held, facts = near
            held[:] = [min(held[0], box[0]), max(held[1], box[1]), min(held[2], box[2]), max(held[3], box[3])]
            facts[:] = [facts[0] + across, facts[1] + down, facts[2] + size]
    rotation = page.get_rotation()
    made: dict[str, Facts] = {}
    for (x0, x1, top, bottom), facts in merged:
        if _is_icon(x1 - x0, bottom - top) or max(facts[:2]) <= WIDEST_ICON or min(facts[:2]) < LOWEST_WORDS:
            continue
        if text_on(lines, (x0, x1, top, bottom)) < ON_PICTURE:
            made[PicturePlace(number, rotation, (x0, x1, top, bottom), facts[0]).key] = (facts[0], facts[1], facts[2])
    return made


def _is_icon(width: float, height: float) -> bool:
    return max(width, height) < NARROWEST or min(width, height) < _LOWEST


def _are_parts(one: Sequence[float], two: Sequence[float]) -> bool:
    """Whether two boxes are parts of one picture: strips or tiles with a common edge, or one on the other."""
    apart = max(one[0], two[0]) - min(one[1], two[1]), max(one[2], two[2]) - min(one[3], two[3])
    same = (
        abs(one[2] - two[2]) + abs(one[3] - two[3]) < 2 * _TILE,
        abs(one[0] - two[0]) + abs(one[1] - two[1]) < 2 * _TILE,
    )
    inside = apart[0] < -_TILE and apart[1] < -_TILE
    return inside or (abs(apart[0]) < _TILE and same[0]) or (abs(apart[1]) < _TILE and same[1])


def text_on(lines: Sequence[Line], box: Box) -> int:
    """Return the number of characters of the page's text that stand on a picture."""
    return sum(len(line.text) for line in lines if line.shown and is_on(line, box))


def is_on(line: Line, box: Box) -> bool:
    """Whether the middle of a line is on a picture."""
    x0, x1, top, bottom = box
    return x0 <= (line.x0 + line.x1) / 2 <= x1 and top <= (line.top + line.bottom) / 2 <= bottom


def _facts(item: int) -> Facts:
    across, down = c_uint(), c_uint()
    handle = cast(item, raw.FPDF_PAGEOBJECT)
    raw.FPDFImageObj_GetImagePixelSize(handle, byref(across), byref(down))
    return across.value, down.value, int(raw.FPDFImageObj_GetImageDataRaw(handle, None, 0))


def without_repeated(pages: Sequence[dict[str, Facts]]) -> list[list[str]]:
    """Return the keys of the pictures of each page, without those that many pages have: logos and backgrounds."""
    same = Counter(facts for page in pages for facts in set(page.values()))
    return [[key for key, facts in page.items() if same[facts] < _REPEATED] for page in pages]


@dataclass(frozen=True)
class PicturePlace:
    """The place of a picture on a page: the page's number (from 1), its rotation in degrees when the picture was found,
    the picture's box on the page as displayed, and the picture's own width in pixels.
    """

    number: int
    rotation: int
    box: Box
    pixels: int

    @property
    def key(self) -> str:
        edges = ",".join(f"{edge:.0f}" for edge in self.box)
        return f"{self.number}:{self.rotation}:{edges}:{self.pixels}"


def place_of(key: str) -> PicturePlace:
    """Return the place of a picture on a page from its key. Raises ValueError if it is no such key."""
    match = _KEY.fullmatch(key)
    if match is None:
        raise ValueError("It is no key of a picture on a page.")
    number, rotation, x0, x1, top, bottom, pixels = map(int, match.groups())
    return PicturePlace(number, rotation, (float(x0), float(x1), float(top), float(bottom)), pixels)


def told(recognised: int, with_words: int, waiting: int) -> list[str]:
    """Return warnings about pictures beside the text: how many were recognised, how many of these have words, and how
    many may have words and are not read.
    """
    said = []
    if with_words:
        words = f"words were recognised in {with_words:,} and may have slips."
        said.append(f"Pictures beside the text: {recognised:,}; {words}")
    elif recognised:
        said.append(f"Pictures beside the text: {recognised:,}; none has words.")
    if waiting:
        said.append(f"Pictures beside the text that may have words, which are not read: {waiting:,}.")
    return said
