"""Writes the warnings about text that a parser left out of a document. Runs only in the child process
(``app.readers.child``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_TOLD = 0.02  # share of a document's characters that may be left out for one reason without a warning
_REASONS = {
    "hidden": "it is hidden where the document is shown",
    "deleted": "it is marked as deleted",
    "codes": "it belongs to the codes of fields",
    "headers": "rows that are the same on many pages, but for the first of them",
    "outside": "it lies outside of the visible part of the page",
    "line numbers": "numbers of the lines in the margin",
    "doubled": "letters that are drawn twice",
    "ornaments": "rows of ornaments",
    "page numbers": "numbers of the printed pages",
    "other": "buttons, choices not taken, frames of other pages, definitions of drawings",
}


_OF_PAGES = frozenset(
    re.findall(r"\w+", "page pages of p s seite seiten von sur de di pag pág página páginas pagina pagine strona z")
)
_WORD = re.compile(r"[^\W\d_]+")


def is_page_number(text: str) -> bool:
    """Whether a header or footer has nothing but the number of its page, such as "Page 3 of 10"."""
    return all(word.casefold() in _OF_PAGES for word in _WORD.findall(text))


def told(counts: Mapping[str, int], texts: Iterable[str]) -> list[str]:
    """Return one warning for each reason for which a notable share of the text was left out. Text that is marked as
    deleted is told whatever its share, because a deleted "not" changes what a sentence means.

    Args:
        counts: number of characters left out, without spaces, keyed by reason.
        texts: the texts that were read, from which the document's length is computed.
    """
    if not counts:
        return []
    whole = sum(len(text) - text.count(" ") - text.count("\n") for text in texts) + sum(counts.values())
    return [
        f"{_share(count / whole)} of the text was left out: {_REASONS[reason]}."
        for reason, count in counts.items()
        if whole and count > (0 if reason == "deleted" else _TOLD * whole)
    ]


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else f"{max(share, 0.0001):.2%}"
