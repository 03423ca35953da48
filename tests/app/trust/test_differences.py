"""What is said about two answers to one question: the same facts, more, another one, or nothing."""

from __future__ import annotations

import pytest

from app.trust.differences import FOUND, SAME, compared

DIFFERS = "The first answer says {}, where this one says {}."
MORE = "The same facts as in the first answer, and more: {}."


@pytest.mark.parametrize(
    ("question", "first", "whole", "said"),
    [
        ("Who sailed?", "It was Tove Lindqvist in 1931.", "Tove Lindqvist did so in the winter of 1931.", SAME),
        ("Who sailed?", "Lindqvist sailed in 1931.", "In 1931 it was Tove Lindqvist who sailed.", SAME),
        ("Who sailed?", "Tove did in 1931.", "In 1931 Tove did, with 40 men.", MORE.format("40")),
        ("When was it built?", "It was built in 1911.", "The ferry was built in 1912.", DIFFERS.format("1911", "1912")),
        ("When was it built?", "1911.", "The ferry was built in 1912.", DIFFERS.format("1911", "1912")),
        ("Wie hoch ist die Kaution?", "Die Kaution beträgt 1.200 Euro.", "Die Kaution beträgt 1.500 Euro.",
         DIFFERS.format("1.200", "1.500")),
        ("Who built it?", "It was built by Karl Iversen.", "It was built by Arne Holt.",
         DIFFERS.format("Karl Iversen", "Arne Holt")),
        ("When was it built?", "The book does not say that.", "It was built in 1912.", FOUND),
        # unclear: nothing is said
        ("How is she?", "She is happy.", "She is glad.", ""),
        ("When was it built?", "It was built in 1912.", "The book does not say that.", ""),
        ("When was it built?", "It was built in 1912.", "", ""),
        ("Who was he?", "He was born in 1911.", "He reached an age of 40 years.", ""),
        ("Who was he?", "He was born in Orre in 1911, and left in 1931.", "He was a smith.", ""),
        ("Did it open in 1912?", "Yes, in 1912.", "Yes, it opened in 1912.", ""),
        ("Was kostet die Tür?", "Die Tür ist teuer.", "Der Schrank und die Lampe sind teuer.", ""),
    ],
)  # fmt: skip
def test_what_is_said_about_two_answers(question: str, first: str, whole: str, said: str) -> None:
    assert compared(first, whole, question) == said
