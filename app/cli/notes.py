"""``notes`` prints a person's notes from the app: as Markdown, as entries for reference managers, or as JSON."""

from __future__ import annotations

import argparse
import hashlib
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from app.core.books import Book, Books
from app.core.db import Database
from app.core.notes import NoteStore, search
from app.core.references import FORMS, sources_of
from app.core.settings import Settings
from app.launcher.console import say, write, write_json
from engine.errors import InputError


def run(options: argparse.Namespace, settings: Settings) -> int:
    if not settings.library.is_file():
        raise InputError(
            "There are no notes yet, because no book was opened in the app.", "Note a passage in the app first."
        )
    with closing(Database(settings.library)) as database:
        if trouble := database.trouble or database.notice:
            say(f"Note: {trouble}")
        books, store = Books(settings.books, database), NoteStore(database)
        chosen = _named(books, options.book) if options.book else _noted(books, store)
        sources = {source.sha256: source for book in chosen for source in sources_of(books, store, book)}
        notes = search(store.of(tuple(sources)), options.find or "")
        # after a search, or for all books, documents without a listed note are left out
        if options.find or not options.book:
            sources = {
                sha256: source for sha256, source in sources.items() if any(note.book == sha256 for note in notes)
            }
        if options.json:
            write_json(
                {"documents": [asdict(one) for one in sources.values()], "notes": [asdict(note) for note in notes]}
            )
            return 0
        if not notes:
            say("There is no such note." if options.find else "There are no notes.")
        else:
            title = chosen[0].shown if len(chosen) == 1 else "all books"
            # a terminal and a file of this machine get its own line ends; RIS prescribes those of Windows
            written = FORMS[options.form][1](title, tuple(sources.values()), notes)
            write(written.replace("\r\n", "\n"))
    return 0


def _noted(books: Books, store: NoteStore) -> list[Book]:
    """The books that have notes."""
    counts = store.counts()
    return [book for book in books.all() if counts.get(book.sha256)]


def _named(books: Books, name: str) -> list[Book]:
    """The book made from the file ``name``, or else the book whose title or file name contains ``name``.

    Raises:
        InputError: there is no such book, or more than one.
    """
    path, every = Path(name).expanduser(), books.all()
    if path.is_file():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        found = [book for book in every if book.sha256 == digest]
    else:
        words = name.casefold()
        exact = [book for book in every if words in (book.shown.casefold(), book.name.casefold())]
        found = exact or [book for book in every if words in f"{book.shown} {book.name}".casefold()]
    if not found:
        raise InputError(f"There is no book “{name}” in the library.", "Give a word of the book's title, or its file.")
    if len(found) > 1:
        titles = "; ".join(book.shown for book in found)
        raise InputError(f"Several books match “{name}”: {titles}.", "Give more words of the title, or the file.")
    return found
