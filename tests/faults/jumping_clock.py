"""A wall clock that jumps: the file named by TRIFOLD_JUMP holds by how many seconds."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

FILE = "TRIFOLD_JUMP"
_real = time.time


def jumped() -> float:
    """Seconds since the epoch, and the jump."""
    seconds = 0.0
    with suppress(OSError, ValueError):
        seconds = float(Path(os.environ[FILE]).read_text(encoding="utf-8"))
    return _real() + seconds
