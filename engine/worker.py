"""The engine thread: one session, a queue of requests in, typed events out.

``Engine`` is what an app holds. Its methods never block on the models: they hand a ``Request`` to the thread and
return. The thread is the only one that touches models and caches (counting a book's tokens touches neither). A
request ends with exactly one final event (``BookRead``, ``AnswerDone`` or ``Failed``); an exception becomes
``Failed`` and the thread lives on. Knows no page and no terminal.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.config import KV_NOTES, EngineConfig, Mode, SamplingParams
from engine.document import Document
from engine.errors import Closed, EngineError, TrifoldError
from engine.events import AnswerDone, Event, Failed, PagesScored, ReadingProgress, TextDelta
from engine.request import FINAL, Request, until_cancelled
from engine.status import BookInfo, ModelInfo, Status
from engine.threads import sleep_while_waiting

if TYPE_CHECKING:
    from engine.conversation import Turn
    from engine.fitting import Fit
    from engine.session import Session

_log = logging.getLogger(__name__)


class Engine:
    """Models, caches and the open book on a thread of their own. Returns at once; the thread loads the models.

    Args:
        config: what to load and how to decode.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self._inbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._current: Request | None = None
        self._session: Session | None = None
        self._failure: TrifoldError | None = None
        self._status = Status("loading", "The model is being loaded.")
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trifold-engine", daemon=True)
        self._thread.start()

    # What the app calls --------------------------------------------------------------------------------------

    def status(self) -> Status:
        """A snapshot. Never blocks."""
        return self._status

    def wait_ready(self, timeout: float | None = None) -> Status:
        """Wait until the models are loaded.

        Raises:
            TrifoldError: they could not be loaded.
        """
        self._ready.wait(timeout)
        if self._failure is not None:
            raise self._failure
        return self._status

    def measure(self, document: Document) -> Fit:
        """Count a book's tokens and say whether it fits. Waits for the models; runs in the caller's thread."""
        return self._loaded().measure(document)

    def read(self, document: Document, *, fit: bool = False, resume: bool = False) -> Request:
        """Begin to read a book; it replaces the open one. ``resume``: go on where its reading was stopped.

        Raises:
            Busy: something else is being read or answered.
            Closed: the engine has been closed.
        """
        return self._submit(Request("reading", lambda session: session.read(document, fit=fit, resume=resume)))

    def ask(
        self,
        question: str,
        history: Sequence[Turn] = (),
        sampling: SamplingParams | None = None,
        mode: Mode = "hierarchical",
        begun: str = "",
        chat: str = "",
    ) -> Request:
        """Begin to answer a question about the open book, after the earlier turns of its chat.

        Args:
            begun: the beginning of an answer that was cut; what is written goes on from there.
            chat: name under which its turns are kept on disk; without one they are not.

        Raises:
            Busy: something else is being read or answered.
            Closed: the engine has been closed.
        """
        turns = tuple(history)
        return self._submit(
            Request("answering", lambda session: session.ask(question, turns, sampling, mode, begun, chat))
        )

    def finish_saving(self) -> str:
        """Wait until the book that was read is kept on disk; a sentence if that went wrong."""
        return self._loaded().keeping.finish()

    def close(self) -> None:
        """Stop what runs and end the thread."""
        with self._lock:
            if self._current is not None:
                self._current.cancel()
        self._inbox.put(None)
        self._thread.join(timeout=30)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _loaded(self) -> Session:
        self.wait_ready()
        if self._session is None:
            raise Closed("The engine has been closed.")
        return self._session

    def _submit(self, request: Request) -> Request:
        with self._lock:
            if self._status.state == "closed":
                raise Closed("The engine has been closed.", "Start Trifold again.")
            if self._failure is not None:
                raise self._failure
            if self._current is not None:
                raise self._current.busy()
            self._current = request
        self._inbox.put(request)
        return request

    # The thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._load()
        finally:
            self._ready.set()
        while (request := self._inbox.get()) is not None:
            self._serve(request)
        if self._session is not None:
            self._session.close()
        self._session = None
        self._status = Status("closed", "The engine has been closed.")

    def _load(self) -> None:
        try:
            sleep_while_waiting()
            from engine.session import Session

            self._session = Session.load(self.config)
            self._status = Status("idle", "Ready for a book.", model=describe(self._session, self.config))
        except Exception as error:  # noqa: BLE001 - whatever it is, the person is told
            _log.exception("loading the models failed")
            self._failure = _for_people(error, "loading the model")
            self._status = Status("failed", str(self._failure))

    def _serve(self, request: Request) -> None:
        final: Event | None = None
        try:
            if self._session is None:
                raise self._failure or Closed("The engine has been closed.")
            self._status = replace(self._status, state=request.state, detail="", page_scores=())
            for event in until_cancelled(request.work(self._session), request):
                self._note(event)
                if isinstance(event, FINAL):
                    final = event
                else:
                    request.put(event)
        except Exception as error:  # noqa: BLE001 - the thread outlives any request
            if not isinstance(error, TrifoldError):
                _log.exception("a request failed")
            known = _for_people(error, f"while {request.state}")
            final = Failed(known.cause, known.remedy, type(known).__name__)
        # The next request may come the moment the final event is seen, so the way is cleared first.
        self._status = replace(self._status, state="idle" if self._session else "failed", book=self._book())
        with self._lock:
            self._current = None
        request.put(final or Failed("The engine ended this without a result.", "Try again.", "EngineError"))

    def _note(self, event: Event) -> None:
        if isinstance(event, TextDelta | AnswerDone):
            self._status = replace(self._status, figures=event.figures)
        elif isinstance(event, PagesScored):
            self._status = replace(self._status, page_scores=event.scores)
        elif isinstance(event, ReadingProgress):
            self._status = replace(self._status, book=self._book())

    def _book(self) -> BookInfo | None:
        talk = self._session.conversation if self._session else None
        if talk is None:
            return None
        pages = len(talk.document.pages)
        return BookInfo(talk.document.title, talk.read, len(talk.book.ids), talk.pages_read, pages)


def _for_people(error: Exception, doing: str) -> TrifoldError:
    """An error with words for the person, whatever went wrong."""
    if isinstance(error, TrifoldError):
        return error
    text = str(error).lower()
    if isinstance(error, MemoryError) or "out of memory" in text or "not enough memory" in text:
        from engine.errors import ResourceError

        return ResourceError(
            f"The memory of this machine ran out ({doing}).", "Close other programs, or read fewer pages."
        )
    return EngineError(
        f"Something went wrong ({doing}): {type(error).__name__}.", "Try again; the log has the details."
    )


def describe(session: Session, config: EngineConfig) -> ModelInfo:
    target, draft = session.target, session.draft
    return ModelInfo(
        name=f"{target.name} (8-bit KV)" if session.full.shape.rounded else target.name,
        path=config.model,
        parameters=target.parameters,
        architecture=target.config.model_type,
        context_limit=target.window,
        dtype=str(target.dtype).removeprefix("torch."),
        device=str(target.device),
        vocabulary=target.vocabulary,
        kv_bytes_per_token=session.full.shape.bytes_per_token,
        draft_name=draft.name if draft else None,
        draft_parameters=draft.parameters if draft else None,
        kv_note=KV_NOTES[config.kv],
    )
