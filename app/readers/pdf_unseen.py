"""Finds the invisible text of a PDF page: white on white, covered, clipped, or on a hidden layer. Runs only in the
child process (``app.readers.child``).

Such text is often meant to reach a language model without being seen by a person. Also finds the pictures of a page.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from ctypes import addressof, c_int, c_uint, cast, sizeof
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from operator import itemgetter

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from app.readers import pdf_calls
from app.readers.inner_pictures import ON_PICTURE, Image, images_in, text_on
from app.readers.layout import Doubt, Line
from app.readers.pdf_comments import layer_of
from app.readers.pdf_glyphs import fonts_in
from app.readers.pdf_grids import MOST_OBJECTS, THIN, Box, Path, Turn, turned

_WHITE = 0xF4  # minimum value of every colour channel (0 to 255) in a colour that counts as white
_FAINT = 0x0C  # maximum opacity (0 to 255) that counts as invisible
_CONTRAST = 10  # minimum difference in brightness (0 to 255) between the lightest and the darkest pixel of visible text
_MOST_POINTS = 4_000_000  # maximum pixels of the rendered page; a larger page is rendered at a smaller scale
_IMAGE_DEPTH = 4
_MOST_OF_PAGE = 0.5  # a page is mostly a picture if a picture covers at least this share of the page's area
_MOST_COVERS = 300  # maximum objects of a page that are examined as covers of text; further objects are ignored
_BAND = 24.0  # height in points of the bands by which covering objects are indexed
_TALLEST = 14_400.0  # maximum height of a page in points
# share of a line's height that is ignored at its top, and also at its bottom, when its pixels are compared
_EDGE = 0.25
_MOST_CLIPS = 20  # maximum paths examined that together clip one piece of text
_MOST_CORNERS = 100  # maximum points examined of such a path
_WIDE = 40.0  # minimum width and height in points of a path that may be the box of a chart
_NOTHING = (0.0, -1.0, 0.0, -1.0)  # a box in which no point is
_KINDS = (raw.FPDF_PAGEOBJ_TEXT, raw.FPDF_PAGEOBJ_PATH, raw.FPDF_PAGEOBJ_IMAGE, raw.FPDF_PAGEOBJ_FORM)


class Suspects:
    """Finds the characters of one page that may be invisible.

    A character is suspect because of its colour, opacity or layer, or because an object may cover it. ``mark_unseen``
    then decides from the rendered page, so that white letters on a dark background stay. Invisible letters on the image
    of a scanned page are its recognised text, and stay too.
    """

    def __init__(self, page: pdfium.PdfPage, text_page: pdfium.PdfTextPage, layers: Layers | None = None) -> None:
        self._page = page
        self._layers = layers
        self.turn = turned(page)
        """Converts a place in the file to a place on the page."""
        drawn = _drawn(page, self.turn)
        self._objects, self.drawn, self.pictures = drawn.items, drawn.paths, drawn.pictures
        self.fonts, self._has_forms = drawn.fonts, drawn.has_forms
        large = (path for path in drawn.paths if path[3] - path[1] > _WIDE < path[4] - path[2])
        self.boxes = drawn.groups + [self.turn(*path[1:]) for path in large]
        """Boxes of the drawn groups and of the larger paths."""
        self._covers = _in_bands(drawn.covers)
        self._text = pdf_calls.handle(text_page.raw)
        parts = (c_uint * 4)()
        self._places = [addressof(parts) + sizeof(c_uint) * at for at in range(4)]
        self._colour = memoryview(parts).cast("B").cast("I")  # is read faster than the array
        self._has_image: bool | None = None
        self._piece: int | None = None
        self._doubt: Doubt = ""
        self.monospaced: set[int] = set()
        """Addresses of the page's fonts all of whose characters have the same width."""
        self.is_monospaced = False
        """Whether the last word asked for is in such a font."""
        self._clip: Box | None = None
        self._page_box = page.get_bbox()
        # a clip's box in the file, and on the page unless it holds all of the page; keyed by the number of its paths
        # and the last of them
        self._clips: dict[tuple[int, int], tuple[Box, Box | None]] = {}
        self._edges, self._point = pdf_calls.Floats(4), pdf_calls.Floats(2)

    def doubt(self, index: int, box: Box) -> Doubt:
        """Return whether a word may be invisible. ``index`` is pdfium's index of the word's first character, ``box``
        the word's box.
        """
        piece = pdf_calls.text_object(self._text, index)
        if not piece:
            return ""
        if piece != self._piece:
            self._piece, self._doubt, self._clip = piece, self._judge(piece), self._clip_of(piece)
            if self.monospaced:
                self.is_monospaced = pdf_calls.font_of(piece) in self.monospaced
        if not self._covers and self._clip is None:
            return self._doubt
        x, y = (box[0] + box[1]) / 2, (box[2] + box[3]) / 2
        if self._clip is not None and not _holds(self._clip, x, y):
            return "outside"
        if self._doubt or not self._covers:
            return self._doubt
        covers = self._covers.get(y // _BAND)
        if covers is None:
            return ""
        drawn = self._order.get(piece, 0)
        later = covers[bisect_right(covers, drawn, key=itemgetter(0)) :]
        return "doubtful" if any(_holds(cover, x, y) for _, cover in later) else ""

    def doubt_of_all(self, first: int, last: int, box: Box) -> Doubt | None:
        """Return the doubt about all words from one character to another, if they are drawn at once and no doubt
        depends on their place; else None. ``first`` and ``last`` are pdfium's indices, ``box`` is the first word's box.
        """
        piece = pdf_calls.text_object(self._text, first)
        if self._covers or piece != pdf_calls.text_object(self._text, last):
            return None
        doubt = self.doubt(first, box)
        return doubt if self._clip is None else None

    @cached_property
    def _order(self) -> dict[int, int]:
        """Positions of the page's objects in the drawing order. Computed on first use, because a page without covering
        objects and hidden layers does not need them.
        """
        return {item: position for position, item in enumerate(self._objects)}

    def _clip_of(self, piece: int) -> Box | None:
        """Return the box outside of which the text object ``piece`` is not drawn; None if all of it is drawn. A form
        that is drawn elsewhere than at its own place is left out as a whole or not at all.
        """
        clip = pdf_calls.clip_path(piece)
        count = pdf_calls.count_clips(clip) if clip else 0
        if count < 1:
            return None  # pdfium drops a path inside of which the whole object stands
        key = count, pdf_calls.clip_segment(clip, count - 1, 0)  # clips inside one another share all paths but the last
        if key not in self._clips:
            box = self._clip_box(clip, count)
            left, low, right, high = self._page_box
            whole = box[0] <= left and box[1] <= low and box[2] >= right and box[3] >= high
            self._clips[key] = box, None if whole else self.turn(*box)
        box, shown = self._clips[key]
        if not self._has_forms or piece in self._order:
            return shown
        if not pdf_calls.bounds(piece, *self._edges.places):
            return None
        left, low, right, high = self._edges.get()
        return _NOTHING if left >= box[2] or right <= box[0] or low >= box[3] or high <= box[1] else None

    def _clip_box(self, clip: int, count: int) -> Box:
        """Return (left, bottom, right, top) of the box that holds what all paths of a clip hold."""
        x0, y0, x1, y1 = -inf, -inf, inf, inf
        for number in range(min(count, _MOST_CLIPS)):
            points = []
            for at in range(min(pdf_calls.count_clip_segments(clip, number), _MOST_CORNERS)):
                if pdf_calls.segment_point(pdf_calls.clip_segment(clip, number, at), *self._point.places):
                    points.append(self._point.get())
            if points:
                xs, ys = zip(*points, strict=True)
                x0, x1, y0, y1 = max(x0, min(xs)), min(x1, max(xs)), max(y0, min(ys)), min(y1, max(ys))
        return x0, y0, x1, y1

    def _judge(self, piece: int) -> Doubt:
        """Return whether the text object ``piece`` may be invisible, because of its layer, colour, opacity or render
        mode.
        """
        if self._layers is not None and self._layers.may_hide(piece, piece in self._order):
            return "doubtful"
        if pdf_calls.fill_colour(piece, *self._places):
            red, green, blue, alpha = self._colour.tolist()
            if alpha <= _FAINT or (red >= _WHITE and green >= _WHITE and blue >= _WHITE):
                return "doubtful"
        invisible = pdf_calls.render_mode(piece) == raw.FPDF_TEXTRENDERMODE_INVISIBLE and not self._is_scan()
        return "doubtful" if invisible else ""

    def _is_scan(self) -> bool:
        if self._has_image is None:
            self._has_image = has_image(self._page)
        return self._has_image


def _in_bands(covers: Sequence[tuple[int, Box]]) -> dict[float, list[tuple[int, Box]]]:
    """Divide the page into horizontal bands, and list for each band the objects that reach into it. ``covers`` are the
    objects that may cover text, in drawing order.
    """
    bands: dict[float, list[tuple[int, Box]]] = {}
    for cover in covers:
        _, (_, _, top, bottom) = cover
        for band in range(int(max(0.0, top) // _BAND), int(min(_TALLEST, bottom) // _BAND) + 1):
            bands.setdefault(band, []).append(cover)
    return bands


def _holds(box: Box, x: float, y: float) -> bool:
    return box[0] <= x <= box[1] and box[2] <= y <= box[3]


@dataclass(frozen=True)
class Layers:
    """The names of the hidden layers of a file."""

    off: frozenset[str]

    def may_hide(self, piece: int, of_page: bool) -> bool:
        """Whether the text object ``piece`` may be on a hidden layer: on a layer that is hidden or has no name. Text on
        no layer may be hidden too if it is inside a group (``of_page`` is False), because the group may be on a hidden
        layer.
        """
        layer = layer_of(cast(piece, raw.FPDF_PAGEOBJECT))
        return not of_page if layer is None else not layer or layer in self.off


@dataclass
class _Drawn:
    """The drawn objects of a page: ``items`` in drawing order; (position in this order, box) of each object that may
    cover text; all paths; pictures, also those in groups; boxes of the groups; whether there are groups; addresses of
    the fonts, also those in groups.
    """

    items: list[int]
    covers: list[tuple[int, Box]] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    pictures: list[Image] = field(default_factory=list)
    groups: list[Box] = field(default_factory=list)
    has_forms: bool = False
    fonts: set[int | None] = field(default_factory=set)


def _drawn(page: pdfium.PdfPage, turn: Turn) -> _Drawn:
    """Examine the drawn objects of a page. ``turn`` converts places in the file to places on the page."""
    handle, get = pdf_calls.handle(page.raw), pdf_calls.page_object
    items = [get(handle, at) for at in range(min(raw.FPDFPage_CountObjects(page.raw), MOST_OBJECTS))]
    kinds = list(map(pdf_calls.kind_of, items))
    drawn = _Drawn(items)
    edges, mode, stroke = pdf_calls.Floats(4), c_int(), c_int()
    text, path, image, form = _KINDS
    others = [at for at, kind in enumerate(kinds) if kind != text]  # most objects are pieces of text
    drawn.fonts.update(map(pdf_calls.font_of, (item for item, kind in zip(items, kinds, strict=True) if kind == text)))
    first = kinds.index(text) if len(others) < len(items) else len(items)
    for at in others:
        kind = kinds[at]
        if kind == form:
            drawn.has_forms = True
            drawn.fonts |= fonts_in(items[at])
            drawn.pictures += images_in(items[at], turn)
        if kind not in (path, image, form) or not pdf_calls.bounds(items[at], *edges.places):
            continue
        x0, y0, x1, y1 = edges.get()
        if kind == form:
            drawn.groups.append(turn(x0, y0, x1, y1))
            continue
        if kind == path:
            drawn.paths.append((items[at], x0, y0, x1, y1))
        else:
            drawn.pictures.append((items[at], turn(x0, y0, x1, y1)))
        if at > first and x1 - x0 > THIN < y1 - y0 and len(drawn.covers) < _MOST_COVERS:
            if kind == path:
                pdf_calls.draw_mode(items[at], addressof(mode), addressof(stroke))
                if mode.value == raw.FPDF_FILLMODE_NONE:
                    continue
            drawn.covers.append((at, turn(x0, y0, x1, y1)))
    return drawn


def has_image(page: pdfium.PdfPage) -> bool:
    """Whether a page has a picture."""
    images = page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=_IMAGE_DEPTH)
    return next(iter(images), None) is not None


def is_mostly_picture(page: pdfium.PdfPage, lines: Sequence[Line], pictures: Sequence[Image]) -> bool:
    """Whether a picture covers most of a page and has almost none of the page's text on it. A picture with text on it
    is a background, or a scan with recognised text.
    """
    width, height = page.get_size()
    for _, (x0, x1, top, bottom) in pictures:
        seen = max(0.0, min(x1, width) - max(x0, 0.0)) * max(0.0, min(bottom, height) - max(top, 0.0))
        if seen < _MOST_OF_PAGE * width * height:
            continue
        if text_on(lines, (x0, x1, top, bottom)) < ON_PICTURE:
            return True
    return False


def mark_unseen(page: pdfium.PdfPage, lines: Sequence[Line]) -> None:
    """Mark a line as invisible if it stands outside of what is drawn, or if there is a doubt and the rendered page
    shows a single colour at the line's place.
    """
    for line in lines:
        if line.doubt == "outside" and line.shown:
            line.shown, line.unseen = False, True
    suspects = [line for line in lines if line.doubt and line.shown]
    if not suspects:
        return
    width, height = page.get_size()
    scale = min(1.0, (_MOST_POINTS / max(width * height, 1.0)) ** 0.5)
    try:
        drawn = page.render(scale=scale, grayscale=True, may_draw_forms=False)
    except pdfium.PdfiumError:  # without the rendered page, suspect lines count as visible
        return
    points = bytes(drawn.buffer)
    for line in suspects:
        # height that is ignored at the line's top and bottom, where a covering object may end
        edge = _EDGE * line.height
        first, last = max(0, int((line.top + edge) * scale)), int((line.bottom - edge) * scale) + 1
        start, end = max(0, int(line.x0 * scale)), min(int(line.x1 * scale) + 1, drawn.width)
        rows = range(first * drawn.stride, min(last, drawn.height) * drawn.stride, drawn.stride)
        part = b"".join(points[row + start : row + max(start, end)] for row in rows)
        if part and max(part) - min(part) < _CONTRAST:
            line.shown, line.unseen = False, True
