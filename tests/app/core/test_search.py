"""Words found in all chats, whatever signs they are typed with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.chats import Chats, as_query
from engine.events import StopReason


@pytest.fixture
def chats() -> Chats:
    made = Chats()
    for book, question, answer in (
        ("a" * 64, "Who kept the north light?", "Maren Holt kept the north light, as her mother had."),
        ("b" * 64, "Où est la clé ?", "Sous la pierre, près du café."),
        ("b" * 64, "What burns?", "Only the lamp-oil burns; nothing else."),
    ):
        chat = made.begin(book)
        at = made.ask(chat.id, question)
        turn = made.get(chat.id).exchanges[at]
        made.update(chat.id, at, replace(turn, answer=answer, stopped=StopReason.END))
    return made


@pytest.mark.parametrize(
    ("words", "roles"),
    [
        ("maren", ["answer"]),
        ("north light", ["answer", "question"]),
        ("nor", ["answer", "question"]),
        ("cafe", ["answer"]),
        ("CLÉ", ["question"]),
        ("lamp-oil", ["answer"]),
        ("light maren", ["answer"]),
        ("nothing here", []),
        ("", []),
        ('"', []),
        ("*", []),
        ("a OR NOT", []),
        ("text: x", []),
        ("') DROP TABLE", []),
    ],
)
def test_what_is_found(chats: Chats, words: str, roles: list[str]) -> None:
    assert sorted(found.role for found in chats.search(words)) == roles


def test_the_words_are_marked_in_their_surroundings(chats: Chats) -> None:
    (found,) = chats.search("mother")
    assert ("mother", True) in found.parts
    assert "".join(text for text, _ in found.parts) == "Maren Holt kept the north light, as her mother had."
    assert found.book == "a" * 64
    assert chats.get(found.chat).position_of(found.message) == 0


def test_what_was_rewritten_or_deleted_is_not_found(chats: Chats) -> None:
    (found,) = chats.search("maren")
    turn = chats.get(found.chat).exchanges[0]
    chats.update(found.chat, 0, replace(turn, answer="Nobody did.", stopped=StopReason.END))
    assert chats.search("maren") == ()
    assert len(chats.search("nobody")) == 1
    chats.delete(found.chat)
    assert chats.search("nobody") == ()
    assert chats.search("north") == ()


def test_typed_signs_are_only_words() -> None:
    assert as_query('say "hi" -no NEAR(x) a:b') == '"say" "hi" "-no" "NEAR(x)" "a:b"*'
