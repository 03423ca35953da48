"""The program, and its peak memory in bytes in a file: ``python -m tests.app.cli.peak FILE ARGUMENTS``, on Linux.

A process that was forked begins with the peak of the one that forked it, which Linux forgets when it is told to.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from app.cli.main import main

FORGET_PEAK = "5"  # of Linux: what /proc/PID/clear_refs takes for that

if __name__ == "__main__":
    Path("/proc/self/clear_refs").write_text(FORGET_PEAK, encoding="ascii")
    status = main(sys.argv[2:])
    kibibytes = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert kibibytes is not None
    Path(sys.argv[1]).write_text(str(int(kibibytes[1]) * 1024), encoding="ascii")
    sys.exit(status)
