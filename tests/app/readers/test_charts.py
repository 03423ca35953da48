"""Charts that are drawn on a PDF's page: their words are read as a person reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from app.readers import detect
from app.readers.layout import Line
from app.readers.parsed import Limits
from app.readers.pdf_charts import charts

_FRAME = b"0.8 w 150 420 300 200 re S\n"


def _text(x: float, y: float, words: str, *, up: bool = False) -> bytes:
    place = b"0 1 -1 0" if up else b"1 0 0 1"
    return b"BT /F1 10 Tf %s %d %d Tm (%s) Tj ET\n" % (place, x, y, words.encode())


def _read(files: Any, make_stream: Any, parts: Sequence[bytes]) -> str:
    path = files.pdf("chart.pdf", [], streams=[make_stream(b"".join(parts))])
    return detect.parse(path, {}, Limits(), lambda *_: None).sections[0].text


def _marks(x: float, values: Sequence[int], last: float = 620) -> list[bytes]:
    step = (last - 420) / (len(values) - 1)
    return [_text(x, 417 + step * at, str(value)) for at, value in enumerate(values)]


def test_an_axis_has_its_name_and_its_marks_from_the_lowest(files: Any, make_stream: Any) -> None:
    """As matplotlib draws a chart: the marks below first, then those at the left, the title last."""
    parts = [
        _text(72, 720, "The ships of the harbour are counted every year by the keeper."),
        _FRAME,
        *(_text(170 + 80 * at, 405, str(2016 + 2 * at)) for at in range(4)),
        _text(285, 390, "Year"),
        *_marks(130, [10, 20, 30, 40, 50]),
        _text(118, 480, "Ships (thousand)", up=True),
        _text(260, 628, "Ships at Orre"),
        _text(380, 590, "Harbour"),
        _text(380, 576, "Lighthouse"),
        _text(150, 360, "Figure 1: Ships of ten years."),
        _text(72, 330, "In the last year there were more of them than ever before in the town."),
    ]
    assert _read(files, make_stream, parts) == (
        "The ships of the harbour are counted every year by the keeper.\n\n"
        "Ships at Orre\nShips (thousand): 10, 20, 30, 40, 50\nHarbour\nLighthouse\n2016, 2018, 2020, 2022\nYear\n\n"
        "Figure 1: Ships of ten years.\n\n"
        "In the last year there were more of them than ever before in the town."
    )


def test_columns_have_their_numbers(files: Any, make_stream: Any) -> None:
    places = ["North", "South", "East"]
    parts = [
        _FRAME, *(_text(190 + 90 * at, 405, place) for at, place in enumerate(places)),
        *_marks(130, [0, 20, 40]), *(_text(195 + 90 * at, 470 + 40 * at, str(12 + at)) for at in range(3)),
    ]  # fmt: skip
    assert _read(files, make_stream, parts) == "0, 20, 40\nNorth: 12, South: 13, East: 14"


def test_a_table_in_a_frame_stays_a_table(files: Any, make_stream: Any) -> None:
    rows = [("Lamps", 10), ("Wicks", 20), ("Oil", 30), ("Boats", 40)]
    parts = [_FRAME]
    for at, (name, count) in enumerate(rows):
        parts += [
            _text(130, 600 - 50 * at, str(count)),
            _text(170, 600 - 50 * at, name),
            _text(300, 600 - 50 * at, "7"),
        ]
    assert _read(files, make_stream, parts).split("\n") == [f"{count} | {name} | 7" for name, count in rows]


def test_words_without_height_are_words_of_the_chart() -> None:
    """They overlap no row, not even their own, and the page was read by the second reader instead."""
    marks = [Line(str(10 * at), 80, 95, 400 - 50 * at, 410 - 50 * at, size=10) for at in range(5)]
    pieces = [*marks, Line("flat", 150, 170, 300, 300, size=10)]
    (rows,) = charts(pieces, [(100, 400, 195, 410)])
    assert pieces == []
    assert {row.text for row in rows} == {"0, 10, 20, 30, 40", "flat"}


def _bars(names: Sequence[str], numbers: Sequence[Sequence[str]]) -> list[bytes]:
    """A chart with horizontal bars, as matplotlib draws it, with the numbers beside the bars."""
    parts = [_FRAME, *(_text(147 + 50 * at, 405, str(10 * at)) for at in range(6)), _text(260, 390, "Homes (%)")]
    for at, (name, row) in enumerate(zip(names, numbers, strict=True)):
        parts.append(_text(140 - 6 * len(name), 440 + 60 * at, name))
        parts += [_text(200 + 40 * at, 440 + 60 * at + 8 * one, number) for one, number in enumerate(row)]
    return [*parts, _text(250, 628, "Heat pumps")]


def test_bars_have_their_numbers_only_if_each_has_one(files: Any, make_stream: Any) -> None:
    names = ["Norway", "France", "Spain"]
    title = "Heat pumps\nHomes (%): 0, 10, 20, 30, 40, 50\n"
    sure = _bars(names, [["12.4"], ["15"], ["3.7"]])
    assert _read(files, make_stream, sure) == f"{title}Spain: 3.7\nFrance: 15\nNorway: 12.4"
    several = _bars(names, [["12.4", "11"], ["15", "14"], ["3.7", "2"]])
    assert _read(files, make_stream, several) == f"{title}Spain\nFrance\nNorway\n2, 3.7, 14, 15, 11, 12.4"


def test_columns_of_several_series_share_no_number(files: Any, make_stream: Any) -> None:
    """South had the number of its second series, because the two stood as far from its name as one may."""
    parts = [
        _FRAME, *(_text(190 + 90 * at, 405, place) for at, place in enumerate(["North", "South", "East"])),
        *_marks(130, [0, 20, 40]),
        *(_text(175 + 90 * at, 470, str(2 + at)) for at in range(3)),
        *(_text(205 + 90 * at, 490, str(7 + at)) for at in range(3)),
    ]  # fmt: skip
    assert _read(files, make_stream, parts) == "0, 20, 40\n7, 8, 9\n2, 3, 4\nNorth, South, East"


def test_the_marks_of_an_axis_of_powers_are_whole() -> None:
    powers = [
        Line(text, x0, x0 + 6 * len(text), top, top + 10)
        for at in range(4)
        for text, x0, top in (("10", 100.0, 100.0 + 50 * at), (f"^{3 - at}", 112.0, 97.0 + 50 * at))
    ]
    (rows,) = charts([*powers, Line("measured", 200, 250, 150, 160)], [(130.0, 400.0, 95.0, 260.0)])
    assert [row.text for row in rows] == ["10^0, 10^1, 10^2, 10^3", "measured"]


def test_a_grid_without_a_frame_is_the_box_of_a_chart(files: Any, make_stream: Any) -> None:
    """As office programs draw charts: lines at the marks, and a frame far around them."""
    grid = b"".join(b"0.8 w 150 %d m 450 %d l S\n" % (420 + 50 * at, 420 + 50 * at) for at in range(5))
    places = (_text(190 + 90 * at, 405, place) for at, place in enumerate(["North", "South", "East"]))
    parts = [
        grid,
        *places,
        *_marks(130, [0, 10, 20, 30, 40]),
        *(_text(195 + 90 * at, 470, str(12 + at)) for at in range(3)),
    ]
    assert _read(files, make_stream, parts) == "0, 10, 20, 30, 40\nNorth: 12, South: 13, East: 14"


def test_the_name_of_an_axis_has_its_first_and_last_letter() -> None:
    """Calc draws each letter by itself, and "Euros" was read as "uro"."""
    name = Line("uro", 100, 110, 200, 218, angle=4.71)
    ends = [Line("E", 100, 109, 218, 225), Line("s", 100, 109, 194, 200)]
    marks = [Line(str(40 - 10 * at), 120, 131, 150 + 30 * at, 160 + 30 * at) for at in range(5)]
    (rows,) = charts([*marks, *ends, name], [(135.0, 400.0, 150.0, 285.0)])
    assert [row.text for row in rows] == ["Euros: 0, 10, 20, 30, 40"]


def _pie(x: float, y: float, radius: float, shares: Sequence[float], colours: bool = False) -> bytes:
    """Slices as programs draw them: an arc of curves of at most a quarter of a circle, and lines to the middle."""
    parts, angle = [], math.pi / 2
    for at, share in enumerate(shares):
        steps = math.ceil(share * 4)
        step = -share * math.tau / steps
        reach = 4 / 3 * math.tan(step / 4) * radius
        parts.append(f"0.{at + 1} 0.5 0.{9 - at} rg {x + radius * math.cos(angle)} {y + radius * math.sin(angle)} m")
        for _ in range(steps):
            ends = [(x + radius * math.cos(one), y + radius * math.sin(one), one) for one in (angle, angle + step)]
            (x0, y0, a), (x1, y1, b) = ends
            one = f"{x0 - reach * math.sin(a)} {y0 + reach * math.cos(a)}"
            parts.append(f"{one} {x1 + reach * math.sin(b)} {y1 - reach * math.cos(b)} {x1} {y1} c")
            angle += step
        parts.append(f"{x} {y} l h f")
        if colours:
            parts.append(f"430 {y - 15 * at} 8 8 re f")
    return ("\n".join(parts) + "\n0 g\n").encode()


def test_slices_of_a_pie_have_their_names_and_numbers(files: Any, make_stream: Any) -> None:
    """Numbers and names of neighbouring slices were cells of one row."""
    parts = [_text(300, 640, "Ways to the isle"), _pie(320, 520, 80, [0.6, 0.3, 0.05, 0.05])]
    for words, share, turn in (
        ("Ferry", "60%", 0.3),
        ("Boat", "30%", 0.75),
        ("Raft", "5%", 0.925),
        ("Swim", "5%", 0.975),
    ):
        angle = math.pi / 2 - turn * math.tau
        across, up = math.cos(angle), math.sin(angle)
        parts.append(_text(320 + 88 * across - (25 if across < 0 else 0), 517 + 88 * up, words))
        parts.append(_text(312 + 55 * across, 517 + 55 * up, share))
    assert _read(files, make_stream, parts) == "Ways to the isle\nFerry: 60%\nBoat: 30%\nRaft: 5%\nSwim: 5%"


def test_a_legend_names_the_slices_of_its_colours(files: Any, make_stream: Any) -> None:
    parts = [_pie(320, 520, 80, [0.5, 0.25, 0.25], colours=True)]
    parts += [_text(445, 520 - 15 * at, words) for at, words in enumerate(("Oil", "Gas", "Wood"))]
    parts += [_text(360, 517, "50%"), _text(282, 482, "25%"), _text(280, 552, "31%")]
    # a slice of 25% is not 31%
    assert _read(files, make_stream, parts) == "Oil: 50%\nGas: 25%\nWood\n31%"
