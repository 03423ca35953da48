"""Which book and chat were open when the program was last at work, so that they are there again after a restart."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from app.store import records
from app.store.database import Database

_NAME = "open"


@dataclass(frozen=True)
class Mark:
    """``ready``: the book had been opened without harm; one that was not is not opened again by itself."""

    book: str
    chat: str
    ready: bool


class Bookmark:
    """Args:
    database: where it is kept.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._kept = self.find()

    def keep(self, mark: Mark | None) -> None:
        """Write down what is open; None: nothing is."""
        if mark == self._kept:
            return
        self._kept = mark
        value = records.to_json([mark.book, mark.chat, mark.ready]) if mark else None

        def write(connection: sqlite3.Connection) -> None:
            if value is None:
                connection.execute("DELETE FROM desk WHERE name = ?", (_NAME,))
            else:
                connection.execute("INSERT OR REPLACE INTO desk (name, value) VALUES (?, ?)", (_NAME, value))

        self._database.write(write)

    def find(self) -> Mark | None:
        rows = self._database.rows("SELECT value FROM desk WHERE name = ?", (_NAME,))
        found = records.from_json(rows[0]["value"]) if rows else None
        if not (isinstance(found, list) and len(found) == 3):
            return None
        return Mark(str(found[0]), str(found[1]), bool(found[2]))
