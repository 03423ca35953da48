"""The program in a process of its own, on a free port and a data folder that is thrown away."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app.api import key
from app.tickets import opening_address

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 240  # a busy machine takes its time
READ_SECONDS = 120


@dataclass(frozen=True)
class Running:
    """A program that answers; ``browser`` has been let in as the person's own."""

    port: int
    data: Path
    browser: httpx.Client
    process: subprocess.Popen[bytes]

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def key(self) -> str:
        return key.load(self.data)

    def post(self, path: str, body: Any = None) -> httpx.Response:
        return self.browser.post(path, json={} if body is None else body)

    def look(self) -> dict[str, Any]:
        """The first message of the live stream: the whole state of the page."""
        with self.browser.stream("GET", "/live") as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    import json

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
def running(data: Path, *options: str, **environ: str) -> Iterator[Running]:
    """Start the program and end it again."""
    port = _free_port()
    # One thread: the cores are shared with the tests, and threads that wait for each other starve.
    environment = {**os.environ, "TRIFOLD_DATA": str(data), "OMP_NUM_THREADS": "1", **environ}
    command = [sys.executable, "-m", "app.cli", "--no-browser", "--port", str(port), *options]
    with (data / "said.txt").open("wb") as said:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as browser:
            _wait(browser, process, data)
            assert browser.get(opening_address(data, port)).status_code == 200
            yield Running(port, data, browser, process)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(browser: httpx.Client, process: subprocess.Popen[bytes], data: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            if browser.get("/healthz").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        said = (data / "said.txt").read_text(encoding="utf-8", errors="replace")
        assert process.poll() is None, said
        assert time.monotonic() < until, said
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
