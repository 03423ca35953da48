"""What was asked and answered, chat by chat, while the program runs.

Owns the record of every chat and hands out frozen snapshots of it. Knows no page, no engine at work and no files:
a store on disk can take this one's place behind the same methods.
"""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass, field, replace

from engine.events import Figures, StopReason

TITLE_LENGTH = 60


@dataclass(frozen=True)
class Trouble:
    """Why there is no answer, or only part of one: two sentences for the person."""

    cause: str
    remedy: str


@dataclass(frozen=True)
class Exchange:
    """One question with its answer, as far as it has come. ``stopped`` is None while it is being written."""

    question: str
    answer: str = ""
    stopped: StopReason | None = None
    figures: Figures | None = None
    trouble: Trouble | None = None


@dataclass(frozen=True)
class Chat:
    """Questions about one book, in order."""

    id: str
    book: str
    begun: float
    exchanges: tuple[Exchange, ...] = field(default=())

    @property
    def title(self) -> str:
        first = " ".join(self.exchanges[0].question.split()) if self.exchanges else "New chat"
        return first if len(first) <= TITLE_LENGTH else first[: TITLE_LENGTH - 1].rstrip() + "…"

    def before(self, position: int) -> tuple[tuple[str, str], ...]:
        """The (question, answer) pairs ahead of ``position`` that were answered, at least in part."""
        return tuple((turn.question, turn.answer) for turn in self.exchanges[:position] if turn.answer)


class Chats:
    """All chats of this run. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._chats: dict[str, Chat] = {}
        self._lock = threading.Lock()

    def begin(self, book: str) -> Chat:
        """A new chat about the book with this hash."""
        chat = Chat(secrets.token_urlsafe(9), book, time.time())
        with self._lock:
            self._chats[chat.id] = chat
        return chat

    def get(self, chat_id: str) -> Chat | None:
        with self._lock:
            return self._chats.get(chat_id)

    def of_book(self, book: str) -> tuple[Chat, ...]:
        """Chats about one book that hold a question, newest first."""
        with self._lock:
            found = [chat for chat in self._chats.values() if chat.book == book and chat.exchanges]
        return tuple(sorted(found, key=lambda chat: chat.begun, reverse=True))

    def ask(self, chat_id: str, question: str, position: int | None = None) -> int:
        """Put a question at ``position`` (the end if None), dropping what stood there and after it.

        Returns:
            the position at which the question stands.
        """
        with self._lock:
            chat = self._chats[chat_id]
            at = len(chat.exchanges) if position is None else position
            self._chats[chat_id] = replace(chat, exchanges=(*chat.exchanges[:at], Exchange(question)))
            return at

    def update(self, chat_id: str, position: int, exchange: Exchange) -> None:
        """Write down how far the exchange at ``position`` has come."""
        with self._lock:
            chat = self._chats[chat_id]
            turns = (*chat.exchanges[:position], exchange, *chat.exchanges[position + 1 :])
            self._chats[chat_id] = replace(chat, exchanges=turns)
