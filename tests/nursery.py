"""Starts apps quickly: one process that has imported the libraries, and forks. ``python -m tests.nursery``

Takes one order a line (JSON: module, arguments, environment, log) and answers with the process id. A forked app is a
process of its own in every respect that matters here: it is killed alone, and what it has open is its own.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.faults import engine_clock, jumping_clock

ROOT = Path(__file__).resolve().parents[1]
_LIBRARIES = ("torch", "transformers", "transformers.models.llama.modeling_llama", "uvicorn", "fastapi", "gradio")


class Nursery:
    """The parent's side."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.nursery"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def start(self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Forked:
        """``python -m MODULE ARGUMENTS`` in the checkout, its output at the end of ``log``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        log.touch()
        order: dict[str, Any] = {"module": module, "arguments": list(arguments)}
        order |= {"environment": dict(environment), "log": str(log)}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return Forked(int(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.kill()
        self._process.wait(20)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


class Forked:
    """What the tests need of ``subprocess.Popen``, for a process that is not our child."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    def wait(self, timeout: float = float("inf")) -> None:
        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("app", timeout)
            time.sleep(0.01)

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, what: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # as Popen: who has ended needs no signal
            os.kill(self.pid, what)


def _become(order: dict[str, Any]) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.update(order["environment"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    if jumping_clock.FILE in os.environ:
        time.time = jumping_clock.jumped
    if engine_clock.FILE in os.environ:
        engine_clock.install()
    sys.argv = [order["module"], *order["arguments"]]
    status: object = 1
    try:
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        status = ended.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


def serve() -> None:
    for name in _LIBRARIES:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who ends is collected by the system
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(order)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
