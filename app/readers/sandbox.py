"""The bounded child process in which foreign bytes are parsed, seen from the app: start, listen, limit, end.

Owns the process and the messages on its pipes (four bytes of length, then JSON). Whatever happens (an error, a cancel,
Ctrl-C), leaving ``run_in_child`` ends the child and collects it.

Not ``multiprocessing``: its spawned child imports the app's main module again and inherits the whole environment, and
its pipes unpickle, so that a parser taken over by a file could run code in the app. JSON cannot.
"""

from __future__ import annotations

import json
import os
import queue
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from app.readers.parsed import Limits

_ROOT = Path(__file__).resolve().parents[2]
_LOOK_EVERY = 0.1  # seconds between two looks at the clock and at the child's memory
_START_SECONDS = 30.0  # a cold disk and a busy machine; counted before the first message only
_SECRET = ("TOKEN", "SECRET", "PASSWORD", "API_KEY")
_END = object()
_LENGTH = struct.Struct(">I")
LARGEST_MESSAGE = 512 << 20  # bytes

Reason = Literal["memory", "page time", "time", "crash"]


class ChildFailed(Exception):
    """The child did not finish.

    Args:
        reason: which bound it broke, or "crash".
        page: the page that it was working on, from 1; None outside of pages.
    """

    def __init__(self, reason: Reason, page: int | None) -> None:
        super().__init__(f"{reason} at {page}")
        self.reason: Reason = reason
        self.page = page


def run_in_child(request: dict[str, Any], limits: Limits, deadline: float) -> Generator[dict[str, Any], None, None]:
    """Run one request in a new child and yield what it says until it says "done".

    Args:
        request: what the child shall do; JSON.
        limits: memory and the longest silence.
        deadline: ``time.monotonic()`` at which the child is ended in any case.

    Raises:
        ChildFailed: a bound was broken or the child died.
    """
    request = {**request, "memory_bytes": limits.memory_bytes}
    child = _start()
    try:
        arrived: queue.Queue[Any] = queue.Queue()
        listener = threading.Thread(
            target=_listen, args=(cast(BinaryIO, child.stdout), arrived), name="trifold-reader", daemon=True
        )
        listener.start()
        with suppress(OSError):  # a child that is already dead is told apart below
            send_message(cast(BinaryIO, child.stdin), request)
        yield from _messages(child, arrived, limits, deadline)
    finally:
        _end(child)


def _messages(
    child: subprocess.Popen[bytes], arrived: queue.Queue[Any], limits: Limits, deadline: float
) -> Generator[dict[str, Any], None, None]:
    page: int | None = None
    bounded = True
    quiet_since, patience = time.monotonic(), _START_SECONDS
    while True:
        try:
            message = arrived.get(timeout=_LOOK_EVERY)
        except queue.Empty:
            now = time.monotonic()
            if now > deadline:
                raise ChildFailed("time", page) from None
            if now - quiet_since > patience:
                raise ChildFailed("page time", page) from None
            if not bounded and memory_of(child.pid) > limits.memory_bytes:
                raise ChildFailed("memory", page) from None
            continue
        if message is _END:
            raise ChildFailed("crash", page)
        if time.monotonic() > deadline:
            raise ChildFailed("time", page)
        quiet_since, patience = time.monotonic(), limits.seconds_per_page
        kind = message.get("type")
        if kind == "ready":
            bounded = bool(message.get("bounded"))
        elif kind == "failed":
            raise ChildFailed("memory", page)
        elif kind == "done":
            return
        else:
            if kind == "step":
                page = message.get("page")
            yield message
            quiet_since = time.monotonic()  # the time that our caller took is not the child's


def _start() -> subprocess.Popen[bytes]:
    environment = {
        name: value for name, value in os.environ.items() if not any(word in name.upper() for word in _SECRET)
    }
    environment["PYTHONPATH"] = str(_ROOT)
    environment["PYTHONIOENCODING"] = "utf-8"
    hidden = getattr(subprocess, "CREATE_NO_WINDOW", 0)
    return subprocess.Popen(
        [sys.executable, "-X", "utf8", "-m", "app.readers.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=_ROOT,
        env=environment,
        creationflags=hidden,
    )


def _listen(stream: BinaryIO, arrived: queue.Queue[Any]) -> None:
    try:
        while (message := receive_message(stream)) is not None:
            arrived.put(message)
    except (OSError, ValueError, BrokenMessage):
        pass  # a broken or closed pipe is the end of the child's speech; the reason is told apart by the clock
    arrived.put(_END)


def _end(child: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.close()


def memory_of(pid: int) -> int:
    """Resident bytes of a process; 0 when it is gone. For systems without a limit of address space."""
    import psutil  # only here: where the system itself holds the limit, it is never needed

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


class BrokenMessage(Exception):
    """The other end sent something that is not a message."""


def send_message(stream: BinaryIO, message: dict[str, Any]) -> None:
    """Write one message and flush it."""
    body = json.dumps(message, ensure_ascii=False).encode("utf-8", errors="replace")
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def receive_message(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message, or None at the end of the stream.

    Raises:
        Broken: the stream ends inside a message or holds something else.
    """
    head = _exactly(stream, _LENGTH.size)
    if not head:
        return None
    if len(head) < _LENGTH.size:
        raise BrokenMessage("cut short")
    (length,) = _LENGTH.unpack(head)
    if length > LARGEST_MESSAGE:
        raise BrokenMessage("too long")
    body = _exactly(stream, length)
    if len(body) < length:
        raise BrokenMessage("cut short")
    try:
        message = json.loads(body)
    except ValueError as error:
        raise BrokenMessage("not JSON") from error
    if not isinstance(message, dict):
        raise BrokenMessage("not an object")
    return message


def _exactly(stream: BinaryIO, length: int) -> bytes:
    parts: list[bytes] = []
    while length:
        part = stream.read(length)
        if not part:
            break
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
