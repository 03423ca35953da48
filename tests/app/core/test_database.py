"""The file that everything is kept in: old ones, newer ones, damaged ones, full disks, and a process that is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from app.core import db as module
from app.core.bookmark import Bookmark, Mark
from app.core.chats import Chats
from app.core.db import VERSION, Database
from engine.events import StopReason

ROOT = Path(__file__).resolve().parents[3]
BOOK = "a" * 64


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "Bücher é" / "library.db"


def asked(database: Database, question: str = "Who kept the light?") -> tuple[Chats, str]:
    chats = Chats(database)
    chat = chats.begin(BOOK)
    chats.ask(chat.id, question)
    return chats, chat.id


def questions(file: Path) -> list[str]:
    connection = sqlite3.connect(file)
    found = [row[0] for row in connection.execute("SELECT text FROM messages WHERE role = 'question' ORDER BY id")]
    connection.close()
    return found


def test_a_new_file_has_the_tables_of_this_version(file: Path) -> None:
    database = Database(file)
    assert database.trouble == ""
    assert database.rows("PRAGMA user_version")[0][0] == VERSION
    assert database.rows("PRAGMA journal_mode")[0][0] == "wal"
    assert database.rows("PRAGMA foreign_keys")[0][0] == 1
    database.close()
    assert file.stat().st_mode & 0o077 == 0 or os.name == "nt"


def test_what_was_written_is_there_the_next_time(file: Path) -> None:
    first = Database(file)
    _, chat = asked(first)
    first.close()
    again = Chats(Database(file)).get(chat)
    assert again is not None
    assert [turn.question for turn in again.exchanges] == ["Who kept the light?"]


def test_an_older_file_is_brought_up(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Database(file)
    asked(first)
    first.close()
    monkeypatch.setattr(module, "MIGRATIONS", (*module.MIGRATIONS, "ALTER TABLE chats ADD COLUMN pinned INTEGER;"))
    monkeypatch.setattr(module, "VERSION", VERSION + 1)
    second = Database(file)
    assert second.rows("PRAGMA user_version")[0][0] == VERSION + 1
    assert [row["pinned"] for row in second.rows("SELECT pinned FROM chats")] == [None]


@pytest.fixture
def version_1(file: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[Any, ...]]]:
    """The file as the first version left it, with something in every table; gives its rows."""
    with monkeypatch.context() as first:
        first.setattr(module, "MIGRATIONS", module.MIGRATIONS[:1])
        first.setattr(module, "VERSION", 1)
        first.setattr(module.ledger, "counted", lambda work: work)  # it counted nothing
        first.setattr(module, "row_sums", Mock(changed=Mock(return_value="")))  # and summed nothing
        database = Database(file)
        chats, chat = asked(database)
        answered = module_replace(chats.get(chat).exchanges[0], answer="It was Maren.", stopped=StopReason.END)
        chats.update(chat, 0, answered)
        mark = module.to_json([BOOK, chat, True])
        database.write(lambda connection: connection.execute("INSERT INTO desk VALUES ('open', ?)", (mark,)))
        database.close()
    return all_rows(file)


def all_rows(file: Path) -> dict[str, list[tuple[Any, ...]]]:
    connection = sqlite3.connect(file)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
    connection.close()
    # how many changes were confirmed is counted by this program only
    return {table: [row for row in rows if row[0] != "confirmed"] for table, rows in found.items()}


def test_a_file_of_version_1_loses_nothing(file: Path, version_1: dict[str, list[tuple[Any, ...]]]) -> None:
    assert {len(version_1[table]) for table in ("books", "chats", "desk")} == {1}
    database = Database(file)
    assert database.trouble == database.notice == ""
    (chat,) = Chats(database).all()
    assert Bookmark(database).find() == Mark(BOOK, chat.id, ready=True)
    assert len(Chats(database).search("Maren")) == 1
    Bookmark(database).keep(Mark(BOOK, chat.id, ready=False))
    Bookmark(database).keep(Mark(BOOK, chat.id, ready=True))
    database.close()
    kept = {{"desk": "app_state"}.get(table, table): rows for table, rows in version_1.items()}
    found = all_rows(file)
    assert {kind for kind, *_ in found.pop("sums")} == {"books", "chats", "messages"}
    assert found == {**kept, "notes": [], "books": [(*row, "") for row in kept["books"]]}


def test_names_that_were_given_to_books_become_a_column(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were one JSON text: a damaged letter in it was not noticed, and could lose all names."""
    with monkeypatch.context() as before:
        before.setattr(module, "MIGRATIONS", module.MIGRATIONS[:4])
        before.setattr(module, "VERSION", 4)
        before.setattr(module, "row_sums", Mock(changed=Mock(return_value="")))
        old = Database(file)
        books = [(BOOK, "lease.pdf"), ("b" * 64, "minutes.pdf")]
        old.write(lambda connection: connection.executemany("INSERT INTO books (sha256, name) VALUES (?, ?)", books))
        row = ("given", module.to_json({BOOK: "Our lease", "c" * 64: "Of no book"}))
        old.write(lambda connection: connection.execute("INSERT INTO app_state VALUES (?, ?)", row))
        old.close()
    sound = file.read_bytes()
    named = [("lease.pdf", "Our lease"), ("minutes.pdf", "")]
    for was, becomes, found in (
        (b"", b"", named),
        (b'{"aaa', b'["aaa', [(name, "") for name, _ in named]),  # no valid JSON
        (b"SQLite format", b"SQLite farmat", [(name, "") for name, _ in named]),  # rows without the column
    ):
        file.write_bytes(sound.replace(was, becomes))
        database = Database(file)
        assert list(map(tuple, database.rows("SELECT name, given FROM books ORDER BY name"))) == found
        database.close()


def test_a_damaged_file_of_version_1_loses_nothing(file: Path, version_1: dict[str, list[tuple[Any, ...]]]) -> None:
    connection = sqlite3.connect(file)
    page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'messages_of_chat'").fetchone()[0]
    size = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.close()
    with file.open("r+b") as opened:
        opened.seek((page - 1) * size)
        opened.write(b"\xff" * 200)
    database = Database(file)
    assert "The library was damaged" in database.notice
    assert database.rows("PRAGMA user_version")[0][0] == VERSION
    (chat,) = Chats(database).all()
    assert Bookmark(database).find() == Mark(BOOK, chat.id, ready=True)
    assert [turn.answer for turn in Chats(database).get(chat.id).exchanges] == ["It was Maren."]


@pytest.mark.parametrize("before", [0, 1])
def test_two_programs_that_bring_a_file_up_at_once_both_have_it(
    file: Path, before: int, request: pytest.FixtureRequest
) -> None:
    """The second one has read the version already when the first one changes it."""
    if before:
        request.getfixturevalue("version_1")
    file.parent.mkdir(exist_ok=True)

    class Slower(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            if statement.startswith("BEGIN") and first:
                Database(first.pop()).close()
            return super().execute(statement, *values)

        def executescript(self, script: str) -> sqlite3.Cursor:
            if first:
                Database(first.pop()).close()
            return super().executescript(script)

    first = [file]
    second = sqlite3.connect(file, isolation_level=None, factory=Slower)
    module._prepare(second)
    assert not first
    assert second.execute("PRAGMA user_version").fetchone()[0] == VERSION
    assert second.execute("SELECT count(*) FROM app_state").fetchone()[0] == before
    second.close()


def test_a_migration_that_fails_changes_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Database(file)
    asked(first)
    first.close()
    broken = "ALTER TABLE chats ADD COLUMN pinned INTEGER; INSERT INTO nowhere VALUES (1);"
    monkeypatch.setattr(module, "MIGRATIONS", (*module.MIGRATIONS, broken))
    monkeypatch.setattr(module, "VERSION", VERSION + 1)
    with pytest.raises(sqlite3.OperationalError):
        module._open_file(file)
    connection = sqlite3.connect(file)
    assert connection.execute("PRAGMA user_version").fetchone()[0] == VERSION
    assert "pinned" not in [row[1] for row in connection.execute("PRAGMA table_info(chats)")]
    connection.close()


def test_a_newer_file_is_left_alone(file: Path) -> None:
    Database(file).close()
    connection = sqlite3.connect(file)
    connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    database = Database(file)
    assert "newer Trifold" in database.trouble
    asked(database)
    database.close()
    assert questions(file) == []


def test_a_damaged_file_is_kept_aside(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b"this is no database at all, and never was one" * 100)
    database = Database(file)
    assert database.trouble == ""
    asked(database)
    database.close()
    assert questions(file) == ["Who kept the light?"]
    assert len(list(file.parent.glob("library.db.damaged-*"))) == 1


def test_a_full_disk_is_said_and_the_chat_goes_on_in_memory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(file)
    chats, chat = asked(database)
    pages = database.rows("PRAGMA page_count")[0][0]
    database._connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own word for a disk that is full
    chats.ask(chat, "long " * 20_000)
    assert "the disk is full" in database.trouble
    assert "only in memory" in database.trouble
    exchange = chats.get(chat).exchanges[1]
    chats.update(chat, 1, module_replace(exchange, answer="It was Maren.", stopped=StopReason.END))
    assert [turn.answer for turn in chats.get(chat).exchanges] == ["", "It was Maren."]
    assert questions(file) == ["Who kept the light?"]
    # There is room again: everything that was said meanwhile is written back.
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    chats.ask(chat, "Are you back?")
    assert database.trouble == ""
    database.close()
    assert questions(file) == ["Who kept the light?", "long " * 20_000, "Are you back?"]


def test_a_file_that_may_only_be_read_is_shown_and_said(file: Path) -> None:
    database = Database(file)
    chats, chat = asked(database)
    database._connection.execute("PRAGMA query_only = 1")
    chats.ask(chat, "And after her?")
    assert "write-protected" in database.trouble
    assert [turn.question for turn in chats.get(chat).exchanges] == [
        "Who kept the light?",
        "And after her?",
    ]


def test_a_file_that_another_program_changed_meanwhile_is_not_overwritten(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held the file for longer than anybody waits, and then wrote to it: both have asked, and both are kept."""
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.05)
    first = Database(file)
    chats, chat = asked(first)
    other = Chats(Database(file))
    holding = sqlite3.connect(file, isolation_level=None)
    holding.execute("BEGIN IMMEDIATE")
    chats.ask(chat, "Asked here?")
    assert "another program has locked it" in first.trouble
    holding.execute("ROLLBACK")
    holding.close()
    other.ask(chat, "Asked there?")
    elsewhere = other.begin(BOOK)
    other.ask(elsewhere.id, "Another chat?")
    other.database.close()
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    exchange = chats.get(chat).exchanges[1]
    chats.update(chat, 1, module_replace(exchange, answer="It was Maren.", stopped=StopReason.END))
    assert first.trouble == ""
    assert [turn.question for turn in chats.get(elsewhere.id).exchanges] == ["Another chat?"]
    first.close()
    assert sorted(questions(file)) == ["Another chat?", "Asked here?", "Asked there?", "Who kept the light?"]
    kept = Chats(Database(file)).get(chat)
    assert [(turn.question, turn.answer) for turn in kept.exchanges][1] == ("Asked here?", "It was Maren.")
    assert len(kept.exchanges[1].questions) == 2, "the other's question is a version of ours"


@pytest.mark.skipif(os.name == "nt", reason="Windows lets nobody remove a file that is open")
@pytest.mark.parametrize("what", ["removed", "exchanged"])
def test_a_folder_that_is_taken_away_while_it_runs(file: Path, what: str) -> None:
    database = Database(file)
    chats, chat = asked(database)
    os.rename(file.parent, file.parent.with_name("gone"))
    if what == "exchanged":
        other = Chats(Database(file))
        other.ask(other.begin(BOOK).id, "Of another library?")
        other.database.close()
    chats.ask(chat, "And after her?")
    assert database.trouble == ""
    assert "was removed" in database.notice
    exchange = chats.get(chat).exchanges[1]
    chats.update(chat, 1, module_replace(exchange, answer="It was Maren.", stopped=StopReason.END))
    database.close()
    again = Chats(Database(file))
    assert [turn.question for turn in again.get(chat).exchanges] == ["Who kept the light?", "And after her?"]
    assert again.get(chat).exchanges[1].answer == "It was Maren."
    assert len(again.all()) == (2 if what == "exchanged" else 1)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("in the way", encoding="utf-8")
    database = Database(tmp_path / "blocked" / "library.db")
    assert "cannot write to its library" in database.trouble
    chats, chat = asked(database)
    assert chats.get(chat).exchanges[0].question == "Who kept the light?"


def module_replace(exchange: Any, **changes: Any) -> Any:
    from dataclasses import replace

    return replace(exchange, **changes)


WRITER = """
import sys, time
from dataclasses import replace
from pathlib import Path
from app.core.chats import Chats
from app.core.db import Database

chats = Chats(Database(Path(sys.argv[1])))
chat = chats.begin("a" * 64)
at = chats.ask(chat.id, "Who kept the light?")
print(chat.id, flush=True)
began = time.monotonic()
for number in range(100_000):
    turn = chats.get(chat.id).exchanges[at]
    chats.update(chat.id, at, replace(turn, answer=turn.answer + f" {number}"))
    print(number, time.monotonic() - began, flush=True)
    time.sleep(0.004)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL; its TerminateProcess is the same thing")
@pytest.mark.parametrize("moment", [0.05, 0.3, 0.55, 0.9, 1.4])
def test_a_killed_process_loses_less_than_a_second(file: Path, moment: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(file)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        chat = writer.stdout.readline().strip()
        time.sleep(moment)
        os.kill(writer.pid, signal.SIGKILL)
        said = [line.split() for line in writer.stdout.read().splitlines() if len(line.split()) == 2]
    kept = Chats(Database(file)).get(chat)
    assert kept is not None
    turn = kept.exchanges[0]
    assert (turn.question, turn.interrupted, turn.stopped) == ("Who kept the light?", True, StopReason.CANCELLED)
    numbers = [int(word) for word in turn.answer.split()]
    assert numbers == list(range(len(numbers)))  # whole up to where it ends
    times = {int(number): float(seconds) for number, seconds in said}
    last_kept = times.get(len(numbers) - 1, 0.0)
    assert max(times.values(), default=0.0) - last_kept < 1.0
    assert turn.can_be_continued == bool(numbers)
