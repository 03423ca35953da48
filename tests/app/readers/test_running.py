"""Running headers, page numbers and labels, on made-up geometry."""

from __future__ import annotations

import pytest

from app.readers import running
from app.readers.layout import Line

_PITCH = 14.0
_WIDTH = 6.0  # of a character
_TEXT = "and the keeper of the north light went up the stairs once more to see"


def _line(text: str, row: float, x0: float = 72.0, size: float = 12.0) -> Line:
    top = 72 + row * _PITCH
    return Line(text, x0, x0 + len(text) * _WIDTH, top, top + size, size=size)


def _book(pages: int, *headers: str, number: bool = True) -> list[list[Line]]:
    """Pages of ten lines below headers, whose {} holds the number of the page, with the number at the bottom."""
    book = []
    for at in range(pages):
        count = len(headers)
        lines = [_line(header.format(at + 1), row - count - 1) for row, header in enumerate(headers)]
        lines += [_line(f"{_TEXT} {word}", row) for row, word in enumerate("abcdefghij"[at % 7 :])]
        if number:
            lines.append(_line(str(at + 1), 45, x0=300))
        book.append(lines)
    return book


def _dropped(book: list[list[Line]]) -> list[list[str]]:
    found = running.find_running_headers(book, [""] * len(book))
    return [[page[at].text for at in sorted(found.drop(index))] for index, page in enumerate(book)]


def test_headers_and_page_numbers_go_and_the_first_header_stays() -> None:
    book = _book(12, "THE NORTH LIGHT")
    assert _dropped(book) == [["1"], *([["THE NORTH LIGHT", str(at + 1)] for at in range(1, 12)])]
    found = running.find_running_headers(book, [""] * 12)
    assert found.first == [{0}, *([set()] * 11)]
    assert found.printed == {at: str(at + 1) for at in range(12)}


@pytest.mark.parametrize(
    "header",
    [
        "Payslip no. 2026-0{}",
        "Invoice {}",
        "Invoice no. {}",
        "Chapter {}",
        "Week {}",
        "Reading 47.{} bar",
        "Pay date: {}.01.2026",
        "Total due 1,044.00",  # an amount, be it the same on every page
    ],
)
def test_what_only_counts_like_a_header_stays(header: str) -> None:
    assert _dropped(_book(5, header, number=False)) == [[]] * 5


def test_a_header_begins_anew_after_another_one() -> None:
    book = _book(9, "The keeper")
    for page in book[4:6]:
        page[0].text = "The storm"
    dropped = ["The keeper" in some for some in _dropped(book)]
    assert dropped == [False, True, True, True, False, False, False, True, True]


def test_headers_of_left_and_right_pages_go_both() -> None:
    book = _book(10, "")
    for at, page in enumerate(book):
        page[0] = _line("THE NORTH LIGHT" if at % 2 else "The Storm", -2)
    assert [len(some) for some in _dropped(book)] == [1, 1, *([2] * 8)]


def test_two_pages_alike_are_too_few() -> None:
    assert _dropped(_book(2, "THE NORTH LIGHT", number=False)) == [[], []]


def test_a_title_in_larger_type_is_no_header() -> None:
    book = _book(6, "Results", number=False)
    for page in book:
        page[0].size = 20.0
    assert not any(_dropped(book))


def test_rows_close_to_the_text_are_part_of_it() -> None:
    """The labels of a form that stands on every page; the rows of a table under its head."""
    book = _book(5, number=False)
    for page in book:
        page.insert(0, _line("Name of the applicant", -1))
    assert not any(_dropped(book))


def test_a_row_of_its_own_stops_the_search() -> None:
    """Below the number of an invoice stands who sent it, on every page, and it belongs to the invoice."""
    book = _book(5, "Invoice {}", "From: the oil works of Orre", number=False)
    assert not any(_dropped(book))


def test_rows_of_a_table_are_no_headers() -> None:
    book = _book(5, "Date Text Amount", number=False)
    for page in book:
        page[0].columns = (72.0, 200.0)
    assert not any(_dropped(book))


@pytest.mark.parametrize(
    ("header", "goes"),
    [("The Storm | {}", True), ("Page {} of 9, The Storm", True), ("The Storm {}", False)],
)
def test_a_number_in_a_header_is_known_by_what_parts_it(header: str, goes: bool) -> None:
    dropped = _dropped(_book(9, header, number=False))
    assert [bool(some) for some in dropped] == [False, *([goes] * 8)]


def test_a_number_far_from_the_words_of_its_header() -> None:
    book = _book(9, "The Storm {}", number=False)
    for page in book:
        page[0].x1, page[0].last_gap = page[1].x1, 200.0
    assert [bool(some) for some in _dropped(book)] == [False, *([True] * 8)]


def test_number_that_does_not_count_is_text() -> None:
    book = _book(6)
    for page, year in zip(book, (1812, 7, 1815, 40, 3, 1900), strict=True):
        page[-1].text = str(year)
    assert not any(_dropped(book))


def test_page_of_one_line_keeps_it() -> None:
    assert not any(_dropped([[_line("Plate", 0)] for _ in range(9)]))


def test_what_is_not_shown_does_not_count() -> None:
    book = _book(6, "THE NORTH LIGHT")
    for page in book:
        page += [Line(str(row), 500, 510, 100 + 14 * row, 110 + 14 * row, shown=False) for row in range(40)]
    assert [len(some) for some in _dropped(book)] == [1, 2, 2, 2, 2, 2]


def test_line_numbers_in_the_margin_go() -> None:
    book = _book(8)
    for page in book:
        page += [_line(str(row), row, x0=560) for row in range(1, 10)]
    assert all(len(dropped) == 10 for dropped in _dropped(book))


def _pleading(pages: int, gap: float) -> list[list[Line]]:
    """Pages on which each line begins with its number, ``gap`` points before it."""
    lines = [f"the claimant said {word} that the boat was lost" for word in ("once", "twice", "again", "here", "there")]
    return [
        [
            Line(
                f"{row} {lines[row % 5]}",
                40,
                400,
                60 + 24 * row,
                72 + 24 * row,
                words=[(str(row), 40, 46)],
                first_gap=gap,
            )
            for row in range(1, 20 + page % 3)
        ]
        for page in range(pages)
    ]


@pytest.mark.parametrize("pages", [8, 1])
def test_line_numbers_in_lines_go_where_they_stand_apart(pages: int) -> None:
    book = _pleading(pages, gap=20)
    running.find_running_headers(book, [""] * len(book))
    assert all(line.text.startswith("the claimant") and line.x0 == 66 for page in book for line in page)


@pytest.mark.parametrize(("pages", "gap", "word"), [(8, 3, "the"), (2, 20, "The")])
def test_numbers_that_begin_lines_stay_if_they_are_words_or_of_a_list(pages: int, gap: float, word: str) -> None:
    book = _pleading(pages, gap)
    for page in book:
        for line in page:
            line.text = line.text.replace("the", word, 1)
    running.find_running_headers(book, [""] * len(book))
    assert all(line.text[0].isdigit() and line.x0 == 40 for page in book for line in page)


def test_numbers_beneath_the_text_are_no_line_numbers() -> None:
    """The numbers of the questions of a form, each in a line of its own."""
    book = _book(8, number=False)
    for page in book:
        page[1:1] = [_line(str(row), row + 0.5) for row in range(1, 10)]
    assert not any(_dropped(book))


def test_labels_are_the_printed_numbers() -> None:
    printed = {at: str(at - 3) for at in range(4, 20) if at != 9}
    labels = running.page_labels([""] * 22, printed)
    assert labels[:6] == ["front 1", "front 2", "front 3", "front 4", "1", "2"]
    assert labels[9] == "6"  # between two that count on
    assert labels[20:] == ["after 16", "after 16 (2)"]


def test_labels_of_the_file_come_first() -> None:
    assert running.page_labels(["i", "ii", "1"], {0: "7", 1: "8", 2: "9"}) == ["i", "ii", "1"]


def test_labels_without_a_count_are_places() -> None:
    assert running.page_labels([""] * 4, {0: "12"}) == ["1", "2", "3", "4"]
