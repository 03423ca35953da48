"""The parsers' input and output: limits, plain records and one exception. Both the app and the child process use
them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Step = Callable[[int, int, "int | None"], None]
"""Called before each page with the number of pages done, the total number of pages, and the number of the page that is
read next (from 1). The page number is None while no page is read.
"""

SECOND_READER = "second"
"""Marks a page on which pdfium failed, so that pypdf reads it."""

RefusalKind = Literal["document", "password", "no_text", "docx", "pptx", "xlsx"]
"""The last three name the format to which an office suite can convert the file (``app.readers.conversion``)."""


@dataclass(frozen=True)
class Limits:
    """Limits for reading one file.

    ``seconds_per_page`` is the maximum time between two messages of the child. The child sends a message before each
    page, or before each chapter in a format without pages. ``zip_ratio`` is the maximum compression ratio of a zip
    entry.
    """

    memory_bytes: int = 2_000_000_000
    seconds_per_page: float = 10.0
    seconds: float = 300.0
    pages: int = 20_000
    characters: int = 40_000_000
    file_bytes: int = 1_000_000_000
    zip_entries: int = 10_000
    zip_bytes: int = 500_000_000
    zip_ratio: float = 200.0


def packed(path: Path) -> str:
    """A path as text for a message to the child. The bytes of a file's name need not be UTF-8, and JSON holds only
    text, so each byte becomes one character.
    """
    return os.fsencode(path.resolve()).decode("latin-1")


def unpacked(text: str) -> Path:
    """The path that ``packed`` made into a text."""
    return Path(os.fsdecode(text.encode("latin-1")))


class Refused(Exception):
    """Raised if a file cannot be read as a book.

    Args:
        cause: the end of a sentence that starts with the file's name, such as "has no pages.".
        remedy: advice for the user.
        kind: selects the exception that the app raises for the user.
    """

    def __init__(self, cause: str, remedy: str, kind: RefusalKind = "document") -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy
        self.kind: RefusalKind = kind


@dataclass(frozen=True)
class Opening:
    """The start of a text file, by which its format is detected.

    ``text`` is decoded, without white space at its start. ``start`` is its beginning behind comments and instructions.
    ``root`` is the name of its first XML element, without namespace, or "". ``suffix`` is that of the file's name, in
    lowercase.
    """

    text: str
    start: str
    root: str
    suffix: str

    @property
    def first_lines(self) -> str:
        """The lines before the first blank one."""
        return self.text.replace("\r\n", "\n").split("\n\n", 1)[0]


@dataclass
class Section:
    """A page of a book or, in a format without pages, a chapter or a part of a chapter. ``text`` is cleaned."""

    label: str
    text: str
    # what picture the page is or has; see ``Picture`` in ``engine.document``
    picture: Literal["", "recognised", "unread", "doubtful", "figure"] = ""
    # keys of pictures beside its text that may have words and are not recognised (``app.readers.inner_pictures``)
    pictures: Sequence[str] = ()


@dataclass
class Heading:
    """An entry of the table of contents. ``page`` counts from 1, ``level`` from 0."""

    title: str
    page: int
    level: int


@dataclass
class Parsed:
    """A whole file as text.

    ``left_out``: number of omitted characters (without spaces), keyed by reason. ``date``: the publication date.
    ``kind`` and ``unit`` are those of the format's line (``app.readers.file_formats``), set by ``app.readers.detect``.
    """

    sections: list[Section]
    title: str = ""
    author: str = ""
    outline: list[Heading] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    left_out: Mapping[str, int] = field(default_factory=dict)
    date: str = ""
    kind: str = ""
    unit: str = ""


def damaged(problem: str = "is damaged and cannot be opened.") -> Refused:
    return Refused(problem, "Try to open it in another program; if that fails too, get the file again.")
