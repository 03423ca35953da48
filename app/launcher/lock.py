"""Locks an open file with the operating system's file locks. Only one process at a time can have the lock, until it
closes the file or ends.
"""

from __future__ import annotations

import logging
import sys
from typing import IO, Any

logger = logging.getLogger(__name__)


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


def _lock(file: IO[Any]) -> None:
    if sys.platform == "win32":
        import msvcrt

        file.seek(0)  # all processes must lock the same byte, and ``locking`` begins at the file's position
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
