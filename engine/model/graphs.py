"""Records passes of a few tokens on a GPU as CUDA graphs, and replays them, so that Python's overhead does not limit
the speed.

Draft steps, passes of the middle level and verifications repeat passes of the same shapes. Only the positions of the
tokens differ, so a recorded pass reads the positions from a tensor (``FixedForm``). The caches of the draft and of the
middle level (the target on the retrieval cache) allocate their buffers once. Recordings of their passes stay valid when
the retrieval cache's chunks are chosen again, another book is read or tokens are cropped, because only the contents of
the buffers change. Recordings of passes over the full cache are made again when its buffers grow or are spilled, and
when the number of keys that are read without a mask changes (``FullCache.fixed_span``).

If layers lie on several GPUs, each group of consecutive layers on one GPU is a separate graph. Hidden states are copied
between graphs.

A recording is used only if its first replay agrees with the ordinary pass up to rounding, and if it is faster on this
machine. If memory runs out during a recording, the pass is recorded later. Any other exception, or a larger difference,
ends all recording of the level, with a warning in the log. With ``--graphs off`` nothing is recorded.

A wrong replay of the draft or of the middle level can cost speed but cannot change the answer, because their tokens are
only proposals. A verification decides the answer, so its replays are compared with the ordinary pass at regular
intervals (``check_every``).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import torch

from engine.devices import KINDS, stream_of
from engine.errors import is_out_of_memory

Outputs = tuple[torch.Tensor, ...]
"""The outputs of a pass: the logits first, then the tensors for an observer."""

Pass = Callable[[], Outputs]

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

# Number of passes of a shape until the shape is recorded. The last of these passes is the recorded one. A recording
# takes as long as four ordinary passes and a few replays, which is not worth it for rarer shapes.
RECORD_AFTER = 8
# Maximum number of shapes that are recorded for a level. Passes of other shapes run without a recording.
_MAX_RECORDINGS = 12
MAX_TOKENS = 64
"""Maximum tokens of a recorded pass. Longer passes run without a recording."""
# Number of passes of a shape until it is recorded again, if memory ran out during its recording.
_RETRY_AFTER = 256
# Number of timed replays. The time of the fastest is compared with the ordinary pass.
_TIMED = 2
# Minimum version of torch. In older versions the allocator stops working after a failed capture (pytorch 180395). Up to
# 2.13.0 the memory of a failed capture, about ten megabytes, is never freed (pytorch 190348), so recording of a level
# ends with its first failure.
_FIRST_TORCH = (2, 12)
# Maximum difference between the logits of a replay and of the ordinary pass, as a share of the largest logit. The
# kernels of a replay may round differently, most in half precision. A wrong replay differs by far more.
_NEAR = {torch.float32: 1e-3, torch.float64: 1e-3}
_NEAR_HALF = 5e-2
# A model with experts may exceed the maximum difference this number of times per level in half precision, because
# rounding can choose another expert at a near tie. Tiny mixtures on an H200 differed by 0.19 and 0.58 of the largest
# logit. A wrong recording exceeds the maximum every time.
_DIFFERING = 2


class Recorder(Protocol):
    """Records work, which must launch the same operations on the same memory whenever it runs."""

    def record(self, work: Callable[[], _T]) -> Callable[[], _T]:
        """Record ``work``. Return a function that replays it and returns the same tensors every time, with new
        contents.
        """

    def milliseconds(self, work: Callable[[], object]) -> float:
        """Measure the milliseconds that ``work`` takes until the device has finished it."""

    def forget(self) -> None:
        """Free the memory of all recordings. No recording may be replayed afterwards."""


class CudaRecorder:
    """Records the CUDA graphs of one level, whose layers lie on one device or on several.

    torch keeps one cuBLAS workspace for each stream. If a stream captures graphs, its workspace lies in the memory pool
    of the first graph, and is freed with any graph of this pool (pytorch 193402). All other graphs of the stream would
    then compute in freed memory. So each recorder has its own capture streams, and frees all its graphs at once.

    All graphs of a level on one device share a memory pool. This is safe because graphs never run at the same time, and
    because the outputs of a recording keep their memory. Once all graphs of a pool are freed, torch captures no graph
    in that pool again (``create_or_incref_pool`` in CUDACachingAllocator.cpp), so ``forget`` makes new pools.

    Args:
        device: where passes begin and end.
        others: all other devices with layers.
    """

    def __init__(self, device: torch.device, *others: torch.device) -> None:
        self._device = device
        self._warm_ups = {each: stream_of(each, "warm-up") for each in (device, *others)}
        self._streams = {each: torch.cuda.Stream(each) for each in (device, *others)}
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._pools = self._new_pools()

    def _new_pools(self) -> dict[torch.device, Any]:
        return {device: torch.cuda.graph_pool_handle() for device in self._streams}

    def record(self, work: Callable[[], _T]) -> Callable[[], _T]:
        capture = _Capture(self._streams, self._pools, self._graphs)
        with torch.cuda.device(self._device), _handing_over(capture):
            with contextlib.ExitStack() as warm:
                for device, stream in self._warm_ups.items():
                    stream.wait_stream(torch.cuda.current_stream(device))
                    warm.enter_context(torch.cuda.stream(stream))
                # The pass runs once before the capture, so that libraries load their kernels and allocate their
                # buffers.
                capture.rehearse(work)
            with capture.on(self._device):
                out = work()

        def replay() -> _T:
            for step in capture.steps:
                step()
            return out

        return replay

    def forget(self) -> None:
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        self._pools = self._new_pools()

    def milliseconds(self, work: Callable[[], object]) -> float:
        began = self._seconds()
        work()
        return (self._seconds() - began) * 1000.0

    def _seconds(self) -> float:
        """Read the clock, in seconds, after all launched work has finished."""
        for device in self._streams:
            torch.cuda.synchronize(device)
        return time.perf_counter()


class _Capture:
    """Captures one pass: a graph for each group of consecutive layers on one device, and copies between the graphs.

    A capture covers one device, and lets the thread allocate no memory on another device. So the memory for tensors
    that are sent to another device is allocated in the rehearsal. Each tensor is copied after the graph that computes
    it.

    Args:
        streams: the streams to capture on, keyed by device.
        pools: handles of the memory pools of graphs, keyed by device.
        graphs: the list to which new graphs are appended.
    """

    def __init__(
        self,
        streams: Mapping[torch.device, Any],
        pools: Mapping[torch.device, Any],
        graphs: list[torch.cuda.CUDAGraph],
    ) -> None:
        self._streams, self._pools, self._graphs = streams, pools, graphs
        self._into: list[torch.Tensor] = []
        self._sent = 0
        self._copies: list[Callable[[], object]] = []
        self._running: contextlib.ExitStack | None = None
        self.steps: list[Callable[[], object]] = []
        """The steps of a replay, in order."""

    def rehearse(self, work: Callable[[], object]) -> None:
        """Run the pass without a capture, before it is captured."""
        self._sent = 0
        work()

    @contextlib.contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        """Make a context in which launched work is captured: first on ``device``, then on the device of the last
        ``move``.
        """
        self._sent = 0
        try:
            self._begin(device)
            yield
        except BaseException:
            if self._running is not None:
                self._running.__exit__(*sys.exc_info())
            raise
        self._end()

    def send(self, x: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Copy x to another device, and return the copy. During a capture, only add the copying to the steps of the
        replay.
        """
        if self._sent == len(self._into):
            self._into.append(torch.empty_like(x, device=device))
        into = self._into[self._sent]
        self._sent += 1
        copy = functools.partial(into.copy_, x, non_blocking=True)
        if self._running is None:
            copy()
        else:
            self._copies.append(copy)
        return into

    def move(self, device: torch.device) -> None:
        """End the capture on the current device, and capture all further work on ``device``. Does nothing in the
        rehearsal.
        """
        if self._running is not None:
            self._end()
            self._begin(device)

    def _begin(self, device: torch.device) -> None:
        graph, pool, stream = torch.cuda.CUDAGraph(), self._pools[device], self._streams[device]
        self._graphs.append(graph)
        self._running = contextlib.ExitStack()
        self._running.enter_context(torch.cuda.device(device))
        # The current stream is set again when the capture ends, because a failed capture leaves its own stream as the
        # current one.
        self._running.enter_context(torch.cuda.stream(torch.cuda.current_stream(device)))
        # With ``thread_local`` only the work of this thread is captured. Another thread may fetch spilled layers or
        # save the book in the meantime. That thread must not synchronise the device, which would abort the capture, so
        # it waits only for events of its own store (``HostStore.arrived``). The store's streams do not block a capture.
        capture = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
        self._running.enter_context(capture)

    def _end(self) -> None:
        assert self._running is not None
        running, self._running = self._running, None
        running.close()
        self.steps += [self._graphs[-1].replay, *self._copies]
        self._copies = []


_here = threading.local()


@contextlib.contextmanager
def _handing_over(capture: _Capture) -> Iterator[None]:
    """Make a context in which calls of ``sent`` and ``carried`` by this thread go to the given capture."""
    _here.capture = capture
    try:
        yield
    finally:
        _here.capture = None


def sent(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Send a tensor to another GPU. The host need not wait, because torch makes the streams of both GPUs wait for each
    other.
    """
    if x.device == device:
        return x
    capture: _Capture | None = getattr(_here, "capture", None)
    return x.to(device, non_blocking=True) if capture is None else capture.send(x, device)


def carried(hidden: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Send hidden states to the GPU of the next layer, as ``sent``. If the pass is being captured, all further work is
    captured on that GPU.
    """
    if hidden.device == device:
        return hidden
    there = sent(hidden, device)
    if (capture := getattr(_here, "capture", None)) is not None:
        capture.move(device)
    return there


def recorder_for(device: torch.device, *others: torch.device) -> Recorder | None:
    """Make the recorder for passes that begin on ``device`` and have layers on ``others`` too. None if ``device`` has
    no streams, or if torch is too old.
    """
    if not KINDS[device.type].streams:
        return None
    if tuple(map(int, torch.__version__.split(".")[:2])) < _FIRST_TORCH:
        _log.info(
            "passes are not recorded by torch %s: a capture that fails leaves its memory taken", torch.__version__
        )
        return None
    return CudaRecorder(device, *others)


class Replays:
    """The recorded passes of one level.

    Args:
        recorder: records and times the passes.
        level: the level's name, for the log.
        dtype: dtype in which passes compute. Logits are always float32.
        check_every: every ``check_every``-th replay is compared with the ordinary pass; 0 means that no replay is.
        experts: whether the model has experts.
    """

    def __init__(
        self,
        recorder: Recorder,
        level: str,
        dtype: torch.dtype = torch.float32,
        check_every: int = 0,
        experts: bool = False,
    ) -> None:
        self._recorder = recorder
        self._near = _NEAR.get(dtype, _NEAR_HALF)
        self._may_differ = _DIFFERING if experts and dtype not in _NEAR else 0
        self._level = level
        self._check_every = check_every
        self._seen: Counter[tuple[int, ...]] = Counter()
        self._recordings: dict[tuple[int, ...], _Recording | None] = {}
        self._faster: set[tuple[int, ...]] = set()
        self._bound: Hashable = None
        self._after = RECORD_AFTER
        self.off = False
        """Whether recording was ended for good."""
        self.replayed = 0
        """Number of replayed passes."""
        self.recorded = 0
        """Number of attempts to record a pass, including failed ones. Each attempt took longer than an ordinary
        pass.
        """

    def run(
        self,
        key: tuple[int, ...],
        eager: Pass,
        fixed: Callable[..., Outputs],
        *inputs: torch.Tensor,
        bound: Hashable = None,
    ) -> Outputs:
        """Run one pass: replay its recording, record it, or run it without a recording. Return its logits and its other
        outputs. The next replay may overwrite the other outputs.

        Args:
            key: the numbers that the shapes of the pass depend on, the number of tokens first.
            eager: the ordinary pass. It may return fewer rows of logits than ``fixed``, which may compute padding
                tokens too.
            fixed: the pass as a function of ``inputs``, which hold every number that changes from pass to pass.
            inputs: small tensors on the device.
            bound: everything else that a recording depends on. A recording with a different ``bound`` is invalid.
        """
        self._bind(bound)
        recording = self._recordings.get(key)
        if recording is not None and not self.off:
            return self._replay(key, recording, eager, inputs)
        self._seen[key] += 1
        known = key in self._recordings or len(self._recordings) >= _MAX_RECORDINGS
        if self.off or known or key[0] > MAX_TOKENS or self._seen[key] < self._after:
            return eager()
        return self._record(key, eager, lambda: _Recording(self._recorder, fixed, inputs), inputs)

    def due(self, usual: Iterable[tuple[int, ...]], bound: Hashable) -> list[tuple[int, ...]]:
        """List the keys of passes that are still to be recorded with this ``bound`` (``run``): first the ``usual``
        keys, then the keys of passes that ran, in the order of decreasing frequency.
        """
        self._bind(bound)
        if self.off:
            return []
        keys = dict.fromkeys((*usual, *(key for key, _ in self._seen.most_common())))
        # ``_seen`` is negative for some time after memory ran out during the recording
        missing = [key for key in keys if key not in self._recordings and key[0] <= MAX_TOKENS and self._seen[key] >= 0]
        return missing[: max(0, _MAX_RECORDINGS - len(self._recordings))]

    @contextlib.contextmanager
    def ahead(self) -> Iterator[None]:
        """Make a context in which every pass is recorded, even if it never ran before."""
        self._after = 0
        try:
            yield
        finally:
            self._after = RECORD_AFTER

    def _bind(self, bound: Hashable) -> None:
        """Free all recordings if they were made with another ``bound`` (``run``)."""
        if bound != self._bound:
            self._bound = bound
            self._forget({known: None for known, recording in self._recordings.items() if recording is None})

    def _replay(
        self, key: tuple[int, ...], recording: _Recording, eager: Pass, inputs: tuple[torch.Tensor, ...]
    ) -> Outputs:
        try:
            out = recording.replay(inputs)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise  # the caller frees memory and runs the pass again
            self._give_up(f"a replay failed: {error}")
            return eager()
        self.replayed += 1
        if self._check_every and self.replayed % self._check_every == 0:
            expected = eager()
            if not (off := _difference(out[0], expected[0])) <= self._near:
                self._note_difference(key, f"a replay differs by {off:.1e} of the largest logit")
                return expected
        return out

    def _record(
        self, key: tuple[int, ...], eager: Pass, make: Callable[[], _Recording], inputs: tuple[torch.Tensor, ...]
    ) -> Outputs:
        """Record a pass and compare its first replay with the ordinary pass. Return the outputs of the ordinary pass.
        If memory runs out, the pass is recorded later.
        """
        self.recorded += 1
        ordinary: list[Outputs] = []
        eager_ms = self._recorder.milliseconds(lambda: ordinary.append(eager()))
        logits, *others = ordinary[0]
        expected = (logits.clone(), *others)
        failed: Exception | None = None
        try:
            recording = make()
            off = _difference(recording.replay(inputs)[0], logits)
            faster = key in self._faster or self.is_faster(key, eager_ms, lambda: recording.replay(inputs))
        except Exception as error:  # noqa: BLE001 - a driver may raise anything, and the ordinary pass still works
            failed = error.with_traceback(None)  # the traceback would keep the memory of the failed recording
        if failed is not None:
            if is_out_of_memory(failed):
                self._seen[key] -= _RETRY_AFTER
                _log.info("%s passes %s are recorded later: %s", self._level, key, failed)
            else:
                self._give_up(f"recording failed: {type(failed).__name__}: {failed}")
            return eager()  # run again, because the failed recording may have written half of the pass's KV
        if not off <= self._near:
            self._note_difference(key, f"the first replay differs by {off:.1e} of the largest logit")
            return eager()
        self._recordings[key] = recording if faster else None
        return expected

    def is_faster(self, key: tuple[int, ...], eager_ms: float, replay: Pass) -> bool:
        """Whether the replay is faster than the ordinary pass, which took ``eager_ms``. Each shape is timed only once,
        because all its recordings are equally fast. The ordinary pass is not timed again, because a person waits
        meanwhile.
        """
        replay_ms = min(self._recorder.milliseconds(replay) for _ in range(_TIMED))
        what = "replayed" if replay_ms < eager_ms else "not replayed"
        _log.info("%s passes %s are %s: %.3f ms against %.3f", self._level, key, what, replay_ms, eager_ms)
        if replay_ms < eager_ms:
            self._faster.add(key)
        return replay_ms < eager_ms

    def drop(self) -> None:
        """Free the memory of all recordings. Their passes may be recorded again."""
        self._forget({})

    def _forget(self, entries: dict[tuple[int, ...], _Recording | None]) -> None:
        """Free the memory of all recordings. Only ``entries`` remain, with None for each key whose replay was not
        faster than the ordinary pass, so that it is not recorded again.
        """
        self._recordings = entries
        self._recorder.forget()

    def _note_difference(self, key: tuple[int, ...], reason: str) -> None:
        """Drop the recording of ``key``, so that it is made again later, if the difference may come from another choice
        of experts (``_DIFFERING``). Otherwise end all recording of the level.
        """
        if self._may_differ:
            self._may_differ -= 1
            self._recordings.pop(key, None)
            _log.info("%s passes: %s", self._level, reason)
        else:
            self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        self.off = True
        self.drop()
        _log.warning("%s passes are not replayed any more: %s", self._level, reason)


class _Recording:
    """A recorded pass, and the memory from which the recording reads its inputs."""

    def __init__(self, recorder: Recorder, fixed: Callable[..., Outputs], inputs: tuple[torch.Tensor, ...]) -> None:
        self._inputs = [given.clone() for given in inputs]
        self._replay = recorder.record(lambda: fixed(*self._inputs))

    def replay(self, inputs: tuple[torch.Tensor, ...]) -> Outputs:
        for mine, given in zip(self._inputs, inputs, strict=True):
            mine.copy_(given)
        logits, *others = self._replay()
        return (logits.clone(), *others)  # copied, because the next replay overwrites the logits


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Compute the maximum difference in the rows that ``expected`` has, as a share of the largest value. Infinite if
    there is a NaN.

    Tokens that a head leaves out have the logit minus infinity. They are ignored if both tensors leave out the same
    tokens. Otherwise the difference is infinite.
    """
    found = found[: len(expected)]
    out = expected == float("-inf")
    if not torch.equal(out, found == float("-inf")):
        return float("inf")
    found, expected = (logits.masked_fill(out, 0.0) for logits in (found, expected))
    share = (found.float() - expected.float()).abs().max() / expected.float().abs().max().clamp(min=1e-9)
    return float(share.nan_to_num(nan=float("inf")))
