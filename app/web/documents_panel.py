"""Shows and changes the open documents, and says what a change costs.

Owns these routes and this key of the live stream:

    the live key "documents"    the documents in order, with their pages
    POST /documents/cost        the cost of reading these documents in this order
    POST /documents             read these documents
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.core.format import View, counted
from app.core.several import MOST, cost_of
from app.core.state import AppState
from app.language.titles import short_title
from app.web.routes import PageRoute, RequestBody, Text, parsed, posts
from engine.document import Document
from engine.errors import DocumentError, OptionError

COLOURS = 6
"""Number of colours for documents. The style sheet has one rule for each colour."""


def hashes(value: Any) -> tuple[str, ...]:
    """Check the documents of a request.

    Raises:
        OptionError: the value is not a list of names, or the list is empty.
    """
    if not isinstance(value, list | tuple) or not all(isinstance(sha256, str) for sha256 in value):
        raise OptionError("The documents must be a list of their names.")
    if not value:
        raise OptionError("No document is chosen.", "Tick one.")
    return tuple(value)


def _together(value: Any) -> tuple[str, ...]:
    if len(wanted := hashes(value)) > MOST:
        raise OptionError(f"At most {MOST} documents can be open together.", "Choose fewer.")
    return wanted


def _agreed(value: Any) -> tuple[str, ...]:
    return hashes(value) if value else ()


class DocumentsAsked(RequestBody):
    """A request for documents. ``ids``: hashes of the wanted documents, in order. ``anew``: whether to make a new book
    of these documents. ``of``: the book that the page showed when the person asked. ``recognise``: hashes of the
    documents for which the person agreed to text recognition.
    """

    ids: Annotated[tuple[str, ...], BeforeValidator(_together)] = Field(default=(), validate_default=True)
    anew: Any = False
    of: Text = ""
    recognise: Annotated[tuple[str, ...], BeforeValidator(_agreed)] = ()


class DocumentsPanel:
    """Serves the list of open documents and its changes. A self-contained part of the page (``app.web.live.Panel``).

    Args:
        state: the state of the program.
    """

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._shown: tuple[Document | None, list[View]] = None, []

    def routes(self) -> Sequence[PageRoute]:
        return posts({"/documents": self.arrange, "/documents/cost": self.cost})

    def view(self) -> View:
        """The open documents in order, each with its number of pages and the number of its first page in the page map.
        Empty if the open book is a single document.
        """
        current = self._state.current
        document = current.whole or current.document
        if document is None:
            return {"documents": []}
        if self._shown[0] is not document:
            self._shown = document, documents_view(document)
        return {"documents": [self._named(one) for one in self._shown[1]]}

    def _named(self, shown: View) -> View:
        """A document with the name that the person gave it, if there is one, and with the name of its file, if that is
        not its title: two versions of a contract may have one title.
        """
        try:
            book = self._state.books.get(shown["id"])
        except DocumentError:
            return shown
        if book.given:
            shown = shown | {"title": book.given, "called": short_title(book.given)}
        return shown | {"file": book.name if book.title and not book.name.startswith(book.title) else ""}

    async def cost(self, request: Request) -> Response:
        asked = await parsed(request, DocumentsAsked)
        cost = await run_in_threadpool(cost_of, self._state, asked.ids)
        return JSONResponse(
            {
                "said": cost.sentence,
                "fits": cost.fits,
                "without": list(cost.fitting),
                "recognise": list(cost.recognises),
            }
        )

    async def arrange(self, request: Request) -> None:
        asked = await parsed(request, DocumentsAsked)
        anew, agreed = asked.anew is True, asked.recognise
        await run_in_threadpool(
            lambda: self._state.arrange(asked.ids, as_new=anew, open_sha256=asked.of, agreed=agreed)
        )


def documents_view(document: Document) -> list[View]:
    """Title, short title, colour and pages of each of several documents."""
    colours: list[int] = []
    # The document's hash decides the colour. If one of the 5 documents before has this colour, the next free colour is
    # taken.
    for member in document.members:
        own = int(member.sha256[:6], 16) % COLOURS
        free = [
            (own + step) % COLOURS for step in range(COLOURS) if (own + step) % COLOURS not in colours[-COLOURS + 1 :]
        ]
        colours.append(free[0])
    counts = [sum(document.member_at(page.number) is member for page in document.pages) for member in document.members]
    titles = [member.title for member in document.members]
    return [
        {
            "id": member.sha256,
            "title": member.title,
            "called": short_title(member.title, titles),
            "line": counted(pages, member.unit),
            "colour": colour,
            "first": member.page_offset + 1,
            "pages": pages,
        }
        for member, pages, colour in zip(document.members, counts, colours, strict=True)
    ]
