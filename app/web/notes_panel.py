"""Serves the notes of the open book: makes, changes, finds and exports notes, and lets questions be answered from them.

Owns these routes and this key of the live stream:

    the live key "notes"        the number of notes, and whether answers come from them
    POST /notes/list            the notes that contain the given words
    POST /notes/add             note a passage of a page, or a sentence of an answer
    POST /notes/sentences       the sentences of an answer, each with its page
    POST /notes/change          change the words or the colour of a note
    POST /notes/delete          delete a note
    POST /notes/restore         restore a deleted note
    POST /notes/read            let answers come from the notes
    POST /notes/leave           let answers come from the book again
    GET /notes/page/{number}    the notes on a page, with the characters that they mark
    GET /notes/export           the notes of a book, as a file
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.core import export, notes
from app.core.format import View, counted, place_named
from app.core.notes import ChangedMeanwhile, Note
from app.core.references import FORMS, sources_of
from app.core.state import AppState
from app.trust.quoted import fold, sentences
from app.web.library import WordsAsked
from app.web.routes import (
    Handler,
    MessageAsked,
    NumberIfSaid,
    PageRoute,
    RequestBody,
    Text,
    answer_or_refusal,
    gets,
    parsed,
    posts,
)
from engine.document import Document
from engine.errors import OptionError

_LARGEST = 8 * notes.LONGEST  # maximum bytes of a request with a passage, or with a person's own words
MOST_LISTED = 500  # maximum notes in the list
_FOUND = ("quoted", "verbatim", "says", "near")  # kinds of citations that have a passage


class NoteAsked(RequestBody):
    id: Text = ""
    words: Text = ""
    colour: Text = notes.COLOURS[0]


class ChangeAsked(NoteAsked):
    """A request to change a note. ``seen``: the words that the note had when the person began to change them.
    ``colour``: its new colour; "" if it keeps the present one.
    """

    colour: Text = ""
    seen: Text | None = None


class NewNoteAsked(NoteAsked):
    """A request for a note: a passage of the page ``page`` with the text around it, or the words ``said`` of the answer
    ``message``.
    """

    page: NumberIfSaid = None
    passage: Text = ""
    before: Text = ""
    after: Text = ""
    message: NumberIfSaid = None
    said: Text = ""


class NotesPanel:
    """Serves the notes of the open book. A self-contained part of the page (``app.web.live.Panel``).

    Args:
        state: the state of the program.
    """

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._counted: tuple[object, View] = None, {}

    def routes(self) -> Sequence[PageRoute]:
        written = {"/notes/add": self.add, "/notes/change": self.change}
        handlers: dict[str, Handler] = {
            "/notes/list": self.list,
            "/notes/sentences": self.sentences,
            "/notes/delete": self.delete,
            "/notes/restore": self.restore,
            "/notes/read": self.read,
            "/notes/leave": self.leave,
        }
        shown = {"/notes/page/{number:int}": self.on_page, "/notes/export": self.export}
        return *posts(written, _LARGEST), *posts(handlers), *gets(shown)

    def view(self) -> View:
        """The number of notes on the open book, and whether answers come from them.

        ``version`` begins with the book's hash and changes with the notes.
        """
        current, store = self._state.current, self._state.notes
        document = current.whole or current.document
        seen = (current.book.sha256 if current.book else "", id(document), store.changes, bool(current.before_notes))
        if self._counted[0] != seen:
            is_open = document is not None and current.book is not None
            every, placed = store.count(notes.books_of(*self._open())) if is_open else (0, 0)
            shown = {
                "version": "-".join(map(str, seen)),
                "count": every,
                "on_pages": placed,
                "asked": bool(current.before_notes),
            }
            self._counted = seen, shown
        return {"notes": self._counted[1]}

    async def list(self, request: Request) -> Response:
        words = (await parsed(request, WordsAsked)).words
        every = await run_in_threadpool(self._all)
        found = notes.search(every, words)
        document, _ = self._open()
        here = f"{len(found)} of {counted(len(every), 'note')}" if len(found) < len(every) else ""
        if len(found) > MOST_LISTED:
            here = f"The first {MOST_LISTED} of {counted(len(found), 'note')}; search for the others."
        return JSONResponse({"notes": [_view(document, note) for note in found[:MOST_LISTED]], "said": here})

    async def add(self, request: Request) -> Response:
        asked = await parsed(request, NewNoteAsked)
        document, book = self._open()
        note = await run_in_threadpool(self._answered if asked.message else self._marked, asked, document, book)
        kept, again = await run_in_threadpool(self._state.notes.noted, note)
        return JSONResponse({**_view(document, kept), "again": again})

    def _marked(self, note: NewNoteAsked, document: Document, book: str) -> Note:
        page = document.page(note.page or 0)
        if page is None:
            raise OptionError("There is no such page in this book.", "Open the page again.")
        member = document.member_at(page.number)
        start, stop = notes.marked(page, note.passage, note.before, note.after)
        return Note(
            "",
            member.sha256 if member else book,
            page.number - (member.page_offset if member else 0),
            page.label,
            start,
            stop,
            page.text[start:stop] or note.passage.strip(),
            words=note.words,
            colour=note.colour,
        )

    def _answered(self, asked: NewNoteAsked, document: Document, book: str) -> Note:
        answer, record = self._answer(asked.message or 0)
        chip = _chip(answer, record, asked.said)
        bare = Note("", book, said=asked.said.strip(), words=asked.words, colour=asked.colour)
        if chip is None:
            return bare
        page = chip["pages"][0]
        here = [(start, stop) for number, start, stop in chip["marks"] if number == page["number"]]
        start, stop = (min(here)[0], max(here)[1]) if here and not record.get("from_notes") else (0, 0)
        passage = (chip.get("extract") or {}).get("hit", "")
        page_noted = notes.page_of(document, Note("", chip.get("of", book), page["number"]))
        passage = (page_noted.text[start:stop] if page_noted else "") or passage
        where = {"page": page["number"], "label": page["label"], "start": start, "stop": stop, "passage": passage}
        return replace(bare, book=chip.get("of", book), **where)

    async def sentences(self, request: Request) -> Response:
        asked = await parsed(request, MessageAsked)
        answer, record = self._answer(asked.message)
        unit = str(record.get("unit", "page"))
        views = []
        for span in sentences(answer):
            chip = _chip(answer, record, answer[span.start : span.end])
            views.append(
                {"said": answer[span.start : span.end], "place": place_named(chip, unit, long=False) if chip else ""}
            )
        return JSONResponse({"sentences": views})

    async def change(self, request: Request) -> Response:
        """Change a note. If another tab has changed its words meanwhile, change nothing and return these words as
        ``now``, so that the person sees both.
        """
        asked = await parsed(request, ChangeAsked)
        current = self._state.current
        document = current.whole or current.document
        try:
            note = await run_in_threadpool(self._state.notes.change, asked.id, asked.words, asked.colour, asked.seen)
        except ChangedMeanwhile as error:
            return JSONResponse({"now": error.note.words})
        return JSONResponse(_view(document, note) if document else {"id": note.id})

    async def delete(self, request: Request) -> None:
        await run_in_threadpool(self._state.notes.delete, (await parsed(request, NoteAsked)).id)

    async def restore(self, request: Request) -> None:
        await run_in_threadpool(self._state.notes.put_back, (await parsed(request, NoteAsked)).id)

    async def read(self, request: Request) -> Response:
        return await run_in_threadpool(answer_or_refusal, partial(_done, self._state.read_notes))

    async def leave(self, request: Request) -> Response:
        return await run_in_threadpool(answer_or_refusal, partial(_done, self._state.leave_notes))

    async def on_page(self, request: Request) -> Response:
        """The notes on a page, with the characters of its text that they mark."""
        return JSONResponse({"notes": await run_in_threadpool(self._on_page, request.path_params["number"])})

    def _on_page(self, number: int) -> Sequence[View]:
        document, whole = self._open()
        page = document.page(number)
        if page is None:
            return ()
        member = document.member_at(number)
        book, before = (member.sha256, member.page_offset) if member else (whole, 0)
        views = []
        for note in self._state.notes.on_page(book, number - before):
            start, stop = notes.marks(page, note)
            views.append({"id": note.id, "colour": note.colour, "start": start, "stop": stop, "passage": note.passage})
        return views

    async def export(self, request: Request) -> Response:
        form, wanted = request.query_params.get("form", "md"), request.query_params.get("book", "")
        if form not in FORMS:
            raise OptionError("Notes can be saved as Markdown (md), BibTeX (bib) or RIS (ris).")
        state = self._state
        book = state.books.get(wanted) if wanted else state.current.book
        if book is None:
            raise OptionError("No book is open.", "Open one first.")
        sources = await run_in_threadpool(sources_of, state.books, state.notes, book, state.current.whole)
        kept = state.notes.of([source.sha256 for source in sources])
        kind, written = FORMS[form]
        name = quote(export.file_name(f"Notes on {book.shown}", form))
        headers = {"content-disposition": f"attachment; filename*=utf-8''{name}", "cache-control": "no-store"}
        return Response(written(book.shown, sources, kept), media_type=kind, headers=headers)

    def _open(self) -> tuple[Document, str]:
        """The open book and its hash.

        Raises:
            OptionError: no book is open.
        """
        current = self._state.current
        document = current.whole or current.document
        if current.book is None or document is None:
            raise OptionError("No book is open.", "Open one first.")
        return document, current.book.sha256

    def _all(self) -> tuple[Note, ...]:
        return self._state.notes.of(notes.books_of(*self._open()))

    def _answer(self, message: int) -> tuple[str, Mapping[str, Any]]:
        """The text of a shown answer, and the record of its citations."""
        chat = self._state.chat
        position = chat.position_of(message) if chat else None
        if chat is None or position is None:
            raise OptionError("This message is no longer on the page.", "Load the page again.")
        return chat.exchanges[position].answer, chat.exchanges[position].notes or {}


def _done(work: Callable[[], None]) -> dict[str, Any]:
    work()
    return {}


def _chip(answer: str, record: Mapping[str, Any], words: str) -> Mapping[str, Any] | None:
    """Find the citation for the words of a note. A citation fits if its sentence contains these words or is contained
    in them. Return the first fitting citation that has a page; None if there is none.
    """
    wanted = fold(words)
    for chip in record.get("chips", ()):
        if chip["kind"] not in _FOUND or not chip["pages"]:
            continue
        of = next((span for span in sentences(answer) if span.start <= chip["from"] < span.end), None)
        text = fold(answer[of.start : of.end]) if of else ""
        if wanted and text and (wanted in text or text in wanted):
            return chip
    return None


def _view(document: Document, note: Note) -> View:
    page, member = notes.page_of(document, note), notes.member_of(document, note)
    return {
        "id": note.id,
        "page": page.number if page else None,
        "place": notes.place(document, note),
        "of": member.sha256 if member else "",
        "passage": " ".join(note.passage.split()),
        "said": note.said if fold(note.said) != fold(note.passage) else "",
        "words": note.words,
        "colour": note.colour,
    }
