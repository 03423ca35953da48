"""Ends a text at the first of some stop words, which may arrive in pieces. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class Stops:
    """Give it the pieces of a text; it holds back what could be the beginning of a stop word."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(words)
        self._held = ""
        self.found = False

    def feed(self, piece: str) -> str:
        """What may be shown now; nothing any more once a stop word has been found."""
        if self.found or not self._words:
            return "" if self.found else piece
        self._held += piece
        places = [at for at in (self._held.find(word) for word in self._words) if at >= 0]
        if places:
            self.found = True
            shown, self._held = self._held[: min(places)], ""
            return shown
        keep = max(_overlap(self._held, word) for word in self._words)
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return shown

    def rest(self) -> str:
        """What was held back when the text has ended."""
        shown, self._held = self._held, ""
        return shown


def _overlap(text: str, word: str) -> int:
    """Characters at the end of ``text`` that begin ``word``."""
    longest = min(len(text), len(word) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(word[:size])), 0)
