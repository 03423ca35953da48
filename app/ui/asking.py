"""One question from the moment it is sent to the last word of its answer.

Owns the waiting, the draining of the engine's events at a pace that a page can follow, and what is written down
when the person stops or the tab is closed. Knows no Gradio: a handler iterates over it and draws.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

from app.chats import Exchange, Trouble
from app.ui import presentation
from app.ui.desk import Keeper, Stage
from engine.config import Mode, SamplingParams
from engine.errors import Busy, TrifoldError
from engine.events import AnswerDone, AnswerStarted, Failed, PagesScored, StopReason, TextDelta

logger = logging.getLogger(__name__)

UPDATE_SECONDS = 0.05  # at most 20 updates a second: more costs the page more than the answer costs the engine
_POLL = 0.1  # seconds that one look for an event may take: a stop or a closed tab is noticed that soon
_QUIET = 0.25  # seconds without news after which the caller gets its turn all the same
_HANDOVER = 10.0  # seconds within which a cancelled request has surely let go of the engine

_ON_THE_WAY = (Stage.OPENING, Stage.WAITING, Stage.READING)


def ask(
    keeper: Keeper, question: str, sampling: SamplingParams, mode: Mode, position: int | None = None
) -> Iterator[str]:
    """Ask, and yield whenever there is something new to draw: a word about what is being waited for, or "".

    Args:
        position: put the question in the place of an earlier one; what followed it is dropped.

    Raises:
        Busy: another question is being answered.
        TrifoldError: there is no book to ask about.
    """
    claim = keeper.claim()
    try:
        chat = keeper.chat
        if chat is None:
            raise TrifoldError("There is no book on the desk yet.", "Open one first.")
        writer = _Writer(keeper, chat.id, question, keeper.chats.ask(chat.id, question, position))
        yield "Thinking…"
        try:
            yield from _wait(keeper, claim)
            yield from _answer(keeper, writer, claim, sampling, mode)
        except TrifoldError as error:
            writer.fail(Trouble(error.cause, error.remedy))
        finally:
            writer.close()
    finally:
        keeper.release(claim)


def until_free(keeper: Keeper) -> Iterator[None]:
    """Yield while another question, which has been told to stop, lets go."""
    until = time.monotonic() + _HANDOVER
    while keeper.desk.asking and time.monotonic() < until:
        time.sleep(_POLL)
        yield


def _wait(keeper: Keeper, claim: threading.Event) -> Iterator[str]:
    """A question may be sent while the book is on its way; it waits for it.

    Raises:
        TrifoldError: the book did not arrive.
    """
    while keeper.desk.stage in _ON_THE_WAY and not claim.is_set():
        yield _waiting_words(keeper.desk.stage)
        time.sleep(_QUIET)
    desk = keeper.desk
    if desk.stage is not Stage.READY and not claim.is_set():
        trouble = desk.trouble or Trouble("There is no book on the desk yet.", "Open one first.")
        raise TrifoldError(trouble.cause, trouble.remedy)


def _waiting_words(stage: Stage) -> str:
    if stage is Stage.READING:
        return (
            "Your question is asked as soon as the book has been read. Stop reading to ask about what was read so far."
        )
    return "Your question is asked as soon as the book has been opened."


def _answer(
    keeper: Keeper, writer: _Writer, claim: threading.Event, sampling: SamplingParams, mode: Mode
) -> Iterator[str]:
    request = yield from _request(keeper, writer, claim, sampling, mode)
    if request is None:
        return
    try:
        shown, news = time.monotonic(), False
        while not writer.done:
            event = request.next_event(timeout=UPDATE_SECONDS if news else _POLL)
            if claim.is_set():
                request.cancel()
            if event is not None:
                writer.take(event)
                news = True
            elif request.finished:
                break
            now = time.monotonic()
            if now - shown >= (UPDATE_SECONDS if news else _QUIET):
                shown, news = now, False
                yield writer.waiting
    finally:
        if not request.finished:
            request.cancel()


def _request(
    keeper: Keeper, writer: _Writer, claim: threading.Event, sampling: SamplingParams, mode: Mode
) -> Generator[str, None, Any]:
    """Hand the question to the engine as soon as what was cancelled has let go of it; None if it was stopped first."""
    from engine import Turn

    history = tuple(Turn(question, answer) for question, answer in writer.history())
    until = time.monotonic() + _HANDOVER
    while not claim.is_set():
        try:
            return keeper.engine.ask(writer.question, history=history, sampling=sampling, mode=mode)
        except Busy:
            if time.monotonic() > until:
                raise
        yield writer.waiting
        time.sleep(_POLL)
    return None


class _Writer:
    """Writes one exchange down, event by event."""

    def __init__(self, keeper: Keeper, chat: str, question: str, position: int) -> None:
        self.question = question
        self.done = False
        self.waiting = "Reading the question…"
        self._keeper = keeper
        self._chat = chat
        self._position = position
        self._exchange = Exchange(question)
        keeper.show(pace=())

    def history(self) -> tuple[tuple[str, str], ...]:
        chat = self._keeper.chats.get(self._chat)
        return chat.before(self._position) if chat else ()

    def take(self, event: Any) -> None:
        if isinstance(event, TextDelta):
            self._figures(event)
            self._write(answer=self._exchange.answer + event.text, figures=event.figures)
        elif isinstance(event, PagesScored):
            self._keeper.show(scores=event.scores)
        elif isinstance(event, AnswerStarted):
            self.waiting = "Writing…"
        elif isinstance(event, AnswerDone):
            self._figures(event)
            if event.page_scores:
                self._keeper.show(scores=event.page_scores)
            self._write(answer=event.answer, figures=event.figures, stopped=event.stop_reason)
            self.done = True
        elif isinstance(event, Failed):
            self.fail(Trouble(event.cause, event.remedy))
            self.done = True

    def fail(self, trouble: Trouble) -> None:
        self._write(trouble=trouble, stopped=StopReason.CANCELLED)

    def close(self) -> None:
        """Whatever ended it, the exchange does not stay open."""
        if self._exchange.stopped is None:
            self._write(stopped=StopReason.CANCELLED)

    def _figures(self, event: TextDelta | AnswerDone) -> None:
        pace = presentation.longer_pace(self._keeper.desk.pace, event, self._exchange.figures)
        self._keeper.show(figures=event.figures, pace=pace)

    def _write(self, **changes: Any) -> None:
        self._exchange = replace(self._exchange, **changes)
        self._keeper.chats.update(self._chat, self._position, self._exchange)
