"""Between quotation marks nothing but the book's own words: a part of the law that a text is sampled by.

Where an answer has opened a quotation, a token may come only if the quotation goes on, or ends, as the book does
somewhere. Which tokens these are depends on the tokens before and on nothing else, so this is a rule of every level
like the repetition penalty (``verify.Sampler``): plain and speculative decoding have the same distribution, and inside
of a quotation most proposals are copies of the book anyway.

A quotation opens with “ or with a straight mark behind a space, and closes with ” or a straight mark. It may begin
at any word of the book and end behind any, and an ellipsis in it may leave words out. Runs of white space count as one
space: lines are broken anywhere. All else is compared byte by byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

_SPACES = re.compile(rb"\s+")
_OPENING = re.compile(rb"\xe2\x80\x9c|(?<=[\s(\[])\"")
_CLOSING = {b'"': b'"'}  # by the mark that opens; others close with ”
_CURLY = "”".encode()
_CUT = re.compile(r"\w\w|\d[.,:/]\d")
_ELLIPSES = (b"...", "…".encode())
# Bytes of the longest piece of the book that one token may be.
_LONGEST_PIECE = 24
# Quotations whose next tokens are remembered: a round looks at each of its own several times.
_MOST_REMEMBERED = 4096


class Quotable:
    """A book's text in which quotations are followed, for one model.

    Args:
        text: what may be quoted.
        pieces: the bytes of every token of the vocabulary, empty for special ones.
    """

    def __init__(self, text: str, pieces: Sequence[bytes]) -> None:
        self._text = _SPACES.sub(b" ", text.encode("utf-8", "replace"))
        self._bytes = np.frombuffer(self._text, dtype=np.uint8)
        self._pieces = [_SPACES.sub(b" ", piece) for piece in pieces]
        self._points: dict[tuple[bytes, bytes], _Point] = {}

    @cached_property
    def _tokens(self) -> dict[bytes, list[int]]:
        """Tokens by their bytes."""
        found: dict[bytes, list[int]] = {}
        for token, piece in enumerate(self._pieces):
            if piece:
                found.setdefault(piece, []).append(token)
        return found

    @cached_property
    def _closers(self) -> dict[bytes, list[tuple[bytes, int]]]:
        """Tokens with a closing mark, by the mark: what they say before it, and the token."""
        return {
            mark: [(piece[: piece.index(mark)], token) for token, piece in enumerate(self._pieces) if mark in piece]
            for mark in (b'"', _CURLY)
        }

    @cached_property
    def _words(self) -> np.ndarray:
        """Where words begin, or the marks before them: offsets, ascending."""
        spaces = np.flatnonzero(self._bytes == ord(" ")) + 1
        opened = [match.end() for match in re.finditer(rb"\xe2\x80[\x98\x9c\x94]|[\"'(\[-]", self._text)]
        found = np.union1d(np.concatenate([[0], spaces]), np.array(opened, dtype=np.int64))
        return found[found < len(self._text)].astype(np.int64)

    def begin(self, answer: Sequence[int]) -> Quotations:
        """Behind the tokens that there are of an answer already."""
        return Quotations(self, b"\n", None).after(answer)

    def piece(self, token: int) -> bytes:
        """The bytes of a token; of one that the tokenizer does not know, none."""
        return self._pieces[token] if token < len(self._pieces) else b""

    def opened(self, mark: bytes) -> _Point:
        """Behind an opening mark, before any word."""
        return self._remembered((mark, b""), lambda: _Point(mark, b"", self._words, begun=False))

    def next(self, point: _Point, piece: bytes) -> _Point:
        """Behind one more piece of a quotation."""
        return self._remembered((point.mark, point.said + piece), lambda: self._followed(point, piece))

    def _remembered(self, key: tuple[bytes, bytes], make: Callable[[], _Point]) -> _Point:
        found = self._points.get(key)
        if found is None:
            if len(self._points) >= _MOST_REMEMBERED:
                self._points.clear()
            found = self._points[key] = make()
        return found

    def _followed(self, point: _Point, piece: bytes) -> _Point:
        said, places, begun = point.said + piece, point.places, point.begun
        if piece.strip() in _ELLIPSES and not self._goes_on(places, piece):
            first = int(places[0]) if begun and len(places) else -1
            return _Point(point.mark, said, self._words[self._words > first], begun=False)
        rest = piece if begun else piece.lstrip(b" ")
        if begun and point.said.endswith(b" "):
            rest = rest.lstrip(b" ")
        for index, byte in enumerate(rest):
            places = places[places + index < len(self._bytes)]
            places = places[self._bytes[places + index] == byte]
        return _Point(point.mark, said, places + len(rest), begun=begun or bool(rest))

    def _goes_on(self, places: np.ndarray, piece: bytes) -> bool:
        return any(self._text.startswith(piece, place) for place in places.tolist())

    def allowed(self, point: _Point) -> torch.Tensor | None:
        """Tokens (n,) that may follow; None where any may, since the quotation is not the book's as it is."""
        if point.allowed is None and len(point.places):
            found: set[int] = set()
            places = point.places.tolist()
            for piece in {self._text[place : place + _LONGEST_PIECE] for place in places}:
                border = piece.find(b" ", 1)  # no token goes on behind one
                for length in range(1, (len(piece) if border < 0 else border) + 1):
                    found.update(self._tokens.get(piece[:length], ()))
                    if not point.begun and point.said:  # behind an ellipsis
                        found.update(self._tokens.get(b" " + piece[:length], ()))
            for ellipsis in (*_ELLIPSES, *(b" " + sign for sign in _ELLIPSES)):
                found.update(self._tokens.get(ellipsis, ()))
            if point.begun:
                ends = [place for place in places if self._may_end(place)]
                for head, token in self._closers[_CLOSING.get(point.mark, _CURLY)]:
                    if head.strip() in (b"", *_ELLIPSES):
                        fits = bool(ends)
                    else:
                        fits = any(self._text.startswith(head, at) and self._may_end(at + len(head)) for at in places)
                    if fits:
                        found.add(token)
            point.allowed = torch.tensor(sorted(found), dtype=torch.long)
        return point.allowed if point.allowed is not None and len(point.allowed) else None

    def _may_end(self, place: int) -> bool:
        """Whether a quotation may end before this byte: not within a character, a word or a number."""
        if self._text[place : place + 1] and self._text[place] & 0xC0 == 0x80:
            return False
        before = self._text[max(0, place - 4) : place].decode("utf-8", "ignore")
        behind = self._text[place : place + 4].decode("utf-8", "ignore")
        return not _CUT.match(before[-1:] + behind)


@dataclass(eq=False)
class _Point:
    """A place in a quotation. ``said``: its bytes so far; ``places``: offsets in the book, ascending, behind each that
    has them; ``begun``: whether a word of the book has come since the mark, or since an ellipsis."""

    mark: bytes
    said: bytes
    places: np.ndarray
    begun: bool
    allowed: torch.Tensor | None = None


@dataclass(frozen=True)
class Quotations:
    """Where an answer stands: in a quotation (``point``), or outside of one, behind the bytes ``tail``."""

    book: Quotable
    tail: bytes
    point: _Point | None

    def after(self, tokens: Sequence[int]) -> Quotations:
        """Behind some more tokens."""
        here = self
        for token in tokens:
            here = here._behind(self.book.piece(token))
        return here

    def allowed(self) -> torch.Tensor | None:
        """Tokens (n,) that may come next, on the processor; None where any may."""
        return None if self.point is None else self.book.allowed(self.point)

    def _behind(self, piece: bytes) -> Quotations:
        if self.point is None:
            text = self.tail + piece
            mark = next((mark for mark in _OPENING.finditer(text) if mark.end() > len(self.tail)), None)
            if mark is None:
                return Quotations(self.book, text[-4:], None)
            opened = Quotations(self.book, b"", self.book.opened(mark[0]))
            return opened._behind(text[mark.end() :])
        closing = _CLOSING.get(self.point.mark, _CURLY)
        if closing in piece:
            return Quotations(self.book, b"", None)._behind(piece[piece.index(closing) + len(closing) :])
        return Quotations(self.book, b"", self.book.next(self.point, piece)) if piece else self
