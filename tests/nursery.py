"""Starts apps quickly: one process that has imported all that they need, and forks. ``python -m tests.nursery SOCKET``

All processes of a test run share it: the first that needs it starts it, and it ends when the last has left. It takes
one order a line (JSON: module, arguments, environment, log, script) and answers with the process id. A forked app is a
process of its own in every respect that matters here: it is killed alone, and what it has open is its own.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from tests.faults import engine_clock, jumping_clock

ROOT = Path(__file__).resolve().parents[1]
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000  # of Linux: CLONE_NEWUSER and CLONE_NEWNS
_DIE_WITH_PARENT = 1  # of Linux: PR_SET_PDEATHSIG
_READY = "ready\n"
_LIBRARIES = ("torch", "transformers", "transformers.models.llama.modeling_llama", "uvicorn", "fastapi", "gradio")
_PROGRAM = ("app.cli.models", "app.web.server", "app.web.gradio_page", "engine.session", "engine.worker")
"""What a started app has imported when it answers; importing does nothing else, so a fork may have it before."""


class Nursery:
    """The client's side."""

    def __init__(self) -> None:
        import fcntl  # not on Windows, where nothing forks

        address = Path(os.environ["TRIFOLD_KERNELS"]) / "nursery"
        with address.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._stream = _connect(address) or _begin(address)

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        script: str = "",
        out: Path | None = None,
    ) -> Forked:
        """``python -m MODULE ARGUMENTS`` in the checkout, its output at the end of ``log``.

        Args:
            script: of a shell that runs before, as root of a namespace where it mounts what only the module sees.
            out: a file for what is written to stdout, which otherwise goes to ``log`` too.
        """
        log.touch()
        order: dict[str, Any] = {"module": module, "arguments": list(arguments), "out": str(out or log)}
        order |= {"environment": dict(environment), "log": str(log), "script": script}
        self._stream.write(json.dumps(order) + "\n")
        self._stream.flush()
        return Forked(pid := int(self._stream.readline()), _status_file(log, pid))

    def close(self) -> None:
        self._stream.close()


def _connect(address: Path) -> TextIO | None:
    """A conversation with the process that listens there; None if it has ended or is about to."""
    with socket.socket(socket.AF_UNIX) as mine, suppress(OSError), _short(address) as name:
        mine.connect(name)
        stream = mine.makefile("rw", encoding="utf-8")
        if stream.readline() == _READY:
            return stream
        stream.close()
    return None


@contextmanager
def _short(address: Path) -> Iterator[str]:
    """Another name of the same place: a socket's has 107 bytes at most, and folders of temporary files may be deep."""
    folder = os.open(address.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{address.name}" if sys.platform.startswith("linux") else str(address)
    finally:
        os.close(folder)


def _begin(address: Path) -> TextIO:
    """Start the process, which outlives this one while others need it."""
    address.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.nursery", str(address)]
    quiet = {"OMP_NUM_THREADS": "1", "GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1"}
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **quiet}, stdin=nothing, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline().decode() == _READY
    stream = _connect(address)
    assert stream is not None
    return stream


class Forked:
    """What the tests need of ``subprocess.Popen``, for a process that is not our child."""

    def __init__(self, pid: int, status: Path) -> None:
        self.pid = pid
        self._status = status

    def poll(self) -> int | None:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            # a signal that is not handled leaves no status
            return int(self._status.read_text()) if self._status.exists() else -signal.SIGKILL
        return None

    def wait(self, timeout: float = float("inf")) -> int:
        until = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("app", timeout)
            time.sleep(0.01)
        return status

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, what: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # as Popen: who has ended needs no signal
            os.kill(self.pid, what)


def _status_file(log: Path, pid: int) -> Path:
    """Where a forked process leaves its exit status, which only its parent could ask the system for."""
    return log.with_name(f"{log.name}-status-{pid}")


def _become(order: dict[str, Any]) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process of several that test ignores
    os.environ.clear()
    os.environ.update(order["environment"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for source, target in ((nothing, 0), (out, 1), (log, 2)):
        os.dup2(source, target)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8", write_through=True)  # python -u
    if order["script"]:
        _be_root_of_own_mounts()
        subprocess.run(["sh", "-e", "-c", order["script"]], check=True)
    if sys.platform.startswith("linux"):  # who is killed among the tests leaves no app behind
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if jumping_clock.FILE in os.environ:
        time.time = jumping_clock.jumped
    if engine_clock.FILE in os.environ:
        engine_clock.install()
    sys.argv = [order["module"], *order["arguments"]]
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    status: object = 1
    try:
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        status = ended.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        status = status if isinstance(status, int) else 1
        _status_file(Path(order["log"]), os.getpid()).write_text(str(status))
        os._exit(status)


def _be_root_of_own_mounts() -> None:
    """As ``unshare --map-root-user --mount`` does, but without starting another program."""
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_USER | _NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    for name, told in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        Path("/proc/self", name).write_text(told, encoding="ascii")


def serve(address: str) -> None:
    """Fork for whoever asks, until nobody is left who could."""
    for name in (*_LIBRARIES, *_PROGRAM):
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    gc.freeze()  # whoever is forked need not look through all these objects for garbage
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who ends is collected by the system
    clients: dict[socket.socket, TextIO] = {}
    with socket.socket(socket.AF_UNIX) as door:
        with _short(Path(address)) as name:
            door.bind(name)
        door.listen()
        sys.stdout.write(_READY)
        sys.stdout.flush()
        while True:
            for one in select.select([door, *clients], [], [])[0]:
                if one is door:
                    guest, _ = door.accept()
                    clients[guest] = guest.makefile("rw", encoding="utf-8")
                    _say(clients[guest], _READY)
                elif line := clients[one].readline():
                    pid = os.fork()
                    if pid == 0:
                        for stream in clients.values():
                            stream.close()
                        for held in (door, *clients):
                            held.close()
                        _become(json.loads(line))
                    _say(clients[one], f"{pid}\n")
                else:
                    clients.pop(one).close()
                    one.close()
            if not clients:
                return


def _say(stream: TextIO, words: str) -> None:
    with suppress(OSError):  # who has left meanwhile is seen at the next look
        stream.write(words)
        stream.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
