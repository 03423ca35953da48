"""Tabs that wait for an answer: noticing at once that one of them is gone.

Gradio ends an answer that nobody waits for at its next update. Updates are far apart, so that they cost the engine
little, and an answer must not be written that long for nobody. Knows of HTTP only which stream a tab listens to.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qs

from app.guard import App, Message, Receive, Scope, Send

STREAM = "/gradio_api/queue/data"
"""What a tab listens to from its question to the last word of its answer."""


class Tabs:
    """ASGI middleware around Gradio.

    Args:
        app: Gradio's.
        left: called in the event loop with the name of a tab that has gone before its answer had ended.
    """

    def __init__(self, app: App, left: Callable[[str], None]) -> None:
        self._app = app
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != STREAM:
            return await self._app(scope, receive, send)
        ended = False

        async def sender(message: Message) -> None:
            nonlocal ended
            await send(message)
            ended = message["type"] == "http.response.body" and not message.get("more_body")

        try:
            await self._app(scope, receive, sender)
        finally:
            if not ended:
                query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
                self._left(query.get("session_hash", [""])[0])
