"""Texts that are data: tables, logs, columns, program text, subtitles, lists. Lines that mean something stay lines."""

from __future__ import annotations

import json
import random
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.readers import cleaning, detect, read_document
from app.readers.parsed import Limits, Parsed

_PROSE = (
    "The keeper climbed the stair at nine and lit the lamp, as he had done\n"
    "each evening since the tower was built. Far out the ships saw it and\n"
    "turned for home, and nobody spoke of the winter that was to come.\n\n"
) * 3
_FLOWED = " ".join(_PROSE.split("\n\n")[0].split())


def _silent(done: int, total: int, page: int | None) -> None:
    """Nobody listens."""


def _parse(path: Path) -> Parsed:
    return detect.parse(path, {}, Limits(), _silent)


def _read(files: Any, name: str, text: str, encoding: str = "utf-8") -> str:
    return "\n\n".join(section.text for section in _parse(files.text(name, text, encoding)).sections)


# Tables --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "encoding", "rows"),
    [
        (
            "a.csv",
            "名前,年齢,町\n森田灯,30,函館\n岸本波,25,小樽\n",
            "cp932",
            ["名前,年齢,町", "森田灯,30,函館", "岸本波,25,小樽"],
        ),
        ("a.csv", "Ort;Betrag\r\nÖrre;1,50\r\nHolm;\r\n", "utf-8", ["Ort;Betrag", "Örre;1,50", "Holm;"]),
        (
            "a.csv",
            'A,B\n"Bray, Tom","Main St 5\r\nOrre"\n,"said ""no"""\n',
            "utf-8-sig",
            ["A,B", '"Bray, Tom","Main St 5 Orre"', ',"said ""no"""'],
        ),
        ("a.csv", "sep=|\nA|B\n1|2\n", "utf-8", ["A|B", "1|2"]),
        ("a.csv", "Name\tTown\nAda\t\n\tOrre\n", "utf-16", ["Name | Town", "Ada |", "| Orre"]),
        ("a.tsv", 'A\tB\tC\nx\t\t12\n"y\tz\t3\n', "utf-8", ["A | B | C", "x | | 12", '"y | z | 3']),
        ("a.tsv", 'A\tB\n"two\nlines"\t"one ""word"""\n', "utf-8", ["A | B", 'two lines | one "word"']),
        (
            "a.txt",
            "Name\tJan\tFeb\nHolm\t\t12\nBray\t7\t\n",
            "utf-8",
            ["Name | Jan | Feb", "Holm | | 12", "Bray | 7 |"],
        ),
        (
            "a.txt",
            "First,Last,Town\nAda,Quill,Orre\nTom,Bray,Holm\n",
            "utf-8",
            ["First,Last,Town", "Ada,Quill,Orre", "Tom,Bray,Holm"],
        ),
    ],
)
def test_a_row_is_a_line(files: Any, name: str, text: str, encoding: str, rows: list[str]) -> None:
    parsed = _parse(files.text(name, text, encoding))
    assert parsed.kind == "table"
    assert [row for section in parsed.sections for row in section.text.split("\n")] == rows
    assert parsed.warnings == []


def test_every_page_of_a_table_has_its_heads_and_says_its_rows(files: Any) -> None:
    rows = [f"Port {at},{at},,{2 * at}" for at in range(900)]
    parsed = _parse(files.text("a.csv", "\n".join(["Stock 2026,,,", "Port,Jan,Feb,Mar", *rows, ",,,", ",,,"])))
    heads = ["Stock 2026,,,", "Port,Jan,Feb,Mar"]
    pages = [section.text.split("\n") for section in parsed.sections]
    assert len(pages) > 3
    assert all(page[:2] == heads for page in pages)
    assert [row for page in pages for row in page[2:]] == rows
    first, second = len(pages[0]), len(pages[0]) + len(pages[1]) - 2
    assert [section.label for section in parsed.sections[:2]] == [f"rows 1–{first}", f"rows {first + 1}–{second}"]
    assert parsed.warnings == ["2 rows without anything in them are left out."]


def test_a_first_row_of_figures_is_not_shown_twice(files: Any) -> None:
    rows = [f"Port {at},{at},{3 * at}" for at in range(900)]
    pages = [section.text.split("\n") for section in _parse(files.text("a.csv", "\n".join(rows))).sections]
    assert [row for page in pages for row in page] == rows


def test_prose_with_commas_is_no_table(files: Any) -> None:
    text = "He came, saw, and left.\nShe came, stayed, and slept.\nThey came, ate, and drank.\n"
    assert _parse(files.text("a.txt", text)).kind == "text"


# Lines that stay -----------------------------------------------------------------------------------------------------

_LOG = "".join(f"2026-03-{at:02} 09:11:00 INFO lamp lit by keeper {at}\n" for at in range(1, 9)) + "  at tank 3"
_CODE = "def area(radius):\n    if radius < 0:\n        raise ValueError(radius)\n\n    return radius ** 2"
_KEPT = {
    "log": ("a.txt", _LOG),
    "system log": ("a", "".join(f"Mar  1 09:1{at}:00 lamp kernel: tank {at} is full again\n" for at in range(6))),
    "chat": ("a.txt", "".join(f"12/05/2021, 10:3{at} - Ada Quill: the lamp was lit again\n" for at in range(6))),
    "code by its name": ("a.py", _CODE),
    "code by its look": ("a.txt", _CODE),
    "json": ("a.txt", '{\n  "name": "Ada",\n  "towns": [\n    "Orre"\n  ],\n  "age": 41\n}'),
    "subtitles": (
        "a.txt",
        "1\n00:00:01,000 --> 00:00:04,000\nThe lamp\nis lit.\n\n2\n00:00:05,000 --> 00:00:07,000\nYes.",
    ),
    "captions": ("a.vtt", "WEBVTT\n\n00:01.000 --> 00:04.000\nThe lamp\nis lit."),
    "columns": (
        "a.txt",
        "Region        Q1     Q2     Q3\nNorth Isle                  12\nSouth Isle     7\nEast          11     12",
    ),
    "narrow columns": ("a.txt", "Name      Age  Town\nAda Quill  41  Orre\nTom Bray   29  Holm"),
    "drawn table": ("a.txt", "+------+-----+\n| Name | Age |\n+------+-----+\n| Ada  |  41 |\n+------+-----+"),
    "contents": (
        "a.txt",
        "I. The Lamp on the Rock ............. 1\nII. The Storm ....................... 23\n"
        "III. The Boat of the Office ......... 57",
    ),
    "a list after a line": (
        "a.txt",
        "Bring when you come to the tower in the winter of this long year:\n"
        "- a lamp with a full tank of colza oil, and one more wick for nights\n- a rope\n"
        "1. Light the lamp at nine and look at the clock in the room below it\n2. Sleep.",
    ),
    "speeches": (
        "a.txt",
        "ADA: The lamp was lit at nine as it had been every evening of this year.\n"
        "TOM: Good. Then let us go down to the harbour and look for the boat.\nADA: Yes.",
    ),
}


@pytest.mark.parametrize("kind", _KEPT)
def test_lines_stay_lines(files: Any, kind: str) -> None:
    name, text = _KEPT[kind]
    assert _read(files, name, text) == text.rstrip()


def test_tags_of_subtitles_are_no_text(files: Any) -> None:
    head, second = "WEBVTT\n\n00:01.000 --> 00:04.000\n", "\n\n00:05.000 --> 00:07.000\n"
    tagged = (
        f"{head}<v.loud Ada Bell>The <i>lamp</i> &amp; wick</v>{second}<c.red>a < b <00:06.000>c</c>\n<V Bo>No. <12345>"
        '\n<b.x>a</b> <b and c> <font color="red">d</font>'
        '\n<b class="x">Hi</b> <i >you</i> <c.yellow Loud>all</c>'
    )
    shown = f"{head}Ada Bell: The lamp & wick{second}a < b c\nBo: No. <12345>\na <b and c> d\nHi you all"
    assert _read(files, "a.vtt", tagged) == shown
    assert _read(files, "a.txt", "In HTML, <i>a</i> &amp; <b>b</b> are.") == "In HTML, <i>a</i> &amp; <b>b</b> are."


@pytest.mark.parametrize("kind", ["columns", "narrow columns", "drawn table", "contents", "speeches"])
def test_lines_stay_lines_among_prose_that_is_re_flowed(files: Any, kind: str) -> None:
    text = _read(files, "a.txt", f"{_PROSE}{_KEPT[kind][1]}\n\n{_PROSE}")
    assert _KEPT[kind][1] in text
    assert text.count(_FLOWED) == 6


def test_items_are_lines_and_their_second_lines_are_joined(files: Any) -> None:
    text = (
        f"{_PROSE}- a lamp with a full tank of colza oil and a second wick for the long\n"
        "  nights of December, which are many\n- a rope of forty fathoms that was not used by the boat in the year\n"
        "  before\n"
    )
    assert _read(files, "a.txt", text).endswith(
        "- a lamp with a full tank of colza oil and a second wick for the long nights of December, which are many\n"
        "- a rope of forty fathoms that was not used by the boat in the year before"
    )


def test_a_dash_at_the_head_of_a_line_is_no_item(files: Any) -> None:
    text = (
        "The keeper climbed the stair at nine and lit the lamp, as he had done\n"
        "- so he said - each evening since the tower was built, and the ships\n"
        "- all that were out - saw it and turned for home before the winter.\n"
    )
    assert _read(files, "a.txt", f"{_PROSE}{text}").endswith(" ".join(text.split()))


def test_blanks_of_justified_text_are_no_columns(files: Any) -> None:
    text = (
        "Then  wait for a minute.  The justified  text  of  this paragraph is set\n"
        "by  a  program  that  spreads  the  blanks,  as  nroff  did  in  old days\n"
        "of the teletype, and it must be re-flowed  all  the  same, unbroken here.\n"
    )
    assert _read(files, "a.txt", f"{_PROSE}{text}").endswith(" ".join(text.split()))


def test_tabs_show_what_they_mean(files: Any) -> None:
    assert _read(files, "a.txt", "Invoice:\t4711\nDate:\t\t3 May\nDue:\t480.00\n\nThanks.") == (
        "Invoice: | 4711\nDate: | 3 May\nDue: | 480.00\n\nThanks."
    )
    assert _read(files, "a.c", "int main()\n{\n\tif (a) {\n\t\treturn 1;\n\t}\n}") == (
        "int main()\n{\n    if (a) {\n        return 1;\n    }\n}"
    )


def test_short_lines_are_no_paragraph(files: Any) -> None:
    text = "Dear Tom,\nthe oil is low.\n\nBest regards\nAda Quill\nHarbour Office"
    assert _read(files, "a.txt", text) == text


def test_a_long_log_is_cut_at_its_lines(files: Any) -> None:
    rows = [f"2026-03-01 09:11:{at % 60:02} INFO lamp {at}. lit. Again." for at in range(1_000)]
    pages = [section.text.split("\n") for section in _parse(files.text("a.log", "\n".join(rows))).sections]
    assert len(pages) > 5
    assert [row for page in pages for row in page] == rows


def test_markdown_keeps_a_sharp_and_the_settings_at_its_head(files: Any) -> None:
    text = _read(files, "a.md", "---\ntitle: T\ndate: 2020-03-01\n---\n# C#\n\nwords\n\n## Two ##\n\nmore\n")
    assert text == "date: 2020-03-01\n\nC#\n\nwords\n\nTwo\n\nmore"


def test_a_notebook_is_its_words_its_program_and_what_that_printed(files: Any) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Oil\n", "\n", "How much is left."]},
        {
            "cell_type": "code",
            "source": ["for tank in tanks:\n", "    print(tank)"],
            "outputs": [
                {"output_type": "stream", "text": ["12\n", "7\n"]},
                {"output_type": "display_data", "data": {"image/png": "iVBORw0", "text/plain": ["<Figure>"]}},
                {"output_type": "error", "traceback": ["\x1b[0;31mValueError\x1b[0m: dry"]},
            ],
        },
    ]
    parsed = _parse(files.text("a.ipynb", json.dumps({"cells": cells, "nbformat": 4})))
    assert parsed.sections[0].text == (
        "Oil\n\nHow much is left.\n\n```\nfor tank in tanks:\n    print(tank)\n```\n\n```\n12\n7\n```\n\n"
        "```\n<Figure>\n```\n\n```\nValueError: dry\n```"
    )
    assert parsed.warnings == ["Pictures that the program drew are not read: 1."]
    assert _read(files, "a.ipynb", '{\n "cells": 1\n}') == '{\n "cells": 1\n}'


def test_signs_of_a_font_are_left_out_with_a_warning(files: Any) -> None:
    parsed = _parse(files.text("a.txt", "5 \uf06dg \uf0b7 \U000f0001 so"))
    assert parsed.sections[0].text == "5 g •  so"
    assert parsed.warnings == ["2 signs of a font of their own, which no other program knows, are left out."]


# Nothing is lost -----------------------------------------------------------------------------------------------------

_PIECES = [
    "the keeper lit the lamp",
    "Ada",
    "12.50",
    "—",
    "“so,” he said.",
    "naïve café",
    "灯台守は",
    "лампа",
    "\t",
    "  ",
    "      ",
    " | ",
    ",",
    ";",
    '"',
    '""',
    "- ",
    "1. ",
    "(a) ",
    "* ",
    "# ",
    "> ",
    "2026-03-01 09:11:00 ",
    "00:00:01,000 --> 00:00:02,000",
    "{",
    "}",
    "x = 1;",
    "ADA: ",
    "....... 12",
    "-----",
    "===",
    "| a | b |",
    "e\u0301",
    "ﬁ",
    "½",
    "\u00a0",
    "\u200b",
    "=",
    "</p>",
    "\x0b",
    "\x0c",
    "\u2028",
    "sep=,",
    "'",
    "...",
    "CHAPTER I",
    "I.",
    "§ 5 ",
]
_NAMES = ("a.txt", "a.csv", "a.tsv", "a.log", "a.py", "a.srt", "a")


def _signs(text: str) -> Counter[str]:
    """What can be seen of a text, however its signs are composed; hyphens apart, which go at the end of a line."""
    text = unicodedata.normalize("NFKC", text).replace("|", "").replace("-", "")
    return Counter(sign for sign in text if unicodedata.category(sign)[0] not in "CZ")


@given(st.integers(0, 2**32), st.sampled_from(_NAMES))
def test_no_sign_of_a_text_is_lost(tmp_path_factory: pytest.TempPathFactory, seed: int, name: str) -> None:
    chance = random.Random(seed)
    pieces = [chance.choice([*_PIECES, "\n", "\n", "\n\n", " "]) for _ in range(chance.randrange(1, 400))]
    text = "words\n" + "".join(pieces)
    path = tmp_path_factory.getbasetemp() / f"{seed}-{name}"
    path.write_bytes(text.encode())
    parsed = _parse(path)
    path.unlink()
    read = "\n".join(section.text for section in parsed.sections)
    lost = _signs(text) - _signs(read)
    if parsed.kind == "table":  # marks of a quotation are no part of a cell; rows of nothing are said
        for sign in '",;':
            del lost[sign]
    assert not lost


def test_no_sign_is_dropped_but_controls_and_a_font_s_own() -> None:
    for code in range(0x110000):
        sign = chr(code)
        category = unicodedata.category(sign)
        if category[0] not in "CZ" and not cleaning.characters(sign):
            assert cleaning.PRIVATE.match(sign) or 0xFFF0 <= code <= 0xFFFC, hex(code)


def test_markdown_code_by_tabs_keeps_its_lines(files: Any) -> None:
    text = "# Setup\n\nRun this:\n\n\tif wind > 9:\n\t\thorn()\n\telse:\n\t\trest()\n\nDone."
    assert "    if wind > 9:\n        horn()\n    else:\n        rest()" in read_document(files.text("a.md", text)).text


def test_a_fence_ends_only_at_its_own_signs(files: Any) -> None:
    text = "# Guide\n\n````markdown\n```python\n# count\n```\n\n# A title in it\n````\n\nThe end.\n\n~~~\n```\n# x\n~~~"
    document = read_document(files.text("a.md", text))
    assert [page.label for page in document.pages] == ["Guide"]
    inline = read_document(files.text("b.md", "# One\n\n```code``` in a line\n\n# Two\n\ntext"))
    assert [page.label for page in inline.pages] == ["One", "Two"]


def test_a_notebook_of_an_old_version_is_read(files: Any) -> None:
    cells = [
        {"cell_type": "heading", "level": 1, "source": ["Oil"]},
        {"cell_type": "code", "input": ["n = 9"], "outputs": [{"text": ["9"], "png": "AAAA"}]},
        {"cell_type": "markdown", "source": ["The end."]},
    ]
    document = read_document(files.text("a.ipynb", json.dumps({"nbformat": 3, "worksheets": [{"cells": cells}]})))
    assert document.text.split("\n\n") == ["Oil", "```\nn = 9\n```", "```\n9\n```", "The end."]
    assert document.warnings == ("Pictures that the program drew are not read: 1.",)
