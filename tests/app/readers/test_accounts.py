"""No text of a PDF is lost in silence: what pdfium finds on the pages is in ours, or counted under a reason."""

from __future__ import annotations

from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pypdfium2 as pdfium
import pytest

from app.readers import cleaning, detect, pdf, running
from app.readers.parsed import Limits, Refused
from app.readers.pdf_signs import raw_text

_DOCS = Path(__file__).resolve().parents[4] / "shared" / "docs"
_LONG = 1_000_000  # bytes; what is larger takes seconds
_FILES = sorted(path for path in _DOCS.rglob("*.pdf") if path.stat().st_size < _LONG) if _DOCS.is_dir() else []
_ODD = 0.005  # of the letters, and a few more, that two ways of looking may differ by
_FEW = 3


def _letters(text: str) -> int:
    return sum(map(str.isalnum, cleaning.characters(text)))


def _missing(path: Path) -> tuple[int, int]:
    """Letters and digits that pdfium finds, and how many of them are neither in our text nor accounted for."""
    document = pdf.open_pdf(path, None)
    if document is None:
        return 0, 0
    found_by_pdfium = 0
    for index in range(len(document)):
        text_page = document[index].get_textpage()
        text = raw_text(text_page).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
        found_by_pdfium += _letters(text)
        text_page.close()
    pages = pdf._read_pages(document, path, {}, Limits(), lambda *_: None)
    found = running.find_running_headers(pages.lines, [""] * len(document))
    counted = sum(pdf.left_out(pages.lines, found).values())
    ours = sum(map(_letters, pdf._texts(pages.lines, found, lambda *_: None)))
    return found_by_pdfium, found_by_pdfium - ours - counted


@pytest.mark.skipif(not _FILES, reason="the collection ../shared/docs is not here")
@pytest.mark.parametrize("path", _FILES, ids=[path.name for path in _FILES])
def test_every_letter_of_the_collection_is_accounted_for(path: Path) -> None:
    try:
        whole, missing = _missing(path)
    except (Refused, pdfium.PdfiumError):
        return
    assert missing <= _ODD * whole + _FEW


@pytest.mark.parametrize("kind", ["book", "table", "columns", "invoices"])
def test_every_letter_of_a_made_document_is_accounted_for(files: Any, kind: str) -> None:
    pages = [
        {
            "book": [(72, 750, "THE NORTH LIGHT"), (300, 40, str(at + 1))]
            + [(72, 700 - 14 * row, f"the keeper {row} went up the stairs {at} once more") for row in range(30)],
            "table": [
                (x, 740 - 16 * row, f"{name}{row * at}") for row in range(30) for x, name in ((60, "Rock "), (200, ""))
            ],
            "columns": [
                (x, 740 - 13 * row, f"and so the keeper {row} went on to {at}") for row in range(30) for x in (60, 320)
            ],
            "invoices": [(60, 740, f"Invoice {at}"), (60, 720, "Oil works"), (60, 500, f"Amount due {at}1.50")],
        }[kind]
        for at in range(8)
    ]
    whole, missing = _missing(files.pdf("made.pdf", pages))
    assert whole > 100
    assert missing <= 0


def test_much_that_is_left_out_is_said(files: Any) -> None:
    pages = [
        [(72, 750, "A LONG HEADER OF A BOOK OF SHORT PAGES"), (72, 600, f"Words of {name}."), (72, 580, "And more.")]
        for name in ("Ada", "Bray", "Ines", "Jon", "Mary")
    ]
    parsed = detect.parse(files.pdf("a.pdf", pages), {}, Limits(), lambda *_: None)
    assert parsed.left_out == {"headers": 4 * 30}
    assert len(parsed.warnings) == 1
    assert "rows that are the same on many pages, but for the first of them" in parsed.warnings[0]


def test_every_letter_of_a_mail_is_accounted_for(files: Any) -> None:
    """Of each part one form is read; what a page of it hides is counted."""
    said = [
        "The lamp costs 250 crowns, größer als erwartet.",
        "See the table below: 12 and 31.",
        "Weitergeleitet: alt.",
    ]
    page = f"<p>{said[1]}</p><p style='display:none'>Preheader that nobody sees.</p><script>var x = 1;</script>"
    inner = EmailMessage()
    inner["From"], inner["Subject"] = "Bray <bray@orre.example>", "Old news"
    inner.set_content(said[2], cte="quoted-printable")
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "Ada <ada@orre.example>", "Ines <i@orre.example>", "Prices"
    mail.set_content(said[0], cte="base64")
    mail.add_attachment(page, subtype="html")
    mail.add_attachment(inner)
    parsed = detect.parse(files.raw("a.eml", bytes(mail)), {}, Limits(), lambda *_: None)
    text = "\n".join(section.text for section in parsed.sections)
    heads = "From Ada <ada@orre.example> To Ines <i@orre.example> Subject Prices"
    heads += "From Bray <bray@orre.example> Subject Old news"
    assert parsed.left_out == {"hidden": 24}
    assert _letters(text) == _letters(heads + "".join(said))
    assert any("hidden" in warning for warning in parsed.warnings)
