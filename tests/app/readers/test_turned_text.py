"""Text of a PDF page that is not upright: whole pages, tables, names of columns and labels at an angle."""

from __future__ import annotations

from math import cos, radians, sin
from typing import Any

import pytest

from app.readers import detect
from app.readers.parsed import Limits

_LOG = [
    "A ship of three masts passed the rock in the first watch of the night and",
    "made no sign. The keeper wrote her down as a stranger, and the wind as north",
    "of east. At four he trimmed the wick, filled the oil and went to his bed.",
]


def _at(x: float, y: float, words: str, degrees: float = 0) -> bytes:
    """Draw words from (x, y from the bottom), turned counterclockwise."""
    across, up = cos(radians(degrees)), sin(radians(degrees))
    return b"BT /F1 11 Tf %f %f %f %f %g %g Tm (%s) Tj ET\n" % (across, up, -up, across, x, y, words.encode())


def _text(files: Any, content: bytes) -> str:
    stream = b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content)
    return detect.parse(files.pdf("turned.pdf", [], streams=[stream]), {}, Limits(), lambda *_: None).sections[0].text


@pytest.mark.parametrize(
    ("degrees", "x", "y", "right", "down"),
    [
        (180, 540, 100, 0, 14),
        (90, 100, 90, 14, 0),
        (270, 400, 700, -14, 0),
    ],
)
def test_a_page_whose_letters_stand_on_their_head_or_side_is_read(
    files: Any, degrees: int, x: int, y: int, right: int, down: int
) -> None:
    drawn = b"".join(_at(x + right * at, y + down * at, line, degrees) for at, line in enumerate(_LOG))
    assert " ".join(_text(files, drawn).split()) == " ".join(_LOG)


def test_a_table_on_its_side_below_an_upright_title_is_a_table(files: Any) -> None:
    rows = [("Lamp", "Height", "Built"), ("North", "31", "1846"), ("South", "22", "1871"), ("Rock", "9", "1902")]
    drawn = _at(72, 740, "Lamps")
    for at, row in enumerate(rows):
        drawn += b"".join(_at(200 + 16 * at, 150 + 130 * place, cell, 90) for place, cell in enumerate(row))
    assert _text(files, drawn).split("\n\n")[-1] == "\n".join(" | ".join(row) for row in rows)


@pytest.mark.parametrize(("degrees", "right", "up", "y"), [(90, 16, 130, 150), (270, -16, -130, 500)])
def test_a_table_on_its_side_among_upright_lines_is_a_table(
    files: Any, degrees: int, right: int, up: int, y: int
) -> None:
    rows = [("Lamp", "Height", "Built"), ("North", "31", "1846"), ("South", "22", "1871"), ("Rock", "9", "1902")]
    drawn = b"".join(_at(72, 740 - 14 * at, line) for at, line in enumerate(_LOG))
    for at, row in enumerate(rows):
        drawn += b"".join(_at(200 + right * at, y + up * place, cell, degrees) for place, cell in enumerate(row))
    drawn += _at(72, 100, "Seen by the keeper himself and written down in the year of the great storm.")
    log, table, last = _text(files, drawn).split("\n\n")
    assert (" ".join(log.split()), last[:4]) == (" ".join(_LOG), "Seen")
    assert table == "\n".join(" | ".join(row) for row in rows)


def test_labels_at_an_angle_keep_their_figures(files: Any) -> None:
    """Their last figures stand higher than their first, and were marked as superscripts."""
    drawn = b"".join(_at(72, 700 - 14 * at, line) for at, line in enumerate(_LOG))
    drawn += _at(120, 400, "Oil, 25 casks", 35) + _at(180, 400, "Tar, 17 casks", 35) + _at(300, 420, "12 m x 40", 315)
    drawn += _at(500, 300, "Beam 2750 mm", 90) + _at(530, 420, "Room 14", 270) + _at(72, 250, "Below the plan.")
    text = _text(files, drawn)
    assert text.startswith("\n".join(_LOG[:2]))
    for label in ("Oil, 25 casks", "Tar, 17 casks", "12 m x 40", "Beam 2750 mm", "Room 14", "Below the plan."):
        assert label in text
    assert "^" not in text


def test_names_of_columns_on_their_side_leave_the_rows_apart(files: Any) -> None:
    rows = [("Holm", "dry", "new", "two"), ("Bray", "wet", "old", "six"), ("Sule", "dry", "old", "one")]
    drawn = b"".join(_at(200 + 60 * at, 640, name, 90) for at, name in enumerate(("Hold", "Sails", "Number of boats")))
    drawn += b"".join(
        _at(72 if not place else 134 + 60 * place, 612 - 16 * at, cell)
        for at, row in enumerate(rows)
        for place, cell in enumerate(row)
    )
    assert _text(files, drawn).split("\n") == ["| Hold | Sails | Number of boats", *(" | ".join(row) for row in rows)]
