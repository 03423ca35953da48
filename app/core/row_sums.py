"""Keeps a checksum of every row that a person would miss, so that a changed byte in the library's file is noticed.

SQLite notices damage to the structure of its file, but reads a text with a changed letter without an error. So the
table ``sums`` has a checksum of each row of ``_TABLES``, which triggers of our own connections write in the transaction
that writes the row. ``changed`` compares all rows with their checksums when the library is opened.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable
from operator import eq
from typing import Any

# The key of each table, and the other columns that are summed. Times are left out, because versions of SQLite write
# fractions differently.
_TABLES = {
    "books": ("sha256", "name", "file", "title", "author", "given"),
    "chats": ("id", "book", "name"),
    "messages": ("id", "chat", "parent", "role", "text", "stopped", "figures", "notes", "trouble"),
    "notes": ("id", "book", "page", "label", "start", "stop", "passage", "said", "words", "colour"),
}
_DIGITS = 16  # hexadecimal digits of a row's checksum
# Minimum digits that a damaged checksum shares with the sound one. A changed row shares as many once in 2e11 cases.
_SHARED = 12
_MOST_NAMED = 5  # maximum number of books and chats that a sentence names
# the name of the book or chat in which a row is shown, keyed by the row's table
_SHOWN = {
    "books": "SELECT coalesce(nullif(given, ''), nullif(title, ''), name) FROM books WHERE sha256 = ?",
    "chats": "SELECT name FROM chats WHERE id = ?",
    "messages": (
        "SELECT coalesce(nullif(name, ''), (SELECT text FROM messages WHERE chat = chats.id ORDER BY id LIMIT 1)) "
        "FROM chats WHERE id = (SELECT chat FROM messages WHERE id = ?)"
    ),
    "notes": (
        "SELECT coalesce(nullif(given, ''), nullif(title, ''), name) FROM books "
        "WHERE sha256 = (SELECT book FROM notes WHERE id = ?)"
    ),
}
_LONGEST_NAME = 60  # maximum characters of a name in a sentence


def _call(table: str, row: str = "") -> str:
    """SQL that computes the checksum of a row. ``row``: "new." in a trigger. Columns are passed as bytes, because a
    damaged text may not be UTF-8.
    """
    return f"row_sum({', '.join(f'CAST({row}{column} AS BLOB)' for column in _TABLES[table])})"


TABLE = (
    "CREATE TABLE sums (kind TEXT NOT NULL, row NOT NULL, sum TEXT NOT NULL, PRIMARY KEY (kind, row)) WITHOUT ROWID;"
)
"""The migration that makes the table ``sums``. ``changed`` fills it."""


def watch(connection: sqlite3.Connection) -> None:
    """Let every row that this connection writes or deletes update its checksum. The triggers belong to the connection,
    so that the file can be opened by programs without the function.
    """
    connection.create_function("row_sum", -1, _sum, deterministic=True)
    connection.execute("PRAGMA temp_store = MEMORY")
    for table, (key, *_) in _TABLES.items():
        forget = f"DELETE FROM sums WHERE kind = '{table}' AND row = +"  # "+", so that the index is used for any type
        # no INSERT OR REPLACE, because the conflict clause of the statement that fires a trigger would replace it
        write = f"{forget}new.{key}; INSERT INTO sums VALUES ('{table}', new.{key}, {_call(table, 'new.')});"
        for event, steps in (
            ("INSERT", write),
            ("UPDATE", f"{forget}old.{key}; {write}"),
            ("DELETE", f"{forget}old.{key};"),
        ):
            connection.execute(
                f"CREATE TEMP TRIGGER IF NOT EXISTS sums_{table}_{event} AFTER {event} ON main.{table} "
                f"BEGIN {steps} END"
            )


def put_back(sums: Iterable[tuple[Any, ...]], connection: sqlite3.Connection) -> None:
    """Give rows that were salvaged from a damaged file their former checksums (checksum, table, key), so that
    ``changed`` finds those that are not what was written.
    """
    connection.executemany("UPDATE sums SET sum = ? WHERE kind = ? AND row = ?", sums)


def changed(connection: sqlite3.Connection) -> str:
    """A sentence about rows that are no longer what was written; "" if there are none. It is said once: the rows then
    get new checksums. So does a row whose checksum is missing or was damaged itself, which is not said.
    """
    counts, named = dict.fromkeys(_TABLES, 0), list[str]()
    for table, (key, *_) in _TABLES.items():
        now = _call(table)
        query = f"SELECT {key}, sum, {now} FROM {table} LEFT JOIN sums ON kind = '{table}' AND row = +{key}"
        for row, kept, sound in connection.execute(f"{query} WHERE sum IS NOT {now}").fetchall():
            connection.execute(
                f"INSERT OR REPLACE INTO sums SELECT '{table}', {key}, {_call(table)} FROM {table} WHERE {key} = ?",
                (row,),
            )
            if kept is None or sum(map(eq, str(kept), sound)) >= _SHARED:
                continue
            counts[table] += 1
            shown = connection.execute(_SHOWN[table], (row,)).fetchone()
            named += [f"“{shown[0][:_LONGEST_NAME]}”"] if shown and shown[0] else []
    if not any(counts.values()):
        return ""
    names = counts["books"] + counts["chats"]
    said = (
        f"Damage on the disk has changed {counts['messages']} questions and answers, {counts['notes']} notes, and "
        f"{names} names in the library. Compare them with the book before you rely on them."
    )
    return f"{said} They belong to {', '.join(dict.fromkeys(named[:_MOST_NAMED]))}." if named else said


def _sum(*columns: bytes | None) -> str:
    parts = (b"-" if column is None else b"%d:%s" % (len(column), column) for column in columns)
    return hashlib.sha256(b",".join(parts)).hexdigest()[:_DIGITS]
