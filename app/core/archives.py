"""Takes an archive of documents apart: each document becomes a book of the library, and all together a collection."""

from __future__ import annotations

import tempfile
from pathlib import Path, PurePath

from app.core.books import Book
from app.core.state import AppState
from app.readers.conversion import ConversionOffer
from app.readers.recognition import Recognition
from app.readers.unpacking import unpack, without_unreadable
from engine.errors import DocumentError, NoTextLayer, PasswordNeeded, TrifoldError
from engine.model_files import TEMPORARY


def taken_apart(state: AppState, book: Book) -> Book:
    """Return the collection of the documents of a zip archive, or its only document. Return any other book unchanged,
    and an archive that was read as one book before, because it may have chats.

    A document that cannot be read is left out with a warning; one with a password, or one
    that has to be converted, stays in the library. The archive
    itself is not kept.

    Raises:
        ResourceError: the data folder cannot be written.
    """
    if book.is_collection or book.pages or PurePath(book.name).suffix.lower() != ".zip":
        return book
    with tempfile.TemporaryDirectory(prefix=TEMPORARY) as folder:
        found = unpack(state.books.path(book), Path(folder))
        if found is None:
            return book
        told = list(found.warnings)
        parts = without_unreadable(found.documents, lambda document: _added(state, *document), told)
    if not parts:
        return book  # its parser says what is wrong
    collection = state.books.collect(parts, told=told)
    if collection.is_collection and not collection.given:
        collection = state.books.rename(collection.sha256, PurePath(book.name).stem)
    state.books.forget(book.sha256)
    return collection


def _added(state: AppState, file: Path, name: str) -> Book:
    """Add a document to the library. Pages that are pictures are no error, because they can be recognised.

    Raises:
        DocumentError: the document cannot be read. It stays in the library if a person can have it read.
        ResourceError: the data folder cannot be written.
    """
    known = {one.sha256 for one in state.books.all()}
    part = state.books.copy_in(file, name)
    try:
        state.parser.parse(part, recognition=Recognition.stopped(state.books.folder))
    except NoTextLayer:
        return part
    except PasswordNeeded as locked:
        raise DocumentError(locked.cause, "Open it by itself once, with its password, and then add it.") from locked
    except ConversionOffer as offer:
        raise DocumentError(offer.cause, "Open it by itself once, have it converted, and then add it.") from offer
    except TrifoldError as refused:
        if part.sha256 not in known:
            state.books.forget(part.sha256)
        raise DocumentError(refused.cause) from refused
    return part
