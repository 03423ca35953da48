"""The live stream: one route of server-sent events that moves everything on the page but the chat.

Owns the pace (ten times a second at most, and only what has changed) and knows when nobody is looking any more.
It stands beside Gradio's queue, so that figures cost the answer next to nothing. Nor may the drawing of them: every
piece of news is laid out, painted and composed by a browser, which without a graphics card works on the engine's cores.
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
from app.ui.view import Growing, map_view, page_view
from engine.document import Document

TICK_SECONDS = 0.1
SHARED_TICK_SECONDS = 0.3  # where the engine computes on the processor, which it shares with the browser
HEARTBEAT_SECONDS = 5.0
# Seconds from one change to the next of what need not move with every word.
PACES = {"figures": 0.4, "pace": 0.4, "scores": 0.4}


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
            stream = changes(self.view, request.is_disconnected, self._tick)
            return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})

        return Route("/live", live)

    def _tick(self) -> float:
        model = self._keeper.engine.status().model
        return SHARED_TICK_SECONDS if model is not None and model.device == "cpu" else TICK_SECONDS

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
    view: Callable[[], View], gone: Callable[[], Awaitable[bool]], tick: Callable[[], float]
) -> AsyncIterator[str]:
    """Events for one tab: first everything, then what has changed, until the tab is gone.

    Args:
        tick: seconds until it is looked again for changes.
    """
    sent: View = {}
    due: dict[str, float] = {}
    spoke = 0.0
    while not await gone():
        now = time.monotonic()
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
            due.update((key, now + PACES[key]) for key in changed if key in PACES)
            spoke = now
        elif now - spoke > HEARTBEAT_SECONDS:
            yield ": still here\n\n"
            spoke = now
        await asyncio.sleep(tick())
