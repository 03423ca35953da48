"""The local server: the page, its live stream and its few routes on one port of this machine, behind the guard.

    browser -> Guard (who may come in) -> Shell (the frame) -> /ui /live /books ... (ours) | / (Gradio's chat)

Owns how these are put together and served. Knows no detail of any of them.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.guard import MEBIBYTE, App, Door, Guard
from app.settings import HOST, SAMPLE_BOOKS, Settings
from app.tickets import Tickets, load_secret
from app.visitors import EVERYWHERE, Visitors
from engine.errors import ResourceError

if TYPE_CHECKING:
    import uvicorn

    from app.ui.desk import Keeper
    from app.ui.panel import Panel
    from app.ui.sample import Sample

logger = logging.getLogger(__name__)

PROGRAM_NAME = "trifold"
VERIFIED_FILE = "verified.json"
QUESTION_LIMIT = 16 * MEBIBYTE  # of a question's request; the engine says in words when a question is too long
SHUTDOWN_SECONDS = 2
_BACKLOG = 128
_TABS = 64  # of which Gradio keeps what it knows; nothing of ours is in it, and by default it keeps 10,000

_DOORS = (
    Door("GET", "/healthz", open=True),
    Door("GET", "/"),
    Door("GET", "/live"),
    Door("GET", "/ui/*"),
    Door("GET", "/assets/*"),
    Door("GET", "/static/*"),
    Door("GET", "/theme.css"),
    Door("GET", "/config"),
    Door("GET", "/favicon.ico"),
    Door("GET", "/gradio_api/queue/data"),
    Door("POST", "/gradio_api/queue/join", limit=QUESTION_LIMIT),
    Door("POST", "/gradio_api/run/predict", limit=QUESTION_LIMIT),
    Door("POST", "/gradio_api/cancel", limit=MEBIBYTE),
    Door("POST", "/gradio_api/reset", limit=MEBIBYTE),
)


def serve(settings: Settings, on_ready: Callable[[], None] | None = None) -> None:
    """Serve the page until the program is told to end.

    Args:
        settings: the port and the data folder, the model pair and its options.
        on_ready: called once, in the server's thread, when the page can be opened (``tickets.opening_address``).

    Raises:
        ResourceError: the port is taken.
        OptionError: the settings name something that the engine does not know.
    """
    with _listen(settings.port, EVERYWHERE if settings.password else HOST) as listening:
        keeper = make_keeper(settings)
        try:
            server = _server(guarded_app(keeper, settings), on_ready)
            keeper.restore()
            server.run(sockets=[listening])
        finally:
            keeper.close()


def make_keeper(settings: Settings) -> Keeper:
    """The place of the engine, which ``app.models.setup`` fills, and the desk in front of it."""
    from app.books import Books
    from app.chats import Chats
    from app.models.slot import Slot
    from app.readers import read_document
    from app.store.database import Database
    from app.texts import KeptTexts
    from app.ui.desk import Keeper
    from engine.snapshots import SnapshotStore

    database = Database(settings.library)
    books, chats = Books(settings.books, database), Chats(database)
    readings = SnapshotStore(settings.snapshots, 0)
    return Keeper(Slot(), books, chats, KeptTexts(read_document), readings)


def guarded_app(keeper: Keeper, settings: Settings) -> App:
    """Everything that answers, behind the guard."""
    from app.ui.routes import DOORS
    from app.ui.sample import Sample
    from app.ui.shell import Shell

    tickets = Tickets(load_secret(settings.data))
    panels = make_panels(keeper, settings)
    page = _page(keeper, settings, Sample(SAMPLE_BOOKS), panels)
    doors = [door for panel in panels for door in panel.doors]
    visitors = Visitors(settings.password) if settings.password else None
    return Guard(Shell(page), settings.port, tickets, (*_DOORS, *DOORS, *doors), visitors)


def make_panels(keeper: Keeper, settings: Settings) -> tuple[Panel, ...]:
    """The parts of the page that stand by themselves; ``app.ui.panel`` says how to add one."""
    from app.api.routes import Api
    from app.race import Race, Verified
    from app.ui.behind import Behind
    from app.ui.library import Library
    from app.ui.preferences import Preferences, set_up
    from app.ui.racing import Racing
    from app.ui.sample import Sample

    verified = Verified(settings.data / VERIFIED_FILE)
    library = Library(keeper, Sample(SAMPLE_BOOKS))
    return (
        library,
        Behind(keeper),
        Racing(keeper, Race(keeper, verified, library.suggestions), verified),
        Api(keeper, settings.data),
        Preferences(keeper, set_up(keeper, settings), settings.port),
    )


def quiet_gradio(uploads: Path) -> None:
    """What must be in the environment before Gradio is imported: it reports nothing and fetches nothing."""
    os.environ.update(
        GRADIO_ANALYTICS_ENABLED="False",
        GRADIO_ANALYTICS_MAX_EVENTS="1",  # it notes every event all the same, would keep 10,000 of them,
        GRADIO_ANALYTICS_CACHE_FREQUENCY="1000000000",  # and would make a table of them all after each one
        GRADIO_TEMP_DIR=str(uploads),
        GRADIO_SSR_MODE="False",
        GRADIO_MCP_SERVER="False",
        GRADIO_SHARE="False",
        HF_HUB_DISABLE_TELEMETRY="1",
    )


def _page(keeper: Keeper, settings: Settings, sample: Sample, panels: Sequence[Panel]) -> App:
    quiet_gradio(settings.uploads)
    import gradio
    from fastapi import FastAPI
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from app.ui import layout, shell, trackers
    from app.ui.handlers import Handlers
    from app.ui.leftovers import Leftovers
    from app.ui.live import Live
    from app.ui.routes import BookRoutes
    from app.ui.tabs import Tabs

    async def healthz(request: object) -> JSONResponse:
        return JSONResponse({"app": PROGRAM_NAME, "status": "ok"})

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.router.routes += [
        Route("/healthz", healthz),
        Live(keeper, panels).route(),
        shell.files_route(shell.page_files()),
        trackers.route(),
        *BookRoutes(keeper, sample).routes(),
        *(route for panel in panels for route in panel.routes()),
    ]
    handlers = Handlers(keeper)
    blocks = layout.build(handlers)
    blocks.state_session_capacity = _TABS
    page = gradio.mount_gradio_app(
        app,
        blocks,
        path="/",
        server_name=HOST,
        server_port=settings.port,
        footer_links=[],
        run_history=False,
        allowed_paths=[],
        show_error=False,
        max_file_size=1,
        ssr_mode=False,
        enable_monitoring=False,
        mcp_server=False,
        theme=layout.theme(),
    )
    return Tabs(Leftovers(page, blocks), handlers.leave)


def _listen(port: int, host: str = HOST) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name != "nt":  # there it would let two programs share a port
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise ResourceError(f"Port {port} of this machine is taken.", "Choose another one with --port.") from error
    return listening


def _server(app: App, on_ready: Callable[[], None] | None) -> uvicorn.Server:
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started and on_ready is not None:
                on_ready()

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nobody stands between: what a request says of where it comes from is not believed
        ws="none",
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    return Server(config)
