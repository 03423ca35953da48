"""A model's card: what it can do and what it says instead of an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.citations import NoteTaker, evidence
from app.core.abilities import CARD, Abilities, abilities
from app.core.settings import DEMO_MODEL
from assets.demo.recipe.questions import NOT_FOUND, ONLY_QUOTES
from engine.document import Document


def test_the_demo_says_what_its_recipe_taught_it() -> None:
    card = abilities(str(DEMO_MODEL))
    assert card.only_quotes
    assert card.refuses(ONLY_QUOTES)
    assert card.refuses(f" {NOT_FOUND}\n")
    assert not card.refuses("“… counted the lanterns twice.”")


def test_no_page_supports_a_refusal() -> None:
    """``ask --json``, ``/v1`` and the table of a folder cited a page for "Give me a few words ..." of the demo."""
    card = abilities(str(DEMO_MODEL))
    book = Document.from_pages("Orders", ["The words stand in the book of orders. Give a few words to the pharmacy."])
    for text, kept in ((ONLY_QUOTES, []), ("The words stand in the book of orders.", ["says so"])):
        notes = NoteTaker().begin(book, "What is this document about?", text)
        notes.close()
        record = notes.record()
        assert evidence(record, text)
        assert [found["level"] for found in evidence(card.supported(record, text), text)] == kept


def test_a_model_without_a_card_promises_nothing(tmp_path: Path) -> None:
    assert abilities(str(tmp_path)) == Abilities()
    assert abilities("owner/name") == Abilities()


@pytest.mark.parametrize("card", ["", "[]", "{", "[" * 50_000, '{"refusals": 3}', '{"only_quotes": 0}'])
def test_a_damaged_card_is_no_card(tmp_path: Path, card: str) -> None:
    """One nested 50,000 deep ended a question that had been answered."""
    (tmp_path / CARD).write_text(card, encoding="utf-8")
    assert abilities(str(tmp_path)) == Abilities()


def test_the_starter_does_not_call_a_passage_the_beginning(checkout: Path) -> None:
    card = abilities(str(checkout / "assets" / "starter"))
    assert card.lead("What is this document about?") == "Some passages: “"
    assert card.lead("Who kept the light?") == ""
    assert Abilities().lead("What is this document about?") == ""
