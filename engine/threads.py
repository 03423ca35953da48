"""Sets how torch's compute threads wait for each other, and which instructions torch uses. Must run before torch is
imported. Imports only the standard library.

By default a waiting compute thread keeps its core busy. If another program, such as the browser, needs that core, or if
two threads share one core, every small operation waits for a time slice. On a 2-core machine a pass over the retrieval
cache took 180 ms instead of 10 (measured, 32K context). Threads that go to sleep after a short wait leave the core
free.
"""

from __future__ import annotations

import os

__all__ = ["limit_instructions", "sleep_while_waiting"]

# Number of spins before a waiting thread sleeps: a few microseconds, about the time between two operations.
_SPINS = "2000"


def sleep_while_waiting() -> None:
    """Make the OpenMP runtimes (GNU's, Intel's) spin only briefly. Environment variables that the person has set stay
    unchanged.
    """
    if os.environ.get("OMP_WAIT_POLICY") is None:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
        os.environ.setdefault("KMP_BLOCKTIME", "0")


PROCESSOR = "TRIFOLD_PROCESSOR"
"""Environment variable that limits the program to the instructions of an older processor, for measurements and tests.
"""
AVX2 = "avx2"
"""Value of ``PROCESSOR`` for a processor with neither AVX-512 nor AMX, as in most desktops."""
_OF_TORCH = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


def is_limited() -> bool:
    """Whether the environment variable ``PROCESSOR`` limits this program to the instructions of AVX2."""
    return os.environ.get(PROCESSOR) == AVX2


def limit_instructions() -> None:
    """Limit torch and its libraries to the instructions of AVX2 if ``is_limited``. Trifold's own kernels check
    ``is_limited`` themselves.
    """
    if is_limited():
        os.environ.update(_OF_TORCH)
