r"""Stores questions and answers chat by chat, and gives them to the page.

``Chats`` owns the record of every chat, and returns chats as immutable objects. An answer that is being written is kept
in memory and saved to the database every ``SAVE_SECONDS``. A chat's messages are a tree, because a question or an
answer may have several versions, one of which is shown:

    question 1 --- answer 1                     asked again: another answer to the same question
              \--- answer 2 --- question 2      edited: another question after the same answer
                           \--- question 3
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.core import db
from app.core.atomic_upload import clean
from app.core.db import Database
from app.language.spellings import spellings
from engine.events import Figures, StopReason

QUESTION, ANSWER = "question", "answer"
INTERRUPTED = "interrupted"

TITLE_LENGTH = 60  # maximum characters of a title that is made from the first question
MOST_HELD = 16
"""Maximum chats that are in memory with all their turns. All chats are in the database."""

# stop reasons of an answer that was cut off before the model ended it
_CUT = (StopReason.CANCELLED, StopReason.LENGTH, StopReason.LOOP)

SAVE_SECONDS = 0.4  # seconds between two saves of a growing answer; a crash loses at most the words of this period


_LINES = """
SELECT chats.id, chats.book, chats.name, chats.changed,
       coalesce(
           (SELECT text FROM messages WHERE messages.id = chats.chosen),
           (SELECT text FROM messages WHERE messages.chat = chats.id AND parent IS NULL ORDER BY id DESC LIMIT 1)
       ) AS first
FROM chats WHERE ? IN ('', chats.book) ORDER BY chats.changed DESC, chats.rowid DESC
"""

MOST_FOUND = 40  # maximum messages that a search returns
SNIPPET_WORDS = 18  # maximum words of a snippet in a search result
_OPEN, _CLOSE = "\x02", "\x03"

_FIND = f"""
SELECT messages.id AS message, messages.role, chats.id AS chat, chats.book, messages.written,
       snippet(words, 0, '{_OPEN}', '{_CLOSE}', '…', {SNIPPET_WORDS}) AS snippet
FROM words JOIN messages ON messages.id = words.rowid JOIN chats ON chats.id = messages.chat
WHERE words MATCH ? ORDER BY rank LIMIT ?
"""


@dataclass(frozen=True)
class Trouble:
    """Why an answer is missing or incomplete, as two sentences for the person."""

    cause: str
    remedy: str


@dataclass(frozen=True)
class Exchange:
    """One question with its answer so far.

    - ``stopped``: how the answer ended; None while it is being written
    - ``figures``: the speed of the answer; None if it was not measured
    - ``trouble``: the error that ended the answer; None if there was none
    - ``interrupted``: whether the program ended before the answer did
    - ``pages_read``: number of leading pages that the model had read when the question was asked; 0 if it had read all
    - ``stages``: the first letter of each token's ``TokenSource``
    - ``question_id``, ``answer_id``: the ids of the shown messages
    - ``questions``, ``answers``: the ids of all versions of the question and of the answer
    - ``notes``: plain JSON, stored unchanged: the evidence found by ``app.trust.citations``, and entries under more
      keys (see below)

    Keys of ``notes``: "made" has the model and its options (``format.made_line``); "parts" the answers of the book's
    parts (``app.core.parts_record``); "passages" the passages that fit the question best (``app.core.best_passages``);
    "by_passages" the two sentences in place of an answer, if the passages are the answer (``Abilities.instead``);
    "first" says that the answer comes from passages, and how far the book had been read (``format.first_line``);
    "first_answer" is the answer from passages in whose place this one stands (``beside_first``), and "whole" says what
    this one comes from, and how its facts differ (``format.whole_line``);
    "compared" says that the program compared two versions of a text (``app.core.versions``), and "each" that each of
    several documents was asked by itself (``app.core.side_by_side``); "alone" how many earlier answers the model did
    not get, and why (``format.left_out``);
    "thought" what the model thought before it answered (``thought_record``);
    "uncounted" the reason why its speed does not count (``app.core.speed``). In older chats "refused" says that the
    answer is a refusal, by a model that only quotes ("only quotes") or by another model ("not found").
    """

    question: str
    answer: str = ""
    stopped: StopReason | None = None
    figures: Figures | None = None
    trouble: Trouble | None = None
    notes: Mapping[str, Any] | None = None
    interrupted: bool = False
    pages_read: int = 0
    stages: str = ""
    question_id: int = 0
    answer_id: int = 0
    questions: tuple[int, ...] = ()
    answers: tuple[int, ...] = ()

    @property
    def provenance(self) -> str:
        """The sources of the answer's letters (target, draft or book) in a compact form, from
        ``app.trust.citations.Citations.provenance``.
        """
        return str((self.notes or {}).get("ink", ""))

    @property
    def by_passages(self) -> bool:
        """Whether passages took the place of an answer, because the model would have guessed."""
        return "by_passages" in (self.notes or {})

    @property
    def is_a_models(self) -> bool:
        """Whether a model wrote the answer, and not the program: passages, or a comparison by words."""
        return not {"by_passages", "compared"} & (self.notes or {}).keys()

    @property
    def is_first(self) -> bool:
        """Whether the answer comes from passages because the book was being read, so that the whole book can be asked
        later.
        """
        return bool(((self.notes or {}).get("first") or {}).get("reading"))

    @property
    def from_parts(self) -> str:
        """What the button says that puts the question of an answer from passages to parts of the book; "" if the book
        has no parts.
        """
        return str(((self.notes or {}).get("first") or {}).get("parts", ""))

    @property
    def first_answer(self) -> Mapping[str, Any] | None:
        """The answer from passages in whose place this answer stands, as ``beside_first`` has stored it; None if there
        is none.
        """
        return (self.notes or {}).get("first_answer")

    def beside_first(self) -> Exchange:
        """Begin another answer in the place of this one, which is kept in its notes with its citations."""
        notes = dict(self.notes or {})
        kept = {name: notes.pop(name) for name in tuple(notes) if name != "passages"}
        stopped = self.stopped.value if self.stopped else None
        figures = db.figures_to_json(self.figures)
        first = {"text": self.answer, "stages": self.stages, "stopped": stopped, "figures": figures, "notes": kept}
        notes["first_answer"] = first
        return replace(self, answer="", stopped=None, figures=None, trouble=None, notes=notes, stages="")

    def back_to_first(self) -> Exchange:
        """Return to the answer from passages, as it was before ``beside_first``."""
        first = self.first_answer
        if first is None:
            return self
        passages = {name: value for name, value in (self.notes or {}).items() if name == "passages"}
        return replace(
            self,
            answer=str(first["text"]),
            stages=str(first["stages"]),
            stopped=_stop_reason(first["stopped"]),
            figures=db.figures_from_json(first["figures"]),
            notes={**first["notes"], **passages},
            trouble=None,
            interrupted=False,
        )

    @property
    def thought(self) -> Mapping[str, Any]:
        """What the model thought before it answered (``thought_record``); empty if it thought nothing."""
        return (self.notes or {}).get("thought") or {}

    @property
    def ended_thinking(self) -> bool:
        """Whether the answer ended while the model was still thinking."""
        return bool(self.thought.get("open")) and not self.answer

    @property
    def can_be_continued(self) -> bool:
        """Whether the answer can be continued: it was cut off, interrupted or ended by an error, and it has text, a
        thought, or stored answers of the book's parts; or the model ended it within its thought.
        """
        if self.ended_thinking:
            return self.interrupted or self.stopped is not None
        return bool(self.answer or "parts" in (self.notes or {})) and (
            self.interrupted or self.stopped in _CUT or self.trouble is not None
        )


def thought_record(
    text: str, figures: Figures, *, is_open: bool, was_cut: bool = False, earlier: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A thought as it is stored with its answer.

    Args:
        text: the thought's new text.
        figures: of the thought alone.
        is_open: whether the model is still thinking, or the answer ended within the thought.
        was_cut: whether the thought was closed because its budget was used up.
        earlier: the record of the thought that ``text`` continues.
    """
    earlier = earlier or {}
    seconds = figures.answer_tokens * (figures.ms_per_token_mean or 0.0) / 1000.0
    return {
        "text": earlier.get("text", "") + text,
        "tokens": earlier.get("tokens", 0) + figures.answer_tokens,
        "seconds": round(earlier.get("seconds", 0.0) + seconds, 1),
        "open": is_open,
        "cut": was_cut,
    }


@dataclass(frozen=True)
class Chat:
    """Questions about one book, in order, with their answers. Only the shown version of each question and answer is
    included.
    """

    id: str
    book: str
    begun: float
    exchanges: tuple[Exchange, ...] = field(default=())
    name: str = ""

    @property
    def title(self) -> str:
        return self.name or title_of(self.exchanges[0].question if self.exchanges else "")

    def before(self, position: int) -> tuple[tuple[str, str], ...]:
        """The (question, answer) pairs before ``position`` without those whose answer is empty, or no model's."""
        turns = self.exchanges[:position]
        return tuple((turn.question, turn.answer) for turn in turns if turn.answer and turn.is_a_models)

    @property
    def open_exchange(self) -> Exchange | None:
        """The exchange whose answer is being written; None if there is none."""
        return next((turn for turn in self.exchanges if turn.stopped is None), None)

    def position_of(self, message: int) -> int | None:
        """The position of the exchange with this message, a question or an answer; None if the message is not shown."""
        places = (
            position for position, turn in enumerate(self.exchanges) if message in (turn.question_id, turn.answer_id)
        )
        return next(places, None)


@dataclass(frozen=True)
class ChatLine:
    """A line of the list of chats. ``changed`` is the time of the chat's last change, in seconds since the epoch."""

    id: str
    book: str
    title: str
    changed: float


@dataclass(frozen=True)
class FoundMessage:
    """A message that was found by a search. ``parts`` are consecutive pieces of an excerpt, each with a flag that says
    whether the piece is a searched word.
    """

    chat: str
    book: str
    message: int
    role: str
    written: float
    parts: tuple[tuple[str, bool], ...]


class Chats:
    """The store of all chats. Every method may be called from any thread.

    Args:
        database: stores the chats; None keeps them in memory.
    """

    def __init__(self, database: Database | None = None) -> None:
        self.database = database or Database()
        self._chats: dict[str, Chat] = {}
        self._unsaved: dict[int, Exchange] = {}
        self._saved = 0.0
        self._lines: tuple[int, tuple[ChatLine, ...]] = (-1, ())
        self._lock = threading.RLock()
        self.database.write(_end_interrupted)

    def begin(self, book: str) -> Chat:
        """Begin a chat about the book with this hash. The chat is stored in the database when its first question is
        asked, or when it gets a name.
        """
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
        """Keep a chat in memory. If more than ``MOST_HELD`` chats are in memory, drop the least recently used chat from
        memory. Nothing is lost, because every chat with a question or a name is in the database.
        """
        self._chats.pop(chat.id, None)
        self._chats[chat.id] = chat
        if len(self._chats) > MOST_HELD:
            self.save_now()
            del self._chats[next(iter(self._chats))]

    def all(self) -> tuple[ChatLine, ...]:
        """All chats about all books, the last changed first."""
        with self._lock:
            if self._lines[0] != self.database.changes:
                lines = tuple(line_of(row) for row in self.database.rows(_LINES, ("",)))
                self._lines = self.database.changes, lines
            return self._lines[1]

    def of_book(self, book: str) -> tuple[ChatLine, ...]:
        """The chats about one book, the last changed first. Chats without a question are left out."""
        return tuple(line for line in self.all() if line.book == book)

    def ask(self, chat_id: str, question: str, position: int | None = None) -> int:
        """Add a question to a chat at ``position``; None adds it at the end.

        If there is a question with the same words at ``position``, only another answer to that question is added. A
        question with different words becomes another version there and begins a branch of the chat.

        Returns:
            the position of the question.
        """
        # the page can send a lone surrogate, which SQLite cannot store
        question = question.encode("utf-8", "replace").decode("utf-8")
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
                    asked = _add_message(connection, chat_id, before, QUESTION, question, now)
                _add_message(connection, chat_id, asked, ANSWER, "", now)

            self._write(chat_id, write)
            return at

    def resume(self, chat_id: str, position: int) -> Exchange:
        """Reopen the answer at ``position``, so that more text is added to it.

        Returns:
            the exchange, whose answer has the text so far.
        """
        with self._lock:
            turn = replace(self._known(chat_id).exchanges[position], stopped=None, trouble=None, interrupted=False)
            self.update(chat_id, position, turn)
            self._save()
            return turn

    def begin_beside_first(self, chat_id: str, position: int) -> None:
        """Begin another answer in the place of the one at ``position`` (``Exchange.beside_first``)."""
        with self._lock:
            self.update(chat_id, position, self._known(chat_id).exchanges[position].beside_first())
            self._save()

    def update(self, chat_id: str, position: int, exchange: Exchange) -> None:
        """Replace the exchange at ``position``. The change is saved to the database at once if the answer has ended,
        otherwise when the next save is due. If the chat was deleted meanwhile, do nothing.
        """
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
        self.database.changed.send()

    def save_in_time(self) -> None:
        """Save the changes if at least ``SAVE_SECONDS`` have passed since the last save. This method is cheap enough to
        be called for every event.
        """
        with self._lock:
            if self._unsaved and time.monotonic() - self._saved >= SAVE_SECONDS:
                self._save()

    def save_now(self) -> None:
        """Save all changes."""
        with self._lock:
            if self._unsaved:
                self._save()

    def show(self, chat_id: str, message: int) -> bool:
        """Make a message visible: choose this version and the versions of the earlier messages that lead to it. Return
        False if the chat lacks the message.
        """
        with self._lock:
            if (chat := self.get(chat_id)) is None or not chat.exchanges:
                return False
            found = self.database.write(lambda connection: _show_message(connection, chat_id, message))
            self._chats.pop(chat_id, None)
            return found

    def rename(self, chat_id: str, name: str) -> None:
        """Give a chat the name that the person chose. With an empty name, the chat is again named by its first
        question.
        """
        name = clean(name)
        with self._lock:
            chat = self._known(chat_id)

            def write(connection: sqlite3.Connection) -> None:
                stored = connection.execute("UPDATE chats SET name = ? WHERE id = ?", (name, chat_id)).rowcount
                if name and not stored:  # a chat without questions
                    _keep(connection, replace(chat, name=name), time.time())

            self.database.write(write)
            self._chats[chat_id] = replace(chat, name=name)

    def delete(self, chat_id: str) -> None:
        with self._lock:
            self.database.write(lambda connection: connection.execute("DELETE FROM chats WHERE id = ?", (chat_id,)))
            self._chats.pop(chat_id, None)

    def move(self, book: str, other: str) -> None:
        """Move all chats about a book to ``other``, a book with the same documents or with one of them."""
        with self._lock:
            self.save_now()

            def write(connection: sqlite3.Connection) -> None:
                connection.execute("INSERT OR IGNORE INTO books (sha256) VALUES (?)", (other,))
                connection.execute("UPDATE chats SET book = ? WHERE book = ?", (other, book))

            self.database.write(write)
            held = self._chats.items()
            self._chats = {id: replace(chat, book=other) if chat.book == book else chat for id, chat in held}

    def forget_book(self, book: str) -> None:
        """Delete all chats about a book."""
        with self._lock:
            self.database.write(lambda connection: connection.execute("DELETE FROM chats WHERE book = ?", (book,)))
            self._chats = {id: chat for id, chat in self._chats.items() if chat.book != book}

    def search(self, words: str) -> tuple[FoundMessage, ...]:
        """In all chats, find the messages that contain all of the words. The last word may be incomplete. The best
        matches come first.
        """
        query = as_query(words)
        if not query:
            return ()
        return tuple(
            FoundMessage(row["chat"], row["book"], row["message"], row["role"], row["written"], _parts(row["snippet"]))
            for row in self.database.rows(_FIND, (query, MOST_FOUND))
        )

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
                _update_message(connection, exchange.answer_id, columns_of(exchange))
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
        path = self.database.read(lambda connection: _shown_path(connection, chat_id))
        pairs = zip(path[::2], path[1::2], strict=False)
        turns = tuple(exchange_of(question, answer) for question, answer in pairs)
        return Chat(chat_id, rows[0]["book"], rows[0]["begun"], turns, rows[0]["name"])


def _keep(connection: sqlite3.Connection, chat: Chat, now: float) -> None:
    """Write the row of a chat, and an empty row for its book if that has none."""
    connection.execute("INSERT OR IGNORE INTO books (sha256) VALUES (?)", (chat.book,))
    connection.execute(
        "INSERT INTO chats (id, book, name, begun, changed) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET changed = excluded.changed",
        (chat.id, chat.book, chat.name, chat.begun, now),
    )


# Records and their rows ----------------------------------------------------------------------------------------------


def title_of(question: str) -> str:
    """The title of a chat that the person has not named: its first question, cut to ``TITLE_LENGTH``."""
    first = " ".join(question.split()) or "New chat"
    return first if len(first) <= TITLE_LENGTH else first[: TITLE_LENGTH - 1].rstrip() + "…"


def line_of(row: sqlite3.Row) -> ChatLine:
    """Make a ``ChatLine`` from a row of the query ``_LINES``."""
    return ChatLine(row["id"], row["book"], row["name"] or title_of(row["first"] or ""), row["changed"])


def columns_of(exchange: Exchange) -> dict[str, Any]:
    """The values for the columns of an answer's row, keyed by column."""
    trouble = exchange.trouble
    stopped = exchange.stopped.value if exchange.stopped is not None else None
    return {
        "text": exchange.answer,
        "stopped": INTERRUPTED if exchange.interrupted else stopped,
        "pages_read": exchange.pages_read,
        "figures": db.figures_to_json(exchange.figures),
        "stages": exchange.stages or None,
        "notes": db.to_json(exchange.notes),
        "trouble": db.to_json([trouble.cause, trouble.remedy]) if trouble else None,
    }


def exchange_of(question: _PathMessage, answer: _PathMessage) -> Exchange:
    """Make an exchange from a question and an answer that are neighbours on the shown path."""
    row = answer.row
    interrupted = row["stopped"] == INTERRUPTED
    trouble = db.from_json(row["trouble"])
    stopped = StopReason.CANCELLED if interrupted else _stop_reason(row["stopped"])
    exchange = Exchange(
        question.row["text"],
        row["text"],
        stopped,
        db.figures_from_json(row["figures"]),
        Trouble(*trouble) if trouble else None,
        db.from_json(row["notes"]),
        interrupted,
        row["pages_read"],
        row["stages"] or "",
        question.row["id"],
        row["id"],
        question.versions,
        answer.versions,
    )
    # if the program ended before the answer from the whole book had a word, the answer from passages is shown again
    return exchange.back_to_first() if interrupted and not exchange.can_be_continued else exchange


def _stop_reason(value: str | None) -> StopReason | None:
    try:
        return StopReason(value) if value else None
    except ValueError:
        return StopReason.CANCELLED


@dataclass(frozen=True)
class _PathMessage:
    """A message on the shown path. ``versions``: the ids of all versions of the message, also of the shown one, oldest
    first.
    """

    row: sqlite3.Row
    versions: tuple[int, ...]


def _shown_path(connection: sqlite3.Connection, chat: str) -> list[_PathMessage]:
    """The shown messages of a chat: question, answer, question and so on. Of several versions of a message, the chosen
    one is shown, or the newest if none is chosen.
    """
    stored = connection.execute(
        "SELECT id, parent, chosen FROM messages WHERE chat = ? ORDER BY id", (chat,)
    ).fetchall()
    top = connection.execute("SELECT chosen FROM chats WHERE id = ?", (chat,)).fetchone()
    following: dict[int | None, list[int]] = {}
    for row in stored:
        following.setdefault(row["parent"], []).append(row["id"])
    chosen = {row["id"]: row["chosen"] for row in stored}
    path: list[tuple[int, tuple[int, ...]]] = []
    parent, wanted = None, top["chosen"] if top else None
    while versions := following.get(parent):
        parent = wanted if wanted in versions else versions[-1]
        wanted = chosen[parent]
        path.append((parent, tuple(versions)))
    rows = {row["id"]: row for row in _messages(connection, [message for message, _ in path])}
    return [_PathMessage(rows[message], versions) for message, versions in path]


def _add_message(
    connection: sqlite3.Connection, chat: str, parent: int | None, role: str, text: str, now: float
) -> int:
    """Add a message and choose it as the shown version. Return its id."""
    cursor = connection.execute(
        "INSERT INTO messages (chat, parent, role, text, written) VALUES (?, ?, ?, ?, ?)",
        (chat, parent, role, text, now),
    )
    assert cursor.lastrowid is not None
    _choose(connection, chat, parent, cursor.lastrowid)
    return cursor.lastrowid


def _choose(connection: sqlite3.Connection, chat: str, parent: int | None, message: int) -> None:
    """Choose ``message`` as the shown version among the messages that follow ``parent``. If ``parent`` is None, the
    versions are those of the chat's first question.
    """
    if parent is None:
        connection.execute("UPDATE chats SET chosen = ? WHERE id = ?", (message, chat))
    else:
        connection.execute("UPDATE messages SET chosen = ? WHERE id = ?", (message, parent))


def _show_message(connection: sqlite3.Connection, chat: str, message: int) -> bool:
    """Choose a message as the shown version, and the versions of all messages before it. Return False if the message
    does not belong to this chat.
    """
    here: int | None = message
    while here is not None:
        row = connection.execute("SELECT parent FROM messages WHERE id = ? AND chat = ?", (here, chat)).fetchone()
        if row is None:
            return False
        _choose(connection, chat, row["parent"], here)
        here = row["parent"]
    return True


def _update_message(connection: sqlite3.Connection, message: int, columns: Mapping[str, Any]) -> None:
    """Write some columns of a message. The names of the columns must come from this program, because they become part
    of the SQL.
    """
    names = ", ".join(f"{name} = ?" for name in columns)
    connection.execute(f"UPDATE messages SET {names} WHERE id = ?", (*columns.values(), message))


def all_messages(connection: sqlite3.Connection, chat: str) -> list[sqlite3.Row]:
    """All messages of a chat in all versions, oldest first."""
    return connection.execute("SELECT * FROM messages WHERE chat = ? ORDER BY id", (chat,)).fetchall()


def _end_interrupted(connection: sqlite3.Connection) -> int:
    """Mark as interrupted all answers that were being written when the program ended. Return the number of these
    answers.
    """
    return connection.execute(
        "UPDATE messages SET stopped = ? WHERE role = ? AND stopped IS NULL", (INTERRUPTED, ANSWER)
    ).rowcount


def _messages(connection: sqlite3.Connection, messages: list[int]) -> list[sqlite3.Row]:
    if not messages:
        return []
    marks = ",".join("?" * len(messages))
    return connection.execute(f"SELECT * FROM messages WHERE id IN ({marks})", messages).fetchall()


# Searching ----------------------------------------------------------------------------------------------------------


def as_query(words: str) -> str:
    """Turn a person's words into a query of the full-text index. Each word is quoted, so that its punctuation is not
    read as operators. Other German and French spellings of a word are searched too.
    """
    typed = ["".join(sign for sign in word if sign.isprintable() and sign != '"') for word in words.split()]
    said = [word for word in typed if any(sign.isalnum() for sign in word)]
    if not said:
        return ""
    begun = ["" for _ in said[1:]] + ["*"]
    quoted = [[f'"{spelled}"{end}' for spelled in spellings(word)] for word, end in zip(said, begun, strict=True)]
    several = any(len(each) > 1 for each in quoted)
    return " AND ".join(f"({' OR '.join(each)})" for each in quoted) if several else " ".join(map("".join, quoted))


def _parts(snippet: str) -> tuple[tuple[str, bool], ...]:
    parts: list[tuple[str, bool]] = []
    for number, piece in enumerate(snippet.split(_OPEN)):
        inside, closed, after = piece.partition(_CLOSE)
        if number and closed:
            parts += [(inside, True), (after, False)]
        else:
            parts.append((piece, False))
    return tuple((" ".join(text.split("\n")), marked) for text, marked in parts if text)
