"""What a parser hands over: plain records and one exception. Used on both sides of the pipe; knows no format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

RefusalKind = Literal["document", "password", "no_text"]


class Refused(Exception):
    """The file cannot be read as a book.

    Args:
        cause: what is wrong, as the end of "<file name>" + cause ("has no pages.").
        remedy: what the person can do.
        kind: which error of the engine's tree it becomes.
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


@dataclass
class Heading:
    """An entry of the table of contents; ``page`` counts from 1, ``level`` from 0."""

    title: str
    page: int
    level: int


@dataclass
class Parsed:
    """A whole file as text."""

    kind: str
    unit: str
    sections: list[Section]
    title: str = ""
    author: str = ""
    outline: list[Heading] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def damaged(what: str = "is damaged and cannot be opened.") -> Refused:
    return Refused(what, "Try to open it in another program; if that fails too, get the file again.")


def listed(numbers: list[int]) -> str:
    """Numbers as a person writes them: runs shortened, long lists cut."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    most = 12
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")
