"""Runs the local server: the page, its live stream and its few routes, on one port of this machine and behind the
guard.

    browser -> Guard (admission) -> / /ui /live /asking /books ... (ours) | /assets /config /gradio_api (Gradio's)

Puts the guard and the routes together, and serves them with the page's own files.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from app.core.question import SOURCES, Ask
from app.core.settings import HEALTH_PATH, HOST, PROGRAM_NAME, SAMPLE_BOOKS, Settings
from app.readers import conversion, file_formats
from app.web.auth import (
    EVERYWHERE,
    LONGEST_CHALLENGE,
    MEGABYTE,
    USED_FILE,
    AllowedRoute,
    App,
    Guard,
    LanAuth,
    LoginTokens,
    load_secret,
)
from engine.config import Checkbox, Option, SamplingParams, Slider, options_of
from engine.errors import ResourceError

if TYPE_CHECKING:
    import uvicorn

    from app.core.state import AppState
    from app.web.live import Panel
    from app.web.routes import PageRoute

logger = logging.getLogger(__name__)

VERIFIED_FILE = "verified.json"
EXPERIENCE_FILE = "experience.json"
SHUTDOWN_SECONDS = 2
REQUEST_SECONDS = 20.0  # maximum seconds from the beginning of a connection, or of a request, to the end of its headers
_MOST_FILES = 65_536
_BACKLOG = 128
_PAGE = Path(__file__).resolve().parent / "page"
_ASSETS = Path(__file__).resolve().parents[2] / "assets"
_KINDS = {
    ".js": "text/javascript",
    ".json": "application/json",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
_NAMED_FORMATS = 6  # formats that the area for dropping files names
_FIRST_STYLE = "trifold.css"  # the style sheet with the colours that all other style sheets use

# What Gradio answers, and the page needs. All other requests are declared with their handlers (``PageRoute``).
_GRADIOS = (
    AllowedRoute("GET", "/assets/*"),
    AllowedRoute("GET", "/theme.css"),
    AllowedRoute("GET", "/config"),
    AllowedRoute("GET", "/favicon.ico"),
    AllowedRoute("POST", "/gradio_api/run/predict", limit=MEGABYTE),
    AllowedRoute("GET", "/gradio_api/app_id"),
)


def serve(settings: Settings, on_ready: Callable[[], None] | None = None) -> None:
    """Serve the page until the program is told to end.

    Args:
        settings: the port and the data folder, the model pair and its options.
        on_ready: called once, in the server's thread, when the page can be opened (``auth.opening_address``).

    Raises:
        ResourceError: the port is taken.
        OptionError: the settings name something that the engine does not know.
    """
    _open_files_enough()
    with _listen(settings.port, EVERYWHERE if settings.password else HOST) as listening:
        state = make_state(settings)
        try:
            server = _server(guarded_app(state, settings), on_ready)
            state.restore()
            server.run(sockets=[listening])
        finally:
            state.close()


def make_state(settings: Settings) -> AppState:
    """Make the state of the program, around an engine proxy that has no engine yet. ``app.models.switch`` loads the
    engine.
    """
    from app.core.books import Books, TextCache
    from app.core.chats import Chats
    from app.core.db import Database
    from app.core.forecast import Experience
    from app.core.state import AppState
    from app.models.engine_proxy import EngineProxy
    from app.readers import read_document
    from engine.kv.snapshots import SnapshotStore

    database = Database(settings.library)
    books, chats = Books(settings.books, database), Chats(database)
    snapshots = SnapshotStore(settings.snapshots, 0)
    experience = Experience(settings.data / EXPERIENCE_FILE)
    return AppState(EngineProxy(), books, chats, TextCache(read_document), snapshots, experience)


def guarded_app(state: AppState, settings: Settings) -> App:
    """The whole application: all routes, with the guard in front."""
    tokens = LoginTokens(load_secret(settings.data), used_file=settings.data / USED_FILE)
    quiet_gradio(settings.uploads)
    routes = _routes(state, settings, tokens)
    page = _page(state, settings, routes)
    lan = LanAuth(settings.password) if settings.password else None
    return Guard(page, settings.port, tokens, (*_GRADIOS, *(route.allowed for route in routes)), lan)


def make_panels(state: AppState, settings: Settings) -> tuple[Panel, ...]:
    """Make the self-contained parts of the page; ``app.web.live`` describes how to add one."""
    from app.core.each import AskEach
    from app.core.race import Race, Verified
    from app.core.suggestions import Sample
    from app.web.contents_panel import ContentsPanel
    from app.web.documents_panel import DocumentsPanel
    from app.web.each_panel import EachPanel
    from app.web.first_choice import FirstChoice
    from app.web.library import Library
    from app.web.notes_panel import NotesPanel
    from app.web.openai_api import Api
    from app.web.page_viewer import PageViewer
    from app.web.parts_panel import PartsPanel
    from app.web.preferences import Preferences, make_switch
    from app.web.race_panel import RacePanel

    switch = make_switch(state, settings)
    preferences = Preferences(state, switch, settings.port)
    verified = Verified(settings.data / VERIFIED_FILE)
    library = Library(state, Sample(SAMPLE_BOOKS))
    return (
        library,
        PageViewer(state),
        ContentsPanel(state),
        DocumentsPanel(state),
        EachPanel(state, AskEach(state)),
        PartsPanel(state),
        NotesPanel(state),
        RacePanel(state, Race(state, verified, library.suggestions), verified),
        Api(state, settings.data),
        preferences,
        FirstChoice(state, switch, preferences.rates, lambda: preferences.news),
    )


def quiet_gradio(uploads: Path) -> None:
    """Set environment variables before Gradio is imported, so that Gradio sends no reports and fetches nothing."""
    os.environ.update(
        GRADIO_ANALYTICS_ENABLED="False",
        GRADIO_ANALYTICS_MAX_EVENTS="1",  # maximum events that Gradio keeps even without analytics; default 10,000
        # number of events after which Gradio updates its summary of all events; default 1
        GRADIO_ANALYTICS_CACHE_FREQUENCY="1000000000",
        GRADIO_TEMP_DIR=str(uploads),
        GRADIO_SSR_MODE="False",
        GRADIO_MCP_SERVER="False",
        GRADIO_SHARE="False",
        HF_HUB_DISABLE_TELEMETRY="1",
    )


def page_files() -> dict[str, Path]:
    """Every file of Trifold that the page may load, keyed by file name. No other file is served."""
    folders = (_PAGE, _ASSETS / "style", _ASSETS / "icons")
    return {file.name: file for folder in folders for file in sorted(folder.glob("*")) if file.suffix in _KINDS}


def start_page(files: Mapping[str, Path]) -> str:
    """The page's HTML with all style sheets of Trifold, the formats of documents, the options of an answer, and what
    answers may come from. The style sheet with the colours comes first.
    """
    names = sorted((name for name in files if name.endswith(".css")), key=lambda name: (name != _FIRST_STYLE, name))
    styles = "\n".join(f'<link rel="stylesheet" href="/ui/{name}">' for name in names)
    page = (_PAGE / "frame.html").read_text(encoding="utf-8").replace("<!-- styles -->", styles)
    page = page.replace("<!-- suffixes -->", ",".join((*file_formats.suffixes(), *conversion.suffixes())))
    page = page.replace("<!-- formats -->", ", ".join((*file_formats.names()[:_NAMED_FORMATS], "…")))
    sources = "".join(f'<option value="{source.value}">{words}</option>' for source, words in SOURCES.items())
    page = page.replace("<!-- sources -->", sources)
    return page.replace("<!-- options -->", option_controls((*options_of(SamplingParams), *options_of(Ask))))


def option_controls(options: Iterable[Option]) -> str:
    """The controls of the answer settings as HTML: the checkboxes, then the numbers, which are folded. An option that
    the model's own settings can give has a button that returns to them.
    """
    boxes: list[str] = []
    numbers: list[str] = []
    for one in options:
        begin = f'data-setting="{one.name}"><label>'
        own = '<button class="tf-link" type="button" hidden></button>' if one.is_models else ""
        if isinstance(one.page, Checkbox):
            checked = " checked" if one.default else ""
            box = f'<input type="checkbox"{checked}> {one.page.label}'
            boxes.append(f'<div class="setting check" {begin}{box}</label> {own}</div>')
        elif isinstance(one.page, Slider):
            label, value = one.page.label, one.off if one.is_models else one.default
            span = f'min="{one.page.low:g}" max="{one.page.high:g}" step="{one.page.step:g}" value="{value:g}"'
            numbers.append(
                f'<div class="setting" {begin}<span>{label}</span>'
                f'<input type="number" {span} aria-label="number input for {label}"></label>'
                f"<small><span>{one.page.hint}</span>{own}</small>"
                f'<input type="range" {span} aria-label="range slider for {label}"></div>'
            )
    folded = '<details id="advanced"><summary>Advanced</summary><div class="numbers">', *numbers, "</div></details>"
    return "\n".join([*boxes, *folded])


def _own_routes(port: int, tokens: LoginTokens) -> list[PageRoute]:
    """The routes of the page itself: its HTML, its files, Gradio's script for embedding in other pages, and the health
    check.
    """
    from starlette.requests import Request
    from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response

    from app.web.routes import PageRoute

    files = page_files()
    page = start_page(files)

    async def start(request: Request) -> Response:
        return HTMLResponse(page, headers={"cache-control": "no-store"})

    async def file(request: Request) -> Response:
        found = files.get(request.path_params["name"])
        if found is None:
            return Response(status_code=404)
        return FileResponse(found, media_type=_KINDS[found.suffix], headers={"cache-control": "no-cache"})

    async def gradio_script(request: Request) -> Response:
        import gradio

        script = Path(gradio.__file__).parent / "templates" / "frontend" / "gradio.js"
        return FileResponse(script, media_type=_KINDS[".js"], headers={"cache-control": "no-cache"})

    async def healthz(request: Request) -> Response:
        challenge = request.query_params.get("challenge", "")[:LONGEST_CHALLENGE]
        return JSONResponse({"app": PROGRAM_NAME, "status": "ok", "proof": tokens.prove(challenge, port)})

    return [
        PageRoute("GET", "/", start),
        PageRoute("GET", "/ui/{name}", file),
        PageRoute("GET", "/gradio.js", gradio_script),
        PageRoute("GET", HEALTH_PATH, healthz, open=True),
    ]


def _routes(state: AppState, settings: Settings, tokens: LoginTokens) -> list[PageRoute]:
    """Every request that the program itself answers."""
    from app.core.suggestions import Sample
    from app.web.live import Live
    from app.web.routes import BookRoutes, ChatRoutes

    panels = make_panels(state, settings)
    return [
        *_own_routes(settings.port, tokens),
        Live(state, panels).route(),
        *BookRoutes(state, Sample(SAMPLE_BOOKS)).routes(),
        *ChatRoutes(state).routes(),
        *(route for panel in panels for route in panel.routes()),
    ]


def _page(state: AppState, settings: Settings, routes: Sequence[PageRoute]) -> App:
    from fastapi import FastAPI

    from app.web import gradio_page

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.router.routes += routes
    return gradio_page.mount(app, gradio_page.Record(state).show, settings.port)


def _listen(port: int, host: str = HOST) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name != "nt":  # on Windows, SO_REUSEADDR would let two programs share a port
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise ResourceError(f"Port {port} of this machine is taken.", "Choose another one with --port.") from error
    return listening


def _open_files_enough() -> None:
    """Let this process open as many files as the system allows, at most ``_MOST_FILES``: each connection is one, and
    without any left no book could be opened and no page shown.
    """
    if os.name == "posix":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _protocol() -> type[asyncio.Protocol]:
    """Uvicorn's protocol, which also closes a connection that brings no whole request within ``REQUEST_SECONDS``.
    Otherwise anybody who reaches the port could take all connections, without being let in.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._unwatch()

        def _watch(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self._unwatch()
            elif self._deadline is None:
                self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.close)

        def _unwatch(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Protocol


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
        proxy_headers=False,  # there is no proxy, so headers that claim another client's address are not trusted
        ws="none",
        http=_protocol(),
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    return Server(config)
