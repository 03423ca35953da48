"""PDF files that were made to break readers, by name: what each is, and what has to be said or found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.app.readers.conftest import assembled, stream

WORDS = "Words that can be read on this page."
_TEXT = b"BT /F1 12 Tf 72 700 Td (Words that can be read on this page.) Tj ET"
_FONT = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"
_EMPTY_FORM = b"<< /Type /XObject /Subtype /Form /BBox [0 0 9 9] /Length 0 >>\nstream\n\nendstream"


def _objects(
    content: bytes | None = None,
    more: Sequence[bytes | str] = (),
    catalog: str = "",
    page: str = "",
    resources: str = "",
    box: str = "[0 0 612 792]",
    kids: str = "4 0 R",
    count: str = "1",
    font: str = _FONT,
) -> bytes:
    parts: list[bytes | str] = [
        f"<< /Type /Catalog /Pages 2 0 R {catalog} >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>",
        font,
        f"<< /Type /Page /Parent 2 0 R /MediaBox {box} {page} /Contents 5 0 R"
        f" /Resources << /Font << /F1 3 0 R >> {resources} >> >>",
        stream(_TEXT) if content is None else content,
        *more,
    ]
    return assembled([part.encode() if isinstance(part, str) else part for part in parts])


def _form(body: bytes, next_form: int) -> bytes:
    resources = b"/Resources << /XObject << /X %d 0 R >> >>" % next_form
    head = b"<< /Type /XObject /Subtype /Form /BBox [0 0 9 9] %s /Length %d >>" % (resources, len(body))
    return head + b"\nstream\n" + body + b"\nendstream"


def _loop_of_old_tables() -> bytes:
    data = _objects()
    place = int(data[data.rfind(b"startxref") :].split()[1])
    return data.replace(b"/Root 1 0 R", b"/Root 1 0 R /Prev %d" % place)


def _without_table() -> bytes:
    data = _objects()
    return data[: data.find(b"xref\n")] + b"trailer << /Root 1 0 R >>"


def _fields(*fields: bytes | str) -> bytes:
    """A page with fields, the objects from 6 on; those that are bytes are no fields but belong to one."""
    names = " ".join(f"{at} 0 R" for at, field in enumerate(fields, 6) if isinstance(field, str))
    return _objects(more=fields, catalog=f"/AcroForm << /Fields [{names}] >>", page=f"/Annots [{names}]")


_FIELD = "<< /Type /Annot /Subtype /Widget /FT /Tx /T (a) /F 4 /DA (/F1 12 Tf 0 g) /Rect [72 500 500 520]"
_BOOKMARKS = "/Outlines 6 0 R"
_ROOT_OF_BOOKMARKS = "<< /Type /Outlines /First 7 0 R /Last 7 0 R >>"
_BOMB_MAP = (
    b"begincmap 1 begincodespacerange <00> <FF> endcodespacerange 1 beginbfchar <41> <" + b"0041" * 2000 + b">"
    b" endbfchar endcmap"
)
_ODD_MAP = (
    b"begincmap 1 begincodespacerange <00> <FF> endcodespacerange 3 beginbfchar <41> <D800> <42> <0000> <43> <202E>"
    b" endbfchar endcmap"
)
_MAPPED = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /ToUnicode 6 0 R >>"
_FORMS = "/XObject << /X 6 0 R >>"

READ: dict[str, Callable[[], bytes]] = {
    "page of 1e12 points": lambda: _objects(box="[0 0 1e12 1e12]"),
    "page upside down": lambda: _objects(box="[612 792 0 0]"),
    "page without size": lambda: _objects(box="[0 0 0 0]"),
    "page of no numbers": lambda: _objects(box="[nan inf -inf 1e999]"),
    "form that holds itself": lambda: _objects(stream(_TEXT + b" /X Do"), [_form(b"/X Do", 6)], resources=_FORMS),
    "fields in a ring": lambda: _fields(f"{_FIELD} /Kids [6 0 R 6 0 R] /Parent 6 0 R /V (x) >>"),
    "a field that is drawn by itself": lambda: _fields(f"{_FIELD} /AP << /N 7 0 R >> >>", _form(b"/X Do", 7)),
    "a field of no numbers": lambda: _fields(
        "<< /Type /Annot /Subtype /Widget /FT /Tx /V << /V 6 0 R >> /DA 7 /Rect [nan 1e999 -1e999 inf] >>"
    ),
    "a field with 200,000 letters in it": lambda: _fields(f"{_FIELD} /Ff 4096 /V ({'lamp ' * 40_000}) >>"),
    "3,000 fields": lambda: _fields(*[f"{_FIELD} /V (x) >>"] * 3_000),
    "unseen words on a page of 1e12 points": lambda: _objects(
        stream(_TEXT + b" 1 g BT /F1 12 Tf 72 600 Td (white) Tj ET"), box="[0 0 1e12 1e12]"
    ),
    "bookmarks in a ring": lambda: _objects(
        catalog=_BOOKMARKS,
        more=[_ROOT_OF_BOOKMARKS, "<< /Title (Loop) /Dest [4 0 R /Fit] /Next 7 0 R /First 7 0 R >>"],
    ),
    "20,000 bookmarks": lambda: _objects(
        catalog=_BOOKMARKS,
        more=[
            _ROOT_OF_BOOKMARKS,
            *(f"<< /Title (E{at}) /Dest [4 0 R /Fit] /Next {8 + at} 0 R >>" for at in range(20_000)),
        ],
    ),
    "page labels in a ring": lambda: _objects(catalog="/PageLabels 6 0 R", more=["<< /Kids [6 0 R 6 0 R] >>"]),
    "script as a page label": lambda: _objects(
        catalog="/PageLabels << /Nums [0 << /P (<script>alert\\(1\\)</script>) /S /r /St 4 >>] >>"
    ),
    "older tables in a ring": _loop_of_old_tables,
    "no table": _without_table,
    "junk in front": lambda: b"junk\r\n\r\n" * 60 + _objects(),
    "junk behind": lambda: _objects() + b"\0" * 5000,
    "a billion pages promised": lambda: _objects(count="999999999"),
    "fewer than no pages promised": lambda: _objects(count="-7"),
    "arrays 100,000 deep": lambda: _objects(page="/Foo " + "[" * 100_000 + "]" * 100_000),
    "a million saved states": lambda: _objects(stream(b"q " * 1_000_000 + _TEXT)),
    "a million open arrays": lambda: _objects(stream(_TEXT + b"[" * 1_000_000)),
    "stream longer than the file": lambda: _objects(b"<< /Length 99999999999 >>\nstream\n" + _TEXT + b"\nendstream"),
    "length that is the stream": lambda: _objects(b"<< /Length 5 0 R >>\nstream\n" + _TEXT + b"\nendstream"),
    "text at the end of the world": lambda: _objects(
        stream(_TEXT + b" BT /F1 1e30 Tf 1e30 1e30 Td (far) Tj ET BT /F1 0 Tf 5 5 Td (zero) Tj ET")
    ),
    "scripts that start with the file": lambda: _objects(
        catalog="/OpenAction << /S /JavaScript /JS (app.alert\\(1\\); while\\(1\\);) >>"
    ),
    "programs to start and addresses to fetch": lambda: _objects(
        catalog="/OpenAction << /S /Launch /F (calc.exe) >> /AA << /WC << /S /URI /URI (http://evil.example/) >> >>"
    ),
    "letters that are halves and overrides": lambda: _objects(
        stream(b"BT /F1 12 Tf 72 700 Td (ABC) Tj ET " + _TEXT.replace(b"/F1", b"/F2")),
        [stream(_ODD_MAP)],
        font=_MAPPED,
        resources="/Font << /F1 3 0 R /F2 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >>",
    ),
}
"""Books all the same: their words are read."""

REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "30,000 times the same page": (lambda: _objects(kids="4 0 R " * 30_000, count="30000"), "claims 30,000 pages"),
    "pages in a ring": (
        lambda: _objects(kids="6 0 R", more=["<< /Type /Pages /Kids [2 0 R] /Count 1 /Parent 2 0 R >>"]),
        "no page that can be read",
    ),
    "one image of 30 GB": (
        lambda: _objects(
            stream(b"/X Do"),
            [
                b"<< /Type /XObject /Subtype /Image /Width 100000 /Height 100000 /BitsPerComponent 8"
                b" /ColorSpace /DeviceRGB /Length 2 >>\nstream\n00\nendstream"
            ],
            resources=_FORMS,
        ),
        "its only page is an image",
    ),
    "a head and nothing else": (lambda: b"%PDF-1.7\n", "damaged"),
    "a text that begins like one": (lambda: b"%PDF-1.7\n" + b"This is only a text. " * 50, "damaged"),
    "letters that are 2,000 letters": (
        lambda: _objects(
            stream(b"BT /F1 12 Tf 72 700 Td " + (b"(" + b"A" * 900 + b") Tj ") * 60 + b"ET"),
            [stream(_BOMB_MAP)],
            font=_MAPPED,
        ),
        "no page that can be read|more than|memory|longer than",
    ),
    "forms that grow by eight, 25 deep": (
        lambda: _objects(
            stream(_TEXT + b" /X Do"),
            [*(_form(b"/X Do " * 8, 7 + at) for at in range(25)), _EMPTY_FORM],
            resources=_FORMS,
        ),
        "longer than|Words that can be read",
    ),
}
"""No books, or beyond a bound: the sentence that says so. Where a second reader may rescue it, its words."""


def write(files: Any, data: bytes) -> Path:
    path: Path = files.raw("book.pdf", data)
    return path
