"""Detects text that only repeats itself, so that such an answer can be stopped, and the bench can count the repeated
tokens.

A model can run into a loop: it repeats the same period of tokens to the end of the window. A repetition, such as a
rhyme or a table, is a loop only if all of the following are true.

- The period occurs at least three times. A sentence that occurs twice is emphasis, or a quotation and its source.
- At least ``LEAST_REPEATED`` tokens follow the first period. Short periods are often harmless: a line of dashes, the
  empty cells of a table, "ha, ha, ha". A period of 40 tokens, a sentence or two, reaches the limit at its third
  occurrence.
- The book does not have the same repetition. An answer may quote a refrain, a contents page full of dots or a column of
  zeros as often as the book repeats it. If the answer repeats such a passage once more than the book does, it is a
  loop.

Whether an answer is stopped at a token depends only on the tokens up to this token, like a stop at a maximum length. So
the text up to the stop has the distribution of plain decoding, and every way of decoding stops at the same token. Pure.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from functools import cached_property

TURNS = 3
LEAST_REPEATED = 80
"""Minimum number of tokens after the first period, for an answer to be stopped as a loop."""

_LONGEST_PERIOD = 512  # maximum period, in tokens, of a repetition that is detected


class Repetition:
    """Follows a text token by token, and measures how far back its end is periodic. ``runs`` maps each period in tokens
    (ascending) to the number of newest tokens that each equal the token one period earlier. Periods for which this
    number is 0 have no entry.
    """

    def __init__(self) -> None:
        self.runs: dict[int, int] = {}
        # Positions of each token in the text, newest first.
        self._places: defaultdict[int, deque[int]] = defaultdict(deque)
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
    """Detects for every token of an answer whether the answer has become a loop with this token.

    Args:
        book: tokens of the book. A repetition that the book contains is no loop.
    """

    def __init__(self, book: Sequence[int] = ()) -> None:
        self._book = book
        self._tokens: list[int] = []
        self._repetition = Repetition()

    def add(self, token: int) -> bool:
        """Add the next token. Return whether the answer is now a loop."""
        self._tokens.append(token)
        self._repetition.add(token)
        runs = self._repetition.runs.items()
        repeated = max((same for period, same in runs if _is_loop(period, same, LEAST_REPEATED)), default=0)
        return repeated > 0 and _as_text(self._tokens[-repeated:]) not in self._book_text

    @cached_property
    def _book_text(self) -> str:
        return _as_text(self._book)


def _is_loop(period: int, count: int, least: int) -> bool:
    """Whether a text repeats itself long enough for a loop, if its last ``count`` tokens each equal the token one
    ``period`` before them.
    """
    return count >= max((TURNS - 1) * period, least)


def _as_text(tokens: Sequence[int]) -> str:
    """The tokens as a string with one character for each token, because searching a string is quick: 1 ms for 128K
    tokens.
    """
    return "".join(map(chr, tokens))


def circling(tokens: Sequence[int], least: int) -> list[bool]:
    """For each token, whether it belongs to a loop. A loop has at least three equal periods, and at least ``least``
    tokens after the first period. The tokens of the first period do not count as part of the loop.
    """
    looping = [False] * len(tokens)
    repetition = Repetition()
    for end, token in enumerate(tokens, 1):
        repetition.add(token)
        same = max((same for period, same in repetition.runs.items() if _is_loop(period, same, least)), default=0)
        looping[end - same : end] = [True] * same
    return looping
