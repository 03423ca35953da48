"""Represents a book as data: pages of text with their labels. Several documents may be read as one book."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Literal

from engine.errors import OptionError

__all__ = ["Document", "Member", "OutlineItem", "Page", "Reading", "extent_of"]

# Characters with which a paragraph may end. If the last paragraph of a page ends with any other character, its sentence
# continues on the next page.
_SENTENCE_ENDS = (".", "!", "?", "”", '"', "’", "'", ":", ")", "»", "…")


Picture = Literal["", "recognised", "unread", "doubtful", "figure"]
"""How the text of a page relates to the picture of the page. "recognised": the text was recognised in the picture and
may have errors. "unread": the page is a picture in which no text has been recognised. "doubtful": the file has text for
the page, but the text is probably wrong and could be recognised instead. "figure": the file has text for the page, but
most of the page is a picture whose text was not recognised. "": none of these.
"""

_MANY = 3
"""Minimum number of documents for which a book's title names only the first document, and says how many more there are.
"""


@dataclass(frozen=True)
class Page:
    """One page of a PDF, or one section of a format without pages.

    ``label`` is printed on the page ("xii", "41", "Chapter 3"); ``number`` counts from 1 in the file. ``pictures`` is
    the number of pictures beside the text that may have words and were not recognised.
    """

    number: int
    label: str
    text: str
    picture: Picture = ""
    pictures: int = 0


@dataclass(frozen=True)
class OutlineItem:
    """An entry of the table of contents. ``level`` counts from 0; ``page`` is a page number from 1."""

    title: str
    page: int
    level: int


@dataclass(frozen=True)
class Member:
    """One of several documents that are read as one book; fields as in ``Document``.

    Page 1 of the document is page ``before + 1`` of the book.
    """

    title: str
    author: str
    kind: str
    sha256: str
    unit: str
    page_offset: int


@dataclass(frozen=True)
class Stretch:
    """A text that is read in one piece: a whole document, or one of several.

    ``heading`` stands before the text in the prompt. The first text has no heading, because the prompt begins with this
    text's title. ``page_starts`` are the offsets in ``text``, in characters, at which ``pages`` begin.
    """

    title: str
    heading: str
    pages: tuple[Page, ...]
    text: str
    page_starts: tuple[int, ...]


@dataclass(frozen=True)
class Document:
    """A book that has been read from a file, or several documents as one book (``together``).

    ``kind`` is the format of the file, such as "pdf". ``unit`` is "page" or "section". ``outline`` is the table of
    contents. ``sha256`` is the hash of the file's bytes. ``warnings`` are sentences for the person. ``members`` are the
    documents of the book in order; empty for a book from one file. ``date`` is the date of publication that the file
    states, or "".
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

    def __post_init__(self) -> None:
        # Make ``__dict__`` now. Cached properties are first used by several threads at once, and in CPython 3.11 two
        # threads that make the ``__dict__`` of one object at the same time free its values twice.
        vars(self)

    @classmethod
    def from_text(cls, title: str, text: str) -> Document:
        """Make a document of one section from a text without pages.

        Args:
            title: the title, which the model is shown.
        """
        return cls.from_pages(title, [text], unit="section")

    @classmethod
    def from_pages(cls, title: str, pages: Iterable[str], *, unit: str = "page") -> Document:
        """Make a document of pages, which are labelled from 1.

        Args:
            title: the title, which the model is shown.
            pages: the text of each page.
            unit: "page" or "section", the word for a page in sentences for the person.
        """
        texts = tuple(pages)
        digest = hashlib.sha256("\f".join((title, *texts)).encode("utf-8", "surrogatepass")).hexdigest()
        numbered = tuple(Page(number, str(number), text) for number, text in enumerate(texts, start=1))
        return cls(title, "", numbered, "text", digest, unit)

    @classmethod
    def together(cls, documents: Sequence[Document], *, title: str = "", sha256: str = "") -> Document:
        """Join several documents into one book. Pages are numbered consecutively, and each keeps its own label.

        If an earlier document has the same title, a number is added to the title. The text of a document does not
        depend on the documents after it.

        Args:
            title: the book's title; made from the documents' titles if empty.
            sha256: the hash under which the book is stored; made from the documents' hashes if empty.

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
                    inner, under = inner[1:], 0  # skip the first heading, which repeats the document's title
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
                f"“{member.title}”: {warning}"
                for member, document in zip(members, documents, strict=True)
                for warning in document.warnings
            ),
            members=tuple(members),
        )

    def member_at(self, number: int) -> Member | None:
        """The document that has the page with this number; None in a book of one document."""
        count = bisect_left([member.page_offset for member in self.members], number)
        return self.members[count - 1] if count else None

    def extent(self, count: int | None = None) -> str:
        """Return the number of pages in words, by unit, such as "76 pages and 4 sections". With ``count``, only the
        first ``count`` pages are counted.
        """
        return extent_of(self._sizes, len(self.pages) if count is None else count)

    @cached_property
    def _sizes(self) -> Sequence[tuple[int, str]]:
        """For each document that has pages, return the number of its pages and its unit."""
        counts = Counter(self.member_at(page.number) for page in self.pages)
        return [(count, (member or self).unit) for member, count in counts.items()] or [(0, self.unit)]

    @property
    def opening(self) -> str:
        """The title that begins the prompt. In a book of several documents it is the first document's title, because
        the text of that document must not depend on later ones.
        """
        return self.stretches[0].title if self.stretches else self.title

    @cached_property
    def stretches(self) -> tuple[Stretch, ...]:
        """The texts that are read in one piece each, in the order of reading: the whole document, or each of several
        documents that has pages.
        """
        if not self.members:
            return (Stretch(self.title, "", self.pages, *_joined(self.pages)),)
        stretches: list[Stretch] = []
        for member, some in groupby(self.pages, key=lambda page: self.member_at(page.number)):
            pages, title = tuple(some), member.title if member else ""
            heading = f"\n\n# {' '.join(title.split())}\n\n" if stretches else ""
            stretches.append(Stretch(title, heading, pages, *_joined(pages)))
        return tuple(stretches)

    @property
    def characters(self) -> int:
        return sum(len(page.text) for page in self.pages)

    def select(self, first: int, last: int) -> Document:
        """Copy the book with only the pages first..last (numbers from 1, both included).

        Raises:
            OptionError: the range is empty or outside the book.
        """
        lowest, highest = (self.pages[0].number, self.pages[-1].number) if self.pages else (1, 0)
        if not lowest <= first <= last <= highest:
            raise OptionError(
                f"{self.unit.capitalize()}s {first}-{last} are not in this book: it has {self.unit}s "
                f"{lowest} to {highest}.",
                "Choose a range inside it.",
            )
        return self.only(range(first, last + 1))

    def only(self, numbers: Collection[int]) -> Document:
        """Copy the book with only the pages of these numbers; unknown numbers are ignored."""
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
        """The text of all pages, joined. A sentence may continue on the page that follows in the file, but not
        across pages that were left out.
        """
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


@dataclass(frozen=True)
class Reading:
    """A document that an engine is to read, with everything that decides how it is read.

    Args:
        fit: whether to read only the first pages that fit if the document is too long.
        resume: whether to continue a stopped reading, if the document is the open one.
        wait: seconds to wait until a cancelled request has released the engine (``engine.HANDOVER_S`` is enough).
    """

    document: Document
    fit: bool = False
    resume: bool = False
    wait: float = 0.0

    @classmethod
    def of(cls, reading: Reading | Document) -> Reading:
        """Make a ``Reading`` of a document, with the defaults for everything else. If the argument is a ``Reading``
        already, return it unchanged.
        """
        return cls(reading) if isinstance(reading, Document) else reading


_APART = "\n\n"
"""The separator between two documents: no sentence continues from one document into the next."""


def _joined(pages: Iterable[Page]) -> tuple[str, tuple[int, ...]]:
    """Join the texts of pages. Return the text and the offset in characters at which each page starts."""
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
    """Make titles unique: "Lease", "Lease (2)". The result depends only on earlier titles."""
    unique: list[str] = []
    for title in titles:
        called, count = title, 1
        while called in unique:
            count += 1
            called = f"{title} ({count})"
        unique.append(called)
    return unique


def _titles(titles: Sequence[str]) -> str:
    """Make one title for several documents."""
    return " + ".join(titles) if len(titles) < _MANY else f"{titles[0]} + {len(titles) - 1} more"


def extent_of(sizes: Iterable[tuple[int, str]], most: int) -> str:
    """Count the first ``most`` pages, separately for each unit. Return the counts as text.

    [(70, "page"), (4, "section"), (6, "page")] gives "76 pages and 4 sections".
    """
    counts: dict[str, int] = {}
    for count, unit in sizes:
        taken = min(count, most - sum(counts.values()))
        counts[unit] = counts.get(unit, 0) + taken
    named = [f"{count:,} {unit}{'' if count == 1 else 's'}" for unit, count in counts.items() if count]
    return " and ".join(named) or f"0 {next(iter(counts), 'page')}s"
