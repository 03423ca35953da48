"""Turns scanned or photographed pictures (PNG, JPEG, TIFF, WebP) into a PDF in memory. Runs only in the child process
(``app.readers.child``).
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from app.readers.parsed import damaged

if TYPE_CHECKING:
    import pypdfium2 as pdfium
    from PIL.Image import Image as Picture

KINDS = ((0, b"\x89PNG\r\n"), (0, b"\xff\xd8\xff"), (0, b"II*\x00"), (0, b"MM\x00*"), (8, b"WEBP"))
"""The magic bytes of each format, with their offset in the file before them."""

_HEAD = 16  # leading bytes of a file that are read to detect its format
_LONG_SIDE = 11.7  # inches of the longer side if the file does not state a resolution: A4
_DPI = (72, 1200)  # minimum and maximum plausible resolution in dots per inch; if a file states another, it is ignored
_PLAIN = ("1", "L", "RGB")
_DEEP = ("I", "F")  # modes with more than 256 shades, besides "I;16" and its variants for byte orders
_ORIENTATION = 0x0112  # the Exif tag of the orientation
_LYING = (5, 6, 7, 8)  # values of the Exif tag for a quarter turn
_SHEET = (612.0, 792.0)  # width and height of a blank page in points


def is_picture(path: Path) -> bool:
    """Whether a file is a picture of a supported format, by its leading bytes."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return any(head.startswith(magic, place) for place, magic in KINDS)


def as_pdf(path: Path, number: int | None = None, beat: Callable[[], None] = lambda: None) -> pdfium.PdfDocument:
    """Make a PDF with one page for each picture of a file, turned upright by its Exif orientation.

    Only a TIFF file can have several pages. In other formats, further pictures are thumbnails, depth maps or frames of
    a film, and are ignored.

    Args:
        path: the file.
        number: the only page to make, from 1; the other pages stay blank to save time. None makes all pages.
        beat: called before each page, to report progress.

    Raises:
        Refused: the file is damaged, or larger than any scan.
    """
    import pypdfium2 as pdfium  # imported here, so that other children start faster
    from PIL import Image

    made = pdfium.PdfDocument.new()
    try:
        with Image.open(path) as picture:
            for at in range(getattr(picture, "n_frames", 1) if picture.format == "TIFF" else 1):
                if number is not None and at + 1 != number:
                    made.new_page(*_SHEET)
                    continue
                beat()
                picture.seek(at)
                # the resolution is read before the pixels are loaded, because loading may turn the picture
                sheet, dpi = io.BytesIO(), _dpi(picture)
                _plain(picture).save(sheet, "PDF", dpi=dpi)
                made.import_pages(pdfium.PdfDocument(sheet.getvalue()))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise damaged("is damaged, or an image that is larger than any scan.") from None
    return made


def _dpi(picture: Picture) -> tuple[float, float]:
    """Return the horizontal and vertical resolution in dots per inch. In a fax the two differ."""
    said = tuple(float(one) for one in picture.info.get("dpi", ()))
    if len(said) == 2 and all(_DPI[0] <= one <= _DPI[1] for one in said):
        across, down = said
        return (down, across) if picture.getexif().get(_ORIENTATION, 1) in _LYING else (across, down)
    taken = max(picture.size) / _LONG_SIDE
    return taken, taken


def _plain(picture: Picture) -> Picture:
    """Turn a picture upright, put transparent parts on white, and reduce each channel to 256 shades."""
    import numpy as np
    from PIL import Image, ImageOps

    upright = ImageOps.exif_transpose(picture)
    if upright.mode in _PLAIN and not upright.has_transparency_data:
        return upright
    if upright.mode in _DEEP or upright.mode.startswith("I;16"):
        shades = np.asarray(upright, np.float32)
        scale = 255.0 / max(float(shades.max()), 1e-9)
        return Image.fromarray((shades * scale).clip(0, 255).astype(np.uint8))
    if upright.has_transparency_data:
        drawn = upright.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", drawn.size, "white"), drawn).convert("RGB")
    return upright.convert("RGB")
