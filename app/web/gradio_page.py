"""Gradio's part of the page: its chatbot draws the stored chat.

Owns the requests with which Gradio shows the chat, and all workarounds for Gradio. A model's text is shown sanitized,
without images and without formulas. An answer that is being written is only a placeholder here, which the live stream
fills. So Gradio is asked for the chat only when a page opens, when a question comes and when the answer has ended.
Gradio's queue stays empty.

The workarounds, with their reasons. Each has a test. They take about 110 lines here, in ``server`` and in
``page/chat.js``, and 200 lines of CSS for Gradio's elements. No file of Gradio is changed.

* ``server.quiet_gradio``: Gradio would report to its makers, fetch fonts, and note every event in a table.
* ``gradio_import``: Gradio would write type stubs for its components whenever it is imported, which takes 1.6 s.
* ``_let_sleep``: Gradio's queue looks for work 1,100 times a second, which takes the interpreter from the engine.
* ``_checked``: Gradio would answer an invalid request with a server error.
* ``mount`` runs in an event loop. Without a running loop, Gradio makes a loop for each of its locks and closes none of
  these loops. When the garbage collector ends such a loop, a traceback may appear in the person's terminal.
* ``_TABS``: Gradio would keep the state of up to 10,000 tabs, 85 KB each.
* The hidden button ``#refresh``, which the page's scripts press (``page/chat.js``): code outside of Gradio can cause an
  event only this way. Without the button, a finished answer would not be shown formatted.
* The guard admits requests for ``/gradio_api/app_id``. After a failed request, Gradio's script sends only this request,
  every two seconds, and loads the page again when it gets an answer.
* In ``page/chat.js``: Gradio's loading sign would make the browser draw sixty times a second without end. Gradio asks
  for a description of its routes, which is not served. A screen reader would read HTML tags aloud, and a growing
  answer from its beginning each time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from app.core.settings import HOST, REPAIR
from app.core.state import AppState
from app.web import messages
from app.web.auth import App, AsgiMessage, Receive, Scope, Send
from app.web.gradio_import import gr
from app.web.live import record_of
from app.web.routes import REQUIRED, Number, RequestBody, Text, parsed
from engine.errors import EngineError, OptionError

SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Ubuntu", "Cantarell", "DejaVu Sans", "sans-serif")
MONO = ("ui-monospace", "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", "monospace")

PREDICT = "/gradio_api/run/predict"
"""Gradio's only route that the page sends requests to."""

_TABS = 64
_LOOK_SECONDS = 1.0


class EventAsked(RequestBody):
    """The request of Gradio's script for an event of the page."""

    data: Any = None
    fn_index: Number = REQUIRED
    session_hash: Text = ""


Shown = tuple[list[messages.ChatMessage], str]
"""The chat, and the key of its shown state (``live.record_of``). The key tells the page's scripts that this state has
arrived.
"""


class Record:
    """Turns the open chat into messages for Gradio's chatbot. The messages of finished exchanges are made only once."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._made: messages.Made = {}

    def show(self) -> Shown:
        chat = self._state.chat
        awaited = self._state.current.awaited_answers
        shown = messages.messages(chat.exchanges, self._made, awaited) if chat else []
        return shown, record_of(chat, awaited)


def build(show: Callable[[], Shown]) -> gr.Blocks:
    """Build Gradio's components, and the one event with which they show the chat."""
    with gr.Blocks(title="Trifold", analytics_enabled=False) as page:
        record = gr.Chatbot(
            elem_id="record",
            show_label=False,
            container=False,
            layout="panel",
            height="100%",
            buttons=[],
            feedback_options=None,
            latex_delimiters=[],
            sanitize_html=True,
            allow_tags=False,
            group_consecutive_messages=False,
            allow_file_downloads=False,
            autoscroll=False,  # the page itself keeps the scroll position
            placeholder="",
        )
        refresh = gr.Button("", elem_id="refresh", visible="hidden")
        gr.on(
            [page.load, refresh.click],
            show,
            None,
            [record, refresh],
            queue=False,
            show_progress="hidden",
            trigger_mode="always_last",
            api_visibility="private",
            api_name="show",
        )
    page.queue(api_open=False)
    _let_sleep(page)
    page.state_session_capacity = _TABS
    return page


def mount(app: FastAPI, show: Callable[[], Shown], port: int) -> App:
    """Add Gradio's routes after the routes of ``app``, with a check of every request to Gradio."""

    async def mounted() -> App:
        return _mounted(app, build(show), port)

    # A separate thread, because ``asyncio.run`` fails in a thread that already runs an event loop.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, mounted()).result()


def _mounted(app: FastAPI, blocks: gr.Blocks, port: int) -> App:
    mounted: App = gr.mount_gradio_app(
        app,
        blocks,
        path="/",
        server_name=HOST,
        server_port=port,
        footer_links=[],
        run_history=False,
        allowed_paths=[],
        show_error=False,
        max_file_size=1,
        ssr_mode=False,
        enable_monitoring=False,
        mcp_server=False,
        theme=gr.themes.Base(font=SANS, font_mono=MONO, spacing_size="md", radius_size="md", text_size="md"),
    )
    return _checked(mounted, frozenset(blocks.fns))


def _checked(app: App, functions: Collection[int]) -> App:
    """Check a request to Gradio, because Gradio itself trusts every request. A request that our page would not send is
    refused with a sentence. Any other request is passed on, rebuilt from the checked values.
    """

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"], scope["path"]) != ("POST", PREDICT):
            return await app(scope, receive, send)
        try:
            asked = await parsed(Request(scope, receive), EventAsked)
            if asked.data != [] or asked.fn_index not in functions:
                raise OptionError(
                    "The page asked for something that this Trifold does not know.", "Load the page again."
                )
            sent = {"data": [], "fn_index": asked.fn_index, "session_hash": asked.session_hash or None}
        except ClientDisconnect:
            return None
        except OptionError as error:
            refusal = JSONResponse({"cause": error.cause, "remedy": error.remedy}, status_code=400)
            return await refusal(scope, receive, send)
        content = json.dumps(sent).encode()
        headers = [
            (name, value) for name, value in scope["headers"] if name not in (b"content-type", b"content-length")
        ]
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        messages = iter([{"type": "http.request", "body": content}])

        async def replayed() -> AsgiMessage:
            return next(messages, None) or await receive()

        return await app({**scope, "headers": headers}, replayed, send)

    return checked


def _let_sleep(page: gr.Blocks) -> None:
    """Let Gradio's queue sleep while it is empty.

    Raises:
        EngineError: the queue lacks an attribute, so Gradio is not the version that Trifold needs.
    """
    queue: Any = page._queue
    if not (hasattr(queue, "sleep_when_free") and hasattr(queue, "progress_update_sleep_when_free")):
        raise EngineError("Another version of Gradio is installed than Trifold needs.", f"Run: {REPAIR}")
    queue.sleep_when_free = queue.progress_update_sleep_when_free = _LOOK_SECONDS
