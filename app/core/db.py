"""Reads and writes the library's SQLite file, one call at a time. If the file cannot be used, the tables are kept in
memory, and the person is told.

Owns the connection, the tables and their versions. If the disk is full or the folder is read-only, all readable rows
are copied into memory, and work continues there. As soon as the file can be written again, all rows are written back. A
damaged file is set aside, and its readable rows (``app.core.salvage``) go into a new file.

Some columns:
- ``figures``, ``trouble``, ``notes`` of an answer are JSON.
- ``stages`` of an answer is a string of letters (``Exchange.stages``).
- ``stopped`` of an answer is NULL while the answer is being written. Later it is a value of
  ``engine.events.StopReason``, or "interrupted" if the program ended before the answer did.
- ``chosen`` of a message is the id of the shown version of the next message. ``chosen`` of a chat is the id of the
  shown version of the chat's first question.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from app.core import ledger, row_sums, salvage
from app.core.signal import Signal
from engine.events import Figures

logger = logging.getLogger(__name__)

Row = sqlite3.Row
Value = TypeVar("Value")

CHECKPOINT_SECONDS = 10.0  # minimum seconds between two moves of rows from the log into the file
BUSY_SECONDS = 3.0  # seconds to wait if another process has locked the file
RETRY_SECONDS = 10.0  # minimum seconds between two attempts to use the file again after a failure
_COPY_SECONDS = 30 * 86_400.0  # age in seconds at which a copy that was made before a migration is deleted
_PRIVATE = 0o600

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

NAMED = "ALTER TABLE desk RENAME TO app_state;"

NOTED = """
CREATE TABLE notes (
    id TEXT PRIMARY KEY,
    book TEXT NOT NULL REFERENCES books (sha256) ON DELETE CASCADE,
    page INTEGER NOT NULL DEFAULT 0,
    label TEXT NOT NULL DEFAULT '',
    start INTEGER NOT NULL DEFAULT 0,
    stop INTEGER NOT NULL DEFAULT 0,
    passage TEXT NOT NULL DEFAULT '',
    said TEXT NOT NULL DEFAULT '',
    words TEXT NOT NULL DEFAULT '',
    colour TEXT NOT NULL DEFAULT '',
    written REAL NOT NULL DEFAULT 0
);
"""

GIVEN = """
ALTER TABLE books ADD COLUMN given TEXT NOT NULL DEFAULT '';
UPDATE books SET given = coalesce((
    SELECT names.value FROM app_state, json_each(iif(json_valid(app_state.value), app_state.value, '{}')) AS names
    WHERE app_state.name = 'given' AND names.key = books.sha256 AND names.type = 'text'
), '');
DELETE FROM app_state WHERE name = 'given';
DELETE FROM sums WHERE kind = 'books';
"""

MIGRATIONS = (FIRST, NAMED, NOTED, row_sums.TABLE, GIVEN)
"""Migration scripts by version: script n turns version n - 1 into version n. Released scripts are never changed; new
ones are added at the end.
"""

VERSION = len(MIGRATIONS)


class Database:
    """The library's database. Every method may be called from any thread; calls run one at a time.

    Args:
        path: path of the file, which is made on first use; None keeps the tables in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._trouble = ""
        self._notice = ""
        self._tried = 0.0
        self._changes = 0
        self.changed = Signal()
        self._place: object = None
        self._left: object = None
        self._logged = False  # whether the log may have rows that the file lacks
        self._moved = time.monotonic()  # when rows were moved from the log into the file
        self._closed = False
        self._connection = self._open()

    @property
    def trouble(self) -> str:
        """A sentence that says why changes are kept only in memory; "" while they are written to the file."""
        return self._trouble

    @property
    def notice(self) -> str:
        """Sentences for a person about a problem that the file had; "" without one. The sentences remain when the file
        works again.
        """
        return self._notice

    @property
    def changes(self) -> int:
        """A number that grows with every change, except changes made by ``note``. A caller compares it with an earlier
        value to find out whether anything has changed.
        """
        return self._changes

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Row]:
        return self.read(lambda connection: connection.execute(query, values).fetchall())

    def read(self, work: Callable[[sqlite3.Connection], Value]) -> Value:
        """Run ``work``, which only reads. If the file is damaged or unusable, run ``work`` again on the rows of the
        file that can be read.
        """
        with self._lock:
            try:
                return work(self._connection)
            except sqlite3.DatabaseError as error:
                if not (self._repair(error) or self._leave_file(error)):
                    raise
                return work(self._connection)

    def write(self, work: Callable[[sqlite3.Connection], Value]) -> Value:
        """Run ``work`` in one transaction. If the file cannot be written, continue with a copy of the tables in memory,
        and run ``work`` there.
        """
        with self._lock:
            self._changes += 1
            result = self.note(ledger.counted(work))
            self._confirm()
        self.changed.send()
        return result

    def note(self, work: Callable[[sqlite3.Connection], Value]) -> Value:
        """Run ``work`` as ``write`` does, but do not count a change in ``changes``. Use this for rows that change
        often, such as a growing answer.
        """
        with self._lock:
            self._look_after_file()
            self.mend()
            try:
                return self._transaction(work)
            except sqlite3.IntegrityError:
                raise
            except sqlite3.DatabaseError as error:
                if not (self._repair(error) or self._leave_file(error)):
                    raise
                return self._transaction(work)

    def mend(self) -> None:
        """Try to use the file again after a failure, at most once in ``RETRY_SECONDS``, so that frequent calls are
        cheap. Move new rows from the log into the file, at most once in ``CHECKPOINT_SECONDS``.
        """
        if self._logged and time.monotonic() - self._moved >= CHECKPOINT_SECONDS:
            with self._lock:
                self._checkpoint()
        if not self._trouble or self._path is None or time.monotonic() - self._tried < RETRY_SECONDS:
            return
        with self._lock:
            self._tried = time.monotonic()
            with suppress(sqlite3.Error, OSError, _Newer):
                self._return_to_file()

    def close(self) -> None:
        """Move all rows from the log into the file, and close the file. Later calls raise an error."""
        with self._lock:
            self.mend()
            self._closed = True
            self._checkpoint()
            self._connection.close()

    def _checkpoint(self) -> None:
        self._logged, self._moved = False, time.monotonic()
        # A connection in another process may read the log at this moment; then the next call moves the rows.
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _confirm(self) -> None:
        if self._path is not None and not self._trouble:
            ledger.confirm(self._connection, self._path)

    def _transaction(self, work: Callable[[sqlite3.Connection], Value]) -> Value:
        self._logged = True
        return _in_transaction(self._connection, work)

    def _open(self) -> sqlite3.Connection:
        if self._path is None:
            return _in_memory()
        self._left = _stamp(self._path)
        try:
            self._notice = _EMPTY.format(name=self._path.name) if _is_empty(self._path) else ""
            connection = self._opened(self._path)
            self._say_what_is_missing(connection, self._path)
            self._say_what_changed(connection)
            return connection
        except _Newer:
            self._say("The library was written by a newer Trifold; this one leaves it alone.")
            return _in_memory()
        except sqlite3.DatabaseError as error:
            if _is_damaged(error):
                return self._rebuilt(self._path)
            self._cannot_write(error)
        except OSError as error:
            self._cannot_write(error)
        return _carried_over(self._path)

    def _opened(self, path: Path) -> sqlite3.Connection:
        connection = _open_file(path)
        self._place = _place(path)
        return connection

    def _say_what_is_missing(self, connection: sqlite3.Connection, path: Path) -> None:
        """Add to ``notice`` what the library lacks of its confirmed changes. It is said once: the present state then
        counts as the confirmed one.
        """
        if lost := ledger.missing(connection, path):
            self._notice = f"{self._notice} {lost}".strip()
            logger.error("%s", lost)
            ledger.confirm(connection, path)

    def _say_what_changed(self, connection: sqlite3.Connection) -> None:
        if said := _in_transaction(connection, row_sums.changed):
            self._notice = f"{self._notice} {said}".strip()
            logger.error("%s", said)

    def _look_after_file(self) -> None:
        """If the open file was deleted, for example with its folder, write everything to a new file. Otherwise all rows
        would be lost when the program ends.
        """
        if self._path is None or self._trouble or self._closed or _place(self._path) == self._place:
            return
        self._leave_file(sqlite3.OperationalError("it was removed"))
        self._notice = f"The library {self._path.name} was removed while Trifold ran, and has been written again."
        # a file that has appeared at this path meanwhile then counts as changed, so that its rows are kept
        self._left = None
        self._tried = -RETRY_SECONDS
        self.mend()

    def _repair(self, error: sqlite3.Error) -> bool:
        """If ``error`` says that the file is damaged, put its readable rows into a new file, or into memory if that
        fails. Return whether the file was damaged.
        """
        if self._path is None or self._trouble or self._closed or not _is_damaged(error):
            return False
        with suppress(sqlite3.Error):
            self._connection.close()
        self._connection = self._rebuilt(self._path)
        self._changes += 1
        return True

    def _rebuilt(self, path: Path) -> sqlite3.Connection:
        """Copy a damaged file under another name, and replace it by a new file with its readable rows. Return the
        connection to the new file. If no new file can be made, return tables in memory with these rows.
        """
        salvaged = salvage.Salvage()
        fresh = path.with_name(path.name + ".new")
        try:
            salvaged = salvage.read(path, _table_columns())
            for suffix in ("", *_BESIDE):
                fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)
            connection = _open_file(fresh)
            try:
                salvage.restore(salvaged, connection)
                row_sums.put_back(_sums(path), connection)
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                connection.close()
            kept = _set_aside(path)
            os.replace(fresh, path)
            connection = self._opened(path)
        except (sqlite3.Error, OSError) as error:
            logger.error("the library is damaged, and no new one can be made: %s", error)
            self._say(f"The library {path.name} is damaged, and cannot be mended ({_reason(error)}).")
            memory = _in_memory()
            with suppress(sqlite3.Error):
                salvage.restore(salvaged, memory)
            return memory
        chats, messages = salvaged.counts
        again = f"{chats} chats with {messages} questions and answers" if messages else "none of its chats"
        again += f", and {len(salvaged.notes)} notes" if salvaged.notes else ""
        self._notice = f"The library was damaged: {again} could be read. The damaged file is kept as {kept.name}."
        logger.error("%s", self._notice)
        self._say_what_is_missing(connection, path)
        self._say_what_changed(connection)
        ledger.confirm(connection, path)
        return connection

    def _leave_file(self, error: sqlite3.Error) -> bool:
        """Stop using the file after an error, and continue with its rows in memory. Return False if no file was in
        use.
        """
        if self._path is None or self._trouble or self._closed:
            return False
        logger.warning("the library cannot be written: %s", error)
        self._cannot_write(error)
        memory = _in_memory()
        with suppress(sqlite3.Error):
            self._connection.backup(memory)
            _prepare(memory)
        with suppress(sqlite3.Error):
            self._connection.close()
        self._left = _stamp(self._path)
        self._connection = memory
        return True

    def _return_to_file(self) -> None:
        """Write everything in memory back to the file. Rows that other processes have written to the file meanwhile are
        kept.
        """
        assert self._path is not None
        changed = _stamp(self._path) != self._left and _size(self._path) > 0
        try:
            file = self._opened(self._path)
        except sqlite3.DatabaseError as error:
            if not _is_damaged(error):
                raise
            self._take_over(self._path)
            kept = _set_aside(self._path)
            self._path.unlink()
            self._notice = (
                f"The library was damaged and has been written again. The damaged file is kept as {kept.name}."
            )
            file, changed = self._opened(self._path), False
        try:
            if changed:
                file.execute("BEGIN IMMEDIATE")  # blocks other writers until the rows of the file are copied
                self._take_over(self._path)
                file.execute("ROLLBACK")
            self._connection.backup(file)
            file.execute("PRAGMA journal_mode = WAL")
        except BaseException:
            file.close()
            raise
        self._connection.close()
        self._connection = file
        self._trouble = ""
        self._confirm()
        logger.warning("the library is written again")

    def _take_over(self, path: Path) -> None:
        """Copy into memory the rows that are only in the file."""
        salvage.restore(salvage.read(path, _table_columns()), self._connection)
        self._changes += 1

    def _cannot_write(self, error: Exception) -> None:
        self._say(f"Trifold cannot write to its library ({_reason(error)}).")

    def _say(self, cause: str) -> None:
        self._tried = time.monotonic()
        self._trouble = f"{cause} The chat goes on, but only in memory: it is lost when the program ends."


class _Newer(Exception):
    """Raised if a later version of the program has written the file."""


_BESIDE = ("-wal", "-shm")
_EMPTY = "The library {name} was empty; chats that were in it are lost. Books are found again in their folder."


def _open_file(path: Path) -> sqlite3.Connection:
    """Open the file, which is made if it is missing, and bring its tables to this program's version.

    Raises:
        sqlite3.DatabaseError: the file is damaged (``_is_damaged`` tells) or cannot be used.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if _is_empty(path) and _size(path.with_name(path.name + _BESIDE[0])):
        # SQLite would discard the log beside an empty file, although the log has rows
        raise sqlite3.DatabaseError("malformed: there is only its log")
    if salvage.hides_transactions(path):
        raise sqlite3.DatabaseError("malformed: its log is damaged")
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, _PRIVATE))
    connection = _connect(path)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        _copy_first(connection, path)
        _prepare(connection)
        _check(connection)
        # also finds out now that the file is read-only, and not when the first answer is saved
        _in_transaction(connection, _mend_index)
    # raised if the message of an SQLite error has bytes that are not UTF-8; the file then counts as damaged
    except UnicodeDecodeError as error:
        connection.close()
        raise sqlite3.DatabaseError(f"malformed: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _in_memory() -> sqlite3.Connection:
    connection = _connect(":memory:")
    _prepare(connection)
    return connection


def _connect(path: Path | str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.text_factory = _text
    return connection


def _text(stored: bytes) -> str:
    """Decode a text from the database. Bytes that are not UTF-8 are replaced, so that the rest of a damaged text can be
    read.
    """
    return stored.decode("utf-8", "replace")


def _prepare(connection: sqlite3.Connection) -> None:
    """Set up a connection, and bring its tables to the version of this program.

    Raises:
        _Newer: a later version of the program has written the tables.
    """
    # In WAL mode, NORMAL loses no commit if the process is killed. FULL would wait for the disk at every commit, and a
    # growing answer is committed twice a second.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    while (version := _version(connection)) < VERSION:
        _in_transaction(connection, partial(_migrate, version))
    if version > VERSION:
        raise _Newer
    row_sums.watch(connection)


def _copy_first(connection: sqlite3.Connection, path: Path) -> None:
    """If the file has the tables of an earlier version, copy the file within its folder, because the tables are about
    to be changed. Copies older than ``_COPY_SECONDS`` are deleted.

    Raises:
        sqlite3.Error, OSError: no copy can be made. In this case nothing is changed.
    """
    for old in path.parent.glob(f"{path.name}.version-*"):
        if time.time() - old.stat().st_mtime > _COPY_SECONDS:
            old.unlink(missing_ok=True)
    version = _version(connection)
    if not 0 < version < VERSION:
        return
    kept = path.with_name(f"{path.name}.version-{version}")
    partial = kept.with_name(f".{kept.name}.{os.getpid()}")
    os.close(os.open(partial, os.O_CREAT | os.O_RDWR | os.O_TRUNC, _PRIVATE))
    try:
        with closing(sqlite3.connect(partial)) as copy:
            connection.backup(copy)
            # False if another process has changed the tables meanwhile; that process has made its own copy
            whole = _version(copy) == version
        if whole:
            os.replace(partial, kept)
    finally:
        partial.unlink(missing_ok=True)


def _migrate(version: int, connection: sqlite3.Connection) -> None:
    """Bring the tables to the next version, unless another process has done so while this process waited for the
    lock.
    """
    if _version(connection) == version:
        for statement in _statements(MIGRATIONS[version]):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {version + 1}")


def _in_transaction(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], Value]) -> Value:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise
    return result


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _statements(script: str) -> Iterator[str]:
    """Split a script into its statements. SQLite's ``executescript`` is not used, because it would commit the
    surrounding transaction.
    """
    statement = ""
    for piece in script.split(";")[:-1]:
        statement += f"{piece};"
        # semicolons also occur inside a statement that makes a trigger, so pieces are joined until a statement is
        # complete
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _carried_over(path: Path) -> sqlite3.Connection:
    """Make tables in memory with all rows that can be read from the file and its log."""
    memory = _in_memory()
    with suppress(sqlite3.Error, OSError):
        salvage.restore(salvage.read(path, _table_columns()), memory)
    return memory


def _sums(path: Path) -> list[tuple[Any, ...]]:
    """The checksums in a damaged file, as far as SQLite can read them; none if its log hides newer ones."""
    with suppress(sqlite3.Error, OSError, UnicodeDecodeError):
        if _size(path) and not salvage.hides_transactions(path):
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as damaged:
                return damaged.execute("SELECT sum, kind, row FROM sums").fetchall()
    return []


def _check(connection: sqlite3.Connection) -> None:
    """Check the whole file. Otherwise a damaged page would stay undetected until it is read, perhaps after a year.

    Raises:
        sqlite3.DatabaseError: a page or a definition is damaged.
    """
    said = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if said != "ok":
        raise sqlite3.DatabaseError(f"malformed: {said}")
    with closing(_in_memory()) as sound:
        if _definitions(connection) != _definitions(sound):
            raise sqlite3.DatabaseError("malformed: its tables are defined differently")


def _mend_index(connection: sqlite3.Connection) -> None:
    """Make the search index anew from the messages if it does not fit them, because it would miss words in silence.

    Raises:
        sqlite3.DatabaseError: no index can be made.
    """
    try:
        connection.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")
    except sqlite3.DatabaseError as error:
        if not _is_damaged(error):
            raise
        logger.error("the search index was damaged, and is made again: %s", error)
        connection.execute("INSERT INTO words (words) VALUES ('rebuild')")


def _definitions(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    """The columns of the tables, and the triggers and the search index as they were defined. SQLite checks no names, so
    that a changed letter in one makes every later query fail.
    """
    ours = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' OR name = 'words' ORDER BY name"
    columns = [(table, *names) for table, names in _columns_of(connection).items()]
    return [*columns, *map(tuple, connection.execute(ours).fetchall())]


def _is_damaged(error: sqlite3.Error) -> bool:
    said = ("not a database", "malformed", "unsupported file format", "vtable constructor failed", "fts5")
    return any(words in str(error) for words in said)


def _is_empty(path: Path) -> bool:
    return path.is_file() and not _size(path)


def _size(path: Path) -> int:
    """The size of a file in bytes; 0 if there is no file."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _place(path: Path) -> object:
    """A value that identifies the file at the path and changes when the file is replaced; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _stamp(path: Path) -> object:
    """A value by which a change of the file or its log, by any process, is recognised."""
    stamps = []
    for file in (path, path.with_name(path.name + _BESIDE[0])):
        with suppress(OSError):
            status = file.stat()
            stamps.append((file.name, status.st_ino, status.st_size, status.st_mtime_ns))
    return stamps


def _set_aside(path: Path) -> Path:
    """Copy a damaged file under another name and rename its log. The damaged file itself stays until it is replaced.
    Return the path of the copy.

    Raises:
        OSError: the disk cannot be written.
    """
    kept = path.with_name(f"{path.name}.damaged-{int(time.time())}")
    shutil.copyfile(path, kept)
    log, shared = (path.with_name(path.name + suffix) for suffix in _BESIDE)
    if log.is_file():
        # the log is moved away, because SQLite would take it for the log of the new file
        os.replace(log, kept.with_name(kept.name + _BESIDE[0]))
    shared.unlink(missing_ok=True)
    return kept


def _table_columns() -> dict[str, tuple[str, ...]]:
    """The names of the columns of each table, in their order, keyed by table."""
    with closing(_in_memory()) as memory:
        return _columns_of(memory)


def _columns_of(connection: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    tables = ("books", "chats", "messages", "notes", "app_state", "sums")
    return {table: tuple(row["name"] for row in connection.execute(f"PRAGMA table_info({table})")) for table in tables}


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    said = str(error)
    if "full" in said:
        return "the disk is full"
    if "readonly" in said or "unable to open" in said:
        return "it is write-protected"
    if "locked" in said:
        return "another program has locked it"
    return said


# Records as JSON -----------------------------------------------------------------------------------------------------


def to_json(value: Any) -> str | None:
    """Encode a value as compact JSON; None stays None."""
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def from_json(text: str | None) -> Any:
    """Decode a JSON text; None if there is none, or if it is damaged."""
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def figures_to_json(figures: Figures | None) -> str | None:
    return to_json(asdict(figures)) if figures is not None else None


def figures_from_json(text: str | None) -> Figures | None:
    """Read stored figures. None if another version of the program stored them in a different form."""
    values, hints = from_json(text) or {}, get_type_hints(Figures)
    try:
        return Figures(**{name: _part(kind, values[name]) for name, kind in hints.items() if name in values})
    except TypeError:
        return None


def _part(kind: Any, value: Any) -> Any:
    """Restore a field of type ``kind`` from its JSON value. JSON has turned tuples into lists and dataclasses into
    dictionaries.
    """
    if isinstance(value, list):
        return tuple(value)
    if is_dataclass(kind) and isinstance(kind, type):
        return kind(**{name: _part(None, part) for name, part in {**value}.items()})
    return value
