"""Files become books: ``read_document`` reads one into a ``Document``, ``page_images`` draws and searches PDF pages.

Foreign bytes are parsed in a child process only. This module is imported by that child too, so the parent's half
(which needs ``engine``) is looked up when it is first asked for and the child starts light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.readers.parsed import Limits

if TYPE_CHECKING:
    from app.readers.reader import read_document

__all__ = ["Limits", "read_document"]


def __getattr__(name: str) -> Any:
    if name == "read_document":
        from app.readers.reader import read_document

        return read_document
    raise AttributeError(name)
