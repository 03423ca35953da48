"""What a person put in quotation marks."""

from __future__ import annotations

import pytest

from app.language.quoting import quoted_words, wholly_quoted


@pytest.mark.parametrize(
    "text",
    [
        'Find "the north light"',
        "Find “the north light”",
        "„the north light“?",
        "« the north light » ?",
        "»the north light«",
        "Find ‘the north light’",
        "‚the north light‘",
        "”the north light”",
    ],
)
def test_the_marks_of_every_language(text: str) -> None:
    assert quoted_words(text) == ["the north light"]


def test_several_and_none() -> None:
    assert quoted_words("“Ahab” and 'Queequeg', not “ … ”") == ["Ahab", "Queequeg"]
    assert quoted_words("What is the sailors' wish, and who's Ahab's son?") == []
    assert quoted_words('He asked "who') == []


def test_a_search_in_quotation_marks() -> None:
    assert wholly_quoted(' "old lamp" ') == wholly_quoted("«old lamp»") == "old lamp"
    assert wholly_quoted("‘old\nlamp’") == "old\nlamp"
    assert not any(map(wholly_quoted, ['the "old lamp"', '"old" "lamp"', "old lamp", '""', '"']))
