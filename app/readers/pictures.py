"""Pictures that were scanned or photographed (PNG, JPEG, TIFF, WebP) as PDFs in memory, a page each. Child only."""

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
"""Where which bytes stand in such a file."""

_HEAD = 16  # bytes in which they stand
_LONG_SIDE = 11.7  # inches that the longer side is taken to have where the file does not say: A4
_DPI = (72, 1200)  # that are believed
_PLAIN = ("1", "L", "RGB")
_DEEP = ("I", "F")  # and "I;16" in its orders of bytes: more than 256 shades
_ORIENTATION, _LYING = 0x0112, (5, 6, 7, 8)  # the camera's word that the picture is to be turned by a quarter
_SHEET = (612.0, 792.0)  # points


def is_picture(path: Path) -> bool:
    """Whether a file is such a picture, by its first bytes."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return any(head.startswith(magic, place) for place, magic in KINDS)


def as_pdf(path: Path, number: int | None = None, beat: Callable[[], None] = lambda: None) -> pdfium.PdfDocument:
    """The pictures of a file, each as a page of its size, upright as the camera says.

    Only a TIFF has several pages. What else comes after the first picture is a small copy, a depth map or motion.

    Args:
        number: the page that is wanted, from 1; the others are blank, which takes no time. None: all are.
        beat: called before each page, to tell that it goes on.

    Raises:
        Refused: it is damaged, or larger than any scan.
    """
    import pypdfium2 as pdfium  # every child would wait for them
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
                sheet, dpi = io.BytesIO(), _dpi(picture)  # before it is loaded, which may turn it
                _plain(picture).save(sheet, "PDF", dpi=dpi)
                made.import_pages(pdfium.PdfDocument(sheet.getvalue()))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise damaged("is damaged, or an image that is larger than any scan.") from None
    return made


def _dpi(picture: Picture) -> tuple[float, float]:
    """Dots an inch, across and down: a fax has twice as many across."""
    said = tuple(float(one) for one in picture.info.get("dpi", ()))
    if len(said) == 2 and all(_DPI[0] <= one <= _DPI[1] for one in said):
        across, down = said
        return (down, across) if picture.getexif().get(_ORIENTATION, 1) in _LYING else (across, down)
    taken = max(picture.size) / _LONG_SIDE
    return taken, taken


def _plain(picture: Picture) -> Picture:
    """Upright, on white where it is transparent, in 256 shades where it has more."""
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
