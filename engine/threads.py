"""How torch's compute threads wait for each other, and what instructions are used. Must be settled before torch is
imported; imports nothing itself.

By default a compute thread that waits keeps its core busy. Where another program, the page's own browser say, needs
that core, or the system has put two threads on one, every small operation then waits for a time slice: on a 2-core
machine a middle pass took 180 ms instead of 10 (measured, 32K context). Threads that go to sleep soon are woken at once
instead.
"""

from __future__ import annotations

import os

# Spins before a waiting thread sleeps: a few microseconds, about the gap between two operations.
_SPINS = "2000"


def sleep_while_waiting() -> None:
    """Ask the OpenMP runtimes (GNU's, Intel's) for short spinning. What the person has set is left alone."""
    if os.environ.get("OMP_WAIT_POLICY") is None:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
        os.environ.setdefault("KMP_BLOCKTIME", "0")


PROCESSOR = "TRIFOLD_PROCESSOR"
"""The environment's word for a smaller processor than this one is: for measurements and tests."""
AVX2 = "avx2"
"""Neither AVX-512 nor AMX, as in most desktops."""
_OF_TORCH = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


def is_limited() -> bool:
    """Whether nothing above AVX2 is to be used."""
    return os.environ.get(PROCESSOR) == AVX2


def limit_instructions() -> None:
    """Hold torch and its libraries to AVX2 where that is asked for; our own kernels ask ``is_limited``."""
    if is_limited():
        os.environ.update(_OF_TORCH)
