"""The tables, and how an older file becomes a newer one. Text only.

Columns whose values are JSON: ``figures``, ``trouble``, ``notes`` and ``stages`` of an answer. ``stopped`` of an
answer is NULL while it is being written, else how it ended: a value of ``engine.events.StopReason``, or "interrupted"
when the program ended before the answer did. ``chosen`` names the version that is shown: of a message the one among
those that follow it, of a chat the one among its first questions.
"""

from __future__ import annotations

FIRST = """
CREATE TABLE books (
    sha256 TEXT PRIMARY KEY,
    name TEXT NOT NULL DEFAULT '',
    file TEXT NOT NULL DEFAULT '',
    title TEXT NOT NULL DEFAULT '',
    author TEXT NOT NULL DEFAULT '',
    pages INTEGER NOT NULL DEFAULT 0,
    unit TEXT NOT NULL DEFAULT 'page',
    tokens INTEGER NOT NULL DEFAULT 0,
    pages_read INTEGER NOT NULL DEFAULT 0,
    added REAL NOT NULL DEFAULT 0,
    opened REAL NOT NULL DEFAULT 0
);
CREATE TABLE chats (
    id TEXT PRIMARY KEY,
    book TEXT NOT NULL REFERENCES books (sha256) ON DELETE CASCADE,
    name TEXT NOT NULL DEFAULT '',
    begun REAL NOT NULL,
    changed REAL NOT NULL,
    chosen INTEGER
);
CREATE INDEX chats_of_book ON chats (book, changed);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    chat TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    parent INTEGER REFERENCES messages (id) ON DELETE CASCADE,
    role TEXT NOT NULL CHECK (role IN ('question', 'answer')),
    text TEXT NOT NULL DEFAULT '',
    written REAL NOT NULL,
    chosen INTEGER,
    stopped TEXT,
    pages_read INTEGER NOT NULL DEFAULT 0,
    figures TEXT,
    stages TEXT,
    notes TEXT,
    trouble TEXT
);
CREATE INDEX messages_of_chat ON messages (chat, parent);
CREATE INDEX messages_of_parent ON messages (parent);
CREATE VIRTUAL TABLE words USING fts5 (
    text, content = 'messages', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2'
);
CREATE TRIGGER messages_added AFTER INSERT ON messages BEGIN
    INSERT INTO words (rowid, text) VALUES (new.id, new.text);
END;
CREATE TRIGGER messages_changed AFTER UPDATE OF text ON messages BEGIN
    INSERT INTO words (words, rowid, text) VALUES ('delete', old.id, old.text);
    INSERT INTO words (rowid, text) VALUES (new.id, new.text);
END;
CREATE TRIGGER messages_removed AFTER DELETE ON messages BEGIN
    INSERT INTO words (words, rowid, text) VALUES ('delete', old.id, old.text);
END;
CREATE TABLE desk (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
"""

MIGRATIONS = (FIRST,)
"""The n-th script makes version n of n - 1. Scripts that have been released are never changed; new ones are added."""

VERSION = len(MIGRATIONS)
