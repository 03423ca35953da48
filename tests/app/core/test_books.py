"""Opened books: kept under the hash of their content, found again, never trusted."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from app.core import atomic_upload as module
from app.core.books import Book, Books
from app.core.db import Database
from engine.errors import DocumentError, ResourceError

TEXT = b"Es war einmal eine Lampe."


@pytest.fixture
def books(tmp_path: Path) -> Books:
    clock = iter(range(1, 1000))
    return Books(tmp_path / "Bücher", clock=lambda: float(next(clock)))


def take(books: Books, name: str, content: bytes = TEXT) -> Book:
    with books.receive(name) as incoming:
        for start in range(0, len(content), 7):
            incoming.write(content[start : start + 7])
        return incoming.keep()


def test_a_file_is_kept_under_its_hash(books: Books) -> None:
    book = take(books, "Die Lampe é.TXT")
    assert book.sha256 == hashlib.sha256(TEXT).hexdigest()
    assert (book.name, book.file) == ("Die Lampe é.TXT", "book.txt")
    assert books.path(book).read_bytes() == TEXT
    assert books.get(book.sha256) == book


def test_the_same_content_is_one_book(books: Books) -> None:
    first = take(books, "a.txt")
    books.remember(first, title="Title", pages=3, unit="page")
    second = take(books, "b.txt")
    assert len(books.all()) == 1
    assert (second.name, second.title, second.opened) == ("a.txt", "Title", 3.0)
    assert not list(books.path(first).parent.parent.glob("incoming-*"))


def test_the_last_opened_comes_first(books: Books) -> None:
    first = take(books, "a.txt")
    take(books, "b.txt", b"other")
    assert [book.name for book in books.all()] == ["b.txt", "a.txt"]
    books.remember(first, title="A", pages=1, unit="page")
    take(books, "Bericht v1.2", b"a name without an ending")
    assert [book.shown for book in books.all()] == ["Bericht v1.2", "A", "b"]


@pytest.mark.parametrize("name", ["../../etc/passwd", "..\\..\\x.pdf", "a\u202egpj.exe", "x" * 500, "", "a\nb\x00.txt"])
def test_a_name_is_only_something_to_show(books: Books, name: str) -> None:
    book = take(books, name)
    folder = books.path(book).parent
    assert folder.name == book.sha256
    assert sorted(file.name for file in folder.iterdir()) == sorted(["book.json", book.file])
    assert "\u202e" not in book.name
    assert "\n" not in book.name
    assert 0 < len(book.name) <= module.NAME_LENGTH


def test_what_arrives_in_part_is_deleted(books: Books, tmp_path: Path) -> None:
    with books.receive("a.txt") as incoming:
        incoming.write(b"half")
    assert list((tmp_path / "Bücher").iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_disk_that_fills_at_the_last_bytes_is_said_and_nothing_is_left(books: Books, tmp_path: Path) -> None:
    """Closing the file tried to write the same bytes again, and its error took the place of the sentence."""

    def receive() -> None:
        with books.receive("a.txt") as incoming:
            incoming._file.close()
            incoming._file = Path("/dev/full").open("wb")  # noqa: SIM115
            incoming.write(TEXT)
            incoming.keep()

    with pytest.raises(ResourceError, match="No space left"):
        receive()
    assert list((tmp_path / "Bücher").iterdir()) == []


def test_an_empty_file_and_a_huge_one_are_refused(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DocumentError, match="is empty"):
        take(books, "a.txt", b"")
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    with pytest.raises(DocumentError, match="larger than"):
        take(books, "a.txt", b"x" * 11)
    assert books.all() == ()


def test_a_record_that_lies_is_no_book(books: Books, tmp_path: Path) -> None:
    book = take(books, "a.txt")
    record = books.path(book).parent / "book.json"
    lies = json.loads(record.read_text(encoding="utf-8"))
    for change in ({"file": "../../secret"}, {"file": "gone.pdf"}, {"file": ""}, {"sha256": "0" * 64}):
        record.write_text(json.dumps({**lies, **change}), encoding="utf-8")
        assert Books(tmp_path / "Bücher").all() == ()
    record.write_text("{", encoding="utf-8")
    assert Books(tmp_path / "Bücher").all() == ()


def test_a_lost_catalogue_is_put_together_again(books: Books, tmp_path: Path) -> None:
    book = take(books, "Die Lampe.txt")
    (found,) = Books(tmp_path / "Bücher").all()
    assert (found.sha256, found.name, found.file) == (book.sha256, book.name, book.file)


def test_what_is_known_of_a_book_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "library.db"
    first = Books(tmp_path / "books", Database(file))
    book = take(first, "a.pdf")
    first.remember(book, title="The Light", author="A. Writer", pages=212, unit="page")
    first.read(book, tokens=28_412, pages_read=120)
    (kept,) = Books(tmp_path / "books", Database(file)).all()
    assert (kept.title, kept.author, kept.pages, kept.tokens, kept.pages_read) == (
        "The Light",
        "A. Writer",
        212,
        28_412,
        120,
    )
    assert kept.added > 0


def test_what_an_end_left_half_done_is_swept_away(books: Books, tmp_path: Path) -> None:
    folder = tmp_path / "Bücher"
    folder.mkdir(exist_ok=True)
    (folder / "incoming-1").write_bytes(b"half")
    (folder / "leaving-1").mkdir()
    (folder / "leaving-1" / "book.txt").write_bytes(TEXT)
    (folder / "something else").mkdir()
    Books(folder)
    assert [entry.name for entry in folder.iterdir()] == ["something else"]


def test_a_book_whose_file_is_gone_is_not_shown(books: Books) -> None:
    book = take(books, "a.txt")
    books.path(book).unlink()
    assert books.all() == ()
    with pytest.raises(DocumentError):
        books.get(book.sha256)


def test_size_counts_all_that_is_kept_with_it(books: Books) -> None:
    book = take(books, "a.txt")
    before = books.size(book)
    (books.path(book).parent / "cover.png").write_bytes(b"x" * 1000)
    assert books.size(book) == before + 1000 > len(TEXT)
    assert books.cover(book.sha256) is not None
    assert books.cover("../" + book.sha256) is None


@pytest.mark.parametrize("sha256", ["", "..", "0" * 64, "/etc", "A" * 64])
def test_an_unknown_book_is_a_sentence(books: Books, sha256: str) -> None:
    with pytest.raises(DocumentError, match="no longer"):
        books.get(sha256)


def test_forgetting_deletes_all_of_it(books: Books) -> None:
    book = take(books, "a.txt")
    books.forget(book.sha256)
    assert not books.path(book).parent.exists()


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way", encoding="utf-8")
    with pytest.raises(ResourceError, match="cannot write"), Books(blocked / "books").receive("a.txt"):
        pass


def test_a_file_of_this_machine_is_copied(books: Books, tmp_path: Path) -> None:
    source = tmp_path / "book.epub"
    source.write_bytes(TEXT)
    assert books.path(books.copy_in(source)).read_bytes() == TEXT
    with pytest.raises(DocumentError, match="no file"):
        books.copy_in(tmp_path / "missing.pdf")


def test_a_json_file_is_kept_beside_its_record(tmp_path: Path) -> None:
    """Its name was that of the record, which was written over it."""
    (tmp_path / "data.json").write_text('{"lamp": 1}')
    books = Books(tmp_path / "books")
    book = books.copy_in(tmp_path / "data.json")
    assert books.path(book).read_text() == '{"lamp": 1}'
    assert Books(tmp_path / "books", Database()).get(book.sha256).name == "data.json"


def test_what_a_kill_left_of_a_write_is_removed_at_the_next_start(tmp_path: Path) -> None:
    """They were never deleted. What is being written, and a book whose ending looks alike, stay."""
    books = Books(tmp_path / "books")
    book = take(books, "book.deadbeef")
    folder = books.folder(book.sha256)
    dead = [
        folder / "text.json.0a1b2c3d",
        tmp_path / "settings.json.0a1b2c3d",
        tmp_path / "library.db-confirmed.0a1b2c3d",
    ]
    alive = [folder / "text.json.4e5f6a7b", tmp_path / "notes.txt"]
    for file in (*dead, *alive):
        file.write_bytes(b"half")
    for file in (*dead, folder / book.file, tmp_path / "notes.txt"):
        os.utime(file, (0, 0))
    assert Books(tmp_path / "books").get(book.sha256).name == book.name
    assert [file.name for file in dead if file.exists()] == []
    assert all(file.exists() for file in (*alive, books.path(book)))


def test_folders_of_a_killed_process_leave_the_systems_temporary_folder(tmp_path: Path) -> None:
    old, new, foreign = (tmp_path / name for name in ("trifold-old", "trifold-new", "other-old"))
    for folder in (old, new, foreign):
        folder.mkdir()
        (folder / "weights").touch()
    for folder in (old, foreign):
        os.utime(folder, (0, 0))
    kept = tmp_path / "kept"
    kept.mkdir()
    (tmp_path / "trifold-link").symlink_to(kept, target_is_directory=True)
    os.utime(tmp_path / "trifold-link", (0, 0), follow_symlinks=False)
    module.sweep_temporary(tmp_path)
    assert [folder.exists() for folder in (old, new, foreign, kept)] == [False, True, True, True]
