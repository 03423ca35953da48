"""A model's card: what it can do and what it says instead of an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.core.abilities import CARD, LIMITS, Abilities, Denials, abilities
from app.core.settings import DEMO_MODEL
from app.trust.evidence import EvidenceIndex
from app.trust.quoted import BookIndex
from assets.demo.recipe.questions import NOT_FOUND, ONLY_QUOTES
from engine.document import Document
from engine.events import AnswerDone, StopReason, TextDelta, TokenSource
from tests.app.scripted import figures


def test_the_demo_says_what_its_recipe_taught_it() -> None:
    card = abilities(str(DEMO_MODEL))
    assert card.only_quotes
    assert card.refuses(ONLY_QUOTES)
    assert card.refuses(f" {NOT_FOUND}\n")
    assert not card.refuses("“… counted the lanterns twice.”")


BOOK = Document.from_pages(
    "Lease",
    ["The tenant pays a deposit of 900 euros.", "It is returned within six weeks. He counted the lanterns twice."],
)


def guesses(card: Abilities, question: str, book: Document = BOOK) -> bool:
    return card.would_guess(question, EvidenceIndex(book), BookIndex(book))


@pytest.mark.parametrize(
    "question",
    [
        "Find: counted the lanterns twice",
        "Where does it say that he counted the lanterns?",
        'What of "Counted the Lanterns"?',
        "He counted the lanterns twice",
        "Quote the passage about the lanterns twice.",
        "Please find the words “within six weeks”.",
    ],
)
def test_the_demo_quotes_what_is_asked_for_by_its_words(question: str) -> None:
    assert not guesses(abilities(str(DEMO_MODEL)), question)


@pytest.mark.parametrize(
    "question",
    [
        "What is the deposit and when do I get it back?",
        "Who is the main character?",
        "Does it say who counted the ships?",
        "Find: counted the oranges twice",
        "Hello!",
        "What is this about?",
    ],
)
def test_the_demo_guesses_at_every_other_question(question: str) -> None:
    assert guesses(abilities(str(DEMO_MODEL)), question)


def test_the_starter_guesses_in_other_languages_and_about_what_the_book_never_mentions(checkout: Path) -> None:
    card = abilities(str(checkout / "assets" / "starter"))
    assert not guesses(card, "How much is the deposit?")
    assert guesses(card, "How many parking places are there?")
    german = Document.from_pages(
        "Vertrag", ["Der Mieter zahlt eine Kaution von 900 Euro, und sie wird nicht verzinst."]
    )
    assert guesses(card, "Wie hoch ist die Kaution?", german)
    assert not guesses(Abilities(refusals=(NOT_FOUND,)), "How many parking places are there?")


def delta(text: str) -> TextDelta:
    return TextDelta(text, (1,), (TokenSource.TARGET,), figures())


@pytest.mark.parametrize(
    ("pieces", "shown", "refused"),
    [
        (["The book", " does not", " say that."], "", True),
        (["The book", " does not"], "", True),  # stopped within it
        (["The book", " says", " so."], "The book says so.", False),
        (["I can only find passages and quote them. "], "", True),
        (["“Counted."], "“Counted.", False),
        ([], "", False),
    ],
)
def test_no_word_of_a_refusal_is_shown(pieces: list[str], shown: str, refused: bool) -> None:
    denials = Denials(abilities(str(DEMO_MODEL)))
    passed = [event for piece in pieces for event in denials.pass_on(delta(piece))]
    done = AnswerDone("".join(pieces), (), (), StopReason.END, figures())
    passed += denials.pass_on(done)
    assert "".join(event.text for event in passed if isinstance(event, TextDelta)) == shown
    assert passed[-1] is done
    assert denials.refused is refused


def test_the_cards_here_name_sentences_that_are_there(checkout: Path) -> None:
    for folder in (DEMO_MODEL, checkout / "assets" / "starter"):
        assert LIMITS[abilities(str(folder)).limit] != LIMITS[""]


def test_a_model_that_may_say_anything_is_not_held_back() -> None:
    first = delta("The book does not say that.")
    assert Denials(Abilities()).pass_on(first) == (first,)


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
