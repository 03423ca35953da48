"""Names the signs of a PDF page that are no letters: those of the fonts Symbol and Wingdings. Runs only in the child
process (``app.readers.child``).

pdfium returns such a sign as its code in the font, often in Unicode's private use area. Without the font's name the
code would be dropped, so that "5 ± 2" became "5 2".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from ctypes import create_string_buffer
from itertools import islice

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from app.readers import cleaning, pdf_calls, symbols

_PRIVATE = re.compile("[\ue000-\uf8ff]")
_LETTER = re.compile("[A-Za-z]")
_LAST_BYTE = 0xFF  # highest code of a character in a font of one byte a character
_DEPTH = 4  # maximum number of groups of objects inside one another
_MOST_PARTS = 5_000  # maximum objects examined of a group
_NAME = 100  # maximum bytes of a font's name that are read
_TAG = re.compile(r"[A-Z]{6}\+")  # matches the tag of a font of which the file has only some glyphs
_STYLE = re.compile(r"(?:PS)?(?:MT)?(?:[-,][A-Za-z]{0,20})?$")
_PART = re.compile(r"(?<=dings) ?(?=\d$)")


class PageFonts:
    """Finds the families of the fonts on one page."""

    def __init__(self, text_page: pdfium.PdfTextPage) -> None:
        self._text = pdf_calls.address(text_page.raw)
        self._families: dict[int, str] = {}

    def at(self, index: int) -> int | None:
        """Return the address of a character's font. ``index`` is pdfium's."""
        piece = pdf_calls.text_object(self._text, index)
        return pdf_calls.font_of(piece) if piece else None

    def family(self, font: int | None) -> str:
        """Return the family of the font at an address, as ``symbols`` names it."""
        if font is None:
            return ""
        if font not in self._families:
            name = create_string_buffer(_NAME)
            pdf_calls.font_name(font, name, _NAME)
            self._families[font] = family_of(name.value.decode("latin-1"))
        return self._families[font]


def family_of(name: str) -> str:
    """Return the family that a font's name tells: "wingdings 2" for "ABCDEF+Wingdings2-Regular"."""
    return _PART.sub(" ", _STYLE.sub("", _TAG.sub("", name.strip())).casefold())


def fonts_in(form: int) -> set[int | None]:
    """Return the addresses of the fonts in a form, which is a group of objects that may have groups in it. Only its
    first objects are examined.
    """
    return {
        pdf_calls.font_of(part)
        for part in islice(_parts(form, _DEPTH), _MOST_PARTS)
        if pdf_calls.kind_of(part) == raw.FPDF_PAGEOBJ_TEXT
    }


def _parts(form: int, depth: int) -> Iterator[int]:
    for at in range(pdf_calls.count_parts(form)):
        part = pdf_calls.part(form, at)
        yield part
        if depth and pdf_calls.kind_of(part) == raw.FPDF_PAGEOBJ_FORM:
            yield from _parts(part, depth - 1)


def with_signs(text: str, text_page: pdfium.PdfTextPage, used: Iterable[int | None] | None = None) -> str:
    """Return a page's text with Unicode's sign for every sign of a symbol font.

    Args:
        text: pdfium's text of the page, with one character for each index.
        text_page: pdfium's text page.
        used: addresses of the fonts that are used on the page; None to ask every character for its font.
    """
    fonts = PageFonts(text_page)
    if used is None:
        used = {fonts.at(index) for index in range(len(text))}
    # some programs store the code itself, so that a tick reads "ü"; then any character may be a sign
    special = any(symbols.is_symbolic(fonts.family(font)) for font in used if font)
    if not special and (text.isascii() or not _PRIVATE.search(text)):
        return text
    signs = list(text)
    for at in range(len(text)) if special else [match.start() for match in _PRIVATE.finditer(text)]:
        family = fonts.family(fonts.at(at))
        if symbols.is_symbolic(family):
            signs[at] = _sign(text[at], family)
    return "".join(signs)


def _sign(character: str, family: str) -> str:
    """Return the sign that a character shows in a symbol font. The font may already name its signs in Unicode."""
    if _PRIVATE.match(character):
        code = ord(character)
        return character if code in cleaning.BULLETS and family != "symbol" else symbols.sign(family, code)
    # the signs of Symbol in the upper half, such as ×, have other codes in Unicode, and may be either
    coded = _LETTER.match(character) if family == "symbol" else not character.isspace() and ord(character) <= _LAST_BYTE
    return symbols.sign(family, ord(character)) if coded else character
