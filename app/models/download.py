"""One download as the app sees it: a process that can be watched and stopped (``fetch`` is what runs in it)."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.launcher.variables import child_variables
from app.settings import CHECKOUT
from engine import errors
from engine.errors import EngineError, TrifoldError

_LAST_WORDS = 400  # characters of what a process that broke has said


@dataclass(frozen=True)
class Progress:
    """``done`` of ``total`` bytes of one model; ``checking``: a file is compared with its checksum."""

    name: str
    done: int
    total: int
    checking: bool = False


class Cancelled(Exception):
    """The person has stopped it. What had arrived is kept."""


class Download:
    """Runs ``fetch``, one command after the other; ``cancel`` from any thread ends it within a moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._cancelled = False

    def about(self, name: str) -> dict[str, Any]:
        """Ask the hub what a model is: its ``config``, ``licence``, ``gated`` and bytes of ``weights`` and in all.

        Raises:
            TrifoldError: it is not to be had, with the reason.
            Cancelled: the person has stopped it.
        """
        answer: dict[str, Any] = {}
        for message in self._run("about", name):
            answer.update(message)
        return answer

    def get(self, name: str, folder: Path, show: Callable[[Progress], None], weights: bool = True) -> None:
        """Bring a model into a folder. Raises as ``about``."""
        for message in self._run("get" if weights else "small", name, str(folder)):
            if message["kind"] in ("plan", "progress", "checking"):
                show(Progress(name, message["done"], message["total"], message["kind"] == "checking"))

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._process is not None:
                self._process.terminate()

    def _run(self, *arguments: str) -> Iterator[dict[str, Any]]:
        process = self._start(arguments)
        try:
            for line in process.stdout or ():
                message = json.loads(line)
                if message["kind"] == "failed":
                    raise _error(message)
                yield message
            said = process.stderr.read() if process.stderr else ""
            status = process.wait()
        finally:
            process.kill()
            process.communicate()
        with self._lock:
            if self._cancelled:
                raise Cancelled
        if status != 0:
            raise EngineError(f"The download broke off: {said.strip()[-_LAST_WORDS:] or status}.", "Try it again.")

    def _start(self, arguments: tuple[str, ...]) -> subprocess.Popen[str]:
        with self._lock:
            if self._cancelled:
                raise Cancelled
            self._process = subprocess.Popen(
                [sys.executable, "-m", "app.models.fetch", *arguments],
                cwd=CHECKOUT,
                env=child_variables(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
            )
            return self._process


def _error(message: dict[str, Any]) -> TrifoldError:
    kind = getattr(errors, str(message.get("error")), None)
    known = isinstance(kind, type) and issubclass(kind, TrifoldError)
    error: TrifoldError = (kind if known else EngineError)(message["cause"], message["remedy"])  # type: ignore[misc]
    return error
