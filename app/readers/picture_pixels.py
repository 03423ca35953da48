"""Loads the pixels of a picture inside a document for recognition: draws the part of a PDF's page with the picture, or
opens the picture's file. Runs only in the child process (``app.readers.child``).
"""

from __future__ import annotations

import base64
import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote_to_bytes

import numpy as np
import PIL.Image
import pypdfium2 as pdfium
from numpy.typing import NDArray

from app.readers import archive, picture_marks, pictures
from app.readers.inner_pictures import LOWEST_WORDS, WIDEST_ICON, PicturePlace, place_of
from app.readers.parsed import Limits, Refused, damaged
from app.readers.pdf import open_pdf

_HEAD = 1024  # leading bytes of a file in which a PDF names itself
_DPI = (150.0, 300.0)  # minimum and maximum resolution, in dots per inch, at which a picture of a page is drawn
_LONG_SIDE = 2_400  # maximum pixels of the longer side of a picture that is recognised
_ENLARGED = 1_600  # a picture whose longer side has fewer pixels is enlarged, so that single digits are found
_MOST_TIMES = 2.0  # maximum factor by which a picture is enlarged
_HEX_STARTS = (b"89504e", b"ffd8ff")  # the first bytes of a PNG and of a JPEG, in hexadecimal digits
_HEXED = 6  # digits of these
_MOST_PIXELS = 60_000_000  # maximum pixels of a picture; a larger one is not opened

Pixels = NDArray[np.uint8]
"""A picture as (height, width, 3), in the order blue, green, red."""


@contextmanager
def opening(path: Path, password: str | None, beat: Callable[[], None]) -> Iterator[Callable[[str], Pixels | None]]:
    """Open a document. Yield a function that returns the pixels of the picture with a key; None if it cannot be shown.

    Raises:
        Refused: the document cannot be opened.
    """
    with path.open("rb") as file:
        is_pdf = b"%PDF-" in file.read(_HEAD)
    if not is_pdf and zipfile.is_zipfile(path):
        with archive.open_bounded(path, Limits()) as files:
            names = archive.Names(files)
            yield lambda key: _part(files, names.find(key))
        return
    if not is_pdf and not pictures.is_picture(path):
        inside = picture_marks.embedded(path.read_bytes())
        yield lambda key: _decoded(inside.get(key, b""))
        return
    document = open_pdf(path, password, beat=beat)
    if document is None:
        raise damaged()

    def on_page(key: str) -> Pixels | None:
        try:
            return drawn(document, place_of(key))
        except (pdfium.PdfiumError, ValueError):
            return None

    try:
        yield on_page
    finally:
        document.close()


def _part(files: zipfile.ZipFile, name: str | None) -> Pixels | None:
    try:
        return opened(archive.read_part(files, name, "a picture")) if name else None
    except (Refused, *archive.DAMAGE):
        return None


def _decoded(data: bytes) -> Pixels | None:
    try:
        is_hex = data[:_HEXED].lower() in _HEX_STARTS
        return opened(bytes.fromhex(data.decode("ascii")) if is_hex else base64.b64decode(unquote_to_bytes(data)))
    except ValueError:
        return None


def drawn(document: pdfium.PdfDocument, place: PicturePlace) -> Pixels:
    """Draw the part of a page with a picture."""
    x0, x1, top, bottom = place.box
    page = document[place.number - 1]
    try:
        page.set_rotation(place.rotation)
        width, height = page.get_size()
        wide, tall = max(x1 - x0, 1.0), max(bottom - top, 1.0)
        dpi = min(max(72 * place.pixels / wide, _DPI[0]), _DPI[1])
        scale = _scale(dpi / 72 * max(wide, tall)) * dpi / 72
        crop = (max(x0, 0.0), max(height - bottom, 0.0), max(width - x1, 0.0), max(top, 0.0))
        return np.ascontiguousarray(page.render(scale=scale, crop=crop, rev_byteorder=False).to_numpy()[:, :, :3])
    finally:
        page.close()


def _scale(longest: float) -> float:
    """Return the factor by which a picture with this many pixels on the longer side is enlarged, or reduced."""
    return min(max(1.0, min(_ENLARGED / longest, _MOST_TIMES)), _LONG_SIDE / longest)


def opened(data: bytes) -> Pixels | None:
    """Return the pixels of a picture's file; None if it is an icon, damaged, of an unknown format or too large."""
    try:
        with PIL.Image.open(io.BytesIO(data)) as picture:
            across, down = picture.size
            if across * down > _MOST_PIXELS or max(across, down) <= WIDEST_ICON or min(across, down) < LOWEST_WORDS:
                return None
            picture.draft("RGB", (_LONG_SIDE, _LONG_SIDE))
            plain = pictures.plain(picture).convert("RGB")
    except (OSError, ValueError, SyntaxError, EOFError, struct.error, zlib.error, PIL.Image.DecompressionBombError):
        return None
    factor = _scale(max(plain.size))
    if factor != 1.0:
        size = (max(1, round(plain.width * factor)), max(1, round(plain.height * factor)))
        plain = plain.resize(size, PIL.Image.Resampling.BICUBIC)
    return np.ascontiguousarray(np.asarray(plain)[:, :, ::-1])
