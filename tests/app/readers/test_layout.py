"""Lines into paragraphs, on made-up geometry."""

from __future__ import annotations

from collections import Counter

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


def test_an_item_begins_left_of_the_lines_of_the_one_before() -> None:
    text = _reflow(_line("1. " + _FULL, 0), _line(_FULL + ".", 1, x0=90), _line("2. " + _FULL, 2))
    assert text == f"1. {_FULL} {_FULL}.\n2. {_FULL}"


def test_a_centred_line_ends_where_the_column_of_the_next_line_has_room() -> None:
    formulas = [_line("f(x) = g(x) + h(x) + k(x), ", 2 * at, x0=200) for at in range(30, 33)]
    margin = Margins([[_line(_FULL, at) for at in range(20)], formulas])
    for formula, below, x0 in (
        ("f(x) = g(x) + h(x), (1)", "and so it", 72),
        ("(a) a rod (b) a ring", "Figure 3: Bodies", 116),
    ):
        lines = [_line(formula, 0, x0=206), _line(below, 1.3, x0=x0)]
        assert reflow(lines, Counter(), margin) == f"{formula}\n{below}"


def test_items_that_count_on_are_lines_however_full_they_are() -> None:
    rows = [
        "1. Note one: see the log of 1841, page 1 of it.",
        "2. Second note, which is as long as the first.",
        "3. A third one of the notes at the page's foot.",
    ]
    lines = [Line(row, 0.0, 240.0, 14.0 * at, 14.0 * at + 12) for at, row in enumerate(rows)]
    assert reflow(lines, Counter()) == "\n".join(rows)


def test_a_column_of_short_lines_is_a_list_or_prose_by_how_they_begin() -> None:
    names = ["Ada Quill", "ada@example.org", "+49 30 1234", "Skills", "Lamps"]
    prose = ["The lamp burns oil", "and that the wick", "is trimmed by the", "keeper each night."]
    for rows, expected in ((names, "\n".join(names)), (prose, " ".join(prose))):
        lines = [Line(row, 0.0, 5.0 * len(row), 14.0 * at, 14.0 * at + 12) for at, row in enumerate(rows)]
        assert reflow(lines, Counter()) == expected


def test_a_line_that_is_led_to_a_page_by_dots_ends_there() -> None:
    rows = ["1.1 The lamp . . . . . . . . . . . . . . . . . . 2", "1.2 The tower . . . . . . . . . . . . . . . . . 6"]
    lines = [Line(row, 0.0, 300.0, 14.0 * at, 14.0 * at + 12) for at, row in enumerate(rows)]
    assert reflow(lines, Counter()) == "\n".join(rows)


def test_a_page_number_after_a_gap_ends_a_line_of_the_contents() -> None:
    """A recognised picture has no dot leaders: "3.1 Boats 15 3.2 Tides 21" stood in one line."""
    right = _line(_FULL, 0).x1
    rows = [_line(text, at, x1=right) for at, text in enumerate(["2.1 Boats 15", "2.2 Tides 21", "3 Losses xii"])]
    assert _reflow(*rows) == "2.1 Boats 15 2.2 Tides 21 3 Losses xii"
    rows[0].last_gap = 250
    assert _reflow(*rows) == "2.1 Boats 15 2.2 Tides 21 3 Losses xii"  # a number in the margin is no contents
    wrapped = [row for at in (0, 2, 4) for row in (_line("A long title that runs", at, x1=right), rows[at // 2])]
    for at, row in enumerate(wrapped):
        row.top, row.bottom = 72 + at * _PITCH, 84 + at * _PITCH
    for row in rows:
        row.last_gap = 250
    assert _reflow(*wrapped).count("\n") == 2, "titles of two lines"
    for at, row in enumerate(rows):
        row.top, row.bottom = 72 + at * _PITCH, 84 + at * _PITCH
    assert _reflow(*rows) == "2.1 Boats 15\n2.2 Tides 21\n3 Losses xii"


def test_lines_on_which_a_person_writes_stay_apart() -> None:
    lines = ["Name " + "." * 41 + " Date " + "." * 17, "Street: " + "_" * 60, "The keeper signs here."]
    assert _reflow(*(_line(text, at) for at, text in enumerate(lines))) == "\n".join(lines)
