"""Starts the readers' children quickly: a process that has imported the parsers, and forks.

``python -m tests.parsers DESCRIPTOR``: an order comes over a socket (JSON: module, environment) with the two ends of
pipes that become the child's input and output; the answer is its process id. What the child does, and its limits, are
those of ``engine.sandbox``. Only the interpreter starts once, and imports the parsers once, for a process of tests.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import BinaryIO

import psutil

from app.readers.file_formats import FORMATS

ROOT = Path(__file__).resolve().parents[1]
FORKS = ("app.readers.child",)
"""Modules of children that are forked."""
_PARSERS = (*sorted({one.parser for one in FORMATS}), "delimited", "encoding", "archive")
_NUM_BYTES = 1 << 16


def reading_children() -> list[psutil.Process]:
    """Children of this process that read documents now, whoever started them."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            line, parent = child.cmdline(), child.parent()
            if "app.readers.child" in line or (
                __name__ in line and parent is not None and __name__ in parent.cmdline()
            ):
                found.append(child)
    return found


class Parsers:
    """The parent's side."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-X", "utf8", "-m", "tests.parsers", str(theirs.fileno())],
            cwd=ROOT,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()

    def start(self, module: str, environment: dict[str, str]) -> Child:
        """``python -X utf8 -m MODULE`` with pipes."""
        order = json.dumps([module, environment]).encode()
        (heard, asks), (says, answers) = os.pipe(), os.pipe()
        with self._lock:
            socket.send_fds(self._socket, [order], [heard, answers])
            pid = int(self._socket.recv(_NUM_BYTES))
        os.close(heard)
        os.close(answers)
        return Child(pid, os.fdopen(asks, "wb"), os.fdopen(says, "rb"))

    def close(self) -> None:
        self._socket.close()
        self._process.wait(20)


class Child:
    """What ``engine.sandbox`` needs of ``subprocess.Popen``, for a process that is not our child."""

    def __init__(self, pid: int, stdin: BinaryIO, stdout: BinaryIO) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        try:
            self._fd: int | None = os.pidfd_open(pid)
        except ProcessLookupError:  # it has ended
            self._fd = None

    def kill(self) -> None:
        if self._fd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def wait(self) -> None:
        if self._fd is not None:
            select.select([self._fd], [], [])
            os.close(self._fd)
            self._fd = None


def _become(module: str, environment: dict[str, str], heard: int, answers: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    nothing = os.open(os.devnull, os.O_WRONLY)
    for source, target in ((heard, 0), (answers, 1), (nothing, 2)):
        os.dup2(source, target)
    os.closerange(3, 64)
    sys.argv = [module]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        os._exit(1)


def serve(orders: socket.socket) -> None:
    """Fork until the other end closes."""
    for name in _PARSERS:
        import_module(f"app.readers.{name}")
    gc.freeze()  # whoever is forked need not look through all these objects for garbage
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who ends is collected by the system
    while True:
        order, descriptors, *_ = socket.recv_fds(orders, _NUM_BYTES, 2)
        if not order:
            return
        pid = os.fork()
        if pid == 0:
            orders.close()
            _become(*json.loads(order), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        orders.send(str(pid).encode())


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
