"""What a word is, for each purpose."""

from __future__ import annotations

from app.language.tokens import LETTERS, RUN, WORD, tokenize

TEXT = "The K3’s well-lit _lamp_ burned1,485 l'huile 2,5 Öl"


def test_each_purpose_has_its_words() -> None:
    assert " ".join(LETTERS.findall(TEXT)) == "The K s well lit lamp burned l huile Öl"
    assert " ".join(RUN.findall(TEXT)) == "The K3 s well lit lamp burned1 485 l huile 2 5 Öl"
    assert " ".join(WORD.findall(TEXT)) == "The K3’s well-lit lamp burned1 485 l'huile 2 5 Öl"
    assert " ".join(raw for raw, _ in tokenize(TEXT)) == "The K3’s well lit lamp burned 1,485 l'huile 2,5 Öl"
    assert all(TEXT[at:].startswith(raw) for raw, at in tokenize(TEXT))
