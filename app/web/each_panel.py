"""Asks several documents the same question one by one ("Ask each"). Serves the growing table of answers, also as a
file, and the buttons that stop and continue the run.

Owns these routes and these keys of the live stream:

    the live key "each"          the question and the progress
    the live key "each_table"    the documents with their answers; only changed rows are sent
    POST /each                   ask these documents
    POST /each/stop              stop the run; its answers are kept
    GET /each/export             the table as CSV
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import BeforeValidator, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from app.core.answer_table import FROM_PASSAGES, OF_DOCUMENT, Row
from app.core.books import Book
from app.core.each import Answer, AskEach, EachRun
from app.core.export import file_name
from app.core.format import RECOGNISED, View, absence, counted, page_name, recognised_line
from app.core.state import AppState
from app.web.documents_panel import hashes
from app.web.markdown import rendered
from app.web.routes import PageRoute, QuestionAsked, answer_or_refusal, gets, parsed, posts
from engine.errors import OptionError

_READING_SHARE = 0.9
"""Share of a document's progress that its reading takes; its answer takes the rest."""


_MOST = 2_000
"""Maximum documents of one run. They are asked one by one, so a run may have more than can be open together."""
_LARGEST = 256 << 10  # maximum bytes of a request, which names each document by the 64 characters of its hash


def _one_by_one(value: Any) -> tuple[str, ...]:
    if len(wanted := hashes(value)) > _MOST:
        raise OptionError(f"At most {_MOST:,} documents are asked at once.", "Choose fewer.")
    return wanted


class EachAsked(QuestionAsked):
    """A request with a question, its options, and the documents to ask (``ids``: their hashes, in order)."""

    ids: Annotated[tuple[str, ...], BeforeValidator(_one_by_one)] = Field(default=(), validate_default=True)


@dataclass(frozen=True)
class EachTable:
    """The rows of the table, in the order of the documents."""

    rows: tuple[View, ...] = ()

    def since(self, previous: object) -> View:
        """Return the rows that have changed since ``previous``. If the documents have changed too, return all rows,
        with ``whole`` True.
        """
        known = previous.rows if isinstance(previous, EachTable) else ()
        if [row["id"] for row in known] != [row["id"] for row in self.rows] or not known:
            return {"whole": True, "rows": self.rows}
        return {"whole": False, "rows": [row for row, old in zip(self.rows, known, strict=True) if row is not old]}


class EachPanel:
    """Serves "Ask each". A self-contained part of the page (``app.web.live.Panel``).

    Args:
        state: the state of the program.
        each: runs "Ask each".
    """

    def __init__(self, state: AppState, each: AskEach) -> None:
        self._state = state
        self._each = each
        self._shown: tuple[tuple[EachRun, int] | None, View] = None, {}
        self._books: tuple[tuple[tuple[str, ...], int] | None, list[Book]] = None, []
        self._rows: dict[str, tuple[str, Answer | None, View]] = {}  # title, answer and row, keyed by document
        self._table = EachTable()

    def routes(self) -> Sequence[PageRoute]:
        asking = posts({"/each": self.ask, "/each/stop": self.stop}, _LARGEST)
        return *asking, *gets({"/each/export": self.export})

    def view(self) -> View:
        """The question, the progress of the run, and the documents in order with their answers."""
        run, changes = self._each.run, self._state.books.database.changes
        if self._shown[0] is None or self._shown[0][0] is not run or self._shown[0][1] != changes:
            if self._books[0] != (run.documents, changes):
                self._books = (run.documents, changes), [book for book, _ in self._each.rows()]
            books = self._books[1]
            self._show_rows(books, run)
            self._shown = (run, changes), {"each": _run_view(run, books), "each_table": self._table}
        return self._shown[1]

    def _show_rows(self, books: Sequence[Book], run: EachRun) -> None:
        """Update ``_table``. Make new rows only for documents whose answer or title has changed."""
        rows = {}
        for book in books:
            answer = run.answers.get(book.sha256)
            known = self._rows.get(book.sha256)
            if known is None or known[0] != book.shown or known[1] is not answer:
                known = book.shown, answer, _row_view(book, answer)
            rows[book.sha256] = known
        self._rows = rows
        shown = tuple(row for _, _, row in rows.values())
        if any(map(operator.is_not, shown, self._table.rows)) or len(shown) != len(self._table.rows):
            self._table = EachTable(shown)

    async def ask(self, request: Request) -> Response:
        asked = await parsed(request, EachAsked)
        begin = partial(self._each.start, asked.ask(asked.question), asked.ids)
        return await run_in_threadpool(answer_or_refusal, lambda: begin() or {})

    async def stop(self, request: Request) -> None:
        self._each.stop()

    async def export(self, request: Request) -> Response:
        table = await run_in_threadpool(self._each.table)
        name = quote(file_name(self._each.run.question, "csv"))
        headers = {"content-disposition": f"attachment; filename*=utf-8''{name}", "cache-control": "no-store"}
        return Response(table, media_type="text/csv; charset=utf-8", headers=headers)


def _run_view(run: EachRun, books: Sequence[Book]) -> View:
    ids = [book.sha256 for book in books]
    number = ids.index(run.document) + 1 if run.document in ids else 0
    done = len(ids) - run.left + (_READING_SHARE * run.read if run.running else 0.0)
    return {
        "question": run.question,
        "running": run.running,
        "line": _line(run, ids, number) if run.question else "",
        "done": round(done / max(1, len(ids)), 3),
        "left": 0 if run.running else run.left,
        "unkept": run.unkept,
        "at": run.document,
    }


def _line(run: EachRun, ids: Sequence[str], number: int) -> str:
    if not run.running:
        answers = map(run.answers.get, ids)
        answered = sum(answer is not None and not answer.error for answer in answers)
        return f"{answered} of {counted(len(ids), 'document')} answered"
    if run.stopping:
        return "Stopping…"
    if not number:
        return "Waiting until the model and the open book are ready"
    where = f"Document {number} of {len(ids)}"
    if run.is_answering:
        return f"{where}: it is being asked"
    return f"{where}: {round(100 * run.read)} % read" if run.read else f"{where}: it is being opened"


def _row_view(book: Book, answer: Answer | None) -> View:
    row, places = (answer.row, answer.places) if answer else ({}, [])
    missing = tuple(filter(None, row.get("not_found_in_document", "").split("; ")))
    doubtful = row.get("evidence_level") == "not found" or bool(missing)
    return {
        "id": book.sha256,
        "title": row.get("title") or book.shown,
        "asked": answer is not None,
        "answer": rendered(row.get("answer", "")),
        "error": row.get("error", ""),
        "missing": absence(OF_DOCUMENT | {"missing": missing}) if doubtful else "",
        "near": row.get("evidence_level") == "near",
        "first": row.get("answered_from") == FROM_PASSAGES and bool(row.get("model")),
        "recognised": _recognised(row, places),
        "places": [
            {
                "passage": place["passage"],
                "pages": [
                    {"number": page["number"], "name": page_name(page["label"], place["unit"])}
                    for page in place["pages"]
                ],
            }
            for place in places
        ],
    }


def _recognised(row: Row, places: Sequence[View]) -> str:
    """State that passages were recognised from a picture. If there are no passages, state how many pages were
    recognised.
    """
    if places:
        return RECOGNISED if any(page.get("recognised") for place in places for page in place["pages"]) else ""
    return recognised_line(int(row.get("pages_recognised") or 0), int(row.get("pages") or 0))
