"""Makes prompts exactly as the app does, with the code of the app and the engine.

Turns words into tokens: a book with the template's words before it, and the rows of questions and answers that follow.
Knows no model.
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
"""Number of passages that are added to a question. `build.py` writes this number into the model's settings."""
FIRST_TOKENS = 6
"""Number of first tokens of an answer with weight FIRST_WEIGHT. They decide the kind of the answer and the place it
quotes from.
"""
FIRST_WEIGHT = 3.0
_KNOWN_BY, _TAUGHT = 5, 3
"""Number of first tokens of a quotation that identify its place, and number of those whose place is trained."""
_ID_BYTES = 4


def packed(ids: Sequence[int]) -> bytes:
    """Encode token ids as bytes, so that sequences can be searched quickly."""
    return b"".join(number.to_bytes(_ID_BYTES, "little") for number in ids)


def _only_place(text: bytes, said: bytes) -> int | None:
    """Return the index of the only occurrence of these tokens; None if there is no occurrence or several."""
    offset, places = text.find(said), []
    while offset >= 0:
        if offset % _ID_BYTES == 0:
            places.append(offset // _ID_BYTES)
        offset = text.find(said, offset + 1)
    return places[0] if len(places) == 1 else None


@dataclass(frozen=True)
class Row:
    """Alternating questions and answers as tokens, with each token's weight in the loss (0 in questions).

    looks: for each of the first tokens of each quotation, a pair: the index in the row of the token before it, and the
    place of the quoted token in the text.
    """

    ids: tuple[int, ...]
    weights: tuple[float, ...]
    looks: tuple[tuple[int, int], ...] = ()

    def looking(self, text: bytes, opening: Sequence[int]) -> Row:
        """Return this row with ``looks`` that refer to ``text``, which `packed` has encoded. Quotations are recognised
        by `opening`, the tokens with which they begin.
        """
        looks: list[tuple[int, int]] = []
        starts = [start for start in range(1, len(self.ids)) if self.weights[start] and not self.weights[start - 1]]
        for start in starts:
            first = start + len(opening)
            said = self.ids[first : first + _KNOWN_BY]
            if list(self.ids[start:first]) != list(opening) or len(said) < _KNOWN_BY:
                continue
            place = _only_place(text, packed(said))
            if place is not None:
                looks += [(first - 1 + more, place + more) for more in range(_TAUGHT)]
        return Row(self.ids, self.weights, tuple(looks))


class Prompter:
    """Makes prompts for the model in `folder` with the app's own tokenizer and prompt assembly."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = BookTokenizer(str(folder))
        self._form = self._tokenizer.format_for("Title")
        self.end_ids = self._tokenizer.end_ids

    def book(self, title: str, text: str) -> list[int]:
        """Return the tokens at the beginning of every prompt about a text."""
        document = Document(title, "", (Page(1, "1", text),), "txt", "")
        return list(self._tokenizer.book(document, self._tokenizer.format_for(title)).ids)

    def question(self, words: str, *, first: bool = True) -> list[int]:
        """Return the tokens of a question, from the end of the book or of the last answer to the beginning of the next
        answer.
        """
        tokenizer, form = self._tokenizer, self._form
        before = form.after_book if first else form.between_turns
        return [
            *tokenizer.template_words(before),
            *tokenizer.words(words),
            *tokenizer.template_words(form.after_question),
        ]

    @staticmethod
    def passages(text: str) -> Passages:
        """Return the passages of a text. Some of them are added to each question."""
        return Passages(text)

    def row(self, turns: Sequence[tuple[str, str]], most: int | None = None) -> Row:
        """Make a row of questions and answers as in a chat. Each answer ends with the template's end token.

        most: maximum tokens of the last answer; a longer answer is cut.
        """
        ids: list[int] = []
        weights: list[float] = []
        said: list[int] = []
        for number, (question, answer) in enumerate(turns):
            asked = self.question(question, first=number == 0)
            if number:
                # The question's first token is left out, because the last answer already ends with it.
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
        """The tokens at the beginning of a quotation that starts within a sentence."""
        return list(self._tokenizer.words("“…"))

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)


def text_of(path: Path) -> str:
    """Read the text of a document as the app does."""
    return read_document(path).text
