"""Words and passages that are about the same without having the same words."""

from __future__ import annotations

import numpy as np
import pytest

from app.language.vectors import rows, vectors
from app.trust.meaning import MOST, Meaning

TEXTS = ("the doctor treated a malaria infection", "a boat left the harbour", "the price of wheat fell", "")
MEANING = Meaning(
    [(word, word[:5]) for text in TEXTS for word in text.split()],
    [[word[:5] for word in text.split() if len(word) > 3] for text in TEXTS],
    lambda key: 1.0,
)


@pytest.mark.parametrize(
    ("word", "related", "sentence"), [("disease", "malar", 0), ("ship", "boat", 1), ("grain", "wheat", 2)]
)
def test_what_is_about_the_same_is_near(word: str, related: str, sentence: int) -> None:
    found = {one.key: one.share for one in MEANING.related(word)}
    assert 0 < found[related] <= 1
    asked = MEANING.of_words([(word, 1.0)])
    assert MEANING.nearest(asked, 2)[0] == sentence
    nearness = [MEANING.likeness(asked, range(at, at + 1)) for at in range(len(TEXTS))]
    assert max(nearness) == nearness[sentence]
    assert nearness[-1] == 0
    assert MEANING.likeness(asked, range(len(TEXTS))) <= 1


def test_a_word_without_a_vector_is_related_to_nothing() -> None:
    assert MEANING.related("zzyzx") == []
    asked = MEANING.of_words([("zzyzx", 1.0)])
    assert not asked.any()
    assert MEANING.likeness(asked, range(2)) == 0


def test_a_book_without_words_has_no_related_ones() -> None:
    empty = Meaning([], [frozenset()], lambda key: 1.0)
    assert empty.related("disease") == []
    assert empty.likeness(empty.of_words([("disease", 1.0)]), range(1)) == 0


def test_every_word_has_one_vector_of_length_one() -> None:
    assert len(rows()) == len(vectors())
    np.testing.assert_allclose(np.linalg.norm(vectors(), axis=1), 1, atol=1e-5)
    everything = Meaning([(word, word) for word in rows()], [list(rows())], lambda key: 1.0)
    assert len(everything.related("disease")) == MOST
