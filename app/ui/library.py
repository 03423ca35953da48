"""The library as a part of the page: books with their covers, chats, search, export, and what is deleted.

Owns the routes and the keys of the live stream for these. What is listed is put together again only when something
was written or a while has passed: the stream asks ten times a second.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from app.books import Book
from app.chats import Chat
from app.guard import Door
from app.store import export, tree
from app.store.search import Found
from app.ui import wording
from app.ui.desk import Keeper
from app.ui.presentation import View
from app.ui.requests import SMALL_BODY, body, number, said, text
from app.ui.sample import Sample
from app.ui.suggestions import suggestions
from app.ui.view import pages_read
from engine.errors import OptionError

LOOK_SECONDS = 5.0  # sizes on disk and days are looked at this often
_HUES = 360
_MARKS = re.compile(r"[*_`#>]+(?=\S)|(?<=\S)[*_`]+")  # of Markdown: a list of findings shows words alone
_KINDS = {"md": "text/markdown; charset=utf-8", "json": "application/json"}

_POSTS = (
    "/books/delete",
    "/books/close",
    "/chats/open",
    "/chats/rename",
    "/chats/delete",
    "/chats/version",
    "/chats/text",
    "/chats/search",
)


class Library:
    """A panel of the page (``app.ui.panel``).

    Args:
        keeper: keeps the desk.
        sample: the bundled book, for the questions it comes with.
    """

    doors = (
        *(Door("POST", path, limit=SMALL_BODY) for path in _POSTS),
        Door("GET", "/covers/*"),
        Door("GET", "/chats/export"),
    )

    def __init__(self, keeper: Keeper, sample: Sample) -> None:
        self._keeper = keeper
        self._sample = sample
        self._listed: tuple[object, View] = (None, {})
        self._suggested: tuple[object, list[str]] = (None, [])

    def routes(self) -> Sequence[Route]:
        posts = (
            self.delete_book,
            self.close_book,
            self.open_chat,
            self.rename_chat,
            self.delete_chat,
            self.show_version,
            self.text_of,
            self.search,
        )
        return (
            *(Route(path, said(post), methods=["POST"]) for path, post in zip(_POSTS, posts, strict=True)),
            Route("/covers/{sha256}", self.cover, methods=["GET"]),
            Route("/chats/export", said(self.export_chat), methods=["GET"]),
        )

    # What the page shows -------------------------------------------------------------------------------------

    def view(self) -> View:
        self._keeper.chats.database.mend()
        return {**self._lists(), "suggestions": self.suggestions(), "storage": self._keeper.chats.database.trouble}

    def _lists(self) -> View:
        keeper, now = self._keeper, time.time()
        book = keeper.desk.book.sha256 if keeper.desk.book else ""
        state = (book, keeper.chats.database.changes, keeper.books.database.changes, now // LOOK_SECONDS)
        if self._listed[0] != state:
            lines = keeper.chats.of_book(book) if book else ()
            chats = [{"id": line.id, "title": line.title, "line": wording.moment(line.changed, now)} for line in lines]
            self._listed = state, {"books": [self._book(book, now) for book in keeper.books.all()], "chats": chats}
        return self._listed[1]

    def _book(self, book: Book, now: float) -> View:
        counts = [wording.counted(book.pages, book.unit)] if book.pages else []
        counts += [wording.counted(book.tokens, "token")] if book.tokens else []
        return {
            "id": book.sha256,
            "title": book.shown,
            "author": book.author,
            "line": " · ".join(counts) or "not read yet",
            "short": " · ".join([*counts[:1], wording.day(book.opened, now)]),
            "foot": f"{wording.day(book.opened, now)} · {wording.size(self._keeper.size_of(book))}",
            "partly": f"read to {book.unit} {wording.count(book.pages_read)}" if _is_partly_read(book) else "",
            "cover": self._keeper.books.cover(book.sha256) is not None,
            "hue": int(book.sha256[:6], 16) % _HUES,
        }

    def suggestions(self) -> list[str]:
        """Questions that are worth asking the book on the desk, as far as it has been read."""
        desk = self._keeper.desk
        document, read = desk.document, pages_read(desk)
        if document is None or desk.book is None or not read:
            return []
        state = (id(document), read)
        if self._suggested[0] != state:
            own = self._sample.questions if desk.book.sha256 == self._sample.sha256 else ()
            self._suggested = state, list(own or suggestions(document, read))
        return self._suggested[1]

    # Books ---------------------------------------------------------------------------------------------------

    async def cover(self, request: Request) -> Response:
        file = self._keeper.books.cover(request.path_params["sha256"])
        if file is None:
            return Response(status_code=404)
        return FileResponse(file, media_type="image/png", headers={"cache-control": "private, max-age=86400"})

    async def delete_book(self, request: Request) -> None:
        await run_in_threadpool(self._keeper.delete, text(await body(request), "id"))

    async def close_book(self, request: Request) -> None:
        self._keeper.close_book()

    # Chats ---------------------------------------------------------------------------------------------------

    async def open_chat(self, request: Request) -> Response:
        """Lay a chat on the desk, with its book if that is another one; ``message``: what is to be seen of it."""
        asked = await body(request)
        chat, message = self._chat(asked), asked.get("message")
        keeper, desk = self._keeper, self._keeper.desk
        if desk.book is None or desk.book.sha256 != chat.book:
            keeper.open(keeper.books.get(chat.book), chat=chat.id)
        else:
            keeper.show_chat(chat.id)
        if isinstance(message, int):
            keeper.chats.show(chat.id, message)
        shown = keeper.chats.get(chat.id)
        at = shown.position_of(message) if shown and isinstance(message, int) else None
        return JSONResponse({"position": at})

    async def rename_chat(self, request: Request) -> None:
        asked = await body(request)
        self._keeper.chats.rename(self._chat(asked).id, text(asked, "name"))

    async def delete_chat(self, request: Request) -> None:
        self._keeper.delete_chat(self._chat(await body(request)).id)

    async def show_version(self, request: Request) -> None:
        self._keeper.show_version(number(await body(request), "message"))

    async def text_of(self, request: Request) -> Response:
        """The words of a message as they were written, for the clipboard and for editing."""
        message, chat = number(await body(request), "message"), self._keeper.chat
        at = chat.position_of(message) if chat else None
        if chat is None or at is None:
            raise OptionError("This message is no longer on the page.", "Load the page again.")
        turn = chat.exchanges[at]
        return JSONResponse({"text": turn.question if message == turn.question_id else turn.answer})

    async def search(self, request: Request) -> Response:
        words = text(await body(request), "words")
        found = await run_in_threadpool(self._keeper.chats.search, words)
        titles = {book.sha256: book.shown for book in self._keeper.books.all()}
        names = {line.id: line.title for line in self._keeper.chats.all()}
        kept = [hit for hit in found if hit.book in titles]
        return JSONResponse({"found": [_found(hit, titles[hit.book], names.get(hit.chat, "")) for hit in kept]})

    async def export_chat(self, request: Request) -> Response:
        chat, form = self._chat(dict(request.query_params)), request.query_params.get("form", "md")
        if form not in _KINDS:
            raise OptionError("A chat can be saved as Markdown (md) or as JSON (json).")
        book = self._keeper.books.get(chat.book)
        if form == "md":
            content = export.as_markdown(chat, book.shown)
        else:
            rows = self._keeper.chats.database.read(lambda connection: tree.all_of(connection, chat.id))
            about = {"sha256": book.sha256, "title": book.shown, "author": book.author, "file": book.name}
            content = export.as_json(chat, about, rows)
        name = quote(export.file_name(chat.title, form))
        headers = {"content-disposition": f"attachment; filename*=utf-8''{name}", "cache-control": "no-store"}
        return Response(content, media_type=_KINDS[form], headers=headers)

    def _chat(self, asked: dict[str, Any]) -> Chat:
        chat = self._keeper.chats.get(text(asked, "id"))
        if chat is None:
            raise OptionError("This chat is no longer there.", "Choose another one.")
        return chat


def _is_partly_read(book: Book) -> bool:
    return 0 < book.pages_read < book.pages


def _found(hit: Found, book: str, chat: str) -> View:
    return {
        "chat": hit.chat,
        "message": hit.message,
        "role": hit.role,
        "title": chat,
        "book": book,
        "parts": [[_MARKS.sub("", piece), marked] for piece, marked in hit.parts],
    }
