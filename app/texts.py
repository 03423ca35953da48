"""The text of books that were taken apart before, kept beside their files, so that opening them again parses nothing.

Owns one file per book, ``text.json``. It is used only if the readers are the very ones that made it; the text of a
book that asked for a password is not kept. Knows no format.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from app.incoming import write_whole
from engine.document import Document, OutlineItem, Page

logger = logging.getLogger(__name__)

FILE = "text.json"
_READERS = Path(__file__).resolve().parent / "readers"

Read = Callable[..., Document]


class KeptTexts:
    """Reads a file of the library as ``read_document`` does, from the kept text where there is one.

    Args:
        read_document: takes a file apart.
    """

    def __init__(self, read_document: Read) -> None:
        self._read_document = read_document

    def __call__(self, path: Path, password: str | None = None) -> Document:
        kept = path.parent / FILE
        document = load(kept)
        if document is not None:
            return document
        document = self._read_document(path, password=password)
        if not password:
            save(kept, document)
        return document


def save(path: Path, document: Document) -> None:
    """Keep a document; a disk that refuses costs only the time of the next opening."""
    record = {"readers": readers_hash(), "document": asdict(document)}
    try:
        write_whole(path, json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))
    except OSError as error:
        logger.warning("the text of a book was not kept: %s", error)


def load(path: Path) -> Document | None:
    """The document, or None if there is none, it is damaged, or other readers made it."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return _document(record["document"]) if record["readers"] == readers_hash() else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


@cache
def readers_hash() -> str:
    """Names the readers of this program: a text that others made may have been read otherwise."""
    digest = hashlib.sha256()
    for file in sorted(_READERS.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _document(record: dict[str, Any]) -> Document:
    pages = tuple(Page(**page) for page in record["pages"])
    outline = tuple(OutlineItem(**item) for item in record["outline"])
    return Document(**{**record, "pages": pages, "outline": outline, "warnings": tuple(record["warnings"])})
