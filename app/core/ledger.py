"""Counts the confirmed changes of the library in a small file beside it, so that lost changes are noticed.

If the library's write-ahead log is lost, SQLite opens the older state of the file without an error. The library
therefore has the number of its confirmed changes in its tables, and ``library.db-confirmed`` repeats this number after
every change, with the numbers of chats, answers and notes of each book. If the file's number is larger than the
library's, changes were lost, and ``missing`` names what is missing. A kill between the two writes leaves the file
behind the library, which is no loss.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from app.core.whole_files import PRIVATE, write_whole
from app.sealed import BROKEN, seal, unseal

Value = TypeVar("Value")

SUFFIX = "-confirmed"
_KEY = "confirmed"  # name of the number of confirmed changes in the table ``app_state``
_MOST_NAMED = 5  # maximum number of books that a sentence names
# numbers of chats, of questions and answers, and of notes
_COUNTS = """
SELECT books.sha256, coalesce(nullif(books.title, ''), books.name) AS shown,
    (SELECT count(*) FROM chats WHERE chats.book = books.sha256),
    (SELECT count(*) FROM messages JOIN chats ON chats.id = messages.chat WHERE chats.book = books.sha256),
    (SELECT count(*) FROM notes WHERE notes.book = books.sha256)
FROM books
"""


def counted(work: Callable[[sqlite3.Connection], Value]) -> Callable[[sqlite3.Connection], Value]:
    """Let the transaction of ``work`` also count itself."""

    def both(connection: sqlite3.Connection) -> Value:
        result = work(connection)
        connection.execute(
            "INSERT INTO app_state VALUES (?, '1') ON CONFLICT (name) DO UPDATE SET value = value + 1", (_KEY,)
        )
        return result

    return both


def confirm(connection: sqlite3.Connection, library: Path) -> None:
    """Write the present numbers beside the library. A failure is not reported, because the rows themselves are safe."""
    with suppress(OSError, sqlite3.Error):
        path = _path(library)
        write_whole(path, seal({"changes": _changes(connection), "books": _counts(connection)}), PRIVATE)


def missing(connection: sqlite3.Connection, library: Path) -> str:
    """A sentence about confirmed changes that the library lacks; "" if it has all of them, or if nothing is known."""
    try:
        kept = unseal(_path(library).read_bytes())
        lost = int(kept["changes"]) - _changes(connection)
        if lost <= 0:
            return ""
        present, total, named = _counts(connection), [0, 0, 0], []
        for sha256, (shown, *before) in kept["books"].items():
            fewer = [max(0, was - now) for was, now in zip(before, present.get(sha256, ["", 0, 0, 0])[1:], strict=True)]
            total = [one + more for one, more in zip(total, fewer, strict=True)]
            named += [f"“{shown}”"] if any(fewer) and shown else []
    except (*BROKEN, sqlite3.Error):
        return ""
    if not any(total):
        return f"The last {lost} changes to the library were lost."
    chats, messages, notes = total
    said = (
        "Confirmed changes to the library were lost. "
        f"Missing are {chats} chats with {messages} questions and answers, and {notes} notes."
    )
    return f"{said} They belong to {', '.join(named[:_MOST_NAMED])}." if named else said


def _path(library: Path) -> Path:
    return library.with_name(library.name + SUFFIX)


def _changes(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT value FROM app_state WHERE name = ?", (_KEY,)).fetchone()
    return int(row[0]) if row else 0


def _counts(connection: sqlite3.Connection) -> dict[str, list[Any]]:
    """The title of each book, and the numbers of its chats, of its questions and answers, and of its notes."""
    return {row[0]: list(row)[1:] for row in connection.execute(_COUNTS) if any(tuple(row)[2:])}
