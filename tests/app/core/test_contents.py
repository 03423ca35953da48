"""Chapters with the pages that they cover, and what is asked of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.contents import ContentsEntry, chapters, chosen
from app.core.parts import pages_numbered
from app.core.suggestions import chapter_question
from engine.document import Document, OutlineItem, Page
from engine.errors import OptionError
from engine.languages import Language

PAGES = [
    "The Lamps",
    "1 The Gale\nIt blew.",
    "It blew on.\n" + "And on it blew. " * 5 + "\nAt night\nIt was dark.",
    "12\nTHE CALM\nIt was still.",
    "The end.",
]


def book(*outline: tuple[str, int, int]) -> Document:
    items = tuple(OutlineItem(title, page, level) for title, page, level in outline)
    return replace(Document.from_pages("The Lamps", PAGES), outline=items)


def test_a_chapter_ends_where_the_next_of_its_level_begins() -> None:
    found = chapters(book(("The Gale", 2, 0), ("At night", 3, 1), ("The Calm", 4, 0)))
    assert found == (
        ContentsEntry("The Gale", 0, 2, 3),
        ContentsEntry("At night", 1, 3, 3),
        ContentsEntry("The Calm", 0, 4, 5),
    )


def test_a_page_on_which_another_chapter_begins_belongs_to_both() -> None:
    assert [(one.first, one.last) for one in chapters(book(("The Gale", 2, 0), ("At night", 3, 0)))] == [(2, 3), (3, 5)]


def test_odd_outlines() -> None:
    assert chapters(book()) == ()
    assert chapters(Document("", "", (), "pdf", "")) == ()
    back = chapters(book(("Late", 4, 0), ("Early", 1, 0), ("Not there", 9, 0)))
    assert [(one.first, one.last) for one in back] == [(4, 4), (1, 8), (9, 9)]


def test_chapters_are_chosen_by_number_and_title() -> None:
    lamps = book(("The Gale", 2, 0), ("At night", 3, 1), ("Oil, wicks", 4, 0), ("The end", 5, 0))
    assert chosen(lamps, "1") == {2, 3}
    assert chosen(lamps, "1, 3") == {2, 3, 5}
    assert chosen(lamps, "2-3") == {4, 5}
    assert chosen(lamps, "the GALE; 3") == {2, 3, 5}
    assert chosen(lamps, "Oil, wicks") == {4}, "a title may have a comma"
    assert chosen(lamps, "night") == {3}
    numbered = book(("Preface", 1, 0), ("Chapter 1", 2, 0), ("Chapter 2", 4, 0), ("Chapter 3", 5, 0))
    assert chosen(numbered, "2") == {4}, "the number that the title has"
    titles = [f"Chapter {number}" for number in range(1, 24)]
    outline = tuple(OutlineItem(title, page, 0) for page, title in enumerate(titles, start=1))
    many = replace(Document.from_pages("Many", titles), outline=outline)
    assert chosen(many, "1, 2") == {1, 2} != chosen(many, "12")
    assert chosen(many, "1-2") == {1, 2}
    assert chosen(many, "2; 3") == {2, 3}
    assert chosen(book(("1984", 2, 0), ("1985", 4, 0)), "1984") == {2, 3}


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("9", "There is no chapter “9” in this document. It has: The Gale; At night; The Calm."),
        ("The Storm", "There is no chapter “The Storm” in this document."),
        ("3-1", "Chapters 3-1 is no range."),
        (" , ", "No chapter is named."),
    ],
)
def test_a_chapter_that_is_not_there_is_told_with_those_that_are(wanted: str, said: str) -> None:
    with pytest.raises(OptionError) as raised:
        chosen(book(("The Gale", 2, 0), ("At night", 3, 1), ("The Calm", 4, 0)), wanted)
    assert str(raised.value).startswith(said)
    with pytest.raises(OptionError, match="names no chapters"):
        chosen(book(), "1")


def test_what_is_asked_names_the_chapter_and_its_pages() -> None:
    assert (
        chapter_question(ContentsEntry("The Gale", 0, 2, 3), Document.from_pages("Orre", ["text"] * 4))
        == "Summarize the chapter “The Gale” (pages 2 to 3)."
    )
    assert (
        chapter_question(ContentsEntry("The Calm", 0, 4, 4), Document.from_pages("Orre", ["text"] * 4, unit="section"))
        == "Summarize the chapter “The Calm” (section 4)."
    )
    pages = tuple(Page(at, label, "text") for at, label in enumerate(("i", "ii", "1", "2"), start=1))
    labelled = replace(Document.from_pages("Orre", []), pages=pages)
    assert (
        chapter_question(ContentsEntry("The Gale", 0, 2, 3), labelled)
        == "Summarize the chapter “The Gale” (pages ii to 1)."
    )


@pytest.mark.parametrize(
    ("language", "asked"),
    [
        ("de", "Fasse das Kapitel „Der Sturm“ (Seiten 2 bis 3) zusammen."),
        ("fr", "Résume le chapitre « Der Sturm » (pages 2 à 3)."),
        ("es", "Resume el capítulo «Der Sturm» (páginas 2 a 3)."),
    ],
)
def test_a_chapter_is_asked_about_in_the_language_of_its_book(language: Language, asked: str) -> None:
    """Questions stay understood: the part of a long book that has these pages is the one that is asked."""
    document = Document.from_pages("Orre", ["text"] * 9)
    assert chapter_question(ContentsEntry("Der Sturm", 0, 2, 3), document, language) == asked
    assert pages_numbered(document, asked) == {2, 3}
    sections = replace(document, unit="section")
    assert pages_numbered(sections, chapter_question(ContentsEntry("Der Sturm", 0, 4, 4), sections, language)) == {4}
