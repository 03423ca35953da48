"""What Gradio keeps of every open page, without what it leaves behind with every question.

A part that is updated is made anew by Gradio, with a number of its own; when its value is next sent, the new part is
filed under that number too and never taken out. A page that asks a thousand questions would hold two thousand text
boxes. Only the numbers that the page was built with are ever looked up, so everything else can go.
"""

from __future__ import annotations

from typing import Any

from app.guard import App, Receive, Scope, Send


class Leftovers:
    """ASGI middleware around Gradio: drops, before each request, what the earlier ones have left behind.

    Args:
        app: Gradio's.
        blocks: what its page was built of.
    """

    def __init__(self, app: App, blocks: Any) -> None:
        self._app = app
        self._blocks = blocks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Gradio files parts on the thread of this loop too, so that nothing is looked up while it is dropped.
        for session in list(self._blocks.state_holder.session_data.values()):
            _drop_leftovers(session, self._blocks.blocks)
        await self._app(scope, receive, send)


def _drop_leftovers(session: Any, built: Any) -> None:
    filed = session.blocks_config.blocks
    if len(filed) == len(built):
        return
    for number in [number for number in filed if number not in built]:
        del filed[number]
        session.config_values.pop(number, None)
