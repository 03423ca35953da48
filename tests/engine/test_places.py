"""The places that a question names are found by the program, by the printed number first."""

from __future__ import annotations

import pytest

from engine.document import Document, Page
from engine.places import LONGEST, beside, named

FILL = "The lamps of the harbour burn from dusk to dawn, and each has a keeper of its own who trims it at nine."
PAGES = (
    ("i", "The Lamps of Orre. A report for the harbour office, by Ada Quill."),
    ("ii", "Contents\n1 Lamps ..... 1\n2 Keepers ..... 2\nTable 2 ..... 3\nAppendix C ..... 4"),
    ("1", f"1 Lamps\n{FILL}\n2 Keepers\nPaid at the end of the month. {FILL}\n2.1 Wages\nNine euros. {FILL}"),
    ("2", f"Table 1. Oil by month\n{FILL}\nTable 2. Fees by age\nAdults | 12\nPupils | 8\n{FILL}"),
    ("3", f"Appendix B: Maps\n{FILL}\nAppendix C: Names\nAda Quill, Tom Bray, Ines Holm. {FILL}"),
    ("4", "Printed at Westhaven in 1912 for the harbour office. No part may be copied."),
)
BOOK = Document(
    "Orre", "", tuple(Page(n, label, text) for n, (label, text) in enumerate(PAGES, start=1)), "pdf", "0", "page"
)


@pytest.mark.parametrize(
    ("question", "name", "words"),
    [
        ("What is on page 2?", "Page 2", "Fees by age"),
        ("What is on page ii?", "Page ii", "Contents"),
        ("What is on page 6?", "Page 4", "Printed at Westhaven"),
        ("What stands on the last page?", "Page 4", "Printed at Westhaven"),
        ("Who is named on the cover?", "Page i", "by Ada Quill"),
        ("What does Table 2 say?", "Table 2 (page 2)", "Pupils | 8"),
        ("Explain section 2.1.", "Section 2.1 (page 1)", "Nine euros"),
        ("What does clause 2 say?", "Section 2 (page 1)", "end of the month"),
        ("What is in Appendix C?", "Appendix C (page 3)", "Ines Holm"),
        ("Was steht auf Seite 4?", "Page 4", "Printed at Westhaven"),
    ],
)
def test_a_place_that_a_question_names(question: str, name: str, words: str) -> None:
    """The model does not know on which page it is: it answered from another one."""
    ((called, text),) = named(question, BOOK, len(PAGES))
    assert called == name
    assert words in text
    assert beside(question, [(called, text)]).endswith(f"\n\n{question}")


def test_a_part_ends_where_the_next_begins() -> None:
    ((_, text),) = named("What does Table 1 say?", BOOK, len(PAGES))
    assert "Oil by month" in text
    assert "Fees" not in text
    ((_, text),) = named("What is section 1 about?", BOOK, len(PAGES))
    assert "end of the month" not in text


@pytest.mark.parametrize(
    "question",
    [
        "Who kept the light?",
        "What is on page 99?",
        "How many pages are there?",
        "What does table salt cost?",
        "Explain section 7",
    ],
)
def test_a_question_without_a_place_has_none(question: str) -> None:
    assert named(question, BOOK, len(PAGES)) == []


def test_what_was_not_read_is_not_shown_and_there_is_a_limit() -> None:
    assert named("What is on page 4?", BOOK, 3) == []
    assert named("What stands on the last page?", BOOK, 3) == []
    long = Document.from_pages("Long", [FILL * 60 for _ in range(9)])
    found = named("What do pages 1 to 9 say?", long, 9)
    assert sum(len(text) for _, text in found) <= LONGEST


def test_of_several_documents_each_has_its_own_page() -> None:
    both = Document.together([Document.from_pages(name, [f"{name} begins.", f"{name} ends."]) for name in ("A", "B")])
    assert [name for name, _ in named("What stands on the last page?", both, 4)] == ["Page 2 of A", "Page 2 of B"]
