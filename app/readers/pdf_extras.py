"""What a PDF says of itself beside its pages: labels, table of contents, title and author. Damage there costs only it.

Runs in the child only. Knows pdfium's document; knows no text of a page.
"""

from __future__ import annotations

import ctypes

import pypdfium2 as pdfium

from app.readers import cleaning
from app.readers.parsed import Heading

_OUTLINE_DEPTH = 8
_OUTLINE_ENTRIES = 10_000


def label(document: pdfium.PdfDocument, index: int) -> str:
    """What stands for the number of a page, from 0; "" where nothing does."""
    try:
        return cleaning.one_line(document.get_page_label(index), 20)
    except (pdfium.PdfiumError, ValueError, UnicodeError):
        return ""


def names(document: pdfium.PdfDocument) -> tuple[str, str]:
    """Title and author."""
    try:
        found = document.get_metadata_dict()
    except (pdfium.PdfiumError, ValueError, UnicodeError):
        return "", ""
    return found.get("Title", ""), found.get("Author", "")


def outline(document: pdfium.PdfDocument) -> list[Heading]:
    """The table of contents, as far as its lines lead to pages."""
    entries: list[Heading] = []
    try:
        for bookmark in document.get_toc(max_depth=_OUTLINE_DEPTH):
            if len(entries) >= _OUTLINE_ENTRIES:
                break
            target = bookmark.get_dest()
            index = target.get_index() if target else None
            title = cleaning.one_line(bookmark.get_title())
            if title and index is not None and 0 <= index < len(document):
                entries.append(Heading(title, index + 1, bookmark.level))
    except (pdfium.PdfiumError, ValueError, UnicodeError, ctypes.ArgumentError):
        pass  # a broken table of contents costs the contents, not the book
    return entries
