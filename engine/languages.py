"""Detects the language of a text by its common words."""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

Language = Literal["en", "de", "fr", "es"]

_WORD = re.compile(r"[^\W\d_]+")
_LOOKED_AT = 20_000  # maximum number of words that are examined
_FEWEST = 2  # minimum number of a language's common words in a text of that language
# Words that nearly every text in a language has. Words that two of the languages share are left out, except “des”.
_COMMON: dict[Language, str] = {
    "en": "the of and to that is was it for with as his her at by not this are they from have which",
    "de": "der die das und ist nicht ein eine zu den mit sich auf dem von für auch wird des im sie",
    "fr": "le les des et est dans une pour qui pas au du sur avec il elle ce sont aux cette ne",
    "es": "el los las y una por con del su para como más al lo fue esta sus pero ha ser muy",
}


def language_of(text: str) -> Language | None:
    """The language of a text. None if it has too few common words, or as many of a second language."""
    words = Counter(word.lower() for word in _WORD.findall(text[: _LOOKED_AT * 6])[:_LOOKED_AT])
    found = {language: sum(words[word] for word in common.split()) for language, common in _COMMON.items()}
    best, second = sorted(found, key=lambda language: found[language], reverse=True)[:2]
    return best if found[best] >= _FEWEST and found[best] > found[second] else None
