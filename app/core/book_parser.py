"""Turns a book of the library, either one file or a collection of files, into a document.

Owns the passwords of locked files while the program runs. The library stores files under other names; errors and titles
use a file's original name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import PurePath

from app.core.books import Book, Books, TextCache
from app.readers import conversion
from app.readers.recognition import LongRecognition, Recognition
from engine.document import Document
from engine.errors import PasswordNeeded, TrifoldError

Reader = Callable[..., Document]
"""Turns a file into a document; raises ``DocumentError``."""


class BookParser:
    """Parses books of the library.

    Args:
        books: the library.
        read_document: turns a file into a document.
        comments: whether readers' and reviewers' comments are read too.
        pictures: whether the words of charts and other pictures beside the text are read too.
    """

    def __init__(self, books: Books, read_document: Reader, *, comments: bool = True, pictures: bool = True) -> None:
        self._books = books
        self._read_document = read_document
        self._comments = comments
        self._pictures = pictures
        # passwords of locked files, keyed by the file's hash; also needed when pages are drawn from the file
        self.passwords: dict[str, str] = {}
        self._converted: set[str] = set()  # hashes of files that LibreOffice may convert, as the user has agreed

    @property
    def comments(self) -> bool:
        """Whether readers' and reviewers' comments are read."""
        return self._comments

    def read_comments(self, enabled: bool) -> None:
        """Set whether readers' and reviewers' comments are read when further books are parsed."""
        self._comments = enabled

    @property
    def pictures(self) -> bool:
        """Whether the words of charts and other pictures beside the text are read."""
        return self._pictures

    def read_pictures(self, enabled: bool) -> None:
        """Set whether the words of pictures beside the text are read when further books are parsed."""
        self._pictures = enabled

    def convert(self, book: Book) -> None:
        """Let LibreOffice convert a book's files, because the user has agreed."""
        self._converted |= {part.sha256 for part in self._books.members(book) or (book,)}

    def may_convert(self, book: Book) -> bool:
        """Whether the user has agreed that LibreOffice converts a file: now, or when it was opened before."""
        is_old = PurePath(book.name).suffix.lower() in conversion.SUFFIXES
        return is_old and (book.sha256 in self._converted or book.pages > 0)

    def parse(
        self,
        book: Book,
        password: str | None = None,
        recognition: Recognition | None = None,
        agreed: Collection[str] = (),
    ) -> Document:
        """Parse a book into a document. The password that opens a file is remembered, and so are the title and the
        pages of each document of a collection.

        Args:
            recognition: recognises pages that are pictures; if None, only words that were recognised earlier are used.
            agreed: hashes of files whose recognition may take long, because the user has agreed to wait.

        Raises:
            ConversionOffer: LibreOffice can convert a file, if the user agrees (``convert``).
            DocumentError: a file cannot be read, needs a password, or is no longer in the library.
        """

        def how(part: Book) -> Recognition | None:
            return replace(recognition, agreed=True) if recognition and part.sha256 in agreed else recognition

        if members := self._books.members(book):
            parts = [self._unlocked(part, password, how(part)) for part in members]
            for part, document in zip(members, parts, strict=True):
                if not part.pages:  # it has not been opened by itself
                    self._books.remember(
                        part,
                        title=document.title,
                        author=document.author,
                        pages=len(document.pages),
                        unit=document.unit,
                    )
            whole = Document.together(parts, sha256=book.sha256)
            return replace(whole, warnings=(*self._books.told(book), *whole.warnings))
        return self._unlocked(book, password, how(book))

    def _unlocked(self, book: Book, password: str | None, recognition: Recognition | None) -> Document:
        """Parse a file, with the remembered password or, if that does not open the file, with ``password``."""
        known = self.passwords.get(book.sha256)
        try:
            return self._one_file(book, known, recognition)
        except PasswordNeeded:
            if not password or password == known:
                raise
        try:
            document = self._one_file(book, password, recognition)
        # this error means that the password was right, but that recognition of the pages would take long
        except LongRecognition:
            self.passwords[book.sha256] = password
            raise
        self.passwords[book.sha256] = password
        return document

    def _one_file(self, book: Book, password: str | None, recognition: Recognition | None) -> Document:
        """Read a file as a document. Errors show the file's original name instead of its name in the library. A
        document without a title gets the original name as its title.
        """
        read = self._read_document
        # other readers, such as those of tests, lack these arguments
        if isinstance(read, TextCache):
            read = partial(
                read,
                recognition=recognition,
                comments=self._comments,
                pictures=self._pictures,
                convert=self.may_convert(book),
            )
        try:
            document = read(self._books.path(book), password=password)
        except TrifoldError as error:
            raise type(error)(error.cause.replace(f"“{book.file}”", f"“{book.name}”"), error.remedy) from error
        untitled = document.title == PurePath(book.file).stem
        return replace(document, title=PurePath(book.name).stem) if untitled else document
