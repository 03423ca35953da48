"""Facts about languages: tells the language of a text, and the spellings of German words. Pure."""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

Language = Literal["en", "de", "fr", "es"]

_WORD = re.compile(r"[^\W\d_]+")
_LOOKED_AT = 20_000  # words that are examined; a few dozen tell a language
_FEWEST = 2  # common words that a text must have for a language
# Words of every text in each of these languages. Words that two languages share are left out.
_COMMON: dict[Language, str] = {
    "en": "the of and to that is was it for with as his her at by not this are they from have which",
    "de": "der die das und ist nicht ein eine zu den mit sich auf dem von für auch wird des im sie",
    "fr": "le les des et est dans une pour qui pas au du sur avec il elle ce sont aux cette ne",
    "es": "el los las y una por con del su para como más al lo fue esta sus pero ha ser muy",
}


def language_of(text: str) -> Language | None:
    """The language of a text; None where its words are too few, or belong to another language."""
    words = Counter(word.lower() for word in _WORD.findall(text[: _LOOKED_AT * 6])[:_LOOKED_AT])
    found = {language: sum(words[word] for word in common.split()) for language, common in _COMMON.items()}
    best, second = sorted(found, key=lambda language: found[language], reverse=True)[:2]
    return best if found[best] >= _FEWEST and found[best] > found[second] else None


_WIDE = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"})
_NARROW = (("ae", "ä"), ("oe", "ö"), ("ue", "ü"))


def spellings(words: str) -> tuple[str, ...]:
    """Words as they were typed, then in small letters as a German text may spell them: "strasse" is "straße", and
    "mueller" is "müller", and the other way round."""
    typed = words.lower()
    wide = typed.translate(_WIDE)
    umlauts = wide
    for two, one in _NARROW:
        umlauts = umlauts.replace(two, one)
    found = (wide, umlauts, wide.replace("ss", "ß"), umlauts.replace("ss", "ß"))
    return (words, *dict.fromkeys(each for each in found if each != typed))
