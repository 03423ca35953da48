"""Zip archives of documents, and books of pictures."""

from __future__ import annotations

import io
from typing import Any

import pytest
from PIL import Image

from app.readers import detect, read_document
from app.readers.parsed import Limits, Parsed
from engine.errors import DocumentError
from tests.app.readers import samples


def _silent(done: int, total: int, page: int | None) -> None:
    """Nobody listens."""


def _bytes(path: Any) -> bytes:
    data: bytes = path.read_bytes()
    return data


def test_documents_of_an_archive_are_read_under_their_names(files: Any) -> None:
    pdf = _bytes(files.pdf("l.pdf", [[(72, 700, "The rent is 480 euros.")], [(72, 700, "Signed by both.")]]))
    path = files.zipped(
        "all.zip",
        [
            ("deeds/Lease.pdf", pdf), ("__MACOSX/deeds/._Lease.pdf", b"x"), ("deeds/", b""),
            ("costs.xlsx", _bytes(samples.MADE["costs.xlsx"](files))), ("film.mp4", b"\0" * 40),
            ("notes/a.txt", "The keeper's notes."), ("b/a.txt", "Other notes."), ("bad.docx", b"no zip at all\0\1\2"),
            ("inner.zip", _bytes(files.zipped("i.zip", [("a.txt", "words")]))),
        ],
    )  # fmt: skip
    document = read_document(path)
    assert [(page.label, page.text) for page in document.pages] == [
        ("Lease.pdf, page 1", "The rent is 480 euros."), ("Lease.pdf, page 2", "Signed by both."),
        ("costs.xlsx", samples.WORDS), ("a.txt", "The keeper's notes."), ("a.txt (2)", "Other notes."),
    ]  # fmt: skip
    assert [(item.title, item.page, item.level) for item in document.outline] == [
        ("Lease.pdf", 1, 0), ("costs.xlsx", 3, 0), ("Costs", 3, 1), ("a.txt", 4, 0), ("a.txt", 5, 0),
    ]  # fmt: skip
    said = " ".join(document.warnings)
    assert "“bad.docx” is not read: is not a document: it holds binary data of no known kind." in said
    assert "Files of other kinds are not read: 2 (film.mp4, inner.zip)." in said
    assert (document.title, document.kind, document.unit) == ("all", "zip", "section")


def test_an_archive_of_nothing_readable_is_refused(files: Any) -> None:
    with pytest.raises(DocumentError, match="holds no document that can be read"):
        read_document(files.zipped("a.zip", [("a.pdf", b"%PDF-1.4 nothing"), ("b.docx", b"\0\1\2")]))
    with pytest.raises(DocumentError, match="is a zip archive, not a document"):
        read_document(files.zipped("a.zip", [("a.bin", b"\0\1\2"), ("setup.py", "x = 1")]))


def _picture(colour: str) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (200, 300), colour).save(out, "PNG")
    return out.getvalue()


def test_a_book_of_pictures_has_a_page_for_each_in_order(files: Any) -> None:
    entries: list[tuple[str, str | bytes]] = [(f"p{at}.png", _picture("white")) for at in (10, 9, 1)]
    path = files.zipped("a.cbz", [*entries, ("p11.png", b"damaged"), ("ComicInfo.xml", "<ComicInfo/>")])
    parsed: Parsed = detect.parse(path, {"unread": True}, Limits(), _silent)
    assert (parsed.kind, parsed.unit, len(parsed.sections)) == ("pdf", "page", 4)
    assert parsed.sections[0].picture == "unread"
