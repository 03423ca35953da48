"""Kept texts and covers: the same document again, parsed once, and never one that others made."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from app.core import books
from app.core.books import TextCache
from app.core.settings import SAMPLE_BOOKS
from app.readers import read_document
from app.sealed import seal, unseal
from engine.document import Document, OutlineItem
from engine.errors import DocumentError
from tests.app.scripted import book

BOOK = replace(book(3, 5), outline=(OutlineItem("The Light é", 2, 0),), warnings=("Page 3 is a picture.",))


class Reader:
    """Counts how often a file is taken apart."""

    def __init__(self, document: Document = BOOK) -> None:
        self.document = document
        self.times = 0

    def __call__(self, path: Path, password: str | None = None) -> Document:
        self.times += 1
        return self.document


def test_a_book_is_parsed_once(tmp_path: Path) -> None:
    reader = Reader()
    read = TextCache(reader)
    assert read(tmp_path / "book.txt") == read(tmp_path / "book.txt") == BOOK
    assert reader.times == 1


def test_the_text_without_comments_is_kept_apart(tmp_path: Path) -> None:
    read_how: list[bool] = []

    def reader(path: Path, password: str | None = None, *, comments: bool = True) -> Document:
        read_how.append(comments)
        return BOOK if comments else book(2, 5)

    read = TextCache(reader)
    for wanted in (True, False, True, False):
        assert read(tmp_path / "book.txt", comments=wanted) == (BOOK if wanted else book(2, 5))
    assert read_how == [True, False], "each once"


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"readers": "other", "document": {}}'])
def test_what_is_damaged_or_made_by_others_is_made_anew(tmp_path: Path, damage: str) -> None:
    reader = Reader()
    read = TextCache(reader)
    read(tmp_path / "book.txt")
    kept = tmp_path / books.TEXT
    whole = unseal(kept.read_bytes())
    assert whole["readers"] == books.readers_hash()
    kept.write_bytes(seal(json.loads(damage)) if "readers" in damage else damage.encode())
    assert read(tmp_path / "book.txt") == BOOK
    assert reader.times == 2


READERS = '''"""Reads."""
WIDTH = 3  # columns
"""How wide."""

class Reader:
    """Reads one file."""

    def read(self) -> str:
        """Read it."""
        return "text"  # always
'''


def forget_hashes() -> None:
    for one in (books.files_hash, books.readers_hash):
        one.cache_clear()


def test_the_readers_are_not_parsed_to_find_that_no_file_of_theirs_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader()
    TextCache(reader)(tmp_path / "book.txt")
    monkeypatch.setattr(books, "readers_hash", lambda: pytest.fail("the readers were parsed"))
    assert TextCache(reader)(tmp_path / "book.txt") == BOOK
    assert reader.times == 1


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("# columns", "# columns, at most", False),
        ('"""How wide."""', '"""Number of columns."""', False),
        ('"""Reads one file."""', '"""Takes a file apart."""', False),
        ('"""Read it."""', '"""Read the file."""\n', False),
        ('        """Read it."""\n', "", False),
        ("WIDTH = 3", "WIDTH = 4", True),
        ('return "text"', 'return "Text"', True),
        ("\nclass", "\nclass Other: ...\n\nclass", True),
    ],
)
def test_a_text_is_made_anew_for_other_readers_not_for_other_words_about_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, counts: bool
) -> None:
    monkeypatch.setattr(books, "_READERS", tmp_path / "readers")
    (tmp_path / "readers").mkdir()
    source, reader = tmp_path / "readers" / "text.py", Reader()
    for text in (READERS, READERS.replace(old, new)):
        source.write_text(text, encoding="utf-8")
        forget_hashes()
        assert TextCache(reader)(tmp_path / "book.txt") == BOOK
    forget_hashes()
    assert READERS.replace(old, new) != READERS
    assert reader.times == (2 if counts else 1)


def test_the_text_of_a_locked_book_is_not_kept(tmp_path: Path) -> None:
    reader = Reader()
    read = TextCache(reader)
    read(tmp_path / "book.pdf", password="lamp")
    assert list(tmp_path.iterdir()) == []
    assert books.draw_cover(tmp_path / "book.pdf", replace(BOOK, kind="pdf"), "lamp") is None


def test_half_a_surrogate_and_a_full_disk_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = replace(BOOK, title="\ud800")
    assert TextCache(Reader(odd))(tmp_path / "book.txt") == odd

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(books, "write_whole", full)
    reader = Reader()
    (tmp_path / books.TEXT).unlink()
    assert TextCache(reader)(tmp_path / "book.txt") == BOOK


def test_the_cover_is_the_first_page(tmp_path: Path) -> None:
    path = tmp_path / "book.pdf"
    path.write_bytes((SAMPLE_BOOKS / "the-lamplighters-of-orre.pdf").read_bytes())
    thread = books.draw_cover(path, replace(BOOK, kind="pdf"), None)
    assert isinstance(thread, threading.Thread)
    thread.join(60)
    assert (tmp_path / books.COVER).read_bytes().startswith(b"\x89PNG")
    assert books.draw_cover(path, replace(BOOK, kind="pdf"), None) is None
    assert books.draw_cover(path, BOOK, None) is None


def test_a_broken_file_has_no_cover(tmp_path: Path) -> None:
    path = tmp_path / "book.pdf"
    path.write_bytes(b"%PDF-1.4 nothing")
    thread = books.draw_cover(path, replace(BOOK, kind="pdf"), None)
    assert thread is not None
    thread.join(60)
    assert [file.name for file in tmp_path.iterdir()] == ["book.pdf"]


@pytest.mark.parametrize("damage", ["a name", "zeroes", "a cut"])
def test_a_text_that_was_changed_is_read_from_the_file_again(tmp_path: Path, damage: str) -> None:
    """An altered name in the cached text was "verified" in answers."""
    kept = tmp_path / "text.json"
    books.save_text(kept, Document.from_pages("Log", ["Maren kept the light."]))
    assert books.load_text(kept) is not None
    content = kept.read_bytes()
    at = content.index(b"Maren")
    kept.write_bytes(
        {
            "a name": content.replace(b"Maren", b"Karen"),
            "zeroes": content[:at] + bytes(5) + content[at + 5 :],
            "a cut": content[:-2],
        }[damage]
    )
    assert books.load_text(kept) is None


def test_a_file_that_the_disk_has_changed_is_said_and_mended_by_adding_it_again(tmp_path: Path) -> None:
    library = books.Books(tmp_path / "books")

    def add() -> Path:
        with library.receive("lamp.txt") as incoming:
            incoming.write(b"The lamp was lit.")
            return library.path(incoming.keep())

    path, reader = add(), Reader()
    read = TextCache(reader)
    assert read(path) == BOOK
    path.write_bytes(b"The lamp was lid.")
    said = replace(BOOK, warnings=(books.CHANGED, *BOOK.warnings))
    assert read(path) == said, "from the kept text"
    (path.parent / books.TEXT).unlink()
    assert read(path) == said, "from the changed file"
    assert not (path.parent / books.TEXT).exists(), "a text of the changed file was kept"
    assert add() == path
    assert path.read_bytes() == b"The lamp was lit."
    assert read(path) == BOOK


def test_a_changed_file_that_can_no_longer_be_read_is_said_to_have_changed(tmp_path: Path) -> None:
    """A zeroed file was "not a document", with the advice to choose one of another kind."""
    library = books.Books(tmp_path / "books")
    with library.receive("lamp.txt") as incoming:
        incoming.write(b"The lamp was lit.")
        path = library.path(incoming.keep())
    path.write_bytes(bytes(17))
    with pytest.raises(DocumentError) as raised:
        TextCache(read_document)(path)
    assert raised.value.cause == "“book.txt” cannot be read: the disk has changed it since it was added."
    assert raised.value.remedy == "Add its file again."
    beside = tmp_path / "book.txt"
    beside.write_bytes(bytes(17))
    with pytest.raises(DocumentError, match="is not a document"):
        TextCache(read_document)(beside)
