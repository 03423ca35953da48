"""The language of a text."""

from __future__ import annotations

import pytest

from app.core.languages import language_of


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
