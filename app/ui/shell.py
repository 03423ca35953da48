"""The frame of the page: our own HTML around Gradio's chat, there before Gradio has started.

Owns the rewriting of Gradio's start page and the files that the page loads from us. The rewriting is checked: if a
new Gradio no longer has the places that we put things, starting fails with a sentence instead of a broken page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from app.guard import App, Message, Receive, Scope, Send
from engine.errors import EngineError

_HERE = Path(__file__).resolve().parent / "page"
_ASSETS = Path(__file__).resolve().parents[2] / "assets"
_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".png": "image/png"}

_HEAD = """
<meta name="color-scheme" content="light dark">
<meta name="theme-color" content="#faf7f0">
<link rel="icon" href="/ui/trifold.svg" type="image/svg+xml">
<script src="/ui/theme.js"></script>
{styles}
<script type="module" src="/ui/main.js"></script>
"""
_FIRST_STYLE = "trifold.css"  # it defines the colours that the others use
_GRADIO = re.compile(r"<gradio-app.*?</gradio-app>", re.DOTALL)
# Addresses of other hosts for link previews, and a base address that the content policy forbids: no use to us.
_UNWANTED = re.compile(
    r"<base[^>]*>|<meta\s+(?:property|name)=\"(?:og|twitter):[^>]*>|<link rel=\"manifest\"[^>]*>", re.S
)


def page_files() -> dict[str, Path]:
    """Every file that the page may load from us, by its name. Nothing else is served."""
    folders = (_HERE, _ASSETS / "style", _ASSETS / "icons")
    return {file.name: file for folder in folders for file in sorted(folder.glob("*")) if file.suffix in _KINDS}


def files_route(files: Mapping[str, Path]) -> Route:
    async def serve(request: Request) -> Response:
        file = files.get(request.path_params["name"])
        if file is None:
            return Response(status_code=404)
        headers = {"cache-control": "no-cache"}
        return FileResponse(file, media_type=_KINDS[file.suffix], headers=headers)

    return Route("/ui/{name}", serve)


def frame(page: str) -> str:
    """Gradio's start page with our frame around the chat.

    Raises:
        EngineError: the page does not have the shape that it has in the Gradio that is pinned.
    """
    chat = _GRADIO.search(page)
    if chat is None or "</head>" not in page:
        raise EngineError("This version of Gradio has another start page.", "Install the one in requirements.txt.")
    ours = (_HERE / "frame.html").read_text(encoding="utf-8").replace("<!-- gradio -->", chat.group(0))
    page = page[: chat.start()] + ours + page[chat.end() :]
    return _UNWANTED.sub("", page).replace("</head>", _HEAD.format(styles=_styles()) + "</head>", 1)


def _styles() -> str:
    """Every style sheet of ours, the frame's first."""
    names = sorted(
        (file.name for file in (_ASSETS / "style").glob("*.css")), key=lambda name: (name != _FIRST_STYLE, name)
    )
    return "\n".join(f'<link rel="stylesheet" href="/ui/{name}">' for name in names)


class Shell:
    """ASGI middleware that frames the start page and lets everything else pass."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/" or scope["method"] != "GET":
            return await self._app(scope, receive, send)
        held: list[Message] = []

        async def hold(message: Message) -> None:
            held.append(message)

        await self._app(scope, receive, hold)
        body = b"".join(message.get("body", b"") for message in held if message["type"] == "http.response.body")
        start = next(message for message in held if message["type"] == "http.response.start")
        if start["status"] == 200:
            body = frame(body.decode("utf-8")).encode("utf-8")
            kept = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
            length = str(len(body)).encode("ascii")
            start["headers"] = [*kept, (b"content-length", length), (b"cache-control", b"no-store")]
        await send(start)
        await send({"type": "http.response.body", "body": body})
