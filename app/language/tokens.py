"""What a word is, for each purpose.

LETTERS     letters alone                                   "K3's" is "K", "s"
RUN         letters and digits                              "K3's" is "K3", "s"
WORD        a word as printed, with apostrophe and hyphen   "K3's" is "K3's"
tokenize    words and numbers that are compared             "K3's 1,485" is "K3's", "1,485"
PRINTED     words, numbers and signs in which two versions  "at 1:20, 5 €" is "at", "1:20", "5", "€"
            of a text may differ
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LETTERS = re.compile(r"[^\W\d_]+")
RUN = re.compile(r"[^\W_]+")
WORD = re.compile(r"[^\W_]+(?:[’'-][^\W_]+)*")
PRINTED = re.compile(r"\w+(?:[.,:/’'-]\w+)*|[^\w\s\"“”„«»‘’'.,;:|()*_#-]")
# Where a scan joined a word and a name ("byMaren", "MarenHolt"). A name such as "McDonald" has fewer letters before.
_RUN_TOGETHER = r"(?:(?<=[a-zß-ÿ]{3})|(?<=(?<![^\W_])[a-z]{2}))[A-ZÀ-ÖØ-Þ][a-zß-ÿ]{2}"
# A number after a letter belongs to a name ("K3"), but not one with separators, to which a scan joined a word
# ("of1,485"). A number before letters has a unit ("17th", "1,485pounds").
_TOKEN = re.compile(
    r"(?<![^\W\d_])\d+(?:[.,]\d+)*|(?<=[^\W\d_])\d{1,3}(?:[.,]\d{3})+(?!\d)"
    rf"|[^\W\d_](?:(?!\d{{1,3}}[.,]\d{{3}}|{_RUN_TOGETHER})[^\W_])*(?:[’'][^\W\d_]+)*"
)


def tokenize(text: str) -> Iterator[tuple[str, int]]:
    """Yield words and numbers with their offsets."""
    for match in _TOKEN.finditer(text):
        yield match[0], match.start()
