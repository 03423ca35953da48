"""The routes under /v1: who may ask, how much at once, and how answers and errors travel.

The guard has seen to host and origin before; the key is checked here, since a program cannot have the page's cookie.
Every answer but a stream is one JSON object, errors in OpenAI's shape.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from app.api import answer, key, wire
from app.api.stops import Stops
from app.api.wire import Asked, Refused
from app.guard import MEBIBYTE, Door
from app.ui.desk import Keeper
from app.ui.presentation import View
from engine.errors import TrifoldError
from engine.events import AnswerDone, Event, Failed, TextDelta

logger = logging.getLogger(__name__)

OWNER = "trifold"
BODY_LIMIT = 16 * MEBIBYTE
_GUARDS_LIMIT = 1 << 40  # the routes measure bodies themselves, so that a refusal has OpenAI's shape
_CHAT = "/v1/chat/completions"
_LEFT = 499

Handler = Callable[[Request], Awaitable[Response]]


class Api:
    """A part of the page in the sense of ``app.ui.panel``, although it shows nothing there.

    Args:
        keeper: keeps the desk with the open book.
        data: the folder with the key.
    """

    def __init__(self, keeper: Keeper, data: Path) -> None:
        self._keeper = keeper
        self._data = data

    @property
    def doors(self) -> Sequence[Door]:
        return (Door("GET", "/v1/*", open=True), Door("POST", "/v1/*", limit=_GUARDS_LIMIT, open=True))

    def routes(self) -> Sequence[BaseRoute]:
        return (
            Route("/v1/models", self._guarded(self._models), methods=["GET"]),
            Route("/v1/models/{id:path}", self._guarded(self._model), methods=["GET"]),
            Route(_CHAT, self._guarded(self._chat), methods=["POST"]),
            Route("/v1/{rest:path}", self._guarded(self._unknown), methods=["GET", "POST"]),
        )

    def view(self) -> View:
        return {}

    def _guarded(self, handler: Handler) -> Handler:
        """Check the key, run the handler, and give every error OpenAI's shape."""

        async def answered(request: Request) -> Response:
            try:
                if not key.opens(request.headers.get("authorization", ""), key.load(self._data)):
                    raise Refused(
                        401, "This key does not open Trifold. Copy it from Trifold's settings.", "invalid_api_key"
                    )
                return await handler(request)
            except Refused as refused:
                return _refusal(refused)
            except TrifoldError as error:
                return _refusal(wire.refused(error))
            except ClientDisconnect:
                return Response(status_code=_LEFT)
            except Exception:  # a program at the other end gets JSON whatever broke
                logger.exception("a request of another program failed")
                return _refusal(Refused(500, "Something in Trifold broke; its log has the details.", "internal_error"))

        return answered

    # Models --------------------------------------------------------------------------------------------------

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._entry()]})

    async def _model(self, request: Request) -> Response:
        entry = self._entry()
        self._check_model(request.path_params["id"], entry["id"])
        return JSONResponse(entry)

    async def _unknown(self, request: Request) -> Response:
        raise Refused(404, f"Trifold has /v1/models and {_CHAT}, not {request.url.path}.", "unknown_url")

    def _entry(self) -> dict[str, Any]:
        status = self._keeper.engine.status()
        if status.model is None:
            raise Refused(503, status.detail or "The model is being loaded.", "model_not_ready")
        model = status.model
        return {
            "id": model.name,
            "object": "model",
            "created": 0,
            "owned_by": OWNER,
            "context_length": model.context_limit,
        }

    @staticmethod
    def _check_model(asked: str, loaded: str) -> None:
        if asked not in ("", loaded, OWNER):
            raise Refused(404, f"The model {asked!r} is not loaded; {loaded!r} is.", "model_not_found", "model")

    # Chat ----------------------------------------------------------------------------------------------------

    async def _chat(self, request: Request) -> Response:
        asked = wire.parse(await _body(request))
        loaded = self._entry()["id"]
        self._check_model(asked.model, loaded)
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": loaded}
        events = answer.events(self._keeper, asked)
        first = await _first(events)
        if asked.stream:
            stream = self._stream(asked, head, first, events)
            return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})
        return await self._whole(request, asked, head, first, events)

    async def _whole(
        self, request: Request, asked: Asked, head: dict[str, Any], first: Event, events: AsyncGenerator[Event, None]
    ) -> Response:
        stops, text = Stops(asked.stops), ""
        async with aclosing(_from(first, events)) as all_events:
            async for event in all_events:
                if isinstance(event, TextDelta):
                    text += stops.feed(event.text)
                if isinstance(event, Failed):
                    raise wire.failed(event)
                if isinstance(event, TextDelta) and stops.found:
                    return JSONResponse(wire.completion(head, text, _ended(event), {}))
                if isinstance(event, AnswerDone):
                    more = answer.about_book(self._keeper, event)
                    return JSONResponse(wire.completion(head, text + stops.rest(), event, more))
                if await request.is_disconnected():
                    raise ClientDisconnect
        raise Refused(500, "The answer ended without a result.", "internal_error")

    async def _stream(
        self, asked: Asked, head: dict[str, Any], first: Event, events: AsyncGenerator[Event, None]
    ) -> AsyncIterator[str]:
        stops = Stops(asked.stops)
        yield _event(wire.chunk(head, {"role": "assistant", "content": ""}))
        async with aclosing(_from(first, events)) as all_events:
            async for event in all_events:
                if isinstance(event, TextDelta) and (words := stops.feed(event.text)):
                    yield _event(wire.chunk(head, {"content": words}))
                done = _ended(event) if isinstance(event, TextDelta) and stops.found else event
                if isinstance(done, AnswerDone):
                    if words := stops.rest():
                        yield _event(wire.chunk(head, {"content": words}))
                    yield _event(wire.last_chunk(head, done, answer.about_book(self._keeper, done)))
                    if asked.include_usage:
                        yield _event(wire.usage_chunk(head, done))
                    break
                if isinstance(done, Failed):
                    yield _event(wire.failed(done).body)
                    break
        yield "data: [DONE]\n\n"


async def _first(events: AsyncGenerator[Event, None]) -> Event:
    """The first event, or the error that comes in its place while there can still be a status for it."""
    first = await anext(events)
    if isinstance(first, Failed):
        raise wire.failed(first)
    return first


async def _from(first: Event, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event]:
    async with aclosing(events) as rest:
        yield first
        async for event in rest:
            yield event


def _ended(event: TextDelta) -> AnswerDone:
    """An answer that a stop word has ended."""
    from engine.events import StopReason

    return AnswerDone("", event.token_ids, event.stages, StopReason.END, event.figures)


async def _body(request: Request) -> bytes:
    """The body, as long as it stays within the limit; a claimed length is not believed."""
    too_large = Refused(413, f"The body is larger than {BODY_LIMIT // MEBIBYTE} MB.", "request_too_large")
    if int(request.headers.get("content-length", "0") or "0") > BODY_LIMIT:
        raise too_large
    blocks, size = [], 0
    async for block in request.stream():
        blocks.append(block)
        size += len(block)
        if size > BODY_LIMIT:
            raise too_large
    return b"".join(blocks)


def _refusal(refused: Refused) -> JSONResponse:
    headers = {"retry-after": str(answer.RETRY_SECONDS)} if refused.status == 429 else {}
    if refused.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(refused.body, status_code=refused.status, headers=headers)


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"
