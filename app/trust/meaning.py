"""Compares a question with the words and passages of an English book by what they mean, with word vectors
(``app.language.vectors``): a passage about malaria fits a question about a disease.

    meaning.related("disease")                            the book's words that are related to it
    asked = meaning.of_words([("disease", 3.2)])          the direction of a question
    meaning.nearest(asked, 100)                           the sentences that are nearest to it
    meaning.likeness(asked, range(40, 44))                how near a stretch of sentences is, at most 1

The vector of a sentence is the sum of its words' vectors, weighted by the rarity of each word in the book, without the
direction that the whole book has (after Arora, Liang and Ma 2017).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.language.vectors import rows, vectors

LEAST = 0.6
"""Minimum product of two words' vectors for the words to be related."""
NOTHING = 0.3
"""Product of the vectors of words that count as having nothing in common."""
MOST = 40
"""Maximum number of related words."""

_TINY = 1e-9  # length that a vector is taken to have at least

Direction = NDArray[np.float32]
"""The meaning of a question: a vector of length 1, or of length 0 if nothing is known about its words."""


@dataclass(frozen=True)
class Related:
    """A word of the book that is related to another word. ``share``: how much of the other word's weight it has."""

    key: str
    share: float


class Meaning:
    """The meaning of the words and sentences of a book."""

    def __init__(
        self,
        forms: Iterable[tuple[str, str]],
        sentences: Sequence[Collection[str]],
        rarity: Callable[[str], float],
    ) -> None:
        """
        Args:
            forms: each folded word of the book, and its key. Of the words with the same key, the most frequent one of
                English gives the vector.
            sentences: the keys in each sentence of the book.
            rarity: returns the weight of a key.
        """
        known: dict[str, int] = {}
        for whole, key in forms:
            if key and (row := rows().get(whole)) is not None:
                known[key] = min(row, known.get(key, row))
        self._keys = list(known)
        self._vectors = vectors()[list(known.values())]
        weights = np.array([rarity(key) for key in self._keys], np.float32)
        nothing = np.zeros((1, vectors().shape[1]), np.float32)  # the last row, which words without a vector have
        weighted = np.concatenate((self._vectors * weights[:, None], nothing))
        number = {key: at for at, key in enumerate(self._keys)}
        self._sentences = np.zeros((len(sentences), nothing.shape[1]), np.float32)
        for at, keys in enumerate(sentences):
            if keys:
                self._sentences[at] = weighted[[number.get(key, -1) for key in keys]].sum(0)
        self._common = _unit(self._sentences.sum(0))
        self._sentences -= np.outer(self._sentences @ self._common, self._common)
        self._lengths = np.maximum(np.linalg.norm(self._sentences, axis=1), _TINY)

    def related(self, word: str) -> list[Related]:
        """Return up to ``MOST`` keys of the book that are related to a folded word, its own among them."""
        row = rows().get(word)
        if row is None:
            return []
        products = self._vectors @ vectors()[row]
        near = np.flatnonzero(products >= LEAST)
        near = near[np.argsort(-products[near])][:MOST]
        return [Related(self._keys[at], (float(products[at]) - NOTHING) / (1 - NOTHING)) for at in near]

    def of_words(self, words: Iterable[tuple[str, float]]) -> Direction:
        """Return the direction of several folded words, each with a weight."""
        known = [(row, weight) for word, weight in words if (row := rows().get(word)) is not None]
        total = sum((vectors()[row] * np.float32(weight) for row, weight in known), np.zeros_like(self._common))
        return _unit(total - (total @ self._common) * self._common)

    def nearest(self, asked: Direction, most: int) -> list[int]:
        """Return the indexes of the sentences that are nearest to a question, the nearest first."""
        order = np.argsort(-(self._sentences @ asked) / self._lengths, kind="stable")
        return [int(at) for at in order[:most]]

    def likeness(self, asked: Direction, sentences: range) -> float:
        """Return how near a stretch of consecutive sentences is to a question: 0 to 1."""
        stretch = _unit(self._sentences[sentences.start : sentences.stop].sum(0))
        return max(0.0, float(stretch @ asked))


def _unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    unit: NDArray[np.float32] = vector / max(float(np.linalg.norm(vector)), _TINY)
    return unit
