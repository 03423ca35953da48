"""Finds where the current text occurred before, in the book or the chat: a suffix index over token ids.

An index of short n-grams gives the places where the newest tokens occurred; the longest match among the latest places
wins, and what followed there is the proposal. Built once per book, extended with every committed token. Pure lists and
dictionaries: no model, no tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

SEED = 3
"""Tokens that a place must share with the end of the text before it is looked at."""

# Places that share so many are looked at first: of the few words that are everywhere in a book only the newest places
# are compared, and the right one may be older.
_LONG_SEED = 8

# Places of one n-gram that are compared, newest first: a common n-gram occurs everywhere and says little.
_PLACES = 16
# A place with less text after it is near the end of everything, and counts for so many tokens less.
_ENOUGH, _AT_THE_END = 64, 4
# A match is not followed back further than this.
_LONGEST_MATCH = 64


@dataclass(frozen=True)
class Match:
    """``length`` tokens before ``position`` equal the end of the text; what follows begins at ``position``."""

    position: int
    length: int


class LookupIndex:
    """Every place of every n-gram of ``SEED`` tokens, and of a longer kind, in one growing text."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._places: dict[int, dict[tuple[int, ...], list[int]]] = {_LONG_SEED: {}, SEED: {}}

    def __len__(self) -> int:
        return len(self._tokens)

    def follow(self, tokens: Sequence[int]) -> None:
        """Make the index that of ``tokens``: crop where they part, append what is new."""
        self._crop(_common(self._tokens, tokens))
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append what ``tokens``, which begin with the indexed ones, have more."""
        for token in tokens[len(self._tokens) :]:
            self._tokens.append(token)
            end = len(self._tokens)
            for size, places in self._places.items():
                if end >= size:
                    places.setdefault(tuple(self._tokens[end - size :]), []).append(end)

    def find(self, tail: Sequence[int]) -> Match | None:
        """The longest earlier occurrence of the end of the indexed text followed by ``tail`` (tokens not indexed)."""
        text = [*self._tokens[max(0, len(self._tokens) - _LONGEST_MATCH) :], *tail]
        for size, places in self._places.items():
            if len(text) >= size and (best := self._longest(places.get(tuple(text[-size:]), ()), text, size)):
                return best
        return None

    def _longest(self, places: Sequence[int], text: Sequence[int], known: int) -> Match | None:
        """The longest match among the newest places, which all share ``known`` tokens with the text.

        A place with little text after it counts for less: a question names the words of the book that its answer goes
        on from, and is itself the newest place of them, often with the very tokens of the answer.
        """
        best, rank = None, 0
        for position in reversed(places[-_PLACES - 1 :]):
            if position >= len(self._tokens):  # the end of the text itself
                continue
            length = self._match_length(position, text, known)
            found = length if len(self._tokens) - position >= _ENOUGH else max(1, length - _AT_THE_END)
            if found > rank:
                best, rank = Match(position, length), found
        return best

    def after(self, match: Match, count: int, tail: Sequence[int] = ()) -> list[int]:
        """At most ``count`` tokens of what followed a match.

        Where the text has ended by then, there are no more; unless it goes in a circle, and has closed it once: then
        that goes on.

        Args:
            tail: as it was given to ``find``.
        """
        found = self._tokens[match.position : match.position + count]
        circle = [*found, *tail]
        if len(found) == count or not 0 < len(circle) <= match.length:
            return found
        return list(itertools.islice(itertools.cycle(circle), count))

    def _match_length(self, position: int, text: Sequence[int], length: int) -> int:
        most = min(position, len(text), _LONGEST_MATCH)
        while length < most and self._tokens[position - 1 - length] == text[-1 - length]:
            length += 1
        return length

    def _crop(self, length: int) -> None:
        while len(self._tokens) > length:
            end = len(self._tokens)
            for size, places in self._places.items():
                if end >= size:
                    places[tuple(self._tokens[end - size :])].pop()
            self._tokens.pop()


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    if len(a) <= len(b) and list(b[: len(a)]) == list(a):
        return len(a)
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if list(a[:middle]) == list(b[:middle]):
            low = middle
        else:
            high = middle - 1
    return low
