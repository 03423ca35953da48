"""Programs that serve a page, as processes of their own: started, waited for, ended."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.nursery import Forked, Nursery

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 240  # a busy machine takes its time
END_SECONDS = 10
SAID = "said.txt"  # what a program writes to the terminal, in its data folder

# Below what systems give to those who do not ask for a number, above the last one that browsers refuse (10,080).
_FIRST_PORT, _SHARES, _SHARE = 11_000, 10, 2_000

Process = subprocess.Popen[bytes] | Forked


def browser_path() -> str | None:
    """The Chromium of this machine that tests drive: what ``TRIFOLD_CHROMIUM`` names, or the first that is found."""
    from app.core.diagnostics import BROWSERS

    return os.environ.get("TRIFOLD_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)


def app_command(port: int, *options: str) -> list[str]:
    """The product, as a person starts it."""
    return [sys.executable, "-m", "app.cli", "--no-browser", "--port", str(port), *options]


@contextmanager
def started(
    command: Sequence[str],
    data: Path,
    port: int,
    cwd: Path = ROOT,
    nursery: Nursery | None = None,
    **environ: str,
) -> Iterator[Process]:
    """A server with its data in a folder of its own, once it answers; ended on leaving.

    Args:
        nursery: forks a process that becomes ``python -m MODULE ...`` of the checkout, which is all it can start.
    """
    # One thread: the cores are shared with the tests, and threads that wait for each other starve.
    environment = {**os.environ, "TRIFOLD_DATA": str(data), "OMP_NUM_THREADS": "1", **environ}
    process = begun(command, data / SAID, environment, cwd, nursery)
    until = time.monotonic() + START_SECONDS
    try:
        while not is_up(port):
            told = (data / SAID).read_text(encoding="utf-8", errors="replace")
            assert process.poll() is None, told
            assert time.monotonic() < until, told
            time.sleep(0.2)
        yield process
    finally:  # as a person does; and by force, if it does not end
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def begun(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    cwd: Path = ROOT,
    nursery: Nursery | None = None,
    out: Path | None = None,
) -> Process:
    """A process with its output at the end of files. Arguments as of ``started`` and of ``Nursery.start``."""
    if nursery is not None:
        _, _, module, *arguments = command
        return nursery.start(module, arguments, environment, log, out=out)
    with log.open("ab") as said, (out or log).open("ab") as told:
        return subprocess.Popen(command, cwd=cwd, env=environment, stdout=told, stderr=said)


def is_up(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _own_ports() -> Iterator[int]:
    """The ports of this process of the tests, again and again. Processes of one run have different ones."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _SHARES
    share = range(_FIRST_PORT + worker * _SHARE, _FIRST_PORT + (worker + 1) * _SHARE)
    yield from itertools.islice(itertools.cycle(share), random.SystemRandom().randrange(_SHARE), None)


_ports = _own_ports()


def free_port() -> int:
    """A port that nobody has, and that nobody is given before the server that it is for has started."""
    while True:
        port = next(_ports)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
