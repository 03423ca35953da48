"""What the page's own scripts may ask for beside the chat: taking in a book, opening one, stopping.

Owns the translation between requests and the keeper of the desk. Every answer is small JSON; an error is its two
sentences. The results themselves arrive through the live stream, in every tab.
"""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.routing import Route

from app.books import MAX_BYTES
from app.guard import Door
from app.ui.desk import Keeper
from app.ui.requests import SMALL_BODY, Handler, body, number, said, text
from app.ui.sample import Sample
from engine.errors import DocumentError

NAME_HEADER = "x-file-name"

DOORS = (
    Door("POST", "/books", limit=MAX_BYTES),
    Door("POST", "/books/open", limit=SMALL_BODY),
    Door("POST", "/books/sample", limit=SMALL_BODY),
    Door("POST", "/reading/choose", limit=SMALL_BODY),
    Door("POST", "/reading/again", limit=SMALL_BODY),
    Door("POST", "/reading/stop", limit=SMALL_BODY),
    Door("POST", "/asking/stop", limit=SMALL_BODY),
)


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
            "/asking/stop": self.stop_asking,
        }
        return [Route(path, said(handler), methods=["POST"]) for path, handler in handlers.items()]

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
        asked = await body(request)
        book = self._keeper.books.get(text(asked, "id"))
        self._keeper.open(book, text(asked, "password") or None)

    async def open_sample(self, request: Request) -> None:
        if self._sample.file is None:
            raise DocumentError("The sample book is missing from this copy of Trifold.", "Open a book of your own.")
        self._keeper.open(await run_in_threadpool(self._keeper.books.copy_in, self._sample.file))

    async def choose(self, request: Request) -> None:
        asked = await body(request)
        self._keeper.choose(number(asked, "first"), number(asked, "last"))

    async def again(self, request: Request) -> None:
        self._keeper.read_again()

    async def stop_reading(self, request: Request) -> None:
        self._keeper.stop_reading()

    async def stop_asking(self, request: Request) -> None:
        self._keeper.stop_asking()
