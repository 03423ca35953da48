"""Stores notes: passages of books and sentences of answers, each with a page, a colour and the person's own words.

A note belongs to the file that has its page, so it is shown whether that file is open alone or as one of several
documents. If no page is known for a sentence of an answer, its note belongs to the open book.

Owns the table ``notes``, the search of notes, and the text from which a question about notes is answered (``to_read``).
"""

from __future__ import annotations

import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from app.core import format
from app.core.db import Database
from app.readers.locating import folded, locate
from app.trust.quoted import fold, fold_words
from engine.document import Document, Member, Page
from engine.errors import OptionError

COLOURS = ("yellow", "green", "blue", "rose")
NOTES = "notes"
"""The kind of a document that consists of a person's notes instead of pages."""
LONGEST = 20_000
"""Maximum characters of a passage, and of the person's own words."""
# Patterns of the punctuation and spaces before the first letter or digit of a passage (``_OPENING``) and after its last
# letter or digit (``_CLOSING``).
_OPENING, _CLOSING = re.compile(r"[\W_]*"), re.compile(r"[\W_]*\Z")
# maximum number of deleted notes that are kept in memory, so that they can be restored until the program ends
_MOST_UNDONE = 200


@dataclass(frozen=True)
class Note:
    """One note. ``id``: its key in the database.

    ``book``: the hash of the file that has the note's page, or of the open book if no page is known. ``page``: the
    page's number in that file, 0 if no page is known. ``label``: the label printed on the page. ``start`` and ``stop``:
    the characters of ``passage`` in the page's text; both 0 if the passage is not found there. ``said``: the sentence
    of an answer that was noted, if any. ``words``: the person's own words. ``written``: seconds since the epoch.
    """

    id: str
    book: str
    page: int = 0
    label: str = ""
    start: int = 0
    stop: int = 0
    passage: str = ""
    said: str = ""
    words: str = ""
    colour: str = COLOURS[0]
    written: float = 0.0


class ChangedMeanwhile(Exception):
    """Raised if another tab has changed the words of a note. ``note`` has the present words."""

    def __init__(self, note: Note) -> None:
        super().__init__(note.id)
        self.note = note


class NoteStore:
    """The notes of all books. Every method may be called from any thread.

    Args:
        database: stores the notes.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._deleted: dict[str, Note] = {}
        self._changes = 0
        self._lock = threading.Lock()

    @property
    def changes(self) -> int:
        """A number that grows whenever a note is written, changed or deleted."""
        return self._changes

    def on_page(self, book: str, page: int) -> tuple[Note, ...]:
        """The notes on one page of a file."""
        rows = self._database.rows("SELECT * FROM notes WHERE book = ? AND page = ?", (book, page))
        return _in_order(map(_note, rows))

    def of(self, books: Sequence[str]) -> tuple[Note, ...]:
        """The notes of these files, file by file. The notes of a file are in the order of its pages; notes without a
        page come last.
        """
        rows = [self._database.rows("SELECT * FROM notes WHERE book = ?", (book,)) for book in dict.fromkeys(books)]
        return tuple(note for of_book in rows for note in _in_order(map(_note, of_book)))

    def counts(self) -> dict[str, int]:
        """The number of notes, keyed by file."""
        rows = self._database.rows("SELECT book, count(*) AS notes FROM notes GROUP BY book")
        return {row["book"]: row["notes"] for row in rows}

    def count(self, books: Sequence[str]) -> tuple[int, int]:
        """The number of notes of these files, and the number of those notes that have a page."""
        query = "SELECT count(*) AS notes, count(NULLIF(page, 0)) AS placed FROM notes WHERE book = ?"
        rows = [row for book in dict.fromkeys(books) for row in self._database.rows(query, (book,))]
        return sum(row["notes"] for row in rows), sum(row["placed"] for row in rows)

    def get(self, id: str) -> Note:
        """Find a note by its id.

        Raises:
            OptionError: there is no such note.
        """
        rows = self._database.rows("SELECT * FROM notes WHERE id = ?", (id,))
        if not rows:
            raise OptionError("This note is no longer there.", "Look at the list again.")
        return _note(rows[0])

    def add(self, note: Note) -> Note:
        """Store a note as ``noted`` does, and return the stored note."""
        return self.noted(note)[0]

    def noted(self, note: Note) -> tuple[Note, bool]:
        """Store a note under a new id. If the passage or the sentence already has a note, that note gets the new
        colour, and the new words are appended to its words. Return the stored note, and whether there was a note
        before.

        Raises:
            OptionError: the note is empty or too long, or its colour is unknown.
        """
        _check(note)
        with self._lock:
            before = self.noted_before(note)
            if before is None:
                note = replace(note, id=secrets.token_urlsafe(9), written=time.time())
            else:
                words = "\n".join(dict.fromkeys(filter(None, (before.words.strip(), note.words.strip()))))
                note = replace(before, words=words, colour=note.colour)
                _check(note)
            self._put(note)
        return note, before is not None

    def noted_before(self, note: Note) -> Note | None:
        """The existing note about the same passage, or about the same sentence of an answer; None if there is none."""
        return next((one for one in self.on_page(note.book, note.page) if _is_same(one, note)), None)

    def change(self, id: str, words: str, colour: str, seen: str | None = None) -> Note:
        """Change the person's own words or the colour of a note.

        Args:
            colour: the new colour; "" keeps the present one.
            seen: the words that the person began to change; None replaces any words.

        Raises:
            OptionError: there is no such note, or the words are too long.
            ChangedMeanwhile: the note no longer has the words ``seen``, but others than ``words``.
        """
        with self._lock:
            before = self.get(id)
            if seen is not None and before.words not in (seen, words):
                raise ChangedMeanwhile(before)
            note = replace(before, words=words, colour=colour or before.colour)
            _check(note)
            self._put(note)
        return note

    def delete(self, id: str) -> None:
        """Delete a note. It can be restored until the program ends."""
        with self._lock:
            note = self.get(id)
            self._write("DELETE FROM notes WHERE id = ?", (id,))
            self._deleted[id] = note
            if len(self._deleted) > _MOST_UNDONE:
                del self._deleted[next(iter(self._deleted))]

    def put_back(self, id: str) -> None:
        """Restore a deleted note.

        Raises:
            OptionError: the note was not deleted since the program began, or too many notes were deleted after it.
        """
        with self._lock:
            note = self._deleted.get(id)
            if note is None:
                raise OptionError("This note cannot be brought back any more.")
            self._put(note)
            self._deleted.pop(id, None)

    def forget_book(self, book: str) -> None:
        """Delete all notes of a file, including those that could be restored."""
        self._write("DELETE FROM notes WHERE book = ?", (book,))
        with self._lock:
            self._deleted = {id: note for id, note in self._deleted.items() if note.book != book}

    def _put(self, note: Note) -> None:
        row = asdict(note)
        names, marks = ", ".join(row), ", ".join("?" * len(row))

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR IGNORE INTO books (sha256) VALUES (?)", (note.book,))
            connection.execute(f"INSERT OR REPLACE INTO notes ({names}) VALUES ({marks})", tuple(row.values()))

        self._database.write(write)
        self._changes += 1

    def _write(self, query: str, values: Sequence[Any]) -> None:
        self._database.write(lambda connection: connection.execute(query, values))
        self._changes += 1


_COLUMNS = tuple(field.name for field in fields(Note))


def _note(row: sqlite3.Row) -> Note:
    return Note(*(row[name] for name in _COLUMNS))


def _in_order(found: Iterable[Note]) -> tuple[Note, ...]:
    """Sort the notes of one file in the order of pages. Notes without a page come last."""
    return tuple(sorted(found, key=lambda note: (note.page == 0, note.page, note.start, note.written, note.id)))


def _is_same(one: Note, other: Note) -> bool:
    """Whether two notes on a page are about the same passage and the same sentence of an answer. Two notes about a page
    as a whole count as the same note unless both have the person's own words.
    """
    if not (other.passage or other.said):
        return not (one.passage or one.said) and not (one.words and other.words)
    return (one.start, one.stop, one.said) == (other.start, other.stop, other.said) and folded(one.passage) == folded(
        other.passage
    )


def _check(note: Note) -> None:
    """Raise an error if a note cannot be stored.

    Raises:
        OptionError: the note is empty or too long, or its colour is unknown.
    """
    if not (note.passage.strip() or note.said.strip() or note.words.strip() or note.page):
        raise OptionError("There is nothing to note.", "Mark a passage first.")
    if note.colour not in COLOURS:
        raise OptionError(f"There is no colour {note.colour!r}.", f"Choose one of: {', '.join(COLOURS)}.")
    if max(map(len, (note.passage, note.said, note.words))) > LONGEST:
        raise OptionError(f"A note has at most {LONGEST:,} characters.", "Mark less, or make two of it.")


def search(notes: Sequence[Note], words: str) -> tuple[Note, ...]:
    """Find the notes that contain all of the given words, ignoring case and accents. A word may also be a part of a
    word in the note. Without words, return all notes.
    """
    wanted = [letters for word in words.split() if (letters := fold(word))]

    def text(note: Note) -> str:
        return fold_words(f"{note.passage} {note.said} {note.words} {note.label}")

    return tuple(note for note in notes if all(word in text(note) for word in wanted)) if wanted else tuple(notes)


# Notes and the pages of a document -----------------------------------------------------------------------------------


def books_of(document: Document, book: str) -> tuple[str, ...]:
    """The hashes under which the notes of an open book are stored: the hashes of its documents, if it has several, and
    its own hash.
    """
    return tuple(dict.fromkeys([*(member.sha256 for member in document.members), book]))


def member_of(document: Document, note: Note) -> Member | None:
    """The document of the book that a note belongs to; None if the book is a single document."""
    return next((member for member in document.members if member.sha256 == note.book), None)


def page_of(document: Document, note: Note) -> Page | None:
    """The page of ``document`` that a note is on; None if the note's page is unknown or not in the document."""
    member = member_of(document, note)
    if not note.page or bool(document.members) != (member is not None):
        return None
    return document.page(note.page + (member.page_offset if member else 0))


def place(document: Document, note: Note, long: bool = False) -> str:
    """The page of a note in words: "p. 41", or "Lease 2024, p. 3" in a book of several documents. Empty if the note has
    no page.
    """
    if not note.page:
        return ""
    member = member_of(document, note)
    name = format.page_name(note.label or str(note.page), (member or document).unit, long=long)
    return f"{member.title}, {name}" if member else name


def marked(page: Page, passage: str, text_before: str = "", text_after: str = "") -> tuple[int, int]:
    """Find a passage in a page's text, ignoring spacing. Return its (start, end) in the text; (0, 0) if it is not
    there.

    Args:
        text_before, text_after: the text before and after the passage, by which the right place is chosen if there are
            several.
    """
    letters = [(sign, at) for at, character in enumerate(page.text) for sign in folded(character)]
    found = locate("".join(sign for sign, _ in letters), *map(folded, (passage, text_before, text_after)))
    if found is None:
        return 0, 0
    start, stop = letters[found[0]][1], letters[found[1] - 1][1] + 1
    for sign in _OPENING.match(passage.strip())[0][::-1]:  # type: ignore[index]
        start -= page.text[start - 1 : start] == sign
    for sign in _CLOSING.search(passage.strip())[0]:  # type: ignore[index]
        stop += page.text[stop : stop + 1] == sign
    return start, stop


def marks(page: Page, note: Note) -> tuple[int, int]:
    """The (start, end) of a note's passage in a page's text. If the text at the stored positions is not the passage,
    the passage is searched on the page.
    """
    if note.start < note.stop and folded(page.text[note.start : note.stop]) == folded(note.passage):
        return note.start, note.stop
    return marked(page, note.passage)


def to_read(document: Document, notes: Sequence[Note]) -> Document:
    """Make a document from a person's notes, so that the model can read them. Each page of ``document`` that has notes
    becomes a page with the same number and label, whose text is the text of these notes.

    Notes without a page, and notes with neither a passage nor the person's own words, are left out. The new document
    has an empty ``sha256``, so that its KV is not saved on disk, because the notes may change.
    """
    texts: dict[int, list[str]] = {}
    for note in notes:
        if (page := page_of(document, note)) is not None and (text := _as_text(note)):
            texts.setdefault(page.number, []).append(text)
    pages = tuple(
        replace(page, text="\n\n".join(texts[page.number]), picture="")
        for page in document.pages
        if page.number in texts
    )
    title = f"Notes on {document.title}"
    return replace(document, title=title, pages=pages, kind=NOTES, sha256="", outline=(), warnings=())


def _as_text(note: Note) -> str:
    """The text of a note: the passage and the person's own words. A noted sentence of an answer is left out, because
    the model has written it and it is no source.
    """
    return "\n".join(part for part in (" ".join(note.passage.split()), note.words.strip()) if part)
