"""Text reduced to what two printings of the same words share: letters and digits, without case, accents and joints.

White space, quotation marks, hyphens (also the ones at the end of a line) and punctuation fall away; ligatures and
full-width forms are spelled out. Pure.
"""

from __future__ import annotations

import re
import unicodedata

_DROPPED = re.compile(r"[\W_]+")
_NUMBER = re.compile(r"\d+(?:[.,:/]\d+)*")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def fold(text: str) -> str:
    """The letters and digits of a text. The fold of a join is the join of the folds."""
    return _DROPPED.sub("", unicodedata.normalize("NFKD", text).casefold())


def places(text: str) -> list[int]:
    """For every character of ``fold(text)`` the index in ``text`` that it comes from."""
    return [index for index, sign in enumerate(text) for _ in fold(sign)]


def numbers(text: str) -> list[str]:
    """The numbers in a text, as a reader tells them apart: 10.5 is not 105, but 1,912 is 1912."""
    return [_THOUSANDS.sub("", number) for number in _NUMBER.findall(text)]
