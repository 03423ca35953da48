"""The library: books that were opened on this machine, with their texts and covers.

Owns the folder ``books`` inside the data folder: one folder per book, named by the SHA-256 of the file, with the file
itself, the text cache (``text.json``, or ``text-alone.json`` for the text without comments), the image of its first
page, and ``book.json`` with the file's name. If the database is lost, the library is rebuilt from these folders. All
other facts about a book are in the database.

A collection is a book that consists of several documents, which are read as one. Its folder has a random name instead
of a hash, and a file ``COLLECTION`` with the hashes of its documents in order. A collection is opened, asked about,
listed and deleted like any other book. Its documents stay in the library when it is deleted.
"""

from __future__ import annotations

import hashlib
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
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from app.core.atomic_upload import PREFIX, AtomicUpload, clean, unwritable
from app.core.db import Database
from app.core.whole_files import sweep, write_whole
from app.readers.recognition import Recognition, is_kept
from app.sealed import BROKEN, seal, unseal
from engine.document import Document, OutlineItem, Page
from engine.errors import DocumentError, NoTextLayer, PasswordNeeded, TrifoldError
from engine.sources import bytes_hash, code_hash

logger = logging.getLogger(__name__)

_HASH = re.compile(r"[0-9a-f]{64}")
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,8}")
_COPY_BLOCK = 1 << 20  # number of bytes that are copied at a time
_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,7}")  # a file's ending, such as ".pdf"; not the ".2" of "Report v1.2"
_RECORD = "book.json"
COLLECTION = "collection.json"
_JSON = "document.json"  # stored name of an uploaded ``book.json``, because that name is taken by the book's record
_LEAVING = "leaving-"
COVER = "cover.png"
TEXT, TEXT_ALONE = "text.json", "text-alone.json"
"""File names of a book's cached text: ``TEXT`` with comments, ``TEXT_ALONE`` without."""
_UNPICTURED = "unpictured-"  # begins the names of the files of cached text without the words of pictures
# width of a cover in pixels. The library shows covers at half this width, so that they are sharp on high-density
# screens.
_COVER_WIDTH = 320
_READERS = Path(__file__).resolve().parents[1] / "readers"

CHANGED = "The disk has changed this book's file since it was added: pages and words may be wrong. Add the file again."

Read = Callable[..., Document]


@dataclass(frozen=True)
class Book:
    """One book. ``name`` is the name of its file, ``given`` the name that the person gave it, or "".

    ``title``, ``author``, ``pages`` and ``unit`` have their defaults until the book is first opened, ``tokens`` and
    ``pages_read`` until it is first read. ``added`` and ``opened`` are seconds since the epoch.
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
    given: str = ""

    @property
    def shown(self) -> str:
        """The name that the person gave the book, otherwise its title. If that is unknown, the name of its file without
        the ending.
        """
        ending = PurePath(self.name).suffix
        cut = not self.is_collection and _ENDING.fullmatch(ending)
        return self.given or self.title or (self.name.removesuffix(ending) if cut else self.name)

    @property
    def is_collection(self) -> bool:
        """Whether the book consists of several documents."""
        return self.file == COLLECTION


class Books:
    """The library: the books in one folder.

    Args:
        folder: the folder with the books; made on first use.
        database: stores the facts about the books; None keeps the facts in memory.
        clock: returns the current time in seconds since the epoch.
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
        """The folder of a book, with its file and everything made from the file."""
        return self._folder / sha256

    def cover(self, sha256: str) -> Path | None:
        """The path of a book's cover; None if the book has no cover."""
        path = self._folder / sha256 / COVER
        return path if _HASH.fullmatch(sha256) and path.is_file() else None

    def size(self, book: Book) -> int:
        """Bytes on disk of a book's folder; 0 if the folder cannot be read."""
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

    def collect(self, documents: Sequence[Book], collection: Book | None = None, told: Sequence[str] = ()) -> Book:
        """Store several documents as one book. A document given twice counts once. A collection in ``documents`` stands
        for its own documents.

        Args:
            told: warnings about a new collection, such as the files of an archive that are none of its documents.
            collection: an existing collection, whose list of documents is replaced. If it is None, the result is the
                existing collection of exactly these documents in this order, or a new one. A single document is not
                made a collection, and the result is this document.

        Raises:
            DocumentError: no document is given, or one is no longer in the library.
            ResourceError: the data folder cannot be written.
        """
        parts = [part for book in documents for part in (self.members(book) or (book,))]
        ids = list(dict.fromkeys(part.sha256 for part in parts))
        if not ids:
            raise DocumentError("There is no document to read.", "Choose one.")
        if collection is None and len(ids) == 1:
            return self.get(ids[0])
        same = (book for book in self.all() if self.listed(book) == ids)
        if collection is None and (kept := next(same, None)) is not None:
            return kept
        left = {*self._once(collection), *self.listed(collection)}.difference(ids) if collection else ()
        said = self.told(collection) if collection else list(told)
        listed = {"documents": ids, "left_out": sorted(left), "told": said}
        sha256 = collection.sha256 if collection else secrets.token_hex(32)
        folder = self._folder / sha256
        name = collection.name if collection else name_of(" + ".join(part.shown for part in parts))
        record = {"sha256": sha256, "name": name, "file": COLLECTION}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / COLLECTION, json.dumps(listed, ensure_ascii=False).encode())
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
        with suppress(*BROKEN):
            if book.is_collection:
                return [str(one) for one in self._collection(book)["left_out"]]
        return []

    def told(self, book: Book) -> list[str]:
        """The warnings about a collection that were stored with its documents; [] for other books."""
        with suppress(*BROKEN):
            if book.is_collection:
                return [str(one) for one in self._collection(book)["told"]]
        return []

    def listed(self, book: Book) -> list[str]:
        """The hashes of a collection's documents, in order; empty for a book that is no collection, or if the list is
        damaged.
        """
        with suppress(DocumentError):
            return self._listed(book) if book.is_collection else []
        return []

    def _collection(self, book: Book) -> Any:
        """Read a collection's file ``COLLECTION``. Raises one of ``BROKEN`` if the file is missing or damaged."""
        return json.loads(self.path(book).read_text(encoding="utf-8"))

    def _listed(self, book: Book) -> list[str]:
        """Read the list of a collection's documents.

        Raises:
            DocumentError: the list cannot be read.
        """
        try:
            listed = self._collection(book)["documents"]
        except BROKEN:
            listed = None
        if not (isinstance(listed, list) and listed and all(isinstance(sha256, str) for sha256 in listed)):
            raise DocumentError(
                f"The list of documents of “{book.shown}” is damaged.", "Open its documents together again."
            )
        return listed

    def receive(self, name: str) -> AtomicUpload:
        """Receive a file piece by piece: ``with books.receive(name) as incoming: incoming.write(...)``."""
        return AtomicUpload(self._adopt, self._folder, name)

    def copy_in(self, source: Path, name: str = "") -> Book:
        """Copy a file of this machine into the library, under its own name or under ``name``.

        Raises:
            DocumentError: the file cannot be read, or is larger than a book may be.
            ResourceError: the data folder cannot be written.
        """
        try:
            with source.open("rb") as file, self.receive(name or source.name) as incoming:
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
        """The cached text of a book, with comments and words of pictures if that is cached, otherwise without; None if
        no text is cached.
        """
        folder = self.folder(book.sha256)
        names = (TEXT, TEXT_ALONE, f"{_UNPICTURED}{TEXT}", f"{_UNPICTURED}{TEXT_ALONE}")
        return next(filter(None, (load_text(folder / name) for name in names)), None)

    def remember(self, book: Book, *, title: str, author: str = "", pages: int, unit: str) -> Book:
        """Store facts from a book's parsed file, and the time of this opening. Return the changed ``Book``."""
        facts = {"title": clean(title), "author": clean(author), "pages": pages, "unit": unit}
        return self._save(book.sha256, {**facts, "opened": self._clock()})

    def read(self, book: Book, *, tokens: int, pages_read: int) -> Book:
        """Store how many pages and tokens of the book the model has read. Return the changed ``Book``."""
        return self._save(book.sha256, {"tokens": tokens, "pages_read": pages_read, "opened": self._clock()})

    def rename(self, sha256: str, name: str) -> Book:
        """Give a book a name. With an empty name, or its title, the book is shown by its title again. The name is
        stored in the database and in the book's folder.

        Raises:
            DocumentError: the library has no such book.
            ResourceError: the data folder cannot be written.
        """
        book = self.get(sha256)
        given = clean(name)
        if given == replace(book, given="").shown:
            given = ""
        folder = self._folder / sha256
        record = {"sha256": sha256, "name": book.name, "file": book.file} | ({"given": given} if given else {})
        try:
            write_whole(folder / _RECORD, json.dumps(record, ensure_ascii=False).encode())
        except OSError as error:
            raise unwritable(folder, error) from error
        return self._save(sha256, {"given": given})

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
            os.replace(folder, leaving)  # the whole folder is renamed in one step, or stays unchanged
        except OSError as error:
            raise unwritable(folder, error) from error
        self.database.write(lambda connection: connection.execute("DELETE FROM books WHERE sha256 = ?", (sha256,)))
        shutil.rmtree(leaving, ignore_errors=True)

    def check_unused(self, sha256: str) -> None:
        """Raise an error if a collection contains this document.

        Raises:
            DocumentError: a collection contains this document.
        """
        if holders := self.collections_with(sha256):
            named = f"“{self.get(sha256).shown}” is one of the documents of “{holders[0].shown}”."
            raise DocumentError(named, "Leave this document out there first, or delete that book.")

    def _adopt(self, partial: Path, sha256: str, name: str) -> Book:
        known = self._load(sha256)
        if known is not None:
            if is_changed(self.path(known)):
                os.replace(partial, self.path(known))
            else:
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
        """Add a book, whose folder exists already, to the database."""
        now = self._clock()
        names = ("sha256", "name", "file", "given", "added", "opened")
        values = (record["sha256"], record["name"], record["file"], record.get("given", ""), now, now)

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                f"INSERT INTO books ({', '.join(names)}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (sha256) DO UPDATE "
                "SET name = excluded.name, file = excluded.file, opened = excluded.opened, "
                "given = coalesce(nullif(excluded.given, ''), given)",
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
        """Add missing books to the database from their folders. Books are missing if the database was lost or is
        new.
        """
        known = {book.sha256 for book in self.all()}
        for folder in self._entries():
            if _HASH.fullmatch(folder.name) and folder.name not in known:
                record = _record(folder)
                if record is not None:
                    self._enter(record)

    def _sweep(self) -> None:
        """Remove the files of deletions, uploads and writes that were interrupted when the program ended, from the
        folders of the books and from the data folder around them.
        """
        for entry in self._entries():
            if entry.name.startswith(_LEAVING):
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name.startswith(PREFIX):
                with suppress(OSError):
                    entry.unlink()
            elif _HASH.fullmatch(entry.name):
                sweep(entry)
        sweep(self._folder.parent)

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
        stored = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        record = {name: str(stored[name]) for name in ("sha256", "name", "file")}
        record["given"] = clean(str(stored.get("given", "")))
    except (*BROKEN, AttributeError):
        return None
    named_well = record["sha256"] == folder.name and PurePath(record["file"]).name == record["file"] != ""
    return record if named_well and (folder / record["file"]).is_file() else None


class TextCache:
    """Turns a file of the library into a document, from the file's cached text if possible, otherwise with
    ``read_document``.

    Cached text is not used if a different version of the readers made it, or if pages with doubtful text, or pictures
    beside the text, are to be recognised. Texts with and without comments, and with and without the words of pictures,
    are cached separately. The text of a book with a password is not cached, nor that of a file which the disk has
    changed; the document then has the warning ``CHANGED``.

    Args:
        read_document: turns a file into a document.
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
        pictures: bool = True,
        convert: bool = False,
    ) -> Document:
        changed = is_changed(path)
        if recognition is None and is_kept(path.parent):
            recognition = Recognition.stopped(lambda sha256: path.parent)
        if recognition and not pictures:
            recognition = replace(recognition, pictures="")
        name = f"{'' if pictures else _UNPICTURED}{TEXT if comments else TEXT_ALONE}"
        # other readers, such as those of tests, lack these arguments
        how = {**({} if comments else {"comments": False}), **({"convert": True} if convert else {})}
        try:
            document = self._text(path, password, recognition, how, name, not changed)
        except DocumentError as error:
            # a file that lacks its password or its text layer can still be read in another way
            if changed and not isinstance(error, PasswordNeeded | NoTextLayer):
                cause = f"“{path.name}” cannot be read: the disk has changed it since it was added."
                raise DocumentError(cause, "Add its file again.") from error
            raise
        return replace(document, warnings=(CHANGED, *document.warnings)) if changed else document

    def _text(
        self,
        path: Path,
        password: str | None,
        recognition: Recognition | None,
        how: dict[str, bool],
        name: str,
        keep: bool,
    ) -> Document:
        kept = path.parent / name
        document = load_text(kept)
        if document is not None and not (recognition and _reads_more(recognition, document)):
            return document
        try:
            recognised = {"recognition": recognition} if recognition else {}
            document = self._read_document(path, password=password, **recognised, **how)
        except NoTextLayer as error:
            if recognition:
                raise
            raise NoTextLayer(error.cause, "Open it by itself first: then its words are recognised.") from error
        # Text is not cached if it lacks pages that are pictures and were not recognised, so that these pages are
        # recognised when the book is opened next.
        if keep and not password and not any(page.picture == "unread" for page in document.pages):
            save_text(kept, document)
        return document


def is_changed(path: Path) -> bool:
    """Whether the bytes of a book's file are no longer those that were added, by which its folder is named. False for a
    file outside the library, and for one that cannot be read.
    """
    with suppress(OSError), path.open("rb") as file:
        return (
            bool(_HASH.fullmatch(path.parent.name))
            and hashlib.file_digest(file, "sha256").hexdigest() != path.parent.name
        )
    return False


def _reads_more(recognition: Recognition, document: Document) -> bool:
    """Whether recognition may find words that the cached text of a document lacks."""
    return recognition.doubtful or (recognition.pictures == "all" and any(page.pictures for page in document.pages))


def save_text(path: Path, document: Document) -> None:
    """Cache a document's text. A failure is only logged, because the text is then read from the file again."""
    record = {"files": files_hash(), "readers": readers_hash(), "document": asdict(document)}
    try:
        write_whole(path, seal(record))
    except OSError as error:
        logger.warning("the text of a book was not kept: %s", error)


def load_text(path: Path) -> Document | None:
    """Load a document from its cached text. Return None if no text is cached, if the text is damaged, or if a different
    version of the readers made it.
    """
    try:
        record = unseal(path.read_bytes())
        is_current = record["files"] == files_hash() or record["readers"] == readers_hash()
        return _document(record["document"]) if is_current else None
    except BROKEN:
        return None


@cache
def files_hash() -> str:
    """Hash the bytes of the source files of the readers (``app.readers``). This hash is compared first, because
    ``readers_hash`` is slower.
    """
    return bytes_hash(file.read_bytes() for file in _reader_files())


@cache
def readers_hash() -> str:
    """Hash the source code of the readers (``app.readers``), because another version of the readers may read the same
    file differently. Comments, docstrings and layout are left out, so that a change of them does not invalidate every
    cached text. Takes about 0.3 seconds.
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
    """Draw the missing cover of a PDF in a thread, and store the cover next to the file. Return the thread; None for
    other formats, for a file with a password, or if the cover exists.
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
        if path.is_file():  # nothing is stored if the book was deleted while the cover was drawn
            write_whole(path.parent / COVER, picture)
    except (TrifoldError, OSError) as error:
        logger.info("no cover: %s", error)
