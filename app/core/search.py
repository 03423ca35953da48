"""Words found in all chats, by SQLite's full text index."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.db import Database

MOST_FOUND = 40
SNIPPET_WORDS = 18
_OPEN, _CLOSE = "\x02", "\x03"

_FIND = f"""
SELECT messages.id AS message, messages.role, chats.id AS chat, chats.book, messages.written,
       snippet(words, 0, '{_OPEN}', '{_CLOSE}', '…', {SNIPPET_WORDS}) AS snippet
FROM words JOIN messages ON messages.id = words.rowid JOIN chats ON chats.id = messages.chat
WHERE words MATCH ? ORDER BY rank LIMIT ?
"""


@dataclass(frozen=True)
class Found:
    """A message in which the words stand. ``parts``: pieces of its text, and whether each is a word looked for."""

    chat: str
    book: str
    message: int
    role: str
    written: float
    parts: tuple[tuple[str, bool], ...]


def find(database: Database, words: str, most: int = MOST_FOUND) -> tuple[Found, ...]:
    """Messages that hold all the words, the last one perhaps only begun; best first."""
    query = as_query(words)
    if not query:
        return ()
    return tuple(
        Found(row["chat"], row["book"], row["message"], row["role"], row["written"], _parts(row["snippet"]))
        for row in database.rows(_FIND, (query, most))
    )


def as_query(words: str) -> str:
    """What a person typed as a query: every word is only a word, whatever signs it is made of."""
    typed = ["".join(sign for sign in word if sign.isprintable() and sign != '"') for word in words.split()]
    said = [word for word in typed if any(sign.isalnum() for sign in word)]
    if not said:
        return ""
    quoted = [f'"{word}"' for word in said]
    return " ".join([*quoted[:-1], quoted[-1] + "*"])


def _parts(snippet: str) -> tuple[tuple[str, bool], ...]:
    parts: list[tuple[str, bool]] = []
    for number, piece in enumerate(snippet.split(_OPEN)):
        inside, closed, after = piece.partition(_CLOSE)
        if number and closed:
            parts += [(inside, True), (after, False)]
        else:
            parts.append((piece, False))
    return tuple((" ".join(text.split("\n")), marked) for text, marked in parts if text)
