"""The colours of both themes, computed from the style sheet: what is read can be told from what it stands on (AA)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TEXT = 4.5  # WCAG 2.2 AA, text of normal size
GRAPHIC = 3.0  # borders of controls, parts of a chart

# What is written in which colour on which ground.
WRITTEN = [
    *((ink, ground) for ink in ("ink", "soft", "lamp-ink") for ground in ("paper", "sheet", "raised")),
    *(("ink", ground) for ground in ("lamp-wash", "alarm-wash", "mark")),
    *(("ink", f"provenance-{writer}") for writer in ("draft", "lookup", "retrieval", "target")),
    ("button-ink", "button"),
    ("lamp-ink", "lamp-wash"),
    ("true", "true-wash"),
    ("true", "paper"),
    ("alarm", "alarm-wash"),
    ("alarm", "paper"),
    ("paper", "ink"),
]
DRAWN = [
    *(("edge", ground) for ground in ("paper", "sheet")),
    *(("lamp-ink", ground) for ground in ("paper", "sheet")),  # the outline of what has the focus
    ("button", "paper"),
    ("verify", "paper"),
]


def themes() -> dict[str, dict[str, str]]:
    sheet = Path(__file__).resolve().parents[3] / "assets" / "style" / "trifold.css"
    text = sheet.read_text(encoding="utf-8")
    blocks = {
        "light": text.split(":root {", 1)[1].split("}", 1)[0],
        "dark": text.split(':root[data-theme="dark"] {', 1)[1].split("}", 1)[0],
    }
    return {name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for name, block in blocks.items()}


def light(colour: str) -> float:
    """Relative luminance, as WCAG defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    brighter, darker = sorted((light(one), light(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def test_the_formula() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everything_written_can_be_read(theme: str) -> None:
    colours = themes()[theme]
    poor = {(ink, ground): contrast(colours[ink], colours[ground]) for ink, ground in WRITTEN}
    assert {pair: round(found, 2) for pair, found in poor.items() if found < TEXT} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everything_drawn_can_be_seen(theme: str) -> None:
    colours = themes()[theme]
    poor = {(ink, ground): contrast(colours[ink], colours[ground]) for ink, ground in DRAWN}
    assert {pair: round(found, 2) for pair, found in poor.items() if found < GRAPHIC} == {}


def test_both_themes_name_the_same_colours() -> None:
    found = themes()
    assert set(found["dark"]) == set(found["light"])


def test_writers_are_told_apart() -> None:
    for colours in themes().values():
        tints = [colours[f"provenance-{writer}"] for writer in ("draft", "lookup", "retrieval", "target")]
        assert len(set(tints)) == len(tints)
