"""Turns files into books: ``read_document`` reads a file into a ``Document``, ``page_images`` draws and searches PDF
pages.

Untrusted bytes are parsed only in a child process. The child imports this package too, but never calls
``read_document``, whose imports are slow. Therefore ``read_document`` is imported on first use only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.readers.parsed import Limits

if TYPE_CHECKING:
    from app.readers.document_reader import read_document

__all__ = ["Limits", "read_document"]


def __getattr__(name: str) -> Any:
    if name == "read_document":
        from app.readers.document_reader import read_document

        return read_document
    raise AttributeError(name)
