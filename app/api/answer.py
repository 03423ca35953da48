"""One question of another program, from the right book on the desk to the last event of its answer.

Shares the desk with the page: one question at a time for both, shown there while it is answered, and stopped there
as well. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncGenerator
from typing import Any

from app.api.wire import MESSAGES, Asked, Refused
from app.ui.desk import Keeper, Stage
from engine import Turn
from engine.document import Document, Page
from engine.errors import Busy, InputError, TrifoldError
from engine.events import AnswerDone, BookRead, Event, Failed, PagesScored, TextDelta

RETRY_SECONDS = 2
_LOOK_SECONDS = 0.1
_HANDOVER_SECONDS = 10.0  # within which a cancelled request has surely let go of the engine
_ON_THE_WAY = (Stage.OPENING, Stage.WAITING, Stage.READING)
_BOOK_OPEN = "A book is open in Trifold's page, and a text was sent in its place. Close the book there first."
_SENT_TITLE = "Text sent by another program"


async def events(keeper: Keeper, asked: Asked) -> AsyncGenerator[Event, None]:
    """Ask, and yield the engine's events. Ending the iteration early stops the answer.

    Raises:
        Refused: the book that is asked about is not there.
        TrifoldError: the engine does not take the question; ``Busy`` when another one is being answered.
    """
    sent = asked.book == MESSAGES or (asked.book is None and keeper.desk.stage is Stage.EMPTY and bool(asked.system))
    if not sent:
        await _book(keeper, asked.book)
    claim = keeper.claim()
    try:
        if sent:
            await _send(keeper, claim, asked.system)
        question, history = (asked.question, asked.history) if sent else asked.instructed
        turns = tuple(Turn(*turn) for turn in history)
        request = await _when_free(
            lambda: keeper.engine.ask(question, history=turns, sampling=asked.sampling, mode=asked.mode)
        )
        async for event in _follow(request, claim):
            if isinstance(event, TextDelta | AnswerDone):
                keeper.show(figures=event.figures)
            elif isinstance(event, PagesScored):
                keeper.show(scores=event.scores)
            yield event
    finally:
        keeper.release(claim)


def about_book(keeper: Keeper, done: AnswerDone, most: int = 3) -> dict[str, Any]:
    """Which book the answer is about, and the pages that were read most for it."""
    desk = keeper.desk
    if desk.document is None or desk.book is None:
        return {}
    pages = desk.document.pages
    ranked = sorted(range(min(len(pages), len(done.page_scores))), key=lambda at: -done.page_scores[at])[:most]
    read = [{"page": pages[at].number, "share": round(done.page_scores[at], 4)} for at in ranked]
    return {"book": {"id": desk.book.sha256, "title": desk.document.title}, "pages_read_most": read}


async def _book(keeper: Keeper, wanted: str | None) -> None:
    """See that the book is on the desk and read."""
    desk = keeper.desk
    if wanted is not None and not (desk.book and desk.book.sha256 == wanted and desk.stage is not Stage.FAILED):
        if desk.asking:
            raise Busy("One question at a time: another one is being answered.", "Try again in a moment.")
        keeper.open(keeper.books.get(wanted))
    while wanted is not None and keeper.desk.stage in _ON_THE_WAY:
        await asyncio.sleep(_LOOK_SECONDS)
    desk = keeper.desk
    if desk.stage is Stage.READY:
        return
    if desk.stage in _ON_THE_WAY:
        raise Busy(f"The book is still being read{_so_far(keeper)}.", "Try again when it has been read.")
    if desk.trouble is not None:
        raise Refused(409, f"{desk.trouble.cause} {desk.trouble.remedy}".strip(), "book_not_ready", "trifold.book")
    raise Refused(
        409,
        "No book is open. Open one in Trifold, name one in trifold.book, or send its text as the system message.",
        "no_book",
        "trifold.book",
    )


def _so_far(keeper: Keeper) -> str:
    progress = keeper.desk.progress
    return f" (page {progress.pages_done:,} of {progress.pages_total:,})" if progress else ""


async def _send(keeper: Keeper, claim: threading.Event, text: str) -> None:
    """Have the engine read a text that came with the request, unless it is the one that it has read already."""
    if not text.strip():
        raise Refused(400, "With trifold.book set to messages, the system message is the book.", "no_book", "messages")
    if keeper.desk.stage is not Stage.EMPTY:
        raise Refused(409, _BOOK_OPEN, "book_open")
    digest = hashlib.sha256(text.encode()).hexdigest()
    title = f"{_SENT_TITLE} {digest[:12]}"
    await asyncio.to_thread(keeper.engine.wait_ready)
    known = keeper.engine.status().book
    if known is not None and known.title == title and known.complete:
        return
    document = Document(title, "", (Page(1, "1", text),), "text", "")  # without a file's hash: not kept on disk
    request = await _when_free(lambda: keeper.engine.read(document))
    async for event in _follow(request, claim):
        if isinstance(event, Failed):
            raise _error(event)
        if isinstance(event, BookRead) and event.stopped:
            raise Busy("The text was not read to its end: somebody opened a book in Trifold's page.", "Try again.")


async def _when_free(hand_over: Any) -> Any:
    """The engine's request, as soon as what was cancelled has let go of it."""
    until = time.monotonic() + _HANDOVER_SECONDS
    while True:
        try:
            return hand_over()
        except Busy:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(_LOOK_SECONDS)


async def _follow(request: Any, claim: threading.Event) -> AsyncGenerator[Event, None]:
    """Events up to the final one; the person at the page may stop them through the claim."""
    try:
        while not request.finished:
            event = await asyncio.to_thread(request.next_event, _LOOK_SECONDS)
            if claim.is_set():
                request.cancel()
            if event is not None:
                yield event
    finally:
        if not request.finished:
            request.cancel()


def _error(event: Failed) -> TrifoldError:
    from engine import errors

    kind = getattr(errors, event.kind, InputError)
    error: TrifoldError = kind(event.cause, event.remedy)
    return error
