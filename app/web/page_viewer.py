"""Serves the evidence for an answer: cards next to citations, and the page of the book that a click opens.

    GET /provenance                 where the characters of every answer in the chat come from
    GET /citations/{turn}/{chip}    the text of the card next to a citation
    GET /pages/{number}             one page of the open book: its name, its neighbours, its text with marks
    GET /pages/{number}/marks       the places of the marks on the page's picture
    GET /pages/{number}/words       the words on the page's picture with their places, for selecting text
    POST /find                      the places of words in the book, each with the text around it
    GET /pages/{book}/{number}/{width}.png    the picture of a page, ``width`` pixels wide

Only the open book is shown, and only through these routes. No route takes a path or a file name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.core import notes
from app.core.books import Book
from app.core.find import MOST_HITS, Finder, Found, Hit
from app.core.format import RECOGNISED, View, counted, page_name, page_of
from app.core.state import AppState
from app.readers import recognition
from app.readers.page_images import PageImages, Passage, Rectangle
from app.readers.recognised import PICTURE, illegible_lines, picture_at
from app.trust.quoted import excerpt, sentences
from app.web import messages
from app.web.auth import MOST_DIGITS
from app.web.library import WordsAsked
from app.web.routes import PageRoute, parsed, posts
from engine.document import Document, Page
from engine.errors import DocumentError, InputError, OptionError, TrifoldError

_DRAWN = "pdf"  # the kind of documents whose pages are shown as pictures
# maximum characters before and after a mark that distinguish its words from equal words elsewhere on the page
_AROUND = 40
_LINE = 60  # characters of the text that are shown before and after a found place
_LONGEST_LINE = 600  # maximum characters of a sentence that a note of a hit takes; of a longer one it takes the line
_BAR = " | "  # the separator of a row's cells (``app.readers.tables``)
_MOST_ROWS = 200  # maximum rows of a table; further rows are not marked
_MOST_MARKS = 100  # maximum marks of a search on one page; further places are not marked
GONE = " That document is no longer open."
_ORIGINS = {
    "recognised": RECOGNISED,
    "unread": "This page is a picture. It was not read.",
    "figure": "Most of this page is a picture, which was not read; its text was.",
    "doubtful": "The text of this page is probably wrong.",
}
# HTTP cache header; the browser may keep a response for a day, because different content has a different address
_DAY = "private, max-age=86400, immutable"


class PageViewer:
    """Serves citations and pages of the open book. A self-contained part of the page (``app.web.live.Panel``).

    Args:
        state: the state of the program.
        pictures: draws pages.
    """

    def __init__(self, state: AppState, pictures: PageImages | None = None) -> None:
        self._state = state
        self._pictures = pictures or PageImages()
        self._finder = Finder()
        self._search = 0  # number of the newest search

    def routes(self) -> Sequence[PageRoute]:
        shown = {
            "/provenance": self.provenance,
            "/citations/{turn:int}/{chip:int}": self.card,
            "/pages/{number:int}": self.page,
            "/pages/{number:int}/marks": self.marks,
            "/pages/{number:int}/words": self.words,
            "/pages/{book}/{number:int}/{width:int}.png": self.picture,
        }
        return (
            *posts({"/find": self.find}),
            *(PageRoute("GET", path, _answered(handler)) for path, handler in shown.items()),
        )

    def view(self) -> View:
        """The pages for the page map: the number of the first page as ``first``, and the numbers of all pages as
        ``numbers``. ``numbers`` is empty if no page is missing between the first and the last.
        """
        current = self._state.current
        pages = current.document.pages if current.document else ()
        first = pages[0].number if pages else 1
        has_gaps = bool(pages) and pages[-1].number - first + 1 > len(pages)
        return {
            "paging": {
                "book": current.book.sha256 if current.book else "",
                "first": first,
                "numbers": [page.number for page in pages] if has_gaps else [],
            }
        }

    def provenance(self, request: Request) -> Response:
        chat = self._state.chat
        turns = chat.exchanges if chat else ()
        return JSONResponse({"answers": [turn.provenance for turn in turns]})

    def card(self, request: Request) -> Response:
        shown = messages.card(self._notes(request.path_params["turn"]), request.path_params["chip"])
        if shown is None:
            raise InputError("There is no such citation any more.", "Look at the newest answer.")
        if shown["page"] is not None and shown["of"]:
            shown["page"] = self._number_of(shown["of"], shown["page"])
            shown["said"] += "" if shown["page"] else GONE
        return JSONResponse(shown)

    def page(self, request: Request) -> Response:
        book, document = self._open()
        page = _page(document, request.path_params["number"])
        of, marked = _own(book, document, page), self._marked(request, page)
        return JSONResponse(
            {
                "number": page.number,
                "first": document.pages[0].number,
                "last": document.pages[-1].number,
                "own": of.number,
                "own_last": of.last,
                "document": of.title,
                "name": page_name(page.label, of.unit, long=True),
                "picture": f"/pages/{of.sha256}/{of.number}" if of.kind == _DRAWN else "",
                "text": page.text,
                "origin": self._origin(of, page),
                "recognisable": self._is_recognisable(of, page),
                "marks": [[start, end] for start, end in marked],
                "line": _line_of(page.text, request.query_params),
                "tables": [[table.rows[0][0], table.rows[-1][1]] for table in _tables(page.text, marked)],
            }
        )

    def marks(self, request: Request) -> Response:
        """Return the marks of a citation, a note or a search as rectangles on the page's picture, and the outlines of
        tables that have marks. ``of`` holds for each rectangle the index of its mark.
        """
        book, document = self._open()
        page = _page(document, request.path_params["number"])
        own = _own(book, document, page)
        path, password = self._file(own.sha256)
        passages = [_around(page.text, start, end) for start, end in self._marked(request, page)]
        tables = _tables(page.text, self._marked(request, page))
        rows = [_around(page.text, start, end) for table in tables for start, end in table.rows]
        every = self._pictures.find(path, own.number, passages + rows, password)
        marked, placed = every[: len(passages)], iter(every[len(passages) :])
        of = [number for number, rectangles in enumerate(marked) for _ in rectangles]
        outlines = [_outline(table, [next(placed) for _ in table.rows]) for table in tables]
        shown = {"marks": [box for rectangles in marked for box in rectangles], "of": of}
        return JSONResponse(shown | {"tables": [outline for outline in outlines if outline]})

    def words(self, request: Request) -> Response:
        book, document = self._open()
        own = _own(book, document, _page(document, request.path_params["number"]))
        path, password = self._file(own.sha256)
        return JSONResponse({"words": self._pictures.words(path, own.number, password) if own.kind == _DRAWN else []})

    async def find(self, request: Request) -> Response:
        """Find the words of the request in the book. A newer request, as with the next letter, ends the search."""
        words = (await parsed(request, WordsAsked)).words
        _, document = self._open()
        self._search = search = self._search + 1
        found = await run_in_threadpool(self._finder.find, document, words, unwanted=lambda: self._search != search)
        return JSONResponse({"hits": [_hit(document, hit) for hit in found.hits], "said": found_in_words(found)})

    def picture(self, request: Request) -> Response:
        asked = request.path_params
        book, document = self._open()
        if asked["book"] not in (book.sha256, *(member.sha256 for member in document.members)):
            raise InputError("Another book is open now.", "Open the page again.")
        number = self._number_of(asked["book"], asked["number"]) if document.members else asked["number"]
        of = _own(book, document, _page(document, number or 0))
        path, password = self._file(of.sha256)
        drawn = self._pictures.page(of.sha256, path, of.number, asked["width"], password)
        return Response(drawn, media_type="image/png", headers={"cache-control": _DAY})

    def _open(self) -> tuple[Book, Document]:
        current = self._state.current
        document = current.whole or current.document
        if current.book is None or document is None or not document.pages:
            raise InputError("No book is open.", "Open one first.")
        return current.book, document

    def _origin(self, own_page: _Own, page: Page) -> str:
        """Return a sentence about a page that is a picture, or whose text was recognised or is doubtful; "" for any
        other page.
        """
        said = _ORIGINS.get(page.picture, "")
        if page.picture == "recognised":
            path, _ = self._file(own_page.sha256)
            count = illegible_lines(recognition.load_page(path.parent, own_page.number) or {})
            said += f" {counted(count, 'line')} could not be read reliably." if count else ""
        elif pictures := page.text.count(PICTURE):
            said = " ".join(
                filter(None, (said, f"Words were recognised in pictures of this page: {pictures}; may have slips."))
            )
        return said

    def _is_recognisable(self, own_page: _Own, page: Page) -> bool:
        """Whether text recognition could still find text on the page. False if recognition is not installed, or has
        already been tried on this page.
        """
        if page.picture not in ("unread", "doubtful") or recognition.missing():
            return False
        path, _ = self._file(own_page.sha256)
        return recognition.load_page(path.parent, own_page.number) is None

    def _file(self, sha256: str) -> tuple[Path, str | None]:
        """The path of a document's file, and its password."""
        return self._state.books.path(self._state.books.get(sha256)), self._state.parser.passwords.get(sha256)

    def _number_of(self, sha256: str, own: int) -> int | None:
        """Turn the page number ``own`` of one of the book's documents into a page number of the book. None if the book
        no longer has this document or lacks the page.
        """
        book, document = self._open()
        if not document.members:
            return own if sha256 == book.sha256 and document.page(own) else None
        found = next((member for member in document.members if member.sha256 == sha256), None)
        page = document.page(found.page_offset + own) if found else None
        return page.number if page and document.member_at(page.number) is found else None

    def _notes(self, turn: int) -> Mapping[str, Any]:
        chat = self._state.chat
        if chat is None or not 0 <= turn < len(chat.exchanges):
            raise InputError("There is no such answer in this chat.", "Look at the newest one.")
        return chat.exchanges[turn].notes or {}

    def _marked(self, request: Request, page: Page) -> list[tuple[int, int]]:
        """Return the marks on a page, as (start, end) in its text. The request's query names a note (``note``),
        searched words (``find``), or a citation (``turn`` and ``chip``).
        """
        if id := request.query_params.get("note", ""):
            note = self._state.notes.get(id)
            return [
                span for span in [notes.marks(page, note)] if notes.page_of(self._open()[1], note) is page and any(span)
            ]
        if words := request.query_params.get("find", ""):
            _, document = self._open()
            hits = self._finder.find(document, words).hits
            spans = (span for hit in hits for span in hit.spans if document.pages[span.page] is page)
            return [(span.start, span.end) for span in spans][:_MOST_MARKS]
        turn, chip = request.query_params.get("turn", ""), request.query_params.get("chip", "")
        if not (turn.isdecimal() and chip.isdecimal() and len(turn + chip) <= MOST_DIGITS):
            return []
        record, length = self._notes(int(turn)), len(page.text)
        marks, cited = messages.marks(record, int(chip)), messages.card(record, int(chip))
        of = _own(*self._open(), page)
        if cited is None or cited["of"] not in ("", of.sha256):
            return []
        if record.get("from_notes"):  # a citation of notes has offsets in the notes' text, not in the page's text
            return self._noted(page, cited["extract"]["hit"]) if marks and marks[0][0] == of.number else []
        return [(start, end) for number, start, end in marks if number == of.number and 0 <= start < end <= length]

    def _noted(self, page: Page, words: str) -> list[tuple[int, int]]:
        """Return the spans of a page to mark for ``words``, which a citation of notes quotes. If the page lacks
        ``words``, the person wrote them, and every noted passage of the page is marked.
        """
        span = notes.marked(page, words)
        if any(span):
            return [span]
        book, document = self._open()
        kept = self._state.notes.of(notes.books_of(document, book.sha256))
        spans = [notes.marks(page, note) for note in kept if notes.page_of(document, note) is page]
        return sorted({span for span in spans if any(span)})


def found_in_words(found: Found) -> str:
    """Describe how many places were found, and whether they match the words exactly."""
    if not found.hits:
        return "Not found"
    places = f"the first {MOST_HITS} of more places" if found.more else counted(len(found.hits), "place")
    said = {
        "words": "{}",
        "inside": "{}, inside other words",
        "near": "Not as a phrase; {} with all of these words",
        "forms": "Not in this form; {} with other endings",
    }
    return said[found.how].format(places)


def _line_of(text: str, query: Mapping[str, str]) -> list[int] | None:
    """The start and end of the sentence with the selected hit of a search (``now``); in a table, or where no sentence
    ends, of its line. None if no hit is selected.
    """
    now = query.get("now", "")
    if not query.get("find") or not (now.isdecimal() and len(now) <= MOST_DIGITS and int(now) < len(text)):
        return None
    at = int(now)
    start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
    line = [start, end if end >= 0 else len(text)]
    if _BAR in text[slice(*line)]:
        return line
    around = next(([one.start, one.end] for one in sentences(text) if one.start <= at < one.end), line)
    return around if around[1] - around[0] <= _LONGEST_LINE else line


def _around(text: str, start: int, end: int) -> Passage:
    """Return a mark with the text around it, or all words of the picture in whose words it is."""
    if words := picture_at(text, start):
        return "", words, ""
    return text[max(0, start - _AROUND) : start], text[start:end], text[end : end + _AROUND]


@dataclass(frozen=True)
class _Table:
    """The rows of a table, as (start, end) in the page's text, and the indexes of its marked rows."""

    rows: tuple[tuple[int, int], ...]
    marked: frozenset[int]


def _tables(text: str, marks: Sequence[tuple[int, int]]) -> list[_Table]:
    """Find the tables of a page that have marks. A line with ``_BAR`` is a row. A single line without ``_BAR`` between
    two rows also belongs to the table.
    """
    lines = [(line.start(), line.end()) for line in re.finditer(r"[^\n]*", text) if line.group() or not line.start()]
    is_row = [_BAR in text[start:end] for start, end in lines]
    tables: list[_Table] = []
    first = 0
    while first < len(lines):
        if not is_row[first]:
            first += 1
            continue
        last = first
        while any(is_row[last + 1 : last + 3]) and _follow(text, lines[last : last + 3]):
            last += 1 if is_row[last + 1] else 2
        rows = tuple(lines[first : last + 1])
        hit = frozenset(
            row for row, (start, end) in enumerate(rows) if any(start < stop and begin < end for begin, stop in marks)
        )
        if hit and len(rows) > 1:
            tables.append(_Table(rows[:_MOST_ROWS], hit))
        first = last + 1
    return tables


def _follow(text: str, lines: Sequence[tuple[int, int]]) -> bool:
    """Whether no empty line separates ``lines[0]`` from the next row, which is ``lines[1]`` or ``lines[2]``."""
    upto = 1 if _BAR in text[slice(*lines[1])] else 2
    return all(after[0] - before[1] == 1 for before, after in pairwise(lines[: upto + 1]))


def _outline(table: _Table, places: Sequence[Sequence[Rectangle]]) -> View | None:
    """Return the rectangle of a table on the page's picture, and the rectangles of its marked rows. None if fewer than
    two rows were found on the picture.
    """
    boxes = {row: _union(rectangles) for row, rectangles in enumerate(places) if rectangles}
    if len(boxes) < 2:
        return None
    whole = _union(list(boxes.values()))
    rows = [(whole[0], boxes[row][1], whole[2], boxes[row][3]) for row in sorted(table.marked) if row in boxes]
    return {"box": whole, "rows": rows}


def _union(boxes: Sequence[Rectangle]) -> Rectangle:
    return (
        min(box[0] for box in boxes),
        min(box[1] for box in boxes),
        max(box[2] for box in boxes),
        max(box[3] for box in boxes),
    )


def _hit(document: Document, hit: Hit) -> View:
    page = document.pages[hit.page]
    here = [span for span in hit.spans if span.page == hit.page]
    around = excerpt(page.text, here[0].start, here[-1].end, _LINE)
    return {
        "page": page.number,
        "start": here[0].start,
        "name": page_of(document, page),
        "line": [around.before, around.hit, around.after],
    }


@dataclass(frozen=True)
class _Own:
    """A page within its own document. ``sha256``, ``kind`` and ``unit``: as in ``Document``. ``number``: the page's
    number in that document. ``last``: the number of the document's last page. ``title``: the document's title; "" if
    the book is a single document.
    """

    sha256: str
    kind: str
    unit: str
    number: int
    last: int
    title: str = ""


def _own(book: Book, document: Document, page: Page) -> _Own:
    member = document.member_at(page.number)
    if member is None:
        return _Own(book.sha256, document.kind, document.unit, page.number, document.pages[-1].number)
    last = max(other.number for other in document.pages if document.member_at(other.number) is member)
    return _Own(
        member.sha256,
        member.kind,
        member.unit,
        page.number - member.page_offset,
        last - member.page_offset,
        member.title,
    )


def _page(document: Document, number: int) -> Page:
    page = document.page(number)
    if page is None:
        raise OptionError(f"There is no page {number} in this book.", "Choose another one.")
    return page


def _answered(handler: Callable[[Request], Response]) -> Callable[[Request], Any]:
    """Run a handler in a thread, outside of the event loop. A ``TrifoldError`` becomes an answer with its cause and
    remedy.
    """

    async def answer(request: Request) -> Response:
        try:
            return await run_in_threadpool(handler, request)
        except TrifoldError as error:
            status = 404 if isinstance(error, InputError) and not isinstance(error, DocumentError) else 422
            return JSONResponse({"cause": error.cause, "remedy": error.remedy}, status_code=status)

    return answer
