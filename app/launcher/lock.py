"""The lock of the operating system on an open file: one process has it until the file is closed or the process ends."""

from __future__ import annotations

import logging
import sys
from typing import IO, Any

logger = logging.getLogger(__name__)


def take(file: IO[Any]) -> bool:
    """Lock an open file; whether nobody else has.

    Where the system locks no such file, as on some network drives, everybody is let in.
    """
    try:
        _lock(file)
    except (BlockingIOError, PermissionError):  # what Unix and what Windows say of a lock that somebody has
        return False
    except OSError as error:
        logger.warning("%s cannot be locked: %s", file.name, error)
    return True


def _lock(file: IO[Any]) -> None:
    if sys.platform == "win32":
        import msvcrt

        file.seek(0)  # it locks from where the file is at: all must ask for the same byte
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
