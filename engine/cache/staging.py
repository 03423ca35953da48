"""Brings spilled layers to the memory that computes, one ahead of the layer that computes.

Two buffers, each for one layer's KV: while a pass attends through one, a thread fills the other with the next spilled
layer, and after the last one with the first, so that the next pass finds it there. A buffer that still holds a layer is
only topped up with the tokens it lacks. So each spilled byte moves at most once per pass, and only the filled part.

On CUDA the thread enqueues copies from pinned memory on a stream of its own; events keep a buffer from being
overwritten while it is read, and from being read before it is filled.

KV in 8 bits moves as it is kept and becomes the model's dtype in the buffer. Of resident layers it needs a buffer too,
one for all of them, and no thread: ``Workspace``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import torch

from engine.cache.rounding import unrounded
from engine.cache.shape import KvShape
from engine.cache.stores import DiskStore, ResidentStore, SlowStore, from_rows

# Bytes that move at a time: on a processor they stay in its cache between file and buffer, a bus wants more.
_CPU_PIECE, _CUDA_PIECE = 1 << 20, 32 << 20


class Stage:
    """A buffer for one layer: ``keys`` and ``values`` (kv_heads, capacity, head_dim), right for ``valid`` tokens."""

    def __init__(self, shape: KvShape, capacity: int) -> None:
        size = (shape.kv_heads, capacity, shape.head_dim)
        self.keys, self.values = (torch.empty(size, dtype=shape.dtype, device=shape.device) for _ in range(2))
        self.layer: int | None = None
        self.valid = 0
        self.job: Future[int] | None = None
        self.limit = 0  # tokens that stayed committed since the job began
        self.filled: Any = torch.cuda.Event() if shape.device.type == "cuda" else None

    def crop(self, length: int) -> None:
        """Tokens from ``length`` on are void."""
        self.valid, self.limit = min(self.valid, length), min(self.limit, length)

    def take(self, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """KV (1, kv_heads, n, head_dim) from ``start`` on went into the store: the buffer follows, if it can."""
        if self.job is None and self.valid >= start:
            self.valid = start + k.shape[2]
            self.keys[:, start : self.valid] = k[0]
            self.values[:, start : self.valid] = v[0]
        else:
            self.crop(start)


class Workspace:
    """The buffer of resident layers in 8 bits: the layer that a pass attends through, in the model's dtype.

    A layer that is still in it, as between two blocks of a reading, only has its new tokens unpacked.
    """

    def __init__(self, shape: KvShape) -> None:
        self._shape = shape
        self._stage = Stage(shape, 0)

    def reserve(self, capacity: int) -> None:
        """Make room for ``capacity`` tokens. What the buffer holds is forgotten."""
        self._stage = Stage(self._shape, 0)  # the old memory goes before the new one is asked for
        self._stage = Stage(self._shape, capacity)

    def crop(self, length: int) -> None:
        """The newest tokens are dropped: ``length`` remain."""
        self._stage.crop(length)

    def at_hand(self, layer: int, stop: int) -> Stage | None:
        """The buffer, if it holds this layer's tokens [0, stop)."""
        return self._stage if self._stage.layer == layer and self._stage.valid >= stop else None

    def acquire(self, layer: int, store: ResidentStore, length: int) -> None:
        """Bring a layer's tokens [0, length) to hand."""
        stage = self._stage
        if stage.layer != layer:
            stage.layer, stage.valid = layer, 0
        start = stage.valid
        if start >= length:
            return
        for kept, buffer in ((store.keys, stage.keys), (store.values, stage.values)):
            unrounded(self._shape, kept[:, start:length], buffer[:, start:length])
        stage.valid = length

    def wrote(self, layer: int, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """KV (1, kv_heads, n, head_dim) from ``start`` on went into a layer's store: the buffer that has it follows."""
        if self._stage.layer == layer:
            self._stage.take(start, k, v)


class Staging:
    """Args:
    shape: of the model.
    stores: of the spilled layers, by layer.
    """

    def __init__(self, shape: KvShape, stores: Mapping[int, SlowStore]) -> None:
        self._shape = shape
        self._stores = stores
        self._order = sorted(stores)
        self._cuda = shape.device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(shape.device) if self._cuda else None
        piece = (_CUDA_PIECE if self._cuda else _CPU_PIECE) * shape.layers // shape.bytes_per_token
        self._piece = max(16, piece)
        self._local = threading.local()
        self._stages = [Stage(shape, 0) for _ in range(min(2, len(self._order)))]
        self._current = self._stages[0]
        self._mover = ThreadPoolExecutor(1, thread_name_prefix="trifold-mover")
        self.moved_bytes = 0
        self.waited_s = 0.0

    def reserve(self, capacity: int) -> None:
        """Make room for ``capacity`` tokens. What the buffers hold is forgotten."""
        for stage in self._stages:
            self._wait(stage)
            stage.keys = stage.values = torch.empty(0, device=self._shape.device)
        self._stages = [Stage(self._shape, capacity) for _ in self._stages]
        self._current = self._stages[0]

    def crop(self, length: int) -> None:
        """The newest tokens are dropped: ``length`` remain."""
        for stage in self._stages:
            stage.crop(length)

    def close(self) -> None:
        """End the thread and give the memory back."""
        self._mover.shutdown(wait=True, cancel_futures=True)
        self._stages = []

    def at_hand(self, layer: int, stop: int) -> Stage | None:
        """The buffer that a pass attends through now, if it holds this layer's tokens [0, stop)."""
        stage = self._current
        return stage if stage.layer == layer and stage.job is None and stage.valid >= stop else None

    def acquire(self, layer: int, length: int, committed: int) -> Stage:
        """The buffer with a layer's tokens [0, length); begins to fetch the next spilled layer.

        Args:
            committed: tokens that are in the stores of all layers.
        """
        stage = self._holding(layer)
        if stage is None:
            stage = self._other()
            self._begin(stage, layer, length)
        self._wait(stage)
        if stage.valid < length:
            self._begin(stage, layer, length)
            self._wait(stage)
        self._current = stage
        following = self._order[(self._order.index(layer) + 1) % len(self._order)]
        if self._holding(following) is None:
            self._begin(self._other(), following, min(length, committed))
        return stage

    def wrote(self, layer: int, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """KV (1, kv_heads, n, head_dim) from ``start`` on went into a layer's store: the buffer that has it follows."""
        stage = self._holding(layer)
        if stage is not None:
            stage.take(start, k, v)

    def _holding(self, layer: int) -> Stage | None:
        return next((stage for stage in self._stages if stage.layer == layer), None)

    def _other(self) -> Stage:
        """The buffer that the pass does not attend through."""
        stage = next((stage for stage in self._stages if stage is not self._current), self._current)
        self._wait(stage)
        return stage

    def _begin(self, stage: Stage, layer: int, stop: int) -> None:
        """Let the thread bring the buffer up to ``stop`` tokens of a layer."""
        if stage.layer != layer:
            stage.layer, stage.valid = layer, 0
        if stage.valid >= stop:
            return
        start, stage.limit = stage.valid, stop
        self.moved_bytes += (stop - start) * self._shape.bytes_per_token // self._shape.layers
        # What the pass has enqueued so far may still read this buffer, or write the rows that are to be moved.
        before = torch.cuda.current_stream(self._shape.device).record_event() if self._cuda else None
        stage.job = self._mover.submit(self._fill, stage, self._stores[layer], start, stop, before)

    def _wait(self, stage: Stage) -> None:
        job = stage.job
        if job is None:
            return
        began = time.perf_counter()
        stage.job = None
        try:
            stage.valid = min(job.result(), stage.limit)
        except BaseException:
            stage.layer, stage.valid = None, 0
            raise
        if self._cuda:
            torch.cuda.current_stream(self._shape.device).wait_event(stage.filled)
        self.waited_s += time.perf_counter() - began

    # In the thread ---------------------------------------------------------------------------------------------

    def _fill(self, stage: Stage, store: SlowStore, start: int, stop: int, before: Any) -> int:
        on_stream = torch.cuda.stream(self._stream) if self._cuda else nullcontext()
        with torch.inference_mode(), on_stream:
            if before is not None:
                self._stream.wait_event(before)
            for first in range(start, stop, self._piece):
                last = min(stop, first + self._piece)
                buffer, moved = self._buffer() if isinstance(store, DiskStore) else (None, None)
                keys, values = from_rows(self._to_device(store.rows(first, last, buffer)))
                unrounded(self._shape, keys, stage.keys[:, first:last])
                unrounded(self._shape, values, stage.values[:, first:last])
                if moved is not None:
                    moved.record(self._stream)
            if self._cuda:
                stage.filled.record(self._stream)
        return stop

    def _to_device(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.to(self._shape.device, non_blocking=True) if self._cuda else rows

    def _buffer(self) -> tuple[torch.Tensor, Any]:
        """One of the thread's buffers for rows of a file, and the event that says when it may be used again."""
        buffers = getattr(self._local, "buffers", None)
        if buffers is None:
            shape = self._shape
            size = (self._piece, 2, shape.kv_heads, shape.kept_dim)
            count = 2 if self._cuda else 1
            buffers = self._local.buffers = [
                (torch.empty(size, dtype=shape.kept_dtype, pin_memory=self._cuda), self._event()) for _ in range(count)
            ]
        buffers.append(buffers.pop(0))
        buffer, moved = buffers[-1]
        if moved is not None:
            moved.synchronize()
        return buffer, moved

    def _event(self) -> Any:
        return torch.cuda.Event() if self._cuda else None
