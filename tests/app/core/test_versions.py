"""Two versions of one text are compared by their words: every difference, with the places of both."""

from __future__ import annotations

import pytest

from app.core.versions import compared
from engine.document import Document

OLD = """Lease of the boathouse

1. Definitions

1.1 "Boat" means any vessel kept in the house.

2. Rent and deposit

2.1 The tenant pays 480 euros on the first day of each month.

2.2 A deposit of 960 euros is due on signing. The landlord keeps it in a separate account at the bank of Kelmouth and
pays no interest on it. It is returned within thirty days of the end of the lease, less what is owed for rent and for
damage that the tenant has done to the house.

2.3 The rent rises by 2 percent each year.

3. Use

3.1 The tenant may keep two boats and a dog.

3.2 No fire may be lit in the house.

3.3 The tenant cleans the slipway each spring.

4. Ending the lease

4.1 Either side may give notice of three months.

4.2 If rent under clause 2.1 is late by thirty days the landlord may end the lease at once.

4.3 Keys are returned on the last day.

Signed at Orre on 3 May 2023 by Ada Quill and Tom Bray."""
CHANGES = (
    ("480 euros", "520 euros"),
    ("960 euros", "1,040 euros"),
    ("thirty days of the end", "sixty days of the end"),
    ("pays no interest", "pays 1 percent interest"),
    ("2 percent each", "3 percent each"),
    ("two boats", "three boats"),
    ("a dog", "no dog"),
    ("3.2 No fire may be lit in the house.\n\n3.3", "3.2"),
    ("three months", "two months"),
    ("the landlord may end", "the tenant may end"),
    ("4.3 Keys", "4.3 The tenant insures the house against fire.\n\n4.4 Keys"),
    ("3 May 2023", "4 May 2024"),
)
TWO = "Where do the two documents differ?"


def changed() -> str:
    text = OLD
    for old, new in CHANGES:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def both(old: str, new: str, cut: str = "3. Use") -> Document:
    """The two as one book; the second is cut into pages elsewhere, and its lines are broken elsewhere."""
    pages = [[text[: text.index(at)], text[text.index(at) :]] for text, at in ((old, cut), (new, "3.1 "))]
    return Document.together([Document.from_pages("Lease 2023", pages[0]), Document.from_pages("Lease 2024", pages[1])])


def rows(answer: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in answer.splitlines()[4:]]


def test_twelve_planted_differences_are_all_named() -> None:
    """The model listed seven things in which the two are alike, and none of the differences."""
    found = compared(both(OLD, changed().replace("Kelmouth and\npays", "Kelmouth and pays")), TWO)
    assert found is not None
    assert found.answer.startswith("11 differences, found word by word:")
    table = rows(found.answer)
    for old, new in (
        ("**480**", "**520**"),
        ("**960**", "**1,040**"),
        ("**thirty**", "**sixty**"),
        ("**no** interest", "**1 percent** interest"),
        ("**2** percent", "**3** percent"),
        ("**two** boats and **a** dog", "**three** boats and **no** dog"),
        ("No fire may be lit in the house.", "–"),
        ("**three** months", "**two** months"),
        ("the **landlord** may end", "the **tenant** may end"),
        ("–", "The tenant insures the house against fire."),
        ("**3** May **2023**", "**4** May **2024**"),
    ):
        assert [row for row in table if old in row[1] and new in row[2]], (old, new)
    assert [row[0] for row in table][:2] == ["2.1 Rent and deposit", "2.2 Rent and deposit"]


def test_each_text_has_the_page_of_its_document() -> None:
    found = compared(both(OLD, changed()), TWO)
    assert found is not None
    assert len(found.chips) == 20
    for chip in found.chips:
        assert found.answer[: chip["at"]].endswith(found.answer[chip["from"] : chip["at"]])
        assert chip["document"] in ("Lease 2023", "Lease 2024")
    use = [chip for chip in found.chips if "boats" in found.answer[chip["from"] : chip["at"]]]
    assert [(chip["document"], chip["pages"][0]["number"]) for chip in use] == [("Lease 2023", 2), ("Lease 2024", 2)]


@pytest.mark.parametrize(
    ("question", "count"),
    [
        ("How does the deposit differ?", 3),
        ("Worin unterscheiden sich die beiden Dokumente?", 11),
        ("What colour differs?", None),
        ("Who is the tenant?", None),
    ],
)
def test_a_question_for_one_thing_gets_its_differences(question: str, count: int | None) -> None:
    found = compared(both(OLD, changed()), question)
    assert (found and len(rows(found.answer))) == count


def test_line_breaks_case_and_numbers_of_clauses_are_no_difference() -> None:
    renumbered = OLD.replace("3.1 The", "3.2 The").replace("3.2 No", "3.3 No").replace("3.3 The", "3.4 The")
    again = (
        renumbered.replace("account at", "account\nat")
        .replace('"Boat"', "“Boat”")
        .replace("Definitions", "DEFINITIONS")
    )
    found = compared(both(OLD, again.replace("3.2 The", "3.1 The")), TWO)
    assert found is not None
    assert found.answer == "Both have the same words."


def test_a_clause_at_another_place_was_moved() -> None:
    fire = "3.2 No fire may be lit in the house.\n\n"
    found = compared(both(OLD, OLD.replace(fire, "").replace("4.3 Keys", f"{fire}4.3 Keys")), TWO)
    assert found is not None
    assert [row[0] for row in rows(found.answer)] == ["3.2 Use (moved)"]


def test_texts_that_are_no_versions_of_one_another_are_not_compared() -> None:
    other = "A novel.\n\n" + "\n\n".join(f"In chapter {n} the keeper of light {n} goes to sea." for n in range(30))
    book = Document.together([Document.from_pages("Lease", [OLD]), Document.from_pages("Novel", [other])])
    assert compared(book, TWO) is None
    three = Document.together([Document.from_pages(str(n), [OLD]) for n in range(3)])
    assert compared(three, TWO) is None


def test_what_means_something_in_markdown_is_printed_as_it_is() -> None:
    text = OLD.replace("480 euros", "480 euros | *plus* <b>heating</b>")
    found = compared(both(OLD, text), TWO)
    assert found is not None
    assert r"\| \*plus\* \<b\>heating\</b\>" in found.answer


def test_rows_of_a_table_are_compared_one_by_one() -> None:
    table = "\n\nRoom | Rent\nHall | 40\nYard | 25"
    found = compared(both(OLD + table, OLD + table.replace("25", "30")), TWO)
    assert found is not None
    assert rows(found.answer)[0][1:] == [r"Yard \| **25**", r"Yard \| **30**"]
