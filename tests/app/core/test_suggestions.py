"""Questions worth asking, from the table of contents and from how much has been read."""

from __future__ import annotations

from dataclasses import replace

from app.core.suggestions import suggestions, telling_headings
from engine.document import Document, OutlineItem
from tests.app.scripted import book


def with_outline(*items: tuple[str, int, int]) -> Document:
    return replace(book(), outline=tuple(OutlineItem(*item) for item in items))


def test_only_headings_that_tell_something() -> None:
    document = with_outline(
        ("Contents", 1, 0),
        ("Chapter IV", 2, 0),
        ("12.", 3, 0),
        ("The Open Hand", 4, 0),
        ("x", 5, 0),
        ("The Lamplighters of Orre", 5, 0),
        ("Fire and  Stairs", 6, 0),
        ("About the Author", 59, 0),
        ("W" * 80, 7, 0),
    )
    assert telling_headings(document, 60) == ["The Open Hand", "Fire and Stairs"]


def test_headings_from_all_over_the_book() -> None:
    document = with_outline(*((f"The story of number {page}", page, 0) for page in range(1, 60)))
    asked = suggestions(document, 60)
    assert len(asked) == 5
    numbers = [int(question.split("number ")[1].rstrip("”?")) for question in asked[:3]]
    assert numbers == sorted(numbers)
    assert numbers[0] < 20 < numbers[1] < 40 < numbers[2]


def test_nothing_is_asked_about_pages_that_were_not_read() -> None:
    document = with_outline(("The Open Hand", 4, 0), ("Fire and Stairs", 50, 0))
    partly = suggestions(document, 24)
    assert "What does the book say in “The Open Hand”?" in partly
    assert not any("Fire" in question or "end" in question.split() for question in partly)
    assert "How does the book end?" in suggestions(document, 60)


def test_chapters_below_parts_are_taken_where_parts_are_few() -> None:
    document = with_outline(("Book the First", 1, 0), ("The Open Hand", 4, 1), ("Fire and Stairs", 9, 1))
    assert telling_headings(document, 60) == ["Book the First", "The Open Hand", "Fire and Stairs"]
