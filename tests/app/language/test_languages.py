"""The language of a text."""

from __future__ import annotations

import pytest

from app.core.chats import Chats
from app.core.find import Finder
from engine.document import Document
from engine.languages import language_of


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The lamp was lit, and the boat came in with the tide.", "en"),
        ("Die Lampe war entzündet, und das Boot kam mit der Flut.", "de"),
        ("La lampe est allumée, et les bateaux sont dans le port.", "fr"),
        ("Se encendió la lámpara, y los barcos llegaron con la marea por el norte.", "es"),
        ("Lampa została zapalona i statek wpłynął do portu.", None),
        ("Maren Holt.", None),
        ("", None),
    ],
)
def test_it_is_told_by_common_words(text: str, language: str | None) -> None:
    assert language_of(text) == language


@pytest.mark.parametrize("words", ["strasse", "Straße", "Mueller", "müller", "MÜLLERSTRASSE", "Muller"])
def test_german_words_are_found_however_they_are_typed(words: str) -> None:
    """Without a German keyboard people type ss for ß, and ue for ü: chats had no ß for them, and books no ü."""
    written = {"strasse": "Straße", "straße": "Strasse", "mueller": "Müller", "müller": "Mueller", "muller": "Müller"}
    text = f"Am Ende der {written.get(words.lower(), 'Müllerstraße')} stand ein Haus."
    assert len(Finder().find(Document.from_pages("Haus", (text,)), words).hits) == 1
    chats = Chats()
    chats.ask(chats.begin("a" * 64).id, text)
    assert [found.role for found in chats.search(f"haus {words}")] == ["question"]
