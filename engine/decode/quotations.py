"""Restricts quotations to the book's own words. The restriction is part of the distribution that tokens are sampled
from.

Within a quotation, a token is allowed only if the quotation up to and including this token occurs in the book. Which
tokens are allowed depends only on earlier tokens. So the rule can be a part of every level's sampler
(``verify.Sampler``), like the repetition penalty, and plain and speculative decoding have the same distribution. The
rule rejects few proposals, because within a quotation most proposals are copied from the book.

A quotation opens with “ or with a straight mark after a space, and closes with ” or a straight mark. It may begin at
any word of the book and end after any word, with an ellipsis at either end. The words between must be one passage of
the book. A run of white space counts as one space, because lines can be broken anywhere: a quotation may leave out the
book's line breaks, but may add none. All other bytes must be equal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

_SPACES = re.compile(rb"\s+")
_WHITE = (b" ", b"\n")  # the only white space in a text that ``_folded`` returned
_SPACE, _BREAK = b" \n"
_OPENING = re.compile(rb"\xe2\x80\x9c|(?<=[\s(\[])\"")
_CLOSING = {b'"': b'"'}  # closing mark, keyed by opening mark; every other opening mark is closed by ”
_CURLY = "”".encode()
_CUT = re.compile(r"\w\w|\d[.,:/]\d")
_ELLIPSES = (b"...", "…".encode())
# strings that may stand between the opening mark and the first word
_LEADS = (b"", *_ELLIPSES, *(sign + b" " for sign in _ELLIPSES))
_WORD = re.compile(rb"(?:^|(?<=[ \n\"'(\[-])|(?<=\xe2\x80[\x94\x98\x9c]))[^ \n.,;:!?)\]-]")
# Maximum length, in bytes, of a token that continues a quotation. Longer tokens are not allowed within a quotation.
_LONGEST_PIECE = 24
# Maximum number of cached ``Point`` objects. They are cached because a round needs the same point several times. When
# the maximum is reached, the whole cache is emptied.
_MOST_REMEMBERED = 4096


class Quotable:
    """A book's text, in which the quotations of an answer are searched, with the vocabulary's tokens as bytes.

    Args:
        text: the text that may be quoted.
        pieces: the bytes of every token of the vocabulary, empty for special tokens.
    """

    def __init__(self, text: str, pieces: Sequence[bytes]) -> None:
        self._text = _folded(text.encode("utf-8", "replace")).rstrip()
        self._bytes = np.frombuffer(self._text, dtype=np.uint8)
        self._pieces = [_folded(piece) for piece in pieces]
        self._points: dict[tuple[bytes, bytes], Point] = {}

    @cached_property
    def _tokens(self) -> dict[bytes, list[int]]:
        """The tokens, keyed by their bytes."""
        tokens: dict[bytes, list[int]] = {}
        for token, piece in enumerate(self._pieces):
            if piece:
                tokens.setdefault(piece, []).append(token)
        return tokens

    @cached_property
    def _closers(self) -> dict[bytes, list[tuple[bytes, int]]]:
        """The tokens that contain a closing mark, keyed by the mark. Each token is given as a pair of the bytes before
        its mark, and its id.
        """
        return {
            mark: [(piece[: piece.index(mark)], token) for token, piece in enumerate(self._pieces) if mark in piece]
            for mark in (b'"', _CURLY)
        }

    @cached_property
    def _words(self) -> np.ndarray:
        """Offsets in the book at which a quotation may begin, ascending: at words, or at opening punctuation before
        words.
        """
        return np.array([match.start() for match in _WORD.finditer(self._text)], dtype=np.int64)

    def begin(self, answer: Sequence[int]) -> Quotations:
        """Return the state (``Quotations``) after the tokens that the answer already has."""
        return Quotations(self, b"\n", None).after(answer)

    def piece(self, token: int) -> bytes:
        """The bytes of a token; empty if the tokenizer does not know the token."""
        return self._pieces[token] if token < len(self._pieces) else b""

    def point(self, mark: bytes, prefix: bytes, previous: Point | None = None) -> Point:
        """Return the ``Point`` of a quotation that began with the opening mark ``mark`` and has the bytes ``prefix`` so
        far. ``previous`` may be an earlier point of the same quotation.
        """
        found = self._points.get((mark, prefix))
        if found is None:
            if len(self._points) >= _MOST_REMEMBERED:
                self._points.clear()
            if previous is None or _leads(previous.prefix):
                starts = [self._behind(self._words, prefix[len(lead) :]) for lead in _LEADS if prefix.startswith(lead)]
                places = np.unique(np.concatenate(starts)) if starts else self._words[:0]
            else:
                places = self._behind(previous.places, prefix[len(previous.prefix) :])
            found = self._points[mark, prefix] = Point(mark, prefix, places)
        return found

    def _behind(self, places: np.ndarray, piece: bytes) -> np.ndarray:
        """Find those of the offsets ``places`` at which the book continues with ``piece``. Return the offsets in the
        book after the piece. A space in the piece may be a line break in the book.
        """
        for index, byte in enumerate(piece):
            places = places[places + index < len(self._bytes)]
            here = self._bytes[places + index]
            places = places[(here == byte) | ((here == _BREAK) & (byte == _SPACE))]
        return places + len(piece)

    def allowed(self, point: Point) -> torch.Tensor | None:
        """The tokens (n,) that may follow at ``point``. None, which means any token, if no token continues the
        quotation, for example because the quotation is not in the book.
        """
        if point.allowed is None:
            allowed = self._beginnings(point.prefix) if _leads(point.prefix) else self._goings_on(point)
            point.allowed = torch.tensor(sorted(allowed), dtype=torch.long)
        return point.allowed if len(point.allowed) else None

    def _goings_on(self, point: Point) -> set[int]:
        places = point.places.tolist()
        allowed = {token for piece in self._continuations(places) for token in self._tokens[piece]}
        ends = [place for place in places if self._may_end(place)]
        for head, token in self._closers[_CLOSING.get(point.mark, _CURLY)]:
            if (point.prefix + head).endswith(_WHITE):
                continue  # skip this token, because a quotation may not end with white space
            if head.strip() in (b"", *_ELLIPSES):
                fits = bool(ends)
            else:
                fits = any(map(self._may_end, self._behind(point.places, head).tolist()))
            if fits:
                allowed.add(token)
        return allowed

    def _beginnings(self, prefix: bytes) -> set[int]:
        """The tokens that may follow an opening mark and ``prefix``, which is empty, an ellipsis, or the beginning of
        an ellipsis.
        """
        places = self._behind(self._words, prefix).tolist() if prefix else []
        allowed = {token for piece in self._continuations(places) for token in self._tokens[piece]}
        for rest in {lead[len(prefix) :] for lead in _LEADS if lead.startswith(prefix)}:
            for piece, tokens in self._tokens.items():
                within = rest.startswith(piece)
                if within or (piece.startswith(rest) and piece[len(rest) :] in self._first):
                    allowed.update(tokens)
        return allowed

    @cached_property
    def _first(self) -> set[bytes]:
        """The bytes of all tokens that may begin a quotation of the book."""
        return self._continuations(self._words.tolist())

    def _continuations(self, places: list[int]) -> set[bytes]:
        """The tokens, as bytes, with which the book continues at any of the offsets ``places``."""
        pieces: set[bytes] = set()
        for piece in {self._text[place : place + _LONGEST_PIECE] for place in places}:
            # A token has white space only as its first byte, so it ends before the next white space of the book.
            word = len(_SPACES.split(piece[1:], 1)[0])
            for first in {piece[:1], b" "} if piece.startswith(b"\n") else {piece[:1]}:
                pieces.update(part for end in range(word + 1) if (part := first + piece[1 : end + 1]) in self._tokens)
        return pieces

    def _may_end(self, place: int) -> bool:
        """Whether a quotation may end in the book before the byte at ``place``, that is, not within a character, a word
        or a number.
        """
        if self._text[place : place + 1] and self._text[place] & 0xC0 == 0x80:
            return False
        before = self._text[max(0, place - 4) : place].decode("utf-8", "ignore")
        behind = self._text[place : place + 4].decode("utf-8", "ignore")
        return not _CUT.match(before[-1:] + behind)


def _folded(text: bytes) -> bytes:
    """Replace each run of white space in a text by one byte: a line break if the run contains a line break, otherwise a
    space.
    """
    return _SPACES.sub(lambda run: b"\n" if b"\n" in run[0] else b" ", text)


def _leads(prefix: bytes) -> bool:
    """Whether a quotation with the bytes ``prefix`` has no word yet: they are empty, an ellipsis, or the beginning of
    an ellipsis.
    """
    return any(lead.startswith(prefix) for lead in _LEADS)


@dataclass(eq=False)
class Point:
    """A point within a quotation. ``mark`` is the opening quotation mark, and ``prefix`` are the quotation's bytes so
    far. ``places`` are the offsets in the book at which passages with these bytes end, ascending.
    """

    mark: bytes
    prefix: bytes
    places: np.ndarray
    allowed: torch.Tensor | None = None


@dataclass(frozen=True)
class Quotations:
    """Says whether the end of an answer is within a quotation: at ``point``, or outside of quotations if ``point`` is
    None. ``tail`` holds the answer's newest bytes outside of quotations.
    """

    book: Quotable
    tail: bytes
    point: Point | None

    def after(self, tokens: Sequence[int]) -> Quotations:
        """The state after the answer has been continued with ``tokens``."""
        here = self
        for token in tokens:
            here = here._followed(self.book.piece(token))
        return here

    def allowed(self) -> torch.Tensor | None:
        """The tokens (n,) that may come next, on the CPU; None if any token may."""
        return None if self.point is None else self.book.allowed(self.point)

    def _followed(self, piece: bytes) -> Quotations:
        if self.point is None:
            text = self.tail + piece
            mark = next((mark for mark in _OPENING.finditer(text) if mark.end() > len(self.tail)), None)
            if mark is None:
                return Quotations(self.book, text[-4:], None)
            opened = Quotations(self.book, b"", self.book.point(mark[0], b""))
            return opened._followed(text[mark.end() :])
        closing = _CLOSING.get(self.point.mark, _CURLY)
        if closing in piece:
            return Quotations(self.book, b"", None)._followed(piece[piece.index(closing) + len(closing) :])
        said = self.point.prefix
        if not said or said.endswith(_WHITE):
            piece = piece.lstrip(b" \n")
        return Quotations(self.book, b"", self.book.point(self.point.mark, said + piece, self.point)) if piece else self
