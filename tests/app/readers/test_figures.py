"""Pages of which a picture takes the most: told from scans with words over them, backgrounds, and small pictures."""

from __future__ import annotations

import pypdfium2 as pdfium
import pytest

from app.readers.inner_pictures import Image
from app.readers.pdf_lines import page_lines
from app.readers.pdf_unseen import is_mostly_picture
from tests.app.readers.conftest import assembled, stream

CAPTION = "Figure 3: the harbour of Orre in the winter of the gale, drawn from the gallery."
LARGE, SMALL = b"500 0 0 560 50 200 cm", b"200 0 0 200 50 500 cm"


def drawn(place: bytes, text_at: int, lines: int = 1, rotate: int = 0) -> pdfium.PdfDocument:
    """A page of 600 by 800 points with a picture, and lines of text from a height down."""
    words = b"".join(
        b"BT /F 10 Tf 60 %d Td (%s) Tj ET\n" % (text_at - 12 * at, CAPTION.encode()) for at in range(lines)
    )
    return pdfium.PdfDocument(
        assembled(
            [
                b"<< /Type /Catalog /Pages 2 0 R >>",
                b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
                b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Rotate %d /Contents 4 0 R /Resources "
                b"<< /Font << /F 5 0 R >> /XObject << /I 6 0 R >> >> >>" % rotate,
                stream(b"q %s /I Do Q\n%s" % (place, words)),
                b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
                b"<< /Type /XObject /Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceGray /BitsPerComponent 8 "
                b"/Length 1 >>\nstream\n\x80\nendstream",
            ]
        )
    )


@pytest.mark.parametrize(
    ("page", "mostly"),
    [
        (drawn(LARGE, 150), True),
        (drawn(LARGE, 150, rotate=90), True),
        (drawn(LARGE, 700, lines=20), False),  # a scan with its words, or a background
        (drawn(SMALL, 450, lines=20), False),
    ],
    ids=["caption below", "turned", "words over it", "small"],
)
def test_a_page_that_is_mostly_a_picture_is_known(page: pdfium.PdfDocument, mostly: bool) -> None:
    pictures: list[Image] = []
    lines = page_lines(page[0], pictures=pictures)
    assert CAPTION[:9] in " ".join(line.text for line in lines)
    assert is_mostly_picture(page[0], lines, pictures) is mostly
