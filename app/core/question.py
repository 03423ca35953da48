"""The record of one question from the page, the terminal or /v1 to the engine (``Ask``).

An ``Ask`` is the engine's ``Question`` with what the app does around its answer. Whoever asks makes it; every step on
the way adds what it alone knows (the chat's history, the first words of the answer) with ``dataclasses.replace``, and
the engine takes it as the ``Question`` that it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from engine import Question
from engine.config import Checkbox, option

ALL_PARTS = 10_000
"""The number of parts that stands for all of them: more parts than any book has."""


class AnswersFrom(str, Enum):
    """What answers come from, as the person has set it for all questions."""

    FIRST = "first"  # passages at once, and the whole book when it has been read
    WHOLE = "whole"  # the whole book only: a question waits until it has been read
    PASSAGES = "passages"  # passages only: no book is read


SOURCES = {
    AnswersFrom.FIRST: "passages at once, then the whole book",
    AnswersFrom.WHOLE: "the whole book: a question waits until it has been read",
    AnswersFrom.PASSAGES: "passages only: no book is read",
}
"""The words of the settings."""


@dataclass(frozen=True)
class Ask(Question):
    """A question, and how the app is to answer it.

    Args:
        evidence: whether to look for the evidence of each sentence.
        parts: of a book that is read in parts, how many of them are asked: the most relevant ones, or ``ALL_PARTS``;
            0 asks those that the question needs.
        position: index of an earlier question of the open chat. This question replaces it, and the earlier one stays
            as another version; or its answer is continued (``chat_run.go_on``). None for a new question.
        now: whether to answer from passages at once, even if the book has been read or could be read soon, and from
            nothing else later.
        whole: whether to wait until the book, or the parts of it that the question needs, have been read, instead of
            answering from passages first.
        tab: the tab that asks. The answer continues when this tab closes. It is stopped soon after the last tab has
            closed (``AppState.leave``).
    """

    evidence: bool = option(
        True,
        kind=bool,
        help="after the answer, show the passages that support its sentences",
        page=Checkbox("Look up what each sentence rests on"),
    )
    now: bool = option(
        False, kind=bool, help="answer at once from the passages that fit best, without reading the book"
    )
    whole: bool = option(
        False, kind=bool, help="with --csv: read every document, also where its passages answer the question"
    )
    parts: int = 0
    position: int | None = None
    tab: str = ""

    @property
    def all_parts(self) -> bool:
        return self.parts == ALL_PARTS
