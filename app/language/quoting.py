"""Finds what a person put in quotation marks, in a question or in a search. Quotations in answers are longer, nested or
still growing, and are found by ``app.trust.quoted.quotations``.
"""

from __future__ import annotations

import re

_MARKS = '"“”„«»'
# A single mark beside a letter is an apostrophe.
_QUOTED = re.compile(rf"[{_MARKS}](?=[^{_MARKS}]*[^\W_])([^{_MARKS}]++)[{_MARKS}]|(?<!\w)[‘‚']([^‘’‚']+)[’‘'](?!\w)")


def quoted_words(text: str) -> list[str]:
    """Return what stands in quotation marks of any kind, without the marks and the spaces inside them. Marks without a
    letter or a digit between them are ignored.
    """
    return [(double or single).strip() for double, single in _QUOTED.findall(text)]


def wholly_quoted(text: str) -> str:
    """Return the words of a text that is one quotation from its first sign to its last; "" for any other text."""
    match = _QUOTED.fullmatch(text.strip())
    return (match[1] or match[2]).strip() if match else ""
