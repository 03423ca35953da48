"""Lines into paragraphs, and running headers, on made-up geometry."""

from __future__ import annotations

from collections import Counter

from app.readers import layout
from app.readers.layout import Line, Margins, reflow

_PITCH = 14.0
_WIDTH = 6.0  # of a character


def _line(text: str, row: float, x0: float = 72.0, size: float = 12.0, x1: float | None = None) -> Line:
    top = 72 + row * _PITCH
    return Line(text, x0, x1 if x1 is not None else x0 + len(text) * _WIDTH, top, top + size, size=size)


_FULL = "and the keeper of the north light went up the stairs once more to see"  # as wide as the page's column


def _reflow(*lines: Line) -> str:
    margin = Margins([[_line(_FULL, at) for at in range(20)], list(lines)])
    return reflow(lines, Counter(), margin)


def test_full_lines_are_joined_and_a_short_one_ends_the_paragraph() -> None:
    text = _reflow(_line(_FULL, 0), _line("whether it burned.", 1), _line("It did.", 2, x0=86))
    assert text == f"{_FULL} whether it burned.\n\nIt did."


def test_indent_starts_a_paragraph_after_a_full_line() -> None:
    full = _FULL[:-1] + "."
    assert _reflow(_line(full, 0), _line(_FULL, 1, x0=86), _line(_FULL, 2)) == f"{full}\n\n{_FULL} {_FULL}"


def test_gap_starts_a_paragraph() -> None:
    assert _reflow(_line(_FULL, 0), _line(_FULL, 1), _line(_FULL, 3)) == f"{_FULL} {_FULL}\n\n{_FULL}"


def test_verse_keeps_its_lines() -> None:
    verse = [
        "The sea is calm tonight,",
        "The tide is full, the moon lies fair",
        "Upon the straits; on the French coast",
    ]
    assert _reflow(*(_line(text, at, x0=100) for at, text in enumerate(verse))) == "\n".join(verse)


def test_heading_in_larger_type_stands_alone() -> None:
    text = _reflow(_line("The Storm", 0, size=20, x1=400), _line(_FULL, 1.5), _line(_FULL, 2.5))
    assert text == f"The Storm\n\n{_FULL} {_FULL}"


def test_sentence_runs_on_into_the_next_column() -> None:
    left = [_line("the lamp was lit before", at, x1=300) for at in (30, 31)]
    right = [_line("dusk on every evening of", at, x0=320, x1=548) for at in (0, 1)]
    margin = Margins(
        [[_line("x" * 30, at, x1=300) for at in range(9)] + [_line("x" * 30, at, 320, 12, 548) for at in range(9)]]
    )
    text = reflow([*left, *right], Counter(), margin)
    assert text.count("\n") == 0
    assert "before dusk" in text


def test_cut_word_is_made_whole_only_by_the_next_line() -> None:
    first, second = _line(_FULL + " light-", 0), _line("house stood.", 1)
    first.cut = True
    assert "lighthouse stood." in _reflow(first, second)
    assert "light-\n\n16" in _reflow(first, _line("16", 9))


def _book(pages: int, header: str = "THE NORTH LIGHT", first: int = 1) -> list[list[Line]]:
    book = []
    for at in range(pages):
        lines = [_line(f"{header}", -2)]
        lines += [_line(f"{_FULL} {word}", row) for row, word in enumerate("abcdefghij"[at % 7 :])]
        lines.append(_line(str(at + first), 45, x0=300))
        book.append(lines)
    return book


def _dropped(book: list[list[Line]]) -> list[list[str]]:
    found = layout.find_running_headers(book, [""] * len(book))
    return [[page[at].text for at in sorted(found.drop[index])] for index, page in enumerate(book)]


def test_headers_and_page_numbers_go_and_text_stays() -> None:
    book = _book(12)
    assert _dropped(book) == [["THE NORTH LIGHT", str(at + 1)] for at in range(12)]


def test_chapter_headings_are_no_headers() -> None:
    book = _book(12, header="")
    for at, page in enumerate(book):
        page[0] = _line(f"Chapter {at + 1}", -2)
    assert _dropped(book) == [[str(at + 1)] for at in range(12)]


def test_number_that_does_not_count_is_text() -> None:
    book = _book(6, header="")
    for page, year in zip(book, (1812, 7, 1815, 40, 3, 1900), strict=True):
        page[0].text = "words of its own " + chr(97 + year % 26)
        page[-1].text = str(year)
    assert not any(_dropped(book))


def test_page_of_one_line_keeps_it() -> None:
    book = [[_line(f"Plate {at}", 0)] for at in range(9)]
    assert not any(_dropped(book))


def test_line_numbers_in_the_margin_go() -> None:
    book = _book(8)
    for page in book:
        page += [_line(str(row), row, x0=500) for row in range(1, 30)]
    assert all(len(dropped) == 31 for dropped in _dropped(book))


def test_labels_are_the_printed_numbers() -> None:
    printed = {at: str(at - 3) for at in range(4, 20) if at != 9}
    labels = layout.page_labels([""] * 22, printed)
    assert labels[:6] == ["front 1", "front 2", "front 3", "front 4", "1", "2"]
    assert labels[9] == "6"  # between two that count on
    assert labels[20:] == ["after 16", "after 16 (2)"]


def test_labels_of_the_file_come_first() -> None:
    assert layout.page_labels(["i", "ii", "1"], {0: "7", 1: "8", 2: "9"}) == ["i", "ii", "1"]


def test_labels_without_a_count_are_places() -> None:
    assert layout.page_labels([""] * 4, {0: "12"}) == ["1", "2", "3", "4"]
