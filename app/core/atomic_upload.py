"""Writes an uploaded file under a temporary name, syncs it to disk, and only then gives it its final name.

Owns the limits of uploads, and the error messages of refused uploads. A complete upload is passed to a function of type
``Adopt``.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from engine.errors import DocumentError, ResourceError
from engine.model_files import TEMPORARY

MAX_BYTES = 200_000_000  # maximum size of an uploaded file
NAME_LENGTH = 120  # maximum characters of the name of a file, a book or a chat; a longer name is cut
PREFIX = "incoming-"
_DAY_S = 86_400.0  # age in seconds from which nobody uses a temporary folder any more

Adopt = Callable[[Path, str, str], Any]
"""A function that stores an uploaded file. It receives the temporary path of the file, the SHA-256 of the content, and
the original name.
"""


class AtomicUpload:
    """A file that is being uploaded. It is deleted if the ``with`` block ends before ``keep`` was called."""

    def __init__(self, adopt: Adopt, folder: Path, name: str) -> None:
        self._adopt = adopt
        self._name = name
        self._hash = hashlib.sha256()
        self._size = 0
        self._partial = folder / f"{PREFIX}{secrets.token_hex(8)}"

    def __enter__(self) -> AtomicUpload:
        try:
            self._partial.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._partial.open("wb")
        except OSError as error:
            raise unwritable(self._partial.parent, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # on a full disk the rest of the file cannot be written, which was raised before
            self._file.close()
        self._partial.unlink(missing_ok=True)

    def write(self, block: bytes) -> None:
        """Append a block of bytes to the file.

        Raises:
            DocumentError: the file would exceed ``MAX_BYTES``.
            ResourceError: the disk is full or cannot be written.
        """
        self._size += len(block)
        if self._size > MAX_BYTES:
            raise DocumentError(
                f"{clean(self._name)} is larger than {MAX_BYTES // 1_000_000} MB.", "Split it, or choose another file."
            )
        self._hash.update(block)
        try:
            self._file.write(block)
        except OSError as error:
            raise unwritable(self._partial.parent, error) from error

    def keep(self) -> Any:
        """Sync the complete file to disk, pass it to the function ``adopt``, and return that function's result.

        Raises:
            DocumentError: the file is empty.
            ResourceError: the disk is full or cannot be written.
        """
        if not self._size:
            raise DocumentError(f"{clean(self._name)} is empty.", "Choose another file.")
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            return self._adopt(self._partial, self._hash.hexdigest(), self._name)
        except OSError as error:
            raise unwritable(self._partial.parent, error) from error


def sweep_temporary(system: Path) -> None:
    """Delete the program's own folders in the system's folder for temporary files, if the process that made them was
    killed more than a day ago.
    """
    with suppress(OSError):
        for entry in list(system.glob(f"{TEMPORARY}*")):
            with suppress(OSError):
                state = entry.lstat()
                own = not hasattr(os, "getuid") or state.st_uid == os.getuid()
                if own and stat.S_ISDIR(state.st_mode) and time.time() - state.st_mtime > _DAY_S:
                    shutil.rmtree(entry, ignore_errors=True)


def clean(name: str) -> str:
    """Shorten a name to one line of at most ``NAME_LENGTH`` characters. Replace control characters and marks of writing
    direction by spaces.
    """
    line = " ".join("".join(character if character.isprintable() else " " for character in name).split())
    return line if len(line) <= NAME_LENGTH else line[: NAME_LENGTH - 1] + "…"


def unwritable(folder: Path, error: OSError) -> ResourceError:
    """Make the error for a disk that cannot be written."""
    reason = error.strerror or type(error).__name__
    return ResourceError(
        f"Trifold cannot write to {folder} ({reason}).", "Free some space, or set TRIFOLD_DATA to another folder."
    )
