"""Detects text with wrong letters, as a PDF gives if a font names other letters than it draws."""

from __future__ import annotations

import re
from collections import Counter
from string import ascii_lowercase

# Archaic Greek letters and modifiers, without mathematical and Coptic ones. Some programs map Arabic glyphs to them by
# mistake.
_NO_LETTERS = re.compile(
    "[\u02e5-\u02ff\u0370-\u0373\u0376\u0377\u03cf\u03d2-\u03d4\u03d7-\u03e1\u03f3\u03f4\u03f6-\u03ff]"
)
_MISMAPPED_SHARE = 0.05  # share of these letters on a page above which its text is probably wrong
_WORD = re.compile(r"\b[a-z]{4,}\b")
_VOWELS = frozenset("aeiouy")
_WORDS = 40  # minimum words of a page whose vowels are counted
_WITHOUT_VOWEL = 0.15  # share of words without a vowel above which letters are probably wrong; abbreviations reach 0.08
_ANY_WORD = re.compile(r"[^\W\d_]+")
_COMMON = 10  # number of a page's most frequent words whose share is measured
_FEW_COMMON = 0.15  # minimum share of these words in sentences; sequences of peptides and genes repeat few words
_MOST_COMMON = 0.45  # maximum share of these words in sentences (0.2 to 0.4); in assembler code they reach 0.5 to 1.0


def is_mismapped(text: str) -> bool:
    """Whether a text has many letters that no living language uses, or sentences with many Latin words without a vowel,
    because glyph numbers were taken for letters.
    """
    words = _WORD.findall(text.casefold())
    without_vowel = sum(map(_VOWELS.isdisjoint, words))
    if len(words) >= _WORDS and without_vowel > _WITHOUT_VOWEL * len(words) and _has_sentences(text):
        return True
    found = _NO_LETTERS.findall(text)
    return bool(found) and len(found) > _MISMAPPED_SHARE * sum(map(str.isalpha, text))


def _has_sentences(text: str) -> bool:
    """Whether a few words make up a moderate share of a text, as in sentences, even if the letters are wrong. In code
    the share is higher, and in lists of sequences it is lower.
    """
    words = _ANY_WORD.findall(text.casefold())
    repeated = sum(count for _, count in Counter(words).most_common(_COMMON) if count > 1)
    return _FEW_COMMON * len(words) <= repeated <= _MOST_COMMON * len(words)


def is_garbled(text: str) -> bool:
    """Whether a text has few letters, or mostly Latin letters with too few or too many vowels."""
    signs = "".join(text.split()).casefold()
    letters = sum(map(str.isalpha, signs))
    if not signs:
        return False
    if letters < 0.6 * len(signs):
        return True
    latin = sum(map(signs.count, ascii_lowercase))
    vowels = sum(map(signs.count, _VOWELS))
    return latin > 0.8 * letters and not 0.2 < vowels / latin < 0.65
