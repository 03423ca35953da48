"""EPUB and DOCX files that are bent, bombs or merely odd, by name: what has to be said or found."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.app.readers.conftest import CONTAINER, WORD

Make = Callable[[Any], Path]

_DC = "xmlns:dc='http://purl.org/dc/elements/1.1/'"
_LOCAL, _CENTRAL = b"PK\x03\x04", b"PK\x01\x02"
_LAUGHS = (
    '<!DOCTYPE l [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {chr(98 + at)} "{f"&{chr(97 + at)};" * 10}">' for at in range(9))
    + "]><l>&j;</l>"
)


def _package(items: str, spine: str, meta: str = "") -> str:
    return f"<package {_DC}><metadata>{meta}</metadata><manifest>{items}</manifest><spine>{spine}</spine></package>"


_ONE = _package("<item id='a' href='a.xhtml' media-type='application/xhtml+xml'/>", "<itemref idref='a'/>")


def _epub(package: str | bytes, *more: tuple[str, str | bytes]) -> Make:
    head = [("mimetype", "application/epub+zip"), ("META-INF/container.xml", CONTAINER), ("OPS/book.opf", package)]
    return lambda files: files.zipped("book.epub", [*head, *more])


def _marked(central: int, local: int, value: int) -> Make:
    """A good book with one byte of every entry's two headers changed."""

    def make(files: Any) -> Path:
        path: Path = files.epub("book.epub", [("a.xhtml", "<p>words")])
        data = bytearray(path.read_bytes())
        for mark, offset in ((_LOCAL, local), (_CENTRAL, central)):
            at = -1
            while (at := data.find(mark, at + 1)) >= 0:
                data[at + offset] = value
        path.write_bytes(bytes(data))
        return path

    return make


def _packed_by(method: int) -> Make:
    def make(files: Any) -> Path:
        path: Path = files.folder / "book.epub"
        with zipfile.ZipFile(path, "w", method) as file:
            for name, text in (
                ("META-INF/container.xml", CONTAINER),
                ("OPS/book.opf", _ONE),
                ("OPS/a.xhtml", "<p>" + "words " * 99),
            ):
                file.writestr(name, text)
        return path

    return make


def _bad_sum(files: Any) -> Path:
    path: Path = files.epub("book.epub", [("a.xhtml", "<p>words"), ("b.xhtml", "<p>" + "bad one " * 40)])
    data = bytearray(path.read_bytes())
    data[data.find(b"OPS/b.xhtml") + len("OPS/b.xhtml") + 4] ^= 0xFF
    path.write_bytes(bytes(data))
    return path


def _overlapping(files: Any) -> Path:
    """Every entry of the table points to the same packed bytes: small in the file, large in sum."""
    path: Path = files.epub("book.epub", [("a.xhtml", "<p>" + "words " * 50_000)])
    with zipfile.ZipFile(path, "a") as file:
        info = file.getinfo("OPS/a.xhtml")
        for at in range(9_000):
            copy = zipfile.ZipInfo(f"OPS/{at}.xhtml")
            copy.compress_type, copy.CRC = info.compress_type, info.CRC
            copy.compress_size, copy.file_size, copy.header_offset = (
                info.compress_size,
                info.file_size,
                info.header_offset,
            )
            file.filelist.append(copy)
            file.NameToInfo[copy.filename] = copy
        file._didModify = True  # type: ignore[attr-defined]
    return path


def _link_outside(files: Any) -> Path:
    path: Path = files.epub("book.epub", [("a.xhtml", "<p>words")])
    with zipfile.ZipFile(path, "a") as file:
        link = zipfile.ZipInfo("OPS/link.xhtml")
        link.external_attr = 0o120777 << 16
        file.writestr(link, "/etc/passwd")
    return path


def _docx(*parts: tuple[str, str | bytes]) -> Make:
    return lambda files: files.zipped("book.docx", list(parts))


def _body(inner: str) -> str:
    return f'<w:document xmlns:w="{WORD}"><w:body>{inner}</w:body></w:document>'


_P = "<w:p><w:r><w:t>words</w:t></w:r></w:p>"
_MANY = 20_000
_TYPES = (
    '<Types><Override PartName="/word/document2.xml"'
    ' ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>'
)

READ: dict[str, Make] = {
    "chapters missing by the thousand": _epub(
        _package(
            "<item id='a' href='a.xhtml'/>" + "".join(f"<item id='c{at}' href='m{at}.xhtml'/>" for at in range(_MANY)),
            "<itemref idref='a'/>" + "".join(f"<itemref idref='c{at}'/>" for at in range(_MANY)),
        ),
        ("OPS/a.xhtml", "<p>words"),
    ),
    "names in other case": lambda files: files.epub(
        "book.epub", [("Chapter.xhtml", "")], more=[("OPS/chapter.xhtml", "<p>words")]
    ),
    "names with backslashes": _epub(_ONE.replace("a.xhtml", "Text\\a.xhtml"), ("OPS/Text/a.xhtml", "<p>words")),
    "package in Latin-1": _epub(
        b"<?xml version='1.0' encoding='iso-8859-1'?>" + _ONE.replace("<metadata>", "<metadata>\xfc").encode("latin-1"),
        ("OPS/a.xhtml", "<p>words"),
    ),
    "no container file": lambda files: files.zipped("book.epub", [("x/b.opf", _ONE), ("x/a.xhtml", "<p>words")]),
    "a document type from the web": _epub(
        "<!DOCTYPE package SYSTEM 'http://evil.example/x.dtd'>" + _ONE, ("OPS/a.xhtml", "<p>words")
    ),
    "a chapter of broken bytes": lambda files: files.epub(
        "book.epub", [("a.xhtml", "<p>words"), ("b.xhtml", b"\xff\xfe\x00\xd8" * 50)]
    ),
    "a chapter with a wrong checksum": _bad_sum,
    "a tag of 100,000 attributes": lambda files: files.epub(
        "book.epub", [("a.xhtml", "<p " + " ".join(f"a{at}='x'" for at in range(100_000)) + ">words")]
    ),
    "packed by LZMA": _packed_by(zipfile.ZIP_LZMA),
    "a link out of the container": _link_outside,
    "contents 20,000 deep": lambda files: files.epub(
        "book.epub",
        [("a.xhtml", "<p>words")],
        toc="".join(f"<navPoint id='{at}'>" for at in range(_MANY)) + "</navPoint>" * _MANY,
    ),
    "Word text under another name": _docx(
        ("[Content_Types].xml", _TYPES), ("word/document2.xml", _body(_P)), ("_rels/.rels", "<a/>")
    ),
    "tables 2,000 deep": _docx(
        (
            "word/document.xml",
            _body("<w:tbl><w:tr><w:tc>" * 2000 + _P + "</w:tc></w:tr></w:tbl>" * 2000),
        )
    ),
    "broken properties": _docx(("word/document.xml", _body(_P)), ("docProps/core.xml", "<broken")),
    "broken styles": _docx(("word/document.xml", _body(_P)), ("word/styles.xml", b"\0\0")),
    "broken notes": _docx(("word/document.xml", _body(_P)), ("word/footnotes.xml", "<broken")),
}

REFUSED: dict[str, tuple[Make, str]] = {
    "locked by a password": (_marked(8, 6, 1), "locked by a password"),
    "packed by an unknown method": (_marked(10, 8, 99), "damaged"),
    "entries that overlap": (_overlapping, "unpacks to"),
    "package 300,000 deep": (_epub("<package>" + "<a>" * 300_000 + "</a>" * 300_000 + "</package>"), "zip bomb"),
    "laughs in EBCDIC": (
        _epub(_ONE, ("META-INF/encryption.xml", b"<?xml version='1.0' encoding='cp037'?>" + _LAUGHS.encode("cp037"))),
        "XML entities|is missing from the file",
    ),
    "laughs in UTF-16": (
        _epub(_ONE, ("META-INF/encryption.xml", _LAUGHS.encode("utf-16"))),
        "XML entities",
    ),
    "laughs in UTF-7": (
        _epub(_ONE, ("META-INF/encryption.xml", b"<?xml version='1.0' encoding='utf-7'?>" + _LAUGHS.encode("utf-7"))),
        "XML entities|is missing from the file",
    ),
    "file of this machine by an entity": (
        _epub("<!DOCTYPE p [<!ENTITY f SYSTEM 'file:///etc/passwd'>]>" + _ONE.replace("<metadata>", "<metadata>&f;")),
        "XML entities",
    ),
    "chapters outside of the container": (
        _epub(_ONE.replace("a.xhtml", "../../../etc/passwd")),
        "is missing from the file",
    ),
    "only pictures": (_epub(_ONE, ("OPS/a.xhtml", "<img src='a.png'/>")), "no text"),
    "no chapters": (_epub(_package("", "")), "no list of chapters, and no chapters"),
    "Word text of nothing": (_docx(("word/document.xml", b"\0\0\0")), "not valid XML"),
    "Word text without words": (_docx(("word/document.xml", _body("<w:p/>"))), "no text"),
    "a workbook": (_docx(("xl/workbook.xml", "<a/>")), "has no text"),
    "a binary workbook": (_docx(("xl/workbook.bin", "a")), "xlsb"),
    "a presentation": (_docx(("ppt/presentation.xml", "<a/>")), "has no text"),
    "a program for Java": (_docx(("META-INF/MANIFEST.MF", "a"), ("A.class", b"\xca\xfe\xba\xbe")), "zip archive"),
}
