"""Damage inside the library's file: it is set aside, what can be read of it is carried over, and a person is told."""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from app.core.chats import Chats
from app.core.db import Database
from engine.events import StopReason

BOOKS = ("a" * 64, "b" * 64)
CHATS = 30
LONG = "The lamp of the tower was lit at dusk. " * 400  # does not fit on one page of the file

_DAMAGE = b"\xff" * 200


def told(chats: Chats) -> dict[str, list[tuple[str, str, StopReason | None]]]:
    """Every chat's questions and answers, as they are shown."""
    found = {}
    for line in chats.all():
        chat = chats.get(line.id)
        assert chat is not None
        found[line.id] = [(turn.question, turn.answer, turn.stopped) for turn in chat.exchanges]
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "library.db"


@pytest.fixture
def written(file: Path) -> dict[str, list[tuple[str, str, StopReason | None]]]:
    """A library of many chats, closed; gives what is in it."""
    database = Database(file)
    chats = Chats(database)
    for number in range(CHATS):
        chat = chats.begin(BOOKS[number % len(BOOKS)])
        for turn in range(3):
            at = chats.ask(chat.id, f"Question {turn} of chat {number}, about the keeper?")
            exchange = chats.get(chat.id).exchanges[at]
            text = LONG if number == CHATS - 1 else f"Answer {turn} of chat {number}: Maren, of Bücherl é."
            chats.update(chat.id, at, replace(exchange, answer=text, stopped=StopReason.END))
    chats.rename(chats.all()[0].id, "A name of its own")
    database.write(lambda connection: connection.execute("INSERT INTO app_state VALUES ('open', '[1, 2, true]')"))
    said = told(chats)
    database.close()
    assert len(said) == CHATS
    return said


def root_of(file: Path, table: str) -> int:
    """Where the root page of a table begins, in bytes."""
    connection = sqlite3.connect(file)
    page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
    size = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.close()
    return int((page - 1) * size)


def damage(file: Path, at: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(_DAMAGE)


def only_set_aside(file: Path) -> Path:
    (kept,) = [path for path in file.parent.glob(f"{file.name}.damaged-*") if not path.name.endswith(("-wal", "-shm"))]
    return kept


@pytest.mark.parametrize(
    "table",
    ["messages", "words_data", "words_docsize", "messages_of_chat", "messages_of_parent", "chats_of_book",
     "sqlite_autoindex_chats_1", "sqlite_autoindex_books_1"],
)  # fmt: skip
def test_damage_at_a_root_page_loses_nothing(
    file: Path, written: dict[str, list[tuple[str, str, StopReason | None]]], table: str
) -> None:
    damage(file, root_of(file, table))
    damaged = file.read_bytes()
    database = Database(file)
    chats = Chats(database)
    assert database.trouble == ""
    kept = only_set_aside(file)
    assert kept.read_bytes() == damaged
    assert kept.name in database.notice
    assert told(chats) == written
    assert len(chats.search("keeper")) > 0, "the words are found again"
    chat = chats.begin(BOOKS[0])
    chats.ask(chat.id, "And now?")
    database.close()
    again = Database(file)
    assert again.notice == ""
    assert told(Chats(again)) == {**written, chat.id: [("And now?", "", StopReason.CANCELLED)]}
    assert again.rows("PRAGMA quick_check")[0][0] == "ok"


def test_rows_are_found_on_a_page_whose_head_is_destroyed(
    file: Path, written: dict[str, list[tuple[str, str, StopReason | None]]]
) -> None:
    """The only pages of two small tables: where their rows begin is said nowhere any more."""
    database = Database(file)
    before = {line.id: (line.book, line.title) for line in Chats(database).all()}
    database.close()
    for table in ("chats", "books"):
        damage(file, root_of(file, table))
    database = Database(file)
    chats = Chats(database)
    assert told(chats) == written
    assert {line.id: (line.book, line.title) for line in chats.all()} == before
    assert database.trouble == ""


def test_what_was_said_is_there_though_its_chats_are_not(
    file: Path, written: dict[str, list[tuple[str, str, StopReason | None]]]
) -> None:
    for table in ("chats", "books"):
        at = root_of(file, table)
        with file.open("r+b") as opened:
            opened.seek(at)
            opened.write(b"\xff" * 4096)
    database = Database(file)
    chats = Chats(database)
    assert told(chats) == written
    assert len({line.book for line in chats.all()}) == 1


def test_damage_anywhere(
    tmp_path: Path, file: Path, written: dict[str, list[tuple[str, str, StopReason | None]]]
) -> None:
    """It always starts, writes and finds words; most chats are whole."""
    random = Random(11)
    whole = file.read_bytes()
    for number in range(25):
        hurt = tmp_path / f"{number}.db"
        hurt.write_bytes(whole)
        damage(hurt, random.randrange(len(whole) - len(_DAMAGE)))
        database = Database(hurt)
        chats = Chats(database)
        found = told(chats)
        assert sum(found.get(chat) == turns for chat, turns in written.items()) >= CHATS * 2 // 3
        chats.ask(chats.begin(BOOKS[0]).id, "Where is the harpoon?")
        assert len(chats.search("harpoon")) == 1
        assert database.trouble == ""
        database.close()


def test_damage_found_while_it_runs(file: Path, written: dict[str, list[tuple[str, str, StopReason | None]]]) -> None:
    database = Database(file)
    chats = Chats(database)
    database._connection.execute("PRAGMA cache_size = 0")
    damage(file, root_of(file, "messages"))
    name = chats.all()[0].id
    chats.ask(name, "Is anybody there?")
    assert database.trouble == ""
    assert only_set_aside(file).name in database.notice
    assert told(chats) == {**written, name: [*written[name], ("Is anybody there?", "", None)]}
    database.close()
    assert len(told(Chats(Database(file)))[name]) == len(written[name]) + 1


def test_the_words_of_the_search_damaged_inside(
    file: Path, written: dict[str, list[tuple[str, str, StopReason | None]]]
) -> None:
    """No check of pages sees it; the first question does."""
    connection = sqlite3.connect(file)
    connection.execute("UPDATE words_data SET block = x'ffffffffffffffffffff' WHERE id = 10")
    connection.execute("UPDATE words_data SET block = zeroblob(length(block)) WHERE id > 10")
    connection.commit()
    connection.close()
    database = Database(file)
    chats = Chats(database)
    name = chats.all()[-1].id
    chats.ask(name, "Where is the keeper?")
    assert chats.search("keeper")
    assert database.trouble == ""
    assert told(chats)[name][:-1] == written[name]


@pytest.mark.parametrize("left", [0, 100, 5000, 0.5])
def test_a_file_cut_off_beside_its_log(
    tmp_path: Path, file: Path, written: dict[str, list[tuple[str, str, StopReason | None]]], left: float
) -> None:
    """As after a power cut with a bad disk: the newest words are in the log and are carried over."""
    running = Database(file)
    chats = Chats(running)
    name = chats.all()[0].id
    chats.ask(name, "Written to the log alone?")
    cut = tmp_path / "cut" / "library.db"
    cut.parent.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(str(file) + suffix, str(cut) + suffix)
    running.close()
    with cut.open("r+b") as opened:
        opened.truncate(int(left if left != 0.5 else cut.stat().st_size // 2))
    database = Database(cut)
    found = told(Chats(database))
    assert database.trouble == ""
    assert only_set_aside(cut).name in database.notice
    assert any("Written to the log alone?" in question for turns in found.values() for question, *_ in turns)
    if left == 0.5:
        whole = sum(turns in written.values() for turns in found.values())
        assert whole > CHATS // 4, "what the half of the file holds"


@pytest.mark.parametrize("where", ["header", "salt", "frame", "page", "end"])
def test_a_damaged_log_after_a_power_cut(tmp_path: Path, where: str) -> None:
    """SQLite believes a log up to the damage and dropped the rest without a word: in a new library all chats. An end
    in the middle of the last page is none."""
    running = Database(tmp_path / "library.db")
    chats = Chats(running)
    for number in range(CHATS):
        chats.ask(chats.begin(BOOKS[0]).id, f"Question {number}?")
    cut = tmp_path / "cut" / "library.db"
    cut.parent.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(tmp_path / f"library.db{suffix}", str(cut) + suffix)
    running.close()
    log = cut.with_name("library.db-wal")
    content = bytearray(log.read_bytes())
    frame = 32 + (len(content) // 4120 // 2) * 4120  # of 4,096 bytes and its own header
    at, length = {"header": (0, 32), "salt": (16, 8), "frame": (frame, 24), "page": (frame + 3000, 8), "end": (0, 0)}[
        where
    ]
    content[at : at + length] = b"\xff" * length
    log.write_bytes(content[:-100] if where == "end" else content)
    database = Database(cut)
    asked = [question for turns in told(Chats(database)).values() for question, *_ in turns]
    assert len(asked) >= CHATS - 1
    assert database.trouble == ""
    assert (only_set_aside(cut).name in database.notice) if where != "end" else database.notice == ""
    database.close()


def test_names_of_tables_that_are_no_letters(
    file: Path, written: dict[str, list[tuple[str, str, StopReason | None]]]
) -> None:
    content = file.read_bytes()
    file.write_bytes(content.replace(b"CREATE TABLE messages", b"CREATE TABLE \x90\x90\x90\x90ages"))
    assert told(Chats(Database(file))) == written


@pytest.mark.parametrize(
    ("whole", "damaged"),
    [
        (b"title TEXT NOT", b"titme TEXT NOT"),
        (b"colour TEXT NOT", b"\xe3olour TEXT NOT"),
        (b"VALUES (new.id, new.text)", b"VALUES (new.if, new.text)"),
        (b"'messages', content_rowid", b"'messagez', content_rowid"),
    ],
)
def test_a_changed_letter_in_a_definition(
    file: Path, written: dict[str, list[tuple[str, str, StopReason | None]]], whole: bytes, damaged: bytes
) -> None:
    """SQLite opened the file without a word, and then every query failed."""
    content = file.read_bytes()
    assert whole in content
    file.write_bytes(content.replace(whole, damaged))
    chats = Chats(Database(file))
    assert told(chats) == written
    chats.ask(chats.all()[0].id, "And now?")
    assert "damaged" in chats.database.notice
    assert chats.database.trouble == ""


def test_an_empty_file_is_no_new_library(file: Path) -> None:
    file.touch()
    database = Database(file)
    assert "library.db was empty" in database.notice
    assert database.trouble == ""
    database.close()
    assert Database(file).notice == ""


def test_what_was_deleted_does_not_come_back(file: Path, written: object) -> None:
    database = Database(file)
    chats = Chats(database)
    gone = [line.id for line in chats.all()][: CHATS - 2]
    for chat in gone:
        chats.delete(chat)
    left = told(chats)
    database.close()
    damage(file, root_of(file, "messages"))
    assert told(Chats(Database(file))) == left
