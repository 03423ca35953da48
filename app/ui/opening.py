"""How a book gets on the desk: its file is taken apart, measured, and read by the model, in a thread of its own.

Owns the order of these steps and what becomes of an error in each. Knows the keeper of the desk, to whom it reports;
knows no page.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from app import covers
from app.books import Book
from app.chats import Trouble
from app.ui.state import Action, Job, Stage
from engine.document import Document
from engine.errors import Busy, ContextTooSmall, PasswordNeeded, TrifoldError
from engine.events import BookRead, Failed, ReadingProgress

if TYPE_CHECKING:
    from app.ui.desk import Keeper

logger = logging.getLogger(__name__)

_PATIENCE = 0.1  # seconds between two looks at something that another thread changes
_HANDOVER = 20.0  # seconds within which a cancelled request has surely let go of the engine


def start(keeper: Keeper, job: Job, work: Callable[[], None]) -> None:
    """Do the work of a job in a thread; whatever goes wrong becomes a sentence on the desk."""
    threading.Thread(target=_guarded, args=(keeper, job, work), name="trifold-book", daemon=True).start()


def open_book(keeper: Keeper, job: Job, book: Book, password: str | None) -> None:
    """From the file to a book that can be asked about."""
    path = keeper.books.path(book)
    document = _taken_apart(keeper, book, password)
    if job.cancelled:
        return
    if password:
        keeper.passwords[book.sha256] = password
    kept = keeper.books.remember(
        book, title=document.title, author=document.author, pages=len(document.pages), unit=document.unit
    )
    covers.draw_in_background(path, document, password)
    keeper.set(job, book=kept, whole=document, document=document)
    prepare(keeper, job, document)


def prepare(keeper: Keeper, job: Job, document: Document) -> None:
    """Wait for the model, measure, and read if it fits."""
    keeper.set(job, stage=Stage.WAITING, document=document)
    while keeper.engine.status().state == "loading":
        if job.cancelled:
            return
        time.sleep(_PATIENCE)
    keeper.engine.wait_ready(_HANDOVER)
    fit = keeper.engine.measure(document)
    keeper.set(job, fit=fit)
    if fit.fits:
        _read(keeper, job, document)
    else:
        keeper.set(job, stage=Stage.CHOOSING)


def _read(keeper: Keeper, job: Job, document: Document) -> None:
    """Read; where a question wants to come in between, wait for its answer and go on."""
    keeper.set(job, stage=Stage.READING)
    partly = _read_on(keeper, job, document, {})
    while partly is not None:
        keeper.set(job, read=partly, paused=True)
        while not keeper.go_on_reading(job):
            time.sleep(_PATIENCE)
        if job.cancelled:
            _finish(keeper, job, partly)
            return
        partly = _read_on(keeper, job, document, {"resume": True})


def _read_on(keeper: Keeper, job: Job, document: Document, how: dict[str, bool]) -> BookRead | None:
    """Follow one reading to its end; how far it came, if it was only paused."""
    for event in job.follow(_request(keeper, job, document, how)):
        if isinstance(event, ReadingProgress):
            keeper.set(job, progress=event)
        elif isinstance(event, BookRead):
            if event.stopped and job.paused and not job.cancelled:
                return event
            _finish(keeper, job, event)
        elif isinstance(event, Failed):
            trouble = Trouble(event.cause, event.remedy)
            keeper.set(job, stage=Stage.FAILED, trouble=trouble, action=Action.READ_AGAIN)
    return None


def _finish(keeper: Keeper, job: Job, read: BookRead) -> None:
    if read.pages_read or read.tokens:
        keeper.set(job, stage=Stage.READY, read=read, paused=False)
        book = keeper.desk.book
        if book is not None:
            keeper.set(job, book=keeper.books.read(book, tokens=read.tokens_total, pages_read=read.pages_read))
    else:
        nothing = Trouble("The reading was stopped before anything was read.", "")
        keeper.set(job, stage=Stage.FAILED, trouble=nothing, action=Action.READ_AGAIN)


def _request(keeper: Keeper, job: Job, document: Document, how: dict[str, bool]) -> Any:
    """Hand the book to the engine as soon as what was cancelled has let go of it."""
    until = time.monotonic() + _HANDOVER
    while True:
        try:
            return keeper.engine.read(document, **how)
        except Busy:
            if job.cancelled or time.monotonic() > until:
                raise
            time.sleep(_PATIENCE)


def _guarded(keeper: Keeper, job: Job, work: Callable[[], None]) -> None:
    """The edge at which errors become sentences on the desk."""
    try:
        work()
    except PasswordNeeded as error:
        _fail(keeper, job, error, Stage.LOCKED, Action.PASSWORD)
    except ContextTooSmall as error:
        _fail(keeper, job, error, Stage.CHOOSING, Action.NONE)
    except TrifoldError as error:
        _fail(keeper, job, error, Stage.FAILED, Action.OTHER_BOOK)
    except Exception:  # the page must say something whatever broke; the log keeps the trace
        logger.exception("opening a book failed")
        surprise = TrifoldError("Something in Trifold broke while opening this book.", "Try it again.")
        _fail(keeper, job, surprise, Stage.FAILED, Action.OPEN_AGAIN)
    finally:
        job.ended.set()


def _fail(keeper: Keeper, job: Job, error: TrifoldError, stage: Stage, action: Action) -> None:
    keeper.set(job, stage=stage, trouble=Trouble(error.cause, error.remedy), action=action)


def _taken_apart(keeper: Keeper, book: Book, password: str | None) -> Document:
    """The file as a document. It is called by the name it came with, not by the one it is kept under: in what is wrong
    with it, and as its title where it has none of its own."""
    try:
        document = keeper.read_document(keeper.books.path(book), password=password)
    except TrifoldError as error:
        raise type(error)(error.cause.replace(f"“{book.file}”", f"“{book.name}”"), error.remedy) from error
    untitled = document.title == PurePath(book.file).stem
    return replace(document, title=PurePath(book.name).stem) if untitled else document
