"""Stores which book is open, and other named values, for the next start of the program.

Owns the table ``app_state`` of the database.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

from app.core import db
from app.core.db import Database

_KEY = "open"  # key of the ``Mark`` in the table ``app_state``


@dataclass(frozen=True)
class Mark:
    """The open book and its chat, as stored for the next start. ``ready``: whether opening the book succeeded. A book
    that is not ready is not opened at the next start.
    """

    book: str
    chat: str
    ready: bool


class Bookmark:
    """Stores in ``database`` which book is open, for the next start."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept = self.find()

    def keep(self, mark: Mark | None) -> None:
        """Store which book is open. None means that no book is open."""
        if mark == self._kept:
            return
        self._kept = mark
        keep_value(self._database, _KEY, [mark.book, mark.chat, mark.ready] if mark else None)

    def find(self) -> Mark | None:
        value = kept_value(self._database, _KEY)
        if not (isinstance(value, list) and len(value) == 3):
            return None
        return Mark(str(value[0]), str(value[1]), bool(value[2]))


def keep_value(database: Database, name: str, value: Any) -> None:
    """Store a value for the next start under this name; None deletes the stored value."""

    def write(connection: sqlite3.Connection) -> None:
        if value is None:
            connection.execute("DELETE FROM app_state WHERE name = ?", (name,))
        else:
            row = (name, db.to_json(value))
            connection.execute("INSERT OR REPLACE INTO app_state (name, value) VALUES (?, ?)", row)

    database.write(write)


def kept_value(database: Database, name: str) -> Any:
    """The value that ``keep_value`` stored under this name; None if there is none, or if it is damaged."""
    rows = database.rows("SELECT value FROM app_state WHERE name = ?", (name,))
    return db.from_json(rows[0]["value"]) if rows else None
