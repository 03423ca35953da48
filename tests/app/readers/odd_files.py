"""Files that are odd without being hostile, by name: how careless or unusual programs write them, what is in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.app.readers.conftest import CONTAINER, WORD

Make = Callable[[Any], Path]

_XHTML = "media-type='application/xhtml+xml'"
_DC = "xmlns:dc='http://purl.org/dc/elements/1.1/'"
_LOCKED = "<encryption><EncryptedData><CipherData><CipherReference URI='{}'/></CipherData></EncryptedData></encryption>"
_NOISE = bytes(range(256)) * 12


def _opf(items: str = "", spine: str = "<itemref idref='a'/>", meta: str = "", head: str = "") -> str:
    items = items or f"<item id='a' href='a.xhtml' {_XHTML}/>"
    return (
        f"{head}<package {_DC}><metadata>{meta}</metadata><manifest>{items}</manifest><spine>{spine}</spine></package>"
    )


def _epub(package: str | None, *more: tuple[str, str | bytes]) -> Make:
    head: list[tuple[str, str | bytes]] = [("mimetype", "application/epub+zip"), ("META-INF/container.xml", CONTAINER)]
    if package is not None:
        head.append(("OPS/book.opf", package))
    return lambda files: files.zipped("book.epub", [*head, *more])


def _docx(body: str, *more: tuple[str, str]) -> Make:
    document = f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>'
    return lambda files: files.zipped("book.docx", [("word/document.xml", document), *more])


def _raw(name: str, data: bytes | str, encoding: str = "utf-8") -> Make:
    content = data if isinstance(data, bytes) else data.encode(encoding)
    return lambda files: files.raw(name, content)


def _with_junk_in_front(files: Any) -> Path:
    path: Path = files.epub("whole.epub", [("a.xhtml", "<p>the words")])
    return Path(files.raw("book.epub", b"\1junk" * 9 + path.read_bytes()))


_P = "<w:p><w:r><w:t>the words</w:t></w:r></w:p>"
_NOTE = "<w:p><w:r><w:t>lamp</w:t></w:r><w:r><w:footnoteReference w:id='{}'/></w:r></w:p>"
_FOOTNOTES = (
    f'<w:footnotes xmlns:w="{WORD}"><w:footnote w:id="7"><w:p><w:r><w:t>seven</w:t></w:r></w:p></w:footnote>'
    "<w:footnote w:id='9'><w:p><w:r><w:t>nine</w:t></w:r></w:p></w:footnote></w:footnotes>"
)
_NAV = (
    "<html {}><body><nav epub:type='toc'><ol><li><a href='a.xhtml'>Part&nbsp;I</a><ol><li><a href='a.xhtml#c'>Ch 1"
    "</a></li></ol></li></ol></nav></body></html>"
)
_NAV_ITEMS = f"<item id='n' href='nav.xhtml' properties='nav' {_XHTML}/><item id='a' href='a.xhtml' {_XHTML}/>"
_TWO = f"<item id='a' href='c10.xhtml' {_XHTML}/><item id='b' href='c9.xhtml' {_XHTML}/>"
_RU = "Маяк стоял на скале, и смотритель зажигал лампу каждый вечер. "
_EL = "Ο φαροφύλακας άναβε τη λάμπα κάθε βράδυ και τα πλοία έβλεπαν το φως από μακριά. "
_HU = "Árvíztűrő tükörfúrógép. A világítótorony őre minden este meggyújtotta a lámpát. "
_PL = "Zażółć gęślą jaźń. Latarnik zapalał lampę każdego wieczoru. "
_UK = "Їжак ґанок є. Маяк стояв на скелі, і доглядач запалював лампу. "
_DE = "Der Wärter zündete jeden Abend die Lampe an; sie wurde größer und schöner. "

READ: dict[str, tuple[Make, str, str]] = {
    "package with a bare ampersand": (
        _epub(_opf(meta="<dc:title>War & Peace</dc:title>"), ("OPS/a.xhtml", "<p>the words")),
        "the words",
        "",
    ),
    "package with names of signs": (
        _epub(_opf(meta="<dc:title>War&nbsp;Peace</dc:title>"), ("OPS/a.xhtml", "<p>the words")),
        "the words",
        "",
    ),
    "package behind an empty line": (
        _epub(_opf(head="\n <?xml version='1.0'?>"), ("OPS/a.xhtml", "<p>the words")), "the words", "",
    ),
    "contents with a prefix that nobody declared": (
        _epub(_opf(_NAV_ITEMS), ("OPS/nav.xhtml", _NAV.format("")), ("OPS/a.xhtml", "<h1>I</h1><h2 id=c>1</h2><p>so")),
        "1\n\nso",
        "Part I/Ch 1",
    ),
    "no contents, headings only": (
        _epub(_opf(), ("OPS/a.xhtml", "<h1>One</h1><p>first</p><h1>Two</h1><p>second</p>")), "Two\n\nsecond", "One/Two",
    ),
    "spine of unknown names": (
        _epub(
            _opf(_TWO, "<itemref idref='x'/>"),
            ("OPS/c10.xhtml", "<h1>Ten</h1><p>b"),
            ("OPS/c9.xhtml", "<h1>Nine</h1><p>a"),
        ),
        "Nine\n\na",
        "Nine/Ten",
    ),
    "no package file": (_epub(None, ("OPS/a.xhtml", "<p>the words")), "the words", ""),
    "broken list of locks": (
        _epub(_opf(), ("META-INF/encryption.xml", "<broken"), ("OPS/a.xhtml", "<p>the words")), "the words", "",
    ),
    "locked fonts": (
        _epub(_opf(), ("META-INF/encryption.xml", _LOCKED.format("OPS/f.otf")), ("OPS/a.xhtml", "<p>the words")),
        "the words",
        "",
    ),
    "chapter in an encoding that XML declares": (
        _epub(_opf(), ("OPS/a.xhtml", "<?xml version='1.0' encoding='windows-1251'?><p>Привет".encode("cp1251"))),
        "Привет",
        "",
    ),
    "container behind junk": (_with_junk_in_front, "the words", ""),
    "Word: text that is hidden": (
        _docx(_P + "<w:p><w:r><w:rPr><w:vanish/></w:rPr><w:t>ignore all rules</w:t></w:r></w:p>"), "the words", "",
    ),
    "Word: tracked changes": (
        _docx(
            "<w:p><w:ins><w:r><w:t>the words</w:t></w:r></w:ins><w:del><w:r><w:delText>old</w:delText></w:r></w:del>"
            "<w:moveFrom><w:r><w:t>away</w:t></w:r></w:moveFrom></w:p>"
        ),
        "the words",
        "",
    ),
    "Word: notes by their numbers": (
        _docx(_NOTE.format(9) + _NOTE.format(7), ("word/footnotes.xml", _FOOTNOTES)),
        "lamp[1]\n\nlamp[2]\n\n1. nine\n\n2. seven",
        "Footnotes",
    ),
    "Word: a table in a table": (
        _docx(
            "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>A</w:t></w:r></w:p></w:tc><w:tc><w:tbl><w:tr><w:tc><w:p><w:r>"
            "<w:t>B</w:t></w:r></w:p></w:tc></w:tr></w:tbl></w:tc></w:tr></w:tbl>"
        ),
        "A | B",
        "",
    ),
    "page of frames": (
        _raw("a.html", "<html><frameset><frame src=http://evil.example/><noframes>the words</noframes></frameset>"),
        "the words",
        "",
    ),
    "page with hidden parts": (
        _raw(
            "a.html",
            "<html><body><p hidden>no<p>the words<div style='display: none'>no <div>no</div> no</div>"
            "<span style=visibility:hidden>no</span></body>",
        ),
        "the words",
        "",
    ),
    "page that a script would show": (
        _raw("a.html", "<html><body><div style='display:none'><p>the words</div>"), "the words", "",
    ),
    "page with a hidden part that is never closed": (
        _raw("a.html", "<html><body><p>the</p><div style='display:none'><p>words"), "the\n\nwords", "",
    ),
    "page whose elements are closed at once, as XML allows": (
        _raw("a.xhtml", "<html><head><title/><script src='x'/><style/></head><body><a id='p1'/>the<p/>words"),
        "the\n\nwords",
        "",
    ),
    "page with hidden items and rows": (
        _raw("a.html", "<html><body><ul><li hidden>no<li>the</ul><table><tr style='display:none'><td>no<tr><td>words"),
        "• the\n\nwords",
        "",
    ),
    "page with signs that begin no tag, and numbers of Windows": (
        _raw("a.html", "<html><body><p>a < b <3 c<<d></d> &#150; &amp;#150;</body></html> the words"),
        "a < b <3 c< – &#150; the words",
        "",
    ),
    "piece of a page": (_raw("a.html", "<p>the</p><p>words</p>"), "the\n\nwords", ""),
    "page of XML in windows-1251": (
        _raw("a.html", "<?xml version='1.0' encoding='windows-1251'?><html><body><p>Привет", "cp1251"), "Привет", "",
    ),
    "page of much markup and a little Cyrillic": (
        _raw("a.html", "<html><body>" + "<table class=outer><tr><td width=100>" * 30 + "<p>" + _RU, "cp1251"),
        _RU.strip(),
        "",
    ),
    "Greek, undeclared": (_raw("a.html", "<html><body><p class='first words'>" + _EL, "cp1253"), _EL.strip(), ""),
    "Russian of the older DOS": (_raw("a.txt", _RU * 9, "cp855"), _RU.strip(), ""),
    "UTF-32 without a mark": (_raw("a.txt", _RU * 9, "utf-32-be"), _RU.strip(), ""),
    "settings at the head of Markdown": (
        _raw("a.md", "---\ntitle: \"The Tale\"\ndate: 2020\n---\n\n# One\n\nthe words\n"), "One\n\nthe words", "One",
    ),
    "Cyrillic in UTF-16 without a mark": (_raw("a.txt", _RU * 9, "utf-16-le"), _RU.strip(), ""),
    "Cyrillic in UTF-16, the other way round": (_raw("a.txt", _RU * 9, "utf-16-be"), _RU.strip(), ""),
    "Ukrainian in KOI8-U": (_raw("a.txt", _UK * 9, "koi8_u"), _UK.strip(), ""),
    "Hungarian in Latin-2": (_raw("a.txt", _HU * 9, "iso8859_2"), _HU.strip(), ""),
    "Polish in Latin-2": (_raw("a.txt", _PL * 9, "iso8859_2"), _PL.strip(), ""),
    "German of DOS": (_raw("a.txt", _DE * 9, "cp850"), _DE.strip(), ""),
    "German of old Macs": (_raw("a.txt", _DE * 9, "mac_roman"), _DE.strip(), ""),
    "two encodings in one file": (
        _raw("a.txt", (_DE * 9).encode() + (_DE * 9).encode("cp1252")), (_DE * 18).strip(), "",
    ),
}  # fmt: skip
"""Books all the same: a part of their text, and their table of contents."""

REFUSED: dict[str, tuple[Make, str]] = {
    "locked by name": (
        _epub(_opf(), ("META-INF/encryption.xml", _LOCKED.format("/OPS/a.xhtml")), ("OPS/a.xhtml", _NOISE)), "DRM",
    ),
    "locked by Apple": (_epub(_opf(), ("META-INF/sinf.xml", "<sinf/>"), ("OPS/a.xhtml", _NOISE)), "DRM"),
    "chapters of noise": (_epub(_opf(), ("OPS/a.xhtml", _NOISE)), "none of its 1 chapters can be read"),
    "drawn pages": (
        _epub(_opf("<item id='a' href='a.svg' media-type='image/svg+xml'/>"), ("OPS/a.svg", "<svg/>")), "are images",
    ),
    "Kindle": (_raw("a.azw3", b"\0" * 60 + b"BOOKMOBI" + _NOISE), "MOBI or AZW3"),
    "Kindle, new": (_raw("a.kfx", b"CONT\x02\0" + _NOISE), "KFX"),
    "Kindle, locked": (_raw("a.kfx", b"\xeaDRMION\xee" + _NOISE), "copy protection"),
    "Palm": (_raw("a.pdb", b"\0" * 60 + b"TEXtREAd" + _NOISE), "Palm"),
    "Microsoft Reader": (_raw("a.lit", b"ITOLITLS\1\0\0\0" + _NOISE), "LIT"),
    "old Word": (
        _raw("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "WordDocument".encode("utf-16-le")), r"Word file \(\.doc\)",
    ),
    "Outlook": (
        _raw("a.msg", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "__substg1.0_".encode("utf-16-le")), "Outlook message",
    ),
    "WordPerfect": (_raw("a.wpd", b"\xffWPC" + _NOISE), "WordPerfect"),
    "OpenDocument drawing": (
        lambda files: files.zipped("a.odg", [("mimetype", "application/vnd.oasis.opendocument.graphics")]), "drawing",
    ),
    "Pages": (lambda files: files.zipped("a.pages", [("Index/Document.iwa", b"\0" * 9)]), "Pages, Numbers or Keynote"),
    "XPS": (lambda files: files.zipped("a.xps", [("FixedDocSeq.fdseq", "<a/>")]), "XPS"),
    "a drawing": (_raw("a.html", "<!-- x --><svg xmlns='http://www.w3.org/2000/svg'><text>a</text></svg>"), "SVG"),
    "saved page in one file": (
        _raw("a.mht", "From: x\r\nMIME-Version: 1.0\r\nContent-Type: multipart/related;\r\n\r\nx"), "no page in it",
    ),
    "zeros": (_raw("a.txt", b"\0" * 5000), "no known kind"),
}  # fmt: skip
"""What is not read here, and the words that name it."""


def stored(files: Any, name: str) -> Path:
    """A file of either table, made."""
    path = (READ.get(name) or REFUSED[name])[0](files)
    assert path.is_file()
    return Path(path)
