"""Runs the engine thread: one session, a queue of requests in, typed events out.

``EngineLike`` is the type that an app uses: this machine's ``Engine``, a server elsewhere, or a proxy of either.
``ask`` and ``read`` return a ``Request`` at once. Only the engine thread touches models and caches. An accepted request
ends with one final event (``BookRead`` or ``AnswerDone``) or with one ``TrifoldError``, even if the engine is closed
before the request is served. The error is raised in the thread that takes the request's events. The engine thread goes
on after every error but one: if a GPU no longer computes for this process, the engine refuses all further requests.

To stop a request, set its stop flag, a ``threading.Event`` that the caller may provide. The session checks this flag
whenever it has yielded. If the flag is set, the session ends its work and yields the final event as usual.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, cast
from weakref import ref

from engine import foreign
from engine.config import KV_NOTES, EngineConfig
from engine.document import Document, Reading
from engine.errors import Busy, Closed, EngineError, ResourceError, TrifoldError, is_out_of_memory
from engine.events import (
    AnswerDone,
    BookInfo,
    BookRead,
    Event,
    ModelInfo,
    ReadingProgress,
    State,
    Status,
)
from engine.prompt import Question
from engine.threads import limit_instructions, sleep_while_waiting

if TYPE_CHECKING:
    from engine.plan.memory_budget import BookFit
    from engine.session import Session

__all__ = [
    "HANDOVER_S",
    "Admission",
    "Engine",
    "EngineLike",
    "Final",
    "Request",
    "describe",
    "prepare",
]

logger = logging.getLogger(__name__)

Work = Callable[["Session", threading.Event], Iterator[Event]]
"""A function that serves a request on a session and yields its events. The second argument stops it once it is set."""

FINAL = (BookRead, AnswerDone)
"""Kinds of events that end a request."""

Final = TypeVar("Final", BookRead, AnswerDone)

HANDOVER_S = 20.0
"""Maximum seconds until a cancelled request has released the engine. The longest wait is for a block of prefill on a
slow machine.
"""

_ASIDE: Literal["aside"] = "aside"  # wakes the thread for a question about an excerpt


@dataclass(frozen=True)
class _Forget:
    """Asks the thread to forget a conversation, unless another one has replaced it by then."""

    conversation: ref[object]
    """Only a reference, so that its memory is free when the heap is trimmed, and not kept until the next request."""


_ENDING_S = 30.0  # maximum seconds that the thread may take to end
_STEP_S = 0.5  # maximum seconds of a single wait for an event
_LOOK_S = 0.05  # seconds between two checks whether a waiting request has been cancelled


class EngineLike(Protocol):
    """The interface of an engine, as an app uses it. ``wait_ready``, ``measure``, ``finish_saving`` and ``close`` may
    block. ``read`` and ``ask`` block only if their ``wait`` is above 0.
    """

    @property
    def config(self) -> EngineConfig | None:
        """The engine's configuration; None if the model runs on another machine."""

    def status(self) -> Status:
        """A snapshot of the engine. Never blocks."""

    def wait_ready(self, timeout: float | None = None) -> Status:
        """Wait until the models are loaded.

        Raises:
            TrifoldError: the models could not be loaded.
        """

    def measure(self, document: Document) -> BookFit:
        """Count a book's tokens and say whether it fits. Waits for the models; runs in the caller's thread."""

    def read(self, reading: Reading | Document, *, cancel: threading.Event | None = None) -> Request[BookRead]:
        """Begin to read a book, which replaces the open one.

        Args:
            reading: a ``Reading``, or only its document.
            cancel: stops the request once it is set, also while it waits.

        Raises:
            Busy: another request is still being served after the record's ``wait`` seconds.
            Closed: the engine has been closed.
            TrifoldError: raised where the request's events or its result are taken: the document has no text
                (``InputError``) or is too long (``ContextTooSmall``), or memory ran out (``ResourceError``).
        """

    def ask(self, question: Question | str, *, cancel: threading.Event | None = None) -> Request[AnswerDone]:
        """Begin to answer a question about the open book, after the earlier turns of its chat.

        Args:
            question: a ``Question``, or only its text.
            cancel: as in ``read``.

        Raises:
            Busy, Closed: as in ``read``.
        """

    def forget_book(self) -> None:
        """Forget the open book after the current request, and give its memory back. Returns at once."""

    def finish_saving(self) -> str:
        """Wait until the book is saved. If saving failed, return a sentence about it, otherwise ""."""

    def close(self) -> None:
        """Stop the current request and end the engine."""


class Request(Generic[Final]):
    """A request to an engine. Its events can be iterated over or polled, its ``result`` waited for, and it can be
    cancelled.

    A request runs to its end even if nobody takes its events, unless it is cancelled. Only one thread may take events.

    Args:
        state: the engine's state while it serves the request.
        cancel: stops the request once it is set; None makes a new ``threading.Event``.
    """

    def __init__(self, state: State, cancel: threading.Event | None = None) -> None:
        self.state = state
        self.stop = cancel or threading.Event()
        self._events: queue.SimpleQueue[Event | TrifoldError] = queue.SimpleQueue()
        self._result: Final | None = None
        self._error: TrifoldError | None = None

    def cancel(self) -> None:
        """Ask the engine to stop. The final event follows, usually within a second (at most ``HANDOVER_S``)."""
        self.stop.set()

    @property
    def cancelled(self) -> bool:
        return self.stop.is_set()

    @property
    def finished(self) -> bool:
        """Whether the final event, or the error in its place, has been taken."""
        return self._result is not None or self._error is not None

    def put(self, event: Event) -> None:
        """Deliver an event. Called by the engine."""
        self._events.put(event)

    def fail(self, error: TrifoldError) -> None:
        """End the request with an error in place of a final event. Called by the engine."""
        self._events.put(error)

    def next_event(self, timeout: float | None = None) -> Event | None:
        """The next event, or None if none came within ``timeout`` seconds or the request is finished.

        Raises:
            TrifoldError: the request failed; the engine can serve further requests.
        """
        if self.finished:
            return None
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(event, TrifoldError):
            self._error = event
            raise event
        if isinstance(event, FINAL):
            self._result = cast(Final, event)
        return event

    def __iter__(self) -> Iterator[Event]:
        """Events up to the final one. Raises as ``next_event`` does. Leaving the loop early cancels the work."""
        try:
            while not self.finished:
                # Waits in short steps, because on Windows a long wait would not notice Ctrl-C.
                if (event := self.next_event(_STEP_S)) is not None:
                    yield event
        finally:
            if not self.finished:
                self.cancel()

    def result(self, timeout: float | None = None) -> Final:
        """Wait for the final event: ``BookRead`` of a reading, ``AnswerDone`` of a question. Earlier events are
        skipped.

        A cancelled request has a result too, which says how far it came.

        Args:
            timeout: seconds to wait; the request continues afterwards.

        Raises:
            TrifoldError: the request failed.
            TimeoutError: the request is not finished yet.
        """
        until = time.monotonic() + timeout if timeout is not None else None
        while self._result is None:
            if self._error is not None:
                raise self._error
            left = until - time.monotonic() if until is not None else _STEP_S
            if left <= 0:
                raise TimeoutError(f"The request was not finished within {timeout} s.")
            try:
                self.next_event(min(left, _STEP_S))
            except KeyboardInterrupt:
                self.cancel()
                raise
        return self._result


class Admission:
    """Admits one request at a time. Another request may wait until the current request has ended.

    Args:
        reading: words for the ``Busy`` error if the current request reads a book.
    """

    def __init__(self, reading: str = "a book is being read") -> None:
        self._reading = reading
        self._changed = threading.Condition()
        self._current: Request[Any] | None = None
        self._refusal: TrifoldError | None = None

    def admit(self, request: Request[Any], wait: float) -> None:
        """Make a request the current one, within ``wait`` seconds.

        Raises:
            Busy: another request has not ended within ``wait`` seconds, or ``request`` was cancelled while it waited.
            TrifoldError: the error that ``refuse`` was given.
        """
        until = time.monotonic() + wait
        with self._changed:
            while self._current is not None and self._refusal is None and not request.cancelled:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, _LOOK_S))
            if self._refusal is not None:
                raise self._refusal
            if self._current is not None:
                doing = self._reading if self._current.state == "reading" else "a question is being answered"
                raise Busy(f"One thing at a time: {doing}.", "Wait for it to end, or stop it.")
            self._current = request

    def end(self) -> None:
        """End the current request, so that another request can be admitted."""
        with self._changed:
            self._current = None
            self._changed.notify_all()

    def refuse(self, error: TrifoldError) -> None:
        """Cancel the current request. Refuse waiting and further requests with ``error``."""
        with self._changed:
            self._refusal = error
            if self._current is not None:
                self._current.cancel()
            self._changed.notify_all()


class Engine:
    """Models, caches and the open book on their own thread. Implements ``EngineLike``, which documents the methods.

    The constructor returns at once; the thread loads the models.

    Args:
        config: names the models and how they decode.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self._inbox: queue.SimpleQueue[tuple[Request[Any], Work] | _Forget | Literal["aside"] | None]
        self._inbox = queue.SimpleQueue()
        self._asides: queue.SimpleQueue[tuple[Request[Any], Work]] = queue.SimpleQueue()
        self._admission, self._aside_admission = Admission(), Admission()
        self._handing = threading.Lock()
        # Set while the lock ``_handing`` is held. Once True, no more requests are handed to the thread.
        self._closed = False
        self._session: Session | None = None
        self._failure: TrifoldError | None = None
        self._status = Status("loading", "The model is being loaded.")
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trifold-engine", daemon=True)
        self._thread.start()

    # What the app calls --------------------------------------------------------------------------------------

    def status(self) -> Status:
        return self._status

    def wait_ready(self, timeout: float | None = None) -> Status:
        self._ready.wait(timeout)
        if self._failure is not None:
            raise self._failure
        return self._status

    def measure(self, document: Document) -> BookFit:
        return self._loaded().measure(document)

    def read(self, reading: Reading | Document, *, cancel: threading.Event | None = None) -> Request[BookRead]:
        wanted = Reading.of(reading)

        def work(session: Session, stop: threading.Event) -> Iterator[Event]:
            return session.read(wanted, cancel=stop)

        return self._submit(Request[BookRead]("reading", cancel), work, wanted.wait)

    def ask(self, question: Question | str, *, cancel: threading.Event | None = None) -> Request[AnswerDone]:
        asked = Question.of(question)

        if asked.excerpt is not None:
            return self._submit_aside(asked, cancel)

        def work(session: Session, stop: threading.Event) -> Iterator[Event]:
            return session.ask(asked, cancel=stop)

        return self._submit(Request[AnswerDone]("answering", cancel), work, asked.wait)

    def forget_book(self) -> None:
        conversation = self._session.conversation if self._session is not None else None
        with self._handing:
            if conversation is not None and not self._closed:
                self._inbox.put(_Forget(ref(conversation)))

    def finish_saving(self) -> str:
        return self._loaded().persistence.finish()

    def close(self) -> None:
        """Stop the current request and end the thread."""
        self._refuse_all()
        self._inbox.put(None)
        self._thread.join(timeout=_ENDING_S)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _loaded(self) -> Session:
        self.wait_ready()
        if self._session is None:
            raise Closed("The engine has been closed.")
        return self._session

    def _submit(self, request: Request[Final], work: Work, wait: float) -> Request[Final]:
        self._admission.admit(request, wait)
        with self._handing:
            if not self._closed:
                self._inbox.put((request, work))
                return request
        self._admission.end()
        raise _closed()

    def _submit_aside(self, asked: Question, cancel: threading.Event | None) -> Request[AnswerDone]:
        """Hand over a question about an excerpt. It is served at once, between two blocks of a reading."""
        request = Request[AnswerDone]("answering", cancel)
        self._aside_admission.admit(request, asked.wait)

        def work(session: Session, stop: threading.Event) -> Iterator[Event]:
            return session.ask_aside(asked, cancel=stop)

        with self._handing:
            if not self._closed:
                self._asides.put((request, work))
                self._inbox.put(_ASIDE)
                return request
        self._aside_admission.end()
        raise _closed()

    def _refuse_all(self) -> None:
        """Hand no further request to the thread, and cancel the current request."""
        with self._handing:
            self._closed = True
        self._admission.refuse(_closed())
        self._aside_admission.refuse(_closed())

    # The thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            try:
                self._load()
            finally:
                self._ready.set()
            while (handed := self._inbox.get()) is not None:
                self._serve_asides()
                if isinstance(handed, _Forget):
                    self._forget(handed)
                elif handed != _ASIDE:
                    self._serve(*handed, self._admission)
                # Also after a question about an excerpt: one that was served during a reading has left its wake-up
                # call in the inbox, which ended the work that followed the reading.
                self._work_ahead()
            if self._session is not None:
                self._session.close()
        finally:
            self._refuse_all()
            while not self._inbox.empty():  # fail every waiting request, however this thread ended
                if isinstance(left := self._inbox.get(), tuple):
                    left[0].fail(_closed())
            while not self._asides.empty():
                self._asides.get()[0].fail(_closed())
            self._session = None
            self._status = Status("closed", "The engine has been closed.")

    def _load(self) -> None:
        try:
            sleep_while_waiting()
            limit_instructions()
            # Try the tokenizers in child processes while this thread imports torch and transformers, which takes
            # longer.
            foreign.begin(self.config.model, self.config.draft, self.config.tried_folder)
            from engine.session import Session

            self._session = Session.load(self.config)
            self._status = Status("idle", "Ready for a book.", model=describe(self._session, self.config))
        except Exception as error:  # any error must be shown to the person
            logger.exception("loading the models failed")
            self._fail(_for_people(error, "loading the model"))

    def _fail(self, error: TrifoldError) -> None:
        """Give up the session, and refuse all further requests with ``error``."""
        self._session, self._failure = None, error
        self._status = Status("failed", str(error))
        self._admission.refuse(error)
        self._aside_admission.refuse(error)

    def _serve_asides(self) -> None:
        """Answer the questions about excerpts that wait."""
        while not self._asides.empty():
            before = self._status
            self._serve(*self._asides.get(), self._aside_admission)
            self._status = replace(self._status, state=before.state, detail=before.detail)

    def _serve(self, request: Request[Any], work: Work, admission: Admission) -> None:
        final: Event | None = None
        error: TrifoldError = EngineError("The engine ended this without a result.", "Try again.")
        try:
            if self._session is None:
                raise self._failure or Closed("The engine has been closed.")
            self._status = replace(self._status, state=request.state, detail="")
            for event in work(self._session, request.stop):
                if isinstance(event, ReadingProgress):
                    self._status = replace(self._status, book=self._book())
                if isinstance(event, FINAL):
                    final = event
                else:
                    request.put(event)
                if request.state == "reading":
                    self._serve_asides()
        except Exception as caught:  # an error of a request must not end the thread
            if not isinstance(caught, TrifoldError):
                logger.exception("a request failed")
            final, error = None, _for_people(caught, f"while {request.state}")
            if isinstance(error, Closed) and self._session is not None:
                self._fail(error)
        finally:
            # The next request may come as soon as the final event is seen, so the engine is released before the event
            # is sent.
            if self._session is not None:
                self._status = replace(self._status, state="idle", book=self._book())
            admission.end()
            if final is not None:
                request.put(final)
            else:
                request.fail(error)

    def _work_ahead(self) -> None:
        """Do what would delay the next answer, until a request arrives. No error ends the thread, because answers are
        right without this work.
        """
        try:
            for _ in () if self._session is None else self._session.work_ahead():
                if not self._inbox.empty():
                    break
        except Exception as caught:
            logger.exception("work for the next answer failed")
            if isinstance(error := _for_people(caught, "while answering"), Closed):
                self._fail(error)

    def _forget(self, wanted: _Forget) -> None:
        """Forget a conversation. A request that comes meanwhile goes first, and the conversation then stays."""
        if self._session is None or self._session.conversation is not wanted.conversation():
            return
        try:
            for _ in self._session.forget_book():
                if not self._inbox.empty():
                    return
            self._status = replace(self._status, book=None)
        except Exception as caught:  # the next book is read into a new cache
            logger.exception("the memory of a book could not be given back")
            if isinstance(error := _for_people(caught, "while idle"), Closed):
                self._fail(error)

    def _book(self) -> BookInfo | None:
        conversation = self._session.conversation if self._session else None
        if conversation is None:
            return None
        pages = len(conversation.document.pages)
        return BookInfo(
            conversation.document.title, conversation.read, len(conversation.book.ids), conversation.pages_read, pages
        )


def _closed() -> Closed:
    return Closed("The engine has been closed.", "Start Trifold again.")


def _for_people(error: Exception, doing: str) -> TrifoldError:
    """Turn any exception into an error with words for the person."""
    if isinstance(error, TrifoldError):
        return error
    if is_out_of_memory(error):
        return ResourceError(
            f"The memory of this machine ran out ({doing}).", "Close other programs, or read fewer pages."
        )
    if isinstance(error, RuntimeError) and not _gpus_answer():
        return Closed(f"The GPU has stopped computing for this program ({doing}).", "Start Trifold again.")
    return EngineError(
        f"Something went wrong ({doing}): {type(error).__name__}.", "Try again; the log has the details."
    )


def _gpus_answer() -> bool:
    from engine.devices import all_answer  # imported here, because packages may be missing

    return all_answer()


def prepare() -> None:
    """Import everything that loading a model needs, before the model is chosen."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer  # noqa: F401 - importing a name loads it

    from engine.session import Session  # noqa: F401


def describe(session: Session, config: EngineConfig) -> ModelInfo:
    from engine.plan.planner import devices_in_words, weights_note  # imported here, because packages may be missing

    target, draft = session.target, session.draft
    thinking = session.tokenizer.format_for("").thinking
    return ModelInfo(
        name=f"{target.name} (8-bit KV)" if session.full.shape.quantized else target.name,
        path=config.model,
        parameters=target.parameters,
        architecture=target.config.model_type,
        context_limit=target.window,
        dtype=str(target.dtype).removeprefix("torch."),
        device=devices_in_words(target.device, target.split, target.layers_in_host, drafts=draft is not None),
        vocabulary=target.vocabulary,
        kv_bytes_per_token=session.full.shape.bytes_per_token,
        draft_name=draft.name if draft else None,
        draft_parameters=draft.parameters if draft else None,
        kv_note=KV_NOTES[config.kv],
        weights_note=weights_note(session.config, target.config, target.device),
        middle_note=session.hierarchy.middle_note,
        sampling=target.advised(thinking, think=False),
        sampling_after_thought=target.advised(thinking, think=True),
        can_quote=session.tokenizer.bytes_of is not None,
        thinking=thinking.sentence if thinking else "",
    )
