"""The library: books that were opened on this machine, with their texts and covers.

Owns the folder ``books`` inside the data folder: one folder per book, named by the SHA-256 of the file, with the file
itself, the text cache (``text.json``, or ``text-alone.json`` for the text without comments), the image of its first
page, and ``book.json`` with the file's name. If the database is lost, the library is rebuilt from these folders. All
other facts about a book are in the database.

Several documents that are read as one are a book too (a collection). Its folder has a random name in place of a hash,
and a file ``COLLECTION`` that lists the hashes of the documents in their order. A collection is opened, asked about,
listed and deleted like any other book; its documents stay in the library.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from app.core.atomic_upload import PREFIX, AtomicUpload, clean, unwritable, write_whole
from app.core.db import Database
from app.readers.recognition import Recognition, is_kept
from engine.document import Document, OutlineItem, Page
from engine.errors import DocumentError, NoTextLayer, TrifoldError
from engine.sources import bytes_hash, code_hash

logger = logging.getLogger(__name__)

_HASH = re.compile(r"[0-9a-f]{64}")
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,8}")
_COPY_BLOCK = 1 << 20  # bytes that are copied in one step
_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,7}")  # a file's ending, such as ".pdf"; not the ".2" of "Report v1.2"
_RECORD = "book.json"
COLLECTION = "collection.json"
_DAMAGED = (OSError, ValueError, TypeError, KeyError, RecursionError)  # errors that reading a damaged record may raise
_JSON = "document.json"  # stored name of a file whose own name is ``book.json``, because the record has that name
_LEAVING = "leaving-"
COVER = "cover.png"
TEXT, TEXT_ALONE = "text.json", "text-alone.json"
"""File names of a book's cached text: ``TEXT`` with comments, ``TEXT_ALONE`` without."""
# pixels; the library shows covers at half this width, so that they are sharp on high-density screens
_COVER_WIDTH = 320
_READERS = Path(__file__).resolve().parents[1] / "readers"

Read = Callable[..., Document]


@dataclass(frozen=True)
class Book:
    """One book. ``name`` is the name of its file.

    ``title``, ``author``, ``pages`` and ``unit`` are known after it was first opened, ``tokens`` and ``pages_read``
    after it was last read. ``added`` and ``opened`` are seconds since the epoch.
    """

    sha256: str
    name: str
    file: str
    title: str = ""
    author: str = ""
    pages: int = 0
    unit: str = "page"
    tokens: int = 0
    pages_read: int = 0
    added: float = 0.0
    opened: float = 0.0

    @property
    def shown(self) -> str:
        """The book's title, or else its name. The name of a file is shown without its ending."""
        ending = PurePath(self.name).suffix
        cut = not self.is_collection and _ENDING.fullmatch(ending)
        return self.title or (self.name.removesuffix(ending) if cut else self.name)

    @property
    def is_collection(self) -> bool:
        """Whether the book consists of several documents."""
        return self.file == COLLECTION


class Books:
    """The books of one folder.

    Args:
        folder: where books are kept; made on first use.
        database: where the facts about the books are stored; None keeps them in memory.
        clock: seconds since the epoch.
    """

    def __init__(self, folder: Path, database: Database | None = None, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self.database = database or Database()
        self._sweep()
        self._find_again()

    def path(self, book: Book) -> Path:
        return self._folder / book.sha256 / book.file

    def folder(self, sha256: str) -> Path:
        """The folder of a book. It holds the file with this hash, and everything made from the file."""
        return self._folder / sha256

    def cover(self, sha256: str) -> Path | None:
        """The file with a book's cover; None if there is none."""
        path = self._folder / sha256 / COVER
        return path if _HASH.fullmatch(sha256) and path.is_file() else None

    def size(self, book: Book) -> int:
        """Bytes on disk of the file and of everything stored with it."""
        with suppress(OSError):
            return sum(entry.stat().st_size for entry in os.scandir(self._folder / book.sha256) if entry.is_file())
        return 0

    # Several documents as one book --------------------------------------------------------------------------

    def members(self, book: Book) -> tuple[Book, ...]:
        """The documents of a collection, in order; empty for a book that is no collection.

        Raises:
            DocumentError: a document is no longer in the library, or the list of documents is damaged.
        """
        return tuple(self.get(sha256) for sha256 in self._listed(book)) if book.is_collection else ()

    def collect(self, documents: Sequence[Book], collection: Book | None = None) -> Book:
        """Store several documents as one book. A document given twice counts once, and a collection in
        ``documents`` is replaced by its own documents.

        Args:
            collection: an existing collection, whose documents are replaced by ``documents``. If None, return the
                existing collection of exactly these documents in this order, or else make one.

        Raises:
            DocumentError: no document is given, or one is no longer in the library.
            ResourceError: the data folder cannot be written.
        """
        found = [part for book in documents for part in (self.members(book) or (book,))]
        ids = list(dict.fromkeys(part.sha256 for part in found))
        if not ids:
            raise DocumentError("There is no document to read.", "Choose one.")
        same = (book for book in self.all() if self.listed(book) == ids)
        if collection is None and (kept := next(same, None)) is not None:
            return kept
        left = {*self._once(collection), *self.listed(collection)}.difference(ids) if collection else ()
        sha256 = collection.sha256 if collection else secrets.token_hex(32)
        folder = self._folder / sha256
        name = collection.name if collection else name_of(" + ".join(part.shown for part in found))
        record = {"sha256": sha256, "name": name, "file": COLLECTION}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / COLLECTION, json.dumps({"documents": ids, "left_out": sorted(left)}).encode())
            if collection is None:
                write_whole(folder / _RECORD, json.dumps(record, ensure_ascii=False).encode())
        except OSError as error:
            raise unwritable(folder, error) from error
        return collection or self._enter(record)

    def collections_with(self, sha256: str) -> tuple[Book, ...]:
        """The collections that contain a document."""
        return tuple(book for book in self.all() if sha256 in self.listed(book))

    def collections_that_had(self, sha256: str) -> tuple[Book, ...]:
        """The collections that contained a document earlier. Their saved KV may still contain the document."""
        return tuple(book for book in self.all() if sha256 in self._once(book))

    def _once(self, book: Book) -> list[str]:
        """The hashes of the documents that a collection contained earlier and no longer contains."""
        with suppress(*_DAMAGED):
            if book.is_collection:
                return [str(one) for one in self._collection(book)["left_out"]]
        return []

    def listed(self, book: Book) -> list[str]:
        """The hashes of a collection's documents, in order; empty for a book that is no collection, or if the list is
        damaged.
        """
        with suppress(DocumentError):
            return self._listed(book) if book.is_collection else []
        return []

    def _collection(self, book: Book) -> Any:
        """Read the record of a collection. Raises one of ``_DAMAGED`` if the record is damaged or lacks a field."""
        return json.loads(self.path(book).read_text(encoding="utf-8"))

    def _listed(self, book: Book) -> list[str]:
        """Read the list of a collection's documents.

        Raises:
            DocumentError: the list cannot be read.
        """
        try:
            listed = self._collection(book)["documents"]
        except _DAMAGED:
            listed = None
        if not (isinstance(listed, list) and listed and all(isinstance(sha256, str) for sha256 in listed)):
            raise DocumentError(
                f"The list of documents of “{book.shown}” is damaged.", "Open its documents together again."
            )
        return listed

    def receive(self, name: str) -> AtomicUpload:
        """Receive a file piece by piece: ``with books.receive(name) as incoming: incoming.write(...)``."""
        return AtomicUpload(self._adopt, self._folder, name)

    def copy_in(self, source: Path) -> Book:
        """Copy a file of this machine into the library.

        Raises:
            DocumentError: the file cannot be read, or is larger than a book may be.
            ResourceError: the data folder cannot be written.
        """
        try:
            with source.open("rb") as file, self.receive(source.name) as incoming:
                while block := file.read(_COPY_BLOCK):
                    incoming.write(block)
                return incoming.keep()
        except FileNotFoundError as error:
            raise DocumentError(f"There is no file {source.name}.", "Choose another book.") from error

    def get(self, sha256: str) -> Book:
        """Find a book by its hash.

        Raises:
            DocumentError: the library has no such book.
        """
        book = self._load(sha256) if _HASH.fullmatch(sha256) else None
        if book is None:
            raise DocumentError("This book is no longer in Trifold's folder.", "Add its file again.")
        return book

    def all(self) -> tuple[Book, ...]:
        """Every book of the library, the last opened first."""
        rows = self.database.rows("SELECT * FROM books WHERE file <> '' ORDER BY opened DESC, added DESC")
        return tuple(book for book in map(_book, rows) if self.path(book).is_file())

    def text(self, book: Book) -> Document | None:
        """The cached text of a file; None if there is none."""
        folder = self.folder(book.sha256)
        return load_text(folder / TEXT) or load_text(folder / TEXT_ALONE)

    def remember(self, book: Book, *, title: str, author: str = "", pages: int, unit: str) -> Book:
        """Store the facts about a book that are known once its file has been parsed. Return the new ``Book``."""
        facts = {"title": clean(title), "author": clean(author), "pages": pages, "unit": unit}
        return self._save(book.sha256, {**facts, "opened": self._clock()})

    def read(self, book: Book, *, tokens: int, pages_read: int) -> Book:
        """Store how many pages and tokens of the book the model has read. Return the new ``Book``."""
        return self._save(book.sha256, {"tokens": tokens, "pages_read": pages_read, "opened": self._clock()})

    def forget(self, sha256: str) -> None:
        """Delete a book and everything stored with it, including its chats and notes, which the database deletes with
        the book's row.

        Raises:
            DocumentError: the library has no such book, or a collection contains it.
            ResourceError: its files cannot be deleted.
        """
        self.check_unused(sha256)
        folder = self._folder / self.get(sha256).sha256
        leaving = self._folder / f"{_LEAVING}{secrets.token_hex(8)}"
        try:
            os.replace(folder, leaving)  # the whole folder disappears at once, or stays
        except OSError as error:
            raise unwritable(folder, error) from error
        self.database.write(lambda connection: connection.execute("DELETE FROM books WHERE sha256 = ?", (sha256,)))
        shutil.rmtree(leaving, ignore_errors=True)

    def check_unused(self, sha256: str) -> None:
        """Check that no collection contains this document.

        Raises:
            DocumentError: a collection contains this document.
        """
        if holders := self.collections_with(sha256):
            named = f"“{self.get(sha256).shown}” is one of the documents of “{holders[0].shown}”."
            raise DocumentError(named, "Leave this document out there first, or delete that book.")

    def _adopt(self, partial: Path, sha256: str, name: str) -> Book:
        known = self._load(sha256)
        if known is not None:
            partial.unlink()
            return self._save(sha256, {"opened": self._clock()})
        suffix = PurePath(name).suffix
        file = "book" + (suffix.lower() if _SUFFIX.fullmatch(suffix) else "")
        file = _JSON if file == _RECORD else file
        folder = self._folder / sha256
        folder.mkdir(parents=True, exist_ok=True)
        os.replace(partial, folder / file)
        record = {"sha256": sha256, "name": name_of(name), "file": file}
        write_whole(folder / _RECORD, json.dumps(record, ensure_ascii=False).encode())
        return self._enter(record)

    def _enter(self, record: dict[str, Any]) -> Book:
        """Add a book that is in the folder to the database."""
        now = self._clock()
        names = ("sha256", "name", "file", "added", "opened")
        values = (record["sha256"], record["name"], record["file"], now, now)

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                f"INSERT INTO books ({', '.join(names)}) VALUES (?, ?, ?, ?, ?) ON CONFLICT (sha256) DO UPDATE "
                "SET name = excluded.name, file = excluded.file, opened = excluded.opened",
                values,
            )

        self.database.write(write)
        return self.get(record["sha256"])

    def _save(self, sha256: str, facts: dict[str, Any]) -> Book:
        columns = ", ".join(f"{name} = ?" for name in facts)

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(f"UPDATE books SET {columns} WHERE sha256 = ?", (*facts.values(), sha256))

        self.database.write(write)
        return self.get(sha256)

    def _load(self, sha256: str) -> Book | None:
        rows = self.database.rows("SELECT * FROM books WHERE sha256 = ? AND file <> ''", (sha256,))
        book = _book(rows[0]) if rows else None
        return book if book is not None and self.path(book).is_file() else None

    def _find_again(self) -> None:
        """Add the books of the folder that the database lacks, because the database was lost or is new."""
        known = {book.sha256 for book in self.all()}
        for folder in self._entries():
            if _HASH.fullmatch(folder.name) and folder.name not in known:
                record = _record(folder)
                if record is not None:
                    self._enter(record)

    def _sweep(self) -> None:
        """Finish a deletion, or undo an upload, that was interrupted when the program ended."""
        for entry in self._entries():
            if entry.name.startswith(_LEAVING):
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name.startswith(PREFIX):
                with suppress(OSError):
                    entry.unlink()

    def _entries(self) -> list[Path]:
        with suppress(OSError):
            return list(self._folder.iterdir())
        return []


def name_of(file: str) -> str:
    """A book's name, made from the name of its file."""
    return clean(PurePath(file).name) or "book"


def _book(row: sqlite3.Row) -> Book:
    return Book(**{field.name: row[field.name] for field in fields(Book)})


def _record(folder: Path) -> dict[str, Any] | None:
    """Read ``book.json``. Return None if the folder lacks this record or the book's file."""
    try:
        found = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        record = {name: str(found[name]) for name in ("sha256", "name", "file")}
    except _DAMAGED:
        return None
    named_well = record["sha256"] == folder.name and PurePath(record["file"]).name == record["file"] != ""
    return record if named_well and (folder / record["file"]).is_file() else None


class TextCache:
    """Reads a file of the library as ``read_document`` does, but takes the cached text if there is one.

    Cached text is not used if a different version of the readers made it, or if pages with doubtful text are to be
    recognised. Texts with and without comments are cached separately. The text of a book with a password is not cached.

    Args:
        read_document: reads a file.
    """

    def __init__(self, read_document: Read) -> None:
        self._read_document = read_document

    def __call__(
        self,
        path: Path,
        password: str | None = None,
        recognition: Recognition | None = None,
        *,
        comments: bool = True,
    ) -> Document:
        kept = path.parent / (TEXT if comments else TEXT_ALONE)
        if recognition is None and is_kept(path.parent):
            recognition = Recognition.stopped(lambda sha256: path.parent)
        document = load_text(kept)
        if document is not None and not (recognition and recognition.doubtful):
            return document
        try:
            how: dict[str, Any] = {"recognition": recognition} if recognition else {}
            if not comments:
                how["comments"] = False
            document = self._read_document(path, password=password, **how)
        except NoTextLayer as error:
            if recognition:
                raise
            raise NoTextLayer(error.cause, "Open it by itself first: then its words are recognised.") from error
        # Text with unread pages is not cached, so that these pages are recognised when the book is opened next.
        if not password and not any(page.picture == "unread" for page in document.pages):
            save_text(kept, document)
        return document


def save_text(path: Path, document: Document) -> None:
    """Cache a document's text. If that fails, the only loss is time when the book is opened next."""
    record = {"files": files_hash(), "readers": readers_hash(), "document": asdict(document)}
    try:
        write_whole(path, json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))
    except OSError as error:
        logger.warning("the text of a book was not kept: %s", error)


def load_text(path: Path) -> Document | None:
    """Load a document from its cached text. None if there is no such text, if it is damaged, or if a different version
    of the readers made it.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        is_current = record["files"] == files_hash() or record["readers"] == readers_hash()
        return _document(record["document"]) if is_current else None
    except _DAMAGED:
        return None


@cache
def files_hash() -> str:
    """Hash the bytes of the readers' source files. Only if this hash has changed, the slower ``readers_hash`` is
    compared.
    """
    return bytes_hash(file.read_bytes() for file in _reader_files())


@cache
def readers_hash() -> str:
    """Hash the readers' source code, because another version of the readers may read the same file differently.
    Comments, docstrings and layout are left out, so that a new wording of them does not make every cached text invalid.
    Takes about 0.3 seconds.
    """
    return code_hash(file.read_bytes() for file in _reader_files())


def _reader_files() -> list[Path]:
    return sorted(_READERS.glob("*.py"))


def _document(record: dict[str, Any]) -> Document:
    pages = tuple(Page(**page) for page in record["pages"])
    outline = tuple(OutlineItem(**item) for item in record["outline"])
    more = {"pages": pages, "outline": outline, "warnings": tuple(record["warnings"]), "members": ()}
    return Document(**{**record, **more})


def draw_cover(path: Path, document: Document, password: str | None) -> threading.Thread | None:
    """Draw a PDF's missing cover in a thread and store it next to the file. Other formats, and files with a password,
    get no cover.
    """
    if document.kind != "pdf" or password or (path.parent / COVER).is_file():
        return None
    thread = threading.Thread(target=_draw_cover, args=(path,), name="trifold-cover", daemon=True)
    thread.start()
    return thread


def _draw_cover(path: Path) -> None:
    from app.readers.page_images import render_page

    try:
        picture = render_page(path, 1, width=_COVER_WIDTH)
        if path.is_file():  # the book may have been deleted meanwhile
            write_whole(path.parent / COVER, picture)
    except (TrifoldError, OSError) as error:
        logger.info("no cover: %s", error)
