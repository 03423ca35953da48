"""Locks an open file with the operating system's file locks. Only one process at a time can have the lock, until it
closes the file or ends.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

logger = logging.getLogger(__name__)

_WAIT_S = 0.05  # seconds between two tries for a lock that another process has


def take(file: IO[Any]) -> bool:
    """Try to lock an open file, without waiting. Return whether this process has the lock.

    On a file system without locks, such as some network drives, the result is always True.
    """
    try:
        _lock(file)
    # another process has the lock; Unix raises BlockingIOError, Windows PermissionError
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        logger.warning("%s cannot be locked: %s", file.name, error)
    return True


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Wait for the lock on a file that exists only for this purpose. The file is deleted at the end.

    Raises:
        OSError: the file cannot be made.
    """
    while True:
        with path.open("ab") as file:
            # a process that had the lock may have deleted the file that was opened here
            if take(file) and _is_at(path, file):
                try:
                    yield
                finally:
                    with suppress(OSError):  # Windows deletes no open file
                        path.unlink()
                return
        time.sleep(_WAIT_S)


def _is_at(path: Path, file: IO[Any]) -> bool:
    with suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    return False


def _lock(file: IO[Any]) -> None:
    if sys.platform == "win32":
        import msvcrt

        file.seek(0)  # all processes must lock the same byte, and ``locking`` begins at the file's position
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
