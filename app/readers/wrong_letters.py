"""Detects text with wrong letters. A PDF has such text if a font maps its glyphs to other letters than the glyphs
show.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
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


# The letters that make up most of a text in any language of a script, and the share that they have at least; the share
# is about twice as high in every text that was measured.
_USUAL = (
    (re.compile("[\u0430-\u045f]"), frozenset("оеаинтсірв"), 0.3),
    (re.compile("[\u03ac-\u03ce]"), frozenset("αοιετσνηυρςίόά"), 0.35),
    (re.compile("[\u05d0-\u05ea]"), frozenset("יוהלארתבמש"), 0.35),
    (re.compile("[\u0621-\u064a]"), frozenset("اليمونرتبةهکیدس"), 0.35),
    (re.compile("[\uac00-\ud7a3]"), frozenset("이다는을가의에고지하로기은도사자시인리대한서어정으를나들"), 0.12),
)
# matches vowel signs of the scripts of India that follow no letter; a reader sees a circle of dots there
_VOWEL_SIGNS = "".join(f"{chr(0x93E + block)}-{chr(0x94C + block)}" for block in range(0, 0x480, 0x80))
_LOOSE_VOWEL = re.compile(f"(?<![\u0900-\u0dff])[{_VOWEL_SIGNS}]")
_OTHER_SCRIPT = re.compile("[\u0370-\u0dff\uac00-\ud7a3]")
_INDIC = re.compile("[\u0904-\u0dff]")
_LOOSE_SHARE = 0.03  # share of loose vowel signs among a part's letters above which its letters are probably wrong
_PART = 60  # minimum letters of a part of a page that is judged by itself
_PART_SIZE = 250  # minimum characters of the lines that are judged together
_E_AND_A = 0.09  # minimum share of e and a, which are frequent in every language of Latin script
# shares of the letters a to z in English, German, French and Spanish together, in thousandths
_SHARES = (88, 15, 34, 43, 140, 13, 16, 29, 76, 3, 5, 45, 27, 80, 66, 23, 6, 66, 72, 71, 40, 11, 10, 2, 9, 5)
_DIFFERENT = 14  # minimum number of different letters in a text; sequences of genes have four
_LIKELIER = 1.5  # minimum factor by which a shifted alphabet has to fit better than the alphabet as it is
_FITS = 0.055  # minimum sum of products of the letters' shares in a text and in a language; 0.066 in real text


def has_wrong_part(lines: Sequence[str]) -> bool:
    """Whether the letters of a part of a page are probably wrong, in any script. A page may have text in several fonts,
    of which one names wrong letters.
    """
    part: list[str] = []
    size = 0
    for line in lines:
        part.append(line)
        size += len(line)
        if size > _PART_SIZE:
            if _is_wrong(" ".join(part)):
                return True
            part, size = [], 0
    return size > 0 and _is_wrong(" ".join(part))


def _is_wrong(text: str) -> bool:
    if text.isascii() or len(_OTHER_SCRIPT.findall(text)) < _PART:
        return _is_shifted(text)
    for script, usual, share in _USUAL:
        letters = script.findall(text.lower())
        if len(letters) >= _PART and sum(letter in usual for letter in letters) < share * len(letters):
            return True
    indic = len(_INDIC.findall(text))
    if indic >= _PART and len(_LOOSE_VOWEL.findall(text)) > _LOOSE_SHARE * indic:
        return True
    return _is_shifted(text)


def _is_shifted(text: str) -> bool:
    """Whether every letter of a text stands for the letter some places before it in the alphabet."""
    if text.count("e") + text.count("a") >= _E_AND_A * len(text):
        return False
    text = text.casefold()
    common = text.count("e") + text.count("a")
    if common >= _E_AND_A * len(text):
        return False
    counts = [text.count(letter) for letter in ascii_lowercase]
    total = sum(counts)
    if total < _PART or sum(map(bool, counts)) < _DIFFERENT or common >= _E_AND_A * total or total < len(text) / 2:
        return False
    fits = [
        sum(count * share for count, share in zip(counts[shift:] + counts[:shift], _SHARES, strict=True)) / total / 1000
        for shift in range(len(counts))
    ]
    return max(fits) > max(_FITS, _LIKELIER * fits[0])


def is_mismapped(text: str) -> bool:
    """Whether glyph numbers were probably taken for the codes of letters. Such a text has many letters that no living
    language uses, or sentences with many Latin words without a vowel.
    """
    words = _WORD.findall(text.casefold())
    without_vowel = sum(map(_VOWELS.isdisjoint, words))
    if len(words) >= _WORDS and without_vowel > _WITHOUT_VOWEL * len(words) and _has_sentences(text):
        return True
    no_letters = _NO_LETTERS.findall(text)
    return bool(no_letters) and len(no_letters) > _MISMAPPED_SHARE * sum(map(str.isalpha, text))


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
