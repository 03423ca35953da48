"""Finds text that only repeats itself, for an answer that is to be stopped and for a bench that counts.

A model can run into a loop: the same period of tokens again and again, to the end of the window. What tells a loop from
a rhyme or a table is how long it goes on, and whether the book says the same.

- Three turns at least. A sentence that comes twice is emphasis, or a quotation and its source.
- ``LEAST_REPEATED`` tokens at least behind the first turn. Short periods come in a row without harm: a line of dashes,
  the empty cells of a table, "ha, ha, ha". A period of 40 tokens, a sentence or two, reaches it with its third turn.
- Not what the book itself repeats. A refrain, a contents page full of dots or a column of zeros is quoted as it stands,
  as often as the book has it in a row, and a loop is seen when the answer has made one turn more.

Whether a text is stopped at a token depends on the tokens up to it alone, so stopping is like a limit of length: what
is said up to there has the distribution of plain decoding, and every way of decoding stops at the same token. Pure.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from functools import cached_property

TURNS = 3
LEAST_REPEATED = 80
"""Tokens that turns after the first have together, before an answer is stopped."""

_LONGEST_PERIOD = 512  # tokens


class Repetition:
    """Follows a text. ``runs``, by ascending period in tokens: how many of the newest tokens in a row equal the token
    one period before; periods without such a newest token are left out."""

    def __init__(self) -> None:
        self.runs: dict[int, int] = {}
        self._places: defaultdict[int, deque[int]] = defaultdict(deque)  # of every token, newest first
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
    """Says of every token of one answer whether a loop has been closed with it.

    Args:
        book: tokens of the book, which the answer may repeat as often as it does.
    """

    def __init__(self, book: Sequence[int] = ()) -> None:
        self._book = book
        self._tokens: list[int] = []
        self._repetition = Repetition()

    def add(self, token: int) -> bool:
        """Take the next token; whether the answer only repeats itself by now."""
        self._tokens.append(token)
        self._repetition.add(token)
        runs = self._repetition.runs.items()
        repeated = max((same for period, same in runs if _is_loop(period, same, LEAST_REPEATED)), default=0)
        return repeated > 0 and _as_text(self._tokens[-repeated:]) not in self._book_text

    @cached_property
    def _book_text(self) -> str:
        return _as_text(self._book)


def _is_loop(period: int, same: int, least: int) -> bool:
    """Whether ``same`` tokens in a row that equal those a period before are enough."""
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
