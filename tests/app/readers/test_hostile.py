"""Files made to harm: each is a plain sentence within the limits, and nothing is left behind."""

from __future__ import annotations

import os
import random
import socket
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.readers import Limits, archive, detect, markup, read_document
from app.readers.parsed import Refused
from app.readers.sections import Block
from engine.errors import DocumentError, InputError
from tests.parsers import reading_children
from tests.tally import count

_QUICK = Limits(seconds_per_page=6.0, seconds=40.0)
_LAUGHS = (
    '<!DOCTYPE l [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {chr(98 + at)} "{f"&{chr(97 + at)};" * 10}">' for at in range(12))
    + "]><l>&m;</l>"
)


def _refused(path: Path, match: str, limits: Limits = _QUICK) -> None:
    before = time.monotonic()
    with pytest.raises(DocumentError, match=match) as caught:
        read_document(path, limits=limits)
    assert time.monotonic() - before < limits.seconds + 5
    assert path.name in caught.value.cause
    assert caught.value.remedy.endswith(".")
    assert not reading_children()
    count("hostile documents")


def test_empty_file(files: Any) -> None:
    _refused(files.raw("empty.pdf", b""), "is empty")


def test_random_bytes(files: Any) -> None:
    _refused(files.raw("book.txt", random.Random(5).randbytes(40_000)), "binary data")


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b"MZ\x90\x00\x03\x00\x00\x00", "Windows program"),
        (b"\x7fELF\x02\x01\x01\x00", "Linux program"),
        (b"\x89PNG\r\n\x1a\n", "image"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "image"),
        (b"Rar!\x1a\x07\x00", "RAR"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "old Office"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le"), "password"),
    ],
)
def test_wrong_kind_under_a_book_name(files: Any, head: bytes, what: str) -> None:
    _refused(files.raw("book.pdf", head + b"\0" * 300), what)


def test_flate_bomb_is_held_by_the_memory_limit(files: Any, make_stream: Any) -> None:
    bomb = files.pdf("bomb.pdf", [], streams=[make_stream(b" " * (256 << 20), rounds=2)])
    assert bomb.stat().st_size < 10_000
    _refused(bomb, "no page that can be read", Limits(memory_bytes=320 << 20, seconds_per_page=10, seconds=30))


def test_page_that_never_ends(files: Any, make_stream: Any) -> None:
    content = b"BT /F1 12 Tf 72 700 Td " + b"(aaaa) Tj " * 2_000_000 + b"ET"
    _refused(
        files.pdf("slow.pdf", [], streams=[make_stream(content)]),
        r"longer than 1.5 seconds (on one page|in one place)",  # the child may not have begun on a busy machine
        Limits(seconds_per_page=1.5),
    )


def test_slow_page_costs_only_itself(files: Any, make_stream: Any) -> None:
    slow = b"BT /F1 12 Tf 72 700 Td " + b"(aaaa) Tj " * 4_000_000 + b"ET"
    good = b"BT /F1 12 Tf 72 700 Td (A page that can be read without any trouble.) Tj ET"
    path = files.pdf("mixed.pdf", [], streams=[make_stream(good), make_stream(slow), make_stream(good)])
    document = read_document(path, limits=Limits(seconds_per_page=2.0))
    assert [bool(page.text) for page in document.pages] == [True, False, True]
    assert document.warnings == ("Page 2 could not be read: took longer than 2 seconds on one page.",)


def test_whole_time_is_bounded(files: Any) -> None:
    path = files.pdf("long.pdf", [[(72, 700, f"Page {at} has some words on it.")] for at in range(3000)])
    with pytest.raises(DocumentError, match=r"longer than 0\.3 seconds to read"):
        read_document(path, limits=Limits(seconds=0.3))


def test_too_many_pages(files: Any) -> None:
    path = files.pdf("many.pdf", [[(72, 700, "words")]] * 30)
    _refused(path, "claims 30 pages; the limit is 20", Limits(pages=20))


@pytest.mark.parametrize("name", ["big.txt", "big.html", "big.md"])
def test_too_many_characters(files: Any, name: str) -> None:
    head = "<html><body>" if name.endswith("html") else ""
    _refused(files.text(name, head + "word " * 2_000), "the limit is 1,000|more than", Limits(characters=1_000))


def test_file_too_large(files: Any) -> None:
    _refused(files.text("large.txt", "x" * 2_000), "the limit is", Limits(file_bytes=1_000))


def test_zip_bomb(files: Any) -> None:
    _refused(files.epub("bomb.epub", [("a.xhtml", "<p>" + "0" * 30_000_000)]), "zip bomb")


def test_zip_total(files: Any) -> None:
    parts = [(f"OPS/{at}.bin", random.Random(at).randbytes(300_000)) for at in range(4)]
    path = files.epub("large.epub", [("a.xhtml", "<p>hello")], more=parts)
    _refused(path, "unpacks to", Limits(zip_bytes=1_000_000))


def test_zip_entries(files: Any) -> None:
    path = files.epub("many.epub", [("a.xhtml", "<p>hello")], more=[(f"x/{at}", "") for at in range(60)])
    _refused(path, "holds 65 files", Limits(zip_entries=50))


@pytest.mark.parametrize("name", ["../../evil.txt", "/etc/evil", "a/../../b", "..\\evil", "C:/evil"])
def test_zip_traversal(files: Any, tmp_path: Path, name: str) -> None:
    before = set(tmp_path.parent.iterdir())
    _refused(files.epub("out.epub", [("a.xhtml", "<p>hello")], more=[(name, "gotcha")]), "leads outside")
    assert set(tmp_path.parent.iterdir()) == before


def test_nested_zip(files: Any) -> None:
    inner = files.zipped("inner.zip", [("a.txt", "text")])
    _refused(files.zipped("book.epub", [("inner.zip", inner.read_bytes())]), "zip archive")


def test_zip_that_lies_about_sizes(files: Any) -> None:
    path = files.epub("liar.epub", [("a.xhtml", "<p>" + "word " * 4_000)])
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        size = file.getinfo("OPS/a.xhtml").file_size
    start = data.rfind(size.to_bytes(4, "little"))
    data[start : start + 4] = (64).to_bytes(4, "little")
    path.write_bytes(bytes(data))
    with pytest.raises(DocumentError):
        read_document(path)


@pytest.mark.parametrize(
    ("name", "entry"),
    [("laugh.epub", "META-INF/container.xml"), ("laugh.docx", "word/document.xml")],
)
def test_billion_laughs(files: Any, name: str, entry: str) -> None:
    _refused(files.zipped(name, [(entry, _LAUGHS)]), "XML entities")


@pytest.mark.parametrize("scheme", ["file", "http"])
@pytest.mark.parametrize(
    "prologue",
    [
        '<!DOCTYPE p [<!ENTITY e SYSTEM "{place}">]>',
        '<!DOCTYPE p [<!ENTITY % e SYSTEM "{place}"> %e;]>',
        '<!DOCTYPE p SYSTEM "{place}">',
        '<!DOCTYPE p PUBLIC "-//W3C//DTD XHTML 1.0 Strict//EN" "{place}">',
        '<!DOCTYPE p [<!ENTITY e "told">]>',
        '<?xml-stylesheet href="{place}"?>',
    ],
)
def test_markup_is_all_that_is_read(prologue: str, scheme: str, tmp_path: Path) -> None:
    """What defusedxml forbids does nothing in the two parsers as they are used here: lxml's for HTML, and expat."""
    secret = tmp_path / "secret.txt"
    secret.write_text("<!ENTITY e 'told'> told", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        place = secret.as_uri() if scheme == "file" else f"http://127.0.0.1:{server.getsockname()[1]}/secret"
        include = f'<x:include xmlns:x="http://www.w3.org/2001/XInclude" parse="text" href="{place}"/>'
        text = f"{prologue.format(place=place)}<p>before &e; {include} after</p>"
        read = [block.text for block in markup.read(text).blocks if isinstance(block, Block)]
        assert read[-1] == "before &e; after"
        with suppress(Refused):  # an entity is refused, and whatever else is left as it is
            read.append("".join(archive.read_xml(text.encode(), "it").itertext()))
        assert "told" not in " ".join(read)
        with pytest.raises(BlockingIOError):
            server.accept()
    count("hostile documents")


@pytest.mark.parametrize("name", ["deep.html", "deep.epub", "deep.docx"])
def test_nesting_without_end(files: Any, name: str) -> None:
    depth = 200_000
    limits = Limits(zip_ratio=1e9)
    if name == "deep.docx":
        path = files.zipped(name, [("word/document.xml", "<w>" * depth + "</w>" * depth)])
    elif name == "deep.epub":
        path = files.epub(name, [("a.xhtml", "<div>" * depth + "deep down")])
    else:
        path = files.text(name, "<html><body>" + "<div>" * depth + "deep down")
    outcome = _outcome(path, limits)
    assert outcome == "deep down" or (name == "deep.docx" and "no text" in outcome)


def _outcome(path: Path, limits: Limits) -> str:
    """The text of a file, or what was said about it; anything else is a failure."""
    try:
        return read_document(path, limits=limits).text
    except DocumentError as error:
        return error.cause + error.remedy


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("kind", ["pdf", "epub", "docx"])
def test_truncated(files: Any, kind: str, share: float) -> None:
    whole = {
        "pdf": lambda: files.pdf("a.pdf", [[(72, 700, "Some words on a page.")]] * 5),
        "epub": lambda: files.epub("a.epub", [("a.xhtml", "<p>" + "many words " * 99)]),
        "docx": lambda: files.docx("a.docx", [("", "many words")]),
    }[kind]()
    data = whole.read_bytes()
    whole.write_bytes(data[: int(len(data) * share)])
    outcome = _outcome(whole, _QUICK)
    assert any(word in outcome for word in ("words", "damaged", "binary data", "no page"))


def test_page_tree_that_loops(files: Any) -> None:
    path = files.pdf("loop.pdf", [[(72, 700, "text")]])
    path.write_bytes(path.read_bytes().replace(b"/Kids [4 0 R]", b"/Kids [2 0 R]"))
    with pytest.raises(DocumentError):
        read_document(path, limits=_QUICK)


@pytest.mark.parametrize("line", ["x" * 5_000_000, "word " * 1_000_000])
def test_one_line_of_five_megabytes(files: Any, line: str) -> None:
    document = read_document(files.text("line.txt", line))
    assert document.characters == pytest.approx(5_000_000, rel=0.01)
    assert max(len(page.text) for page in document.pages) <= 8_000
    assert document.pages[0].label == "section 1"


def test_missing_folder_and_odd_paths(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file"):
        read_document(tmp_path / "absent.pdf")
    with pytest.raises(InputError, match="folder"):
        read_document(tmp_path)
    with pytest.raises(InputError, match="cannot be opened"):
        read_document(tmp_path / "a\0b.pdf")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_named_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(InputError, match="not an ordinary file"):
        read_document(tmp_path / "pipe.txt")


def _silent(done: int, total: int, page: int | None) -> None:
    """Nobody listens."""


_FORBIDDEN = {chr(code) for code in (*range(0x00, 0x0A), *range(0x0B, 0x20), *range(0x202A, 0x202F), 0xAD)}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    head=st.sampled_from(
        [b"", b"<html>", b"# ", b"PK\x03\x04", b"\xff\xfe", b"\xef\xbb\xbf", b"CHAPTER I\n\n", b"<?xml"]
    ),
    body=st.one_of(st.binary(max_size=400), st.text(max_size=400).map(lambda text: text.encode("utf-8", "replace"))),
)
def test_any_bytes_give_a_book_or_a_refusal(tmp_path: Path, head: bytes, body: bytes) -> None:
    path = tmp_path / "fuzz.bin"
    path.write_bytes(head + body)
    count("fuzzed documents")
    try:
        parsed = detect.parse(path, {}, Limits(), _silent)
    except Refused as refused:
        said = [refused.cause[-1:], refused.remedy[-1:]]
        parsed = None
    if parsed is None:
        assert said == [".", "."]
        return
    texts = [section.text for section in parsed.sections]
    assert any(texts)
    assert not _FORBIDDEN & set("".join(texts))
    assert all(1 <= entry.page <= len(texts) for entry in parsed.outline)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spots=st.lists(st.tuples(st.integers(0, 1_300), st.binary(min_size=1, max_size=6)), min_size=1, max_size=12))
def test_any_damage_to_a_pdf_is_survived(files: Any, spots: list[tuple[int, bytes]]) -> None:
    field = "<< /Type /Annot /Subtype /Widget /FT /Tx /T (a) /V (b) /F 4 /DA (/F1 12 Tf 0 g) /Rect [72 600 300 620] >>"
    pages = [[(72, 700, "The first page.")], [(72, 700, "The second page.")]]
    path = files.pdf("fuzz.pdf", pages, extra_page=f"/Annots [{field}]", catalog="/AcroForm << /Fields [] >>")
    data = bytearray(path.read_bytes())
    for place, change in spots:
        data[place % len(data) : place % len(data) + len(change)] = change
    path.write_bytes(bytes(data))
    assert _outcome(path, _QUICK)
    count("fuzzed documents")
    assert not reading_children()


@pytest.mark.parametrize("unit", ["<\n", "<", "< "])
def test_nothing_but_brackets_is_read_in_time(files: Any, unit: str) -> None:
    """Line by line it took minutes."""
    began = time.monotonic()
    document = read_document(files.text("brackets.html", unit * 1_500_000))
    assert time.monotonic() - began < 12, "seconds, on a busy machine"
    assert document.text.count("<") == 1_500_000
