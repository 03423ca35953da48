"""Server processes for the browser tests: started, waited for, ended."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.steps import Server

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 90


@contextmanager
def started(command: list[str], data: Path, port: int, seconds: float = START_SECONDS) -> Iterator[Server]:
    """A server process with its data in a folder of its own; ended on leaving."""
    # One thread a process: the cores are shared with the browser, and threads that wait for each other starve.
    environment = {**os.environ, "TRIFOLD_DATA": str(data), "OMP_NUM_THREADS": "1"}
    with (data / "log.txt").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        until = time.monotonic() + seconds
        while not is_up(port):
            said = (data / "log.txt").read_text(encoding="utf-8")
            assert process.poll() is None, said
            assert time.monotonic() < until, said
            time.sleep(0.2)
        yield Server(port, data)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def is_up(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
