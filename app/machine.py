"""Facts about this machine and this installation: what is here, how much of it, which versions. Gives no advice.

Everything that needs torch is asked in a child process, which may crash or hang without harm.
"""

from __future__ import annotations

import concurrent.futures
import importlib.metadata
import importlib.util
import multiprocessing
import os
import platform
import shutil
import sys
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from app.launcher.torch_build import Gpu, find_gpus

PACKAGES = ("torch", "transformers", "tokenizers", "gradio", "accelerate", "pypdf", "pypdfium2", "flash-attn")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_PROBE_TIMEOUT_S = 180

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Machine:
    """The hardware and the system. Sizes in bytes; ``gpus`` are what the NVIDIA driver reports."""

    system: str
    python: str
    python_path: str
    processor: str
    cores: int
    usable_cores: int
    memory_total: int
    memory_available: int
    disk_free: int
    disk_of: str
    gpus: tuple[Gpu, ...]
    browser: str | None


class ProbeFailed(Exception):
    """The child process that asked torch did not come back with an answer; the message is a sentence."""


def look_around(data: Path) -> Machine:
    """Collect the facts that need no torch.

    Args:
        data: the folder whose disk matters.
    """
    import psutil

    memory = psutil.virtual_memory()
    existing = next(folder for folder in (data, *data.parents) if folder.exists())
    return Machine(
        system=platform.platform(),
        python=platform.python_version(),
        python_path=sys.executable,
        processor=processor_name(),
        cores=psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        usable_cores=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1,
        memory_total=memory.total,
        memory_available=memory.available,
        disk_free=shutil.disk_usage(existing).free,
        disk_of=str(existing),
        gpus=tuple(find_gpus()),
        browser=next((found for name in BROWSERS if (found := shutil.which(name))), None),
    )


def package_versions() -> dict[str, str | None]:
    """Installed versions by package; None for one that is absent."""
    return {name: _version(name) for name in PACKAGES}


def processor_name() -> str:
    """What the processor calls itself. Python alone knows it on some systems only."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


class ChildProcess:
    """A fresh process that functions are called in, one after the other. Use it in a ``with`` statement."""

    def __enter__(self) -> ChildProcess:
        fresh = multiprocessing.get_context("spawn")
        self._pool = concurrent.futures.ProcessPoolExecutor(max_workers=1, mp_context=fresh)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def call(self, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call a function there.

        Raises:
            ProbeFailed: the process crashed or took too long.
            Exception: whatever the function raised.
        """
        try:
            return self._pool.submit(function, *arguments).result(timeout=_PROBE_TIMEOUT_S)
        except BrokenProcessPool as error:
            raise ProbeFailed("torch crashed while it was asked about this machine.") from error
        except concurrent.futures.TimeoutError as error:
            raise ProbeFailed(f"torch did not answer within {_PROBE_TIMEOUT_S} s.") from error


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
