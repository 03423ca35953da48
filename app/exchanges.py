"""What a question with its answer is, and a chat: the records that everything else passes around, and their rows.

Pure: turns rows of ``app.store`` into records and back. Knows no database at work.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.store import records, tree
from engine.events import Figures, StopReason

TITLE_LENGTH = 60


@dataclass(frozen=True)
class Trouble:
    """Why there is no answer, or only part of one: two sentences for the person."""

    cause: str
    remedy: str


@dataclass(frozen=True)
class Exchange:
    """One question with its answer, as far as it has come. ``stopped`` is None while it is being written.

    ``interrupted``: the program ended before the answer did. ``pages_read``: the answer is from this many first pages
    of the book, because the others had not been read yet; 0 when all had. ``notes``: what ``app.pages`` found behind
    the words, plain JSON, kept as it is. ``stages``: the first letter of each token's ``engine.events.Stage``.
    ``question_id`` and ``answer_id`` name the messages, ``questions`` and ``answers`` all their versions.
    """

    question: str
    answer: str = ""
    stopped: StopReason | None = None
    figures: Figures | None = None
    trouble: Trouble | None = None
    notes: Mapping[str, Any] | None = None
    interrupted: bool = False
    pages_read: int = 0
    stages: str = ""
    question_id: int = 0
    answer_id: int = 0
    questions: tuple[int, ...] = ()
    answers: tuple[int, ...] = ()

    @property
    def can_be_continued(self) -> bool:
        """Whether the answer was cut before its own end."""
        return bool(self.answer) and (
            self.interrupted or self.stopped in (StopReason.CANCELLED, StopReason.LENGTH) or self.trouble is not None
        )


@dataclass(frozen=True)
class Chat:
    """Questions about one book, in order: of every question and answer the version that is shown."""

    id: str
    book: str
    begun: float
    exchanges: tuple[Exchange, ...] = field(default=())
    name: str = ""

    @property
    def title(self) -> str:
        return self.name or title_of(self.exchanges[0].question if self.exchanges else "")

    def before(self, position: int) -> tuple[tuple[str, str], ...]:
        """The (question, answer) pairs ahead of ``position`` that were answered, at least in part."""
        return tuple((turn.question, turn.answer) for turn in self.exchanges[:position] if turn.answer)

    def position_of(self, message: int) -> int | None:
        """Where a question or an answer stands among what is shown."""
        places = (at for at, turn in enumerate(self.exchanges) if message in (turn.question_id, turn.answer_id))
        return next(places, None)


@dataclass(frozen=True)
class ChatLine:
    """A chat in a list. ``changed``: when it was last written to, seconds since the epoch."""

    id: str
    book: str
    title: str
    changed: float


def title_of(question: str) -> str:
    """A chat without a name of its own is called by its first question."""
    first = " ".join(question.split()) or "New chat"
    return first if len(first) <= TITLE_LENGTH else first[: TITLE_LENGTH - 1].rstrip() + "…"


def line_of(row: sqlite3.Row) -> ChatLine:
    """A row of id, book, name, changed and first question."""
    return ChatLine(row["id"], row["book"], row["name"] or title_of(row["first"] or ""), row["changed"])


def columns_of(exchange: Exchange) -> dict[str, Any]:
    """An answer's columns."""
    trouble = exchange.trouble
    stopped = exchange.stopped.value if exchange.stopped is not None else None
    return {
        "text": exchange.answer,
        "stopped": tree.INTERRUPTED if exchange.interrupted else stopped,
        "pages_read": exchange.pages_read,
        "figures": records.figures_to_json(exchange.figures),
        "stages": exchange.stages or None,
        "notes": records.to_json(exchange.notes),
        "trouble": records.to_json([trouble.cause, trouble.remedy]) if trouble else None,
    }


def exchange_of(question: tree.Step, answer: tree.Step) -> Exchange:
    """The exchange that two steps of a path are."""
    row = answer.row
    interrupted = row["stopped"] == tree.INTERRUPTED
    trouble = records.from_json(row["trouble"])
    stopped = StopReason.CANCELLED if interrupted else _stop_reason(row["stopped"])
    return Exchange(
        question.row["text"],
        row["text"],
        stopped,
        records.figures_from_json(row["figures"]),
        Trouble(*trouble) if trouble else None,
        records.from_json(row["notes"]),
        interrupted,
        row["pages_read"],
        row["stages"] or "",
        question.row["id"],
        row["id"],
        question.versions,
        answer.versions,
    )


def _stop_reason(value: str | None) -> StopReason | None:
    try:
        return StopReason(value) if value else None
    except ValueError:
        return StopReason.CANCELLED
