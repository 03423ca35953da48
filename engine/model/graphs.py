"""Records passes of a few tokens on a GPU as CUDA graphs, and replays them, so that Python's overhead does not limit
the speed.

Draft steps, passes of the middle level and verifications repeat passes of the same shapes. Only the positions of the
tokens differ, so a recorded pass reads the positions from a tensor (``FixedForm``). The caches of the draft and of the
middle level (the target on the retrieval cache) allocate their buffers once. Their recordings stay valid when the
retrieval cache's chunks are chosen again, another book is read or tokens are cropped, because only the contents of the
buffers change. The buffers of the full cache can grow and be spilled. Also, most of its keys are read without a mask
(``FullCache.fixed_span``). So its recordings are made again when its memory or the number of unmasked keys changes.

If layers lie on several GPUs, each group of consecutive layers on one GPU is a separate graph. Hidden states are copied
between graphs.

A recording is used only if its first replay agrees with the ordinary pass up to rounding, and if it is faster on this
machine. If memory runs out, the shape is recorded later. Any other exception, or a larger difference, ends all
recording of the level, with a warning in the log. ``--graphs off`` records nothing.

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

# Number of passes of a shape until it is recorded during an answer, including the recorded pass. A recording takes as
# long as four ordinary passes and a few replays, so a rarer shape is not worth it.
_RECORD_AFTER = 8
# Maximum number of shapes that are recorded for a level. Passes of other shapes run without a recording.
_MAX_RECORDINGS = 12
MAX_TOKENS = 64
"""Maximum tokens of a recorded pass. Longer passes run without a recording."""
# Number of passes of a shape before it is recorded again, after memory ran out during its recording.
_RETRY_AFTER = 256
# Number of replays that are timed. The fastest is compared with the ordinary pass.
_TIMED = 2
# Minimum version of torch: in older versions the allocator stops working after a failed capture (pytorch 180395). Up to
# 2.13.0 the memory of a failed capture, about ten megabytes, is never freed (pytorch 190348). A level is therefore not
# recorded again after a failure.
_FIRST_TORCH = (2, 12)
# Maximum difference between the logits of a replay and of the ordinary pass, as a share of the largest logit. Different
# kernels round differently, more so in half precision. Logits of a wrong replay differ by far more than this.
_NEAR = {torch.float32: 1e-3, torch.float64: 1e-3}
_NEAR_HALF = 5e-2
# Number of recordings and replays of a level that may differ in half precision for a model with experts, because
# rounding can choose another expert at a near tie. Tiny mixtures on an H200 differed by 0.19 and 0.58 of the largest
# logit. A wrong recording always differs.
_DIFFERING = 2


class Recorder(Protocol):
    """Records work that launches the same operations on the same memory whenever it runs."""

    def record(self, work: Callable[[], _T]) -> Callable[[], _T]:
        """Record ``work``. Return a function that replays it and returns the same tensors every time, with new
        contents.
        """

    def milliseconds(self, work: Callable[[], object]) -> float:
        """Milliseconds that ``work`` takes, including the wait for its end."""

    def forget(self) -> None:
        """Free the memory of all recordings. No recording may be replayed afterwards."""


class CudaRecorder:
    """Records the CUDA graphs of one level, whose layers lie on one device or on several.

    torch keeps one cuBLAS workspace per stream. The workspace of a capturing stream lies in the pool of the first graph
    captured on it, and is freed with any graph of that pool (pytorch 193402). The remaining graphs would then compute
    in freed memory. So each recorder has its own capture streams, and its graphs are freed together.

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
                # run the pass once, so that libraries load their kernels and allocate their buffers before the capture
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

    A capture covers one device. As long as it lasts, the thread must not allocate memory on another device. So tensors
    that are sent to another device get their memory there in the rehearsal. Each is copied after the graph that
    computes it.

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
        """Run the pass without a capture."""
        self._sent = 0
        work()

    @contextlib.contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        """Make a context in which launched work is captured, on ``device`` until ``move`` is called."""
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
        """Copy x to another device, and return the copy. During a capture the copying is only added to the steps of the
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
        """Capture all further work on this device. Does nothing in the rehearsal."""
        if self._running is not None:
            self._end()
            self._begin(device)

    def _begin(self, device: torch.device) -> None:
        graph, pool, stream = torch.cuda.CUDAGraph(), self._pools[device], self._streams[device]
        self._graphs.append(graph)
        self._running = contextlib.ExitStack()
        self._running.enter_context(torch.cuda.device(device))
        # Restore the current stream when the capture ends, because a failed or refused capture leaves its own stream in
        # place.
        self._running.enter_context(torch.cuda.stream(torch.cuda.current_stream(device)))
        # ``thread_local`` captures only the work of this thread. Another thread may be bringing spilled layers or
        # saving the book, and need not pause. That thread must not synchronise the device, which would abort the
        # capture. So it waits only for events of its own store (``HostStore.arrived``). The store's streams do not
        # block a capture.
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
    """Make a context in which ``sent`` and ``carried``, if called by this thread, use the given capture."""
    _here.capture = capture
    try:
        yield
    finally:
        _here.capture = None


def sent(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Send a tensor to another GPU. The host does not wait, because torch makes the streams of both GPUs wait for each
    other.
    """
    if x.device == device:
        return x
    capture: _Capture | None = getattr(_here, "capture", None)
    return x.to(device, non_blocking=True) if capture is None else capture.send(x, device)


def carried(hidden: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Send hidden states as ``sent`` does. A capture then records the following layers on the new device."""
    if hidden.device == device:
        return hidden
    there = sent(hidden, device)
    if (capture := getattr(_here, "capture", None)) is not None:
        capture.move(device)
    return there


def recorder_for(device: torch.device, *others: torch.device) -> Recorder | None:
    """Make the recorder for a device and for other devices with layers; None if the device has no streams, or if torch
    is too old.
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
        dtype: dtype of the passes' computation. Logits come in float32 in any case.
        check_every: every ``check_every``-th replay is compared with the ordinary pass; 0 compares none.
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
        self._after = _RECORD_AFTER
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
        """Run one pass. Return its logits and its other outputs. The next replay may overwrite the other outputs.

        Args:
            key: the numbers that shapes depend on; the first is the number of tokens.
            eager: the ordinary pass. It may return fewer rows of logits than ``fixed``, whose input may be padded.
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
        """The keys of passes that can be recorded and are not recorded with this ``bound``: first the ``usual`` keys,
        then the keys of passes that ran, the most frequent first.
        """
        self._bind(bound)
        if self.off:
            return []
        keys = dict.fromkeys((*usual, *(key for key, _ in self._seen.most_common())))
        # ``_seen`` is negative if memory ran out while the shape was recorded
        missing = [key for key in keys if key not in self._recordings and key[0] <= MAX_TOKENS and self._seen[key] >= 0]
        return missing[: max(0, _MAX_RECORDINGS - len(self._recordings))]

    @contextlib.contextmanager
    def ahead(self) -> Iterator[None]:
        """Make a context in which a pass is recorded however rarely it ran before."""
        self._after = 0
        try:
            yield
        finally:
            self._after = _RECORD_AFTER

    def _bind(self, bound: Hashable) -> None:
        """Forget the recordings that were made with another ``bound``."""
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
                raise  # the caller makes room and runs the pass again
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
        If memory runs out, the shape is recorded later.
        """
        self.recorded += 1
        found: list[Outputs] = []
        eager_ms = self._recorder.milliseconds(lambda: found.append(eager()))
        logits, *others = found[0]
        expected = (logits.clone(), *others)
        failed: Exception | None = None
        try:
            recording = make()
            off = _difference(recording.replay(inputs)[0], logits)
            faster = key in self._faster or self._is_faster(key, eager_ms, lambda: recording.replay(inputs))
        except Exception as error:  # noqa: BLE001 - a driver may raise anything, and the ordinary pass still works
            failed = error.with_traceback(None)  # the traceback refers to the memory of the failed recording
        if failed is not None:
            if is_out_of_memory(failed):
                self._seen[key] -= _RETRY_AFTER
                _log.info("%s passes %s are recorded later: %s", self._level, key, failed)
            else:
                self._give_up(f"recording failed: {type(failed).__name__}: {failed}")
            return eager()  # the pass is run again, because the KV of its tokens may be half written
        if not off <= self._near:
            self._note_difference(key, f"the first replay differs by {off:.1e} of the largest logit")
            return eager()
        self._recordings[key] = recording if faster else None
        return expected

    def _is_faster(self, key: tuple[int, ...], eager_ms: float, replay: Pass) -> bool:
        """Whether the replay is faster than the ordinary pass, which took ``eager_ms``. Each key is timed once, because
        recordings that differ only in ``bound`` are equally fast. The ordinary pass is not timed again, because a
        person waits while a recording is made.
        """
        replay_ms = min(self._recorder.milliseconds(replay) for _ in range(_TIMED))
        what = "replayed" if replay_ms < eager_ms else "not replayed"
        _log.info("%s passes %s are %s: %.3f ms against %.3f", self._level, key, what, replay_ms, eager_ms)
        if replay_ms < eager_ms:
            self._faster.add(key)
        return replay_ms < eager_ms

    def drop(self) -> None:
        """Free the memory of all recordings. Later passes are recorded again."""
        self._forget({})

    def _forget(self, entries: dict[tuple[int, ...], _Recording | None]) -> None:
        """Free the memory of all recordings. ``entries`` stay. They mark the keys of passes that are not
        recorded again, because their replay was not faster than the ordinary pass.
        """
        self._recordings = entries
        self._recorder.forget()

    def _note_difference(self, key: tuple[int, ...], reason: str) -> None:
        """End all recording of the level. If the difference may come from another choice of experts (``_DIFFERING``),
        only drop the recording of ``key``, so that it is made again later.
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
    """A recorded pass with the memory that its inputs are copied to."""

    def __init__(self, recorder: Recorder, fixed: Callable[..., Outputs], inputs: tuple[torch.Tensor, ...]) -> None:
        self._inputs = [given.clone() for given in inputs]
        self._replay = recorder.record(lambda: fixed(*self._inputs))

    def replay(self, inputs: tuple[torch.Tensor, ...]) -> Outputs:
        for mine, given in zip(self._inputs, inputs, strict=True):
            mine.copy_(given)
        logits, *others = self._replay()
        return (logits.clone(), *others)  # copied, because the next replay overwrites the logits


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Maximum difference in the rows of ``expected``, as a share of the largest value. Infinite if there is a NaN.

    Tokens that a head leaves out have the logit minus infinity. They are ignored if they are the same in both tensors.
    Otherwise the difference is infinite.
    """
    found = found[: len(expected)]
    out = expected == float("-inf")
    if not torch.equal(out, found == float("-inf")):
        return float("inf")
    found, expected = (logits.masked_fill(out, 0.0) for logits in (found, expected))
    share = (found.float() - expected.float()).abs().max() / expected.float().abs().max().clamp(min=1e-9)
    return float(share.nan_to_num(nan=float("inf")))
