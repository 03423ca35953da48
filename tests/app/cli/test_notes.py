"""``notes``: the library's notes in the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli.main import main
from app.core.books import Book, Books
from app.core.db import Database
from app.core.notes import Note, NoteStore


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Book]:
    """Two books, the first with two notes."""
    monkeypatch.setenv("TRIFOLD_DATA", str(tmp_path / "data"))
    database = Database(tmp_path / "data" / "library.db")
    books, found = Books(tmp_path / "data" / "books", database), []
    for title in ("Lamps of Orre", "Boats of Orre"):
        (tmp_path / f"{title}.txt").write_text(title)
        book = books.copy_in(tmp_path / f"{title}.txt")
        found.append(books.remember(book, title=title, author="M. Holt", pages=1, unit="page"))
    for page, passage in ((3, "the café"), (1, "the lamp")):
        NoteStore(database).add(Note("", found[0].sha256, page, str(page), passage=passage))
    database.close()
    return found


def test_notes_of_all_books_or_of_one(library: list[Book], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["notes"]) == 0
    every = capsys.readouterr().out
    assert every.index("> the lamp") < every.index("> the café")
    assert main(["notes", "lamps", "--find", "CAFE", "--form", "ris"]) == 0
    found = capsys.readouterr().out
    assert "TI  - Lamps of Orre" in found
    assert "N1  - p. 3: “the café” [yellow]" in found
    assert "lamp”" not in found
    assert "\ufffd" not in found, "line ends of another system"
    assert main(["notes", str(tmp_path / "Boats of Orre.txt"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert ([one["title"] for one in told["documents"]], told["notes"]) == (["Boats of Orre"], [])


@pytest.mark.parametrize(("name", "said"), [("orre", "Several books"), ("nowhere", "no book “nowhere”")])
def test_a_name_that_is_not_one_books_is_refused(
    library: list[Book], name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["notes", name]) == 2
    assert said in capsys.readouterr().err


def test_without_a_library_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIFOLD_DATA", str(tmp_path / "none"))
    assert main(["notes"]) == 2
    assert "no notes yet" in capsys.readouterr().err
    assert not (tmp_path / "none" / "library.db").exists()
