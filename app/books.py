"""The library: books that were opened on this machine, their files kept under the hash of their content.

Owns the folder ``books`` inside the data folder: one folder per book, named by the SHA-256 of the file, with the
file itself, what was made from it (its cover, its text), and ``book.json``, which says what the file was called: from
that a library whose database was lost is put together again. Everything else that is known of a book is in the store.
Knows how a file comes in, how it is found again and how it goes; knows no format and no engine.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path, PurePath
from typing import Any

from app.incoming import MAX_BYTES, PREFIX, Incoming, clean, unwritable, write_whole
from app.store.database import Database
from engine.errors import DocumentError

__all__ = ["COVER", "MAX_BYTES", "Book", "Books"]

_HASH = re.compile(r"[0-9a-f]{64}")
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,8}")
_COPY_BLOCK = 1 << 20
_RECORD = "book.json"
_LEAVING = "leaving-"
COVER = "cover.png"


@dataclass(frozen=True)
class Book:
    """One book. ``name`` is what its file was called; ``title`` and what follows are known once it was opened.

    ``tokens`` and ``pages_read`` are of the last reading; ``added`` and ``opened`` are seconds since the epoch.
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
        return self.title or self.name


class Books:
    """Args:
    folder: where books are kept; made on first use.
    database: what is known of them; in memory alone if None.
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

    def cover(self, sha256: str) -> Path | None:
        """The picture of a book's cover, if there is one."""
        path = self._folder / sha256 / COVER
        return path if _HASH.fullmatch(sha256) and path.is_file() else None

    def size(self, book: Book) -> int:
        """Bytes on disk of the file and all that is kept with it."""
        with suppress(OSError):
            return sum(entry.stat().st_size for entry in os.scandir(self._folder / book.sha256) if entry.is_file())
        return 0

    def receive(self, name: str) -> Incoming:
        """Take in a file piece by piece: ``with books.receive(name) as incoming: incoming.write(...)``."""
        return Incoming(self._adopt, self._folder, name)

    def copy_in(self, source: Path) -> Book:
        """Take in a file of this machine.

        Raises:
            DocumentError: it cannot be read, or is larger than a book may be.
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
        """Raises:
        DocumentError: no such book is kept here.
        """
        book = self._load(sha256) if _HASH.fullmatch(sha256) else None
        if book is None:
            raise DocumentError("This book is no longer in Trifold's folder.", "Add its file again.")
        return book

    def all(self) -> tuple[Book, ...]:
        """Every book kept here, last opened first."""
        rows = self.database.rows("SELECT * FROM books WHERE file <> '' ORDER BY opened DESC, added DESC")
        return tuple(book for book in map(_book, rows) if self.path(book).is_file())

    def remember(self, book: Book, *, title: str, author: str = "", pages: int, unit: str) -> Book:
        """Write down what the file turned out to be."""
        facts = {"title": clean(title), "author": clean(author), "pages": pages, "unit": unit}
        return self._save(book.sha256, {**facts, "opened": self._clock()})

    def read(self, book: Book, *, tokens: int, pages_read: int) -> Book:
        """Write down how far the model has read it."""
        return self._save(book.sha256, {"tokens": tokens, "pages_read": pages_read, "opened": self._clock()})

    def forget(self, sha256: str) -> None:
        """Delete a book and all that is kept with it, its chats too.

        Raises:
            DocumentError: no such book is kept here.
            ResourceError: its files cannot be deleted.
        """
        folder = self._folder / self.get(sha256).sha256
        leaving = self._folder / f"{_LEAVING}{secrets.token_hex(8)}"
        try:
            os.replace(folder, leaving)  # gone at once or not at all
        except OSError as error:
            raise unwritable(folder, error) from error
        self.database.write(lambda connection: connection.execute("DELETE FROM books WHERE sha256 = ?", (sha256,)))
        shutil.rmtree(leaving, ignore_errors=True)

    def _adopt(self, partial: Path, sha256: str, name: str) -> Book:
        known = self._load(sha256)
        if known is not None:
            partial.unlink()
            return self._save(sha256, {"opened": self._clock()})
        suffix = PurePath(name).suffix
        file = "book" + (suffix.lower() if _SUFFIX.fullmatch(suffix) else "")
        folder = self._folder / sha256
        folder.mkdir(parents=True, exist_ok=True)
        os.replace(partial, folder / file)
        record = {"sha256": sha256, "name": clean(PurePath(name).name) or "book", "file": file}
        write_whole(folder / _RECORD, json.dumps(record, ensure_ascii=False).encode())
        return self._enter(record)

    def _enter(self, record: dict[str, Any]) -> Book:
        """Put a book that lies in the folder into the catalogue."""
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
        """Books that lie in the folder and are not in the catalogue: it was lost, or is new."""
        known = {book.sha256 for book in self.all()}
        for folder in self._entries():
            if _HASH.fullmatch(folder.name) and folder.name not in known:
                record = _record(folder)
                if record is not None:
                    self._enter(record)

    def _sweep(self) -> None:
        """What an earlier end of the program left half done."""
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


def _book(row: sqlite3.Row) -> Book:
    return Book(**{field.name: row[field.name] for field in fields(Book)})


def _record(folder: Path) -> dict[str, Any] | None:
    """What ``book.json`` says, if it is true. A folder without it, or whose file is gone, is left alone."""
    try:
        found = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        record = {name: str(found[name]) for name in ("sha256", "name", "file")}
    except (OSError, ValueError, TypeError, KeyError):
        return None
    named_well = record["sha256"] == folder.name and PurePath(record["file"]).name == record["file"] != ""
    return record if named_well and (folder / record["file"]).is_file() else None
