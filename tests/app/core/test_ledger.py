"""Changes that were confirmed are in the library's file, or a person is told what is missing."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from app.core import db
from app.core.chats import Chats
from app.core.db import Database
from app.core.notes import Note, NoteStore

BOOK = "a" * 64
LOST = "Confirmed changes to the library were lost. Missing are {}. They belong to “Lease.pdf”."


@pytest.fixture
def running(tmp_path: Path) -> Database:
    """A library in use, with a chat and a note in its file."""
    database = Database(tmp_path / "library.db")
    database.write(
        lambda connection: connection.execute("INSERT INTO books (sha256, name) VALUES (?, 'Lease.pdf')", (BOOK,))
    )
    chats = Chats(database)
    chats.ask(chats.begin(BOOK).id, "Who kept the light?")
    NoteStore(database).add(Note("", BOOK, 1, passage="The lamp was lit."))
    return database


def copied(database: Path, to: Path, *suffixes: str) -> Path:
    """What a kill would leave of the library's files."""
    to.mkdir()
    for suffix in suffixes:
        shutil.copy(f"{database}{suffix}", to)
    return to / database.name


def counts(file: Path) -> tuple[int, ...]:
    connection = sqlite3.connect(file)
    found = tuple(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("messages", "notes"))
    connection.close()
    return found


def test_a_closed_library_has_everything_in_its_file(tmp_path: Path, running: Database) -> None:
    running.close()
    assert counts(copied(tmp_path / "library.db", tmp_path / "copy", "")) == (2, 1)


def test_a_running_library_moves_its_log_into_the_file(
    tmp_path: Path, running: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "CHECKPOINT_SECONDS", 0.0)
    running.mend()
    assert (tmp_path / "library.db-wal").stat().st_size == 0
    assert counts(copied(tmp_path / "library.db", tmp_path / "copy", "")) == (2, 1)


@pytest.mark.parametrize("log", ["gone", "zeroed", "empty"])
def test_a_lost_log_is_said_with_what_is_missing(tmp_path: Path, running: Database, log: str) -> None:
    running._checkpoint()
    chats = Chats(running)
    chats.ask(chats.begin(BOOK).id, "And who came after her?")
    store = NoteStore(running)
    store.add(Note("", BOOK, 2, passage="The wick was trimmed."))
    store.add(Note("", BOOK, 3, passage="The keeper slept."))
    library = copied(tmp_path / "library.db", tmp_path / "copy", "", "-wal", "-confirmed")
    wal = library.with_name("library.db-wal")
    if log == "gone":
        wal.unlink()
    else:
        wal.write_bytes(bytes(wal.stat().st_size if log == "zeroed" else 0))
    again = Database(library)
    assert again.notice == LOST.format("1 chats with 2 questions and answers, and 2 notes")
    assert again.trouble == ""
    again.close()
    assert Database(library).notice == "", "it is said once"


@pytest.mark.parametrize("left", ["gone", "empty"])
def test_a_lost_file_is_said_with_what_was_in_it(tmp_path: Path, running: Database, left: str) -> None:
    running.close()
    library = copied(tmp_path / "library.db", tmp_path / "copy", "", "-confirmed")
    library.write_bytes(b"") if left == "empty" else library.unlink()
    said = LOST.format("1 chats with 2 questions and answers, and 1 notes")
    assert Database(library).notice.endswith(said)


def test_a_changed_note_that_is_lost_is_said(tmp_path: Path, running: Database) -> None:
    (note,) = NoteStore(running).of([BOOK])
    running._checkpoint()
    NoteStore(running).change(note.id, "My own words.", note.colour)
    library = copied(tmp_path / "library.db", tmp_path / "copy", "", "-confirmed")
    assert Database(library).notice == "The last 1 changes to the library were lost."


def test_what_a_damaged_file_lost_is_said(tmp_path: Path, running: Database) -> None:
    running.close()
    library = copied(tmp_path / "library.db", tmp_path / "copy", "", "-confirmed")
    library.write_bytes(b"\xff" * library.stat().st_size)
    assert Database(library).notice.endswith("and 1 notes. They belong to “Lease.pdf”.")


def test_a_kill_before_the_confirmation_is_no_loss(tmp_path: Path, running: Database) -> None:
    before = (tmp_path / "library.db-confirmed").read_bytes()
    for note in NoteStore(running).of([BOOK]):
        NoteStore(running).delete(note.id)
    library = copied(tmp_path / "library.db", tmp_path / "copy", "", "-wal")
    library.with_name("library.db-confirmed").write_bytes(before)
    assert Database(library).notice == ""


@pytest.mark.parametrize("content", [b"", b"\0" * 300, b"{}", None])
def test_a_damaged_confirmation_raises_no_alarm(tmp_path: Path, running: Database, content: bytes | None) -> None:
    running.close()
    kept = tmp_path / "library.db-confirmed"
    assert kept.stat().st_mode & 0o077 == 0
    changed = bytearray(kept.read_bytes())
    changed[-9] ^= 1
    kept.write_bytes(bytes(changed) if content is None else content)
    assert Database(tmp_path / "library.db").notice == ""


def test_a_late_change_of_a_closed_library_writes_nothing(running: Database) -> None:
    running.close()
    with pytest.raises(sqlite3.ProgrammingError):
        NoteStore(running).add(Note("", BOOK, 4, passage="Too late."))
    assert running.trouble == ""
