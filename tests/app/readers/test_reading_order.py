"""The order in which a PDF page is read, held against where its words stand, whatever the order they are stored in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from app.readers import detect, pdf, pdf_lines
from app.readers.layout import Line
from app.readers.parsed import Limits

_DOCS = Path(__file__).resolve().parents[4] / "shared" / "docs"
_REAL = {  # pages, and pairs of lines in the wrong order that its drawings and formulas have
    "latex-multicolumn.pdf": (3, 0),
    "gov-report-15-pages.pdf": (6, 0),
    "outline-latex.pdf": (4, 0),
    "web-capture.pdf": (2, 6),
}
_WORDS = [
    "the keeper of the light went up the stairs",
    "each evening and lit the lamp while the",
    "wind drove the rain against the panes and",
]

Spots = list[tuple[float, float, str]]


def _column(x: float, top: float, name: str, rows: int = 8) -> Spots:
    """Lines of prose one under the other; ``top`` is measured from the bottom of the page."""
    return [(x, top - 14.0 * at, f"{name}{at} {_WORDS[at % 3]}") for at in range(rows)]


def _read(files: Any, spots: Sequence[tuple[float, float, str]]) -> str:
    parsed = detect.parse(files.pdf("order.pdf", [spots]), {}, Limits(), lambda *_: None)
    return " ".join(parsed.sections[0].text.split())


def _in_order(text: str, names: Sequence[str]) -> bool:
    places = [text.find(name) for name in names]
    return -1 not in places and places == sorted(places)


def _wrong(lines: Sequence[Line]) -> int:
    """Pairs of lines of one column of which the lower one is read first."""
    shown = [line for line in lines if line.shown]
    return sum(
        later.bottom <= one.top + 2
        and min(one.x1, later.x1) - max(one.x0, later.x0) > 0.2 * min(one.x1 - one.x0, later.x1 - later.x0)
        for one, later in combinations(shown, 2)
    )


_TITLE = [(60.0, 740.0, "The Harbour News")]
_FOOT = [(60.0, 60.0, "Printed at the harbour office")]
_LEFT, _RIGHT = _column(60, 700, "left"), _column(330, 700, "right")
_TABLE = [
    (x, y, word)
    for y, row in (
        (560.0, ("Lamp", "Height", "Built")),
        (544.0, ("North", "31", "1846")),
        (528.0, ("South", "22", "1871")),
    )
    for x, word in zip((60.0, 250.0, 440.0), row, strict=True)
]
_BELOW_LEFT, _BELOW_RIGHT = _column(60, 490, "low"), _column(330, 490, "end")
_NAMES = [
    "Harbour News",
    "left0",
    "left7",
    "right0",
    "right7",
    "Lamp | Height | Built",
    "low0",
    "low7",
    "end0",
    "end7",
    "Printed",
]


@pytest.mark.parametrize(
    "parts",
    [
        (_TITLE, _LEFT, _RIGHT, _TABLE, _BELOW_LEFT, _BELOW_RIGHT, _FOOT),
        (_LEFT, _RIGHT, _TABLE, _BELOW_LEFT, _BELOW_RIGHT, _TITLE, _FOOT),
        (_FOOT, _TITLE, _LEFT, _RIGHT, _TABLE, _BELOW_LEFT, _BELOW_RIGHT),
        (_TABLE, _TITLE, _LEFT, _RIGHT, _BELOW_LEFT, _BELOW_RIGHT, _FOOT),
        (_BELOW_LEFT, _BELOW_RIGHT, _FOOT, _LEFT, _RIGHT, _TITLE, _TABLE),
    ],
    ids=["as printed", "title last", "footer first", "table first", "upside down"],
)
def test_two_columns_around_a_table_are_read_as_they_stand(files: Any, parts: Sequence[Spots]) -> None:
    text = _read(files, [spot for part in parts for spot in part])
    assert _in_order(text, _NAMES), text


def test_columns_stored_row_by_row_with_notes_below_them(files: Any) -> None:
    notes = [(60.0, 560.0, "1 The first note of the page"), (330.0, 560.0, "2 The second note of it")]
    rows = [spot for pair in zip(_LEFT, _RIGHT, strict=True) for spot in pair]
    text = _read(files, [*rows, *notes])
    assert _in_order(text, ["left0", "left7", "The first note", "right0", "right7", "The second note"]), text


def test_a_side_text_is_read_in_one_piece(files: Any) -> None:
    side = [(420.0, 690.0 - 14 * at, f"beside{at} are few") for at in range(4)]
    text = _read(files, [*_LEFT[:4], *side, *_LEFT[4:]])
    assert _in_order(text, [f"beside{at}" for at in range(4)])
    assert _in_order(text, [f"left{at}" for at in range(8)])


def test_marks_of_a_list_that_are_drawn_last_stand_at_their_items(files: Any) -> None:
    items = [(90.0, 700.0, "Light the lamp."), (120.0, 680.0, "Trim the wick."), (90.0, 660.0, "Watch the ships.")]
    marks = [(75.0, 700.0, "1."), (106.0, 680.0, "a."), (75.0, 660.0, "2.")]
    assert _read(files, [*items, (60.0, 600.0, "So it is done."), *marks]) == (
        "1. Light the lamp. a. Trim the wick. 2. Watch the ships. So it is done."
    )


@pytest.mark.skipif(not _DOCS.is_dir(), reason="the collection ../shared/docs is not here")
@pytest.mark.parametrize("name", _REAL)
def test_lines_of_real_pages_come_in_the_order_in_which_they_stand(name: str) -> None:
    document = pdf.open_pdf(_DOCS / name, None)
    assert document is not None
    count, most = _REAL[name]
    pages = [pdf_lines.page_lines(document[at]) for at in range(count)]
    assert sum(map(len, pages)) > 20
    assert sum(map(_wrong, pages)) <= most


def test_short_columns_of_a_leaflet_are_read_one_after_the_other(files: Any) -> None:
    """Two lines in each, stored row by row, are enough to see that both go on."""
    left = ["Tie the boat to the ring at", "the stern and take the oars"]
    right = ["The ferry leaves at noon if the", "wind allows it and the sea"]
    spots = [(x, 600.0 - 14 * row, column[row]) for row in range(2) for x, column in ((60, left), (330, right))]
    assert _read(files, [(60, 640, "For guests"), *spots]) == " ".join(["For guests", *left, *right])


def test_columns_of_a_slide_whose_points_end_at_different_rows_are_no_table(files: Any) -> None:
    left = ["Sail", "Needs no coal at all but", "a crew of nine men", "Sleeps in calm weather"]
    right = ["Steam", "Sails against the wind and", "the tide, day and night", "Eats a ton of coal a day and", "smokes"]
    left.insert(1, "Costs little")
    spots = [(x, 600.0 - 20 * row, column[row]) for row in range(5) for x, column in ((60, left), (330, right))]
    assert _read(files, [(60, 660, "Sail or steam"), *spots]) == " ".join(["Sail or steam", *left, *right])


@pytest.mark.parametrize("title", [[], _TITLE])
def test_the_left_column_is_read_first_if_the_right_is_stored_first(files: Any, title: Spots) -> None:
    text = _read(files, [*title, *_RIGHT, *_LEFT])
    assert _in_order(text, ["left0", "left7", "right0", "right7"])


def test_a_note_beside_the_text_keeps_its_place(files: Any) -> None:
    """A narrow text at the left of a wide one is no column before it."""
    note = [
        (60.0, 640.0 - 14 * at, words)
        for at, words in enumerate(("note0 see the", "map of the", "coast and", "its lights"))
    ]
    wide = [(x - 130, y, f"{words} and the sea ran high") for x, y, words in _RIGHT]
    assert _in_order(_read(files, [*wide, *note]), ["right0", "right7", "note0"])


def test_two_lists_side_by_side_are_read_one_after_the_other(files: Any) -> None:
    """A recipe's ingredients stood as cells of a table beside the steps of its method."""
    left = ["- 3 cups of flour", "- 2 spoons of oil", "- 1 lamp", "- 9 plums"]
    right = ["1. Heat the oven well.", "2. Mix flour and oil.", "3. Bake for an hour."]
    spots: Spots = [(72, 700, "Ingredients"), (300, 700, "Method")]
    spots += [(72, 680 - 15 * at, item.replace("-", "\u2022")) for at, item in enumerate(left)]
    spots += [(300, 680 - 15 * at, item) for at, item in enumerate(right)]
    text = _read(files, sorted(spots, key=lambda spot: (-spot[1], spot[0])))
    assert " | " not in text
    assert text.index("9 plums") < text.index("1. Heat")


def test_lists_side_by_side_may_have_items_of_several_lines(files: Any) -> None:
    left = ["Before", "- long queues at the old quay on", "Fridays", "- no ramp for chairs"]
    right = ["After", "- boats leave every half hour and", "on time", "- a lift to the hall"]
    spots = [(x, 600.0 - 14 * row, column[row]) for row in range(4) for x, column in ((60, left), (330, right))]
    assert _read(files, spots) == " ".join([*left, *right])


def test_lines_of_items_may_begin_where_their_text_does(files: Any) -> None:
    """Two lists of a slide were a table, whose cells began at two places."""
    left = ["\u2022 The old quay with its", "ring and its steps", "\u2022 The lamp of 1846"]
    right = ["\u2022 The shed, which has to", "be painted white yet", "again this year", "\u2022 The ramp"]
    spots: Spots = []
    for row in range(4):
        for x, column in ((60, left), (330, right)):
            for text in column[row : row + 1]:
                spots += [(x, 600 - 18 * row, "\u2022")] if text.startswith("\u2022") else []
                spots.append((x + 12, 600 - 18 * row, text.removeprefix("\u2022 ")))
    read = _read(files, spots)
    assert " | " not in read
    assert _in_order(read, ["old quay", "ring", "1846", "shed", "painted", "again", "ramp"])


@pytest.mark.parametrize("by_column", [False, True])
def test_columns_of_text_with_a_table_right_below_them(files: Any, by_column: bool) -> None:
    """Their lines stood as the table's cells, and its own columns were lost."""
    left = ["Tickets", "Tickets are sold on board. Keep yours", "until you leave the quay, since it is", "looked at. "]
    right = ["Prams", "Prams stay on the lower deck near the", "stern door and are tied to a ring.", "Ask the mate. "]
    table = [("Day", "Boat", "Fare"), ("Monday", "the morning boat", "4"), ("Friday", "the evening boat", "6")]
    columns: list[Spots] = [
        [(x, 600.0 - 14 * at, line) for at, line in enumerate(column)] for x, column in ((60, left), (330, right))
    ]
    spots = [*columns[0], *columns[1]] if by_column else [spot for row in zip(*columns, strict=True) for spot in row]
    below = [(x, 540.0 - 14 * at, row[of]) for at, row in enumerate(table) for of, x in enumerate((60.0, 120.0, 230.0))]
    text = _read(files, [*spots, *below])
    assert text == " ".join(map(str.strip, [*left, *right, *map(" | ".join, table)]))
