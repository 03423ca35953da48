"""The books that were opened on this machine: their files, kept under the hash of their content.

Owns the folder ``books`` inside the data folder: one folder per book, named by the SHA-256 of the file, with the
file itself and ``book.json``. Knows how a file comes in and how it is found again; knows no format and no engine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePath
from types import TracebackType

from engine.errors import DocumentError, ResourceError

MAX_BYTES = 200 << 20
NAME_LENGTH = 120
_HASH = re.compile(r"[0-9a-f]{64}")
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,8}")
_COPY_BLOCK = 1 << 20


@dataclass(frozen=True)
class Book:
    """One opened book. ``name`` is what its file was called; ``title`` and ``pages`` are known once it was read."""

    sha256: str
    name: str
    file: str
    title: str = ""
    pages: int = 0
    unit: str = "page"
    opened: float = 0.0

    @property
    def shown(self) -> str:
        return self.title or self.name


class Books:
    """Args:
    folder: where books are kept; made on first use.
    clock: seconds since the epoch.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock

    def path(self, book: Book) -> Path:
        return self._folder / book.sha256 / book.file

    def receive(self, name: str) -> Incoming:
        """Take in a file piece by piece: ``with books.receive(name) as incoming: incoming.write(...)``."""
        return Incoming(self, self._folder, name)

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
        book = self._load(self._folder / sha256) if _HASH.fullmatch(sha256) else None
        if book is None:
            raise DocumentError("This book is no longer in Trifold's folder.", "Add its file again.")
        return book

    def all(self) -> tuple[Book, ...]:
        """Every book kept here, last opened first."""
        if not self._folder.is_dir():
            return ()
        found = [self._load(entry) for entry in self._folder.iterdir() if _HASH.fullmatch(entry.name)]
        return tuple(sorted((book for book in found if book), key=lambda book: book.opened, reverse=True))

    def remember(self, book: Book, title: str, pages: int, unit: str) -> Book:
        """Write down what reading the file has shown."""
        return self._save(replace(book, title=_clean(title), pages=pages, unit=unit, opened=self._clock()))

    def forget(self, sha256: str) -> None:
        """Delete a book and all that is kept with it."""
        shutil.rmtree(self._folder / self.get(sha256).sha256)

    def _adopt(self, partial: Path, sha256: str, name: str) -> Book:
        folder = self._folder / sha256
        known = self._load(folder)
        if known is not None:
            partial.unlink()
            return self._save(replace(known, opened=self._clock()))
        suffix = PurePath(name).suffix
        file = "book" + (suffix.lower() if _SUFFIX.fullmatch(suffix) else "")
        folder.mkdir(parents=True, exist_ok=True)
        os.replace(partial, folder / file)
        return self._save(Book(sha256, _clean(PurePath(name).name) or "book", file, opened=self._clock()))

    def _save(self, book: Book) -> Book:
        folder = self._folder / book.sha256
        written = folder / f"book.json.{secrets.token_hex(4)}"
        written.write_text(json.dumps(asdict(book), ensure_ascii=False, indent=1), encoding="utf-8")
        os.replace(written, folder / "book.json")
        return book

    def _load(self, folder: Path) -> Book | None:
        """A folder without a readable record, or whose file is gone, is no book; it is left alone."""
        try:
            book = Book(**json.loads((folder / "book.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        named_well = book.sha256 == folder.name and PurePath(book.file).name == book.file
        return book if named_well and (folder / book.file).is_file() else None


class Incoming:
    """A file on its way in. Leaving the ``with`` block before ``keep`` deletes what has arrived."""

    def __init__(self, books: Books, folder: Path, name: str) -> None:
        self._books = books
        self._name = name
        self._hash = hashlib.sha256()
        self._size = 0
        self._partial = folder / f"incoming-{secrets.token_hex(8)}"

    def __enter__(self) -> Incoming:
        try:
            self._partial.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._partial.open("wb")
        except OSError as error:
            raise _unwritable(self._partial.parent, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)

    def write(self, block: bytes) -> None:
        """Raises:
        DocumentError: the file is larger than a book may be.
        ResourceError: the disk is full or cannot be written.
        """
        self._size += len(block)
        if self._size > MAX_BYTES:
            raise DocumentError(
                f"{_clean(self._name)} is larger than {MAX_BYTES >> 20} MB.", "Split it, or choose another file."
            )
        self._hash.update(block)
        try:
            self._file.write(block)
        except OSError as error:
            raise _unwritable(self._partial.parent, error) from error

    def keep(self) -> Book:
        """The whole file has arrived: file it under its hash.

        Raises:
            DocumentError: it is empty.
            ResourceError: the disk is full or cannot be written.
        """
        if not self._size:
            raise DocumentError(f"{_clean(self._name)} is empty.", "Choose another file.")
        try:
            self._file.close()
            return self._books._adopt(self._partial, self._hash.hexdigest(), self._name)
        except OSError as error:
            raise _unwritable(self._partial.parent, error) from error


def _clean(name: str) -> str:
    """One line without control or direction marks, short enough to be shown."""
    line = " ".join("".join(character if character.isprintable() else " " for character in name).split())
    return line if len(line) <= NAME_LENGTH else line[: NAME_LENGTH - 1] + "…"


def _unwritable(folder: Path, error: OSError) -> ResourceError:
    reason = error.strerror or type(error).__name__
    return ResourceError(f"Trifold cannot write to {folder} ({reason}).", "Free some space or set TRIFOLD_DATA.")
