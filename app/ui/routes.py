"""What the page's own scripts may ask for beside the chat: taking in a book, opening one, stopping.

Owns the translation between requests and the keeper of the desk. Every answer is small JSON; an error is its two
sentences. The results themselves arrive through the live stream, in every tab.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.books import MAX_BYTES
from app.guard import Door
from app.ui.desk import Keeper
from app.ui.sample import Sample
from engine.errors import DocumentError, InputError, OptionError, TrifoldError

SMALL_BODY = 16 << 10
NAME_HEADER = "x-file-name"

DOORS = (
    Door("POST", "/books", limit=MAX_BYTES),
    Door("POST", "/books/open", limit=SMALL_BODY),
    Door("POST", "/books/sample", limit=SMALL_BODY),
    Door("POST", "/reading/choose", limit=SMALL_BODY),
    Door("POST", "/reading/again", limit=SMALL_BODY),
    Door("POST", "/reading/stop", limit=SMALL_BODY),
    Door("POST", "/chats/open", limit=SMALL_BODY),
    Door("POST", "/asking/stop", limit=SMALL_BODY),
)

Handler = Callable[[Request], Awaitable[Any]]


class BookRoutes:
    """Args:
    keeper: keeps the desk.
    sample: the bundled book.
    """

    def __init__(self, keeper: Keeper, sample: Sample) -> None:
        self._keeper = keeper
        self._sample = sample

    def routes(self) -> list[Route]:
        handlers: dict[str, Handler] = {
            "/books": self.receive,
            "/books/open": self.open,
            "/books/sample": self.open_sample,
            "/reading/choose": self.choose,
            "/reading/again": self.again,
            "/reading/stop": self.stop_reading,
            "/chats/open": self.open_chat,
            "/asking/stop": self.stop_asking,
        }
        return [Route(path, _said(handler), methods=["POST"]) for path, handler in handlers.items()]

    async def receive(self, request: Request) -> None:
        """The file is the body; its name comes percent-encoded in a header."""
        from urllib.parse import unquote

        name = unquote(request.headers.get(NAME_HEADER, "")) or "book"
        with self._keeper.books.receive(name) as incoming:
            async for block in request.stream():
                await run_in_threadpool(incoming.write, block)
            book = await run_in_threadpool(incoming.keep)
        self._keeper.open(book)

    async def open(self, request: Request) -> None:
        asked = await _body(request)
        book = self._keeper.books.get(_text(asked, "id"))
        self._keeper.open(book, _text(asked, "password") or None)

    async def open_sample(self, request: Request) -> None:
        if self._sample.file is None:
            raise DocumentError("The sample book is missing from this copy of Trifold.", "Open a book of your own.")
        self._keeper.open(await run_in_threadpool(self._keeper.books.copy_in, self._sample.file))

    async def choose(self, request: Request) -> None:
        asked = await _body(request)
        self._keeper.choose(_number(asked, "first"), _number(asked, "last"))

    async def again(self, request: Request) -> None:
        self._keeper.read_again()

    async def stop_reading(self, request: Request) -> None:
        self._keeper.stop_reading()

    async def open_chat(self, request: Request) -> None:
        self._keeper.show_chat(_text(await _body(request), "id"))

    async def stop_asking(self, request: Request) -> None:
        self._keeper.stop_asking()


def _said(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Run a handler; an error meant for the person becomes its two sentences."""

    async def answer(request: Request) -> Response:
        try:
            await handler(request)
        except ClientDisconnect:
            return Response(status_code=499)
        except TrifoldError as error:
            status = 400 if isinstance(error, InputError) else 500
            return JSONResponse({"cause": error.cause, "remedy": error.remedy}, status_code=status)
        return JSONResponse({})

    return answer


async def _body(request: Request) -> dict[str, Any]:
    try:
        asked = json.loads(await request.body())
    except ValueError as error:
        raise OptionError("The request is not JSON.") from error
    if not isinstance(asked, dict):
        raise OptionError("The request is not a JSON object.")
    return asked


def _text(asked: dict[str, Any], name: str) -> str:
    value = asked.get(name, "")
    if not isinstance(value, str):
        raise OptionError(f"{name} must be text.")
    return value


def _number(asked: dict[str, Any], name: str) -> int:
    value = asked.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise OptionError(f"The {name} page must be a whole number.")
    return value
