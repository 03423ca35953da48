"""The live stream: one route of server-sent events that moves everything on the page but the chat.

Only what has changed is sent, ten times a second at most (rhythm), and nothing when nobody is looking any more. It
stands beside Gradio's queue, so that figures cost the answer next to nothing.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from app.ui.desk import Desk, Keeper
from app.ui.panel import Panel
from app.ui.presentation import View, glow
from app.ui.rhythm import OWN, Rhythm, rhythm_of
from app.ui.view import Growing, map_view, page_view
from engine.document import Document

HEARTBEAT_SECONDS = 5.0
# What need not move with every word.
FIGURES = frozenset({"figures", "pace", "scores"})


class Live:
    """Args:
    keeper: keeps the desk that is shown.
    panels: parts of the page that bring keys of their own.
    """

    def __init__(self, keeper: Keeper, panels: Sequence[Panel] = ()) -> None:
        self._keeper = keeper
        self._panels = tuple(panels)
        self._mapped: tuple[Document | None, View] | None = None
        self._glowing: tuple[tuple[float, ...], list[int]] | None = None

    def view(self) -> View:
        desk = self._keeper.desk
        page = page_view(desk, self._keeper.engine.status(), self._keeper.chat)
        # The map comes first: what glows on it needs to know how many pages there are.
        view = {"map": self._map(desk), **page, "scores": self._glow(desk)}
        for panel in self._panels:
            view.update(panel.view())
        return view

    def route(self) -> Route:
        async def live(request: Request) -> StreamingResponse:
            card = request.query_params.get("card") == "yes"
            stream = changes(self.view, request.is_disconnected, lambda: self._rhythm(card))
            return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})

        return Route("/live", live)

    def _rhythm(self, card: bool) -> Rhythm:
        status = self._keeper.engine.status()
        return OWN if status.state == "idle" else rhythm_of(status, card)  # nothing is taken from an idle engine

    def _map(self, desk: Desk) -> View:
        """A book of two thousand pages is not looked through ten times a second."""
        if self._mapped is None or self._mapped[0] is not desk.document:
            self._mapped = desk.document, map_view(desk)
        return self._mapped[1]

    def _glow(self, desk: Desk) -> list[int]:
        """Nor are its scores, unless there are new ones."""
        if self._glowing is None or self._glowing[0] is not desk.scores:
            self._glowing = desk.scores, glow(desk.scores)
        return self._glowing[1]


async def changes(
    view: Callable[[], View], gone: Callable[[], Awaitable[bool]], rhythm: Callable[[], Rhythm]
) -> AsyncIterator[str]:
    """Events for one tab: first everything, then what has changed, until the tab is gone.

    Args:
        rhythm: how often it is looked for changes, and how often figures may move.
    """
    sent: View = {}
    due: dict[str, float] = {}
    spoke = 0.0
    while not await gone():
        now, pace = time.monotonic(), rhythm()
        changed = {
            key: value
            for key, value in view().items()
            if (key not in sent or sent[key] != value) and due.get(key, now) <= now
        }
        if changed:
            news = {
                key: value.since(sent.get(key)) if isinstance(value, Growing) else value
                for key, value in changed.items()
            }
            yield f"data: {json.dumps(news, ensure_ascii=False, separators=(',', ':'))}\n\n"
            sent.update(changed)
            due.update((key, now + pace.figures) for key in changed if key in FIGURES)
            spoke = now
        elif now - spoke > HEARTBEAT_SECONDS:
            yield ": still here\n\n"
            spoke = now
        await asyncio.sleep(pace.words)
