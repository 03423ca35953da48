"""The threads that run the tiles of kernels: whoever sleeps is woken before a job, and nobody leaves during one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from llvmlite import binding, ir

from engine import threads as threads_of
from engine.model.kernels import pool
from engine.model.kernels.emit import emitter as emit

# Looks of a worker before it goes to sleep.
SLEEPY = 1_000
# Pauses of a tile that waits for another one: some 20 ms, in which a worker that may sleep does, and a minute, after
# which the other one never comes.
SHORT, FOREVER = 500_000, 1_000_000_000
MOST_S = 60


@pytest.fixture(scope="module")
def code() -> pool.Code:
    """Holds a kernel for jobs of two tiles: each writes who does it, and waits until the other one has been taken."""

    def meet(module: Any) -> None:
        e = emit.Emitter(module, "meet", emit.VOID, (emit.PTR, emit.I64, emit.I64))
        job, tile, worker = e.arguments
        left = e.variable(e.load(job, emit.I64, align=8))
        mine, other = (e.at(job, e.b.add(at, emit.long(1)), emit.I64) for at in (tile, e.b.xor(tile, emit.long(1))))
        e.b.atomic_rmw("xchg", mine, worker, "seq_cst")
        with e.loop_while() as leave_if:
            taken = e.b.icmp_signed(">=", e.b.load_atomic(other, "seq_cst", 8, typ=emit.I64), emit.long(0))
            left.value = e.b.sub(left.value, emit.long(1))
            leave_if(e.b.or_(taken, e.b.icmp_signed("<", left.value, emit.long(0))))
            pool._pause(e)
        e.end()

    return pool.Code("meet", (), meet)


@pytest.fixture
def kernel(code: pool.Code) -> int:
    return code.address("meet")


@pytest.fixture
def threads() -> pool.Pool:
    """A caller and a worker, which sleeps. Once it is woken it looks for a job only when one has begun, or it could be
    asleep again before a caller that was held off its core begins."""
    own = pool.Pool(2)
    own.patience = SLEEPY
    first = (own._board - own._words.ctypes.data) // own._words.itemsize
    wait_until(lambda: own._words[first + pool.ASLEEP] != 0)
    before, serve = int(own._words[first + pool.TICKET]), own._serve

    def serve_what_has_begun(*arguments: int) -> None:
        wait_until(lambda: own._words[first + pool.BUSY] or own._words[first + pool.TICKET] != before)
        serve(*arguments)

    own._serve = serve_what_has_begun  # type: ignore[assignment]
    return own


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + MOST_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def a_job(pauses: int) -> Any:
    """How long a tile waits for the other one, and who does the two: nobody so far."""
    return np.array([pauses, -1, -1])


def test_a_job_behind_a_gap_is_not_done_by_the_caller_alone(threads: pool.Pool, kernel: int) -> None:
    """Sleepers were woken when the job was done: reading a long book ran on one of two cores."""
    job = a_job(FOREVER)
    threads.run(kernel, job.ctypes.data, 2)
    assert {*job[1:]} == {0, 1}


def test_a_worker_stays_while_a_program_does_what_one_can_do(threads: pool.Pool, kernel: int) -> None:
    """A single tile is the caller's. Whoever went to sleep meanwhile missed all jobs that came after it."""
    alone, shared = a_job(SHORT), a_job(FOREVER)
    jobs = np.array([(kernel, alone.ctypes.data, 1)] * 2 + [(kernel, shared.ctypes.data, 2)])
    threads.run_all(jobs.ctypes.data, len(jobs))
    assert [*alone[1:]] == [0, -1]
    assert {*shared[1:]} == {0, 1}


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
    assert [pool.adds_integer_pairs(lanes) for lanes in (4, 8, 16)] == [False, True, False]


def test_windows_needs_no_tables_to_unwind_the_stack() -> None:
    """LLVM places them in memory of their own, and ended the process whenever that lay below the code."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = binding.Target.from_triple("x86_64-pc-windows-msvc")
    machine = target.create_target_machine(opt=3, codemodel="jitdefault", jit=True)
    module = ir.Module("pool")
    pool._emit_pool(module)
    code = pool._compiled(str(module), machine)
    assert b".text" in code
    assert b".pdata" not in code
