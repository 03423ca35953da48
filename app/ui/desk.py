"""What lies on the desk: the one book that is open, how far it has been read, and whose question is being answered.

Owns the state that every tab shows, as one frozen record that is replaced under a lock, and the thread that opens
and reads a book. Does not know how any of it is drawn. The program has one engine and one person, so it has one desk;
tabs are windows on it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import PurePath
from typing import Any

from app.books import Book, Books
from app.chats import Chat, Chats, Trouble
from engine.document import Document
from engine.errors import Busy, ContextTooSmall, PasswordNeeded, TrifoldError
from engine.events import BookRead, Failed, Figures, ReadingProgress

logger = logging.getLogger(__name__)

_PATIENCE = 0.1  # seconds between two looks at something that another thread changes
_HANDOVER = 20.0  # seconds within which a cancelled request has surely let go of the engine


class Stage(str, Enum):
    """How far the book on the desk has come."""

    EMPTY = "empty"  # there is none
    OPENING = "opening"  # its file is being taken apart
    LOCKED = "locked"  # it needs a password
    CHOOSING = "choosing"  # it does not fit: the person chooses pages
    WAITING = "waiting"  # it waits for the model to be loaded
    READING = "reading"  # the model reads it
    READY = "ready"  # questions are answered
    FAILED = "failed"  # see ``trouble``


class Action(str, Enum):
    """The button that mends a trouble."""

    OPEN_AGAIN = "open-again"
    READ_AGAIN = "read-again"
    OTHER_BOOK = "other-book"
    PASSWORD = "password"
    NONE = ""


@dataclass(frozen=True)
class Desk:
    """A snapshot. ``fit`` is what the engine measured; ``whole`` is the book before pages were chosen."""

    stage: Stage = Stage.EMPTY
    book: Book | None = None
    whole: Document | None = None
    document: Document | None = None
    fit: Any = None
    progress: ReadingProgress | None = None
    read: BookRead | None = None
    trouble: Trouble | None = None
    action: Action = Action.NONE
    chat: str = ""
    asking: bool = False
    figures: Figures | None = None
    scores: tuple[float, ...] = field(default=())
    pace: tuple[float, ...] = field(default=())


Reader = Callable[..., Document]


class Keeper:
    """Changes what lies on the desk. Every method returns at once and may be called from any thread.

    Args:
        engine: the engine, as ``engine.Engine``.
        books: where files are kept.
        chats: where questions and answers are kept.
        read_document: turns a file into a document; raises ``DocumentError``.
    """

    def __init__(self, engine: Any, books: Books, chats: Chats, read_document: Reader) -> None:
        self.engine = engine
        self.books = books
        self.chats = chats
        self._read_document = read_document
        self._desk = Desk()
        self._lock = threading.RLock()
        self._job = _Job()
        self._asking: threading.Event | None = None

    @property
    def desk(self) -> Desk:
        return self._desk

    @property
    def chat(self) -> Chat | None:
        return self.chats.get(self._desk.chat)

    def open(self, book: Book, password: str | None = None) -> None:
        """Put another book on the desk and read it."""
        job = self._take_over(stage=Stage.OPENING, book=book)
        self._start(job, lambda: self._open(job, book, password))

    def choose(self, first: int, last: int) -> None:
        """Read pages first..last (from 1, both included) of the book that did not fit."""
        whole = self._desk.whole
        if whole is None:
            return
        document = whole.select(first, last)
        job = self._take_over(stage=Stage.WAITING, book=self._desk.book, whole=whole)
        self._start(job, lambda: self._prepare(job, document))

    def read_again(self) -> None:
        """Read the document on the desk from its start."""
        desk = self._desk
        if (document := desk.document) is None:
            return
        job = self._take_over(stage=Stage.WAITING, book=desk.book, whole=desk.whole)
        self._start(job, lambda: self._prepare(job, document))

    def stop_reading(self) -> None:
        """What was read stays usable."""
        self._job.cancel()

    def begin_chat(self) -> None:
        """A clean page about the same book."""
        if self._desk.book is not None:
            self.show_chat(self.chats.begin(self._desk.book.sha256).id)

    def show_chat(self, chat_id: str) -> None:
        with self._lock:
            if not self._desk.asking:
                self._desk = replace(self._desk, chat=chat_id)

    def claim(self) -> threading.Event:
        """Take the right to ask: one question at a time.

        Returns:
            an event that is set when somebody wants this question stopped.

        Raises:
            Busy: another question is waiting or being answered.
        """
        with self._lock:
            if self._asking is not None:
                raise Busy("Another tab is asking a question.", "Wait for its answer, or stop it.")
            self._asking = threading.Event()
            self._desk = replace(self._desk, asking=True)
            return self._asking

    def release(self, claim: threading.Event) -> None:
        with self._lock:
            if self._asking is claim:
                self._asking = None
                self._desk = replace(self._desk, asking=False)

    def stop_asking(self) -> None:
        with self._lock:
            if self._asking is not None:
                self._asking.set()

    def show(self, **changes: Any) -> None:
        """Figures, scores and pace of the answer that is being written."""
        with self._lock:
            self._desk = replace(self._desk, **changes)

    def close(self) -> None:
        self._job.cancel()
        self.stop_asking()
        self.engine.close()

    def _take_over(self, **changes: Any) -> _Job:
        """End what runs, and begin a new state of the desk."""
        with self._lock:
            self._job.cancel()
            self.stop_asking()
            self._job = _Job()
            self._desk = replace(Desk(asking=self._desk.asking, **changes), chat=self._chat_for(changes.get("book")))
            return self._job

    def _chat_for(self, book: Book | None) -> str:
        """The chat on the desk if it is about this book, else the last one that was, else a new one."""
        if book is None:
            return ""
        shown = self.chat
        if shown is not None and shown.book == book.sha256:
            return shown.id
        return (self.chats.of_book(book.sha256) or (self.chats.begin(book.sha256),))[0].id

    def _set(self, job: _Job, **changes: Any) -> None:
        """Change the desk, unless another book has been put on it."""
        with self._lock:
            if job is self._job:
                self._desk = replace(self._desk, **changes)

    def _start(self, job: _Job, work: Callable[[], None]) -> None:
        threading.Thread(target=self._guarded, args=(job, work), name="trifold-book", daemon=True).start()

    def _guarded(self, job: _Job, work: Callable[[], None]) -> None:
        """The edge at which errors become sentences on the desk."""
        try:
            work()
        except PasswordNeeded as error:
            self._fail(job, error, Stage.LOCKED, Action.PASSWORD)
        except ContextTooSmall as error:
            self._fail(job, error, Stage.CHOOSING, Action.NONE)
        except TrifoldError as error:
            self._fail(job, error, Stage.FAILED, Action.OTHER_BOOK)
        except Exception:  # the page must say something whatever broke; the log keeps the trace
            logger.exception("opening a book failed")
            surprise = TrifoldError("Something in Trifold broke while opening this book.", "Try it again.")
            self._fail(job, surprise, Stage.FAILED, Action.OPEN_AGAIN)

    def _fail(self, job: _Job, error: TrifoldError, stage: Stage, action: Action) -> None:
        self._set(job, stage=stage, trouble=Trouble(error.cause, error.remedy), action=action)

    def _open(self, job: _Job, book: Book, password: str | None) -> None:
        document = self._read_document(self.books.path(book), password=password)
        if job.cancelled:
            return
        document = _named(document, book)
        kept = self.books.remember(book, document.title, len(document.pages), document.unit)
        self._set(job, book=kept, whole=document, document=document)
        self._prepare(job, document)

    def _prepare(self, job: _Job, document: Document) -> None:
        """Wait for the model, measure, and read if it fits."""
        self._set(job, stage=Stage.WAITING, document=document)
        while self.engine.status().state == "loading":
            if job.cancelled:
                return
            time.sleep(_PATIENCE)
        self.engine.wait_ready(_HANDOVER)
        fit = self.engine.measure(document)
        self._set(job, fit=fit)
        if fit.fits:
            self._read(job, document)
        else:
            self._set(job, stage=Stage.CHOOSING)

    def _read(self, job: _Job, document: Document) -> None:
        self._set(job, stage=Stage.READING)
        for event in job.follow(self._request(job, document)):
            if isinstance(event, ReadingProgress):
                self._set(job, progress=event)
            elif isinstance(event, BookRead):
                self._finish(job, event)
            elif isinstance(event, Failed):
                trouble = Trouble(event.cause, event.remedy)
                self._set(job, stage=Stage.FAILED, trouble=trouble, action=Action.READ_AGAIN)

    def _finish(self, job: _Job, read: BookRead) -> None:
        if read.pages_read or read.tokens:
            self._set(job, stage=Stage.READY, read=read)
        else:
            nothing = Trouble("The reading was stopped before anything was read.", "")
            self._set(job, stage=Stage.FAILED, trouble=nothing, action=Action.READ_AGAIN)

    def _request(self, job: _Job, document: Document) -> Any:
        """Hand the book to the engine as soon as what was cancelled has let go of it."""
        until = time.monotonic() + _HANDOVER
        while True:
            try:
                return self.engine.read(document)
            except Busy:
                if job.cancelled or time.monotonic() > until:
                    raise
                time.sleep(_PATIENCE)


def _named(document: Document, book: Book) -> Document:
    """A file without a title of its own is called by its name: the one it came with, not the one it is kept under."""
    kept_under = PurePath(book.file).stem
    return replace(document, title=PurePath(book.name).stem) if document.title == kept_under else document


class _Job:
    """One book on its way to being read; cancelled once and for all."""

    def __init__(self) -> None:
        self.cancelled = False
        self._request: Any = None

    def cancel(self) -> None:
        self.cancelled = True
        if self._request is not None:
            self._request.cancel()

    def follow(self, request: Any) -> Any:
        """The request, cancelled at once if the job already was."""
        self._request = request
        if self.cancelled:
            request.cancel()
        return request
