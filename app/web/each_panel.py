"""Asks several documents the same question one by one: the growing table, stopping, going on, and the table as a file.

Owns these routes and this key of the live stream:

    the live key "each"    the question, the documents with their answers, the progress
    POST /each             ask these documents
    POST /each/stop        stop the run; its answers are kept
    GET /each/export       the table as CSV
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.core.books import Book
from app.core.each import Answer, AskEach, Run
from app.core.export import file_name
from app.core.format import View, counted, not_found, page_name
from app.core.state import AppState
from app.web.auth import AllowedRoute
from app.web.documents_panel import DocumentsAsked
from app.web.markdown import harmless, rendered
from app.web.routes import Handler, QuestionAsked, allowed_posts, answer_or_refusal, parsed, posts, said

_READING_SHARE = 0.9
"""Share of a document's progress that its reading takes; its answer takes the rest."""


class EachAsked(DocumentsAsked, QuestionAsked):
    """A request with a question, its options, and the documents to ask."""


class EachPanel:
    """A panel of the page (``app.web.live``).

    Args:
        state: the state of the program.
        each: the run.
    """

    def __init__(self, state: AppState, each: AskEach) -> None:
        self._state = state
        self._each = each
        self._shown: tuple[tuple[Run, int] | None, View] = None, {}

    @property
    def allowed(self) -> Sequence[AllowedRoute]:
        return *allowed_posts(self._posts()), AllowedRoute("GET", "/each/export")

    def routes(self) -> Sequence[Route]:
        return *posts(self._posts()), Route("/each/export", said(self.export), methods=["GET"])

    def _posts(self) -> dict[str, Handler]:
        return {"/each": self.ask, "/each/stop": self.stop}

    def view(self) -> View:
        """The question, the documents in order with their answers, and the progress of the run."""
        run, changes = self._each.run, self._state.books.database.changes
        if self._shown[0] is None or self._shown[0][0] is not run or self._shown[0][1] != changes:
            self._shown = (run, changes), {"each": _run_view(run, self._each.rows())}
        return self._shown[1]

    async def ask(self, request: Request) -> Response:
        asked = await parsed(request, EachAsked)
        sampling, mode, _, _ = asked.how
        begin = partial(self._each.start, asked.question, asked.ids, sampling, mode)
        return await run_in_threadpool(answer_or_refusal, lambda: begin() or {})

    async def stop(self, request: Request) -> None:
        self._each.stop()

    async def export(self, request: Request) -> Response:
        table = await run_in_threadpool(self._each.table)
        name = quote(file_name(self._each.run.question, "csv"))
        headers = {"content-disposition": f"attachment; filename*=utf-8''{name}", "cache-control": "no-store"}
        return Response(table, media_type="text/csv; charset=utf-8", headers=headers)


def _run_view(run: Run, rows: Sequence[tuple[Book, Answer | None]]) -> View:
    ids = [book.sha256 for book, _ in rows]
    at = ids.index(run.at) + 1 if run.at in ids else 0
    return {
        "question": run.question,
        "running": run.running,
        "line": _line(run, rows, at) if run.question else "",
        "done": round(
            (len(rows) - run.left + (_READING_SHARE * run.read if run.running else 0.0)) / max(1, len(rows)), 3
        ),
        "left": 0 if run.running else run.left,
        "unkept": run.unkept,
        "rows": [_row_view(book, answer, run) for book, answer in rows],
    }


def _line(run: Run, rows: Sequence[tuple[Book, Answer | None]], at: int) -> str:
    if not run.running:
        answered = sum(answer is not None and not answer.error for _, answer in rows)
        return f"{answered} of {counted(len(rows), 'document')} answered"
    if run.stopping:
        return "Stopping…"
    where = f"Document {at} of {len(rows)}"
    if run.is_answering:
        return f"{where}: it is being asked"
    return f"{where}: {round(100 * run.read)} % read" if run.read else f"{where}: it is being opened"


def _row_view(book: Book, answer: Answer | None, run: Run) -> View:
    row, places = (answer.row, answer.places) if answer else ({}, [])
    missing = tuple(filter(None, row.get("not_found_in_document", "").split("; ")))
    doubtful = row.get("evidence_level") == "not found" or bool(missing)
    return {
        "id": book.sha256,
        "title": row.get("title") or book.shown,
        "busy": book.sha256 == run.at,
        "answer": rendered(harmless(row.get("answer", "")), str),
        "error": row.get("error", ""),
        "missing": not_found(missing) if doubtful else "",
        "near": row.get("evidence_level") == "near",
        "recognised": any(page.get("recognised") for place in places for page in place["pages"]),
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
