r"""The messages of a chat: a tree in which every question and every answer may have versions, one of them shown.

    question 1 --- answer 1                     asked again: another answer to the same question
              \--- answer 2 --- question 2      edited: another question after the same answer
                           \--- question 3

Owns how a tree is walked and grown, as rows. Knows no records of the app and no page.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

QUESTION, ANSWER = "question", "answer"
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Step:
    """One message of the path that is shown, and the ids of all its versions, itself among them, oldest first."""

    row: sqlite3.Row
    versions: tuple[int, ...]


def shown_path(connection: sqlite3.Connection, chat: str) -> list[Step]:
    """Question, answer, question, ...: the version that was chosen at every fork, else the newest."""
    found = connection.execute("SELECT id, parent, chosen FROM messages WHERE chat = ? ORDER BY id", (chat,)).fetchall()
    top = connection.execute("SELECT chosen FROM chats WHERE id = ?", (chat,)).fetchone()
    following: dict[int | None, list[int]] = {}
    for row in found:
        following.setdefault(row["parent"], []).append(row["id"])
    chosen = {row["id"]: row["chosen"] for row in found}
    path: list[tuple[int, tuple[int, ...]]] = []
    parent, wanted = None, top["chosen"] if top else None
    while versions := following.get(parent):
        parent = wanted if wanted in versions else versions[-1]
        wanted = chosen[parent]
        path.append((parent, tuple(versions)))
    rows = {row["id"]: row for row in _rows(connection, [message for message, _ in path])}
    return [Step(rows[message], versions) for message, versions in path]


def add(connection: sqlite3.Connection, chat: str, parent: int | None, role: str, text: str, now: float) -> int:
    """A new message, shown from now on; its id."""
    cursor = connection.execute(
        "INSERT INTO messages (chat, parent, role, text, written) VALUES (?, ?, ?, ?, ?)",
        (chat, parent, role, text, now),
    )
    assert cursor.lastrowid is not None
    choose(connection, chat, parent, cursor.lastrowid)
    return cursor.lastrowid


def choose(connection: sqlite3.Connection, chat: str, parent: int | None, message: int) -> None:
    """Show ``message`` after ``parent``, or at the beginning of the chat."""
    if parent is None:
        connection.execute("UPDATE chats SET chosen = ? WHERE id = ?", (message, chat))
    else:
        connection.execute("UPDATE messages SET chosen = ? WHERE id = ?", (message, parent))


def show(connection: sqlite3.Connection, chat: str, message: int) -> bool:
    """Choose the versions that lead to a message; whether it is one of this chat."""
    here: int | None = message
    while here is not None:
        row = connection.execute("SELECT parent FROM messages WHERE id = ? AND chat = ?", (here, chat)).fetchone()
        if row is None:
            return False
        choose(connection, chat, row["parent"], here)
        here = row["parent"]
    return True


def update(connection: sqlite3.Connection, message: int, columns: Mapping[str, Any]) -> None:
    """Write some columns of a message; names are ours, never a person's."""
    names = ", ".join(f"{name} = ?" for name in columns)
    connection.execute(f"UPDATE messages SET {names} WHERE id = ?", (*columns.values(), message))


def all_of(connection: sqlite3.Connection, chat: str) -> list[sqlite3.Row]:
    """Every message of a chat, all versions, oldest first."""
    return connection.execute("SELECT * FROM messages WHERE chat = ? ORDER BY id", (chat,)).fetchall()


def end_interrupted(connection: sqlite3.Connection) -> int:
    """Answers that were being written when the program ended are marked so; how many there were."""
    return connection.execute(
        "UPDATE messages SET stopped = ? WHERE role = ? AND stopped IS NULL", (INTERRUPTED, ANSWER)
    ).rowcount


def _rows(connection: sqlite3.Connection, messages: list[int]) -> list[sqlite3.Row]:
    if not messages:
        return []
    marks = ",".join("?" * len(messages))
    return connection.execute(f"SELECT * FROM messages WHERE id IN ({marks})", messages).fetchall()
