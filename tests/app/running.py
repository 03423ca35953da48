"""The program in a process of its own, on a free port and a data folder that is thrown away."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app.web import openai_api
from app.web.auth import opening_address
from tests.nursery import Nursery
from tests.processes import ROOT, Process, app_command, free_port, started

READ_SECONDS = 120


@dataclass(frozen=True)
class Running:
    """A program that answers; ``browser`` has been let in as the person's own."""

    port: int
    data: Path
    browser: httpx.Client
    process: Process

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def key(self) -> str:
        return openai_api.load(self.data)

    def post(self, path: str, body: Any = None) -> httpx.Response:
        return self.browser.post(path, json={} if body is None else body)

    def look(self) -> dict[str, Any]:
        """The first message of the live stream: the whole state of the page."""
        with self.browser.stream("GET", "/live") as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    state: dict[str, Any] = json.loads(line[6:])
                    return state
        raise AssertionError("the live stream is silent")

    def until(self, holds: Any, seconds: float = READ_SECONDS) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while not holds(state := self.look()):
            assert time.monotonic() < end, state
            assert self.process.poll() is None
            time.sleep(0.2)
        return state

    def open_text(self, text: str, name: str = "book.txt") -> str:
        """Open a book and wait until it has been read; its hash."""
        headers = {"x-file-name": name, "content-type": "application/octet-stream"}
        assert self.browser.post("/books", content=text.encode(), headers=headers).status_code == 200
        state = self.until(lambda state: state["book"]["stage"] in ("ready", "failed"))
        assert state["book"]["stage"] == "ready", state["book"]
        return str(state["book"]["id"])


@contextmanager
def running(data: Path, *options: str, nursery: Nursery | None = None, **environ: str) -> Iterator[Running]:
    """Start the program and end it again."""
    port = free_port()
    with (
        started(app_command(port, *options), data, port, ROOT, nursery, **environ) as process,
        httpx.Client(base_url=(page := f"http://127.0.0.1:{port}"), trust_env=False, timeout=30) as browser,
    ):
        browser.headers["origin"] = page
        assert browser.get(opening_address(data, port)).status_code == 200
        yield Running(port, data, browser, process)
