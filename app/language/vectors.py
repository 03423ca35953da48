"""Word vectors of English: how much the meanings of two words have in common.

    rows()["malaria"]                                    8957
    vectors()[rows()["malaria"]]                         64 numbers of length 1

The product of two vectors is 1 for the same word and near 0 for words that have nothing in common. The vectors are
GloVe's, in 4 bits (``assets/words/build.py``). They say which words stand in the same texts, not which mean the same:
"majority" is as near to "minority" as to "votes".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_FOLDER = Path(__file__).resolve().parents[2] / "assets" / "words"
_ZERO = 8  # what is stored for 0
_LOW = 15  # mask of the lower 4 bits


@cache
def rows() -> Mapping[str, int]:
    """The row of each folded word, the most frequent words first."""
    words = (_FOLDER / "words.txt").read_text(encoding="utf-8").split("\n")
    return {word: row for row, word in enumerate(words)}


@cache
def vectors() -> NDArray[np.float32]:
    """The vectors of all words, as rows of length 1."""
    stored = np.load(_FOLDER / "vectors.npy", allow_pickle=False)
    pairs = np.stack((stored & _LOW, stored >> 4), axis=2)
    numbers = pairs.reshape(len(stored), -1).astype(np.float32) - _ZERO
    unit: NDArray[np.float32] = numbers / np.linalg.norm(numbers, axis=1, keepdims=True)
    return unit
