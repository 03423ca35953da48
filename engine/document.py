"""A book as data: pages of text with their labels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from engine.errors import OptionError

# A page that ends in one of these ends a paragraph as well as we can tell; otherwise its sentence runs on.
_SENTENCE_ENDS = (".", "!", "?", "”", '"', "’", "'", ":", ")", "»", "…")


@dataclass(frozen=True)
class Page:
    """One page of a PDF, or one section of a format without pages.

    ``label`` is what is printed on it ("xii", "41", "Chapter 3"); ``number`` counts from 1 in the file.
    """

    number: int
    label: str
    text: str


@dataclass(frozen=True)
class OutlineItem:
    """An entry of the table of contents: ``level`` from 0, ``page`` number from 1."""

    title: str
    page: int
    level: int


@dataclass(frozen=True)
class Document:
    """A book that has been read from a file.

    ``unit`` is "page" or "section"; ``sha256`` is of the file's bytes; ``warnings`` are sentences for the person.
    """

    title: str
    author: str
    pages: tuple[Page, ...]
    kind: str
    sha256: str
    unit: str = "page"
    outline: tuple[OutlineItem, ...] = ()
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_text(cls, title: str, text: str) -> Document:
        """A text without pages, as one section.

        Args:
            title: how the model is told what it reads.
        """
        return cls.from_pages(title, [text], unit="section")

    @classmethod
    def from_pages(cls, title: str, pages: Iterable[str], *, unit: str = "page") -> Document:
        """A text of several pages, which are labelled from 1.

        Args:
            title: how the model is told what it reads.
            pages: the text of each.
            unit: "page" or "section", as sentences for the person call one.
        """
        texts = tuple(pages)
        digest = hashlib.sha256("\f".join((title, *texts)).encode("utf-8", "surrogatepass")).hexdigest()
        numbered = tuple(Page(number, str(number), text) for number, text in enumerate(texts, start=1))
        return cls(title, "", numbered, "text", digest, unit)

    @property
    def characters(self) -> int:
        return sum(len(page.text) for page in self.pages)

    def select(self, first: int, last: int) -> Document:
        """A copy of the book with the pages first..last alone (numbers from 1, both included).

        Raises:
            OptionError: the range is empty or outside the book.
        """
        if not 1 <= first <= last <= len(self.pages):
            raise OptionError(
                f"Pages {first}-{last} are not in this book, which has {self.unit}s 1-{len(self.pages)}.",
                "Choose a range inside it.",
            )
        kept = tuple(page for page in self.pages if first <= page.number <= last)
        outline = tuple(item for item in self.outline if first <= item.page <= last)
        return Document(self.title, self.author, kept, self.kind, self.sha256, self.unit, outline, self.warnings)

    def page(self, number: int) -> Page | None:
        """The page with this number; None if there is none."""
        return self._by_number.get(number)

    @cached_property
    def _by_number(self) -> dict[int, Page]:
        return {page.number: page for page in reversed(self.pages)}

    @cached_property
    def text(self) -> str:
        """The text of all pages, joined. A sentence that runs over a page border keeps running."""
        return self._joined[0]

    @cached_property
    def page_starts(self) -> tuple[int, ...]:
        """Character offset in ``text`` at which each page starts."""
        return self._joined[1]

    @cached_property
    def _joined(self) -> tuple[str, tuple[int, ...]]:
        parts: list[str] = []
        starts: list[int] = []
        length = 0
        for page in self.pages:
            text = page.text.strip("\n")
            if parts and text:
                joint = "\n\n" if parts[-1].rstrip().endswith(_SENTENCE_ENDS) else "\n"
                parts.append(joint)
                length += len(joint)
            starts.append(length)
            if text:
                parts.append(text)
                length += len(text)
        return "".join(parts), tuple(starts)
