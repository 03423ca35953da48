"""Serves the table of contents next to the chat. The page fetches it (GET /contents) when the person opens it, and
again when more of the book has been read.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.core.abilities import Abilities, abilities
from app.core.contents import ContentsEntry, chapters
from app.core.format import View, count, page_name
from app.core.open_book import OpenBook, Stage
from app.core.state import AppState
from app.core.suggestions import chapter_question, language_of_book
from app.web.live import pages_read
from app.web.routes import PageRoute, gets
from engine.document import Document
from engine.languages import Language

MOST_ENTRIES = 1_000
NONE = "This document names no chapters: it has neither bookmarks nor headings. Its {unit}s are on the strip above."
ONLY_QUOTES = "The built-in demo only finds passages. A larger model, chosen in the settings, summarizes chapters."


class ContentsPanel:
    """Serves the table of contents. A self-contained part of the page (``app.web.live.Panel``).

    Args:
        state: the state of the program.
    """

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._known: tuple[Document | None, tuple[ContentsEntry, ...], Language | None] = None, (), None
        self._numbered: tuple[Document | None, int] = None, 0

    def routes(self) -> Sequence[PageRoute]:
        return gets({"/contents": self.contents})

    def view(self) -> View:
        """Return a string that changes whenever the panel has something different to show, so that the page knows when
        to fetch the contents again.
        """
        current = self._state.current
        book = current.book.sha256 if current.book and current.document else ""
        if self._numbered[0] is not current.document:
            numbers = tuple(page.number for page in current.document.pages) if current.document else ()
            self._numbered = current.document, hash(numbers)
        stage, sized = current.stage.value, current.whole_fit is not None
        read = f"{self._numbered[1]}.{pages_read(current)}.{stage}"
        return {"contents": f"{book}.{read}.{self._only_quotes()}.{sized}"}

    async def contents(self, request: Request) -> Response:
        current = self._state.current
        document = current.whole or current.document
        if document is None:
            return JSONResponse({"entries": [], "said": ""})
        if self._known[0] is not document:
            self._known = document, chapters(document), language_of_book(document)
        listed, only_quotes = self._known[1], self._only_quotes()
        # A model whose card lists refusals was trained in English, so questions to it are in English (None)
        language = None if self._card().refusals else self._known[2]
        read = {page.number for page in current.document.pages[: pages_read(current)]} if current.document else set()
        entries = []
        for chapter in listed[:MOST_ENTRIES]:
            is_read = chapter.first in read
            page = document.page(chapter.first)
            unit = (document.member_at(chapter.first) or document).unit
            name = page_name(page.label if page else "", "page") if unit == "page" else ""
            entries.append(
                {
                    "title": chapter.title,
                    "level": chapter.level,
                    "first": chapter.first,
                    "last": chapter.last,
                    "read": current.stage is Stage.READY and is_read and chapter.last in read,
                    "name": name if is_read else f"{name} not read" if name else "not read",
                    "ask": chapter_question(chapter, document, language) if is_read and not only_quotes else "",
                }
            )
        told = {"entries": entries, "said": _said(document, len(listed), only_quotes), "sizes": self._sizes(current)}
        return JSONResponse(told)

    def _sizes(self, current: OpenBook) -> View | None:
        """Sizes from which the page computes how long the ticked chapters take to read, and whether they fit. None for
        several documents, or if the sizes are not known.

        ``first``: number of the first page. ``tokens``: tokens of each page. ``around``: tokens of the book that belong
        to no page. ``room``: maximum tokens of a book. ``seconds``: minimum and maximum seconds per token, if known.
        """
        fit = current.whole_fit
        if fit is None or not fit.page_tokens or current.whole is None:
            return None
        if current.whole.members:
            return None
        time = self._state.experience.a_token(self._state.engine.status().model, fit)
        return {
            "first": current.whole.pages[0].number,
            "tokens": list(fit.page_tokens),
            "around": fit.tokens - sum(fit.page_tokens),
            "room": fit.room,
            "seconds": [time.low, time.high] if time else None,
        }

    def _only_quotes(self) -> bool:
        return self._card().only_quotes

    def _card(self) -> Abilities:
        model = self._state.engine.status().model
        return abilities(str(model.path)) if model else Abilities()


def _said(document: Document, entries: int, only_quotes: bool) -> str:
    if not entries:
        return NONE.format(unit=document.unit)
    more = f"The first {count(MOST_ENTRIES)} of {count(entries)} entries." if entries > MOST_ENTRIES else ""
    return " ".join(part for part in (more, ONLY_QUOTES if only_quotes else "") if part)
