"""Serves OpenAI's protocol to other programs: /v1/models, and /v1/chat/completions about the open book.

The guard has already checked host and origin. This module checks the key, since a program cannot have the page's
cookie. Questions share the open book with the page. Trifold answers one question at a time, whether the page or a
program asks. The page shows a program's question and can stop the answer. Every answer except a stream is one JSON
object, and errors have OpenAI's form (``openai_schema``).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import threading
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from app.core import best_passages
from app.core.abilities import Abilities, Denials, abilities
from app.core.document_kind import called_record
from app.core.format import View, not_found_in, of_text, of_the_question
from app.core.listed import LISTED, found_by_program
from app.core.open_book import OpenBook, Stage
from app.core.outside import asked_record, text_record
from app.core.premise import checked, is_looked_up, without_doubt
from app.core.question import Ask
from app.core.side_by_side import SIDE_BY_SIDE, SideBySide
from app.core.state import AppState
from app.core.versions import COMPARED, Comparison
from app.trust.citations import evidence
from app.trust.failing import declines, may_decline
from app.web import secret_file
from app.web.auth import MEGABYTE
from app.web.openai_schema import (
    MESSAGES,
    REASONING,
    ApiError,
    ChatRequest,
    Completion,
    ModelEntry,
    api_error_of,
    parse,
    shown,
)
from app.web.routes import PageRoute
from engine import HANDOVER_S
from engine import Request as EngineRequest
from engine.document import Document, Page, Reading
from engine.errors import Busy, TrifoldError
from engine.events import AnswerDone, BookRead, Event, Figures, PagesScored, StopReason, TextDelta, ThoughtDelta

logger = logging.getLogger(__name__)

OWNER = "trifold"
BY_PASSAGES = "passages"
"""The mode of an answer that no model has written: passages are the answer (``app.core.abilities``)."""
FILE = "api.key"
BODY_LIMIT = 16 * MEGABYTE
RETRY_SECONDS = 2
# the guard's limit for the body, practically unlimited; ``_body`` applies the actual limit, because its refusal has
# OpenAI's form
_GUARDS_LIMIT = 1 << 40
_CHAT = "/v1/chat/completions"
_MODELS = "/v1/models"
_LEFT = 499  # HTTP status that the log shows for a client that has disconnected
_LOOK_SECONDS = 0.1
_BOOK_OPEN = "A book is open in Trifold's page, and a text was sent in its place. Close the book there first."
_SENT_TITLE = "Text sent by another program"
_PREFIX = "sk-trifold-"
_MOST_PAGES = 3  # maximum number of pages that are named as attended to most

Handler = Callable[[Request], Awaitable[Response]]


class Api:
    """Serves the routes of /v1. Registered like a part of the page (``app.web.live.Panel``), but shows nothing there.

    Args:
        state: the state of the program, with the open book.
        data: the folder with the key.
    """

    def __init__(self, state: AppState, data: Path) -> None:
        self._state = state
        self._data = data

    def routes(self) -> Sequence[PageRoute]:
        return (
            PageRoute("GET", _MODELS, self._guarded(self._models), open=True),
            PageRoute("GET", _MODELS + "/{id:path}", self._guarded(self._model), open=True),
            PageRoute("POST", _CHAT, self._guarded(self._chat), _GUARDS_LIMIT, open=True),
            PageRoute("GET", "/v1/{rest:path}", self._guarded(self._unknown), open=True),
            PageRoute("POST", "/v1/{rest:path}", self._guarded(self._unknown), _GUARDS_LIMIT, open=True),
        )

    def view(self) -> View:
        return {}

    def _guarded(self, handler: Handler) -> Handler:
        """Check the key, run the handler, and give every error OpenAI's form."""

        async def answered(request: Request) -> Response:
            try:
                if not opens(request.headers.get("authorization", ""), load(self._data)):
                    raise ApiError(
                        401, "This key does not open Trifold. Copy it from Trifold's settings.", "invalid_api_key"
                    )
                return await handler(request)
            except ApiError as refused:
                return _refusal(refused)
            except TrifoldError as error:
                return _refusal(api_error_of(error))
            except ClientDisconnect:
                return Response(status_code=_LEFT)
            except Exception:  # the program that sent the request gets JSON after any error
                logger.exception("a request of another program failed")
                return _refusal(ApiError(500, "Something in Trifold broke; its log has the details.", "internal_error"))

        return answered

    # Models --------------------------------------------------------------------------------------------------

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._entry().model_dump()]})

    async def _model(self, request: Request) -> Response:
        entry = self._entry()
        self._check_model(request.path_params["id"], entry.id)
        return JSONResponse(entry.model_dump())

    async def _unknown(self, request: Request) -> Response:
        path = request.url.path
        takes = "POST" if path == _CHAT else "GET" if path.startswith(f"{_MODELS}/") or path == _MODELS else ""
        if takes:
            refusal = _refusal(ApiError(405, f"{path} takes {takes}, not {request.method}.", "method_not_allowed"))
            refusal.headers["allow"] = takes
            return refusal
        raise ApiError(404, f"Trifold has {_MODELS} and {_CHAT}, not {path}.", "unknown_url")

    def _entry(self) -> ModelEntry:
        status = self._state.engine.status()
        if status.model is None:
            raise ApiError(503, status.detail or "The model is being loaded.", "model_not_ready")
        model = status.model
        return ModelEntry(id=model.name, object="model", created=0, owned_by=OWNER, context_length=model.context_limit)

    @staticmethod
    def _check_model(name: str | None, loaded: str) -> None:
        if name not in (None, "", loaded, OWNER):
            raise ApiError(404, f"The model {shown(name)} is not loaded; {loaded!r} is.", "model_not_found", "model")

    # Chat ----------------------------------------------------------------------------------------------------

    async def _chat(self, request: Request) -> Response:
        # in a thread, because 16 MB take long to parse and would block the page
        asked = await asyncio.to_thread(parse, await _body(request))
        loaded = self._entry().id
        self._check_model(asked.model, loaded)
        head = Completion(id=f"chatcmpl-{uuid.uuid4().hex}", created=int(time.time()), model=loaded)
        answer = ProgramsQuestion(self._state, asked)
        events = answer.events()
        # If an error comes before the first event, the response gets the status of this error.
        first = await anext(events)
        if asked.stream:
            stream = self._stream(answer, head, first, events)
            return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})
        return await self._whole(request, answer, head, first, events)

    async def _whole(
        self,
        request: Request,
        answer: ProgramsQuestion,
        head: Completion,
        first: Event,
        events: AsyncGenerator[Event, None],
    ) -> Response:
        stops, text = Stops(answer.request.stop), ""
        async with aclosing(_from(first, events)) as all_events:
            async for event in all_events:
                if isinstance(event, TextDelta):
                    text += stops.feed(event.text)
                done = _ended(event) if isinstance(event, TextDelta) and stops.found else event
                if isinstance(done, AnswerDone):
                    text += stops.rest()
                    *_, more = await asyncio.to_thread(list, answer.told(done, text))
                    return _json(head.whole(text, done, more))
                if await request.is_disconnected():
                    raise ClientDisconnect
        raise ApiError(500, "The answer ended without a result.", "internal_error")

    async def _stream(
        self, answer: ProgramsQuestion, head: Completion, first: Event, events: AsyncGenerator[Event, None]
    ) -> AsyncIterator[str]:
        stops, text = Stops(answer.request.stop), ""
        yield _event(head.piece({"role": "assistant", "content": ""}).json_text)
        try:
            async with aclosing(_from(first, events)) as all_events:
                async for event in all_events:
                    if isinstance(event, ThoughtDelta) and event.text:
                        yield _event(head.piece({REASONING: event.text}).json_text)
                    if isinstance(event, TextDelta) and (words := stops.feed(event.text)):
                        text += words
                        yield _event(head.piece({"content": words}).json_text)
                    done = _ended(event) if isinstance(event, TextDelta) and stops.found else event
                    if isinstance(done, AnswerDone):
                        if words := stops.rest():
                            text += words
                            yield _event(head.piece({"content": words}).json_text)
                        told = answer.told(done, text)
                        more = await asyncio.to_thread(next, told)
                        yield _event(head.last_piece(done, more).json_text)
                        while more := await asyncio.to_thread(next, told, {}):
                            yield _event(head.later_piece(done, more).json_text)
                        if answer.request.include_usage:
                            yield _event(head.usage_piece(done).json_text)
                        break
        except TrifoldError as error:
            yield _event(json.dumps(api_error_of(error).body))
        yield "data: [DONE]\n\n"


async def _from(first: Event, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event]:
    async with aclosing(events) as rest:
        yield first
        async for event in rest:
            yield event


def _ended(event: TextDelta) -> AnswerDone:
    """Make the final event of an answer that a stop word has ended."""
    return AnswerDone("", event.token_ids, event.sources, StopReason.END, event.figures)


async def _body(request: Request) -> bytes:
    """Read the body, and refuse a body of more than ``BODY_LIMIT`` bytes. A request that states a larger length is
    refused before its body is read. A smaller stated length is not trusted, so the bytes are counted.
    """
    too_large = ApiError(413, f"The body is larger than {BODY_LIMIT // MEGABYTE} MB.", "request_too_large")
    if int(request.headers.get("content-length", "0") or "0") > BODY_LIMIT:
        raise too_large
    blocks, size = [], 0
    async for block in request.stream():
        blocks.append(block)
        size += len(block)
        if size > BODY_LIMIT:
            raise too_large
    return b"".join(blocks)


def _refusal(refused: ApiError) -> JSONResponse:
    headers = {"retry-after": str(RETRY_SECONDS)} if refused.status == 429 else {}
    if refused.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(refused.body, status_code=refused.status, headers=headers)


def _json(answer: Completion) -> Response:
    return Response(answer.json_text, media_type="application/json")


def _event(data: str) -> str:
    return f"data: {data}\n\n"


# From the question to the events of its answer -----------------------------------------------------------------------


class ProgramsQuestion:
    """One question of a program: the events of its answer, and what is told about the answer.

    Args:
        state: the state of the program, with the open book.
        request: the question with its options.
    """

    def __init__(self, state: AppState, request: ChatRequest) -> None:
        self.request = request
        self._state = state
        self._found: Comparison | SideBySide | None = None

    async def events(self) -> AsyncGenerator[Event, None]:
        """Ask, and yield the engine's events. Passages are the answer if the model would guess, or refuses to answer.
        What the program finds itself (``found_by_program``) is the answer to a question for all places or differences,
        and a table to one that compares the documents (``app.core.side_by_side``).
        Ending the iteration early stops the answer.
        """
        state, system = self._state, self.request.conversation[0]
        asked, wanted = state.as_set(self.request.ask), self.request.options.book or None
        sent = wanted == MESSAGES or (wanted is None and state.current.stage is Stage.EMPTY and bool(system))
        if sent:
            _check_sent(state, system)
        else:
            await _book(state, wanted, asked)
        card, document = _card(state), state.current.document or _text_book(system)
        if document.pages and (found := await asyncio.to_thread(found_by_program, document, asked.text)) is not None:
            self._found = found
            for event in _whole_events(found.answer, found.made):
                yield event
            return
        if not sent and (table := SideBySide.of(document, asked, card)) is not None:
            self._found = table
            async with aclosing(_table_events(state, table, asked)) as events:
                async for event in events:
                    yield event
            return
        denials = Denials(card, card.lead(asked.text))
        guesses = await asyncio.to_thread(_would_guess, state, card, asked.text, document)
        if not guesses:
            async with aclosing(_model_events(state, self.request, sent, denials)) as events:
                async for event in events:
                    yield event
        if guesses or denials.refused:
            for event in await asyncio.to_thread(_instead, state, card, asked.text, document):
                yield event

    def told(self, done: AnswerDone, text: str) -> Iterator[dict[str, Any]]:
        """Yield what is told about an answer as sent (``about_book``)."""
        system = self.request.conversation[0]
        for more in about_book(
            self._state, done, self._state.as_set(self.request.ask), text, system, found=self._found
        ):
            yield more | ({"history_left_out": self.request.left_out} if "book" in more else {})


async def _model_events(
    state: AppState, chat_request: ChatRequest, sent: bool, denials: Denials
) -> AsyncGenerator[Event, None]:
    """Ask the model, and yield the engine's events; not the last one if the model refuses to answer.

    Args:
        sent: whether the system message is the book.
        denials: recognises a refusal; its ``begun`` is put before the first piece of text.
    """
    begun = denials.begun
    asked = state.as_set(replace(chat_request.ask if sent else chat_request.instructed, begun=begun, wait=HANDOVER_S))
    if asked.now:
        asked = await asyncio.to_thread(_from_passages, state, asked, chat_request)
    claim = state.claim()
    try:
        if sent and asked.excerpt is None:
            await _send(state, claim, chat_request.conversation[0])
        alone = None if sent or not asked.history else chat_request.without_history
        async with aclosing(_asked_again(state, asked, claim, alone)) as events:
            async for followed in events:
                for event in denials.pass_on(followed):
                    if isinstance(event, TextDelta) and begun:
                        event, begun = replace(event, text=begun + event.text), ""
                    _show(state, event)
                    if not denials.refused:
                        yield event
    finally:
        # The flag also stops a question that still waits for the engine, so that there is no request to cancel yet.
        claim.set()
        state.release(claim)


async def _table_events(state: AppState, table: SideBySide, asked: Ask) -> AsyncGenerator[Event, None]:
    """Put a question to each document, and yield the events of the table, of which only the settled beginning is text
    already.
    """
    claim, sent = state.claim(), ""
    steps = table.ask(state.engine, asked, claim)
    try:
        while await asyncio.to_thread(next, steps, table) is not table:
            before, sent = len(sent), table.written
            # also an empty piece, so that it is noticed when a client leaves
            yield TextDelta(sent[before:], (), (), table.figures)
        yield TextDelta(table.answer[len(sent) :], (), (), table.figures)
        ended = StopReason.LENGTH if table.is_cut and table.stopped is StopReason.END else table.stopped
        yield AnswerDone(table.answer, (), (), ended, table.figures)
    finally:
        claim.set()
        state.release(claim)


async def _asked_again(
    state: AppState, asked: Ask, claim: threading.Event, alone: Callable[[], Ask] | None
) -> AsyncGenerator[Event, None]:
    """Ask, and yield the engine's events. If the answer is a refusal, ask once more.

    Args:
        alone: makes the record of the question without the earlier turns, to which the refusal may be due. The
            beginning of the answer is held back as long as it may be a refusal. None asks only once.
    """
    held: list[Event] = []
    text = ""
    request = await asyncio.to_thread(state.engine.ask, asked, cancel=claim)
    async for event in _follow(request):
        text += event.text if isinstance(event, TextDelta) else ""
        ended = isinstance(event, AnswerDone)
        if alone is not None and ended and held and declines(text):
            again = alone()
            asked = replace(asked, text=again.text, history=again.history)
            async for other in _asked_again(state, asked, claim, None):
                yield other
            return
        held.append(event)
        if alone is None or ended or not text or not may_decline(text):
            for each in held:
                yield each
            held.clear()


def _from_passages(state: AppState, asked: Ask, chat_request: ChatRequest) -> Ask:
    """Let a question be answered from the passages that fit it best, unless there are none."""
    document = state.current.document or _text_book(chat_request.conversation[0])
    words = state.citation_finder.prepare(document).result().words
    excerpt = best_passages.excerpt(words, chat_request.ask.text)
    return replace(asked, excerpt=excerpt if excerpt.pages else None)


def _show(state: AppState, event: Event) -> None:
    """Show the figures of a program's answer on the page."""
    if isinstance(event, TextDelta | AnswerDone):
        state.show(figures=event.figures)
    elif isinstance(event, PagesScored):
        state.show(scores=event.scores)


def _card(state: AppState) -> Abilities:
    model = state.engine.status().model
    return abilities(str(model.path)) if model else Abilities()


def _would_guess(state: AppState, card: Abilities, question: str, document: Document) -> bool:
    finder = state.citation_finder
    if not card.has_limits:
        return False
    return card.would_guess(question, finder.prepare(document).result(), finder.index_of(document))


def _instead(state: AppState, card: Abilities, question: str, document: Document) -> tuple[Event, Event]:
    """The events of the text that says that passages are the answer, because the model would guess."""
    passages = best_passages.records(state.citation_finder.prepare(document).result().words, question)
    said = of_text(" ".join(card.instead(bool(passages))), called_record(state.current.whole or document))
    return _whole_events(said, BY_PASSAGES)


def _whole_events(text: str, made: str) -> tuple[Event, Event]:
    """The events of an answer that no model has written. ``made``: how it was made."""
    figures = Figures.none(made)
    return TextDelta(text, (), (), figures), AnswerDone(text, (), (), StopReason.END, figures)


def about_book(
    state: AppState,
    done: AnswerDone,
    asked: Ask,
    text: str,
    system: str = "",
    *,
    found: Comparison | SideBySide | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the book that an answer is about, the pages that the answer attended to most and, if ``asked`` wants it,
    the passages that fit the question best and the evidence of each sentence. If the book was sent as a text, yield
    only the passages.

    If the model has to look up what the question assumes, which takes seconds, this is yielded twice: first without
    any doubt about it, then with what has been looked up.

    Args:
        text: the answer as sent.
        system: the system message, which is the book if none is open.
        found: the answer, if the program found it without the model or put it together.
    """
    current = state.current
    by_passages = done.figures.mode == BY_PASSAGES
    document = current.document if current.book is not None else None
    made = done.figures.mode if done.figures.mode in (COMPARED, LISTED, SIDE_BY_SIDE) else ""
    marks: dict[str, Any] = {"by_passages": True} if by_passages else {"now": True} if asked.now else {}
    marks |= {made: True} if made else {}
    if asked.evidence or by_passages:
        words = state.citation_finder.prepare(document or _text_book(system)).result().words
        marks |= {"passages": best_passages.as_evidence(best_passages.records(words, asked.text))}
    if document is None or current.book is None:
        yield marks
        return
    pages = document.pages
    ranked = sorted(range(min(len(pages), len(done.page_scores))), key=lambda at: -done.page_scores[at])[:_MOST_PAGES]
    members = [document.member_at(pages[at].number) for at in ranked]
    read = [
        {
            "page": pages[at].number - (member.page_offset if member else 0),
            "share": round(done.page_scores[at], 4),
            **({"document": member.title} if member else {}),
        }
        for at, member in zip(ranked, members, strict=True)
    ]
    book: dict[str, Any] = {"id": current.book.sha256, "title": document.title}
    if document.members:
        book["documents"] = [member.title for member in document.members]
    more = {"book": book, "pages_read_most": read, **marks}
    if by_passages:
        outside = {} if marks["passages"] else asked_record(asked.text, document, current.whole)
        yield more | {"evidence": [], **not_found_in(outside)}
        return
    if not asked.evidence:
        yield more
        return
    if made:
        yield more | {"evidence": evidence({"chips": found.chips if found else []}, text), "not_found": []}
        return
    had = current.read.pages_read if current.read and current.read.stopped else 0
    citations = state.citation_finder.begin(document, asked.text, text, pages_read=had)
    citations.close()
    record = citations.record()
    record |= text_record(document, current.whole, record.get("missing"))

    more |= {"evidence": evidence(record, text), **not_found_in(record)}
    if is_looked_up(state.engine, record):
        yield more | of_the_question(without_doubt(record))
        record = checked(state.engine, document, asked.text, record)
    yield more | of_the_question(record)


_CHOICES = {
    Stage.PARTS: "The open book is read in parts, which are not asked from here. Choose chapters or pages",
    Stage.CHOOSING: "The open book is too long for the model. Choose chapters or pages",
    Stage.LOCKED: "The open book needs its password. Enter it",
    Stage.UNREAD: "The reading of the open book was stopped. Set trifold.now for an answer from passages, or read it",
}
"""What a person has to do before a book can be asked about."""


async def _book(state: AppState, sha256: str | None, asked: Ask) -> None:
    """Open and read the book ``sha256`` unless it is open; None means the open book. Raises an error if the book cannot
    be asked about. For a question that is answered from passages, the book need not be read.
    """
    current, now = state.current, asked.now
    if sha256 is not None and not (
        current.book and current.book.sha256 == sha256 and current.stage is not Stage.FAILED
    ):
        if current.asking:
            raise Busy("One question at a time: another one is being answered.", "Try again in a moment.")
        state.open(state.books.get(sha256))
    state.read_for(asked)
    while sha256 is not None and state.current.stage.is_on_the_way and not (now and _has_text(state.current)):
        await asyncio.sleep(_LOOK_SECONDS)
    current = state.current
    if current.stage is Stage.READY or (now and _has_text(current)):
        return
    if current.stage.is_on_the_way:
        raise Busy(f"The book is still being read{_so_far(state)}.", "Try again when it has been read.")
    if current.trouble is not None:
        raise ApiError(
            409, f"{current.trouble.cause} {current.trouble.remedy}".strip(), "book_not_ready", "trifold.book"
        )
    if current.stage in _CHOICES:
        raise ApiError(409, f"{_CHOICES[current.stage]} in Trifold.", "book_not_ready", "trifold.book")
    raise ApiError(
        409,
        "No book is open. Open one in Trifold, name one in trifold.book, or send its text as the system message.",
        "no_book",
        "trifold.book",
    )


def _has_text(current: OpenBook) -> bool:
    """Whether the text of the open book can be asked about now, though it may not have been read."""
    return current.document is not None and current.stage not in (Stage.FAILED, Stage.LOCKED, Stage.WAITING)


def _so_far(state: AppState) -> str:
    progress = state.current.progress
    return f" (page {progress.pages_done:,} of {progress.pages_total:,})" if progress else ""


def _check_sent(state: AppState, text: str) -> None:
    """Raise an error if a text that came with the request cannot take the place of the open book."""
    if not text.strip():
        raise ApiError(400, "With trifold.book set to messages, the system message is the book.", "no_book", "messages")
    if state.current.stage is not Stage.EMPTY:
        raise ApiError(409, _BOOK_OPEN, "book_open")


async def _send(state: AppState, claim: threading.Event, text: str) -> None:
    """Let the engine read a text that came with the request, unless the engine has read this text already."""
    _check_sent(state, text)
    document = _text_book(text)
    await asyncio.to_thread(state.engine.wait_ready)
    known = state.engine.status().book
    if known is not None and known.title == document.title and known.complete:
        return
    request = await asyncio.to_thread(state.engine.read, Reading(document, wait=HANDOVER_S), cancel=claim)
    async for event in _follow(request):
        if isinstance(event, BookRead) and event.stopped:
            raise Busy("The text was not read to its end: somebody opened a book in Trifold's page.", "Try again.")


def _text_book(text: str) -> Document:
    """The document that consists of a text sent with a request. Its hash is empty, so that it is not saved on disk."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Document(f"{_SENT_TITLE} {digest[:12]}", "", (Page(1, "1", text),), "text", "")


async def _follow(request: EngineRequest[Any]) -> AsyncGenerator[Event, None]:
    """Yield the events of a request up to the final event. Ending the iteration early cancels the request."""
    try:
        while not request.finished:
            event = await asyncio.to_thread(request.next_event, _LOOK_SECONDS)
            if event is not None:
                yield event
    finally:
        if not request.finished:
            request.cancel()


class Stops:
    """Finds stop words in a text that arrives in pieces. Holds back text that may be the beginning of a stop word."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(words)
        self._held = ""
        self.found = False

    def feed(self, piece: str) -> str:
        """Add a piece of text. Return the text that may be sent now. The first stop word and all text after it are
        dropped.
        """
        if self.found or not self._words:
            return "" if self.found else piece
        self._held += piece
        places = [at for at in (self._held.find(word) for word in self._words) if at >= 0]
        if places:
            self.found = True
            shown, self._held = self._held[: min(places)], ""
            return shown
        keep = max(_overlap(self._held, word) for word in self._words)
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return shown

    def rest(self) -> str:
        """The text that is still held back when the answer has ended."""
        shown, self._held = self._held, ""
        return shown


def _overlap(text: str, word: str) -> int:
    """The largest number of characters at the end of ``text`` with which ``word`` begins."""
    longest = min(len(text), len(word) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(word[:size])), 0)


# The key that other programs show: a file that this person alone can read --------------------------------------------


def load(data: Path) -> str:
    """Read the key of this data folder, which is made on first use.

    Raises:
        ResourceError: the data folder cannot be read or written.
    """
    return secret_file.load(data / FILE, _PREFIX)


def renew(data: Path) -> str:
    """Make a new key, which replaces the old one. Raises as in ``load``."""
    return secret_file.renew(data / FILE, _PREFIX)


def opens(header: str, key: str) -> bool:
    """Whether an Authorization header has the key."""
    scheme, _, shown = header.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), key.encode())
