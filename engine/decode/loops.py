"""Finds text that only repeats itself, so that an answer is stopped or a bench counts it.

A model can run into a loop: the same period of tokens again and again, to the end of the window. Two things tell a loop
from a rhyme or a table: its length, and whether the book has the same repetition.

- At least three turns. A sentence that comes twice is emphasis, or a quotation and its source.
- At least ``LEAST_REPEATED`` tokens after the first turn. Short periods are often harmless: a line of dashes, the empty
  cells of a table, "ha, ha, ha". A period of 40 tokens, a sentence or two, reaches the limit with its third turn.
- Not a repetition of the book. A refrain, a contents page full of dots or a column of zeros is quoted as often as the
  book repeats it; the answer is a loop when it has made one turn more.

Stopping at a token depends on the tokens up to it alone, like a limit of length. The text up to there has the
distribution of plain decoding, and every way of decoding stops at the same token. Pure.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from functools import cached_property

TURNS = 3
LEAST_REPEATED = 80
"""Tokens that the turns after the first must have together before an answer is stopped."""

_LONGEST_PERIOD = 512  # longest period in tokens


class Repetition:
    """Follows a text token by token. ``runs`` maps each period, ascending and in tokens, to the number of newest tokens
    in a row that equal the token one period before. Periods without such a token are left out.
    """

    def __init__(self) -> None:
        self.runs: dict[int, int] = {}
        self._places: defaultdict[int, deque[int]] = defaultdict(deque)  # places of every token, newest first
        self._length = 0

    def add(self, token: int) -> None:
        places = self._places[token]
        while places and self._length - places[-1] > _LONGEST_PERIOD:
            places.pop()
        before = self.runs
        self.runs = {period: before.get(period, 0) + 1 for period in (self._length - place for place in places)}
        places.appendleft(self._length)
        self._length += 1


class LoopDetector:
    """Says for every token of one answer whether it closes a loop.

    Args:
        book: tokens of the book, whose repetitions the answer may repeat as often.
    """

    def __init__(self, book: Sequence[int] = ()) -> None:
        self._book = book
        self._tokens: list[int] = []
        self._repetition = Repetition()

    def add(self, token: int) -> bool:
        """Take the next token. Return whether the answer only repeats itself by now."""
        self._tokens.append(token)
        self._repetition.add(token)
        runs = self._repetition.runs.items()
        repeated = max((same for period, same in runs if _is_loop(period, same, LEAST_REPEATED)), default=0)
        return repeated > 0 and _as_text(self._tokens[-repeated:]) not in self._book_text

    @cached_property
    def _book_text(self) -> str:
        return _as_text(self._book)


def _is_loop(period: int, same: int, least: int) -> bool:
    """Whether ``same`` tokens in a row, each equal to the token one period before, make a loop."""
    return same >= max((TURNS - 1) * period, least)


def _as_text(tokens: Sequence[int]) -> str:
    """The tokens as a string, one character each: ``str.find`` looks through 128K tokens in a millisecond."""
    return "".join(map(chr, tokens))


def circling(tokens: Sequence[int], least: int) -> list[bool]:
    """Whether each token is part of a loop of three turns and ``least`` repeated tokens, without its first turn."""
    found = [False] * len(tokens)
    repetition = Repetition()
    for end, token in enumerate(tokens, 1):
        repetition.add(token)
        same = max((same for period, same in repetition.runs.items() if _is_loop(period, same, least)), default=0)
        found[end - same : end] = [True] * same
    return found
