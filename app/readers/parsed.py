"""Input and output of the parsers: limits, plain records and one exception. Used by parent and child."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Step = Callable[[int, int, "int | None"], None]
"""Called before each page with pages done, pages in all, and the page's number from 1; None outside of pages."""

SECOND_READER = "second"
"""The mark of a page that the first reader of PDF could not read, for the second reader to try."""

RefusalKind = Literal["document", "password", "no_text"]


@dataclass(frozen=True)
class Limits:
    """Limits for the reading of one file.

    ``seconds_per_page`` is the longest silence of the child process; a chapter of a format without pages counts as
    a page. ``zip_ratio`` is uncompressed size over compressed size of one entry.
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


class Refused(Exception):
    """Raised where the file cannot be read as a book.

    Args:
        cause: the end of a sentence that begins with the file's name, such as "has no pages.".
        remedy: advice for the person.
        kind: the error of the engine's tree that it becomes.
    """

    def __init__(self, cause: str, remedy: str, kind: RefusalKind = "document") -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy
        self.kind: RefusalKind = kind


@dataclass
class Section:
    """A page, a chapter or a part, with its cleaned text."""

    label: str
    text: str
    picture: Literal["", "recognised", "unread", "doubtful", "figure"] = ""  # as in engine.document


@dataclass
class Heading:
    """An entry of the table of contents; ``page`` counts from 1, ``level`` from 0."""

    title: str
    page: int
    level: int


@dataclass
class Parsed:
    """A whole file as text. ``left_out``: characters without spaces that are in no section, by the reason. ``date``:
    the file's date of publication.
    """

    kind: str
    unit: str
    sections: list[Section]
    title: str = ""
    author: str = ""
    outline: list[Heading] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    left_out: Mapping[str, int] = field(default_factory=dict)
    date: str = ""


def damaged(what: str = "is damaged and cannot be opened.") -> Refused:
    return Refused(what, "Try to open it in another program; if that fails too, get the file again.")
