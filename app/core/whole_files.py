"""Writes a file as a whole: under a temporary name first, synced to disk, and only then under its own name. Imports
only the standard library, because the settings are read before anything else.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path

PRIVATE = 0o600
"""Mode of a file that only this user may read and write, whatever the umask."""

_SHARED = 0o666  # mode of a file that the umask decides about
# The name of a temporary file: the name of a file with an ending, and eight random digits. A book has one.
_TEMPORARY = re.compile(r".+\.[a-z-]+\.[0-9a-f]{8}")
_DEAD_S = 3600.0  # age in seconds from which nobody writes a temporary file any more


def write_whole(path: Path, content: str | bytes, mode: int = _SHARED) -> None:
    """Write a file atomically. If writing is interrupted, an existing file keeps its content, and no incomplete file
    appears. A link in the place of the file is replaced, not followed.

    Args:
        content: text is written as UTF-8.
        mode: permissions of the file, without those that the umask takes away.

    Raises:
        OSError: the file cannot be written.
    """
    written = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with open(written, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(written, path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise


def sweep(folder: Path) -> None:
    """Delete the temporary files of ``write_whole`` in a folder whose process was killed. A file that a living process
    is writing is younger than ``_DEAD_S``.
    """
    with suppress(OSError):
        for entry in list(folder.iterdir()):
            with suppress(OSError):
                if _TEMPORARY.fullmatch(entry.name) and time.time() - entry.stat().st_mtime > _DEAD_S:
                    entry.unlink()
