"""What is counted and listed over a whole text, without a model."""

from __future__ import annotations

import pytest

from app.core.listed import listed
from engine import Document

PAGES = [
    "Table 1. Fees by age\nThe north light burns. See Table 2.",
    "The whale is grey. The north light failed; the North Light was mended.",
    "Table 2. Fees by day\nAppendix A\nNothing else.",
]


@pytest.mark.parametrize(
    ("question", "head", "cells"),
    [
        ("On which pages is the north light mentioned?", "3 places on 2 pages, found by search:", ["1", "2"]),
        ("List all places with “whale”.", "1 place on 1 page, found by search:", ["2"]),
        ("All pages with the word whale", "1 place on 1 page, found by search:", ["2"]),
        ("How often does the north light appear?", "3 places on 2 pages, found by search:", ["1", "2"]),
        ("Auf welchen Seiten steht north light?", "3 Stellen auf 2 Seiten, durch Suche gefunden:", ["1", "2"]),
        ("How many tables are there in the report?", "2 labels, found by search:", ["1", "2"]),
        ("How many tables are about fees?", None, []),
        ("How often does the light burn?", None, []),
        ("On which page is the fee?", None, []),
        ("Which pages mention a gym?", None, []),
    ],
)
def test_places_and_labels_are_counted_and_listed(question: str, head: str | None, cells: list[str]) -> None:
    found = listed(Document.from_pages("Report", PAGES), question)
    assert (found and found.answer.split("\n")[0]) == head
    rows = found.answer.split("\n")[4:] if found else []
    assert [row.split("|")[1].strip() for row in rows] == cells
    assert [chip["pages"][0]["number"] for chip in (found.chips if found else [])] == (
        [1, 3] if "tables are there" in question else [int(cell) for cell in cells]
    )


def test_places_in_a_text_without_pages_are_in_its_sections() -> None:
    text = Document.from_pages("Report", PAGES, unit="section")
    found = listed(text, "On which pages is the north light mentioned?")
    assert found is not None
    assert found.answer.startswith("3 places in 2 sections, found by search:")
    found = listed(text, "Auf welchen Seiten steht whale?")
    assert found is not None
    assert found.answer.startswith("1 Stelle in 1 Abschnitt, durch Suche gefunden:")
