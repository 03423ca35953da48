"""A book as data: pages of text with their labels; also of several documents that are read as one book."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Literal

from engine.errors import OptionError

# A page that ends in one of these ends a paragraph as well as we can tell; otherwise its sentence runs on.
_SENTENCE_ENDS = (".", "!", "?", "”", '"', "’", "'", ":", ")", "»", "…")


Picture = Literal["", "recognised", "unread", "doubtful", "figure"]
"""Of a page whose words stand in its picture alone: they were recognised there and may have slips, or it was not read.
"doubtful": it has words that are probably wrong, and could be recognised instead. "figure": its words were read, and
most of it is a picture, which was not."""

_MANY = 3
"""Documents that are not all named in the title of a book."""


@dataclass(frozen=True)
class Page:
    """One page of a PDF, or one section of a format without pages.

    ``label`` is what is printed on it ("xii", "41", "Chapter 3"); ``number`` counts from 1 in the file.
    """

    number: int
    label: str
    text: str
    picture: Picture = ""


@dataclass(frozen=True)
class OutlineItem:
    """An entry of the table of contents: ``level`` from 0, ``page`` number from 1."""

    title: str
    page: int
    level: int


@dataclass(frozen=True)
class Member:
    """One of several documents that are read as one book; fields as of ``Document``.

    Its page 1 is page ``before + 1`` of the book.
    """

    title: str
    author: str
    kind: str
    sha256: str
    unit: str
    before: int


@dataclass(frozen=True)
class Stretch:
    """What is read in one piece: a document, or one of several.

    ``heading`` stands before its text in the prompt; "" where the prompt itself begins with the title. ``page_starts``
    are characters of ``text``.
    """

    title: str
    heading: str
    pages: tuple[Page, ...]
    text: str
    page_starts: tuple[int, ...]


@dataclass(frozen=True)
class Document:
    """A book that has been read from a file, or several documents as one book (``together``).

    ``unit`` is "page" or "section"; ``sha256`` is of the file's bytes; ``warnings`` are sentences for the person.
    ``members`` are the several documents, in their order; a book from one file has none. ``date``: of publication, as
    the file has it; "" where it has none.
    """

    title: str
    author: str
    pages: tuple[Page, ...]
    kind: str
    sha256: str
    unit: str = "page"
    outline: tuple[OutlineItem, ...] = ()
    warnings: tuple[str, ...] = ()
    members: tuple[Member, ...] = ()
    date: str = ""

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

    @classmethod
    def together(cls, documents: Sequence[Document], *, title: str = "", sha256: str = "") -> Document:
        """Several documents as one book: their pages behind each other, numbered on, each with its own label.

        A title that an earlier one has gets a number. What is read of the first documents is the same whatever follows.

        Args:
            title: of the book; made of theirs if there is none.
            sha256: by which the book is kept; made of theirs if there is none.

        Raises:
            OptionError: there is no document.
        """
        if not documents:
            raise OptionError("There is no document to read.", "Choose one.")
        members: list[Member] = []
        pages: list[Page] = []
        outline: list[OutlineItem] = []
        before = 0
        for document, called in zip(documents, _told_apart([document.title for document in documents]), strict=True):
            members.append(Member(called, document.author, document.kind, document.sha256, document.unit, before))
            pages += [replace(page, number=before + page.number) for page in document.pages]
            if document.pages:
                outline.append(OutlineItem(called, before + document.pages[0].number, 0))
                inner, under = document.outline, 1
                if inner and inner[0].title == document.title and all(item.level for item in inner[1:]):
                    inner, under = inner[1:], 0  # the title is its first heading
                outline += [OutlineItem(item.title, before + item.page, item.level + under) for item in inner]
                before += document.pages[-1].number
        units = {document.unit for document in documents}
        digest = hashlib.sha256("\n".join(document.sha256 for document in documents).encode())
        return cls(
            title=title or _titles([member.title for member in members]),
            author="; ".join(dict.fromkeys(document.author for document in documents if document.author)),
            pages=tuple(pages),
            kind="several",
            sha256=sha256 or digest.hexdigest(),
            unit=units.pop() if len(units) == 1 else "page",
            outline=tuple(outline),
            warnings=tuple(
                f"{member.title}: {warning}"
                for member, document in zip(members, documents, strict=True)
                for warning in document.warnings
            ),
            members=tuple(members),
        )

    def member_at(self, number: int) -> Member | None:
        """The document of which the page with this number is; None where there are not several."""
        at = bisect_left([member.before for member in self.members], number)
        return self.members[at - 1] if at else None

    @property
    def opening(self) -> str:
        """The title that the prompt begins with: of the first of several documents, since what is read of it must not
        depend on those behind it."""
        return self.stretches[0].title if self.stretches else self.title

    @cached_property
    def stretches(self) -> tuple[Stretch, ...]:
        """The document, or each of several that has pages, in the order of reading."""
        if not self.members:
            return (Stretch(self.title, "", self.pages, *_joined(self.pages)),)
        found: list[Stretch] = []
        for member, some in groupby(self.pages, key=lambda page: self.member_at(page.number)):
            pages, title = tuple(some), member.title if member else ""
            heading = f"\n\n# {' '.join(title.split())}\n\n" if found else ""
            found.append(Stretch(title, heading, pages, *_joined(pages)))
        return tuple(found)

    @property
    def characters(self) -> int:
        return sum(len(page.text) for page in self.pages)

    def select(self, first: int, last: int) -> Document:
        """A copy of the book with the pages first..last alone (numbers from 1, both included).

        Raises:
            OptionError: the range is empty or outside the book.
        """
        lowest, highest = (self.pages[0].number, self.pages[-1].number) if self.pages else (1, 0)
        if not lowest <= first <= last <= highest:
            raise OptionError(
                f"Pages {first}-{last} are not in this book, which has {self.unit}s {lowest}-{highest}.",
                "Choose a range inside it.",
            )
        return self.only(range(first, last + 1))

    def only(self, numbers: Collection[int]) -> Document:
        """A copy of the book with the pages of these numbers alone; others are ignored."""
        kept = tuple(page for page in self.pages if page.number in numbers)
        outline = tuple(item for item in self.outline if item.page in numbers)
        return replace(self, pages=kept, outline=outline)

    def page(self, number: int) -> Page | None:
        """The page with this number; None if there is none."""
        return self._by_number.get(number)

    @cached_property
    def _by_number(self) -> dict[int, Page]:
        return {page.number: page for page in reversed(self.pages)}

    @cached_property
    def text(self) -> str:
        """The text of all pages, joined. A sentence that runs over a page border keeps running, unless pages between
        are left out."""
        return self._text[0]

    @cached_property
    def page_starts(self) -> tuple[int, ...]:
        """Character offset in ``text`` at which each page starts."""
        return self._text[1]

    @cached_property
    def _text(self) -> tuple[str, tuple[int, ...]]:
        text, starts = "", list[int]()
        for stretch in self.stretches:
            text += _APART if text and stretch.text else ""
            starts += [len(text) + start for start in stretch.page_starts]
            text += stretch.text
        return text, tuple(starts)


_APART = "\n\n"
"""Between two documents: no sentence runs on from one into the next."""


def _joined(pages: Iterable[Page]) -> tuple[str, tuple[int, ...]]:
    """The text of pages, and the character at which each of them starts."""
    parts: list[str] = []
    starts: list[int] = []
    length = before = 0
    for page in pages:
        text = page.text.strip("\n")
        gap, before = page.number > before + 1, page.number
        if parts and text:
            joint = "\n\n" if gap or parts[-1].rstrip().endswith(_SENTENCE_ENDS) else "\n"
            parts.append(joint)
            length += len(joint)
        starts.append(length)
        if text:
            parts.append(text)
            length += len(text)
    return "".join(parts), tuple(starts)


def _told_apart(titles: Sequence[str]) -> list[str]:
    """Titles of which no two are the same: "Lease", "Lease (2)". The first ones do not depend on what follows."""
    found: list[str] = []
    for title in titles:
        called, count = title, 1
        while called in found:
            count += 1
            called = f"{title} ({count})"
        found.append(called)
    return found


def _titles(titles: Sequence[str]) -> str:
    """A title for several documents."""
    return " + ".join(titles) if len(titles) < _MANY else f"{titles[0]} + {len(titles) - 1} more"
