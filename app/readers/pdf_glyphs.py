"""Names the signs of a PDF page to which their fonts give no letter: signs of Symbol and Wingdings, ligatures of TeX.
Runs only in the child process (``app.readers.child``).

pdfium returns such a sign as its code in the font, often a control or private-use character. These would be dropped, so
that "5 ± 2" became "5 2". A sign that cannot be named becomes ``symbols.UNKNOWN``, which the book's warnings count.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from ctypes import byref, c_double, create_string_buffer
from functools import lru_cache
from itertools import islice, repeat

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from app.readers import cleaning, lines, pdf_calls, symbols

_PRIVATE = re.compile("[\ue000-\uf8ff]")
# matches characters that are no text: codes of glyphs, or signs that pdfium has added
_ODD = re.compile("[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\ue000-\uf8ff\ufffe]")
_LONE_BREAK = re.compile("\r(?!\n)|(?<!\r)\n")  # a glyph may have the code of a line break
_ROW = re.compile(r"[^\r\n]+")
_WORD = re.compile(r"\S+")
_CONTROL = "\x80"  # first of the control characters that old programs write for the signs of Windows
# TeX's codes of ligatures, in its older and in its newer encoding
_LIGATURES = {
    **dict(zip("\x0b\x0c\r\x0e\x0f", "\ufb00\ufb01\ufb02\ufb03\ufb04", strict=True)),
    **dict(zip("\x1b\x1c\x1d\x1e\x1f", "\ufb00\ufb01\ufb02\ufb03\ufb04", strict=True)),
}
# Signs to which Adobe has given private codes: small capitals and old figures, and the parts of tall brackets. The
# first part of a bracket stands for it. Source: Adobe's list of glyphs.
_ADOBE = {
    **{0xF700 + ord(sign): sign for sign in "!$&0123456789?abcdefghijklmnopqrstuvwxyz¡¢¿"},
    **{0xF700 + code: chr(code) for code in (*range(0xE0, 0xF7), *range(0xF8, 0xFF))},
    **dict.fromkeys((0xF8E5, 0xF8E6, 0xF8E7, *range(0xF8EB, 0xF8FF)), symbols.FILLER),
    **dict(zip((0xF8EB, 0xF8EE, 0xF8F1, 0xF8F6, 0xF8F9, 0xF8FC), "([{)]}", strict=True)),
    **dict(zip((0xF6D9, 0xF6DA, 0xF6DB, 0xF8E8, 0xF8E9, 0xF8EA), "©®™®©™", strict=True)),
}
_BARS = re.compile(r"([|‖])\s{0,4}(?:\1\s{0,4})+(?<=\1)")
_ARROW = re.compile("↦ ?→")
# matches TeX's slash and the relation over which it is drawn
_NEGATED = re.compile("\u0338 ?([^\\s\\w\u0338])|([^\\s\\w\u0338])\u0338")
_LETTER = re.compile("[A-Za-z]")
_LAST_BYTE = "\xff"  # highest code of a character in a font of one byte a character
_DEPTH = 4  # maximum number of groups of objects inside one another
_MOST_PARTS = 5_000  # maximum objects examined of a group
_NAMES = 1_000  # names of fonts whose kinds are kept
_NAME = 100  # maximum bytes of a font's name that are read
_TAG = re.compile(r"[A-Z]{6}\+")  # matches the tag of a font of which the file has only some glyphs
_STYLE = re.compile(r"(?:PS)?(?:MT)?(?:[-,][A-Za-z]{0,20})?$")
_PART = re.compile(r"(?<=dings) ?(?=\d$)")


class PageFonts:
    """Finds the fonts of one page's characters."""

    def __init__(self, text_page: pdfium.PdfTextPage) -> None:
        self._text = pdf_calls.handle(text_page.raw)
        self._kinds: dict[int | None, str] = {None: ""}
        self.monospaced: set[int] = set()
        """Addresses of the fonts, among those asked for, all of whose characters have the same width."""
        self._of_pieces: dict[int | None, str] = {}  # kinds of the fonts of text objects that were asked for
        self._piece: int | None = None
        self._font: int | None = None

    def at(self, index: int) -> int | None:
        """Return the address of a character's font. ``index`` is pdfium's."""
        piece = pdf_calls.text_object(self._text, index)
        if piece != self._piece:
            self._piece, self._font = piece, pdf_calls.font_of(piece) if piece else None
        return self._font

    def kind_at(self, index: int) -> str:
        """Return the kind of a character's font (``kind``)."""
        piece = pdf_calls.text_object(self._text, index)
        kind = self._of_pieces.get(piece)
        if kind is None:
            kind = self._of_pieces[piece] = self.kind(pdf_calls.font_of(piece) if piece else None)
        return kind

    def words_with_signs(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Yield start and end of each word of a page's text that is not drawn at once in a font of letters, and the
        kind of its font; "" for a word in several parts.
        """
        handle, piece_of, known = self._text, pdf_calls.text_object, self._of_pieces
        for row in _ROW.finditer(text):
            start, end = row.span()
            if not self.kind_at(start) and (end - start == 1 or piece_of(handle, end - 1) == piece_of(handle, start)):
                continue
            for word in _WORD.finditer(text, start, end):
                first, last = word.span()
                piece = piece_of(handle, first)
                if last - first > 1 and piece_of(handle, last - 1) != piece:
                    yield first, last, ""
                    continue
                kind = known.get(piece)
                if kind is None:
                    kind = known[piece] = self.kind(pdf_calls.font_of(piece) if piece else None)
                if kind:
                    yield first, last, kind

    def name(self, font: int) -> str:
        """Return the name of the font at an address."""
        name = create_string_buffer(_NAME)
        pdf_calls.font_name(font, name, _NAME)
        return name.value.decode("latin-1")

    def kind(self, font: int | None) -> str:
        """Return which font of signs the font at an address is, as ``symbols`` names it; "" for a font of letters."""
        if font is not None and font not in self._kinds:
            name = self.name(font)
            if lines.MONOSPACED.search(name):
                self.monospaced.add(font)
            self._kinds[font] = _kind_of(name)
        return self._kinds[font]

    def without_letter(self, text: str) -> Iterator[int]:
        """Yield the indices of the characters to which their fonts of signs give no letter. Rows that are drawn at once
        in a font of letters, which most are, are passed over. ``text`` is the page's, as pdfium returns it.
        """
        handle, piece_of, has_no_letter = self._text, pdf_calls.text_object, pdf_calls.has_no_letter
        for row in _ROW.finditer(text):
            start, end = row.span()
            if not self.kind_at(start) and piece_of(handle, end - 1) == piece_of(handle, start):
                continue
            answers = map(has_no_letter, repeat(handle, end - start), range(start, end))  # faster than a loop
            for at, answer in enumerate(answers, start):
                if answer == 1 and not text[at].isspace() and self.kind_at(at):
                    yield at

    def has_no_letter(self, index: int) -> bool:
        """Whether the font of a character gives it no letter, so that pdfium returns its code."""
        return bool(pdf_calls.has_no_letter(self._text, index) == 1)


@lru_cache(maxsize=_NAMES)
def _kind_of(name: str) -> str:
    family = family_of(name)
    return family if symbols.is_symbolic(family) else symbols.tex_kind(family)


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


def with_signs(
    text: str, text_page: pdfium.PdfTextPage, fonts: PageFonts, used: Iterable[int | None] | None = None
) -> str:
    """Return a page's text with Unicode's sign for every sign of a symbol font.

    Args:
        text: pdfium's text of the page, with one character for each index.
        text_page: pdfium's text page.
        fonts: the fonts of its characters.
        used: addresses of the fonts that are used on the page; None to ask every character for its font.
    """
    if used is None:
        used = {fonts.at(index) for index in range(len(text))}
    # some programs store the code itself, so that a tick reads "ü"; then any character may be a sign
    special = {fonts.kind(font) for font in used} - {""}
    if not special and text.isprintable():
        return text
    signs = list(text)
    for at in _odd(text):
        kind = fonts.kind_at(at) if special else ""
        signs[at] = _shown(text[at], at, kind, fonts) if kind else _named(text, at, text_page, fonts)
    if special and special <= symbols.TEX_KINDS:
        # a font of TeX's that names a character names it right
        for at in fonts.without_letter(text):
            signs[at] = symbols.tex_sign(fonts.kind_at(at), ord(text[at]))
        return joined("".join(signs))
    for start, end, kind in fonts.words_with_signs(text) if special else ():
        for at in range(start, end):
            if own := kind or fonts.kind_at(at):
                signs[at] = _shown(text[at], at, own, fonts)
    return joined("".join(signs))


def _odd(text: str) -> list[int]:
    """Return the indices of the characters that may be codes of glyphs."""
    odd = [match.start() for match in _ODD.finditer(text)]
    if not text.count("\r") == text.count("\n") == text.count("\r\n"):
        odd += [match.start() for match in _LONE_BREAK.finditer(text)]
    return odd


def _shown(character: str, at: int, kind: str, fonts: PageFonts) -> str:
    """Return what a character shows in a font of signs. ``at`` is pdfium's index of the character."""
    if kind not in symbols.TEX_KINDS:
        return _sign(character, kind)
    return symbols.tex_sign(kind, ord(character)) if fonts.has_no_letter(at) else character


def joined(text: str) -> str:
    """Join the parts of which TeX makes a sign: of the bars one above the other of a tall bar, the first is kept, and a
    slash over a relation negates it.
    """
    text = _BARS.sub(lambda bars: bars[1] + bars[0][1:].replace(bars[1], symbols.FILLER), text)
    text = _ARROW.sub(lambda arrow: "↦".ljust(len(arrow[0]), symbols.FILLER), text)
    return _NEGATED.sub(_negated, text) if "\u0338" in text else text


def _negated(match: re.Match[str]) -> str:
    relation = match[1] or match[2]
    whole = unicodedata.normalize("NFC", relation + "\u0338")
    return whole.ljust(len(match[0]), symbols.FILLER) if len(whole) == 1 else match[0]


def _named(text: str, at: int, text_page: pdfium.PdfTextPage, fonts: PageFonts) -> str:
    """Return what a character shows that is the code of a glyph. Return characters that pdfium has added, such as line
    breaks, unchanged.
    """
    code = text[at]
    if _PRIVATE.match(code):
        return code if ord(code) in cleaning.BULLETS else _ADOBE.get(ord(code), symbols.UNKNOWN)
    if raw.FPDFText_IsGenerated(text_page.raw, at) == 1 or raw.FPDFText_IsHyphen(text_page.raw, at) == 1:
        return code
    if not _has_ink(text_page, at):
        return code if code in "\r\n" else " "
    if not fonts.has_no_letter(at):
        return code.encode("latin-1", "replace").decode("cp1252", "replace") if code >= _CONTROL else symbols.UNKNOWN
    font = fonts.at(at)
    beside = (other for other in (at - 1, at + 1) if 0 <= other < len(text) and text[other].islower())
    # in a font of TeX's, all letters stand at the codes of ASCII and none has a name
    is_tex = code in _LIGATURES and any(fonts.at(other) == font and fonts.has_no_letter(other) for other in beside)
    return _LIGATURES[code] if is_tex else symbols.UNKNOWN


def _has_ink(text_page: pdfium.PdfTextPage, at: int) -> bool:
    edges = [c_double() for _ in range(4)]
    if not raw.FPDFText_GetCharBox(text_page.raw, at, *map(byref, edges)):
        return False
    left, right, bottom, top = (edge.value for edge in edges)
    return right > left and top > bottom


def _sign(character: str, family: str) -> str:
    """Return the sign that a character shows in a symbol font. The font may already name its signs in Unicode."""
    if _PRIVATE.match(character):
        code = ord(character)
        return character if code in cleaning.BULLETS and family != "symbol" else symbols.sign(family, code)
    # the signs of Symbol in the upper half, such as ×, have other codes in Unicode, and may be either
    coded = _LETTER.match(character) if family == "symbol" else not character.isspace() and character <= _LAST_BYTE
    return symbols.sign(family, ord(character)) if coded else character
