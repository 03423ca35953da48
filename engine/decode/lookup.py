"""Finds earlier places of the newest tokens in the book or the chat, so that the tokens that follow there can be
proposed.

An index of n-grams of token ids holds the places. Among the latest places of the longest n-gram that occurs, the one
with the longest match is taken. Even if only the newest token occurs earlier, the token after its newest place is right
in one of six cases (summaries and explanations in the model's own words). The index consists of lists and dictionaries.
It is built once per book and extended with every committed token. Pure: no tensors.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from engine.decode.tuning import TUNING, Tuning

# Bits for one token in the integer that stands for an n-gram. Token ids of every vocabulary fit into these bits.
_TOKEN_BITS = 32


@dataclass(frozen=True)
class LookupMatch:
    """A match in the book: the last ``length`` tokens of the text also occur at an earlier place, and ``tokens`` are
    the tokens that follow at that place. ``agreed``: whether the next token is the same at other places with this
    match, at all of them (True) or at none (False); None if it is the same at some of them, or if there are none.
    """

    length: int = 0
    tokens: tuple[int, ...] = ()
    agreed: bool | None = None


NO_MATCH = LookupMatch()


class _Places:
    """The places of all n-grams of ``size`` tokens in a text. The place of an n-gram is the position after it.

    Places and n-grams are plain integers. If each were an object, Python's garbage collector would traverse all of them
    while an answer waits, which took 0.3 s after 8,192 tokens.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._newest: dict[int, int] = {}  # the newest place, keyed by n-gram
        self._earlier = [0] * size  # the previous place of the same n-gram, keyed by place; 0 if there is none

    def extend(self, text: Sequence[int], count: int) -> None:
        """Add the n-grams that end within the last ``count`` tokens of ``text``. All earlier n-grams must have been
        added.
        """
        begin = max(len(text) - count, self.size - 1)
        ngram, mask = _number(text[begin - self.size + 1 : begin]), (1 << _TOKEN_BITS * self.size) - 1
        for end, token in enumerate(text[begin:], begin + 1):
            ngram = (ngram << _TOKEN_BITS | token) & mask
            self._earlier.append(self._newest.get(ngram, 0))
            self._newest[ngram] = end

    def drop_last(self, text: Sequence[int]) -> None:
        """Remove the n-gram at the end of ``text``."""
        if len(text) < self.size:
            return
        if earlier := self._earlier.pop():
            self._newest[_number(text[-self.size :])] = earlier
        else:
            del self._newest[_number(text[-self.size :])]

    def of(self, ngram: Sequence[int]) -> Iterator[int]:
        """Yield the places of an n-gram, newest first."""
        place = self._newest.get(_number(ngram), 0)
        while place:
            yield place
            place = self._earlier[place]


def _number(tokens: Sequence[int]) -> int:
    return functools.reduce(lambda number, token: number << _TOKEN_BITS | token, tokens, 0)


class LookupIndex:
    """An index of one growing text, which finds all places of every n-gram, for a few values of n
    (``Tuning.long_ngram``, ``Tuning.ngram`` and ``Tuning.short_ngrams``).
    """

    def __init__(self, tuning: Tuning = TUNING) -> None:
        self._tuning = tuning
        self._clear()

    def __len__(self) -> int:
        return len(self._tokens)

    def _clear(self) -> None:
        self._tokens: list[int] = []
        sizes = (self._tuning.long_ngram, self._tuning.ngram, *self._tuning.short_ngrams)
        self._places = [_Places(size) for size in sizes]

    def follow(self, tokens: Sequence[int]) -> None:
        """Make this the index of ``tokens``. Keep the indexed tokens up to the first difference from ``tokens``. If
        that fails, the index is empty.
        """
        with self._cleared_by_errors():
            self._crop(common_length(self._tokens, tokens))
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Index the tokens of ``tokens`` that are not indexed yet. ``tokens`` is the whole text, so it begins with the
        indexed tokens. If that fails, the index is empty.
        """
        with self._cleared_by_errors():
            new = tokens[len(self._tokens) :]
            self._tokens.extend(new)
            for places in self._places:
                places.extend(self._tokens, len(new))

    @contextmanager
    def _cleared_by_errors(self) -> Iterator[None]:
        """Clear the index if the ``with`` block fails, since some n-grams may then be missing, and every later search
        would fail. The next text is indexed from its beginning.
        """
        try:
            yield
        except BaseException:
            self._clear()
            raise

    def find(self, tail: Sequence[int] = (), most: int = TUNING.copy_lengths[-1], least: int = 1) -> LookupMatch:
        """Find the longest earlier occurrence of the end of the text, which is the indexed tokens followed by
        ``tail``.

        Args:
            most: maximum number of tokens in the match's ``tokens``.
            least: minimum length of a match; without such a match ``NO_MATCH`` is returned.
        """
        text = [*self._tokens[max(0, len(self._tokens) - self._tuning.longest_match) :], *tail]
        for places in self._places:
            if least <= places.size <= len(text) and (found := self._longest(places, text)):
                length, position, agreed = found
                return LookupMatch(length, tuple(self._after(position, length, most, tail)), agreed)
        return NO_MATCH

    def _longest(self, places: _Places, text: Sequence[int]) -> tuple[int, int, bool | None] | None:
        """Find the longest match among the newest places of the n-gram that ends the text. Return its length, its place
        (the position of the token that follows it), and whether it is ``agreed``; None if there is none.

        A match counts as shorter than it is if few tokens follow its place (``Tuning.tokens_after``). Such a place is
        often a quotation from the book in the question. The tokens after the quotation are only the rest of the
        question and the beginning of this answer, so the same words in the book predict the answer better.

        Up to ``Tuning.peers`` other places that share the whole match tell whether it is ``agreed``.
        """
        tuning = self._tuning
        most = tuning.places if places.size >= tuning.ngram else tuning.peers + 1
        matches: list[tuple[int, int]] = []  # the length of the match at each place, newest first, and the place
        for position in itertools.islice(places.of(text[-places.size :]), most + 1):
            # Skip this place, because it is the end of the text and not an earlier occurrence.
            if position < len(self._tokens):
                matches.append((self._match_length(position, text, places.size), position))
        if not matches:
            return None
        length, position = max(matches, key=lambda each: self._rank(*each))  # the newest of equal rank
        peers = [place for shared, place in matches if place != position and shared >= length][: tuning.peers]
        same = sum(self._tokens[place] == self._tokens[position] for place in peers)
        return length, position, None if not peers or 0 < same < len(peers) else same > 0

    def _rank(self, length: int, position: int) -> int:
        """The length of a match, reduced if few tokens follow its place."""
        at_end = len(self._tokens) - position < self._tuning.tokens_after
        return max(1, length - self._tuning.end_penalty) if at_end else length

    def repeats(self, newest: int) -> bool:
        """Whether the last ``newest`` tokens quote earlier text, that is, contain ``Tuning.long_ngram`` consecutive
        tokens that also occur before them.
        """
        long, end = self._places[0], len(self._tokens)
        begin = max(0, end - newest)
        ngrams = (self._tokens[start : start + long.size] for start in range(begin, end - long.size + 1))
        return any(place <= begin for ngram in ngrams for place in long.of(ngram))

    def _after(self, position: int, length: int, count: int, tail: Sequence[int]) -> list[int]:
        """Return the ``count`` tokens at ``position``, the place of a match of ``length`` tokens. Fewer tokens are
        returned if the indexed text ends earlier.

        If the text ends with a passage that occurs twice in a row, it is expected to go on repeating. The passage is
        then repeated until ``count`` tokens are returned.
        """
        following = self._tokens[position : position + count]
        circle = [*following, *tail]
        if len(following) == count or not 0 < len(circle) <= length:
            return following
        return list(itertools.islice(itertools.cycle(circle), count))

    def _match_length(self, position: int, text: Sequence[int], length: int) -> int:
        most = min(position, len(text), self._tuning.longest_match)
        while length < most and self._tokens[position - 1 - length] == text[-1 - length]:
            length += 1
        return length

    def _crop(self, length: int) -> None:
        while len(self._tokens) > length:
            for places in self._places:
                places.drop_last(self._tokens)
            self._tokens.pop()


def begins_with(text: Sequence[int], beginning: Sequence[int]) -> bool:
    """Whether ``text`` begins with the tokens of ``beginning``."""
    return len(beginning) <= len(text) and list(text[: len(beginning)]) == list(beginning)


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix of ``a`` and ``b``."""
    if begins_with(b, a):
        return len(a)
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if list(a[:middle]) == list(b[:middle]):
            low = middle
        else:
            high = middle - 1
    return low
