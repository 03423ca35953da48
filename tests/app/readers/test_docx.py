"""What Word files say: numbers, tables, fields, formulas, notes, what stands beside the text; nothing is lost."""

from __future__ import annotations

import io
import re
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.readers import docx, numerals
from app.readers.parsed import Limits, Parsed
from tests.app.readers.conftest import WORD
from tests.tally import count

_NAMES = (
    f'xmlns:w="{WORD}" xmlns:m="math" xmlns:r="rel" xmlns:mc="mc" xmlns:w14="w14" xmlns:wp="wp" xmlns:a="a"'
    ' xmlns:dgm="dgm" xmlns:c="c" xmlns:v="v" xmlns:o="o"'
)
_REL = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def _silent(done: int, total: int, page: int | None) -> None:
    """Nobody listens."""


def _document(folder: Path, body: str, related: dict[str, tuple[str, str]] | None = None, **parts: str) -> Parsed:
    """A file of a body, of parts by their usual names, and of others by relation id -> (kind, content)."""
    related = related or {}
    links = "".join(
        f'<Relationship Id="{identity}" Type="{_REL}/{kind}" Target="{identity}.xml"/>'
        for identity, (kind, _) in related.items()
    )
    path = folder / "a.docx"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("word/document.xml", f"<w:document {_NAMES}><w:body>{body}</w:body></w:document>")
        file.writestr("word/_rels/document.xml.rels", f"<Relationships>{links}</Relationships>")
        for name, content in parts.items():
            file.writestr(f"word/{name}.xml", f"<w:{name} {_NAMES}>{content}</w:{name}>")
        for identity, (_, content) in related.items():
            file.writestr(f"word/{identity}.xml", content)
    return docx.parse(path, {}, Limits(), _silent)


def _text(parsed: Parsed) -> str:
    return "\n\n".join(section.text for section in parsed.sections)


def _p(text: str, properties: str = "") -> str:
    return f"<w:p>{f'<w:pPr>{properties}</w:pPr>' if properties else ''}{_r(text)}</w:p>"


def _r(text: str, properties: str = "") -> str:
    return f"<w:r>{f'<w:rPr>{properties}</w:rPr>' if properties else ''}<w:t>{text}</w:t></w:r>"


def _item(text: str, number: int, level: int = 0) -> str:
    return _p(text, f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{number}"/></w:numPr>')


def _level(at: int, form: str, text: str, start: int = 1, more: str = "") -> str:
    head = f'<w:lvl w:ilvl="{at}"><w:start w:val="{start}"/><w:numFmt w:val="{form}"/>'
    return f'{head}{more}<w:lvlText w:val="{text}"/></w:lvl>'


def _lists(abstract: dict[int, str], numbers: dict[int, tuple[int, str]]) -> str:
    heads = "".join(
        f'<w:abstractNum w:abstractNumId="{at}">{levels}</w:abstractNum>' for at, levels in abstract.items()
    )
    return heads + "".join(
        f'<w:num w:numId="{at}"><w:abstractNumId w:val="{made_of}"/>{changes}</w:num>'
        for at, (made_of, changes) in numbers.items()
    )


_CLAUSES = _level(0, "decimal", "%1.") + _level(1, "decimal", "%1.%2") + _level(2, "lowerLetter", "(%3)")
_ANEW = '<w:lvlOverride w:ilvl="0"><w:startOverride w:val="{}"/></w:lvlOverride>'

NUMBERS = {
    "levels count below each other": (
        [(0, "a"), (1, "b"), (1, "c"), (2, "d"), (2, "e"), (0, "f"), (1, "g")],
        _CLAUSES,
        "1. a/1.1 b/1.2 c/    (a) d/    (b) e/2. f/2.1 g",
    ),
    "a level that never restarts": (
        [(0, "a"), (1, "b"), (0, "c"), (1, "d")],
        _level(0, "upperRoman", "%1") + _level(1, "decimal", "%2)", more='<w:lvlRestart w:val="0"/>'),
        "I a/  1) b/II c/  2) d",
    ),
    "digits where Roman numerals would be, for the law": (
        [(0, "a"), (1, "b")],
        _level(0, "upperRoman", "Article %1") + _level(1, "decimal", "%1.%2", more="<w:isLgl/>"),
        "Article I a/1.1 b",
    ),
    "a start of its own": ([(0, "a"), (0, "b")], _level(0, "decimalZero", "%1", 9), "09 a/10 b"),
    "a level without the one above": ([(1, "a"), (1, "b")], _CLAUSES, "1.1 a/1.2 b"),
    "bullets of any font": ([(0, "a")], _level(0, "bullet", "\uf0b7"), "• a"),
    "boxes to tick": (
        [(0, "a")],
        _level(0, "bullet", "\uf0a8", more='<w:rPr><w:rFonts w:ascii="Wingdings"/></w:rPr>'),
        "☐ a",
    ),
    "three digits": (
        [(0, "a")],
        '<w:lvl w:ilvl="0"><w:start w:val="7"/><mc:AlternateContent><mc:Choice><w:numFmt w:val="custom"'
        ' w:format="001, 002"/></mc:Choice><mc:Fallback><w:numFmt w:val="decimal"/></mc:Fallback></mc:AlternateContent>'
        '<w:lvlText w:val="%1"/></w:lvl>',
        "007 a",
    ),
    "no number": ([(0, "a")], _level(0, "none", ""), "a"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_automatic_numbers(tmp_path: Path, name: str) -> None:
    items, levels, expected = NUMBERS[name]
    body = "".join(_item(text, 1, level) for level, text in items)
    assert _text(_document(tmp_path, body, numbering=_lists({0: levels}, {1: (0, "")}))) == expected.replace(
        "/", "\n\n"
    )


def test_lists_of_one_kind_go_on_unless_they_start_anew(tmp_path: Path) -> None:
    lists = _lists({0: _CLAUSES}, {1: (0, ""), 2: (0, ""), 3: (0, _ANEW.format(7))})
    body = "".join(_item(text, number) for number, text in [(1, "a"), (2, "b"), (3, "c"), (3, "d"), (9, "e"), (0, "f")])
    assert _text(_document(tmp_path, body, numbering=lists)) == "1. a\n\n2. b\n\n7. c\n\n8. d\n\ne\n\nf"


def test_headings_are_numbered_by_their_styles(tmp_path: Path) -> None:
    levels = _level(0, "decimal", "%1", more='<w:pStyle w:val="H1"/>') + _level(
        1, "decimal", "%1.%2", more='<w:pStyle w:val="H2"/>'
    )
    styles = (
        '<w:style w:styleId="H1"><w:name w:val="heading 1"/><w:pPr><w:numPr><w:numId w:val="1"/></w:numPr></w:pPr>'
        "</w:style>"
        '<w:style w:styleId="H2"><w:name w:val="heading 2"/><w:basedOn w:val="H1"/></w:style>'
        '<w:style w:styleId="Own"><w:name w:val="My head"/><w:basedOn w:val="H2"/></w:style>'
    )
    body = (
        _p("Light", '<w:pStyle w:val="H1"/>')
        + _p("Wick", '<w:pStyle w:val="H2"/>')
        + _p("text")
        + _p("Unnumbered", '<w:pStyle w:val="Own"/><w:numPr><w:numId w:val="0"/></w:numPr>')
        + _p("Oil", '<w:pStyle w:val="H2"/>')
    )
    parsed = _document(tmp_path, body, styles=styles, numbering=_lists({0: levels}, {1: (0, "")}))
    assert [entry.title for entry in parsed.outline] == ["1 Light", "Unnumbered", "1.2 Oil"]
    assert parsed.sections[0].text == "1 Light\n\n1.1 Wick\n\ntext"


def test_numbers_that_hide_and_numbers_deleted_with_their_paragraph(tmp_path: Path) -> None:
    gone = (
        '<w:p><w:pPr><w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr><w:rPr><w:del/></w:rPr></w:pPr>'
        "<w:del><w:r><w:delText>gone</w:delText></w:r></w:del></w:p>"
    )
    body = _item("a", 1) + gone + _item("b", 1)
    parsed = _document(tmp_path, body, numbering=_lists({0: _CLAUSES}, {1: (0, "")}))
    assert _text(parsed) == "1. a\n\n2. b"
    assert parsed.warnings == ["40% of the text was left out: it is marked as deleted."]


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (_r("Pay ") + _r("480", "<w:strike/>") + _r(" 520."), "Pay ~~480~~ 520."),
        (_r("Pay ") + _r("480 ", "<w:dstrike/>") + _r("520."), "Pay ~~480~~ 520."),
        (_r("x") + _r("2", '<w:vertAlign w:val="superscript"/><w:strike/>') + _r("."), "x~~^2~~."),
        (_r("A boat ", '<w:strike w:val="0"/>') + _r("stays.", '<w:strike w:val="false"/>'), "A boat stays."),
        (_r("Pay ") + _r("480", '<w:rStyle w:val="Gone"/>') + _r(" 520."), "Pay ~~480~~ 520."),
        (_r("480", '<w:rStyle w:val="Gone"/><w:strike w:val="0"/>'), "480"),
    ],
)
def test_struck_words_are_marked(tmp_path: Path, runs: str, expected: str) -> None:
    styles = '<w:style w:type="character" w:styleId="Gone"><w:rPr><w:strike/></w:rPr></w:style>'
    assert _text(_document(tmp_path, f"<w:p>{runs}</w:p>", styles=styles)) == expected


def test_one_deleted_word_of_a_long_text_is_told(tmp_path: Path) -> None:
    body = "<w:p><w:r><w:t>You may </w:t></w:r><w:del><w:r><w:delText>not</w:delText></w:r></w:del>" + _r("land.")
    parsed = _document(tmp_path, f"{body}</w:p>" + _p("word " * 5000))
    assert parsed.warnings == ["0.01% of the text was left out: it is marked as deleted."]


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("upperRoman", "MCMXC"),
        ("lowerLetter", "bbbb"),
        ("lower-alpha", "ab"),
        ("ordinal", "22nd"),
        ("ordinalText", "Twenty-first"),
        ("cardinalText", "One hundred twelve"),
        ("japaneseCounting", "二十一"),
        ("hebrew1", "טו"),
        ("decimalFullWidth", "４２"),
        ("lower-greek", "γ"),
        ("decimalEnclosedCircle", "③"),
        ("russianLower", "в"),
        ("no such style", "5"),
    ],
)
def test_numerals(style: str, expected: str) -> None:
    values = {
        "MCMXC": 1990,
        "bbbb": 80,
        "ab": 28,
        "22nd": 22,
        "Twenty-first": 21,
        "One hundred twelve": 112,
        "二十一": 21,
        "טו": 15,
        "４２": 42,
        "5": 5,
    }
    assert numerals.written(values.get(expected, 3), style) == expected
    assert numerals.written(-1, style) == "-1"


def _cell(inner: str, properties: str = "") -> str:
    return f"<w:tc>{f'<w:tcPr>{properties}</w:tcPr>' if properties else ''}{inner or '<w:p/>'}</w:tc>"


def _row(*cells: str) -> str:
    made = (cell if cell.startswith("<w:tc") else _cell(_p(cell) if cell else "") for cell in cells)
    return f"<w:tr>{''.join(made)}</w:tr>"


TABLES = {
    "empty cells": (
        _row("Place", "Q1", "Q2") + _row("North", "", "12") + _row("South", "7", ""),
        "Place | Q1 | Q2\nNorth | | 12\nSouth | 7 |",
    ),
    "paragraphs in a cell": (_row(_cell(_p("Lamp") + _p("of oil")), "4"), "Lamp of oil | 4"),
    "merged cells": (
        _row(_cell(_p("Place"), '<w:vMerge w:val="restart"/>'), _cell(_p("1891"), '<w:gridSpan w:val="2"/>'), "1892")
        + _row(_cell("", "<w:vMerge/>"), "Q1", "Q2", "Q1")
        + _row("North", "1", "2", "3"),
        "Place | 1891 | | 1892\n| Q1 | Q2 | Q1\nNorth | 1 | 2 | 3",
    ),
    "a row that begins later": (
        "<w:tr><w:trPr><w:gridBefore w:val='1'/></w:trPr>"
        + _cell(_p("Q1"))
        + _cell(_p("Q2"))
        + "</w:tr>"
        + _row("North", "1", "2"),
        "| Q1 | Q2\nNorth | 1 | 2",
    ),
    "a table in a cell": (
        _row("North", _cell(_p("lamps") + f"<w:tbl>{_row('oil', '3')}{_row('gas', '4')}</w:tbl>"))
        + _row("South", "no"),
        "North | lamps\n  oil | 3\n  gas | 4\nSouth | no",
    ),
    "a box around text": (_row(_cell(_p("First line.") + _p("Second line."))), "First line.\n\nSecond line."),
    "cells in controls": (
        "<w:tr><w:sdt><w:sdtContent>" + _cell(_p("a")) + "</w:sdtContent></w:sdt>" + _cell(_p("1")) + "</w:tr>",
        "a | 1",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables(tmp_path: Path, name: str) -> None:
    rows, expected = TABLES[name]
    assert _text(_document(tmp_path, f"<w:tbl>{rows}</w:tbl>")) == expected


def _field(code: str, result: str | None = None, settings: str = "") -> str:
    shown = "" if result is None else f'<w:r><w:fldChar w:fldCharType="separate"/></w:r>{_r(result)}'
    return (
        f'<w:r><w:fldChar w:fldCharType="begin">{settings}</w:fldChar></w:r>'
        f"<w:r><w:instrText>{code}</w:instrText></w:r>"
        f'{shown}<w:r><w:fldChar w:fldCharType="end"/></w:r>'
    )


def _tick(checked: str) -> str:
    return f"<w:ffData><w:checkBox><w:default w:val='0'/>{checked}</w:checkBox></w:ffData>"


def _m(text: str) -> str:
    return f"<m:r><m:t>{text}</m:t></m:r>"


_CHOICE = (
    '<w:ffData><w:ddList><w:result w:val="1"/><w:listEntry w:val="Single"/><w:listEntry w:val="Widowed"/></w:ddList>'
    "</w:ffData>"
)
_SHOWN = '<w:vanish w:val="0"/>'
_SUP, _SUB = '<w:vertAlign w:val="superscript"/>', '<w:vertAlign w:val="subscript"/>'
_BOX = (
    "<w:r><mc:AlternateContent><mc:Choice><w:drawing><w:txbxContent>{0}</w:txbxContent></w:drawing></mc:Choice>"
    "<mc:Fallback><w:pict><w:txbxContent>{0}</w:txbxContent></w:pict></mc:Fallback></mc:AlternateContent></w:r>"
)

INLINE = {
    "powers, also in pieces": (_r("10") + _r("1", _SUP) + _r("6", _SUP) + _r(" m") + _r("3", _SUP), "10^16 m^3"),
    "figures after a script": (_r("log") + _r("10", _SUB) + _r("5, y") + _r("2", _SUP) + _r("3"), "log_10 5, y^2 3"),
    "raised by points": (_r("10") + _r("6", '<w:position w:val="8"/>') + _r("m"), "10^6m"),
    "words set higher": (_r("High ") + _r("words", '<w:position w:val="8"/>'), "High words"),
    "a fraction": (_r("2") + _r("1", _SUP) + _r("/") + _r("2", _SUB) + _r(" cups"), "2 1/2 cups"),
    "notes and chemistry": (_r("1871") + _r("3", _SUP) + _r(" H") + _r("2", _SUB) + _r("O"), "1871[3] H2O"),
    "signs of Symbol": (
        _r("5 ")
        + '<w:r><w:sym w:font="Symbol" w:char="F06D"/></w:r>'
        + _r("g ")
        + _r("\uf0b3", '<w:rFonts w:ascii="Symbol"/>')
        + _r(" a", '<w:rFonts w:hAnsi="Symbol"/>'),
        "5 μg ≥ α",
    ),
    "signs of Wingdings": (
        '<w:r><w:sym w:font="Wingdings" w:char="F0FE"/></w:r>'
        + _r(" wick ")
        + '<w:r><w:sym w:font="Wingdings" w:char="F0A8"/></w:r>'
        + _r(" oil"),
        "☑ wick ☐ oil",
    ),
    "a sign of no known font": (_r("a ") + '<w:r><w:sym w:font="Own" w:char="F041"/></w:r>', "a \ufffd"),
    "ticks of forms": (
        _field("FORMCHECKBOX", "", _tick("<w:checked/>"))
        + _r(" wick ")
        + _field("FORMCHECKBOX", "", _tick(""))
        + _r(" oil"),
        "☒ wick ☐ oil",
    ),
    "a choice": (_r("Status: ") + _field("FORMDROPDOWN", "", _CHOICE), "Status: Widowed"),
    "a choice that also stands in the text": (_field("FORMDROPDOWN", "Widowed", _CHOICE), "Widowed"),
    "an old fraction": (_r("take ") + _field(r" EQ \f(1;4) "), "take 1/4"),
    "an old sign": (_field(r' SYMBOL 97 \f "Symbol" \s 12'), "α"),
    "a field in the code of a field": (
        _r("a ")
        + _field("IF ", "yes").replace(
            "<w:instrText>IF ",
            f"<w:instrText>IF </w:instrText></w:r>{_field('MERGEFIELD', 'hidden')}<w:r><w:instrText>",
        ),
        "a yes",
    ),
    "a field that nobody ends": ('<w:r><w:fldChar w:fldCharType="begin"/></w:r>' + _r("the words"), "the words"),
    "a page's number that nobody ends": (
        _field("PAGE", "3").removesuffix('<w:r><w:fldChar w:fldCharType="end"/></w:r>') + _r("the words of the text"),
        "3the words of the text",
    ),
    "a quarter": ("<m:oMath><m:f><m:num>" + _m("1") + "</m:num><m:den>" + _m("4") + "</m:den></m:f></m:oMath>", "1/4"),
    "two and a half": (
        _r("2") + "<m:oMath><m:f><m:num>" + _m("1") + "</m:num><m:den>" + _m("2") + "</m:den></m:f></m:oMath>",
        "2 1/2",
    ),
    "a sum": (
        '<m:oMath><m:nary><m:naryPr><m:chr m:val="∑"/></m:naryPr><m:sub>'
        + _m("i=1")
        + "</m:sub><m:sup>"
        + _m("n")
        + "</m:sup><m:e><m:sSub><m:e>"
        + _m("x")
        + "</m:e><m:sub>"
        + _m("i")
        + "</m:sub></m:sSub></m:e></m:nary></m:oMath>",
        "∑_(i=1)^n x_i",
    ),
    "a matrix": (
        "<m:oMath><m:d><m:e><m:m><m:mr><m:e>"
        + _m("1")
        + "</m:e><m:e>"
        + _m("2")
        + "</m:e></m:mr><m:mr><m:e>"
        + _m("3")
        + "</m:e><m:e>"
        + _m("4")
        + "</m:e></m:mr></m:m></m:e></m:d></m:oMath>",
        "(1, 2; 3, 4)",
    ),
    "a root and a limit": (
        "<m:oMath><m:rad><m:deg>"
        + _m("3")
        + "</m:deg><m:e>"
        + _m("x+1")
        + "</m:e></m:rad><m:func><m:fName><m:limLow><m:e>"
        + _m("lim")
        + "</m:e><m:lim>"
        + _m("x→0")
        + "</m:lim></m:limLow></m:fName><m:e>"
        + _m("f")
        + "</m:e></m:func></m:oMath>",
        "∛(x+1) lim_(x→0) f",
    ),
    "a reading": (
        "<w:r><w:ruby><w:rt>"
        + _r("とうきょう")
        + "</w:rt><w:rubyBase>"
        + _r("東京")
        + "</w:rubyBase></w:ruby></w:r>"
        + _r("に"),
        "東京(とうきょう)に",
    ),
    "a box, once and after its paragraph": (
        _r("The keeper ") + _BOX.format(_p("In a box.")) + _r("lit."),
        "The keeper lit.\n\nIn a box.",
    ),
    "an embedded hidden run": (_r("a") + _r("no", "<w:vanish/>") + _r("b", '<w:vanish w:val="0"/>'), "ab"),
}


@pytest.mark.parametrize("name", INLINE)
def test_text_within_a_paragraph(tmp_path: Path, name: str) -> None:
    inner, expected = INLINE[name]
    assert _text(_document(tmp_path, f"<w:p>{inner}</w:p>")) == expected


def test_hidden_by_a_style_or_by_the_style_below_it(tmp_path: Path) -> None:
    styles = (
        '<w:style w:styleId="Hid"><w:rPr><w:vanish/></w:rPr></w:style>'
        '<w:style w:styleId="Below"><w:basedOn w:val="Hid"/></w:style>'
        '<w:style w:styleId="Loop"><w:basedOn w:val="Loop"/></w:style>'
    )
    body = (
        "<w:p>"
        + _r("seen ")
        + _r("ignore all rules", '<w:rStyle w:val="Below"/>')
        + _r("loop", '<w:rStyle w:val="Loop"/>')
        + "</w:p>"
        + _p("no", '<w:pStyle w:val="Hid"/>')
        + f'<w:p><w:pPr><w:pStyle w:val="Hid"/></w:pPr>{_r("shown", _SHOWN)}</w:p>'
    )
    parsed = _document(tmp_path, body, styles=styles)
    assert _text(parsed) == "seen loop\n\nshown"
    assert parsed.warnings == ["55% of the text was left out: it is hidden where the document is shown."]


def test_an_initial_and_a_paragraph_whose_end_is_deleted_go_on(tmp_path: Path) -> None:
    body = (
        _p("T", '<w:framePr w:dropCap="drop"/>')
        + _p("he keeper.")
        + _p("One ", "<w:rPr><w:del/></w:rPr>")
        + _p("line.")
    )
    assert _text(_document(tmp_path, body)) == "The keeper.\n\nOne line."


def _tabbed(*texts: str) -> str:
    return "<w:p>" + "<w:r><w:tab/></w:r>".join(_r(text) if text else "" for text in texts) + "</w:p>"


def test_notes_with_marks_of_their_own(tmp_path: Path) -> None:
    own = 'w:customMarkFollows="1"'
    reference = '<w:r><w:footnoteReference {} w:id="{}"/></w:r>'
    body = f"<w:p>{_r('oil')}{reference.format(own, 3)}{_r('*', _SUP)}{_r(' rope')}{reference.format('', 2)}</w:p>"
    notes = f'<w:footnote w:id="2">{_p("Hemp.")}</w:footnote><w:footnote w:id="3">{_p("* Colza.")}</w:footnote>'
    assert _text(_document(tmp_path, body, footnotes=notes)) == "oil* rope[1]\n\n* Colza.\n\n1. Hemp."


def test_columns_made_with_tabs(tmp_path: Path) -> None:
    rows = _tabbed("Name", "Jan", "Mar") + _tabbed("Holm", "", "12") + _tabbed("Bray", "7", "")
    other = _p("Text.") + _tabbed("1.", "Ring") + _tabbed("2.", "Light") + _p("End.") + _tabbed("", "indented")
    assert _text(_document(tmp_path, rows + other)) == (
        "Name | Jan | Mar\nHolm | | 12\nBray | 7 |\n\nText.\n\n1. Ring\n\n2. Light\n\nEnd.\n\nindented"
    )


def test_comments_stand_at_the_end_with_what_they_are_about(tmp_path: Path) -> None:
    body = (
        "<w:p>"
        + _r("The plant made ")
        + '<w:commentRangeStart w:id="0"/>'
        + _r("57")
        + '<w:commentRangeEnd w:id="0"/>'
        + _r(" pumps.")
        + "</w:p>"
    )
    comments = f'<w:comment w:id="0" w:author="Ada Quill">{_p("The audit says 41.")}</w:comment>'
    parsed = _document(tmp_path, body, comments=comments)
    assert [(section.label, section.text) for section in parsed.sections][1:] == [
        ("Comments", "Ada Quill on “57”: The audit says 41.")
    ]
    assert parsed.warnings == ["1 comment of a reviewer stands at the end, in a section “Comments”."]
    without = docx.parse(tmp_path / "a.docx", {"comments": False}, Limits(), _silent)
    assert [section.text for section in without.sections] == ["The plant made 57 pumps."]
    assert without.warnings == ["Comments of reviewers were left out, as asked: 1."]


def test_a_picture_stands_where_it_is_by_its_description(tmp_path: Path) -> None:
    def picture(alt: str) -> str:
        return f'<w:r><w:drawing><wp:docPr descr="{alt}"/><a:pic/></w:drawing></w:r>'

    alts = ["Oil use: 120 barrels in 1890", "Picture 3", "A tower&#10;&#10;Description automatically generated"]
    body = "".join(f"<w:p>{_r('See ')}{picture(alt)}{_r(' here.')}</w:p>" for alt in alts)
    old = '<w:r><w:pict><v:shape alt="The north light"><v:imagedata/></v:shape></w:pict></w:r>'
    assert _text(_document(tmp_path, body + f"<w:p>{old}</w:p>")) == (
        "See [Image: Oil use: 120 barrels in 1890] here.\n\nSee here.\n\nSee [Image: A tower] here."
        "\n\n[Image: The north light]"
    )


def test_numbers_within_a_paragraph(tmp_path: Path) -> None:
    def number(code: str) -> str:
        parts = ("begin", "", "separate", "end")
        return "".join(
            f'<w:r><w:fldChar w:fldCharType="{part}"/></w:r>'
            if part
            else f"<w:r><w:instrText>{code}</w:instrText></w:r>"
            for part in parts
        )

    one, deep = number(" LISTNUM "), number(" LISTNUM NumberDefault \\l 2 ")
    legal, outline = number(" LISTNUM LegalDefault \\l 2 "), number(" LISTNUM OutlineDefault \\l 1 \\s 4 ")
    body = f"<w:p>{one}{_r(' oil ')}{deep}{_r(' colza ')}{deep}{_r(' fish ')}{one}{_r(' rope')}</w:p>"
    body += f"<w:p>{legal}{_r(' pay ')}{legal}{_r(' keep ')}{outline}{_r(' go')}</w:p>"
    assert _text(_document(tmp_path, body)) == "1) oil a) colza b) fish 2) rope\n\n1.1. pay 1.2. keep IV. go"


def test_program_text_keeps_its_indentation(tmp_path: Path) -> None:
    courier = '<w:rFonts w:ascii="Courier New"/>'
    lines = "".join(
        f'<w:r><w:rPr>{courier}</w:rPr><w:t xml:space="preserve">{line}</w:t><w:br/></w:r>'
        for line in ("def f(x):", "    return x")
    )
    mixed = f"<w:p>{_r('    Call ')}{_r('f', courier)}{_r(' twice.')}</w:p>"
    body = f"<w:p>{lines}</w:p>" + _p("    if x:", '<w:pStyle w:val="SourceCode"/>') + mixed
    assert _text(_document(tmp_path, body)) == "def f(x):\n    return x\n\n    if x:\n\nCall f twice."


def test_headers_that_say_something(tmp_path: Path) -> None:
    def part(inner: str) -> tuple[str, str]:
        return "header", f"<w:hdr {_NAMES}>{inner}</w:hdr>"

    related = {
        "h1": part(
            _p("Contract no. 4711-B")
            + f"<w:p>{_r('Page ')}{_field('PAGE', '3')}{_r(' of ')}{_field('NUMPAGES', '9')}</w:p>"
        ),
        "h2": part(_p("Never shown")),
        "h3": part(_p("The lamp.") + _p("Contract no. 4711-B")),
    }
    body = (
        _p("The lamp.")
        + '<w:sectPr><w:headerReference w:type="default" r:id="h1"/><w:headerReference w:type="first" r:id="h2"/>'
        '<w:footerReference w:type="even" r:id="h3"/></w:sectPr>'
    )
    parsed = _document(tmp_path, body, related)
    assert [(section.label, section.text) for section in parsed.sections][1:] == [
        ("Headers and footers", "Contract no. 4711-B")
    ]
    assert "Never" not in _text(parsed)


_MHT = (
    'MIME-Version: 1.0\nContent-Type: multipart/related; boundary="x"\n\n--x\nContent-Type: text/html\n'
    "Content-Transfer-Encoding: quoted-printable\n\n<p>lit at =\nnine</p>\n--x--"
)


def _inner_file() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("word/document.xml", f"<w:document {_NAMES}><w:body>{_p('lit at nine')}</w:body></w:document>")
    return stream.getvalue()


@pytest.mark.parametrize("content", [_MHT, "<html><p>lit at nine</html>", "lit at nine", _inner_file()])
def test_inserted_documents(tmp_path: Path, content: Any) -> None:
    parsed = _document(tmp_path, _p("a") + '<w:altChunk r:id="x"/>' + _p("b"), {"x": ("aFChunk", content)})
    assert _text(parsed) == "a\n\nlit at nine\n\nb"
    assert parsed.warnings == []


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    objects = '<w:p><w:r><w:object><o:OLEObject ProgID="{}"/></w:object></w:r></w:p>'
    body = _p("a") + '<w:altChunk r:id="x"/>' + objects.format("Equation.3") * 2 + objects.format("Excel.Sheet.12")
    assert _document(tmp_path, body, {"x": ("aFChunk", r"{\rtf1 words}")}).warnings == [
        "A document inserted into this one (x.xml) is not read.",
        "Formulas of an old equation editor, which are pictures, are not read: 2.",
        "Embedded objects are not read: 1 (Excel.Sheet.12).",
    ]


def test_diagrams_and_charts(tmp_path: Path) -> None:
    def point(identity: str, text: str) -> str:
        return f'<dgm:pt modelId="{identity}"><dgm:t><a:p><a:r><a:t>{text}</a:t></a:r></a:p></dgm:t></dgm:pt>'

    def link(order: int, source: str, target: str) -> str:
        return f'<dgm:cxn srcId="{source}" destId="{target}" srcOrd="{order}"/>'

    def kept(name: str, *values: str) -> str:
        return (
            f"<c:{name}><c:ref><c:cache>"
            + "".join(f'<c:pt idx="{at}"><c:v>{value}</c:v></c:pt>' for at, value in enumerate(values) if value)
            + f"</c:cache></c:ref></c:{name}>"
        )

    diagram = (
        f'<dgm:data {_NAMES}><dgm:ptLst><dgm:pt modelId="0" type="doc"/>{point("b", "Second")}{point("c", "Part")}'
        f"{point('a', 'First')}</dgm:ptLst>{link(0, '0', 'a')}{link(1, '0', 'b')}{link(0, 'a', 'c')}</dgm:data>"
    )
    chart = (
        f"<c:chart {_NAMES}><c:title><a:p><a:r><a:t>Ships saved</a:t></a:r></a:p></c:title>"
        f"<c:ser>{kept('tx', 'Holm')}{kept('cat', '1891', '1892')}{kept('val', '3', '9.2000000000000011')}</c:ser>"
        f"<c:ser>{kept('tx', 'Bray')}{kept('cat', '1891', '1892')}{kept('val', '', '4')}</c:ser></c:chart>"
    )
    body = (
        f'<w:p>{_r("a")}<w:r><w:drawing><dgm:relIds r:dm="d"/></w:drawing></w:r></w:p>'
        '<w:p><w:r><w:drawing><c:chart r:id="c"/></w:drawing></w:r></w:p>'
    )
    parsed = _document(tmp_path, body, {"d": ("diagramData", diagram), "c": ("chart", chart)})
    assert _text(parsed) == (
        "a\n\n• First\n  • Part\n• Second\n\n[Chart: Ships saved]\n\n| Holm | Bray\n1891 | 3 |\n1892 | 9.2 | 4"
    )


HOSTILE = {
    "boxes in boxes": "<w:p><w:r><w:pict><w:txbxContent>" * 3_000
    + _p("7")
    + "</w:txbxContent></w:pict></w:r></w:p>" * 3_000,
    "formulas in formulas": "<w:p><m:oMath>"
    + "<m:f><m:num>" * 5_000
    + _m("7")
    + "</m:num></m:f>" * 5_000
    + "</m:oMath></w:p>",
    "spans of an attack": "<w:tbl>"
    + _row(*(_cell(_p("7"), '<w:gridSpan w:val="999999"/>') for _ in range(99))) * 20
    + "</w:tbl>",
    "a million deleted ends": _p("7", "<w:rPr><w:del/></w:rPr>") * 5_000,
    "comments without ends": "".join(f'<w:commentRangeStart w:id="{at}"/>' for at in range(500)) + _p("7") * 500,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_files_that_would_take_for_ever(tmp_path: Path, name: str) -> None:
    assert "7" in _text(_document(tmp_path, HOSTILE[name]))
    count("hostile documents")


_words = st.text(st.sampled_from("abcxyz 0123αß漢"), min_size=1, max_size=12)
_AROUND = (
    "<w:p><w:r><w:t>{}</w:t></w:r></w:p>",
    f"<w:p>{_r('{}', _SUP)}</w:p>",
    f"<w:p>{_r('{}', '<w:vanish/>')}</w:p>",
    "<w:p><w:del><w:r><w:delText>{}</w:delText></w:r></w:del></w:p>",
    "<w:p><w:ins><w:r><w:t>{}</w:t></w:r></w:ins></w:p>",
    f"<w:tbl>{_row('{}', '', 'b')}{_row('', '{}')}</w:tbl>",
    _tabbed("{}", "x", "y"),
    f"<w:p>{_BOX.replace('{0}', _p('{}'))}</w:p>",
    f"<w:p>{_field('REF x', '{}')}</w:p>",
    "<w:sdt><w:sdtContent>" + _p("{}") + "</w:sdtContent></w:sdt>",
    "<w:p><m:oMath><m:sSup><m:e>" + _m("{}") + "</m:e><m:sup>" + _m("2") + "</m:sup></m:sSup></m:oMath></w:p>",
)


@given(st.lists(st.tuples(st.sampled_from(_AROUND), _words), min_size=1, max_size=6))
def test_text_never_shrinks_in_silence(tmp_path_factory: Any, parts: list[tuple[str, str]]) -> None:
    """Every letter of a file's texts is read, or it was counted with the reason why not."""
    body = _p("start") + "".join(around.replace("{}", words) for around, words in parts)
    parsed = _document(tmp_path_factory.getbasetemp(), body)
    read = Counter(sign for sign in _text(parsed) if sign.isalnum())
    shown = re.sub(r"<mc:Fallback>.*?</mc:Fallback>|<w:instrText>.*?</w:instrText>", "", body)
    source = Counter(sign for sign in re.sub(r"<[^>]*>", "", shown) if sign.isalnum())
    assert sum((source - read).values()) == sum(parsed.left_out.values())


def test_nested_lists_are_indented(tmp_path: Path) -> None:
    bullets = "".join(_level(at, "bullet", "o") for at in range(3))
    numbering = _lists({0: bullets, 1: _CLAUSES}, {1: (0, ""), 2: (1, "")})
    body = _item("Holm", 1) + _item("Ada", 1, 1) + _item("Dan", 1, 2) + _item("Rent", 2) + _item("Due", 2, 1)
    text = _text(_document(tmp_path, body + _item("at once", 2, 2), numbering=numbering))
    assert text.split("\n\n") == ["• Holm", "  • Ada", "    • Dan", "1. Rent", "1.1 Due", "    (a) at once"]
    single = _lists({0: _level(0, "decimal", "%1."), 1: _level(0, "decimal", "%1.")}, {1: (0, ""), 2: (1, "")})
    styles = "".join(
        f'<w:style w:styleId="s{at}"><w:name w:val="{name}"/><w:pPr><w:numPr><w:numId w:val="{at}"/></w:numPr></w:pPr>'
        "</w:style>"
        for at, name in ((1, "List Number"), (2, "List Number 2"))
    )
    body = "".join(_p(text, f'<w:pStyle w:val="s{style}"/>') for text, style in (("Letters", 1), ("of May", 2)))
    assert _text(_document(tmp_path, body, numbering=single, styles=styles)) == "1. Letters\n\n  1. of May"


def test_notes_are_numbered_as_the_file_says(tmp_path: Path) -> None:
    def mark(kind: str, identity: int) -> str:
        return f'<w:r><w:{kind}Reference w:id="{identity}"/></w:r>'

    def notes(kind: str, *texts: str) -> str:
        return "".join(f'<w:{kind} w:id="{at}">{_p(text)}</w:{kind}>' for at, text in enumerate(texts, 1))

    body = (
        f"<w:p>{_r('One')}{mark('footnote', 1)}{mark('endnote', 1)}<w:pPr><w:sectPr/></w:pPr></w:p>"
        f"<w:p>{_r('Two')}{mark('footnote', 2)}{mark('endnote', 2)}</w:p>"
        '<w:sectPr><w:footnotePr><w:numFmt w:val="upperLetter"/><w:numRestart w:val="eachSect"/></w:footnotePr>'
        "</w:sectPr>"
    )
    settings = '<w:footnotePr><w:numStart w:val="4"/></w:footnotePr>'
    said, ends = notes("footnote", "a", "b"), notes("endnote", "c", "d")
    text = _text(_document(tmp_path, body, settings=settings, footnotes=said, endnotes=ends))
    assert text.split("\n\n") == ["One[4][i]", "Two[D][ii]", "4. a", "D. b", "i. c", "ii. d"]


def test_content_controls_show_the_data_to_which_they_are_bound(tmp_path: Path) -> None:
    def control(path: str, text: str, more: str = "") -> str:
        binding = f'<w:dataBinding w:xpath="{path}" w:storeItemID="{{AB}}"/>'
        content = f"<w:sdtContent>{_r(text)}{_r(' x')}</w:sdtContent>"
        return f"<w:sdt><w:sdtPr>{binding}{more}</w:sdtPr>{content}</w:sdt>"

    chosen = '<w:dropDownList><w:listItem w:displayText="Holm harbour" w:value="7"/></w:dropDownList>'
    body = "".join(
        f"<w:p>{one}</w:p>"
        for one in (
            control("/n:deal[1]/n:party[2]", "Click to enter"), control("/n:deal[1]/@sum", "900"),
            control("/deal/place", "nowhere", chosen), control("/deal/missing", "kept"),
            control("/deal//party", "kept"),
            control("/deal/empty", "Click here", "<w:showingPlcHdr/>"),
            control("/deal/party", "4 May", "<w:date/>"),
        )
    )  # fmt: skip
    path = tmp_path / "a.docx"
    _document(tmp_path, body)
    with zipfile.ZipFile(path, "a") as file:
        data = "<deal sum='1,200'><party>Quill</party><party>Bray</party><place>7</place><empty/></deal>"
        file.writestr("customXml/item1.xml", data)
        file.writestr("customXml/props.xml", "<p xmlns:d='d' d:itemID='{ab}'/>")
        link = f'<Relationship Id="a" Type="{_REL}/customXmlProps" Target="props.xml"/>'
        file.writestr("customXml/_rels/item1.xml.rels", f"<Relationships>{link}</Relationships>")
    text = _text(docx.parse(path, {}, Limits(), _silent))
    assert text.split("\n\n") == ["Bray", "1,200", "Holm harbour", "kept x", "kept x", "Click here x", "4 May x"]


def test_page_numbers_in_sentences_are_read(tmp_path: Path) -> None:
    simple = f'<w:fldSimple w:instr=" PAGE ">{_r("14")}</w:fldSimple>'
    body = f"<w:p>{_r('It has ')}{_field('NUMPAGES', '15')}{_r(' pages, signed on ')}{simple}{_r('.')}</w:p>"
    assert _text(_document(tmp_path, body)) == "It has 15 pages, signed on 14."


def test_pictures_without_a_description_are_told(tmp_path: Path) -> None:
    def picture(size: int, words: str = "") -> str:
        place = f'<wp:extent cx="{size}" cy="{size}"/><wp:docPr descr="{words}"/>'
        return f"<w:p>{_r('x')}<w:r><w:drawing><wp:inline>{place}<a:pic/></wp:inline></w:drawing></w:r></w:p>"

    parsed = _document(tmp_path, picture(5_400_000) + picture(200_000) + picture(5_400_000, "A lamp on a rock"))
    assert parsed.warnings == ["Pictures without a description, whose words are not read: 1."]
