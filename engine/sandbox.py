"""Runs a child process with limits for untrusted bytes. Contains both the parent's and the child's side.

Owns the process and the messages on its pipes (four bytes of length, then JSON). However ``run_in_child`` is left (by
an error, a cancel, Ctrl-C), the child is killed and waited for. The module that the child runs decides what it does:
``app.readers.child`` parses documents, ``engine.foreign_child`` tries a model's tokenizer and template.

The parent limits time on every system: of the processor, so that a busy machine is not taken for a harmful file, and at
some point by the clock. On Linux the system limits memory before it is allocated. Elsewhere the
parent checks memory ten times a second, so a child can exceed its limit for a moment. Except on Windows the system also
limits processor time, so that a child that never reads its pipe ends even if its parent was killed.

``multiprocessing`` is not used: its spawned child imports the app's main module again and inherits the whole
environment. Its pipes unpickle messages, so that a parser taken over by a file could run code in the app. Messages in
JSON cannot run code. Imports only the standard library, and psutil where the parent looks at a child.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import queue
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NoReturn, cast

__all__ = [
    "Bounds", "ChildFailed", "Voice", "environment", "memory_of", "processor_seconds", "run_in_child", "serve",
    "wait_for_bytes",
]  # fmt: skip

_ROOT = Path(__file__).resolve().parents[1]
_LOOK_EVERY = 0.1  # seconds between two checks of the clock and of the child's memory
_LISTEN_EVERY = 0.02  # seconds between two checks of a child's input on Windows
_PIECE = 1 << 20  # maximum bytes that are read at once
_START_SECONDS = 30.0  # maximum seconds until a child's first message, enough for a cold disk and a busy machine
_SECRET = ("TOKEN", "SECRET", "PASSWORD", "API_KEY")
_END = object()
_LENGTH = struct.Struct(">I")
LARGEST_MESSAGE = 512 << 20  # maximum bytes of a message

# A child may take this many times its seconds by the clock, because other programs may have the processor
_BUSY = 6.0

Reason = Literal["memory", "page time", "time", "busy", "crash"]


@dataclass(frozen=True)
class Bounds:
    """The limits of a child. ``memory_bytes`` is the maximum of its memory. ``silence_s`` is the maximum number of
    seconds of the processor between two of its messages, and ``_BUSY`` times that by the clock. For the first message
    ``_START_SECONDS`` is the limit.
    """

    memory_bytes: int
    silence_s: float


class ChildFailed(Exception):
    """Raised if the child did not finish.

    Args:
        reason: the limit that the child broke, "crash", or "busy" if the child had too little of the processor to
            finish by the clock.
        page: the page that the child was working on, from 1; None outside of pages.
    """

    def __init__(self, reason: Reason, page: int | None) -> None:
        super().__init__(f"{reason} at {page}")
        self.reason: Reason = reason
        self.page = page


# The parent's side --------------------------------------------------------------------------------------------


def run_in_child(
    module: str, request: dict[str, Any], bounds: Bounds, deadline: float
) -> Generator[dict[str, Any], dict[str, Any] | None, None]:
    """Run one request in a new child and yield its messages until "done".

    The generator's ``send`` passes a further message to a child that waits for it (``Voice.hear``). A child can limit
    the seconds until its next message to less than ``bounds.silence_s`` ("within_s").

    Args:
        module: module that the child runs; its main part calls ``serve``.
        request: the child's task, as JSON.
        bounds: limits of memory and of silence.
        deadline: ``time.monotonic()`` at which a child that has the processor to itself is ended. A child that waits
            for the processor has ``_BUSY`` times as long.

    Raises:
        ChildFailed: a bound was broken or the child died.
    """
    seconds = math.ceil(max(0.0, deadline - time.monotonic()) + _START_SECONDS)
    request = {**request, "memory_bytes": bounds.memory_bytes, "cpu_seconds": seconds}
    child = _start(module)
    atexit.register(child.kill)  # the program may end without running the ``finally`` below
    try:
        arrived: queue.Queue[Any] = queue.Queue()
        listener = threading.Thread(
            target=_listen, args=(cast(BinaryIO, child.stdout), arrived), name="trifold-child", daemon=True
        )
        listener.start()
        with suppress(OSError):  # if the child is dead, ``_messages`` detects it
            send_message(cast(BinaryIO, child.stdin), request)
        yield from _messages(child, arrived, bounds, deadline)
    finally:
        _end(child)


def _messages(
    child: subprocess.Popen[bytes], arrived: queue.Queue[Any], bounds: Bounds, deadline: float
) -> Generator[dict[str, Any], dict[str, Any] | None, None]:
    page: int | None = None
    bounded = True
    whole = _Stretch(child.pid, max(0.0, deadline - time.monotonic()))
    quiet = _Stretch(child.pid, _START_SECONDS)
    while True:
        try:
            message = arrived.get(timeout=_LOOK_EVERY)
        except queue.Empty:
            if reason := whole.exceeded("time") or quiet.exceeded("page time"):
                raise ChildFailed(reason, page) from None
            if not bounded and memory_of(child.pid) > bounds.memory_bytes:
                raise ChildFailed("memory", page) from None
            continue
        if message is _END:
            raise ChildFailed("crash", page)
        if reason := whole.exceeded("time"):
            raise ChildFailed(reason, page)
        patience = min(bounds.silence_s, message.get("within_s", bounds.silence_s))
        quiet = _Stretch(child.pid, patience)
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
            following = yield message
            quiet = _Stretch(child.pid, patience)  # the time that the caller took does not count as silence
            if following is not None:
                with suppress(OSError):  # if the child is dead, the next turn of the loop detects it
                    send_message(cast(BinaryIO, child.stdin), following)


class _Stretch:
    """Measures a child's time: by the clock, and if that exceeds the limit also by the processor.

    Args:
        pid: the child.
        limit_s: maximum seconds of the processor.
    """

    def __init__(self, pid: int, limit_s: float) -> None:
        self._pid, self._limit_s = pid, limit_s
        self._begun = time.monotonic()
        self._used_before: float | None = None  # read only once the child is silent, because reading takes time

    def exceeded(self, limit: Reason) -> Reason | None:
        """Return ``limit`` if the child has used more of the processor, "busy" if it did not get that much of the
        processor within ``_BUSY`` times the limit, or None.
        """
        seconds = time.monotonic() - self._begun
        if self._used_before is None:
            self._used_before = max(0.0, processor_seconds(self._pid) - seconds)
        if seconds <= self._limit_s:
            return None
        if processor_seconds(self._pid) - self._used_before > self._limit_s:
            return limit
        return "busy" if seconds > _BUSY * self._limit_s else None


def environment() -> dict[str, str]:
    """The environment variables of a child: the variables of this process without secrets. PYTHONPATH is set to the
    folders of ``sys.path``, without the current folder, so that the child finds the same libraries.
    """
    ours = {name: value for name, value in os.environ.items() if not any(word in name.upper() for word in _SECRET)}
    places = dict.fromkeys([str(_ROOT), *(os.path.abspath(place) for place in sys.path if place)])
    path = os.pathsep.join(place for place in places if os.pathsep not in place)
    return {**ours, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}


def _start(module: str) -> subprocess.Popen[bytes]:
    hidden = getattr(subprocess, "CREATE_NO_WINDOW", 0)
    return subprocess.Popen(
        [sys.executable, "-X", "utf8", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=_ROOT,
        env=environment(),
        creationflags=hidden,
    )


def _listen(stream: BinaryIO, arrived: queue.Queue[Any]) -> None:
    try:
        while (message := receive_message(stream)) is not None:
            arrived.put(message)
    except (OSError, ValueError, BrokenMessage):
        pass  # a broken or closed pipe counts as the end of the child
    arrived.put(_END)


def _end(child: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        child.kill()
    child.wait()
    atexit.unregister(child.kill)
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.close()


def memory_of(pid: int) -> int:
    """Resident bytes of a process and of those that it started; 0 if it has ended. Used on systems that cannot limit a
    process's memory.
    """
    return int(_total(pid, lambda process: process.memory_info().rss))


def processor_seconds(pid: int) -> float:
    """Seconds of the processor that a process and those that it started have used; 0 if it has ended."""
    return _total(pid, lambda process: sum(process.cpu_times()[:2]))


def _total(pid: int, measured: Callable[[Any], float]) -> float:
    """The sum over a process and those that it started. On Windows the python.exe of an environment starts the Python
    that works.
    """
    import psutil

    total = 0.0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                total += measured(each)
    return total


# The child's side ---------------------------------------------------------------------------------------------


class Voice:
    """The child's end of the pipe to its parent.

    ``step`` is called before each page. It tells the parent the page, and that the child is alive.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.arrived: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def hear(self, seconds: float) -> dict[str, Any] | None:
        """Wait for the parent's next message; None if none comes within ``seconds``."""
        try:
            return self.arrived.get(timeout=seconds)
        except queue.Empty:
            return None

    def say(self, message: dict[str, Any]) -> None:
        send_message(self._stream, message)

    def step(self, done: int, total: int, page: int | None = None) -> None:
        self.say({"type": "step", "done": done, "total": total, "page": page})


def serve(
    work: Callable[[dict[str, Any], Voice], None],
    refusal: Callable[[BaseException], dict[str, Any]],
    prepare: Callable[[dict[str, Any]], None] | None = None,
) -> NoReturn:
    """Run the child's main part: take a request from standard input, answer on standard output, and end.

    The child sets its own limits before any parser is imported, and ends when its parent ends.

    Args:
        work: does what the request asks.
        refusal: makes the message for an exception of ``work``; libraries may raise any exception on foreign bytes.
        prepare: imports what the request needs, within the time that the parent allows for the start.
    """
    voice = Voice(_claim_output())
    # without a buffer, because bytes in a buffer would not be seen by ``wait_for_bytes``
    heard = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115
    request = receive_message(heard)
    if request is not None:
        bounded = _limit(int(request["memory_bytes"]), int(request["cpu_seconds"]))
        threading.Thread(target=_hear_parent, args=(heard, voice.arrived), daemon=True).start()
        try:
            if prepare is not None:
                prepare(request)
            voice.say({"type": "ready", "bounded": bounded})
            work(request, voice)
        except MemoryError:
            voice.say({"type": "failed"})
        except BaseException as error:  # noqa: BLE001 - a panic of Rust is no Exception
            voice.say(refusal(error))
        voice.say({"type": "done"})
    sys.stdout.flush()
    os._exit(0)  # on some systems an ordinary exit would wait for the thread that reads from the parent


def _claim_output() -> BinaryIO:
    """Reserve the pipe of standard output for messages. What libraries print goes to standard error instead."""
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return stream


def _limit(memory_bytes: int, cpu_seconds: int) -> bool:
    """Set the limits. Return whether this system enforces the memory limit; elsewhere the parent checks memory."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no ``resource``
        return False
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not sys.platform.startswith("linux"):
        return False  # macOS has this limit but does not enforce it
    # This limit counts only private memory. Libraries that are mapped from disk, such as torch's, do not count.
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    return True


def _hear_parent(heard: BinaryIO, arrived: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Put the parent's messages into the queue ``arrived``. End this process when the parent ends."""
    try:
        while True:
            wait_for_bytes(heard)
            message = receive_message(heard)
            if message is None:
                return
            arrived.put(message)
    finally:
        os._exit(1)


def wait_for_bytes(pipe: BinaryIO) -> None:
    """On Windows, wait until a pipe has bytes or its other end is closed. Elsewhere return at once.

    A thread of a child must call this before it reads from the parent. While a read waits on Windows, every other
    thread that asks about standard input waits too, and numpy does so when it is imported (numpy 24290).
    """
    if sys.platform != "win32":
        return
    import _winapi
    import msvcrt

    handle = msvcrt.get_osfhandle(pipe.fileno())
    with suppress(OSError):  # the other end is closed, so that a read returns at once
        while not _winapi.PeekNamedPipe(handle, 0)[0]:
            time.sleep(_LISTEN_EVERY)


# Messages --------------------------------------------------------------------------------------------------------


class BrokenMessage(Exception):
    """Raised if the other end sent something that is not a message."""


def send_message(stream: BinaryIO, message: dict[str, Any]) -> None:
    """Write one message and flush it."""
    body = json.dumps(message, ensure_ascii=False).encode("utf-8", errors="replace")
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def receive_message(stream: BinaryIO) -> dict[str, Any] | None:
    """Receive the next message, or None at the end of the stream.

    Raises:
        BrokenMessage: the stream ends inside a message, or its bytes are not a message.
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
        part = stream.read(min(length, _PIECE))
        if not part:
            break
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
