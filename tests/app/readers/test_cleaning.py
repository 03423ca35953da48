"""Characters and words: what goes, what stays."""

from __future__ import annotations

import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.readers.cleaning import characters, join_hyphenated, one_line, spaces, vocabulary


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("e\u0301tude", "étude"),
        ("con\u00adtract", "contract"),
        ("of\ufb01ce e\ufb00ort wa\ufb04e", "office effort waffle"),
        ("safe\u202etxt.exe\u202c", "safetxt.exe"),
        ("a\u200bb\ufeffc", "abc"),
        ("one\u00a0two\u2003three\tfour", "one two three four"),
        ("bell\x07 and null\x00", "bell and null"),
        ("\uf0b7 item", "• item"),
        ("a\r\nb\rc\u2028d", "a\nb\nc\nd"),
        ("\ufefb", "لا"),
        ("half\ud800surrogate", "halfsurrogate"),
        ("क्\u200dष", "क्\u200dष"),  # a joiner that changes the letter stays
    ],
)
def test_characters(raw: str, clean: str) -> None:
    assert characters(raw) == clean


@given(st.text())
def test_characters_once_is_enough(text: str) -> None:
    once = characters(text)
    assert characters(once) == once
    assert unicodedata.is_normalized("NFC", once)
    assert all(unicodedata.category(sign) not in ("Cc", "Cs", "Co") or sign == "\n" for sign in once)


def test_spaces() -> None:
    assert spaces("  a   b \n\n\n\n c  \n d ") == "a b\n\nc\nd"


def test_one_line_is_cut_with_a_sign() -> None:
    assert one_line("a\n  b") == "a b"
    assert one_line("x" * 300, 10) == "x" * 9 + "…"


_BOOK = vocabulary(
    [
        "a well-known state-of-the-art lighthouse stood inside; the light was known, known and well, well told",
        "the file and the sharing of a file, sharing",
    ]
)


@pytest.mark.parametrize(
    ("left", "right", "joined"),
    [
        ("a light-", "house keeper", "a lighthouse keeper"),  # the book knows the whole
        ("the well-", "known man", "the well-known man"),  # the book writes it with a hyphen
        ("a mar-", "vellous day", "a marvellous day"),  # nothing known: hyphenation is commonest
        ("file-", "sharing", "file-sharing"),  # two words of the book that are no word together
        ("state-", "of-the-art", "state-of-the-art"),
        ("Anglo-", "Saxon", "Anglo-Saxon"),  # a capital follows
        ("pages 10-", "20", "pages 10-20"),
        ("light-", "ing", "lighting"),  # an ending is no word
        ("out-", "side", "outside"),
        ("within twenty-", "one days", "within twenty-one days"),  # a number word, though the book has it only here
        ("the Thirty-", "first.", "the Thirty-first."),
        ("twenty-", "onerous days", "twentyonerous days"),
    ],
)
def test_hyphens_at_line_ends(left: str, right: str, joined: str) -> None:
    assert join_hyphenated(left, right, _BOOK) == joined


def test_hyphen_without_a_book() -> None:
    assert join_hyphenated("inter-", "", Counter()) == "inter-"
    assert join_hyphenated("-", "word", Counter()) == "-word"
