"""One question from the moment it is sent to the last word of its answer.

Owns the waiting, the draining of the engine's events at a pace that a page can follow, and what is written down
when the person stops or the tab is closed. Knows no Gradio: a handler iterates over it and draws.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from app.chats import Chat, Trouble
from app.pages import Notes
from app.ui import presentation, wording
from app.ui.desk import Desk, Keeper, Stage
from app.ui.rhythm import rhythm_of
from engine.config import Mode, SamplingParams
from engine.errors import Busy, TrifoldError
from engine.events import AnswerDone, AnswerStarted, Failed, PagesScored, StopReason, TextDelta

logger = logging.getLogger(__name__)

# Whatever runs beside the engine in this process takes the interpreter from it, so what it says is let gather and
# taken in ten times a second. It is laid out anew more seldom (rhythm); in between the live stream brings the newest
# words.
UPDATE_SECONDS = 0.1
_POLL = 0.1  # seconds that one look for an event may take: a stop is noticed that soon
_HANDOVER = 10.0  # seconds within which a cancelled request has surely let go of the engine
_WORTH_WAITING = 8.0  # seconds of reading that a question waits for rather than be answered from a part of the book

_ON_THE_WAY = (Stage.OPENING, Stage.WAITING, Stage.READING)


def ask(
    keeper: Keeper, question: str, sampling: SamplingParams, mode: Mode, position: int | None = None
) -> Iterator[str]:
    """Ask, and yield whenever there is something new to draw: a word about what is being waited for, or "".

    Args:
        position: put the question in the place of an earlier one, which stays as another version.

    Raises:
        Busy: another question is being answered.
        TrifoldError: there is no book to ask about.
    """

    def begin(chat: Chat) -> _Writer:
        return _Writer(keeper, chat.id, keeper.chats.ask(chat.id, question, position))

    return _run(keeper, begin, sampling, mode)


def go_on(keeper: Keeper, sampling: SamplingParams, mode: Mode, position: int) -> Iterator[str]:
    """Continue the answer at ``position``, which was cut; yields and raises as ``ask``."""

    def begin(chat: Chat) -> _Writer:
        keeper.chats.resume(chat.id, position)
        return _Writer(keeper, chat.id, position)

    return _run(keeper, begin, sampling, mode)


def _run(keeper: Keeper, begin: Callable[[Chat], _Writer], sampling: SamplingParams, mode: Mode) -> Iterator[str]:
    claim = keeper.claim()
    try:
        chat = keeper.chat
        if chat is None:
            raise TrifoldError("There is no book on the desk yet.", "Open one first.")
        writer = begin(chat)
        yield "Thinking…"
        try:
            yield from _wait(keeper, claim)
            writer.begin()
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
    """A question may be sent while the book is on its way: it waits, or the reading waits for it.

    Raises:
        TrifoldError: the book did not arrive.
    """
    while not keeper.desk.paused and keeper.desk.stage in _ON_THE_WAY and not claim.is_set():
        yield _waiting_words(keeper.desk)
        if _can_be_answered_now(keeper.desk):
            keeper.pause_reading()
        time.sleep(_POLL)
    desk = keeper.desk
    if desk.stage is not Stage.READY and not desk.paused and not claim.is_set():
        trouble = desk.trouble or Trouble("There is no book on the desk yet.", "Open one first.")
        raise TrifoldError(trouble.cause, trouble.remedy)


def _can_be_answered_now(desk: Desk) -> bool:
    """Whether there is a page to answer from, and so much left to read that waiting for it would be dull."""
    progress = desk.progress
    return progress is not None and progress.pages_done > 0 and progress.seconds_left > _WORTH_WAITING


def _waiting_words(desk: Desk) -> str:
    if desk.stage is not Stage.READING:
        return "Your question is asked as soon as the book has been opened."
    if _can_be_answered_now(desk) and desk.progress and desk.document:
        read = wording.counted(desk.progress.pages_done, desk.document.unit)
        return f"Read {read} so far: your question is answered from these, then the reading goes on."
    return "Your question is asked as soon as the book has been read."


def _answer(
    keeper: Keeper, writer: _Writer, claim: threading.Event, sampling: SamplingParams, mode: Mode
) -> Iterator[str]:
    request = yield from _request(keeper, writer, claim, sampling, mode)
    if request is None:
        return
    try:
        rhythm = rhythm_of(keeper.engine.status())
        drawn, shown = time.monotonic(), writer.phase
        while not writer.done and not request.finished:
            writer.take(_news(request, claim, gather=bool(writer.written)))
            keeper.chats.save_in_time()
            now = time.monotonic()
            pause = rhythm.layout if writer.written else rhythm.silence
            if now - drawn >= (rhythm.settle if writer.phase != shown else pause):
                drawn, shown = now, writer.phase
                writer.cite()
                yield writer.waiting
    finally:
        if not request.finished:
            request.cancel()


def _news(request: Any, claim: threading.Event, gather: bool) -> list[Any]:
    """What the engine has said since the last look. ``gather``: let some gather first, unless it is to be stopped."""
    if gather and not claim.is_set():
        claim.wait(UPDATE_SECONDS)
    if claim.is_set():
        request.cancel()
    patience = _POLL if claim.is_set() or not gather else 0.0
    events = []
    while (event := request.next_event(timeout=patience)) is not None:
        events.append(event)
        patience = 0.0
    return events


def _request(
    keeper: Keeper, writer: _Writer, claim: threading.Event, sampling: SamplingParams, mode: Mode
) -> Generator[str, None, Any]:
    """Hand the question to the engine as soon as what was cancelled has let go of it; None if it was stopped first."""
    from engine import Turn

    history = tuple(Turn(question, answer) for question, answer in writer.history())
    until = time.monotonic() + _HANDOVER
    while not claim.is_set():
        try:
            how = {"begun": writer.begun, "chat": writer.chat}
            return keeper.engine.ask(writer.question, history=history, sampling=sampling, mode=mode, **how)
        except Busy:
            if time.monotonic() > until:
                raise
        yield writer.waiting
        time.sleep(_POLL)
    return None


class _Writer:
    """Writes one exchange down, event by event. ``begun`` is what there is of an answer that is continued."""

    def __init__(self, keeper: Keeper, chat: str, position: int) -> None:
        known = keeper.chats.get(chat)
        assert known is not None
        self._exchange = known.exchanges[position]
        self.question = self._exchange.question
        self.begun = self._exchange.answer
        self.done = False
        self.waiting = "Reading the question…"
        self._keeper = keeper
        self.chat = chat
        self._position = position
        self._stages = self._exchange.stages
        self._notes: Notes | None = None
        self._moved: dict[str, Any] = {}  # of the desk, by what has not been shown yet
        # Until the first token there are the figures of the answer before, so that nothing jumps.
        earlier = reversed(known.exchanges[: position + 1])
        keeper.show(pace=(), figures=next((turn.figures for turn in earlier if turn.figures), None))

    @property
    def written(self) -> str:
        """The answer so far."""
        return self._exchange.answer

    @property
    def phase(self) -> tuple[str, bool]:
        """What is shown at once when it changes: what is being waited for, and whether there is a first word."""
        return self.waiting, bool(self._exchange.answer)

    def history(self) -> tuple[tuple[str, str], ...]:
        chat = self._keeper.chats.get(self.chat)
        return chat.before(self._position) if chat else ()

    def begin(self) -> None:
        """The question is asked now, about what has been read by now."""
        read = self._keeper.desk.read
        self._exchange = replace(self._exchange, pages_read=read.pages_read if read and read.stopped else 0)

    def take(self, events: Sequence[Any]) -> None:
        """Take what the engine has said; written down and shown once."""
        if not events:
            return
        for event in events:
            self._take(event)
        self._keeper.show(**self._moved)
        self._moved = {}
        self._write(notes=self._notes.sketch() if self._notes else None)

    def cite(self) -> None:
        """Look up what the words so far cite."""
        if self._notes is not None and not self.done:
            self._write(notes=self._notes.record())

    def _take(self, event: Any) -> None:
        self._note(event)
        if isinstance(event, TextDelta):
            self._figures(event)
            self._add(answer=self._exchange.answer + event.text, figures=event.figures)
        elif isinstance(event, PagesScored):
            self._moved["scores"] = event.scores
        elif isinstance(event, AnswerStarted):
            self.waiting = "Writing…"
        elif isinstance(event, AnswerDone):
            self._figures(event)
            if event.page_scores:
                self._moved["scores"] = event.page_scores
            stages = self._stages + "".join(stage.value[0] for stage in event.stages)
            answer = self.begun + event.answer
            self._add(answer=answer, figures=event.figures, stopped=event.stop_reason, stages=stages)
            self.done = True
        elif isinstance(event, Failed):
            self.fail(Trouble(event.cause, event.remedy))
            self.done = True

    def fail(self, trouble: Trouble) -> None:
        self.cite()
        self._write(trouble=trouble, stopped=StopReason.CANCELLED)

    def close(self) -> None:
        """Whatever ended it, the exchange does not stay open."""
        if self._exchange.stopped is None:
            self.cite()
            self._write(stopped=StopReason.CANCELLED)

    def _note(self, event: Any) -> None:
        """What stands behind the words, as far as it is known."""
        if self._notes is None:
            document, before = self._keeper.desk.document, self._exchange.notes
            self._notes = self._keeper.note_taker.begin(document, self.begun, before)
        self._notes.take(event)

    def _figures(self, event: TextDelta | AnswerDone) -> None:
        pace = self._moved.get("pace", self._keeper.desk.pace)
        self._moved["pace"] = presentation.longer_pace(pace, event, self._exchange.figures)
        self._moved["figures"] = event.figures

    def _add(self, **changes: Any) -> None:
        self._exchange = replace(self._exchange, **changes)

    def _write(self, **changes: Any) -> None:
        self._add(**changes)
        self._keeper.chats.update(self.chat, self._position, self._exchange)
