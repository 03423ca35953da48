"""What the contents of a book put behind a question about all of it or one of its chapters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.contents import ALONG, MOST_CHAPTERS, guided
from engine.document import Document, OutlineItem
from engine.passages import Whole

TITLES = ("Contents", "Chapter I: The Crossing", "Chapter II: The Open Hand", "Chapter III: The Lamp House", "Endnotes")
PAGES = (
    "Contents",
    "Chapter I: The Crossing\n\nThe boat was full of hens.",
    "Chapter II: The Open Hand\n\nThere is one inn at Orre, with its back to the hill.",
    "Chapter III: The Lamp House\n\nThe Lamp House is at the foot of the great stair.",
    "Endnotes",
)
BOOK = replace(
    Document.from_pages("Orre", PAGES),
    outline=tuple(OutlineItem(title, number, 0) for number, title in enumerate(TITLES, start=1)),
)
ALL = "Chapter I: The Crossing; Chapter II: The Open Hand; Chapter III: The Lamp House"


@pytest.mark.parametrize(
    ("language", "questions"),
    [
        ("en", ("What is this about?", "Summarize the book.")),
        ("de", ("Worum geht es in dem Buch?", "Fasse das Buch bitte in wenigen Sätzen zusammen.", "Wovon handelt es?")),
        ("fr", ("De quoi parle ce livre ?", "Résume le livre en quelques phrases.", "Quel est le sujet du texte ?")),
        ("es", ("¿De qué trata este libro?", "Resume el libro, por favor.", "Hazme un resumen del texto.")),
    ],
)
def test_a_summary_goes_along_the_chapters_in_the_language_of_the_question(
    language: Whole, questions: tuple[str, ...]
) -> None:
    for question in questions:
        assert guided(question, BOOK, 5) == f"{question}\n\n{ALONG[language]} {ALL}"


def test_a_summary_whose_length_is_named_gets_no_sentence_for_each_chapter() -> None:
    for question in ("Summarize it in at most 60 words.", "Fasse es in drei Sätzen zusammen.", "Résume en 5 phrases."):
        assert guided(question, BOOK, 5) == question


@pytest.mark.parametrize(
    "question",
    [
        "Summarize chapter 2.",
        "Summarize chapter two",
        "What happens in the second chapter?",
        "What is Chapter II about?",
        "Fasse Kapitel 2 zusammen.",
        "Was geschieht im zweiten Kapitel des Buchs?",
        "Résume le chapitre deux.",
        "Que se passe-t-il dans la deuxième partie du livre ?",
        "Resume el capítulo 2.",
        "¿Qué ocurre en la segunda parte del libro?",
    ],
)
def test_a_chapter_is_told_by_its_title(question: str) -> None:
    assert guided(question, BOOK, 5) == f"{question} (“Chapter II: The Open Hand”)"


@pytest.mark.parametrize(
    "question",
    [
        "Who kept the light?",
        "Summarize chapter 9.",
        "What is “Chapter II: The Open Hand” about?",
        "Where does it say “Chapter II: The Open Hand”?",
        "Worum geht es im Streit mit dem Leuchtturmwärter?",
        "¿De qué trata Marta con el capitán?",
        "Hello!",
        "",
    ],
)
def test_other_questions_stay_as_they_are(question: str) -> None:
    assert guided(question, BOOK, 5) == question


def test_only_what_has_been_read_counts_and_titles_that_say_something() -> None:
    assert guided("What is this about?", BOOK, 3) == "What is this about?"
    bare = replace(BOOK, outline=tuple(OutlineItem(f"Chapter {number}", number, 0) for number in range(1, 6)))
    assert guided("What is this about?", bare, 5) == "What is this about?"
    assert "Chapter 4" in guided("Summarize chapter 4.", bare, 5)
    assert guided("What is this about?", replace(BOOK, outline=()), 5) == "What is this about?"


def test_the_numbered_level_of_the_contents_is_that_of_the_chapters() -> None:
    parts = [OutlineItem(title, page, 0) for page, title in enumerate(("Map", "Kidnapped", "Afterword"), start=1)]
    chapters = [OutlineItem(f"{number}: Of page {number}", number, 1) for number in range(1, 41)]
    long = replace(Document.from_pages("", ["Words."] * 40), outline=(*parts, *chapters))
    whole = guided("What is it about?", long, 40)
    assert whole.count(": Of page") == MOST_CHAPTERS
    assert "“30: Of page 30”" in guided("Summarize chapter 30.", long, 40)
