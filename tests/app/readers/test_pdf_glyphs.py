"""Signs of a PDF that are no letters: each is read as what it shows, or told as a sign that nobody can name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from app.readers import cleaning, detect, pdf_glyphs
from app.readers.page_images import find_on_page
from app.readers.parsed import Limits, Parsed
from tests.app.readers.conftest import assembled


def _parsed(files: Any, content: bytes, font: bytes, more: Sequence[bytes] = ()) -> Parsed:
    """Read a page with the fonts F1 (Helvetica) and S; the objects ``more`` have the numbers from 7."""
    return detect.parse(_file(files, content, font, more), {}, Limits(), lambda *_: None)


def _file(files: Any, content: bytes, font: bytes, more: Sequence[bytes] = ()) -> Any:
    return files.raw(
        "signs.pdf",
        assembled(
            [
                b"<< /Type /Catalog /Pages 2 0 R >>",
                b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
                b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
                b" /Resources << /Font << /F1 5 0 R /S 6 0 R >> >> >>",
                b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
                b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
                b"<< /Type /Font " + font + b" >>",
                *more,
            ]
        ),
    )


def _row(y: int, *parts: tuple[bytes, bytes]) -> bytes:
    """Draw a line of parts: the name of the font, and what is shown in it."""
    return b"BT 72 %d Td %s ET\n" % (y, b" ".join(b"/%s 12 Tf %s Tj" % part for part in parts))


def _letters(*pairs: tuple[int, int]) -> bytes:
    """A font's table of letters: codes, and the characters that it names for them."""
    table = b"".join(b"<%02x> <%04x>\n" % pair for pair in pairs)
    data = b"1 begincodespacerange <00> <ff> endcodespacerange %d beginbfchar\n%sendbfchar" % (len(pairs), table)
    return b"<< /Length %d >>\nstream\n%s\nendstream" % (len(data), data)


def test_signs_of_the_font_symbol_are_read(files: Any) -> None:
    table = _letters((0x41, 0xF0B1), (0x42, 0xF0B3), (0x43, 0xF061), (0x44, 0xF0B7))
    content = _row(700, (b"F1", b"(It weighs 30 )"), (b"S", b"(A)"), (b"F1", b"( 4 stone, )"), (b"S", b"(B)"))
    content += _row(660, (b"F1", b"(The angle )"), (b"S", b"(C)"), (b"F1", b"( is small.)"))
    font = b"/Subtype /TrueType /BaseFont /QWERTY+SymbolMT /Encoding /WinAnsiEncoding /ToUnicode 7 0 R"
    text = _parsed(files, content, font, [table]).sections[0].text
    assert " ".join(text.split()) == "It weighs 30 ± 4 stone, ≥ The angle α is small."
    assert len(find_on_page(files.folder / "signs.pdf", 1, "The angle α is small")) == 1


@pytest.mark.parametrize(
    ("name", "ticks", "shown"),
    [
        (b"Wingdings-Regular", (b"(\xfc)", b"(\xfb)"), ("✓", "✗")),
        (b"ABCDEF+Wingdings2", (b"(P)", b"(O)"), ("✓", "✗")),
        (b"ABCDEF+Webdings", (b"(a)", b"(r)"), ("✓", "✗")),
    ],
)
def test_ticks_stored_as_the_codes_of_their_font_are_read(
    files: Any, name: bytes, ticks: tuple[bytes, bytes], shown: tuple[str, str]
) -> None:
    """Without a table of letters, a tick of Wingdings is stored as ü, one of Wingdings 2 as P."""
    font = b"/Subtype /Type1 /Encoding /WinAnsiEncoding /BaseFont /" + name
    content = b"".join(
        _row(700 - 30 * at, (b"S", tick), (b"F1", b"( The rope of boat %d is dry and whole)" % at))
        for at, tick in enumerate(ticks)
    )
    text = _parsed(files, content, font).sections[0].text
    assert text.split("\n") == [f"{sign} The rope of boat {at} is dry and whole" for at, sign in enumerate(shown)]


def test_the_bullets_of_a_list_stay_bullets(files: Any) -> None:
    table = _letters((0x41, 0xF0A7), (0x42, 0xF0D8))
    content = b"".join(
        _row(700 - 20 * at, (b"S", b"(%c)" % sign), (b"F1", b"( Rope)")) for at, sign in enumerate(b"AB")
    )
    font = b"/Subtype /Type1 /BaseFont /QWERTY+Wingdings-Regular /Encoding /WinAnsiEncoding /ToUnicode 7 0 R"
    assert _parsed(files, content, font, [table]).sections[0].text == "• Rope\n• Rope"


def _drawn_font(codes: Sequence[int], blank: Sequence[int] = (), numbers: str = "g") -> tuple[bytes, list[bytes]]:
    """A font whose glyphs are drawn as boxes and have names that tell no letter, as TeX's bitmaps do."""
    names = b" ".join(b"%d /%s%d" % (code, numbers.encode(), code) for code in codes)
    glyphs = b" ".join(b"/%s%d %d 0 R" % (numbers.encode(), code, 7 + (code in blank)) for code in codes)
    font = b"/Subtype /Type3 /FontBBox [0 0 600 700] /FontMatrix [0.001 0 0 0.001 0 0] /Encoding << /Differences ["
    font += names + b"] >> /CharProcs << " + glyphs + b" >> /FirstChar 0 /LastChar 255 /Widths ["
    font += b"600 " * 256 + b"] /Resources << >>"
    shapes = (b"600 0 0 0 600 700 d1 50 200 500 60 re f", b"600 0 0 0 0 0 d1")
    return font, [b"<< /Length %d >>\nstream\n%s\nendstream" % (len(shape), shape) for shape in shapes]


def test_a_glyph_without_a_letter_is_told_and_a_blank_one_is_a_space(files: Any) -> None:
    font, glyphs = _drawn_font([2, 5, 9], blank=[9])
    content = _row(700, (b"F1", b"(Loss of the year:)"), (b"S", b"<09>"), (b"S", b"<05>"), (b"F1", b"(4,200 euros)"))
    content += _row(640, (b"F1", b"(A rope of 7)"), (b"S", b"<02>"), (b"F1", b"(3 ells)"))
    parsed = _parsed(files, content, font, glyphs)
    assert parsed.sections[0].text == "Loss of the year: \ufffd4,200 euros\n\nA rope of 7\ufffd3 ells"
    assert parsed.warnings == ["Signs to which a font gives no letter are shown as \ufffd: 2 of them, on page 1."]


@pytest.mark.parametrize("codes", [(12, 13, 14), (28, 29, 30)])
def test_ligatures_of_bitmaps_that_tex_made_are_read(files: Any, codes: tuple[int, int, int]) -> None:
    """Its older fonts have fi, fl and ffi at 12 to 14, its newer ones at 28 to 30; letters are at their usual codes."""
    font, glyphs = _drawn_font([*range(97, 123), *codes], numbers="a")
    parts = (
        b"(the )",
        b"<%02x>" % codes[0],
        b"(sh and the )",
        b"<%02x>" % codes[1],
        b"(ag of the o)",
        b"<%02x>" % codes[2],
    )
    content = _row(700, *((b"S", part) for part in (*parts, b"(ce)")))
    parsed = _parsed(files, content, font, glyphs)
    assert parsed.sections[0].text.replace(" ", "") == "thefishandtheflagoftheoffice"


@pytest.mark.parametrize(
    ("font", "codes", "read"),
    [
        (b"CMEX10", b"PQR", "∑ ∏ ∫"),
        (b"LMMathExtension10-Regular", b"XYZ", "∑ ∏ ∫"),
        (b"CMSY8", b"0kh", "′ ‖ ⟨"),
        (b"MSBM10", b"(,?", "⊊ ∦ ∅"),
    ],
)
def test_signs_of_tex_are_read_by_their_font(files: Any, font: bytes, codes: bytes, read: str) -> None:
    """Their glyphs have names that no table of letters has, so that a sum reads X and a prime 0."""
    entry, glyphs = _drawn_font(codes)
    entry += b" /BaseFont /ABCDEF+" + font
    content = b"".join(
        _row(700 - 60 * at, (b"F1", b"(See )"), (b"S", b"<%02x>" % code)) for at, code in enumerate(codes)
    )
    text = _parsed(files, content, entry, glyphs).sections[0].text
    assert text.split("\n\n") == [f"See {sign}" for sign in read.split()]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("x\u0338= y", "x≠ y"),
        ("x =\u0338 y", "x ≠ y"),
        ("x \u0338∈ M", "x ∉ M"),
        ("x ↦→ y", "x ↦ y"),
        ("|\r\n|\r\n| x", "| x"),
    ],
)
def test_the_parts_of_which_tex_makes_a_sign_are_one(text: str, read: str) -> None:
    assert " ".join(cleaning.characters(pdf_glyphs.joined(text)).split()) == read


def _placed(*spots: tuple[float, float, bytes, int, bytes]) -> bytes:
    """Draw texts: (x, y, name of the font, size, what is shown)."""
    return b"".join(
        b"BT /%s %d Tf %g %g Td (%s) Tj ET\n" % (font, size, x, y, shown) for x, y, font, size, shown in spots
    )


@pytest.mark.parametrize(
    ("over", "under", "sign", "read"),
    [
        ((103, 716, b"n"), (98, 690, b"i=1"), b"\xe5", "∑_(i=1)^n"),
        ((112, 710, b"n"), (112, 696, b"i=1"), b"\xd5", "∏_(i=1)^n"),  # as in a line of text
        ((97, 716, b"n+1"), (98, 690, b"i=1"), b"\xe5", "∑_(i=1)^(n+1)"),  # wider than the sign
        (None, (110, 694, b"C"), b"\xf2", "∫_C"),
        (None, (97, 690, b"day 1"), b"\xe5", "∑_(day 1)"),
    ],
)
def test_limits_stand_at_their_sign(files: Any, over: Any, under: Any, sign: bytes, read: str) -> None:
    """They stood between the sign and what is summed, each as a paragraph of its own."""
    limits = [(x, y, b"F1", 8, shown) for x, y, shown in filter(None, (over, under))]
    spots = [(72, 700, b"F1", 12, b"S ="), (98, 699, b"S", 14, sign), *limits, (124, 700, b"F1", 12, b"x holds.")]
    text = _parsed(files, _placed(*spots), b"/Subtype /Type1 /BaseFont /Symbol").sections[0].text
    assert text == f"S = {read} x holds."


@pytest.mark.parametrize(
    ("rows", "over", "under", "summed"),
    [
        ((713, 686), (112, 10), (112, -4), 124),  # as in a line of text
        ((717, 681), (101, 14), (98, -11), 112),  # as in a displayed formula
    ],
)
def test_limits_stand_at_their_sign_in_a_fraction_too(
    files: Any, rows: Any, over: Any, under: Any, summed: int
) -> None:
    spots = [(72, 700, b"F1", 12, b"S =")]
    for y, letter in zip(rows, (b"a", b"b"), strict=True):
        spots += [(98, y, b"S", 14, b"\xe5"), (over[0], y + over[1], b"F1", 8, b"n")]
        spots += [(under[0], y + under[1], b"F1", 8, b"i=1"), (summed, y, b"F1", 12, letter)]
    spots += [(summed + 12, 700, b"F1", 12, b"holds.")]
    content = _placed(*spots) + b"98 703 %d 0.5 re f\n" % (summed - 91)
    text = _parsed(files, content, b"/Subtype /Type1 /BaseFont /Symbol").sections[0].text
    assert text == "S = (∑_(i=1)^n a)/(∑_(i=1)^n b) holds."


_ROOT = b"\xd6"


@pytest.mark.parametrize(
    ("inside", "bar", "behind", "read"),
    [
        ([(107, 700, b"F1", 12, b"x + 1")], 28, 138, "y = √(x + 1) holds."),
        ([(107, 700, b"F1", 12, b"x")], 7, 116, "y = √x holds."),
        ([(107, 700, b"F1", 12, b"x"), (115, 704, b"F1", 8, b"2"), (123, 700, b"F1", 12, b"+ 1")], 35, 146,
         "y = √(x^2 + 1) holds."),
        ([(101, 705, b"F1", 5, b"3"), (107, 700, b"F1", 12, b"7")], 7, 116, "y = ∛7 holds."),
    ],
)  # fmt: skip
def test_a_root_ends_where_its_line_ends(files: Any, inside: Any, bar: int, behind: int, read: str) -> None:
    """√(x + 1) was read as √x + 1."""
    spots = [(72, 700, b"F1", 12, b"y ="), (100, 700, b"S", 12, _ROOT), *inside, (behind, 700, b"F1", 12, b"holds.")]
    content = _placed(*spots) + b"106 710.7 %d 0.5 re f\n" % bar
    assert _parsed(files, content, b"/Subtype /Type1 /BaseFont /Symbol").sections[0].text == read


def test_roots_in_fractions_and_fractions_in_roots(files: Any) -> None:
    """The fraction was torn: "√5 2"."""
    over = [(98, 709, b"S", 12, _ROOT), (105, 709, b"F1", 12, b"5"), (102, 690, b"F1", 12, b"2")]
    under = [(98, 610, b"S", 32, _ROOT), (117, 623, b"F1", 12, b"1"), (117, 605, b"F1", 12, b"3")]
    spots = [(72, 700, b"F1", 12, b"y ="), *over, (117, 700, b"F1", 12, b"holds.")]
    spots += [(72, 616, b"F1", 12, b"z ="), *under, (130, 616, b"F1", 12, b"holds.")]
    content = _placed(*spots) + b"104 719.7 9 0.5 re f 97 703 16 0.5 re f 114 638.9 12 0.5 re f 116 619 9 0.5 re f\n"
    text = _parsed(files, content, b"/Subtype /Type1 /BaseFont /Symbol").sections[0].text
    assert " ".join(text.split()) == "y = (√5)/2 holds. z = √(1/3) holds."


def test_what_stands_around_a_sign_in_text_of_one_size_is_no_limit(files: Any) -> None:
    spots = [(72, 714, b"F1", 12, b"Year"), (120, 714, b"S", 12, b"\xe5"), (72, 700, b"F1", 12, b"1871")]
    spots += [
        (120, 700, b"F1", 12, b"12"),
        (72, 660, b"F1", 12, b"max"),
        (74, 650, b"F1", 8, b"kg"),
        (124, 660, b"F1", 12, b"9"),
    ]
    text = _parsed(files, _placed(*spots), b"/Subtype /Type1 /BaseFont /Symbol").sections[0].text
    assert "_" not in text
    assert "^" not in text


def test_a_tall_bracket_leaves_its_line_in_the_paragraph(files: Any) -> None:
    line = b"(Let the set be given of all the points of the plane that are as far from one as from the other point,)"
    tall = b"BT 160 684 Td /F1 30 Tf (\\{) Tj ET\nBT 220 686 Td /F1 12 Tf (x, y > 0) Tj ET\n"
    content = _row(700, (b"F1", line)) + _row(686, (b"F1", b"(and also the)")) + tall
    text = _parsed(files, content, b"/Subtype /Type1 /BaseFont /Courier").sections[0].text
    assert "\n" not in text
