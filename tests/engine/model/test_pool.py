"""The threads that run the tiles of kernels: whoever sleeps is woken before a job, and nobody leaves during one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from engine import threads as threads_of
from engine.model.kernels import pool
from engine.model.kernels.emit import emitter as emit

# A job of 50 ms, a thousand times what a worker takes to wake.
TILES, PAUSES = 150, 20_000
SLEEPY = 1_000
# Other programs may hold a worker off its core for the whole of a job.
TIMES = 200


@pytest.fixture(scope="module")
def code() -> pool.Code:
    """Holds a kernel that pauses for a while and writes who did the tile: kernel(arguments, tile, worker)."""

    def who(module: Any) -> None:
        e = emit.Emitter(module, "who", emit.VOID, (emit.PTR, emit.I64, emit.I64))
        found, tile, worker = e.arguments
        with e.loop(emit.long(0), emit.long(PAUSES)):
            pool._pause(e)
        e.store(worker, e.at(found, tile, emit.I64), align=8)
        e.end()

    return pool.Code("who", (PAUSES,), who)


@pytest.fixture
def kernel(code: pool.Code) -> int:
    return code.address("who")


@pytest.fixture(scope="module")
def threads() -> pool.Pool:
    own = pool.Pool(2)
    own.patience = SLEEPY
    return own


def wait_until_asleep(threads: pool.Pool) -> None:
    deadline = time.monotonic() + 10
    first = (threads._board - threads._words.ctypes.data) // threads._words.itemsize
    while not threads._words[first + pool.ASLEEP]:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def someone_helps(threads: pool.Pool, job: Callable[[], set[int]]) -> bool:
    """Whether the worker does tiles of a job that is handed out while it sleeps."""
    for _ in range(TIMES):
        wait_until_asleep(threads)
        if job() == {0, 1}:
            return True
    return False


def test_a_job_behind_a_gap_is_not_done_by_the_caller_alone(threads: pool.Pool, kernel: int) -> None:
    """Sleepers were woken when the job was done: reading a long book ran on one of two cores."""

    def job() -> set[int]:
        found = np.full(TILES, -1)
        threads.run(kernel, found.ctypes.data, TILES)
        return set(found.tolist())

    assert someone_helps(threads, job)


def test_a_worker_stays_while_a_program_does_what_one_can_do(threads: pool.Pool, kernel: int) -> None:
    """A single tile is the caller's. Whoever went to sleep meanwhile missed all jobs that came after it."""

    def program() -> set[int]:
        alone, shared = np.full(1, -1), np.full(TILES, -1)
        jobs = np.array([(kernel, alone.ctypes.data, 1)] * TILES + [(kernel, shared.ctypes.data, TILES)])
        threads.run_all(jobs.ctypes.data, len(jobs))
        assert set(alone) == {0}
        return set(shared.tolist())

    assert someone_helps(threads, program)


def test_a_processor_can_be_taken_for_a_smaller_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything was measured with AVX-512, which most desktops lack."""
    has = {"avx512f": True, "avx512bf16": True, "avx512vbmi": True, "avx2": True, "fma": True, "amx-tile": True}
    monkeypatch.setattr(pool.binding, "get_host_cpu_features", lambda: has)
    environment: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", environment)
    threads_of.limit_instructions()
    assert not environment
    assert (pool.lanes(), pool.multiplies_pairs(), pool.looks_up_bytes()) == (16, True, True)
    environment[threads_of.PROCESSOR] = threads_of.AVX2
    threads_of.limit_instructions()
    assert environment["ATEN_CPU_CAPABILITY"] == "avx2"
    assert (pool.lanes(), pool.multiplies_pairs(), pool.looks_up_bytes()) == (8, False, False)
    assert {name for name, used in pool._features().items() if used} == {"avx2", "fma"}
