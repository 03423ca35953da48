"""Compiled kernels kept on disk: compiling those of a model takes LLVM one to four seconds of every start.

A kernel's file is named by a hash of everything that its machine code depends on: its text, the processor with its
features, and the compiler. The files are machine code that this process runs. So a folder that another user may write
to is not used, and a kernel whose file has a wrong checksum is compiled again.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

VARIABLE = "TRIFOLD_KERNELS"
"""The variable that names a folder to use instead of the configured one."""
_SUM_BYTES = hashlib.sha256().digest_size
_LARGEST = 4 << 20  # bytes of a file at most; kernels take 3,000 to 60,000
_MOST = 600  # files at most; a model needs 20 to 60, and the oldest, from earlier versions, are removed
_OTHERS_WRITE = 0o022

_folder: Path | None = None


def keep_in(folder: str) -> None:
    """Keep the kernels that are compiled from now on in a folder. "" keeps none, unless the environment names a
    folder.
    """
    global _folder
    named = os.environ.get(VARIABLE) or folder
    _folder = Path(named) if named else None


def name_of(*parts: str) -> str:
    """The name under which code is kept, made from everything that the code depends on."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def load(name: str) -> bytes | None:
    """Load code that was kept under a name; None if there is none, or it is damaged."""
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
    """Keep code under a name. Where the disk refuses, the next start compiles again."""
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
    """Whether no other user may write to the folder, as far as the system tells."""
    if not hasattr(os, "getuid"):  # a person's folders on Windows are their own
        return True
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & _OTHERS_WRITE


def _prune(folder: Path) -> None:
    """Remove the oldest half when there are too many."""
    files = list(folder.iterdir())
    if len(files) > _MOST:
        for file in sorted(files, key=lambda file: file.stat().st_mtime)[: len(files) // 2]:
            file.unlink(missing_ok=True)


keep_in("")
