"""Turns scanned or photographed pictures (PNG, JPEG, TIFF, WebP), and books of pictures in a zip container (CBZ), into
a PDF in memory. Runs only in the child process (``app.readers.child``).
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.readers import archive
from app.readers.parsed import Limits, Refused, damaged

if TYPE_CHECKING:
    import pypdfium2 as pdfium
    from PIL.Image import Image as Picture

KINDS = ((0, b"\x89PNG\r\n"), (0, b"\xff\xd8\xff"), (0, b"II*\x00"), (0, b"MM\x00*"), (8, b"WEBP"))
"""The magic bytes of each format, with their offset in the file before them."""

_ZIP = b"PK\x03\x04"
_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp")
_BESIDE = (".xml", ".txt", ".db", ".nfo", ".ds_store")  # suffixes of files that stand beside the pictures of a book
_HEAD = 16  # leading bytes of a file that are read to detect its format
_LONG_SIDE = 11.7  # inches of the longer side of a picture that states no resolution: A4
# minimum and maximum plausible resolution in dots per inch; a stated resolution outside of this range is ignored
_DPI = (72, 1200)
_PLAIN = ("1", "L", "RGB")
_DEEP = ("I", "F")  # Pillow's modes with more than 256 shades, besides those that start with "I;16"
_ORIENTATION = 0x0112  # the Exif tag of the orientation
_LYING = (5, 6, 7, 8)  # values of the Exif orientation for a turn by 90 or 270 degrees
_OPAQUE = 128  # minimum opacity (0 to 255) of a pixel that a person sees
_LIGHT = 200  # minimum shade (0 to 255) of a pixel that is nearly white
_SHEET = (612.0, 792.0)  # width and height in points of the blank pages that stand for pages not needed


def is_picture(path: Path) -> bool:
    """Whether a file is a picture in a supported format, by its leading bytes, or a book of pictures."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return any(head.startswith(magic, place) for place, magic in KINDS) or (head.startswith(_ZIP) and _is_comic(path))


def _is_comic(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as files:
            return bool(pages_of(files.namelist()))
    except (*archive.DAMAGE, ValueError):
        return False


def pages_of(names: Sequence[str]) -> list[str]:
    """Return the pictures of a zip container in the order of the pages; [] if it holds something else too."""
    held = [name for name in names if not name.endswith("/") and not name.startswith("__MACOSX/")]
    images = [name for name in held if name.lower().endswith(_SUFFIXES)]
    others = [name for name in held if not name.lower().endswith((*_SUFFIXES, *_BESIDE))]
    return [] if others else sorted(images, key=_counting)


def _counting(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts page10 after page9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,9})", name.casefold())]


def as_pdf(path: Path, number: int | None = None, beat: Callable[[], None] = lambda: None) -> pdfium.PdfDocument:
    """Make a PDF with one page for each picture of a file. Each picture is turned upright by its Exif orientation.

    Only a TIFF file can have several pages. In other formats, further pictures are thumbnails, depth maps or frames of
    a film, and are ignored.

    Args:
        path: the file.
        number: the only page to make, from 1, or None for all pages. Other pages stay blank, to save time.
        beat: called before each page, to report progress.

    Raises:
        Refused: the file is damaged, or larger than any scan.
    """
    import pypdfium2 as pdfium  # imported here, so that child processes that need no picture start faster
    from PIL import Image

    made = pdfium.PdfDocument.new()
    if zipfile.is_zipfile(path):
        _add_comic(made, path, number, beat)
        return made
    try:
        with Image.open(path) as picture:
            for frame in range(getattr(picture, "n_frames", 1) if picture.format == "TIFF" else 1):
                if number is not None and frame + 1 != number:
                    made.new_page(*_SHEET)
                    continue
                beat()
                picture.seek(frame)
                made.import_pages(_sheet(picture))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise damaged("is damaged, or an image that is larger than any scan.") from None
    return made


def _sheet(picture: Picture) -> pdfium.PdfDocument:
    """Make a PDF with one page of a picture."""
    import pypdfium2 as pdfium

    # the resolution is read before the pixels are loaded, because loading may turn the picture
    sheet, dpi = io.BytesIO(), _dpi(picture)
    plain(picture).save(sheet, "PDF", dpi=dpi)
    return pdfium.PdfDocument(sheet.getvalue())


def _add_comic(made: pdfium.PdfDocument, path: Path, number: int | None, beat: Callable[[], None]) -> None:
    """Add a page for each picture of a zip container. A damaged picture becomes a blank page."""
    from PIL import Image

    with archive.open_bounded(path, Limits()) as files:
        for at, name in enumerate(pages_of(files.namelist()), 1):
            if number is not None and at != number:
                made.new_page(*_SHEET)
                continue
            beat()
            try:
                with Image.open(io.BytesIO(archive.read_part(files, name, "a picture"))) as picture:
                    made.import_pages(_sheet(picture))
            except (OSError, ValueError, SyntaxError, Refused, Image.DecompressionBombError):
                made.new_page(*_SHEET)


def _dpi(picture: Picture) -> tuple[float, float]:
    """Return the horizontal and the vertical resolution in dots per inch. The two differ in a fax."""
    said = tuple(float(one) for one in picture.info.get("dpi", ()))
    if len(said) == 2 and all(_DPI[0] <= one <= _DPI[1] for one in said):
        across, down = said
        return (down, across) if picture.getexif().get(_ORIENTATION, 1) in _LYING else (across, down)
    taken = max(picture.size) / _LONG_SIDE
    return taken, taken


def plain(picture: Picture) -> Picture:
    """Turn a picture upright, and reduce each channel to 256 shades. Put transparent parts on white, or on black if
    all else is nearly white.
    """
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
        shades = np.asarray(drawn.convert("L"))[np.asarray(drawn)[:, :, 3] >= _OPAQUE]
        under = "black" if shades.size and shades.min() >= _LIGHT else "white"
        return Image.alpha_composite(Image.new("RGBA", drawn.size, under), drawn).convert("RGB")
    return upright.convert("RGB")
