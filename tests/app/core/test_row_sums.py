"""A byte that the disk has changed in a text of the library is noticed and said, although SQLite sees nothing."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from app.core.chats import Chats, Exchange
from app.core.db import Database
from app.core.notes import Note, NoteStore
from engine.events import StopReason
from tests.tally import count

BOOK = "a" * 64
CHANGED = (
    "Damage on the disk has changed {} questions and answers, {} notes, and {} names in the library. "
    "Compare them with the book before you rely on them. They belong to {}."
)
FLIPS = 30


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A closed library with a book, two chats and two notes."""
    file = tmp_path / "library.db"
    database = Database(file)
    database.write(
        lambda connection: connection.execute("INSERT INTO books (sha256, given) VALUES (?, 'Our lease')", (BOOK,))
    )
    chats = Chats(database)
    for question, answer in (("What is the deposit?", "It is 1,485 pounds."), ("Who lives there?", "Anna does.")):
        chat = chats.begin(BOOK)
        chats.update(chat.id, chats.ask(chat.id, question), replace(turn_of(chats, chat.id), answer=answer))
    chats.rename(chats.all()[0].id, "People")
    store = NoteStore(database)
    note = store.add(Note("", BOOK, 1, passage="The deposit is 1,485 pounds."))
    store.change(note.id, "My own words, written twice.", note.colour)
    store.delete(store.add(Note("", BOOK, 2, passage="Not wanted.")).id)
    store.add(Note("", BOOK, 3, passage="The garden is shared."))
    database.close()
    return file


def turn_of(chats: Chats, id: str) -> Exchange:
    (turn,) = chats.get(id).exchanges
    return replace(turn, stopped=StopReason.END)


def everything(file: Path) -> list[list[tuple[object, ...]]]:
    connection = sqlite3.connect(file)
    columns = ("sha256, given FROM books", "id, book, name FROM chats", "* FROM notes")
    texts = "id, chat, parent, role, text, stopped, figures, notes FROM messages"
    found = [connection.execute(f"SELECT {each} ORDER BY 1").fetchall() for each in (*columns, texts)]
    connection.close()
    return found


def swap(file: Path, was: bytes, becomes: bytes) -> None:
    content = file.read_bytes()
    assert was in content
    file.write_bytes(content.replace(was, becomes))


def test_what_was_written_is_not_said_to_have_changed(file: Path) -> None:
    assert Database(file).notice == ""


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        (b"1,485 pounds.", b"1,985 pounds.", (1, 1, 0, "“What is the deposit?”, “Our lease”")),
        (b"written twice", b"written thrice"[:13], (0, 1, 0, "“Our lease”")),
        (b"Anna", b"Anne", (1, 0, 0, "“People”")),
        (b"Anna", b"An\xff\xfe", (1, 0, 0, "“People”")),
        (b"People", b"Pebple", (0, 0, 1, "“Pebple”")),
        (b"Our lease", b"Our leafe", (0, 0, 1, "“Our leafe”")),
    ],
)
def test_a_changed_letter_is_said_once(file: Path, was: bytes, becomes: bytes, said: tuple[int, int, int, str]) -> None:
    swap(file, was, becomes)
    database = Database(file)
    assert database.notice == CHANGED.format(*said)
    assert database.trouble == ""
    database.close()
    assert Database(file).notice == ""


def test_no_flipped_bit_changes_a_text_in_silence(file: Path) -> None:
    before, sound, dice = everything(file), file.read_bytes(), Random(65)
    for _ in range(FLIPS):
        content = bytearray(sound)
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        file.write_bytes(content)
        for old in file.parent.glob("library.db?*"):
            old.unlink()
        database = Database(file)
        notice = database.notice
        database.close()
        assert notice or everything(file) == before
        count("flipped bits of a library")


def test_a_search_index_that_lacks_a_word_is_made_again(file: Path) -> None:
    connection = sqlite3.connect(file)
    number, text = connection.execute("SELECT id, text FROM messages WHERE text LIKE '%deposit%'").fetchone()
    connection.execute("INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", (number, text))
    connection.commit()
    connection.close()
    assert len(Chats(Database(file)).search("deposit")) == 1


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE sums SET sum = 'g' || substr(sum, 2) WHERE kind = 'notes'",
        "UPDATE sums SET kind = 'notez' WHERE kind = 'notes'",
        "DELETE FROM sums",  # as of rows that an older program wrote while this one changed the tables
    ],
)
def test_a_damaged_or_missing_checksum_is_no_changed_row(file: Path, damage: str) -> None:
    connection = sqlite3.connect(file)
    connection.execute(damage)
    connection.commit()
    connection.close()
    assert Database(file).notice == ""
    swap(file, b"1,485 pounds.", b"1,985 pounds.")
    assert Database(file).notice == CHANGED.format(1, 1, 0, "“What is the deposit?”, “Our lease”"), "new ones are made"


def test_damage_to_the_checksums_definition_or_the_files_format_is_mended(file: Path) -> None:
    """The library was only in memory from then on, at every start."""
    sound, before = file.read_bytes(), everything(file)
    for content in (
        sound.replace(b"sum TEXT NOT NULL", b"sul TEXT NOT NULL"),
        sound[:47] + b"\x05" + sound[48:],  # the version of the format in which the tables are defined
    ):
        assert content != sound
        file.write_bytes(content)
        database = Database(file)
        assert database.trouble == ""
        assert database.notice.startswith("The library was damaged: 2 chats")
        database.close()
        assert everything(file) == before


def test_a_changed_row_of_a_damaged_file_is_named(file: Path) -> None:
    """It was salvaged with a new checksum, and only the file was said to be damaged."""
    swap(file, b"name TEXT NOT NULL DEFAULT", b"nane TEXT NOT NULL DEFAULT")
    swap(file, b"Anna", b"Anne")
    notice = Database(file).notice
    assert notice.startswith("The library was damaged: 2 chats")
    assert notice.endswith(CHANGED.format(1, 0, 0, "“People”"))
