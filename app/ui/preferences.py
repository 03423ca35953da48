"""The preferences of the page: which model answers, other programs, another server, help with faults.

Translates between requests and ``app.models.setup``; the key, the report and the list of models are read when the
dialog is opened, what is under way comes through the live stream.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from app import diagnostics
from app.api import key
from app.guard import Door
from app.models import room
from app.models.choice import Remote
from app.models.download import Cancelled, Download
from app.models.fit import Room
from app.models.setup import Setup
from app.models.shapes import read_config, shape_of
from app.models.slot import Slot
from app.settings import HOST, Settings, is_hub_id
from app.ui.desk import Keeper
from app.ui.offers import about_view, offers, setup_view, sized
from app.ui.presentation import View
from app.ui.requests import SMALL_BODY, body, said, text
from engine.errors import OptionError, ResourceError

_POSTS = ("/models/use", "/models/stop", "/models/look", "/remote/use", "/remote/leave", "/key/renew")
_GETS = ("/preferences", "/diagnostics")


def set_up(keeper: Keeper, settings: Settings) -> Setup:
    """The setup behind the desk's engine; begins to load the first model if none stands there."""
    from engine import Engine

    slot = keeper.engine if isinstance(keeper.engine, Slot) else Slot.around(keeper.engine)
    setup = Setup(slot, settings, Engine, keeper.read_again)
    if slot.empty:
        setup.begin()
    return setup


class Preferences:
    """A panel of the page (``app.ui.panel``).

    Args:
        keeper: keeps the desk.
        setup: changes the model.
        port: where the page listens, for the address that other programs are given.
    """

    def __init__(self, keeper: Keeper, setup: Setup, port: int) -> None:
        self._keeper = keeper
        self._setup = setup
        self._port = port

    @property
    def doors(self) -> Sequence[Door]:
        return (
            *(Door("GET", path) for path in _GETS),
            *(Door("POST", path, limit=SMALL_BODY) for path in _POSTS),
        )

    def routes(self) -> Sequence[Route]:
        gets = {"/preferences": self.show, "/diagnostics": self.report}
        posts = {
            "/models/use": self.use,
            "/models/stop": self.stop,
            "/models/look": self.look,
            "/remote/use": self.use_remote,
            "/remote/leave": self.leave_remote,
            "/key/renew": self.renew_key,
        }
        return (
            *(Route(path, said(handler), methods=["GET"]) for path, handler in gets.items()),
            *(Route(path, said(handler), methods=["POST"]) for path, handler in posts.items()),
        )

    def view(self) -> View:
        return {"setup": setup_view(self._setup.doing, self._setup.present)}

    async def show(self, request: Request) -> Response:
        """Everything that the dialog shows when it is opened."""
        return JSONResponse(await run_in_threadpool(self._shown))

    async def use(self, request: Request) -> None:
        asked = await body(request)
        self._setup.use(text(asked, "model"), text(asked, "draft") or None)

    async def stop(self, request: Request) -> None:
        self._setup.cancel()

    async def look(self, request: Request) -> Response:
        """What a folder or a hub id is, before anything large is fetched."""
        name = text(await body(request), "model").strip()
        if not name:
            raise OptionError("No model is named.", "Type a folder, or a hub id such as Qwen/Qwen3-0.6B.")
        return JSONResponse(await run_in_threadpool(self._look, name))

    async def use_remote(self, request: Request) -> None:
        asked = await body(request)
        remote = Remote(text(asked, "address"), text(asked, "model").strip(), text(asked, "key").strip())
        self._setup.use_remote(remote, asked.get("confirmed") is True)

    async def leave_remote(self, request: Request) -> None:
        self._setup.leave_remote()

    async def renew_key(self, request: Request) -> Response:
        return JSONResponse({"key": await run_in_threadpool(key.renew, self._setup.data)})

    async def report(self, request: Request) -> Response:
        """The diagnostics as text, to be copied."""
        return PlainTextResponse(await run_in_threadpool(self._report))

    def _shown(self) -> View:
        present = self._setup.present
        remote = present.remote if present else None
        return {
            "models": offers(self._setup.places, self._room(), present),
            "api": {"address": f"http://{HOST}:{self._port}/v1", "key": key.load(self._setup.data)},
            "remote": {"address": remote.address, "model": remote.model} if remote else None,
            "folder": str(self._setup.data),
        }

    def _look(self, name: str) -> View:
        where = self._room()
        if is_hub_id(name) and self._setup.places.find(name) is None:
            try:
                return about_view(Download().about(name), name, where)
            except Cancelled as error:
                raise ResourceError("The hub was not asked to its end.", "Try it again.") from error
        self._setup.places.find(name)
        folder = self._setup.places.folder(name) or Path(name).expanduser()
        weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        return sized(shape_of(read_config(folder), name, weights), None, "", False, where)

    def _room(self) -> Room:
        read = self._keeper.desk.read
        held = read.kv_bytes.device or read.kv_bytes.host if read else 0
        return room.measure(self._setup.data, self._keeper.engine.status(), held, self._setup.kv, self._setup.rounding)

    def _report(self) -> str:
        doing: Any = self._setup.doing
        facts = diagnostics.facts_of(self._setup.data, self._keeper.engine.status())
        facts.append(f"When       {time.strftime('%Y-%m-%d %H:%M:%S %z')}")
        if doing.cause:
            facts.append(f"Model      {doing.cause}")
        return diagnostics.report(self._setup.data, facts)
