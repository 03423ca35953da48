"""Detects text with wrong letters. A PDF has such text if a font maps its glyphs to other letters than the glyphs
show.
"""

from __future__ import annotations

import re
from collections import Counter
from string import ascii_lowercase

from app.language.tokens import LETTERS

# Matches archaic Greek letters and modifiers, but neither mathematical nor Coptic letters. Some programs map Arabic
# glyphs to these characters by mistake.
_NO_LETTERS = re.compile(
    "[\u02e5-\u02ff\u0370-\u0373\u0376\u0377\u03cf\u03d2-\u03d4\u03d7-\u03e1\u03f3\u03f4\u03f6-\u03ff]"
)
# share of archaic Greek letters among a page's letters above which the text is probably wrong
_MISMAPPED_SHARE = 0.05
# Wrong letters that are not Latin have no vowels to count.
_WORD = re.compile(r"\b[a-z]{4,}\b")
_VOWELS = frozenset("aeiouy")
_WORDS = 40  # a text with fewer words than this is not checked for words without a vowel
_WITHOUT_VOWEL = 0.15  # share of words without a vowel above which the letters of a text are probably wrong
_COMMON = 10  # number of most frequent words whose share of a text is measured
# minimum share that the most frequent words have in sentences; in lists of peptides or genes, the share is smaller
_FEW_COMMON = 0.15
# maximum share that the most frequent words have in sentences; in assembler code, the share is 0.5 to 1.0
_MOST_COMMON = 0.45


def is_mismapped(text: str) -> bool:
    """Whether glyph numbers were probably taken for the codes of letters. Such a text has many letters that no living
    language uses, or sentences with many Latin words without a vowel.
    """
    words = _WORD.findall(text.casefold())
    without_vowel = sum(map(_VOWELS.isdisjoint, words))
    if len(words) >= _WORDS and without_vowel > _WITHOUT_VOWEL * len(words) and _has_sentences(text):
        return True
    found = _NO_LETTERS.findall(text)
    return bool(found) and len(found) > _MISMAPPED_SHARE * sum(map(str.isalpha, text))


def _has_sentences(text: str) -> bool:
    """Whether the most frequent words make up a moderate share of a text. This is so in sentences, even if their
    letters are wrong. The share is higher in code, and lower in lists of peptides or genes.
    """
    words = LETTERS.findall(text.casefold())
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
