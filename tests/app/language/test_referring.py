"""Which questions need the conversation before them."""

from __future__ import annotations

import pytest

from app.language.referring import refers_back


@pytest.mark.parametrize(
    "question",
    [
        "Explain every clause",
        "Summarize chapter 3",
        "What is the rent?",
        "Where does Tom keep his hens?",
        'What does "you shall not pass" mean in the lease?',
        "Give me three sentences on the deposit.",
        "Can you summarize the book?",
        "Is there a deposit?",
        "Worum geht es in dem Buch?",
        "Quel est le loyer de la maison ?",
    ],
)
def test_a_question_that_names_what_it_asks_for_stands_alone(question: str) -> None:
    assert not refers_back(question)


@pytest.mark.parametrize(
    "question",
    [
        "Why?",
        "And the deposit?",
        "How old is he?",
        "What did I ask before?",
        "Explain that in simpler words",
        "What is the reason for that?",
        "Why is that important?",
        "Tell me more",
        "Translate your answer",
        "Who else signed?",
        "Und wie alt ist er?",
        "Kürzer bitte, in zwei Sätzen",
    ],
)
def test_a_question_that_points_to_an_earlier_one_needs_it(question: str) -> None:
    assert refers_back(question)
