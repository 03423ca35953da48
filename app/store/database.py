"""One SQLite file with one writer; when it cannot be used, the same tables in memory, said so.

Owns the connection, the version of the tables, and the way out when the disk is full, the folder is read-only or the
file is damaged: what was readable is carried over into memory, everything goes on there, and as soon as the file can
be written again all of it is written back. Knows no table by name.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from app.store.schema import MIGRATIONS, VERSION

logger = logging.getLogger(__name__)

Row = sqlite3.Row
Result = TypeVar("Result")

BUSY_SECONDS = 3.0  # how long another process of ours may hold the file
RETRY_SECONDS = 10.0  # between two attempts to write to the file again
_PRIVATE = 0o600


class Database:
    """Every method may be called from any thread; one at a time gets its turn.

    Args:
        path: of the file, made on first use; None for memory alone.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._trouble = ""
        self._tried = 0.0
        self._changes = 0
        self._connection = self._open()

    @property
    def trouble(self) -> str:
        """Why nothing is written to the file at present, in a sentence; empty when all is well."""
        return self._trouble

    @property
    def changes(self) -> int:
        """Grows with everything that is written but ``note``."""
        return self._changes

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Row]:
        return self.read(lambda connection: connection.execute(query, values).fetchall())

    def read(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run ``work``, which only reads."""
        with self._lock:
            try:
                return work(self._connection)
            except sqlite3.DatabaseError as error:
                if not self._leave_file(error):
                    raise
                return work(self._connection)

    def write(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run ``work`` in one transaction. Where the file refuses it, it is run again in memory."""
        with self._lock:
            self._changes += 1
            return self.note(work)

    def note(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """As ``write``, for what changes often and no list shows, such as an answer that grows."""
        with self._lock:
            self.mend()
            try:
                return self._transaction(work)
            except sqlite3.IntegrityError:
                raise
            except sqlite3.DatabaseError as error:
                if not self._leave_file(error):
                    raise
                return self._transaction(work)

    def mend(self) -> None:
        """Go back to the file if it can be written again; tried now and then, so it may be called often."""
        if not self._trouble or self._path is None or time.monotonic() - self._tried < RETRY_SECONDS:
            return
        with self._lock:
            self._tried = time.monotonic()
            with suppress(sqlite3.Error, OSError, _Newer):
                self._return_to_file()

    def close(self) -> None:
        with self._lock:
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.close()

    def _transaction(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        connection = self._connection
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

    def _open(self) -> sqlite3.Connection:
        if self._path is None:
            return _in_memory()
        try:
            return _open_file(self._path)
        except _Newer:
            self._say("The library was written by a newer Trifold; this one leaves it alone.")
        except sqlite3.DatabaseError as error:
            if _is_damaged(error) and (kept := _set_aside(self._path)):
                with suppress(sqlite3.Error, OSError):
                    connection = _open_file(self._path)
                    logger.error("the library was damaged; it is kept as %s", kept.name)
                    return connection
            self._cannot_write(error)
        except OSError as error:
            self._cannot_write(error)
        return _carried_over(self._path)

    def _leave_file(self, error: sqlite3.Error) -> bool:
        """Whether there was a file to leave: everything goes on in memory from here."""
        if self._path is None or self._trouble:
            return False
        logger.warning("the library cannot be written: %s", error)
        self._cannot_write(error)
        memory = _in_memory()
        with suppress(sqlite3.Error):
            self._connection.backup(memory)
            _prepare(memory)
        with suppress(sqlite3.Error):
            self._connection.close()
        self._connection = memory
        return True

    def _return_to_file(self) -> None:
        assert self._path is not None
        file = _open_file(self._path)
        try:
            self._connection.backup(file)
            file.execute("PRAGMA journal_mode = WAL")
        except sqlite3.Error:
            file.close()
            raise
        self._connection.close()
        self._connection = file
        self._trouble = ""
        logger.warning("the library is written again")

    def _cannot_write(self, error: Exception) -> None:
        self._say(f"Trifold cannot write to its library ({_reason(error)}).")

    def _say(self, cause: str) -> None:
        self._tried = time.monotonic()
        self._trouble = f"{cause} The chat goes on, but only in memory: it is lost when the program ends."


class _Newer(Exception):
    """The file has tables of a later version."""


def _open_file(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, _PRIVATE))
    connection = _connect(path)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        _prepare(connection)
        connection.execute("BEGIN IMMEDIATE")  # a file that can only be read is found out now, not at the first answer
        connection.execute("ROLLBACK")
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
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    """Bring the tables to the version of this program.

    Raises:
        _Newer: they are of a later one.
    """
    # In WAL mode NORMAL keeps every commit over the end of the process; FULL would wait for the disk twice a second.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise _Newer
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.executescript(f"BEGIN IMMEDIATE;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;")


def _carried_over(path: Path) -> sqlite3.Connection:
    """Tables in memory with whatever can be read of the file."""
    memory = _in_memory()
    with suppress(sqlite3.Error):
        file = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        if int(file.execute("PRAGMA user_version").fetchone()[0]) == VERSION:
            file.backup(memory)
            _prepare(memory)
        file.close()
    return memory


def _is_damaged(error: sqlite3.Error) -> bool:
    said = str(error)
    return "not a database" in said or "malformed" in said


def _set_aside(path: Path) -> Path | None:
    """Keep a damaged file under another name; None if it cannot be moved."""
    kept = path.with_name(f"{path.name}.damaged-{int(time.time())}")
    try:
        os.replace(path, kept)
    except OSError:
        return None
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return kept


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return (error.strerror or type(error).__name__).lower()
    said = str(error)
    if "full" in said:
        return "the disk is full"
    if "readonly" in said or "unable to open" in said:
        return "it may only be read"
    if "locked" in said:
        return "another program holds it"
    return said
