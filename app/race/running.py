"""Runs a race on the engine: plain first, then hierarchically, greedy, each from the book and the question alone.

A short answer shows little: then further questions about the same book follow, until there is enough to look at.
Owns the thread and the state that the page shows. While it runs it holds the right to ask, so that nothing else is
decoded in between; whoever stops the answer stops the race.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.chats import Trouble
from app.race.lanes import Heat, Lane, Result
from app.race.verified import Verified
from app.ui import presentation
from app.ui.desk import Keeper, Stage
from engine.config import Mode, SamplingParams
from engine.errors import Busy, InputError, TrifoldError
from engine.events import Failed, PagesScored, StopReason, TextDelta

logger = logging.getLogger(__name__)

MOST_TOKENS = 192
ENOUGH_TOKENS = 96
"""Tokens of all answers together after which no further question is added."""

MOST_QUESTIONS = 4
LANES: tuple[Mode, Mode] = ("plain", "hierarchical")
_LONGEST_QUESTION = 4000
_POLL = 0.1
_HANDOVER = 10.0  # seconds within which a cancelled request has surely let go of the engine


@dataclass(frozen=True)
class State:
    """How far a race has come. ``heat``: which question; ``lane``: which run of it; ``tokens``: of that run so far.

    ``trouble``: why there is no result.
    """

    running: bool = False
    heat: int = 0
    lane: int = 0
    tokens: int = 0
    question: str = ""
    trouble: Trouble | None = None


class Race:
    """Args:
    keeper: keeps the desk and the engine.
    verified: remembers what the race has shown.
    further: questions about the book on the desk that a race may go on with.
    most_tokens: of each answer.
    """

    def __init__(
        self,
        keeper: Keeper,
        verified: Verified,
        further: Callable[[], Sequence[str]] = tuple,
        most_tokens: int = MOST_TOKENS,
    ) -> None:
        self._keeper = keeper
        self._verified = verified
        self._further = further
        self._most = most_tokens
        self._number = 0
        self.state = State()
        self.result: Result | None = None

    @property
    def possible(self) -> bool:
        """Whether the model that answers is on this machine: elsewhere nothing can be said about its decoding."""
        model = self._keeper.engine.status().model
        return model is not None and model.parameters > 0

    def start(self, question: str) -> None:
        """Begin a race. Returns at once.

        Args:
            question: the last one of the chat if empty.

        Raises:
            InputError: there is no question, or no book that has been read.
            Busy: something is being asked already.
        """
        chat = self._keeper.chat
        if not question.strip() and chat is not None and chat.exchanges:
            question = chat.exchanges[-1].question
        question = question.strip()[:_LONGEST_QUESTION]
        if not question:
            raise InputError("There is no question to race with.", "Type one first.")
        desk = self._keeper.desk
        if desk.stage is not Stage.READY or desk.book is None:
            raise InputError("The race needs a book that has been read.", "Open one, or wait until it has been read.")
        if not self.possible:
            raise InputError("The race needs a model on this machine.", "Choose one first.")
        claim = self._keeper.claim()
        self.state = State(running=True, question=question)
        questions = [question, *(other for other in self._further() if other != question)][:MOST_QUESTIONS]
        work = threading.Thread(
            target=self._run, args=(questions, desk.book.sha256, claim), name="trifold-race", daemon=True
        )
        work.start()

    def _run(self, questions: Sequence[str], book: str, claim: threading.Event) -> None:
        question = questions[0]
        try:
            heats = self._heats(questions, claim)
            self._number += 1
            self.result = Result(self._number, book, time.time(), heats)
            self._verified.note(self._keeper.engine.status().model, "race", self.result.same, self.result.tokens)
            self.state = State(question=question)
        except TrifoldError as error:
            self.state = State(question=question, trouble=Trouble(error.cause, error.remedy))
        except Exception:  # the page must say something whatever broke; the log keeps the trace
            logger.exception("a race failed")
            self.state = State(question=question, trouble=Trouble("Something broke in this race.", "Try it again."))
        finally:
            self._keeper.release(claim)

    def _heats(self, questions: Sequence[str], claim: threading.Event) -> tuple[Heat, ...]:
        """Question by question, so that a machine that grows slow slows both runs; the first difference ends it."""
        heats: list[Heat] = []
        for at, question in enumerate(questions):
            plain, fast = (self._lane(State(True, at, lane, 0, question), claim) for lane in range(len(LANES)))
            heats.append(Heat(question, plain, fast))
            if heats[-1].same < heats[-1].tokens or sum(heat.tokens for heat in heats) >= ENOUGH_TOKENS:
                break
        return tuple(heats)

    def _lane(self, state: State, claim: threading.Event) -> Lane:
        self.state, question = state, state.question
        lane = Lane(LANES[state.lane])
        request = self._request(lane.mode, question, claim)
        try:
            while not lane.done:
                event = request.next_event(timeout=_POLL)
                if claim.is_set():
                    raise TrifoldError("The race was stopped.", "Start it again when you like.")
                if isinstance(event, Failed):
                    raise TrifoldError(event.cause, event.remedy)
                if event is None and request.finished:
                    raise TrifoldError("The engine ended this run without a result.", "Try it again.")
                lane = self._shown(state, lane, event)
        finally:
            if not request.finished:
                request.cancel()
        if lane.stop_reason is StopReason.CANCELLED:
            raise TrifoldError("The race was stopped.", "Start it again when you like.")
        return lane

    def _shown(self, state: State, lane: Lane, event: object) -> Lane:
        """Take an event, and let the page's figures and its map move with it."""
        if isinstance(event, PagesScored):
            self._keeper.show(scores=event.scores)
        if isinstance(event, TextDelta):
            pace = presentation.longer_pace(self._keeper.desk.pace if lane.steps else (), event, lane.figures)
            self._keeper.show(figures=event.figures, pace=pace)
        lane = lane.take(event)
        self.state = replace(state, tokens=len(lane.token_ids))
        return lane

    def _request(self, mode: str, question: str, claim: threading.Event) -> Any:
        """Hand the question to the engine as soon as what was cancelled has let go of it."""
        sampling = SamplingParams(temperature=0.0, max_tokens=self._most)
        until = time.monotonic() + _HANDOVER
        while True:
            try:
                return self._keeper.engine.ask(question, history=(), sampling=sampling, mode=mode)
            except Busy:
                if claim.is_set() or time.monotonic() > until:
                    raise
                time.sleep(_POLL)
