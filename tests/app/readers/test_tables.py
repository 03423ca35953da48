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


def test_two_rows_of_a_table_without_words_are_no_columns_of_text(files: Any) -> None:
    """Names of commands and of settings were read column by column, so that nothing told which belonged together."""
    rows = [[f"2{at} /symbols/of/{name}/centred", f"/kinds/binary/{at}{at}/sign"] for at, name in enumerate("abcd")]
    across = [(60.0, 24.0, "22 /symbols/of/lozenges/which/are/black /kinds/ordinary/07/sign")]
    text = _text(files, [*_spots(rows[:2], (60, 330), 12), *across, *_spots(rows[2:], (60, 330), 12, top=36)])
    assert [line for line in text.split("\n") if " | " in line] == [" | ".join(row) for row in rows]


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


def _lines(spans: Sequence[tuple[float, float, float, float]]) -> bytes:
    """Lines drawn from (x, y from the top) to (x, y), with the type's baseline at its y."""
    return b"".join(b"%g %g m %g %g l S\n" % (x0, 760 - y0, x1, 760 - y1) for x0, y0, x1, y1 in spans)


def test_cells_over_several_rows_and_columns_stand_at_the_first(files: Any) -> None:
    spots = [
        (64.0, 0.0, "Port"),
        (144.0, 0.0, "Ship"),
        (224.0, 0.0, "Tons"),
        (64.0, 30.0, "North"),
    ]  # set in the middle
    spots += [(144.0, 20.0, "Ann"), (224.0, 20.0, "120"), (144.0, 40.0, "Eve"), (224.0, 40.0, "300")]
    spots += [(64.0, 60.0, "Total of all ports"), (224.0, 60.0, "420")]
    across = [(60.0, y, 300.0, y) for y in (-14.0, 6.0, 46.0, 66.0)] + [(140.0, 26.0, 300.0, 26.0)]
    down = [(x, -14.0, x, 66.0) for x in (60.0, 220.0, 300.0)] + [(140.0, -14.0, 140.0, 46.0)]
    assert _text(files, spots, _lines(across + down)).split("\n") == [
        "Port | Ship | Tons",
        "North | Ann | 120",
        "| Eve | 300",
        "Total of all ports | | 420",
    ]


def test_a_drawn_table_may_be_stored_column_by_column(files: Any) -> None:
    rows = [["Day", "High", "Low"], ["Mon", "6:04", "12:03"], ["Tue", "7:08", "13:06"], ["Wed", "", "14:09"]]
    xs = (60.0, 160.0, 260.0)
    spots = [(x, 20.0 * at, row[column]) for column, x in enumerate(xs) for at, row in enumerate(rows) if row[column]]
    assert (
        _text(files, spots, _grid(xs, 4, 20))
        == "Day | High | Low\nMon | 6:04 | 12:03\nTue | 7:08 | 13:06\nWed | | 14:09"
    )


def test_cells_of_several_lines_are_one_row_between_lines(files: Any) -> None:
    spots = [(64.0, 0.0, "8-9"), (144.0, -6.0, "Maths"), (144.0, 6.0, "Room 1"), (224.0, 0.0, "French")]
    spots += [(64.0, 40.0, "9-10"), (144.0, 34.0, "Physics"), (144.0, 46.0, "Room 2"), (224.0, 40.0, "Art")]
    across = [(60.0, y, 300.0, y) for y in (-20.0, 20.0, 60.0)]
    down = [(x, -20.0, x, 60.0) for x in (60.0, 140.0, 220.0, 300.0)]
    assert _text(files, spots, _lines(across + down)) == "8-9 | Maths Room 1 | French\n9-10 | Physics Room 2 | Art"


def test_rows_of_a_table_of_which_only_the_columns_are_drawn(files: Any) -> None:
    rows = [["Lamp", "Years", "Oil"], ["North", "1846", "yes"], ["South", "1871", "no"], ["Rock", "1890", "yes"]]
    across = [(60.0, y, 300.0, y) for y in (-14.0, 6.0, 66.0)]
    down = [(x, -14.0, x, 66.0) for x in (60.0, 140.0, 220.0, 300.0)]
    expected = "\n".join(" | ".join(row) for row in rows)
    assert _text(files, _spots(rows, (64, 144, 224), 20), _lines(across + down)) == expected


def test_a_table_in_a_cell_stands_on_one_line(files: Any) -> None:
    spots = [
        (64.0, 0.0, "Lamp"),
        (144.0, 0.0, "Facts"),
        (64.0, 40.0, "North"),
        (64.0, 80.0, "South"),
        (144.0, 80.0, "none"),
    ]
    spots += [(160.0, 30.0, "Height"), (220.0, 30.0, "31 m"), (160.0, 50.0, "Built"), (220.0, 50.0, "1846")]
    outer = [(60.0, y, 300.0, y) for y in (-14.0, 6.0, 66.0, 90.0)] + [
        (x, -14.0, x, 90.0) for x in (60.0, 140.0, 300.0)
    ]
    inner = [(152.0, y, 280.0, y) for y in (16.0, 36.0, 56.0)] + [(x, 16.0, x, 56.0) for x in (152.0, 212.0, 280.0)]
    text = _text(files, spots, _lines(outer + inner))
    assert text == "Lamp | Facts\nNorth | Height 31 m; Built 1846\nSouth | none"


def test_frames_of_a_page_are_no_table(files: Any) -> None:
    spots = [(64.0, 14.0 * at, f"The keeper {at} goes on with it") for at in range(20)]
    spots += [(304.0, 14.0 * at, f"and the other one {at} as well") for at in range(20)] + [
        (64.0, -40.0, "News"),
        (304.0, -40.0, "Date"),
    ]
    frame = [(60.0, y, 500.0, y) for y in (-60.0, -20.0, 300.0)] + [(x, -60.0, x, 300.0) for x in (60.0, 300.0, 500.0)]
    text = _text(files, spots, _lines(frame))
    assert " | " not in text.split("News")[0]
    assert "keeper 0 goes on with it The keeper 1" in text.replace("\n", " ")


def test_lines_of_a_long_cell_leave_the_table_whole(files: Any) -> None:
    rows = [["No.", "Item", "Description", "Price"]]
    spots = [(x, 0.0, word) for x, word in zip((60.0, 100.0, 180.0, 420.0), rows[0], strict=True)]
    for at in range(6):
        top = 20 + 42.0 * at
        spots += [
            (60.0, top, str(at)),
            (100.0, top, f"Part {at}"),
            (180.0, top, f"A part number {at} of the lamp, of brass and"),
        ]
        spots += [
            (180.0, top + 12, "tested by the keeper of the north light at"),
            (180.0, top + 24, "his own cost"),
            (420.0, top, f"{at}.50"),
        ]
    lines = _text(files, spots).split("\n")
    assert lines[0] == "No. | Item | Description | Price"
    end = "of the lamp, of brass and tested by the keeper of the north light at his own cost"
    assert lines[1:] == [f"{at} | Part {at} | A part number {at} {end} | {at}.50" for at in range(6)]


def test_an_invoice_with_lines_between_its_rows(files: Any) -> None:
    """A cell set in the middle of taller ones, and labels of sums that reach over several columns."""
    spots = [(60.0, -60.0, "Oil works"), (60.0, -48.0, "5 Harbour Street"), (60.0, -36.0, "Port North")]
    heads = ((60.0, "Pos"), (100.0, "Description"), (380.0, "Qty"), (430.0, "Price"), (490.0, "Total"))
    spots += [(x, 0.0, word) for x, word in heads]
    spots += [(100.0, 20.0, "Colza oil in barrels of forty gallons, by boat"), (100.0, 32.0, "at the next calm day")]
    spots += [(60.0, 26.0, "1"), (385.0, 26.0, "4"), (432.0, 26.0, "41.20"), (485.0, 26.0, "164.80")]
    spots += [
        (60.0, 52.0, "2"),
        (100.0, 52.0, "Wicks"),
        (375.0, 52.0, "100"),
        (437.0, 52.0, "0.12"),
        (490.0, 52.0, "12.00"),
    ]
    spots += [(440.0, 72.0, "Net"), (485.0, 72.0, "176.80"), (404.0, 92.0, "Amount due"), (485.0, 92.0, "212.16")]
    spots += [(60.0, 130.0, "Please pay within 30 days to the account of the works.")]
    text = _text(files, spots, _lines([(58.0, y, 515.0, y) for y in (6.0, 38.0, 58.0, 78.0, 98.0)]))
    assert text.split("\n")[-7:] == [
        "Pos | Description | Qty | Price | Total",
        "1 | Colza oil in barrels of forty gallons, by boat at the next calm day | 4 | 41.20 | 164.80",
        "2 | Wicks | 100 | 0.12 | 12.00",
        "| | | Net | 176.80",
        "| | | Amount due | 212.16",
        "",
        "Please pay within 30 days to the account of the works.",
    ]


def test_a_column_of_nothing_but_its_head_keeps_its_place(files: Any) -> None:
    rows = [["Station", "Jan", "Feb", "Mar", "Apr"]]
    rows += [[f"Rock {at}", str(20 + at), "", str(40 + at), str(50 + at)] for at in range(8)]
    lines = _text(files, _spots(rows, (60, 160, 195, 230, 265))).split("\n")
    assert lines[0] == "Station | Jan | Feb | Mar | Apr"
    assert lines[1] == "Rock 0 | 20 | | 40 | 50"


def test_a_side_text_stored_row_by_row_is_no_table(files: Any) -> None:
    body = [
        "The keeper of the light went up the stairs each",
        "evening and lit the lamp while the wind drove the",
        "rain against the panes of the gallery and the ships",
    ]
    side = [
        "Did you know that",
        "the lamp burns oil",
        "and that the wick",
        "is trimmed by the",
        "keeper four times",
        "a night on watch?",
    ]
    rows = [[body[at % 3], side[at]] if at < len(side) else [body[at % 3]] for at in range(9)]
    spots = [(x, 13.0 * at, words) for at, row in enumerate(rows) for x, words in zip((60.0, 400.0), row, strict=False)]
    text = _text(files, spots)
    assert " | " not in text
    assert " ".join(side) in " ".join(text.split())


def _by_columns(rows: Sequence[Sequence[str]], xs: Sequence[float], pitch: float = 16.0) -> list[Any]:
    """Spots of a table that is stored column by column."""
    return [(x, pitch * at, row[column]) for column, x in enumerate(xs) for at, row in enumerate(rows) if row[column]]


def test_a_long_table_without_lines_may_be_stored_column_by_column(files: Any) -> None:
    rows = [["Rock", "Jan", "Feb", "Mar"]]
    rows += [[f"Isle {at}", str(at), str(at * 3) if at % 4 else "", str(at * 7)] for at in range(30)]
    lines = _text(files, _by_columns(rows, (60, 180, 260, 340))).split("\n")
    assert lines == [" | ".join(row).replace("|  |", "| |") for row in rows]


def test_long_cells_may_be_stored_column_by_column(files: Any) -> None:
    names = [(60.0, 40.0 * at, f"Light {at}") for at in range(12)]
    meanings = [
        (200.0, 40.0 * at + 12 * line, words)
        for at in range(12)
        for line, words in enumerate(("The tower that was built in the year", "of the storm and holds the lamp"))
    ]
    lines = _text(files, [*names, *meanings]).split("\n")
    assert lines[7] == "Light 7 | The tower that was built in the year of the storm and holds the lamp"


@pytest.mark.parametrize("kind", ["index", "verse", "list"])
def test_two_columns_of_short_lines_are_no_table(files: Any, kind: str) -> None:
    names = [f"{letter}{ending}" for letter in "ABCDEFGHIJKLMNO" for ending in ("bbey", "corn")]
    words = {
        "index": [f"{name}, {7 * at}" for at, name in enumerate(names)],
        "verse": [f"O {name} of the northern light," for name in names[::-1]],
        "list": names,
    }[kind]
    spots = [(x, 14.0 * at, words[half + at]) for half, x in ((0, 60.0), (15, 320.0)) for at in range(15)]
    text = _text(files, spots)
    assert " | " not in text
    assert text.index(words[14]) < text.index(words[15])


def test_names_of_columns_that_go_on_are_joined(files: Any) -> None:
    rows = [["", "Height", "Year", "Number of"], ["Station", "in metres", "built", "keepers"]]
    rows += [[f"Rock {at}", str(20 + at), str(1846 + at), str(at)] for at in range(6)]
    lines = _text(files, _spots(rows, (60, 160, 260, 340), 13)).split("\n")
    assert lines[:2] == ["Station | Height in metres | Year built | Number of keepers", "Rock 0 | 20 | 1846 | 0"]


def test_names_over_several_columns_stay_a_row(files: Any) -> None:
    rows = [["", "Oil", "", "Coal", ""], ["Station", "tons", "price", "tons", "price"]]
    rows += [[f"Rock {at}", *(str(at * 7 + column) for column in range(4))] for at in range(6)]
    lines = _text(files, _spots(rows, (60, 160, 220, 280, 340), 13)).split("\n")
    assert lines[:2] == ["| Oil | | Coal |", "Station | tons | price | tons | price"]


def test_figures_one_under_the_other_are_not_one_number(files: Any) -> None:
    """pdfium gives two short cells, one below the other, as one word."""
    rows = [["Rock", "Boats"], ["Orre", "0"], ["Holm", "7"], ["Stack", "14"], ["Bar", "21"]]
    assert _text(files, _by_columns(rows, (60, 160), 13)) == "\n".join(" | ".join(row) for row in rows)


def test_a_line_of_prose_in_pieces_above_a_table_is_no_row(files: Any) -> None:
    """Between scripts of two directions, or where the blanks are wide, a line of prose is in several pieces."""
    prose = [(60.0, 0.0, "So the keeper of the light wrote down what he"), (285.0, 0.0, "had"), (310.0, 0.0, "seen.")]
    rows = [["Station", "Height", "Built"]] + [[f"Rock {at}", str(20 + at), str(1846 + at)] for at in range(4)]
    text = _text(files, [*prose, *_spots(rows, (60, 180, 300), 16, 26)])
    assert text.startswith("So the keeper of the light wrote down what he had seen.\n")
    assert text.endswith("\n".join(" | ".join(row) for row in rows))


_LOADS = [("Salt", "0.92", "12"), ("Tar", "17.40", "3"), ("Rope", "4", "1,250"), ("Oil", "103.5", "88")]


def _row_of_blanks(y: float, cells: tuple[str, str, str]) -> bytes:
    """A row as a common program of yearly reports stores it: an invisible blank before a figure and one behind it, and
    one at the end of the next. Then pdfium drops the blank between the two.
    """
    first, second, third = cells
    wide = [0.556 * sum(map(str.isdigit, cell)) + 0.278 * sum(map(".,".count, cell)) for cell in (second, third)]
    drawn = b"BT /F1 1 Tf 10 0 0 10 60 %g Tm 0 Tr (%s ) Tj " % (y, first.encode())
    drawn += b"3 Tr %g 0 Td [( )-%g( )] TJ " % (24 - wide[0], 1000 * (wide[0] - 0.278))
    drawn += b"0 Tr 0.003 0 Td (%s ) Tj 3 Tr %g 0 Td ( ) Tj " % (second.encode(), 10 + wide[0])
    return drawn + b"0 Tr %g 0 Td (%s ) Tj ET\n" % (-wide[1], third.encode())


def test_figures_of_two_columns_with_invisible_blanks_between_them_are_two(files: Any) -> None:
    """pdfium makes "0.9212" of 0.92 and 12."""
    text = _text(files, [], b"".join(_row_of_blanks(700 - 14 * at, row) for at, row in enumerate(_LOADS)))
    assert text == "\n".join(" | ".join(row) for row in _LOADS)


def test_rows_above_the_lines_of_a_sum_belong_to_the_table(files: Any) -> None:
    """A head of several lines, and lines only above the sums."""
    rows = [
        ["", "", "Rate", "Cost"],
        ["", "Tons", "of", "of the"],
        ["(in tons)", "sold", "loss", "insurance"],
        ["In the year 1893", "", "", ""],
        ["Salt", "0.92", "12", "31"],
        ["Tar", "17.40", "3", "4"],
        ["All goods", "18.32", "15", "35"],
        ["Oil", "103.50", "88", "9"],
        ["Wine", "1.00", "2", "3"],
        ["All drinks", "104.50", "90", "12"],
    ]
    spots = _spots(rows, (60, 200, 300, 400), pitch=14)
    ruled = b"".join(b"60 %g m 440 %g l S\n" % (y, y) for y in (760 - 14 * 6 + 9, 760 - 14 * 9 + 9, 760 - 14 * 10 + 9))
    head, *body = _text(files, spots, ruled).split("\n")
    assert head == "(in tons) | Tons sold | Rate of loss | Cost of the insurance"
    assert body == ["In the year 1893", *(" | ".join(row) for row in rows[4:])]
