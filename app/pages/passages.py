"""A few lines of a page around a passage, for the eye, and the sentence of a page closest to an answer. Pure."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from app.pages.folding import fold
from app.pages.sentences import sentences, words

_AROUND = 160  # characters on either side
_LONGEST_HIT = 700
_LETTERS = 4  # of a word that says something
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True)
class Extract:
    """``hit`` is the passage, as it is printed; ``before`` and ``after`` what stands around it, spaces between kept."""

    before: str
    hit: str
    after: str


def extract(text: str, start: int, end: int) -> Extract:
    """The characters [start, end) of a page with their surroundings, lines joined, cut at words."""
    left, right = max(0, start - _AROUND), min(len(text), end + _AROUND)
    before, after = text[left:start], text[end:right]
    if left:
        before = "…" + before[before.find(" ") + 1 :]
    if right < len(text):
        after = after[: after.rfind(" ") + 1].rstrip() + "…"
    hit = text[start:end]
    if len(hit) > _LONGEST_HIT:
        hit, after = hit[:_LONGEST_HIT].rstrip() + "…", ""
    before, hit, after = (_SPACES.sub(" ", part) for part in (before, hit, after))
    return Extract(before.lstrip(), hit, after.rstrip())


def closest(page: str, sentence: str) -> tuple[int, int] | None:
    """Characters [start, end) of the page's sentence that shares most words with another one; None if none does."""
    wanted = _telling(sentence)
    best, found = 1, None
    for span in sentences(page):
        shared = sum((wanted & _telling(page[span.start : span.end])).values())
        if shared > best:
            best, found = shared, (span.start, span.end)
    return found


def _telling(text: str) -> Counter[str]:
    return Counter(folded for word in words(text) if len(folded := fold(word)) >= _LETTERS)
