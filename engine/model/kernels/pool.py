"""Compiles the kernels for this processor, and runs their tiles on waiting threads.

The threads exist as long as the pool. Between two products of a pass they spin, so that handing out a job takes only
about a microsecond. This matters because a decoding step has hundreds of jobs. Some time after the last product the
threads go to sleep, sooner if torch computes between our kernels, as in reading a book. Before a job the caller wakes
sleeping threads, and then runs tiles itself. A thread that wakes late takes tiles that are left. The caller never waits
for a thread that has not taken a tile.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llvmlite
import numpy as np
from llvmlite import binding, ir

from engine.model.kernels import kept
from engine.model.kernels.abi import JOB_WORDS
from engine.model.kernels.emit.emitter import I32, I64, PTR, VOID, Emitter, long
from engine.threads import is_limited

# The caller and the workers share memory, called the board. Its entries are ``_LINE`` words apart, so that each entry
# has its own cache line.
_LINE = 8
_WORDS = 7  # number of entries of the board, the memory that the caller and the workers share
TICKET, FINISHED, KERNEL, ARGUMENTS, TILES, ASLEEP, BUSY = (index * _LINE for index in range(_WORDS))
MOST_WORKERS = 64
_NO_TILE = (1 << 32) - 1
# Number of times that a worker looks for a job before it goes to sleep, if torch computes on the calling thread only.
# These looks take about 2 ms together.
_PATIENT = 50_000
# Number of times that a worker looks for a job before it goes to sleep, if torch uses several threads. These looks take
# only about 0.2 ms together, because a spinning worker takes a core from torch's threads.
_IMPATIENT = 4_000
# Number of times that a word of the board is read before each pause instruction. If a virtual machine executes only
# pause instructions, the hypervisor takes the core from it (pause-loop exiting).
_LOOKS = 64


# Prefixes of the names of the x86 features that count as more than AVX2. Most desktop processors lack these features.
_ABOVE_AVX2 = ("avx512", "avx10", "amx", "avxvnni", "evex")

_KERNEL_TYPE = ir.FunctionType(VOID, [PTR, I64, I64])


def _work(e: Emitter, board: ir.Value, ticket: ir.Value, worker: ir.Value) -> None:
    """Emit a loop that runs tiles of one job, until no tile is left or a new job has been posted. ``ticket`` has the
    job's number (epoch) in the upper half, and the next tile in the lower half.

    A worker claims a tile by incrementing the ticket. The increment fails if the ticket has changed since the worker
    read it. So a claim that succeeds also confirms that the words read from the board belong to this job.
    """
    epoch = e.b.lshr(ticket, long(32))
    kernel = e.b.inttoptr(_read(e, board, KERNEL), ir.PointerType(_KERNEL_TYPE))
    arguments = e.b.inttoptr(_read(e, board, ARGUMENTS), PTR)
    tiles = _read(e, board, TILES)
    with e.loop_while() as leave_if:
        now = _read(e, board, TICKET)
        leave_if(e.b.icmp_unsigned("!=", e.b.lshr(now, long(32)), epoch))
        tile = e.b.and_(now, long(_NO_TILE))
        leave_if(e.b.icmp_unsigned(">=", tile, tiles))
        taken = e.b.cmpxchg(_word(e, board, TICKET), now, e.b.add(now, long(1)), "seq_cst", "seq_cst")
        with e.b.if_then(e.b.extract_value(taken, 1)):
            e.b.call(kernel, [arguments, tile, worker])
            e.b.atomic_rmw("add", _word(e, board, FINISHED), long(1), "seq_cst")


def _emit_run(module: ir.Module) -> None:
    """Emit run(board, kernel, arguments, tiles), which runs all tiles and returns when all are finished."""
    e = Emitter(module, "run", VOID, (PTR, I64, I64, I64))
    board, kernel, arguments, tiles = e.arguments
    epoch = e.b.add(e.b.lshr(_read(e, board, TICKET), long(32)), long(1))
    ticket = e.b.shl(epoch, long(32))
    _write(e, board, TICKET, e.b.or_(ticket, long(_NO_TILE)))
    for word, value in ((FINISHED, long(0)), (KERNEL, kernel), (ARGUMENTS, arguments), (TILES, tiles)):
        _write(e, board, word, value)
    _write(e, board, TICKET, ticket)
    _work(e, board, ticket, long(0))
    with e.loop_while() as leave_if:
        _look(e, board, FINISHED, "!=", tiles)
        leave_if(e.b.icmp_unsigned("==", _read(e, board, FINISHED), tiles))
    e.end()


def _emit_run_all(module: ir.Module) -> None:
    """Emit run_all(board, jobs, count), which runs the jobs (kernel, arguments, tiles) in order.

    The caller runs a job with a single tile alone. Workers stay awake until the last job has ended, because they cannot
    be woken in between.
    """
    e = Emitter(module, "run_all", VOID, (PTR, PTR, I64))
    board, jobs, count = e.arguments
    _write(e, board, BUSY, long(1))
    with e.loop(long(0), count) as job:
        first = e.b.mul(job, long(JOB_WORDS))
        kernel, arguments, tiles = (
            e.load(e.at(jobs, e.b.add(first, long(word)), I64), I64, align=8) for word in range(JOB_WORDS)
        )
        with e.b.if_else(e.b.icmp_signed("==", tiles, long(1))) as (alone, shared):
            with alone:
                function = e.b.inttoptr(kernel, ir.PointerType(_KERNEL_TYPE))
                e.b.call(function, [e.b.inttoptr(arguments, PTR), long(0), long(0)])
            with shared:
                e.b.call(module.globals["run"], [board, kernel, arguments, tiles])
    _write(e, board, BUSY, long(0))
    e.end()


def _emit_sleepers(module: ir.Module) -> None:
    """Emit sleepers(board), which returns a bit for every worker that has gone to sleep since the last call."""
    e = Emitter(module, "sleepers", I64, (PTR,))
    (board,) = e.arguments
    e.end(e.b.atomic_rmw("xchg", _word(e, board, ASLEEP), long(0), "seq_cst"))


def _emit_serve(module: ir.Module) -> None:
    """Emit serve(board, worker, spins), in which a worker runs jobs until it has looked for a new job ``spins`` times
    without finding one. While ``run_all`` runs, the worker goes on looking.
    """
    e = Emitter(module, "serve", VOID, (PTR, I64, I64))
    board, worker, spins = e.arguments
    bit = e.b.shl(long(1), worker)
    idle, known = e.variable(long(0)), e.variable(long(-1))
    with e.loop_while() as leave_if:
        ticket = _read(e, board, TICKET)
        epoch = e.b.lshr(ticket, long(32))
        written = e.b.icmp_unsigned("!=", e.b.and_(ticket, long(_NO_TILE)), long(_NO_TILE))
        news = e.b.and_(written, e.b.icmp_unsigned("!=", epoch, known.value))
        with e.b.if_then(news):
            _work(e, board, ticket, worker)
            known.value = epoch
            idle.value = long(0)
        idle.value = e.b.add(idle.value, long(1))
        quiet = e.b.icmp_unsigned("==", _read(e, board, BUSY), long(0))
        tired = e.b.and_(quiet, e.b.icmp_signed(">", idle.value, spins))
        with e.b.if_then(tired):
            e.b.atomic_rmw("or", _word(e, board, ASLEEP), bit, "seq_cst")
        # After setting its bit, the worker reads the ticket again. So if a job is posted at the same time, either the
        # caller sees the bit, or the worker sees the job.
        same = e.b.icmp_unsigned("==", e.b.lshr(_read(e, board, TICKET), long(32)), known.value)
        leave_if(e.b.and_(tired, same))
        _look(e, board, TICKET, "==", ticket)
    e.end()


def _emit_pool(module: ir.Module) -> None:
    """Emit all functions of the pool."""
    for emit in (_emit_run, _emit_run_all, _emit_sleepers, _emit_serve):
        emit(module)


def _word(e: Emitter, board: ir.Value, word: int) -> ir.Value:
    return e.at(board, long(word), I64)


def _read(e: Emitter, board: ir.Value, word: int) -> ir.Value:
    return e.b.load_atomic(_word(e, board, word), "seq_cst", 8, typ=I64)


def _write(e: Emitter, board: ir.Value, word: int, value: ir.Value) -> None:
    e.b.atomic_rmw("xchg", _word(e, board, word), value, "seq_cst")


def _look(e: Emitter, board: ir.Value, word: int, relation: str, value: ir.Value) -> None:
    """Emit a loop that reads a word of the board up to ``_LOOKS`` times, as long as the comparison ``relation`` of the
    word with ``value`` is true. A pause instruction follows the loop.
    """
    looks = e.variable(long(_LOOKS))
    with e.loop_while() as leave_if:
        looks.value = e.b.sub(looks.value, long(1))
        changed = e.b.not_(e.b.icmp_unsigned(relation, _read(e, board, word), value))
        leave_if(e.b.or_(changed, e.b.icmp_signed("<", looks.value, long(0))))
    _pause(e)


def _pause(e: Emitter) -> None:
    """Emit the pause instruction, which tells the processor that this thread is waiting."""
    x86 = "86" in binding.get_process_triple().partition("-")[0]
    if x86:
        e.intrinsic("llvm.x86.sse2.pause", VOID)
    else:
        e.intrinsic("llvm.aarch64.hint", VOID, I32(1))


class Code:
    """Emits and compiles an LLVM module, or loads its machine code from disk (``kept``), and gives the addresses of its
    functions.

    Args:
        name: name of the module; together with ``kind`` it identifies the code.
        kind: other arguments of the emitter.
        emit: emits the functions into a module. It is called only if no code is on disk. It must depend on nothing but
            ``kind`` and the source files that ``kept`` hashes.
    """

    def __init__(self, name: str, kind: Sequence[Any], emit: Callable[[ir.Module], None]) -> None:
        machine = _machine()
        target = machine.triple, binding.get_host_cpu_name(), _feature_list()
        compiler = llvmlite.__version__, str(binding.llvm_version_info)
        key = kept.name_of(name, repr((*kind,)), *target, *compiler)
        code = kept.load(key)
        if code is None:
            module = ir.Module(name)
            emit(module)
            code = _compiled(str(module), machine)
            kept.save(key, code)
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
        self._engine.add_object_file(binding.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        return int(self._engine.get_function_address(name))


def _compiled(text: str, machine: Any) -> bytes:
    """Compile an LLVM module to machine code, as an object file."""
    parsed = binding.parse_assembly(text)
    parsed.verify()
    options = binding.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = options.loop_vectorization = options.slp_vectorization = False
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)
    return bytes(machine.emit_object(parsed))


def _machine() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple()
    return target.create_target_machine(
        cpu=binding.get_host_cpu_name(), features=_feature_list(), opt=3, codemodel="jitdefault", jit=True
    )


def _feature_list() -> str:
    """Return the processor's features in LLVM's notation: ``+`` before a feature that it has, ``-`` before one that it
    lacks.
    """
    return ",".join(f"{'+' if has else '-'}{name}" for name, has in _features().items())


def _features() -> dict[str, bool]:
    """Return whether the processor has each feature, keyed by LLVM's name. If ``engine.threads`` limits the program to
    older instructions, features above AVX2 are False.
    """
    has = dict(binding.get_host_cpu_features())
    if is_limited():
        has |= dict.fromkeys((name for name in has if name.startswith(_ABOVE_AVX2)), False)
    return has


def lanes() -> int:
    """Return the number of float32 numbers in a SIMD vector of this processor."""
    has = _features()
    return 16 if has.get("avx512f") else 8 if has.get("avx2") and has.get("fma") else 4


def multiplies_pairs() -> bool:
    """Whether this processor supports ``Emitter.dot_pairs``, which multiplies pairs of bfloat16 numbers."""
    return lanes() == 16 and bool(_features().get("avx512bf16"))


def adds_integer_pairs(lanes: int) -> bool:
    """Whether this processor has the instructions of ``Emitter.pair_sums`` and ``Emitter.byte_sums`` for vectors of
    ``lanes`` float32 numbers.
    """
    needed = {8: "avx2", 16: "avx512bw"}.get(lanes)
    return needed is not None and bool(_features().get(needed))


def adds_dots(lanes: int) -> bool:
    """Whether this processor has VNNI, the instructions of ``Emitter.add_byte_dots``, for vectors of ``lanes`` float32
    numbers.
    """
    has = _features()
    if lanes == 16:
        return bool(has.get("avx512vnni") and has.get("avx512bw"))
    return lanes == 8 and bool(has.get("avxvnni") or (has.get("avx512vnni") and has.get("avx512vl")))


def looks_up_bytes() -> bool:
    """Whether this processor supports ``Emitter.looked_up``, which turns quants into pairs of bfloat16 numbers."""
    return multiplies_pairs() and bool(_features().get("avx512vbmi"))


class Pool:
    """Runs the tiles of jobs on the caller's thread and on worker threads.

    Args:
        workers: number of computing threads, including the caller.
    """

    def __init__(self, workers: int) -> None:
        self._code = Code("pool", (), _emit_pool)
        self.workers = min(workers, MOST_WORKERS)
        self._words = np.zeros(_LINE * (_WORDS + 1), np.int64)
        self._board = (self._words.ctypes.data + 63) // 64 * 64
        # All calls but ``sleepers`` release Python's interpreter lock, because a worker needs the lock to go to sleep
        # and to wake up.
        self._run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(self._code.address("run"))
        self._run_all = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(self._code.address("run_all"))
        self._serve = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(self._code.address("serve"))
        self._sleepers = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(self._code.address("sleepers"))
        self.patience = _IMPATIENT
        """How many times workers look for a job before they go to sleep."""
        self._awake = [threading.Semaphore(0) for _ in range(self.workers)]
        for worker in range(1, self.workers):
            threading.Thread(target=self._stay, args=(worker,), name=f"trifold-kernel-{worker}", daemon=True).start()

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Make a context in which workers that are woken look for a job ``_PATIENT`` times before they sleep again. It
        is for times when torch computes on the calling thread alone.
        """
        before, self.patience = self.patience, _PATIENT
        try:
            yield
        finally:
            self.patience = before

    def run(self, kernel: int, arguments: int, tiles: int) -> None:
        """Run every tile of a job. Only one thread may call this at a time.

        Args:
            kernel: address of the job's function.
            arguments: address of the argument array.
        """
        self._wake()
        self._run(self._board, kernel, arguments, tiles)

    def run_all(self, jobs: int, count: int) -> None:
        """Run jobs one after another. Only one thread may call this at a time.

        Args:
            jobs: address of an array with three words for each job: kernel, arguments, tiles.
        """
        self._wake()
        self._run_all(self._board, jobs, count)

    def _wake(self) -> None:
        """Wake sleeping workers. This takes about 5 us if any are sleeping, and a woken worker starts after about 50
        us.
        """
        asleep, worker = self._sleepers(self._board), 0
        while asleep:
            if asleep & 1:
                self._awake[worker].release()
            asleep >>= 1
            worker += 1

    def _stay(self, worker: int) -> None:
        while True:
            self._serve(self._board, worker, self.patience)
            self._awake[worker].acquire()
