"""The prompt exactly as the app makes it: the only file of the recipe that touches the app and the engine.

Owns the way from words to tokens: a book with the template's words before it, and rows of questions and answers that
follow it. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.readers.document_reader import read_document
from engine.document import Document, Page
from engine.passages import Passages
from engine.prompt import BookTokenizer

NUM_PASSAGES = 4
"""Passages of the text beside a question; `build.py` writes it into the model's settings."""
FIRST_TOKENS = 6
"""Of an answer: they decide of what kind it is and from which place it quotes."""
FIRST_WEIGHT = 3.0
_KNOWN_BY, _TAUGHT = 5, 3
"""Tokens of a quotation that tell where it stands, and those whose place is taught."""
_ID_BYTES = 4


def packed(ids: Sequence[int]) -> bytes:
    """Tokens as bytes, in which runs of them are found."""
    return b"".join(number.to_bytes(_ID_BYTES, "little") for number in ids)


def _only_place(text: bytes, said: bytes) -> int | None:
    """Where these tokens stand; None where they stand nowhere or several times."""
    at, places = text.find(said), []
    while at >= 0:
        if at % _ID_BYTES == 0:
            places.append(at // _ID_BYTES)
        at = text.find(said, at + 1)
    return places[0] if len(places) == 1 else None


@dataclass(frozen=True)
class Row:
    """Questions and answers in turn as tokens, with the weight of every token in the loss (0 for what is asked).

    looks: for the first tokens of a quotation, the token before them in the row and where they stand in the text.
    """

    ids: tuple[int, ...]
    weights: tuple[float, ...]
    looks: tuple[tuple[int, int], ...] = ()

    def looking(self, text: bytes, opening: Sequence[int]) -> Row:
        """This row with where its quotations, which begin with the tokens `opening`, stand in a `packed` text."""
        found: list[tuple[int, int]] = []
        starts = [at for at in range(1, len(self.ids)) if self.weights[at] and not self.weights[at - 1]]
        for at in starts:
            first = at + len(opening)
            said = self.ids[first : first + _KNOWN_BY]
            if list(self.ids[at:first]) != list(opening) or len(said) < _KNOWN_BY:
                continue
            place = _only_place(text, packed(said))
            if place is not None:
                found += [(first - 1 + more, place + more) for more in range(_TAUGHT)]
        return Row(self.ids, self.weights, tuple(found))


class Prompter:
    """Makes prompts for the model in `folder` with the app's own tokenizer and prompt assembly."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = BookTokenizer(str(folder))
        self._form = self._tokenizer.format_for("Title")
        self.end_ids = self._tokenizer.end_ids

    def book(self, title: str, text: str) -> list[int]:
        """The beginning of every prompt about a text."""
        document = Document(title, "", (Page(1, "1", text),), "txt", "")
        return list(self._tokenizer.book(document, self._tokenizer.format_for(title)).ids)

    def question(self, words: str, *, first: bool = True) -> list[int]:
        """What follows the book, or the answer before, up to where the answer begins."""
        tokenizer, form = self._tokenizer, self._form
        before = form.after_book if first else form.between_turns
        return [
            *tokenizer.template_words(before),
            *tokenizer.words(words),
            *tokenizer.template_words(form.after_question),
        ]

    @staticmethod
    def passages(text: str) -> Passages:
        """What of a text is laid beside a question about it."""
        return Passages(text)

    def row(self, turns: Sequence[tuple[str, str]], most: int | None = None) -> Row:
        """Questions with their answers as they stand in a chat, each answer ended by the template's own end token.

        most: tokens of the last answer, which stops there if it is longer.
        """
        ids: list[int] = []
        weights: list[float] = []
        said: list[int] = []
        for number, (question, answer) in enumerate(turns):
            asked = self.question(question, first=number == 0)
            if number:
                # The answer before has brought its end token already; the template's words begin with the same.
                asked = asked[1:]
            said = [*self._tokenizer.words(answer), self.end_ids[0]]
            ids += [*asked, *said]
            weights += [0.0] * len(asked)
            weights += [FIRST_WEIGHT if place < FIRST_TOKENS else 1.0 for place in range(len(said))]
        over = 0 if most is None else max(0, len(said) - most)
        if over:
            ids, weights = ids[:-over], weights[:-over]
        return Row(tuple(ids), tuple(weights))

    @property
    def opening(self) -> list[int]:
        """The tokens that a quotation begins with where it does not begin a sentence."""
        return list(self._tokenizer.words("“…"))

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)


def text_of(path: Path) -> str:
    """The text of a document as the app reads it."""
    return read_document(path).text
