"""CUDA devices that are not there: torch's processor build answers as ``cuda:0`` with real numbers and hostile timing.

    with simulated_cuda("delayed", seed=3) as gpu:
        session = Session.load(EngineConfig(..., device="cuda"))
        ...
        gpu.waits        # every wait of the host for the device, by what caused it

Tensors "on the device" are wrappers around host memory. Every operation on them is put into the queue of the current
stream and computed when the schedule lets it: ``eager`` at once, ``lazy`` only when somebody waits, ``random`` and
``delayed`` in any order that streams and events allow. A missing wait is therefore a wrong number here, every time or
over a few seeds, where a real card would give one once in a thousand. Memory goes back to its stream's pool the moment
the last tensor on it dies, as in torch's allocator, and is filled with not-a-numbers when it is handed out first.

Also as on a card: pinned memory is a list of ranges, and copies from elsewhere wait; a graph records what a capture
enqueues and is void if anything waits meanwhile; the flash kernel takes what its C++ takes; operations that torch's own
list gives no CUDA kernel are refused; ``limit`` bytes are all there is. With ``cards=2`` there is a ``cuda:1`` too:
tensors of two cards meet in copies alone, which wait for the streams of both, and bytes are counted by bus. A replay
whose workspace for matrix products went with another graph ends the block with an error.

Stands on private places of torch (the registry of device guards in libc10, the dispatcher), so it is for the pinned
version on Linux alone: ``why_not()`` says what is in the way elsewhere. Only for tests: it proves order, not speed.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import math
import random
import re
import sys
import threading
import types
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine import devices
from engine.model.kernels import cuda
from tests.engine.leaves import tree_leaves, tree_map

TORCH = "2.13"
"""The version whose private places are known."""

SCHEDULES = ("eager", "lazy", "random", "delayed")
_DELAYS = (0, 5, 50, 500, 3000)  # operations of all streams by which a stream may lag behind
_STREAMS = 32  # of a card that torch makes
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_CUDA_TYPE, _META_TYPE, _TYPES = 1, 14, 21  # places of device types in that registry
_NOT_A_NUMBER = 255  # a byte that makes every floating point format not a number

Work = Callable[[], Any]


def why_not() -> str:
    """Why there can be no simulated device here; empty if there can."""
    if not torch.__version__.startswith(f"{TORCH}."):
        return f"the simulated device knows torch {TORCH}, and {torch.__version__} is installed"
    if sys.platform != "linux":
        return "the simulated device is for Linux"
    return "a real GPU is here" if torch.version.cuda or torch.cuda.is_available() else ""


class Stream:
    """A queue of work; ``put`` and ``done`` count it. Stands for ``torch.cuda.Stream``."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        gpu = _now()
        self.device = torch.device("cuda", gpu.card_of(device))
        self.key = int(self.device.index), gpu.drawn[self.device.index] % _STREAMS
        """Which of the card's streams this is: torch hands out the same ones again."""
        gpu.drawn[self.device.index] += 1
        self.put = self.done = 0
        self._queue: deque[tuple[int, Work]] = deque()
        self._gpu = gpu
        self._delay = gpu.rng.choice(_DELAYS)
        self.clock = 0
        """When all that was put will be done, in bytes that a bus moves: buses take time, and what else has a pace."""
        gpu.streams.append(self)

    def enqueue(self, work: Work, sent: int = 0) -> None:
        """Put work into the queue. It takes as long as ``sent`` bytes over the bus."""
        with self._gpu.lock:
            if self._gpu.failed:
                raise RuntimeError(self._gpu.failed)
            if self._gpu.sticky:
                message, self._gpu.sticky = self._gpu.sticky, ""
                raise RuntimeError(message)
            self.behind(self._gpu.local)
            self.clock += sent
            self._gpu.launches += 1
            self._queue.append((self._gpu.launches, work))
            self.put += 1
            self._gpu.let_run(self)

    def drain(self, upto: int | None = None) -> None:
        """Do all work that was put before."""
        with self._gpu.lock:
            upto = self.put if upto is None else upto
            while self.done < upto:
                self.step()

    def behind(self, other: Any) -> None:
        """Not before another stream, an event or a thread of the host is so far."""
        self.clock = max(self.clock, getattr(other, "clock", 0))

    def step(self) -> None:
        """Do the oldest work."""
        with self._gpu.lock:
            if self._queue:
                _, work = self._queue.popleft()
                self.done += 1
                work()

    def lags(self, launches: int) -> bool:
        """Whether its oldest work is older than it may be."""
        return bool(self._queue) and launches - self._queue[0][0] > self._delay

    def wait_event(self, event: Event) -> None:
        mark = event.mark
        if mark is not None and not self._gpu.loses_wait():
            self.behind(event)
            self.enqueue(lambda: mark[0].drain(mark[1]))

    def wait_stream(self, other: Stream) -> None:
        upto = other.put
        if not self._gpu.loses_wait():
            self.behind(other)
            self.enqueue(lambda: other.drain(upto))

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        self._gpu.waits["stream.synchronize"] += 1
        if not self._gpu.loses_wait():
            self.await_here()

    def await_here(self) -> None:
        """The host waits for all of it."""
        self._gpu.local.clock = max(getattr(self._gpu.local, "clock", 0), self.clock)
        self.drain()


class Event:
    """A place in a stream. Stands for ``torch.cuda.Event``."""

    def __init__(self, **_: Any) -> None:
        self.mark: tuple[Stream, int] | None = None
        self.clock = 0

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or _now().current()
        self.mark, self.clock = (stream, stream.put), stream.clock

    def synchronize(self) -> None:
        if self.mark and not _now().loses_wait():
            self.mark[0].drain(self.mark[1])

    def query(self) -> bool:
        return self.mark is None or self.mark[0].done >= self.mark[1]


class Workspace:
    """What matrix products of a stream need. The one of a capture lies in its graph's pool, and goes with any graph
    that was captured on the stream (pytorch 193402)."""

    freed = False


class GraphPool:
    """Memory that graphs of one card share, as ``create_or_incref_pool`` of torch's allocator counts them."""

    def __init__(self) -> None:
        self.memory: Stream | None = None
        """The stream under which its blocks are known: that of the first capture."""
        self.users = 0
        """Graphs whose captures have begun and that have not given it back. A capture that fails never does, up to
        torch 2.13.0 (pytorch 190348)."""


class Graph:
    """What a capture has enqueued. Stands for ``torch.cuda.CUDAGraph``, with the checks of its CUDAGraph.cpp."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.works: list[Work] = []
        self.valid = True
        self.workspaces: set[Workspace] = set()
        self.captured_on: tuple[int, int] | None = None
        """The stream of a capture that has ended well."""
        self.shares: tuple[object, GraphPool] | None = None
        """The handle of its pool, and the pool."""
        self._gpu, self._card = _now(), _now().card_of()

    def reset(self) -> None:
        if self.captured_on is not None:
            lost = self._gpu.workspaces.pop(self.captured_on, Workspace())
            lost.freed, self.captured_on = True, None
            assert self.shares is not None
            self.shares[1].users -= 1

    __del__ = reset

    def pool(self) -> object:
        if self.captured_on is None or self.shares is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self.shares[0]

    def replay(self) -> None:
        if self.captured_on is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        self._gpu.replays_on_freed_workspaces += any(held.freed for held in self.workspaces)
        _now().replayed += len(self.works) - 1
        for work in self.works:
            _now().current(self._card).enqueue(work)


class _CaptureStream(Stream):
    """Records instead of running; waiting for it makes the capture void. Its memory is the graph's for good."""

    def __init__(self, graph: Graph, on: Stream, pool: GraphPool) -> None:
        super().__init__(on.key[0])
        self.memory = pool.memory = pool.memory or self
        self.pool = pool
        self._gpu.streams.remove(self)
        self._gpu.drawn[on.key[0]] -= 1
        self.key = on.key
        self.graph: Graph | None = graph
        """Until the capture ends: memory of the pool is known by its stream, and keeps no graph."""

    def enqueue(self, work: Work, sent: int = 0) -> None:
        assert self.graph is not None
        self.graph.works.append(work)

    def drain(self, upto: int | None = None) -> None:
        if self.graph is not None:
            self.graph.valid = False
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


class Gpu:
    """The simulated device, or several of them: ``cards``.

    Args:
        schedule: of ``SCHEDULES``.
        seed: of what the schedule draws.
        limit: bytes of each card's memory; None has no end.
        pin_limit: bytes that can be pinned.
        cards: how many there are.
    """

    def __init__(
        self, schedule: str, seed: int, limit: int | None = None, pin_limit: int | None = None, cards: int = 1
    ) -> None:
        self.lock = threading.RLock()
        self.rng = random.Random(seed)
        self.schedule = schedule
        self.limit, self.pin_limit = limit, pin_limit
        self.waits: Counter[str] = Counter()
        self.launches = 0
        self.replayed = 0
        """Launches of those that a replay brought along: the host has launched one for all of them."""
        self.touched = 0
        """Bytes that operations have read and written where they compute, each of them by itself."""
        self.pace = 0.0
        """What such a byte takes on the clock of the streams, where one of a bus takes 1."""
        self.cards = cards
        self.allocated, self.peaks, self.idle = ([0] * cards for _ in range(3))
        """By card: bytes that tensors hold, the most that they held, and bytes that wait for the next of their size."""
        self.sent: Counter[int] = Counter()
        """Bytes that came to a card over its bus."""
        self.crossed: Counter[tuple[int, int]] = Counter()
        """Copies from one card to another."""
        self.pages = False
        """Whether the driver moves memory to the host instead of saying that there is no more, as on Windows."""
        self.fractions: dict[int, float] = {}
        """Of each card's memory that torch may take, where somebody has said so."""
        self.pinned: dict[int, int] = {}
        self.sticky = ""
        """An error that the runtime has kept: the next launch raises it, as after a call whose code nobody took."""
        self.failed = ""
        """An error that stays, as after an illegal access: every launch raises it."""
        self.capability = (8, 9)
        self.flash = True
        """Whether this build of torch has the flash kernel; those for Windows have none."""
        self.lost_wait: tuple[str, int] | None = None
        """File and line of a wait that does nothing, for tests that a missing wait is seen."""
        self.leaving: list[torch.Tensor] = []
        """Pinned memory that copies on their way read or write."""
        self.freed_under_copy = 0
        """Times that such memory was given back."""
        self.fails_at: int | None = None
        """The number of the allocation for which there is no memory, once."""
        self.fails_from: int | None = None
        """The number of the first allocation from which there is no memory any more."""
        self.allocations = 0
        self.streams: list[Stream] = []
        self.drawn = [_STREAMS - 1] * cards
        """Streams of each card that were asked for; the first is its own."""
        self.graph_pools: dict[tuple[int, object], GraphPool] = {}
        """Memory of graphs, by the card and the handle of their pool."""
        self.live: Counter[Stream] = Counter()
        """Blocks that tensors hold, by the stream that they belong to."""
        self.workspaces: dict[tuple[int, int], Workspace] = {}
        """Of matrix products, by stream."""
        self.replays_on_freed_workspaces = 0
        self.captures_on: Stream | None = None
        """The stream of captures for which nobody names one."""
        self.capturing: list[Graph] = []
        self.refuses_captures = False
        """Whether the driver lets no capture begin."""
        self.pool: dict[tuple[Stream, int], list[torch.Tensor]] = {}
        self.kept: list[torch.Tensor] = []
        self.local = threading.local()
        self.mains: list[Stream] = []

    def loses_wait(self) -> bool:
        """Whether the wait that somebody asks for is the one that is to be left out."""
        if self.lost_wait is None:
            return False
        caller: Any = sys._getframe(1)
        while caller.f_code.co_filename == __file__:
            caller = caller.f_back
        return self.lost_wait == (caller.f_code.co_filename, caller.f_lineno)

    def touch(self, *given: Any) -> int:
        """An operation reads or writes these tensors, of which what is expanded is there once; what it takes."""
        before = self.touched
        for x in given:
            if isinstance(x, DeviceTensor):
                strides, size = x.stride(), x.nbytes
                if size and 0 in strides:
                    there = [count for count, stride in zip(x.shape, strides, strict=True) if stride]
                    size = math.prod(there) * x.element_size()
                self.touched += size
        return int(self.pace * (self.touched - before))

    @property
    def peak(self) -> int:
        return max(self.peaks)

    @property
    def clock(self) -> int:
        """How far this thread of the host is, by the clock of the streams."""
        return int(getattr(self.local, "clock", 0))

    def card_of(self, device: Any = None) -> int:
        """The number of a card; of the current one where none is named."""
        index = device if isinstance(device, int) else None if device is None else torch.device(device).index
        return int(getattr(self.local, "card", 0) if index is None else index)

    @contextlib.contextmanager
    def on_card(self, device: Any) -> Iterator[None]:
        """``torch.cuda.device``, and the guard of every operation."""
        before = self.card_of()
        self.local.card = self.card_of(device)
        try:
            yield
        finally:
            self.local.card = before

    def streams_here(self) -> dict[int, Stream]:
        """The current stream of each card that has another than its first one, in this thread."""
        if not hasattr(self.local, "streams"):
            self.local.streams = {}
        return self.local.streams

    def current(self, device: Any = None) -> Stream:
        card = self.card_of(device)
        return self.streams_here().get(card) or self.mains[card]

    def let_run(self, stream: Stream) -> None:
        if self.schedule == "eager":
            stream.drain()
        elif self.schedule == "random":
            for other in self.rng.sample(self.streams, len(self.streams)):
                for _ in range(self.rng.randrange(4)):
                    other.step()
        elif self.schedule == "delayed":
            for other in list(self.streams):
                while other.lags(self.launches):
                    other.step()

    def synchronize(self, device: Any = None) -> None:
        self.waits["synchronize"] += 1
        for graph in self.capturing:
            graph.valid = False
        if self.capturing:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        if not self.loses_wait():
            for stream in list(self.streams):
                if stream.device.index == self.card_of(device):
                    stream.await_here()

    def host(self, x: DeviceTensor) -> torch.Tensor:
        """The numbers, waited for."""
        self.current(x.device).await_here()
        return x.elem

    def captures_here(self) -> bool:
        """Whether this thread captures on a card."""
        return any(
            isinstance(stream, _CaptureStream) and stream.graph is not None for stream in self.streams_here().values()
        )

    def crosses(self, elem: torch.Tensor, source: DeviceTensor, card: int) -> None:
        """Copy to another card as torch does: on the source's stream, behind what the other one's has to do before, and
        the other one's goes on behind it."""
        sender, taker, numbers = self.current(source.device), self.current(card), source.elem
        self.crossed[int(source.device.index), card] += 1
        ready = taker.put

        def work() -> None:
            taker.drain(ready)
            elem.copy_(numbers)

        sender.behind(taker)
        sender.enqueue(work)
        sent = sender.put
        taker.behind(sender)
        taker.enqueue(lambda: sender.drain(sent))

    # Memory --------------------------------------------------------------------------------------------------

    def allocate(self, size: Any, stride: Any, dtype: torch.dtype) -> DeviceTensor:
        span = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if all(size) else 0
        block = _Block(self, span * dtype.itemsize, self.current())
        flat = block.bytes[: span * dtype.itemsize].view(dtype) if span else torch.empty(0, dtype=dtype)
        return DeviceTensor(flat.as_strided(size, stride), block)

    def like(self, shape: torch.Tensor) -> DeviceTensor:
        return self.allocate(tuple(shape.shape), tuple(shape.stride()), shape.dtype)

    def uploaded(self, x: torch.Tensor) -> DeviceTensor:
        """A copy of host numbers, taken now."""
        out, kept = self.like(torch.empty_like(x, device="meta")), x.clone()
        elem = out.elem
        self.current().enqueue(lambda: elem.copy_(kept))
        return out

    def is_pinned(self, x: torch.Tensor) -> bool:
        start, stop = x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()
        return any(first <= start and stop <= first + size for first, size in list(self.pinned.items()))

    def pin(self, x: torch.Tensor) -> torch.Tensor:
        if self.pin_limit is not None and sum(self.pinned.values()) + x.nbytes > self.pin_limit:
            raise torch.AcceleratorError("CUDA error: out of memory")  # of cudaHostAlloc
        self.pinned[x.data_ptr()] = x.numel() * x.element_size()
        self.kept.append(x)  # its address must stay its own
        return x

    def reserved(self, device: Any = None) -> int:
        return self.allocated[self.card_of(device)] + self.idle[self.card_of(device)]

    def segments(self) -> list[dict[str, Any]]:
        """``torch.cuda.memory_snapshot``, with one segment for what is idle in each pool."""
        return [
            {
                "device": stream.device.index,
                "total_size": size * len(blocks),
                "allocated_size": 0,
                "segment_pool_id": (0, 1) if isinstance(stream, _CaptureStream) else (0, 0),
            }
            for (stream, size), blocks in list(self.pool.items())
        ]

    def empty_cache(self) -> None:
        """Give back what is idle; of graphs only what none of a pool needs any more."""
        for stream, size in [
            key for key in self.pool if not (isinstance(key[0], _CaptureStream) and key[0].pool.users)
        ]:
            self.idle[stream.device.index] -= size * len(self.pool.pop((stream, size)))
        for key, pool in list(self.graph_pools.items()):
            if not pool.users and (pool.memory is None or not self.live[pool.memory]):
                del self.graph_pools[key]

    def enter_pool(self, handle: object) -> GraphPool:
        """A capture on the current card begins to take memory from a pool."""
        pool = self.graph_pools.setdefault((self.card_of(), handle), GraphPool())
        if not pool.users and pool.memory is not None:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED: no graph of this pool is left")
        pool.users += 1
        return pool

    def take_workspace(self) -> None:
        """A matrix product is enqueued."""
        stream = self.current()
        held = self.workspaces.setdefault(stream.key, Workspace())
        if isinstance(stream, _CaptureStream) and stream.graph is not None:
            stream.graph.workspaces.add(held)

    def has_room(self, card: int, size: int) -> bool:
        allowed = [] if self.limit is None or self.pages else [self.limit]
        share = self.fractions.get(card)
        allowed += [] if share is None else [int(share * self.total)]
        return not allowed or self.reserved(card) + size <= min(allowed)

    @property
    def total(self) -> int:
        """Bytes of each card."""
        return self.limit or 24 << 30

    def set_fraction(self, share: float, device: Any = None) -> None:
        """``torch.cuda.set_per_process_memory_fraction``."""
        self.fractions[self.card_of(device)] = share

    # torch.cuda.cudart() -------------------------------------------------------------------------------------

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if self.pin_limit is not None and sum(self.pinned.values()) + size > self.pin_limit:
            self.sticky = "CUDA error: out of memory"
            return 2
        self.pinned[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        """What is on its way from there is lost, as it is where somebody else has the memory by then."""
        size = self.pinned.pop(address, 0)
        for rows in [rows for rows in self.leaving if address <= rows.data_ptr() < address + size]:
            self.freed_under_copy += 1
            rows.zero_()
        return 0

    def copy_later(self, into: torch.Tensor, source: torch.Tensor, pinned: torch.Tensor, sent: int = 0) -> None:
        """Copy from or to pinned memory when its turn comes: it must still be there, and the same."""
        self.leaving.append(pinned)

        def work() -> None:
            into.copy_(source)
            self.leaving[:] = [rows for rows in self.leaving if rows is not pinned]

        self.current().enqueue(work, sent)


class _Block:
    """Memory of one storage, on its way back to the pool as soon as no tensor holds it, whatever is still queued."""

    def __init__(self, gpu: Gpu, size: int, stream: Stream) -> None:
        self._gpu, self._key = gpu, None
        card = stream.device.index
        capturing, stream = stream, getattr(stream, "memory", stream)
        with gpu.lock:
            free = gpu.pool.get((stream, size))
            gpu.allocations += size > 0
            ended = gpu.fails_from is not None and gpu.allocations >= gpu.fails_from
            fails = size > 0 and (ended or gpu.allocations == gpu.fails_at)
            if not free and not isinstance(capturing, _CaptureStream) and gpu.captures_here():
                raise RuntimeError("CUDA error: operation not permitted when stream is capturing")  # cudaMalloc
            if fails or (not free and not gpu.has_room(card, size)):
                gpu.empty_cache()
                if fails or not gpu.has_room(card, size):
                    raise torch.OutOfMemoryError(
                        f"CUDA out of memory. Tried to allocate {size} bytes. "
                        f"GPU {card} has a total capacity of {gpu.limit} bytes."
                    )
            self._key = stream, size
            gpu.live[stream] += 1
            gpu.allocated[card] += size
            gpu.peaks[card] = max(gpu.peaks[card], gpu.allocated[card])
            if free:
                gpu.idle[card] -= size
                self.bytes = free.pop()
            else:
                self.bytes = torch.full((max(size, 1),), _NOT_A_NUMBER, dtype=torch.uint8)

    @property
    def device(self) -> torch.device:
        assert self._key is not None
        return self._key[0].device

    def __del__(self) -> None:
        if self._key is not None:
            stream, size = self._key
            with self._gpu.lock:
                self._gpu.live[stream] -= 1
                self._gpu.allocated[stream.device.index] -= size
                self._gpu.idle[stream.device.index] += size
                self._gpu.pool.setdefault(self._key, []).append(self.bytes)


class DeviceTensor(torch.Tensor):
    """A tensor that says it lies on the device; ``elem`` are its numbers, once its stream has come so far."""

    elem: torch.Tensor
    block: _Block

    @staticmethod
    def __new__(
        cls, elem: torch.Tensor, /, block: _Block | None = None, requires_grad: bool = False, **held: Any
    ) -> Any:
        if block is None or held:  # as a class of parameters, which it is for whoever asks for the type of one
            return torch.nn.Parameter(elem, requires_grad=requires_grad)
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            elem.size(),
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            layout=elem.layout,
            device=block.device,
            requires_grad=False,
        )
        made.elem, made.block = elem, block
        return made

    def __repr__(self, *_: Any, **__: Any) -> str:  # type: ignore[override]
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype})"

    def tolist(self) -> Any:
        gpu = _now()
        gpu.waits["tolist"] += 1
        return gpu.host(self).tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, tuple) and any(isinstance(i, list) for i in at):
            _now().waits["index with a list"] += 1  # copied from memory that is not pinned
            with _now().on_card(self.device):
                at = tuple(_now().uploaded(torch.as_tensor(i)) if isinstance(i, list) else i for i in at)
        return torch.Tensor.__getitem__(self, at)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _dispatch(_now(), func, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Sees what makes tensors on the device out of nothing."""

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(_now(), func, args, kwargs or {})


# Operations ----------------------------------------------------------------------------------------------------------

# Their results have sizes that only the numbers tell: the host waits.
_SIZED = ("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave")
_ASKED = ("_local_scalar_dense", "equal", "item", "is_nonzero", "allclose")
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "matmul", "linear")
_KERNELS = {
    "_scaled_dot_product_flash_attention": "flash_attention",
    "_flash_attention_forward": "_flash_of_lengths",
    "_scaled_dot_product_efficient_attention": "efficient_attention",
    "_convert_weight_to_int4pack": "_pack_tiles",
    "_weight_int4pack_mm": "tiles_product",
}
_EMPTY = ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided")


@cache
def _without_cuda() -> frozenset[str]:
    """Operations that have no kernel for CUDA, by the list that torch is generated from."""
    spec = importlib.util.find_spec("torchgen")
    assert spec is not None
    assert spec.origin is not None
    listed = Path(spec.origin).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"
    found = set()
    for entry in re.split(r"\n(?=- func: )", listed.read_text(encoding="utf-8")):
        name = re.match(r"- func: ([\w.]+)\(", entry)
        kernels = re.search(r"\n  dispatch:\n((?:    .*\n?)+)", entry + "\n")
        if name and kernels and "structured_delegate" not in entry and not re.search("CUDA|Composite", kernels[1]):
            found.add(name[1])
    return frozenset(found)


def _numbers(x: Any) -> Any:
    if isinstance(x, DeviceTensor):
        return x.elem
    return torch.device("cpu") if isinstance(x, torch.device) else x


def _shape_only(x: Any) -> Any:
    if isinstance(x, torch.device):
        return torch.device("meta")
    if not isinstance(x, torch.Tensor):
        return x
    x = x.elem if isinstance(x, DeviceTensor) else x
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="meta")


_shaped: dict[Any, Any] = {}


def _shapes(func: Any, args: Any, kwargs: dict[str, Any], ours: bool) -> Any:
    """What an operation makes, without its numbers. Decoding asks for the same again and again."""
    known = func, ours, torch.get_default_dtype(), _kinds(args), _kinds(tuple(kwargs.items()))  # transformers sets it
    if known not in _shaped:
        shaped_args, shaped = tree_map(_shape_only, (args, kwargs))
        shaped = {name: value for name, value in shaped.items() if name not in ("generator", "pin_memory")}
        if not ours:
            shaped["device"] = torch.device("meta")
        _shaped[known] = func(*shaped_args, **shaped)
    return _shaped[known]


def _kinds(x: Any) -> Any:
    """All that a result's shape can depend on. A number's type is among it, since 1, 1.0 and True are one key."""
    if isinstance(x, torch.Tensor):
        return x.dtype, x.size(), x.stride()
    kind = type(x)
    return tuple([_kinds(each) for each in x]) if kind is tuple or kind is list else (kind, x)


def _dispatch(gpu: Gpu, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do, or put into the current stream, one operation of torch."""
    tensors = [x for x in tree_leaves((args, kwargs) if kwargs else args) if isinstance(x, torch.Tensor)]
    ours = [x for x in tensors if isinstance(x, DeviceTensor)]
    device = kwargs.get("device")
    if func is torch.ops.aten._to_copy.default and device is not None and device.type == "meta":
        # "cuda" without a number: torch asks the guard that stands in, and that is the one of meta.
        device = torch.device("cuda")
    to_device = device is not None and torch.device(device).type == "cuda"
    if to_device:
        device = torch.device("cuda", gpu.card_of(device))
    if not ours and not to_device:
        if kwargs.get("pin_memory"):
            return gpu.pin(func(*args, **{**kwargs, "pin_memory": False}))
        return func(*args, **kwargs)
    before = gpu.card_of()
    gpu.local.card = gpu.card_of(device if to_device else ours[0].device)
    try:
        return dispatch_here(gpu, func, args, kwargs, tensors, ours, device)
    finally:
        gpu.local.card = before


@dataclass(frozen=True)
class _Operation:
    """What is to be known of an operation of torch, which takes long to ask for each time."""

    name: str
    missing: str
    """Its full name if it has no kernel for CUDA."""
    mutates: bool
    views: bool
    kernel: str
    """The function of this module that stands for it, if it is not computed as torch does: found when it is called,
    because tests put others there."""


@cache
def _operation(func: Any) -> _Operation:
    name, schema = func.overloadpacket.__name__, func._schema
    full = schema.name.split("::")[1] + (f".{func._overloadname}" if func._overloadname != "default" else "")
    views = name == "_unsafe_view" or any(given.alias_info is not None for given in schema.returns)
    missing = full if full in _without_cuda() else ""
    return _Operation(name, missing, schema.is_mutable, views, _KERNELS.get(name, ""))


def dispatch_here(
    gpu: Gpu,
    func: Any,
    args: Any,
    kwargs: dict[str, Any],
    tensors: list[torch.Tensor],
    ours: list[DeviceTensor],
    device: Any,
) -> Any:
    """An operation of the current card."""
    operation = _operation(func)
    name = operation.name
    if operation.missing:
        raise NotImplementedError(f"Could not run 'aten::{operation.missing}' with arguments from the 'CUDA' backend.")
    if len(ours) > 1 and name != "copy_" and len({x.device for x in ours}) > 1:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found at least two cards: {func}")
    if operation.kernel:
        return globals()[operation.kernel](gpu, *args, **kwargs)
    if name == "is_pinned":
        return False
    if name in ("_to_copy", "to"):
        made = _moved(gpu, args[0], device, kwargs)
        if made is not None:
            return made
        kwargs = {key: value for key, value in kwargs.items() if key not in ("device", "non_blocking", "pin_memory")}
    if name == "copy_" and _crosses(gpu, *args, **kwargs):
        return args[0]
    for x in tensors:
        if not isinstance(x, DeviceTensor) and x.dim() > 0:
            if name not in _INDEXING:
                raise RuntimeError(f"Expected all tensors to be on the same device: {func}")
            gpu.waits[f"{name} with an index of the host"] += 1
    if name in _INDEXING and any(isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in args[1]):
        gpu.waits[f"{name} with a mask"] += 1
        gpu.current().await_here()
        if name == "index":  # its size is that of the mask's true places
            return gpu.uploaded(func(*tree_map(_numbers, args)))
    return _computed(gpu, func, operation, args, kwargs, ours)


def _computed(gpu: Gpu, func: Any, operation: _Operation, args: Any, kwargs: Any, ours: list[DeviceTensor]) -> Any:
    name, a, k = operation.name, tree_map(_numbers, args), tree_map(_numbers, kwargs)
    if name in _PRODUCTS:
        gpu.take_workspace()
    if operation.mutates:
        gpu.current().enqueue(lambda: func(*a, **k), gpu.touch(*ours))
        return args[0]
    if operation.views:
        block = ours[0].block
        return tree_map(lambda x: DeviceTensor(x, block) if isinstance(x, torch.Tensor) else x, func(*a, **k))
    if name in (*_SIZED, *_ASKED):
        gpu.waits[name] += 1
        gpu.current().await_here()
        return tree_map(lambda x: gpu.uploaded(x) if isinstance(x, torch.Tensor) else x, func(*a, **k))
    if k.get("generator") is not None:  # numbers are drawn in the order of the program
        return gpu.uploaded(func(*a, **k))
    outs = tree_map(
        lambda x: gpu.like(x) if isinstance(x, torch.Tensor) else x, _shapes(func, args, kwargs, bool(ours))
    )
    if name in _EMPTY:
        return outs
    made = [x for x in tree_leaves(outs) if isinstance(x, DeviceTensor)]
    targets = [x.elem for x in made]
    taken = gpu.touch(*ours, *made)

    def work() -> None:
        result = func(*a, **k)
        if isinstance(result, torch.Tensor):
            targets[0].copy_(result)
            return
        found = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        for target, numbers in zip(targets, found, strict=True):
            target.copy_(numbers)

    gpu.current().enqueue(work, taken)
    return outs


def _moved(gpu: Gpu, source: torch.Tensor, device: Any, options: dict[str, Any]) -> torch.Tensor | None:
    """A tensor copied between host and device; None if it stays where it is."""
    target = torch.device(device) if device is not None else source.device
    dtype = options.get("dtype") or source.dtype
    if target.type == "cpu":
        assert isinstance(source, DeviceTensor)
        gpu.waits["to the host"] += 1
        return gpu.host(source).to(dtype, copy=True)
    if isinstance(source, DeviceTensor) and source.device == target:
        return None
    out = gpu.like(torch.empty_strided(source.size(), source.stride(), device="meta", dtype=dtype))
    if isinstance(source, DeviceTensor):
        gpu.crosses(out.elem, source, gpu.card_of())
    else:
        _send(gpu, out.elem, source, bool(options.get("non_blocking")))
    return out


def _crosses(gpu: Gpu, into: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> bool:
    """Whether ``copy_`` went between host and device, and was done."""
    if not isinstance(into, DeviceTensor):
        assert isinstance(source, DeviceTensor)
        numbers = source.elem
        if non_blocking and gpu.is_pinned(into):
            gpu.copy_later(into, numbers, into)
        else:
            gpu.waits["copy to the host"] += 1
            into.copy_(gpu.host(source))
        return True
    if isinstance(source, DeviceTensor):
        if source.device == into.device:
            return False
        gpu.crosses(into.elem, source, int(into.device.index))
        return True
    if source.dim() == 0:  # a number goes along with the launch
        elem, number = into.elem, source.clone()
        gpu.current().enqueue(lambda: elem.copy_(number))
    else:
        _send(gpu, into.elem, source.expand(into.shape), non_blocking)
    return True


def _send(gpu: Gpu, elem: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
    card = gpu.card_of()
    gpu.sent[card] += source.numel() * source.element_size()
    if non_blocking and gpu.is_pinned(source):
        gpu.copy_later(elem, source, source, source.numel() * source.element_size())
    elif non_blocking:
        gpu.waits["from memory that is not pinned"] += 1
        gpu.current().await_here()
        elem.copy_(source)
    else:
        gpu.waits["to the device"] += 1
        gpu.current().await_here()
        elem.copy_(source)


def _check_flash(gpu: Gpu, *given: Any) -> None:
    """What every call of torch's flash kernel needs: a build and a card that have it, and its dtypes and memory."""
    if not gpu.flash or gpu.capability < (8, 0):
        raise RuntimeError("USE_FLASH_ATTENTION was not enabled for build.")
    for x in given:
        if x.dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        if x.stride(-1) != 1 or x.elem.data_ptr() % 16:
            raise RuntimeError("FlashAttention needs neighbouring components and 16-byte alignment")


def flash_attention(
    gpu: Gpu, q: Any, k: Any, v: Any, dropout: float = 0.0, causal: bool = False, *_: Any, scale: float
) -> Any:
    """torch's flash kernel, with the constraints of ``mha_fwd`` in its flash_api.cpp."""
    _check_flash(gpu, q, k, v)
    if q.shape[3] % 8 or q.shape[3] > 256 or q.shape[1] % k.shape[1] or dropout:
        raise RuntimeError("FlashAttention does not take this shape")
    out, lse = _attention(gpu, q, k, v, causal, scale, q.shape[2])
    none = gpu.like(torch.empty(0, device="meta"))
    return out, lse, none, none, q.shape[2], k.shape[2], none, none, none


def _flash_of_lengths(
    gpu: Gpu,
    q: Any,
    k: Any,
    v: Any,
    ends: Any,
    starts: Any,
    longest: int,
    room: int,
    dropout: float,
    causal: bool,
    debug: bool,
    *,
    scale: float,
    seqused_k: Any,
) -> Any:
    """torch's flash kernel over sequences of one query each, as ``mha_varlen_fwd`` in its flash_api.cpp has it: what
    stands behind a sequence's number of keys is not read."""
    _check_flash(gpu, q, k, v)
    count, heads, dim = q.shape
    if any(x.dtype is not torch.int32 for x in (ends, starts, seqused_k)) or len(seqused_k) != count:
        raise RuntimeError("cu_seqlens and seqused_k must have dtype int32, one sequence each")
    if dim % 8 or dim > 256 or heads % k.shape[1] or dropout or causal or debug or longest != 1 or room > len(k):
        raise RuntimeError("FlashAttention does not take this call here")
    out = gpu.like(torch.empty((count, heads, dim), dtype=q.dtype, device="meta"))
    lse = gpu.like(torch.empty((heads, count), dtype=torch.float32, device="meta"))
    queries, keys, values, into, sums, used = (_numbers(x) for x in (q, k, v, out, lse, seqused_k))
    gpu.touch(q, k, v, out, lse)
    group = heads // k.shape[1]

    def work() -> None:
        for row, held in enumerate(used.tolist()):
            assert 0 < held <= room, held
            deep, wide = (x[:held].repeat_interleave(group, 1).float() for x in (keys, values))
            scores = torch.einsum("hd,shd->hs", queries[row].float(), deep) * scale
            sums[:, row] = torch.logsumexp(scores, -1)
            into[row] = torch.einsum("hs,shd->hd", torch.exp(scores - sums[:, row, None]), wide)

    gpu.current().enqueue(work)
    none = gpu.like(torch.empty(0, device="meta"))
    return out, lse, none, none, none


def efficient_attention(
    gpu: Gpu,
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    with_lse: bool,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float,
) -> Any:
    """torch's memory-efficient kernel: no grouped heads; the log-sum-exp is padded to a multiple of 32 rows. What its
    kernel_forward.h says of a bias: of the queries' dtype, its memory and strides in steps of 16 bytes, and a row that
    it hides altogether has a log-sum-exp of 0."""
    if q.shape[1] != k.shape[1] or dropout or not with_lse:
        raise RuntimeError("the memory-efficient kernel does not take this call here")
    if bias is not None:
        if bias.dtype != q.dtype:
            raise RuntimeError("invalid dtype for bias - should match query's dtype")
        if tuple(bias.shape) != (*q.shape[:3], k.shape[2]) or bias.stride(-1) != 1:
            raise RuntimeError("the bias does not have the shape of the scores")
        step = 16 // bias.element_size()
        strides = [stride for stride, count in zip(bias.stride()[:3], bias.shape[:3], strict=True) if count > 1]
        if any(stride % step for stride in strides) or bias.elem.data_ptr() % 16:
            raise RuntimeError("attn_bias is not correctly aligned")
    out, lse = _attention(gpu, q, k, v, causal, scale, -(-q.shape[2] // 32) * 32, bias)
    none = gpu.like(torch.empty(0, device="meta"))
    return out, lse, none, none


def _attention(
    gpu: Gpu, q: Any, k: Any, v: Any, causal: bool, scale: float, padded: int, bias: Any = None
) -> tuple[Any, Any]:
    batch, heads, rows, dim = q.shape
    seq, group = k.shape[2], heads // k.shape[1]
    out = gpu.like(torch.empty((batch, rows, heads, dim), dtype=q.dtype, device="meta")).transpose(1, 2)
    lse = gpu.like(torch.empty((batch, heads, padded), dtype=torch.float32, device="meta"))
    queries, keys, values, into, sums, added = (_numbers(x) for x in (q, k, v, out, lse, bias))
    gpu.touch(q, k, v, out, lse, bias)

    def work() -> None:
        wide, deep = (x.repeat_interleave(group, 1).float() for x in (keys, values))
        scores = (queries.float() @ wide.transpose(-1, -2)) * scale
        if added is not None:
            scores = scores + added.float()
        if causal:  # counted from the first key, as in torch
            scores = scores.masked_fill(~torch.ones(rows, seq, dtype=torch.bool).tril(), float("-inf"))
        hidden = scores.amax(-1) == float("-inf")
        sums[..., :rows] = torch.logsumexp(scores, -1).masked_fill(hidden, 0.0)
        into.copy_(torch.exp(scores - sums[..., :rows, None]) @ deep)

    gpu.current().enqueue(work)
    return out, lse


def _pack_tiles(gpu: Gpu, quants: DeviceTensor, tiles: int) -> DeviceTensor:
    """torch's order of weights in 4 bits, with the constraints of its int4mm.cu: quants (out, in / 2), the first of two
    in the upper half of a byte, become words (out / 8, in / 16 tiles, 32, tiles / 2)."""
    outs, pairs = quants.shape
    if quants.dtype != torch.uint8 or not quants.is_contiguous() or outs % 8 or pairs % (8 * tiles):
        raise RuntimeError("weights in 4 bits do not have this shape")
    made = gpu.like(torch.empty(outs // 8, pairs // (8 * tiles), 32, tiles // 2, dtype=torch.int32, device="meta"))
    source, into = quants.elem, made.elem

    def work() -> None:
        # Rows of eight, words of four bytes that stand four apart: lane = 4 * row + column.
        bytes_ = source.view(outs // 8, 8, -1, tiles // 2, 4, 4).permute(0, 2, 1, 5, 3, 4).long()
        halves = torch.cat([bytes_ >> 4, bytes_ & 15], dim=-1)
        words = (halves << (4 * torch.arange(8))).sum(-1).reshape(into.shape)
        into.copy_(words.to(torch.int32))

    gpu.current().enqueue(work)
    return made


def tiles_product(gpu: Gpu, x: DeviceTensor, words: DeviceTensor, group: int, scales: DeviceTensor) -> DeviceTensor:
    """torch's product with such weights: x (n, in) in bfloat16, scales and middles (groups, out, 2)."""
    tiles, outs, width = 2 * words.shape[3], 8 * words.shape[0], x.shape[1]
    if gpu.capability < (8, 0):
        raise RuntimeError("CUDA error: device-side assert triggered")
    fits = words.shape[1] == width // (16 * tiles) and scales.shape == (width // group, outs, 2)
    if x.dtype != torch.bfloat16 or x.dim() != 2 or not (x.is_contiguous() and fits):
        raise RuntimeError("the product with weights in 4 bits does not take this call")
    out = gpu.like(torch.empty(x.shape[0], outs, dtype=x.dtype, device="meta"))
    rows, packed, steps, into = (_numbers(each) for each in (x, words, scales, out))
    gpu.touch(x, words, scales, out)

    def work() -> None:
        halves = (packed.long().unsqueeze(-1) >> (4 * torch.arange(8))) & 15
        both = halves.unflatten(-1, (2, 4)).movedim(-2, -1).unflatten(2, (8, 4))  # the first of two, and the second
        quants = both.permute(0, 2, 1, 4, 5, 3, 6).reshape(outs, -1, group)
        scale, middle = steps.float().transpose(0, 1).unsqueeze(-1).unbind(2)
        weight = ((quants - 8) * scale + middle).bfloat16().flatten(1)
        into.copy_(rows.float() @ weight.float().t())

    gpu.current().enqueue(work)
    return out


def _norm(
    gpu: Gpu, x: DeviceTensor, shape: Any, weight: DeviceTensor, eps: float, kernel: Callable[..., torch.Tensor]
) -> DeviceTensor:
    """torch's RMS norm, one kernel for CUDA; the processor's build takes it apart before this module sees it."""
    with gpu.on_card(x.device):
        out = gpu.like(torch.empty(x.shape, dtype=x.dtype, device="meta"))
        numbers, weights, into = x.elem, weight.elem, out.elem
        gpu.current().enqueue(lambda: into.copy_(kernel(numbers, shape, weights, eps)))
    return out


# The device, put in place and taken away ----------------------------------------------------------------------------

_here: list[Gpu] = []


def _now() -> Gpu:
    return _here[-1]


@contextlib.contextmanager
def simulated_cuda(
    schedule: str = "lazy", seed: int = 0, limit: int | None = None, pin_limit: int | None = None, cards: int = 1
) -> Iterator[Gpu]:
    """A device, or several, for as long as the block lasts; everything of ``torch.cuda`` is as before behind it."""
    assert not why_not(), why_not()
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * _TYPES).in_dll(library, _REGISTRY)
    if not guards[_CUDA_TYPE]:
        guards[_CUDA_TYPE] = guards[_META_TYPE]  # does nothing, and nothing is what a guard has to do here
    gpu = Gpu(schedule, seed, limit, pin_limit, cards)
    _here.append(gpu)
    gpu.mains = [Stream(card) for card in range(cards)]
    with contextlib.ExitStack() as after:
        after.callback(_here.pop)
        for owner, name, stand_in in _stand_ins(gpu):
            after.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, stand_in)
        for known in (
            cuda.measured,
            cuda.measured_for_many,
            cuda._takes_masks,
            cuda._takes_lengths,
            devices.stream_of,
        ):
            known.cache_clear()
            after.callback(known.cache_clear)
        with _Mode():
            yield gpu
            gpu.schedule = "eager"
            for stream in gpu.streams:
                stream.drain()
        assert not gpu.replays_on_freed_workspaces


def _stand_ins(gpu: Gpu) -> list[tuple[Any, str, Any]]:
    """What is replaced: (owner, name, value)."""
    c: Any = torch.cuda
    module_to, run, tensor = torch.nn.Module.to, threading.Thread.run, torch.tensor
    rms_norm = torch.nn.functional.rms_norm

    class HostGenerator(torch.Generator):  # a class, since annotations name it
        def __new__(cls, device: Any = None) -> Any:
            return super().__new__(cls)

    class OnStream:
        """``torch.cuda.StreamContext``: a class, so that one that nobody leaves puts no stream back when it dies."""

        def __init__(self, stream: Stream | None) -> None:
            self._stream = stream

        def __enter__(self) -> None:
            if self._stream is not None:
                here = gpu.card_of()
                gpu.local.card = self._stream.device.index  # as set_stream does
                self._before, self._card = gpu.current(), here
                gpu.streams_here()[gpu.card_of()] = self._stream

        def __exit__(self, *_: Any) -> None:
            if self._stream is not None:
                gpu.streams_here()[int(self._stream.device.index)] = self._before
                gpu.local.card = self._card

    class Capture:
        def __init__(self, graph: Graph, pool: Any = None, stream: Stream | None = None, **_: Any) -> None:
            if stream is None:
                stream = gpu.captures_on = gpu.captures_on or Stream()
            self._graph, self._stream, self._pool = graph, stream, pool

        def __enter__(self) -> None:
            gpu.synchronize()
            gpu.empty_cache()
            self._before = gpu.current()
            # As in torch, the stream stays where one of the checks fails.
            gpu.streams_here()[gpu.card_of()] = self._stream
            if self._graph.captured_on is not None:
                raise RuntimeError("This CUDAGraph instance already owns a captured graph.")
            if self._stream in gpu.mains:
                raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
            handle = object() if self._pool is None else self._pool
            self._graph.shares = handle, gpu.enter_pool(handle)
            if gpu.refuses_captures:
                raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
            self._captured = _CaptureStream(self._graph, self._stream, self._graph.shares[1])
            gpu.streams_here()[gpu.card_of()] = self._captured
            gpu.capturing.append(self._graph)

        def __exit__(self, *_: Any) -> None:
            gpu.capturing.remove(self._graph)
            self._captured.graph = None
            if not self._graph.valid:
                # As in torch, whose context manager ends here without putting the stream back.
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
            self._graph.captured_on = self._stream.key
            gpu.streams_here()[gpu.card_of()] = self._before

    def moved(module: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], str | torch.device) and torch.device(args[0]).type == "cuda":
            with gpu.on_card(args[0]):
                return _upload(gpu, module)
        return module_to(module, *args, **kwargs)

    def norm(x: torch.Tensor, shape: Any, weight: Any = None, eps: Any = None) -> torch.Tensor:
        if isinstance(x, DeviceTensor):
            return _norm(gpu, x, shape, weight, eps, rms_norm)
        return rms_norm(x, shape, weight, eps)

    def in_mode(thread: threading.Thread) -> None:
        with _Mode():
            run(thread)

    def made(data: Any, **options: Any) -> torch.Tensor:
        pin, device = options.pop("pin_memory", False), options.pop("device", None)
        out = tensor(data, **options)
        if pin:
            gpu.pin(out)
        return out.to(device) if device is not None and torch.device(device).type == "cuda" else out

    total = gpu.total
    properties = types.SimpleNamespace(multi_processor_count=128, name="simulated", total_memory=total)

    def of_device(device: Any = None) -> Any:
        properties.major, properties.minor = gpu.capability
        return properties

    return [
        (c, "_lazy_init", lambda: None),
        (c, "is_available", lambda: True),
        (c, "is_initialized", lambda: True),
        (c, "device_count", lambda: gpu.cards),
        (c, "Stream", Stream),
        (c, "Event", Event),
        (c, "current_stream", gpu.current),
        (c, "current_device", gpu.card_of),
        (c, "stream", OnStream),
        (c, "synchronize", gpu.synchronize),
        (c, "device", gpu.on_card),
        (c, "CUDAGraph", Graph),
        (c, "graph", Capture),
        (c, "graph_pool_handle", object),
        (c, "empty_cache", gpu.empty_cache),
        (c, "set_per_process_memory_fraction", gpu.set_fraction),
        (c, "cudart", lambda: gpu),
        (c, "get_device_properties", of_device),
        (c, "get_device_capability", lambda device=None: gpu.capability),
        (c, "get_device_name", lambda device=None: "simulated"),
        (c, "mem_get_info", lambda device=None: (total - gpu.reserved(device), total)),
        (c, "memory_reserved", gpu.reserved),
        (c, "memory_allocated", lambda device=None: gpu.allocated[gpu.card_of(device)]),
        (c, "memory_snapshot", gpu.segments),
        (torch.backends.cuda, "is_flash_attention_available", lambda: gpu.flash),
        (torch, "inference_mode", lambda *_: torch.no_grad()),  # tensors of a subclass have no place in it
        (torch, "tensor", made),
        (torch, "Generator", HostGenerator),
        (torch.nn.Module, "to", moved),
        (torch.nn.functional, "rms_norm", norm),
        (threading.Thread, "run", in_mode),
    ]


def _here_now(gpu: Gpu, numbers: torch.Tensor) -> torch.Tensor:
    """A tensor on the current card."""
    if isinstance(numbers, DeviceTensor):
        return numbers.to(torch.device("cuda", gpu.card_of()))
    return gpu.uploaded(numbers)


def _upload(gpu: Gpu, module: Any) -> Any:
    """``nn.Module.to`` for the device; weights that are shared stay shared."""
    known: dict[int, torch.nn.Parameter] = {}
    for part in module.modules():
        for name, weight in list(part._parameters.items()):
            if weight is not None and not (isinstance(weight, DeviceTensor) and weight.device.index == gpu.card_of()):
                if id(weight) not in known:
                    known[id(weight)] = torch.nn.Parameter(_here_now(gpu, weight.data), requires_grad=False)
                part._parameters[name] = known[id(weight)]
        for name, buffer in list(part._buffers.items()):
            if buffer is not None and not isinstance(buffer, DeviceTensor):
                part._buffers[name] = gpu.uploaded(buffer)
    return module
