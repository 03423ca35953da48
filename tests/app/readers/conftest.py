"""Small files made in code: PDFs with text at given places, EPUBs, DOCX files, and the hostile kinds of each."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
CONTAINER = "<container><rootfiles><rootfile full-path='OPS/book.opf'/></rootfiles></container>"

Spot = tuple[float, float, str] | tuple[float, float, str, float]


class Files:
    """Writes files into a folder and returns their paths."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def raw(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path

    def text(self, name: str, text: str, encoding: str = "utf-8") -> Path:
        return self.raw(name, text.encode(encoding))

    def pdf(
        self,
        name: str,
        pages: Sequence[Sequence[Spot]],
        extra_page: str = "",
        streams: Sequence[bytes] | None = None,
        catalog: str = "",
    ) -> Path:
        """A PDF in Helvetica. Each spot is (x, y from the bottom, text[, size]); ``streams`` replaces the spots."""
        contents = list(streams) if streams is not None else [stream(_draw(page)) for page in pages]
        kids = " ".join(f"{4 + 2 * index} 0 R" for index in range(len(contents)))
        objects = [
            f"<< /Type /Catalog /Pages 2 0 R {catalog} >>".encode(),
            f"<< /Type /Pages /Kids [{kids}] /Count {len(contents)} >>".encode(),
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        ]
        for index, content in enumerate(contents):
            objects.append(
                (
                    f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] {extra_page} /Contents {5 + 2 * index} 0 R"
                    " /Resources << /Font << /F1 3 0 R >> >> >>"
                ).encode()
            )
            objects.append(content)
        return self.raw(name, assembled(objects))

    def zipped(self, name: str, entries: Sequence[tuple[str, str | bytes]]) -> Path:
        path = self.folder / name
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for entry, content in entries:
                file.writestr(entry, content)
        return path

    def epub(
        self,
        name: str,
        chapters: Sequence[tuple[str, str]],
        toc: str = "",
        more: Sequence[tuple[str, str | bytes]] = (),
    ) -> Path:
        """An EPUB of (file name, XHTML) in spine order; ``toc`` is the inside of an NCX navMap."""
        items = "".join(
            f"<item id='c{at}' href='{file}' media-type='application/xhtml+xml'/>"
            for at, (file, _) in enumerate(chapters)
        )
        spine = "".join(f"<itemref idref='c{at}'/>" for at in range(len(chapters)))
        package = (
            "<package xmlns:dc='http://purl.org/dc/elements/1.1/'><metadata><dc:title>A Small Book</dc:title>"
            "<dc:creator>Ada Writer</dc:creator></metadata><manifest>"
            f"{items}<item id='ncx' href='toc.ncx' media-type='application/x-dtbncx+xml'/></manifest>"
            f"<spine toc='ncx'>{spine}</spine></package>"
        )
        return self.zipped(
            name,
            [
                ("mimetype", "application/epub+zip"),
                ("META-INF/container.xml", CONTAINER),
                ("OPS/book.opf", package),
                ("OPS/toc.ncx", f"<ncx><navMap>{toc}</navMap></ncx>"),
                *((f"OPS/{file}", text) for file, text in chapters if text),
                *more,
            ],
        )

    def docx(self, name: str, paragraphs: Sequence[tuple[str, str]], more: Sequence[tuple[str, str]] = ()) -> Path:
        """A DOCX of (style, text); the style "H1" is a heading."""
        body = "".join(
            f'<w:p><w:pPr><w:pStyle w:val="{style}"/></w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>'
            for style, text in paragraphs
        )
        styles = '<w:style w:styleId="H1"><w:name w:val="heading 1"/></w:style>'
        return self.zipped(
            name,
            [
                ("word/document.xml", f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>'),
                ("word/styles.xml", f'<w:styles xmlns:w="{WORD}">{styles}</w:styles>'),
                *more,
            ],
        )


def assembled(objects: Sequence[bytes]) -> bytes:
    out = b"%PDF-1.4\n"
    offsets = []
    for number, content in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return out + b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, start)


def stream(data: bytes, rounds: int = 1) -> bytes:
    """A compressed stream object; more rounds make a bomb of it."""
    for _ in range(rounds):
        data = zlib.compress(data, 9)
    filters = b" ".join([b"/FlateDecode"] * rounds)
    return b"<< /Length %d /Filter [%s] >>\nstream\n%s\nendstream" % (len(data), filters, data)


def _draw(spots: Sequence[Spot]) -> bytes:
    out = b""
    for spot in spots:
        x, y, text = spot[:3]
        size = spot[3] if len(spot) > 3 else 12
        escaped = text.encode("cp1252").replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")
        out += b"BT /F1 %g Tf %g %g Td (%s) Tj ET\n" % (size, x, y, escaped)
    return out


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def make_stream() -> Callable[..., bytes]:
    return stream
