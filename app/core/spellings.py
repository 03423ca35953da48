"""Gives the spellings of German and French words, and words without their endings. Pure."""

from __future__ import annotations

import re

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

    The search for evidence uses ``engine.words.without_ending`` instead, because it compares whole stems. That function
    reduces "studies" and "study" to "stud", which "student" begins with too.
    """
    return " ".join(_ENDING.sub("", word) for word in words.split())
