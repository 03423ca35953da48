"""Opened books: kept under the hash of their content, found again, never trusted."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from app import books as module
from app.books import Books
from engine.errors import DocumentError, ResourceError

TEXT = b"Es war einmal eine Lampe."


@pytest.fixture
def books(tmp_path: Path) -> Books:
    clock = iter(range(1, 1000))
    return Books(tmp_path / "Bücher", clock=lambda: float(next(clock)))


def take(books: Books, name: str, content: bytes = TEXT) -> module.Book:
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
    books.remember(first, "Title", 3, "page")
    second = take(books, "b.txt")
    assert len(books.all()) == 1
    assert (second.name, second.title, second.opened) == ("a.txt", "Title", 3.0)
    assert not list(books.path(first).parent.parent.glob("incoming-*"))


def test_the_last_opened_comes_first(books: Books) -> None:
    first, second = take(books, "a.txt"), take(books, "b.txt", b"other")
    assert [book.name for book in books.all()] == ["b.txt", "a.txt"]
    books.remember(first, "A", 1, "page")
    assert [book.shown for book in books.all()] == ["A", second.name]


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


def test_an_empty_file_and_a_huge_one_are_refused(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DocumentError, match="is empty"):
        take(books, "a.txt", b"")
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    with pytest.raises(DocumentError, match="larger than"):
        take(books, "a.txt", b"x" * 11)
    assert books.all() == ()


def test_a_record_that_lies_is_no_book(books: Books) -> None:
    book = take(books, "a.txt")
    record = books.path(book).parent / "book.json"
    lies = json.loads(record.read_text(encoding="utf-8"))
    for change in ({"file": "../../secret"}, {"file": "gone.pdf"}, {"sha256": "0" * 64}, {"extra": 1}):
        record.write_text(json.dumps({**lies, **change}), encoding="utf-8")
        with pytest.raises(DocumentError):
            books.get(book.sha256)
    record.write_text("{", encoding="utf-8")
    assert books.all() == ()


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
