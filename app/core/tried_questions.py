"""Finds questions that the loaded model can answer, by asking the model before the questions are suggested to the user.

Used for models whose card lists refusals (``Abilities.refusals``), because nobody can predict which phrases such a
small model finds. When the book has been read, ``Trial`` asks questions in its own thread while the chat is empty. It
cancels its question when the user wants to ask. Questions are tried until ``WANTED`` answers quote the book. If a
question asks for a phrase, the answer must quote this phrase. The page shows the questions without the answers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from app.core import speed
from app.core.abilities import Abilities
from app.core.open_book import Stage
from app.core.state import AppState
from app.core.suggestions import phrase_of
from app.trust.quoted import check_answer
from engine import Question
from engine.config import SamplingParams
from engine.document import Document
from engine.errors import Busy, TrifoldError
from engine.events import AnswerDone, StopReason

logger = logging.getLogger(__name__)

WANTED = 3
"""Number of questions to find."""
MOST_TRIES = 9
"""Maximum number of questions that are tried for one document with one model."""
_MOST_TOKENS = 128  # maximum tokens of an answer
# maximum seconds of one wait for an event, after which it is looked up whether the engine is needed for other work
_POLL = 0.05

Candidates = Callable[[], Sequence[str]]
"""Returns the questions to try, in order."""


@dataclass
class _Tried:
    """What was tried of one document with one model. ``candidates``: questions that are still to be tried; None before
    the first one. ``quoting``: questions whose answers quote the book word for word. ``fair``: questions whose answers
    quote nothing. ``answers``: the answers so far, without refusals and repetitions. ``is_over``: whether no more
    questions will be tried.
    """

    document: Document
    model: str
    candidates: list[str] | None = None
    quoting: list[str] = field(default_factory=list)
    fair: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    is_over: bool = False

    @property
    def offered(self) -> list[str]:
        """The questions to show, at most ``WANTED``. Those in ``quoting`` come first; those in ``fair`` fill the
        places that are left when all have been tried.
        """
        return (self.quoting + self.fair if self.is_over else self.quoting)[:WANTED]


class TriedQuestions:
    """Tries which questions the loaded model can answer.

    Args:
        state: the open book and the engine.
    """

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._tried: _Tried | None = None
        self._running = False

    def passed(self, document: Document, model: str, card: Abilities, candidates: Candidates) -> list[str]:
        """Return the questions that can be shown now, without waiting. If the engine is free, try more questions in a
        thread.

        Args:
            model: the model's folder.
            card: the model's abilities.
            candidates: makes the questions to try. It is called once for each document and model, in the thread that
                tries the questions.
        """
        with self._lock:
            tried = self._tried
            if tried is None or tried.document is not document or tried.model != model:
                tried = self._tried = _Tried(document, model)
            if not tried.is_over and not self._running and self._is_free(tried):
                self._running = True
                work = (tried, card, candidates)
                threading.Thread(target=self._run, args=work, name="trifold-tried", daemon=True).start()
            return tried.offered

    def _is_free(self, tried: _Tried) -> bool:
        """Whether a question may be tried: the user asks nothing, the tried model and document are loaded and read,
        and the chat is empty.
        """
        current, chat, model = self._state.current, self._state.chat, self._state.engine.status().model
        here = current.stage is Stage.READY and current.document is tried.document
        same = model is not None and str(model.path) == tried.model
        return here and same and not current.asking and chat is not None and not chat.exchanges

    def _run(self, tried: _Tried, card: Abilities, candidates: Candidates) -> None:
        try:
            if tried.candidates is None:
                tried.candidates = list(candidates()[:MOST_TRIES])
            while tried.candidates and len(tried.quoting) < WANTED:
                if not self._try(tried, card, tried.candidates[0]):
                    return
                del tried.candidates[0]
            tried.is_over = True
        except TrifoldError as error:
            tried.is_over = True
            logger.info("no more questions are tried: %s", error)
        except Exception:  # an error in this thread reaches no caller, so it is logged
            tried.is_over = True
            logger.exception("trying questions failed")
        finally:
            self._running = False

    def _try(self, tried: _Tried, card: Abilities, question: str) -> bool:
        """Ask one question, and judge its answer. Return False if the engine was needed for other work before the
        answer ended.

        Raises:
            TrifoldError: the engine cannot answer.
        """
        if not self._is_free(tried):
            return False
        try:
            request = self._state.engine.ask(Question(question, sampling=SamplingParams(max_tokens=_MOST_TOKENS)))
        except Busy:  # the engine serves another request; the next look tries again
            return False
        try:
            while not request.finished:
                if not self._is_free(tried):
                    return False
                event = request.next_event(timeout=_POLL)
                if isinstance(event, AnswerDone):
                    self._judge(tried, card, question, event)
        finally:
            request.cancel()
        return True

    def _judge(self, tried: _Tried, card: Abilities, question: str, done: AnswerDone) -> None:
        quoted = check_answer(self._state.citation_finder.index_of(tried.document), done.text)
        circles = done.stop_reason is StopReason.LOOP
        refused = card.refuses(done.text)
        if circles or speed.uncounted(done.text, tried.answers, refused=refused):
            return
        tried.answers.append(done.text)
        if quoted and all(quotation.verified for quotation in quoted):
            # another passage of the book is no answer to a question for a phrase
            if phrase_of(question) in " ".join(done.text.split()):
                tried.quoting.append(question)
        elif not quoted and not card.only_quotes and done.text.strip():
            tried.fair.append(question)
