"""Pictures that were scanned or photographed (PNG, JPEG, TIFF, WebP) as PDFs in memory, a page each. Child only."""

from __future__ import annotations

import io
from pathlib import Path

from app.readers.parsed import damaged

KINDS = ((0, b"\x89PNG\r\n"), (0, b"\xff\xd8\xff"), (0, b"II*\x00"), (0, b"MM\x00*"), (8, b"WEBP"))
"""Where which bytes stand in such a file."""

_HEAD = 16  # bytes in which they stand
_LONG_SIDE = 11.7  # inches that the longer side is taken to have where the file does not say: A4
_DPI = (72, 1200)  # that are believed
_PLAIN = ("1", "L", "RGB")


def is_picture(path: Path) -> bool:
    """Whether a file is such a picture, by its first bytes."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return any(head.startswith(magic, place) for place, magic in KINDS)


def as_pdf(path: Path) -> bytes:
    """The pictures of a file, each as a page of its size, upright as the camera says.

    Raises:
        Refused: it is damaged, or larger than any scan.
    """
    from PIL import Image, ImageOps  # every child would wait for it

    made = io.BytesIO()
    try:
        with Image.open(path) as picture:
            said = float(picture.info.get("dpi", (0, 0))[0])
            dpi = said if _DPI[0] <= said <= _DPI[1] else max(picture.size) / _LONG_SIDE
            if getattr(picture, "n_frames", 1) > 1:
                picture.save(made, "PDF", resolution=dpi, save_all=True)
            else:
                upright = ImageOps.exif_transpose(picture)
                plain = upright if upright.mode in _PLAIN else upright.convert("RGBA").convert("RGB")
                plain.save(made, "PDF", resolution=dpi)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise damaged("is damaged, or an image that is larger than any scan.") from None
    return made.getvalue()
