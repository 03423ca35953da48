"""The picture of a book's cover: its first page, drawn once in the readers' bounded process. Knows no library."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from app.books import COVER
from app.incoming import write_whole
from engine.document import Document
from engine.errors import TrifoldError

logger = logging.getLogger(__name__)

WIDTH = 320  # pixels: twice what the library shows, for dense screens


def draw_in_background(path: Path, document: Document, password: str | None) -> threading.Thread | None:
    """Draw the cover beside the file unless it is there; formats without pages have covers of words.

    The picture of a book that asks for a password is not kept.
    """
    if document.kind != "pdf" or password or (path.parent / COVER).is_file():
        return None
    thread = threading.Thread(target=_draw, args=(path,), name="trifold-cover", daemon=True)
    thread.start()
    return thread


def _draw(path: Path) -> None:
    from app.readers.pages import render_page

    try:
        picture = render_page(path, 1, width=WIDTH)
        if path.is_file():  # the book may have been deleted meanwhile
            write_whole(path.parent / COVER, picture)
    except (TrifoldError, OSError) as error:
        logger.info("no cover: %s", error)
