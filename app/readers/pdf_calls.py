"""Calls those functions of pdfium that run for every word and line of a page. Passes addresses instead of typed
pointers. Runs only in the child process (``app.readers.child``).

ctypes passes an address three times as fast as a typed pointer. With typed pointers, the calls took a quarter of the
reading time. A handle takes half the time of an address, because the types of a function's arguments are not declared.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import PYFUNCTYPE, addressof, c_float, c_int, c_size_t, c_uint, c_ulong, c_void_p, cast, sizeof
from typing import Any

import pypdfium2.raw as raw


def address(handle: Any) -> int:
    """Return the address of a pdfium object."""
    return cast(handle, c_void_p).value or 0


def handle(pointer: Any) -> c_void_p:
    """Return the handle of a page, its text or a buffer, which the functions that take an index accept."""
    return cast(pointer, c_void_p)


def _by_index(function: Any, result: Any) -> Callable[..., Any]:
    """Return a function of a handle, an index, and perhaps a handle for its result."""
    return PYFUNCTYPE(result)(address(function))


def _by_address(function: Any, result: Any, *arguments: Any) -> Callable[..., Any]:
    return PYFUNCTYPE(result, *arguments)(address(function))


text_object = _by_index(raw.FPDFText_GetTextObject, c_void_p)
loose_box = _by_index(raw.FPDFText_GetLooseCharBox, c_int)
angle = _by_index(raw.FPDFText_GetCharAngle, c_float)
is_generated = _by_index(raw.FPDFText_IsGenerated, c_int)
has_no_letter = _by_index(raw.FPDFText_HasUnicodeMapError, c_int)
page_object = _by_index(raw.FPDFPage_GetObject, c_void_p)
kind_of = _by_address(raw.FPDFPageObj_GetType, c_int, c_void_p)
bounds = _by_address(raw.FPDFPageObj_GetBounds, c_int, c_void_p, *[c_void_p] * 4)
fill_colour = _by_address(raw.FPDFPageObj_GetFillColor, c_int, c_void_p, *[c_void_p] * 4)
font_of = _by_address(raw.FPDFTextObj_GetFont, c_void_p, c_void_p)
font_name = _by_address(raw.FPDFFont_GetBaseFontName, c_size_t, c_void_p, c_void_p, c_size_t)
count_parts = _by_address(raw.FPDFFormObj_CountObjects, c_int, c_void_p)
part = _by_address(raw.FPDFFormObj_GetObject, c_void_p, c_void_p, c_ulong)
clip_path = _by_address(raw.FPDFPageObj_GetClipPath, c_void_p, c_void_p)
count_clips = _by_address(raw.FPDFClipPath_CountPaths, c_int, c_void_p)
count_clip_segments = _by_address(raw.FPDFClipPath_CountPathSegments, c_int, c_void_p, c_int)
clip_segment = _by_address(raw.FPDFClipPath_GetPathSegment, c_void_p, c_void_p, c_int, c_int)
render_mode = _by_address(raw.FPDFTextObj_GetTextRenderMode, c_int, c_void_p)
draw_mode = _by_address(raw.FPDFPath_GetDrawMode, c_int, c_void_p, c_void_p, c_void_p)
matrix = _by_address(raw.FPDFPageObj_GetMatrix, c_int, c_void_p, c_void_p)
count_segments = _by_address(raw.FPDFPath_CountSegments, c_int, c_void_p)
segment = _by_address(raw.FPDFPath_GetPathSegment, c_void_p, c_void_p, c_int)
segment_point = _by_address(raw.FPDFPathSegment_GetPoint, c_int, c_void_p, c_void_p, c_void_p)
segment_kind = _by_address(raw.FPDFPathSegment_GetType, c_int, c_void_p)
segment_closes = _by_address(raw.FPDFPathSegment_GetClose, c_int, c_void_p)


def colour_of(item: int) -> tuple[int, ...]:
    """Return the red, green and blue (0 to 255) with which an object is filled; () if there is none."""
    colour = (c_uint * 4)()
    places = [addressof(colour) + sizeof(c_uint) * at for at in range(4)]
    return tuple(colour[:3]) if fill_colour(item, *places) else ()


class Floats:
    """An array of numbers into which pdfium writes. ``places`` has the address of each number."""

    def __init__(self, count: int) -> None:
        self._values = (c_float * count)()
        start = address(self._values)
        self.places = [start + 4 * at for at in range(count)]

    def get(self) -> list[float]:
        return self._values[:]
