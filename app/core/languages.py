"""Detects the language of a text, and gives the spellings of German words. Pure."""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

Language = Literal["en", "de", "fr", "es"]

_WORD = re.compile(r"[^\W\d_]+")
_LOOKED_AT = 20_000  # words that are examined; a few dozen are enough to detect a language
_FEWEST = 2  # minimum common words of a language that a text must have
# Words that nearly every text in one of these languages has. Words that two of the languages share are left out, except
# “des”.
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


_WIDE = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "œ": "oe", "æ": "ae"})
_NARROW = (("ae", "ä"), ("oe", "ö"), ("ue", "ü"))


def spellings(words: str) -> tuple[str, ...]:
    """The words as typed, followed by their lower-case spellings that a German or French text may use: "strasse"
    becomes "straße", "mueller" becomes "müller", "coeur" becomes "cœur", and vice versa.
    """
    typed = words.lower()
    wide = typed.translate(_WIDE)
    umlauts = wide
    for two, one in _NARROW:
        umlauts = umlauts.replace(two, one)
    joined = typed.replace("oe", "œ").replace("ae", "æ")
    found = (wide, umlauts, wide.replace("ss", "ß"), umlauts.replace("ss", "ß"), joined)
    return (words, *dict.fromkeys(each for each in found if each != typed))


# Endings of nouns, adjectives and verbs, after a stem of four letters or more.
_ENDING = re.compile(r"(?<=[^\W\d_]{4})(?:innen|ern|en|em|er|es|ing|ed|s|x|e|n)$", re.IGNORECASE)


def without_endings(words: str) -> str:
    """The words without endings of English, German, French and Spanish: "canciones" becomes "cancion", which other
    forms of the word begin with.
    """
    return " ".join(_ENDING.sub("", word) for word in words.split())
