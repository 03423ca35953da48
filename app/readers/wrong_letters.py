"""Detects text with wrong letters. A PDF has such text if a font maps its glyphs to letters other than those that the
glyphs show.
"""

from __future__ import annotations

import re
from collections import Counter
from string import ascii_lowercase

# Matches archaic Greek letters and modifiers, but no mathematical and no Coptic letters. Some programs map Arabic
# glyphs to the matched characters by mistake.
_NO_LETTERS = re.compile(
    "[\u02e5-\u02ff\u0370-\u0373\u0376\u0377\u03cf\u03d2-\u03d4\u03d7-\u03e1\u03f3\u03f4\u03f6-\u03ff]"
)
# if more than this share of a page's letters are archaic Greek letters, the page's text is probably wrong
_MISMAPPED_SHARE = 0.05
_WORD = re.compile(r"\b[a-z]{4,}\b")
_VOWELS = frozenset("aeiouy")
_WORDS = 40  # minimum words of a page whose vowels are counted
_WITHOUT_VOWEL = 0.15  # if more than this share of a page's words lack a vowel, its letters are probably wrong
_ANY_WORD = re.compile(r"[^\W\d_]+")
_COMMON = 10  # number of a page's most frequent words whose share is measured
# minimum share of the most frequent words in sentences; lists of peptides or genes have a smaller share
_FEW_COMMON = 0.15
_MOST_COMMON = 0.45  # maximum share of the most frequent words in sentences; assembler code has 0.5 to 1.0


def is_mismapped(text: str) -> bool:
    """Whether glyph numbers were probably taken for letters. Such a text has many letters that no living language uses,
    or sentences with many Latin words without a vowel.
    """
    words = _WORD.findall(text.casefold())
    without_vowel = sum(map(_VOWELS.isdisjoint, words))
    if len(words) >= _WORDS and without_vowel > _WITHOUT_VOWEL * len(words) and _has_sentences(text):
        return True
    found = _NO_LETTERS.findall(text)
    return bool(found) and len(found) > _MISMAPPED_SHARE * sum(map(str.isalpha, text))


def _has_sentences(text: str) -> bool:
    """Whether the most frequent words make up a moderate share of a text. Sentences have such a share even if their
    letters are wrong. Code has a higher share, and lists of peptides or genes have a lower one.
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
