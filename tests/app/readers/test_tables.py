"""Tables of PDF pages made in code: one row one line, cells apart by a mark, empty cells kept."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from app.readers import detect
from app.readers.parsed import Limits

_SIZE = 10.0
_WORDS = ["the", "keeper", "of", "the", "north", "light", "went", "up", "the", "stairs", "once", "more", "to", "see"]


def _text(files: Any, spots: Sequence[tuple[float, float, str]], rules: bytes = b"") -> str:
    """The first page's text, of words at (x, y from the top, words) and of lines drawn."""
    return _pages(files, [spots], rules)[0]


def _pages(files: Any, pages: Sequence[Sequence[tuple[float, float, str]]], rules: bytes = b"") -> list[str]:
    streams = []
    for spots in pages:
        drawn = b"".join(
            b"BT /F1 %g Tf %g %g Td (%s) Tj ET\n" % (_SIZE, x, 760 - y, words.encode("cp1252")) for x, y, words in spots
        )
        streams.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawn + rules), drawn + rules))
    path = files.pdf("table.pdf", [], streams=streams)
    return [section.text for section in detect.parse(path, {}, Limits(), lambda *_: None).sections]


def _spots(rows: Sequence[Sequence[str]], xs: Sequence[float], pitch: float = 16.0, top: float = 0.0) -> Any:
    return [
        (x, top + pitch * at, words) for at, row in enumerate(rows) for x, words in zip(xs, row, strict=True) if words
    ]


def _grid(xs: Sequence[float], rows: int, pitch: float) -> bytes:
    """Ruling lines around the cells, one path each."""
    left, right, top, bottom = xs[0] - 4, xs[-1] + 60, 760 + 12, 760 + 12 - pitch * rows
    down = [b"%g %g m %g %g l S\n" % (x - 4, top, x - 4, bottom) for x in xs]
    down.append(b"%g %g m %g %g l S\n" % (right, top, right, bottom))
    across = [b"%g %g m %g %g l S\n" % (left, top - pitch * at, right, top - pitch * at) for at in range(rows + 1)]
    return b"".join(down + across)


def test_rows_that_reach_the_right_margin_stay_rows(files: Any) -> None:
    rows = [
        ["Date", "Text", "Amount", "Balance"],
        ["01.03.", "Rope shop, card payment", "-12.00", "988.00"],
        ["02.03.", "Salary of the harbour office", "2,310.40", "3,298.40"],
        ["05.03.", "Rent of the boathouse", "-480.00", "2,818.40"],
    ]
    expected = "\n".join(" | ".join(row) for row in rows)
    title = [(60.0, 0.0, "Account 4711, March 2026")]
    text = _text(files, title + _spots(rows, (60, 110, 390, 490), top=30))
    assert text == f"Account 4711, March 2026\n\n{expected}"


def test_a_glossary_of_two_columns_is_not_torn(files: Any) -> None:
    rows = [[f"Keeper {name} of the island", f"The tall tower of {name}"] for name in ("Orre", "Holm", "Stack", "Bar")]
    assert _text(files, _spots(rows * 2, (60, 260), 22)) == "\n".join(" | ".join(row) for row in rows * 2)


@pytest.mark.parametrize("ruled", [True, False])
def test_empty_cells_are_kept(files: Any, ruled: bool) -> None:
    rows = [
        ["Region", "Q1", "Q2", "Q3", "Q4"],
        ["North Isle", "", "", "12", ""],
        ["South Isle", "7", "", "", "9"],
        ["East", "1", "2", "3", "4"],
        ["Middle", "5", "6", "", "8"],
    ]
    xs = (60, 160, 220, 280, 340)
    text = _text(files, _spots(rows, xs, 20), _grid(xs, len(rows), 20) if ruled else b"")
    assert text.split("\n") == [
        "Region | Q1 | Q2 | Q3 | Q4",
        "North Isle | | | 12 |",
        "South Isle | 7 | | | 9",
        "East | 1 | 2 | 3 | 4",
        "Middle | 5 | 6 | | 8",
    ]


def test_a_drawn_table_with_hardly_any_room_between_its_cells(files: Any) -> None:
    rows = [["A1", "B1", "C1"], ["A2", "", "C2"], ["", "B3", "C3"], ["A4", "B4", ""]]
    xs = (60, 80, 100)
    text = _text(files, _spots(rows, xs, 14), _grid(xs, len(rows), 14))
    assert text == "A1 | B1 | C1\nA2 | | C2\n| B3 | C3\nA4 | B4 |"


@pytest.mark.parametrize("down", [0, 12])
def test_cells_of_several_lines_are_one_cell(files: Any, down: int) -> None:
    """Their names may stand beside the first line or beside the last one."""
    spots: list[tuple[float, float, str]] = [(60, 0, "Term"), (160, 0, "Meaning")]
    for at, name in enumerate(("Lantern", "Sector", "Horn")):
        top = 24 + at * 34
        spots += [(60, top + down, name)]
        spots += [(160, top, "The room of glass at the top of it"), (160, top + 12, "and all that it holds.")]
    lines = _text(files, spots).split("\n")
    assert lines == [
        "Term | Meaning",
        *[
            f"{name} | The room of glass at the top of it and all that it holds."
            for name in ("Lantern", "Sector", "Horn")
        ],
    ]


def test_numbers_close_to_one_another_are_cells(files: Any) -> None:
    rows = [["Country", "Area", "People"], ["Orre", "1,234,567", "7,654,321"], ["Holm", "23", "45"], ["Bar", "4", "1"]]
    text = _text(files, _spots(rows, (60, 120, 175)))
    assert text == "\n".join(" | ".join(row) for row in rows)


def test_rows_under_headings_within_a_table(files: Any) -> None:
    rows = [
        ["Oil", "1,200", "1,100"],
        ["Costs", "", ""],
        ["Wages", "-800", ""],
        ["Coal", "-20", "-30"],
        ["Sum", "1", "2"],
    ]
    assert (
        _text(files, _spots(rows, (60, 260, 360)))
        == "Oil | 1,200 | 1,100\nCosts\nWages | -800 |\nCoal | -20 | -30\nSum | 1 | 2"
    )


def test_the_head_is_repeated_where_a_table_goes_on(files: Any) -> None:
    rows = [[f"Rock {at}", str(13 * at), str(900 + at)] for at in range(60)]
    xs = (60, 200, 300)
    pages = [
        _spots([["Station", "Reading", "Pressure"], *rows[:20]], xs),
        _spots(rows[20:40], xs),
        _spots([["Station", "Reading", "Pressure"], *rows[40:]], xs),
    ]
    first, second, third = (text.split("\n") for text in _pages(files, pages))
    assert first[0] == second[0] == third[0] == "Station | Reading | Pressure"
    assert (len(first), len(second), len(third)) == (21, 21, 21)
    assert second[1] == "Rock 20 | 260 | 920"


def test_prose_in_columns_is_no_table(files: Any) -> None:
    pick = random.Random(7)
    spots = [(x, 13.0 * row, " ".join(pick.choice(_WORDS) for _ in range(8))) for row in range(14) for x in (60, 320)]
    assert " | " not in _text(files, spots)


def test_a_list_keeps_its_numbers_and_is_no_table(files: Any) -> None:
    rows = [[f"{at}.", "The keeper of the north light went up the stairs once more to see."] for at in range(1, 6)]
    assert _text(files, _spots(rows, (60, 90))).split("\n")[0].startswith("1. The keeper")
    assert " | " not in _text(files, _spots(rows, (60, 90)))


def test_justified_lines_with_wide_blanks_are_no_table(files: Any) -> None:
    """Every gap of a line is as wide as a third of its type, as in narrow columns, and lies elsewhere in each."""
    spots, pick = [], random.Random(1)
    for row, start in enumerate((0, 3, 6, 9, 1, 4)):
        x = 60.0
        for word in (_WORDS[start:] + _WORDS[:start])[:9]:
            spots.append((x, 13.0 * row, word))
            x += 5.2 * len(word) + pick.uniform(5, 9)
    assert " | " not in _text(files, spots)


def test_parts_of_a_drawing_are_no_table(files: Any) -> None:
    spots = [(60.0, 0.0, "y"), (200.0, 3.0, "x"), (90.0, 30.0, "0"), (220.0, 28.0, "a"), (300.0, 55.0, "b")]
    assert " | " not in _text(files, spots)


def test_a_row_that_pdfium_runs_on_is_two(files: Any) -> None:
    rows = [["Contents", ""], ["1 The north light", "3"], ["2 The storm", "20"], ["3 The winter", "37"]]
    assert _text(files, _spots(rows, (60, 500), 20)).startswith("Contents\n")
