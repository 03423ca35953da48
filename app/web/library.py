"""Serves the library: books with their covers, chats, search, export and deletion.

Owns the library's routes and its keys of the live stream. The stream asks for the keys many times a second. So the
lists are rebuilt only when the database has changed, or when ``LOOK_SECONDS`` have passed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from app.core import export, format
from app.core.abilities import abilities
from app.core.books import Book
from app.core.chats import Chat, FoundMessage, all_messages
from app.core.format import View
from app.core.notes import NOTES
from app.core.outside import open_part
from app.core.state import AppState
from app.core.suggestions import Sample, language_of_book, phrase_questions, suggestions
from app.core.tried_questions import TriedQuestions
from app.readers import recognition
from app.web.live import pages_read
from app.web.routes import (
    BookAsked,
    Handler,
    MessageAsked,
    NumberIfSaid,
    PageRoute,
    RequestBody,
    Text,
    gets,
    parsed,
    posts,
)
from engine.document import Document, extent_of
from engine.errors import DocumentError, OptionError
from engine.languages import language_of

# seconds between two updates of what the library shows: times such as "yesterday", and sizes on disk
LOOK_SECONDS = 5.0
_HUES = 360
# matches Markdown's marks, which are removed from the results of a search
_MARKS = re.compile(r"[*_`#>]+(?=\S)|(?<=\S)[*_`]+")
_KINDS = {"md": "text/markdown; charset=utf-8", "json": "application/json"}


class ChatAsked(RequestBody):
    """A request to open a chat. ``message``: the id of the message to show."""

    id: Text = ""
    name: Text = ""
    message: NumberIfSaid = None


class NamedAsked(RequestBody):
    """A request to give a book a name."""

    id: Text = ""
    name: Text = ""


class _TextAsked(MessageAsked):
    """A request for a message's text. ``pages``: whether to add an answer's passages as footnotes."""

    pages: Any = False


class WordsAsked(RequestBody):
    words: Text = ""


class Library:
    """Serves the library. A self-contained part of the page (``app.web.live.Panel``).

    Args:
        state: the state of the program.
        sample: the bundled book, which has suggested questions of its own.
    """

    def __init__(self, state: AppState, sample: Sample) -> None:
        self._state = state
        self._sample = sample
        self._listed: tuple[object, View] = (None, {})
        self._tried = TriedQuestions(state)
        self._aside = ThreadPoolExecutor(1, "trifold-suggestions")
        self._suggested: tuple[tuple[int, int], Future[list[str]]] | None = None
        self._ready: tuple[int, list[str]] = (0, [])
        self._language: tuple[Document | None, str] = (None, "")

    def routes(self) -> Sequence[PageRoute]:
        handlers: dict[str, Handler] = {
            "/books/delete": self.delete_book,
            "/books/close": self.close_book,
            "/books/rename": self.rename_book,
            "/chats/open": self.open_chat,
            "/chats/rename": self.rename_chat,
            "/chats/delete": self.delete_chat,
            "/chats/version": self.show_version,
            "/chats/text": self.text_of,
            "/chats/search": self.search,
        }
        cover = PageRoute("GET", "/covers/{sha256}", self.cover)
        return *posts(handlers), cover, *gets({"/chats/export": self.export_chat})

    # What the page shows -------------------------------------------------------------------------------------

    def view(self) -> View:
        database = self._state.chats.database
        database.mend()
        notice = database.trouble or database.notice
        return {**self._lists(), "suggestions": self.suggestions(), "language": self.language(), "storage": notice}

    def _lists(self) -> View:
        state, now = self._state, time.time()
        book = state.current.book.sha256 if state.current.book else ""
        seen = (book, state.chats.database.changes, state.books.database.changes, now // LOOK_SECONDS)
        noted = state.notes.counts() if self._listed[0] != seen else {}
        if self._listed[0] != seen:
            lines = state.chats.of_book(book) if book else ()
            chats = [{"id": line.id, "title": line.title, "line": format.moment(line.changed, now)} for line in lines]
            self._listed = seen, {"books": [self._book(one, now, noted) for one in state.books.all()], "chats": chats}
        return self._listed[1]

    def _book(self, book: Book, now: float, noted: Mapping[str, int]) -> View:
        several, pages = len(self._state.books.listed(book)), self._extent(book)
        counts = [format.counted(several, "document")] if several else []
        counts += [pages] if pages else []
        counts += ["recognised from pictures"] if book.pages and self._is_recognised(book) else []
        return {
            "id": book.sha256,
            "several": several,
            "notes": noted.get(book.sha256, 0),
            "title": book.shown,
            "author": book.author,
            "file": book.name if book.title and not book.is_collection and not book.name.startswith(book.shown) else "",
            "line": " · ".join(counts) or "not read yet",
            "short": " · ".join([*counts[:1], format.day(book.opened, now)]),
            "foot": f"{format.day(book.opened, now)} · {format.size(self._state.size_of(book))}",
            "partly": _partly(book),
            "cover": self._state.books.cover(book.sha256) is not None,
            "hue": int(book.sha256[:6], 16) % _HUES,
        }

    def _extent(self, book: Book) -> str:
        """The number of a book's pages in words; "" if it is unknown for the book or for a document of a collection."""
        try:
            parts = self._state.books.members(book) or (book,)
        except DocumentError:
            return ""
        sizes = [(part.pages, part.unit) for part in parts]
        return extent_of(sizes, book.pages) if book.pages and sum(size for size, _ in sizes) == book.pages else ""

    def _is_recognised(self, book: Book) -> bool:
        return recognition.is_kept(self._state.books.path(book).parent)

    def suggestions(self, wait: bool = False) -> list[str]:
        """Questions worth asking about the pages read so far. For a model that was trained to refuse some questions
        (its card lists the refusals), return only questions that it has answered once after the reading.

        Args:
            wait: whether to wait until the questions have been made. Otherwise the first call returns none.
        """
        current = self._state.current
        document, read, model = current.document, pages_read(current), self._state.engine.status().model
        if document is None or current.book is None or not read or model is None:
            return []
        card = abilities(str(model.path))
        is_part = bool(open_part(document, current.whole))
        is_sample = current.book.sha256 == self._sample.sha256 and document.kind != NOTES

        def own() -> tuple[str, ...]:
            return self._sample.questions_about(document.pages[:read]) if is_sample else ()

        # The tests ask the bundled model the questions of the sample book. Questions about other books are tried first,
        # if the model may refuse to answer them.
        if card.refusals and not (is_sample and card.only_quotes):

            def candidates() -> list[str]:
                made = () if card.only_quotes else (*own(), *suggestions(document, read, general=False))
                return [*made, *phrase_questions(document, read)]

            return self._tried.passed(document, str(model.path), card, candidates)

        def general() -> Sequence[str]:
            return own() or (() if card.only_quotes else suggestions(document, read, is_part=is_part))

        return self._made_aside(document, read, general, wait)

    def _made_aside(self, document: Document, read: int, make: Callable[[], Sequence[str]], wait: bool) -> list[str]:
        """The newest suggestions about a document that a thread has made; [] until the first ones are made. A long book
        takes seconds, in which the page would stand still.
        """
        seen = (id(document), read)
        if self._suggested is None or (self._suggested[0] != seen and self._suggested[1].done()):
            self._suggested = seen, self._aside.submit(lambda: list(make()))
        if wait or self._suggested[1].done():
            self._ready = self._suggested[0][0], self._suggested[1].result()
        return self._ready[1] if self._ready[0] == id(document) else []

    def language(self) -> str:
        """The language of the open book, with which a screen reader pronounces it; empty if unknown."""
        document = self._state.current.document
        if self._language[0] is not document:
            self._language = document, (language_of_book(document) or "") if document else ""
        return self._language[1]

    # Books ---------------------------------------------------------------------------------------------------

    async def cover(self, request: Request) -> Response:
        file = self._state.books.cover(request.path_params["sha256"])
        if file is None:
            return Response(status_code=404)
        return FileResponse(file, media_type="image/png", headers={"cache-control": "private, max-age=86400"})

    async def delete_book(self, request: Request) -> None:
        await run_in_threadpool(self._state.delete, (await parsed(request, BookAsked)).id)

    async def rename_book(self, request: Request) -> None:
        asked = await parsed(request, NamedAsked)
        await run_in_threadpool(self._state.rename, asked.id, asked.name)

    async def close_book(self, request: Request) -> None:
        self._state.close_book()

    # Chats ---------------------------------------------------------------------------------------------------

    async def open_chat(self, request: Request) -> Response:
        """Open a chat. If it is about a book that is not open, open that book too."""
        asked = await parsed(request, ChatAsked)
        chat, message = self._chat(asked.id), asked.message
        state, current = self._state, self._state.current
        if current.book is None or current.book.sha256 != chat.book:
            state.open(state.books.get(chat.book), chat=chat.id)
        else:
            state.show_chat(chat.id)
        if message is not None:
            state.chats.show(chat.id, message)
        shown = state.chats.get(chat.id)
        position = shown.position_of(message) if shown and message is not None else None
        return JSONResponse({"position": position})

    async def rename_chat(self, request: Request) -> None:
        asked = await parsed(request, ChatAsked)
        self._state.chats.rename(self._chat(asked.id).id, asked.name)

    async def delete_chat(self, request: Request) -> None:
        self._state.delete_chat(self._chat((await parsed(request, ChatAsked)).id).id)

    async def show_version(self, request: Request) -> None:
        self._state.show_version((await parsed(request, MessageAsked)).message)

    async def text_of(self, request: Request) -> Response:
        """The words of a message as written, for the clipboard, for editing and for speech. If ``pages`` is True, an
        answer has its passages as footnotes.

        A missing message gives status 200 with a cause, not an error, because a page may ask for the words of a
        finished answer when another chat is already open.
        """
        asked, chat = await parsed(request, _TextAsked), self._state.chat
        message = asked.message
        position = chat.position_of(message) if chat else None
        if chat is None or position is None:
            return JSONResponse({"cause": "This message is no longer on the page.", "remedy": "Load the page again."})
        turn = chat.exchanges[position]
        text = turn.question if message == turn.question_id else turn.answer
        if asked.pages is True and message == turn.answer_id:
            text = export.answer_with_pages(turn, self._state.books.get(chat.book).shown)
        return JSONResponse({"text": text, "language": language_of(text)})

    async def search(self, request: Request) -> Response:
        words = (await parsed(request, WordsAsked)).words
        found = await run_in_threadpool(self._state.chats.search, words)
        titles = {book.sha256: book.shown for book in self._state.books.all()}
        names = {line.id: line.title for line in self._state.chats.all()}
        kept = [hit for hit in found if hit.book in titles]
        return JSONResponse({"found": [_found(hit, titles[hit.book], names.get(hit.chat, "")) for hit in kept]})

    async def export_chat(self, request: Request) -> Response:
        chat, form = self._chat(request.query_params.get("id", "")), request.query_params.get("form", "md")
        if form not in _KINDS:
            raise OptionError("A chat can be saved as Markdown (md) or as JSON (json).")
        book = self._state.books.get(chat.book)
        thoughts = request.query_params.get("thoughts") == "1"
        if form == "md":
            content = export.as_markdown(chat, book.shown, thoughts=thoughts)
        else:
            rows = self._state.chats.database.read(lambda connection: all_messages(connection, chat.id))
            about: dict[str, Any] = {
                "sha256": book.sha256,
                "title": book.shown,
                "author": book.author,
                "file": book.name,
            }
            if documents := self._state.books.listed(book):
                about["documents"] = documents
            content = export.as_json(chat, about, rows, thoughts=thoughts)
        name = quote(export.file_name(chat.title, form))
        headers = {"content-disposition": f"attachment; filename*=utf-8''{name}", "cache-control": "no-store"}
        return Response(content, media_type=_KINDS[form], headers=headers)

    def _chat(self, chat_id: str) -> Chat:
        chat = self._state.chats.get(chat_id)
        if chat is None:
            raise OptionError("This chat is no longer there.", "Choose another one.")
        return chat


def _partly(book: Book) -> str:
    """Say how far a book was read, if its reading was stopped; "" otherwise."""
    if not 0 < book.pages_read < book.pages:
        return ""
    return "read in part" if book.is_collection else f"read to {book.unit} {format.count(book.pages_read)}"


def _found(hit: FoundMessage, book: str, chat: str) -> View:
    return {
        "chat": hit.chat,
        "message": hit.message,
        "role": hit.role,
        "of": hit.book,
        "title": chat,
        "book": book,
        "parts": [[_MARKS.sub("", piece), marked] for piece, marked in hit.parts],
    }
