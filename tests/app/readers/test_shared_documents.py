"""Every file of the collection reaches the outcome that its table promises."""

from __future__ import annotations

import csv
import html
import re
import zipfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from app.readers import epub, read_document
from app.readers.parsed import Limits
from engine.errors import DocumentError, NoTextLayer, PasswordNeeded
from tests.tally import count

_DOCS = Path(__file__).resolve().parents[4] / "shared" / "docs"
_PASSWORDS = {"encrypted-known-password.pdf": ("openpassword",), "encrypted-rc4-40.pdf": ("foo", "baz")}


def _rows() -> list[dict[str, str]]:
    table = _DOCS / "docs.tsv"
    if not table.is_file():
        return []
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


_ROWS = _rows()
needs_collection = pytest.mark.skipif(not _ROWS, reason="the collection ../shared/docs is not here")


def _measured(row: dict[str, str]) -> int:
    found = [int(part[6:]) for part in row["measured_mupdf"].split() if part.startswith("chars=")]
    return found[0] if found else 0


@needs_collection
@pytest.mark.parametrize("row", _ROWS, ids=[row["file"] for row in _ROWS])
def test_outcome(row: dict[str, str]) -> None:
    path, expected = _DOCS / row["file"], row["expected"]
    if expected.startswith("needs password"):
        _check_password(path)
    elif expected.startswith("no text layer"):
        with pytest.raises(NoTextLayer, match="image"):
            read_document(path)
    elif expected.startswith("damaged (partial text)"):
        document = read_document(path)
        assert document.characters > 0
        assert document.warnings
    elif expected.startswith("damaged"):
        with pytest.raises(DocumentError) as caught:
            read_document(path)
        assert type(caught.value) is DocumentError
        assert caught.value.remedy
    else:
        _check_text(path, row)
    count("documents of the shared collection")


def _check_password(path: Path) -> None:
    for wrong in (None, "not this one"):
        with pytest.raises(PasswordNeeded, match="password"):
            read_document(path, wrong)
    for password in _PASSWORDS.get(path.name, ()):
        assert read_document(path, password).characters > 0


def _check_text(path: Path, row: dict[str, str]) -> None:
    if " or damaged" in row["expected"]:
        with suppress(DocumentError):
            assert read_document(path).characters > 0
        return
    document = read_document(path)
    assert document.kind == path.suffix[1:]
    assert len(document.pages) == len({page.label for page in document.pages})
    assert all(1 <= item.page <= len(document.pages) for item in document.outline)
    if "should warn" in row["expected"]:
        assert any("font" in warning for warning in document.warnings)
    if any("not inside the file" in warning for warning in document.warnings):
        return  # how much of it can be read depends on the fonts of this machine
    assert document.characters == pytest.approx(_measured(row), rel=0.15, abs=10)


@needs_collection
def test_long_book_reads_like_a_book() -> None:
    document = read_document(_DOCS / "long-book-free-culture.pdf")
    assert (document.title, document.author, len(document.pages)) == ("Free Culture", "Lawrence Lessig", 352)
    page = document.pages[40]
    assert page.label == "27"
    assert "Some say it is precisely the benefit accruing to the Japanese manga market" in page.text
    assert "heavier-than-air, self-propelled vehicle" in document.pages[16].text
    assert document.pages[16].text.endswith("Am I allowed")  # the rest of the word stood on the next page
    assert "PASS PAGES" not in document.text  # printed outside of the visible page
    assert "4TH" not in document.text
    assert "27" not in page.text.split()  # the page's own number
    assert [item.title for item in document.outline[:4]] == ["COVER", "CONTENTS", "PREFACE", "INTRODUCTION"]
    paragraphs = page.text.split("\n\n")
    assert len(paragraphs) == 6
    assert not any("\n" in paragraph for paragraph in paragraphs)


@needs_collection
def test_columns_are_read_one_after_the_other() -> None:
    text = read_document(_DOCS / "latex-multicolumn.pdf").pages[1].text
    assert "primis in faucibus orci luctus et ultrices posuere cubilia Curae" in text


@needs_collection
def test_whole_epub_with_its_chapters() -> None:
    document = read_document(_DOCS / "moby-dick-gutenberg.epub")
    labels = [page.label for page in document.pages]
    first = document.pages[labels.index("CHAPTER 1. Loomings.")].text
    assert "Call me Ishmael. Some years ago" in first
    assert len(document.outline) == 145
    by_title = {item.title: item.page for item in document.outline}
    assert document.pages[by_title["CHAPTER 28. Ahab."] - 1].text.startswith("CHAPTER 28. Ahab.")


@needs_collection
@pytest.mark.parametrize("name", ["alice", "arabic-rtl", "childrens-literature", "kidnapped-standard-ebooks"])
def test_no_letter_of_an_epub_is_lost_in_silence(name: str) -> None:
    """Every letter between the tags of a book's pages is read, or it was counted with the reason why not."""
    path = _DOCS / f"{name}.epub"
    parsed = epub.parse(path, {}, Limits(), lambda done, total, page: None)
    source: Counter[str] = Counter()
    with zipfile.ZipFile(path) as files:
        for page in files.namelist():
            content = files.read(page).decode() if page.endswith(("html", "htm")) else ""
            if "<nav" not in content:  # the list of contents, which the app shows itself
                text = re.sub(r"(?s)<head\b.*?</head>|<[^>]*>", " ", content)
                source.update(sign for sign in html.unescape(text) if sign.isalnum())
    source.subtract(sign for section in parsed.sections for sign in section.text if sign.isalnum())
    missing = {sign: count for sign, count in source.items() if count > 0}
    assert sum(missing.values()) <= sum(parsed.left_out.values()), missing


@needs_collection
def test_a_scan_is_said_with_its_numbers() -> None:
    with pytest.raises(NoTextLayer, match="5 of 6 pages are images"):
        read_document(_DOCS / "scan-mixed-multipage.pdf")
