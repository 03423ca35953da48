"""A question that compares the open documents: which questions do, their points, and the table of the answers."""

from __future__ import annotations

import threading

import pytest

from app.core.abilities import Abilities
from app.core.question import Ask
from app.core.side_by_side import SideBySide, points_of
from engine.document import Document
from engine.events import StopReason
from tests.app.scripted import ScriptedEngine

LEASES = Document.together(
    [
        Document.from_pages("Harbour Street", ["The rent is 890 euros.", "The deposit is 1,780 euros."]),
        Document.from_pages("Mill Lane", ["The rent is 980 euros.", "Nothing is kept back."]),
        Document.from_pages("Station | Road", ["Rent: 1,150 euros.", "No deposit is taken."]),
    ]
)


@pytest.mark.parametrize(
    ("question", "points"),
    [
        ("Compare the rent and the deposit of the three leases.", ("rent", "deposit")),
        ("How do the contracts differ in rent, notice period and pets?", ("rent", "notice period", "pets")),
        ("Vergleiche die Miete und die Kaution der beiden Verträge", ("Miete", "Kaution")),
        ("Which lease allows dogs?", ("",)),
    ],
)
def test_a_question_is_asked_point_by_point(question: str, points: tuple[str, ...]) -> None:
    assert points_of(question) == points


@pytest.mark.parametrize(
    ("question", "compares"),
    [
        ("Which lease has the lower rent?", True),
        ("Do both leases ask for a deposit?", True),
        ("How many of these leases have a deposit over 1,500?", True),
        ("In wie vielen Verträgen ist die Kaution höher als 1.500 Euro?", True),
        ("Who is named in each book?", True),
        ("How many keys does the tenant get?", False),
        ("How many letters did the tenant write?", False),  # to be counted within a document
        ("Wie viele Briefe schrieb er?", False),
        ("How many leases do not allow dogs?", True),
        ("What is the rent in Mill Lane?", False),
        ("Where do the documents differ?", False),  # in nothing that could be looked up in one of them
    ],
)
def test_only_questions_that_compare_something_are_put_to_each(question: str, compares: bool) -> None:
    assert (SideBySide.of(LEASES, Ask(question), Abilities()) is not None) is compares


def test_each_document_has_a_column_and_answers_from_its_own_words() -> None:
    """Asked about all at once, a document was left out, and the rent of one was told of another."""
    engine = ScriptedEngine("The rent is 890 euros.")
    table = SideBySide.of(LEASES, Ask("Compare the rent and the deposit of the three leases"), Abilities())
    assert table is not None
    for _ in table.ask(engine, Ask(table.question), threading.Event()):
        pass
    head, _, rent, deposit = table.answer.split("\n")
    assert head == "| | Harbour Street | Mill Lane | Station \\| Road |"
    assert rent.count("The rent is 890 euros.") == 3
    assert deposit.startswith("| **deposit** | ")
    assert len(engine.asked) == 6
    assert all(asked.excerpt is not None and not asked.history for asked in engine.asked)
    assert [asked.excerpt.title for asked in engine.asked[:3] if asked.excerpt] == [
        member.title for member in LEASES.members
    ]
    said = [chip for chip in table.chips if chip["kind"] in ("verbatim", "says")]
    assert {chip["document"] for chip in said} == {"Harbour Street"}
    assert all(table.answer[chip["from"] : chip["at"]].startswith("The rent") for chip in said)


def test_a_short_document_is_given_whole_to_a_question_without_points() -> None:
    """A lease names its parties without the word: the passages with it told who cleans the stairs."""
    engine, asked = ScriptedEngine("It is Hollis."), Ask("Who are the parties of each document?")
    pages = ["Between Hollis Ltd and Anna Brandt.", "Either party may end it."]
    leases = Document.together([Document.from_pages(title, pages) for title in ("Harbour Street", "Mill Lane")])
    table = SideBySide.of(leases, asked, Abilities())
    assert table is not None
    for _ in table.ask(engine, asked, threading.Event()):
        pass
    assert all(one.excerpt is not None and "Anna Brandt" in one.excerpt.text for one in engine.asked)
    head, _, cells = table.answer.split("\n")
    assert head == "| Harbour Street | Mill Lane |", "an empty column for points took the room of a phone"
    assert cells.count("It is Hollis.") == 2


def test_of_a_long_document_a_question_without_points_gets_the_beginning() -> None:
    """How two novels begin was told from passages of their middle that have the word "begin"."""
    engine, asked = ScriptedEngine("Ada wakes."), Ask("How does each book begin?")
    pages = ["Ada woke at noon.", *["They begin to row, as the book of tides told them. " * 20] * 20]
    table = SideBySide.of(Document.together([Document.from_pages(name, pages) for name in "AB"]), asked, Abilities())
    assert table is not None
    for _ in table.ask(engine, asked, threading.Event()):
        pass
    given = [one.excerpt.pages[0].text for one in engine.asked if one.excerpt is not None]
    assert [text.startswith(f"[The beginning]\n{pages[0]}") for text in given] == [True, True]


def test_a_document_is_asked_what_it_says_about_what_is_counted() -> None:
    """Without a question mark, a document was asked how many leases there are."""
    engine, asked = ScriptedEngine("It is 890."), Ask("Tell me how many leases have a deposit over 1,500")
    table = SideBySide.of(LEASES, asked, Abilities())
    assert table is not None
    for _ in table.ask(engine, asked, threading.Event()):
        pass
    assert all(one.text.startswith("What does it say about “have a deposit …”?") for one in engine.asked)


def test_a_stopped_table_says_so_and_keeps_what_it_has() -> None:
    table, stop = SideBySide.of(LEASES, Ask("Which lease has the lower rent?"), Abilities()), threading.Event()
    assert table is not None
    for _ in table.ask(ScriptedEngine("It is 890."), Ask(table.question), stop):
        stop.set()
    assert table.stopped is StopReason.CANCELLED
    assert table.answer.count("…") == 2


def test_a_cell_in_other_words_is_not_red() -> None:
    """A right cell, "The lease allows dogs.", was red beside "Dogs and cats are allowed". A word that the document
    lacks is still told.
    """
    pets = Document.together(
        [
            Document.from_pages("Harbour Street", ["Dogs and cats are allowed in the flat and in the garden."]),
            Document.from_pages("Mill Lane", ["No animals are allowed, and no dogs that visit."]),
        ]
    )
    for said, lacks in (("The lease allows dogs.", False), ("Dogs cost 35 euros.", True)):
        table = SideBySide.of(pets, Ask("Which lease allows dogs?"), Abilities())
        assert table is not None
        for _ in table.ask(ScriptedEngine(said), Ask(table.question), threading.Event()):
            pass
        red = [chip for chip in table.chips if chip["kind"] == "absent"]
        assert bool(red) is lacks
        assert all(chip["missing"] for chip in red)
