"""Gives alternative spellings of German and French words, and removes the endings of words. This module has no side
effects.
"""

from __future__ import annotations

import re

_WIDE = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "œ": "oe", "æ": "ae"})
_NARROW = (("ae", "ä"), ("oe", "ö"), ("ue", "ü"))


def spellings(words: str) -> tuple[str, ...]:
    """Return the words as typed, followed by other spellings of them in lower case that a German or French text may
    use: "straße" for "strasse", "müller" for "mueller", "cœur" for "coeur", and vice versa.
    """
    typed = words.lower()
    wide = typed.translate(_WIDE)
    umlauts = wide
    for two, one in _NARROW:
        umlauts = umlauts.replace(two, one)
    joined = typed.replace("oe", "œ").replace("ae", "æ")
    variants = (wide, umlauts, wide.replace("ss", "ß"), umlauts.replace("ss", "ß"), joined)
    return (words, *dict.fromkeys(each for each in variants if each != typed))


# matches the ending of a noun, an adjective or a verb, if at least four letters are before the ending
_ENDING = re.compile(r"(?<=[^\W\d_]{4})(?:innen|ern|en|em|er|es|ing|ed|s|x|e|n)$", re.IGNORECASE)


def without_endings(words: str) -> str:
    """Return the words without English, German, French and Spanish endings. "canciones" becomes "cancion", so that a
    search for words with this beginning also finds "canción" and "cancionero".

    The search for evidence uses ``app.language.words.without_ending`` instead, because it compares whole stems. Here
    that function would be too coarse. It reduces "study" to "stud", and a search for words that begin with "stud" would
    also find "student".
    """
    return " ".join(_ENDING.sub("", word) for word in words.split())
