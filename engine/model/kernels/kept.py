"""Keeps compiled kernels on disk. Without them, every start would compile for one to four seconds.

The name of a kernel's file is a hash of everything that the machine code depends on: the kernel's name and kind, this
program's code that emits kernels, the processor with its features, and the compiler. So a kernel on disk is found
without emitting it again. Emitting takes half as long as compiling. Because this process runs the machine code in the
files, a folder that another user can write to is not used, and a kernel whose file has a wrong checksum is compiled
again.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from engine import quantization
from engine.sources import bytes_hash, code_hash

VARIABLE = "TRIFOLD_KERNELS"
"""Environment variable: a folder to use instead of the configured one."""
_SUM_BYTES = hashlib.sha256().digest_size
_LARGEST = 4 << 20  # maximum bytes of a file; a larger file is ignored (a kernel has 3,000 to 60,000 bytes)
_MOST = 600  # maximum number of files (a model needs up to 60); beyond it, the oldest half is deleted
_OTHERS_WRITE = 0o022

_folder: Path | None = None


def keep_in(folder: str) -> None:
    """Set the folder to keep kernels in. The environment variable ``TRIFOLD_KERNELS`` takes precedence over ``folder``.
    If both are empty, no kernels are kept.
    """
    global _folder
    named = os.environ.get(VARIABLE) or folder
    _folder = Path(named) if named else None
    _sum_of_sources.cache_clear()


def name_of(*parts: str) -> str:
    """The name under which code is stored: a hash of ``parts`` and of the code that emits kernels."""
    return hashlib.sha256("\0".join((_sum_of_sources(), *parts)).encode()).hexdigest()


@lru_cache(maxsize=1)
def _sum_of_sources() -> str:
    """Return a hash of the source code on which emitted code depends: this package, and the layouts of quantized
    weights. Comments and docstrings do not count, so that kernels on disk stay valid if only comments or docstrings
    change.

    This hash is stored on disk under the name of a quicker hash, in which comments and docstrings do count. It is
    computed only if nothing is stored under this name.
    """
    contents = [file.read_bytes() for file in _source_files()]
    as_they_are = bytes_hash(contents)
    if _folder is None:  # without a folder nothing is stored, so the quicker hash is enough
        return as_they_are
    if known := load(as_they_are):
        return known.decode()
    digest = code_hash(contents)
    save(as_they_are, digest.encode())
    return digest


def _source_files() -> list[Path]:
    return [*sorted(Path(__file__).parent.rglob("*.py")), Path(quantization.__file__)]


def load(name: str) -> bytes | None:
    """Load the code that was stored under a name; return None if there is no such code, or if it is damaged."""
    with suppress(OSError):
        if _folder is not None and _is_ours(_folder):
            file = _folder / f"{name}.o"
            if _SUM_BYTES < file.stat().st_size <= _LARGEST:
                data = file.read_bytes()
                code = data[_SUM_BYTES:]
                if hashlib.sha256(code).digest() == data[:_SUM_BYTES]:
                    return code
    return None


def save(name: str, code: bytes) -> None:
    """Store code under a name. If the disk cannot be written, the next start compiles again."""
    with suppress(OSError):
        if _folder is None:
            return
        _folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(_folder):
            return
        handle, path = tempfile.mkstemp(dir=_folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(code).digest() + code)
            Path(path).replace(_folder / f"{name}.o")
        except OSError:
            Path(path).unlink(missing_ok=True)
        _prune(_folder)


def _is_ours(folder: Path) -> bool:
    """Whether only this user may write to the folder, by its owner and permissions."""
    if not hasattr(os, "getuid"):  # on Windows, where other users cannot write to a user's folders by default
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & _OTHERS_WRITE


def _prune(folder: Path) -> None:
    """Delete the oldest half of the files if there are too many."""
    files = list(folder.iterdir())
    if len(files) > _MOST:
        for file in sorted(files, key=lambda file: file.stat().st_mtime)[: len(files) // 2]:
            file.unlink(missing_ok=True)


keep_in("")
