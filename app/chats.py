"""What was asked and answered, chat by chat: as it is shown, and as it is kept.

Owns the record of every chat and hands out frozen snapshots of it. An answer that is being written is in memory at
once and in the store within ``SAVE_SECONDS``. Knows no page, no engine at work and no SQL beyond its few sentences;
versions of questions and answers are in ``app.store.tree``.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from app.exchanges import Chat, ChatLine, Exchange, Trouble, columns_of, exchange_of, line_of
from app.store import tree
from app.store.database import Database
from app.store.search import Found, find

__all__ = ["Chat", "ChatLine", "Chats", "Exchange", "Trouble"]

NAME_LENGTH = 120
MOST_HELD = 16
"""Chats that are in memory with all their turns, besides being in the store."""

SAVE_SECONDS = 0.4  # between two savings of a growing answer: what the end of the program may cost


_LINES = """
SELECT chats.id, chats.book, chats.name, chats.changed,
       (SELECT text FROM messages WHERE messages.chat = chats.id AND parent IS NULL ORDER BY id LIMIT 1) AS first
FROM chats WHERE ? IN ('', chats.book) ORDER BY chats.changed DESC, chats.rowid DESC
"""


class Chats:
    """Every method may be called from any thread.

    Args:
        database: where they are kept; in memory alone if None.
    """

    def __init__(self, database: Database | None = None) -> None:
        self.database = database or Database()
        self._chats: dict[str, Chat] = {}
        self._unsaved: dict[int, Exchange] = {}
        self._saved = 0.0
        self._lines: tuple[int, tuple[ChatLine, ...]] = (-1, ())
        self._lock = threading.RLock()
        self.database.write(tree.end_interrupted)

    def begin(self, book: str) -> Chat:
        """A new chat about the book with this hash; it is kept as soon as something is asked in it."""
        chat = Chat(secrets.token_urlsafe(9), book, time.time())
        with self._lock:
            self._hold(chat)
        return chat

    def get(self, chat_id: str) -> Chat | None:
        with self._lock:
            chat = self._chats.get(chat_id) or self._load(chat_id)
            if chat is not None:
                self._hold(chat)
            return chat

    def _hold(self, chat: Chat) -> None:
        """Have a chat at hand instead of the one used longest ago: all but empty ones are in the store."""
        self._chats.pop(chat.id, None)
        self._chats[chat.id] = chat
        if len(self._chats) > MOST_HELD:
            self.save_now()
            del self._chats[next(iter(self._chats))]

    def all(self) -> tuple[ChatLine, ...]:
        """Chats about all books, the last written first."""
        with self._lock:
            if self._lines[0] != self.database.changes:
                lines = tuple(line_of(row) for row in self.database.rows(_LINES, ("",)))
                self._lines = self.database.changes, lines
            return self._lines[1]

    def of_book(self, book: str) -> tuple[ChatLine, ...]:
        """Chats about one book that hold a question, the last written first."""
        return tuple(line for line in self.all() if line.book == book)

    def ask(self, chat_id: str, question: str, position: int | None = None) -> int:
        """Put a question at ``position`` (the end if None).

        What stands there stays as another version: the same words again get another answer, other words another
        branch of the chat.

        Returns:
            the position at which the question stands.
        """
        question = question.encode("utf-8", "replace").decode("utf-8")  # half of a pair can be sent, not written down
        with self._lock:
            chat = self._known(chat_id)
            at = len(chat.exchanges) if position is None else min(position, len(chat.exchanges))
            again = at < len(chat.exchanges) and chat.exchanges[at].question == question

            def write(connection: sqlite3.Connection) -> None:
                now = time.time()
                _keep(connection, chat, now)
                before = chat.exchanges[at - 1].answer_id if at else None
                asked = chat.exchanges[at].question_id if again else None
                if asked is None:
                    asked = tree.add(connection, chat_id, before, tree.QUESTION, question, now)
                tree.add(connection, chat_id, asked, tree.ANSWER, "", now)

            self._write(chat_id, write)
            return at

    def resume(self, chat_id: str, position: int) -> Exchange:
        """Open the answer at ``position`` again, to be continued.

        Returns:
            the exchange as it stands, with what there is of its answer.
        """
        with self._lock:
            turn = replace(self._known(chat_id).exchanges[position], stopped=None, trouble=None, interrupted=False)
            self.update(chat_id, position, turn)
            self._save()
            return turn

    def update(self, chat_id: str, position: int, exchange: Exchange) -> None:
        """Write down how far the exchange at ``position`` has come; of a chat that was deleted meanwhile, nothing."""
        with self._lock:
            chat = self.get(chat_id)
            if chat is None or position >= len(chat.exchanges):
                return
            known = chat.exchanges[position]
            exchange = replace(
                exchange,
                question_id=known.question_id,
                answer_id=known.answer_id,
                questions=known.questions,
                answers=known.answers,
            )
            turns = (*chat.exchanges[:position], exchange, *chat.exchanges[position + 1 :])
            self._chats[chat_id] = replace(chat, exchanges=turns)
            self._unsaved[exchange.answer_id] = exchange
            if exchange.stopped is not None:
                self._save()
            else:
                self.save_in_time()

    def save_in_time(self) -> None:
        """Save what has been written if the last time is long enough ago. Cheap: to be called often."""
        with self._lock:
            if self._unsaved and time.monotonic() - self._saved >= SAVE_SECONDS:
                self._save()

    def save_now(self) -> None:
        """Save everything that has been written."""
        with self._lock:
            if self._unsaved:
                self._save()

    def show(self, chat_id: str, message: int) -> bool:
        """Show the version that ``message`` is, or that leads to it; whether there is such a message."""
        with self._lock:
            if (chat := self.get(chat_id)) is None or not chat.exchanges:
                return False
            found = self.database.write(lambda connection: tree.show(connection, chat_id, message))
            self._chats.pop(chat_id, None)
            return found

    def rename(self, chat_id: str, name: str) -> None:
        """Give a chat a name of the person's own; an empty one brings its first question back."""
        clean = " ".join("".join(sign if sign.isprintable() else " " for sign in name).split())[:NAME_LENGTH]
        with self._lock:
            chat = self._known(chat_id)

            def write(connection: sqlite3.Connection) -> None:
                connection.execute("UPDATE chats SET name = ? WHERE id = ?", (clean, chat_id))

            self.database.write(write)
            self._chats[chat_id] = replace(chat, name=clean)

    def delete(self, chat_id: str) -> None:
        with self._lock:
            self.database.write(lambda connection: connection.execute("DELETE FROM chats WHERE id = ?", (chat_id,)))
            self._chats.pop(chat_id, None)

    def forget_book(self, book: str) -> None:
        """Delete all chats about a book."""
        with self._lock:
            self.database.write(lambda connection: connection.execute("DELETE FROM chats WHERE book = ?", (book,)))
            self._chats = {id: chat for id, chat in self._chats.items() if chat.book != book}

    def search(self, words: str) -> tuple[Found, ...]:
        """Messages of all chats that hold the words."""
        return find(self.database, words)

    def _known(self, chat_id: str) -> Chat:
        chat = self.get(chat_id)
        if chat is None:
            raise KeyError(chat_id)
        return chat

    def _write(self, chat_id: str, work: Callable[[sqlite3.Connection], None]) -> None:
        self.database.write(work)
        chat = self._load(chat_id)
        assert chat is not None
        self._hold(chat)

    def _save(self) -> None:
        unsaved, self._unsaved = self._unsaved, {}

        def write(connection: sqlite3.Connection) -> None:
            for exchange in unsaved.values():
                tree.update(connection, exchange.answer_id, columns_of(exchange))
            now = time.time()
            for exchange in unsaved.values():
                connection.execute(
                    "UPDATE chats SET changed = ? WHERE id = (SELECT chat FROM messages WHERE id = ?)",
                    (now, exchange.answer_id),
                )

        ended = any(exchange.stopped is not None for exchange in unsaved.values())
        (self.database.write if ended else self.database.note)(write)
        self._saved = time.monotonic()

    def _load(self, chat_id: str) -> Chat | None:
        rows = self.database.rows("SELECT * FROM chats WHERE id = ?", (chat_id,))
        if not rows:
            return None
        path = self.database.read(lambda connection: tree.shown_path(connection, chat_id))
        pairs = zip(path[::2], path[1::2], strict=False)
        turns = tuple(exchange_of(question, answer) for question, answer in pairs)
        return Chat(chat_id, rows[0]["book"], rows[0]["begun"], turns, rows[0]["name"])


def _keep(connection: sqlite3.Connection, chat: Chat, now: float) -> None:
    """The row of a chat, and of its book where the book is not in the library."""
    connection.execute("INSERT OR IGNORE INTO books (sha256) VALUES (?)", (chat.book,))
    connection.execute(
        "INSERT INTO chats (id, book, name, begun, changed) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET changed = excluded.changed",
        (chat.id, chat.book, chat.name, chat.begun, now),
    )
