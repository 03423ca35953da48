"""Places each layer's KV in a tier, and moves spilled layers to the compute device.

Tiers, fastest first: ``DEVICE`` is the memory of the device that computes (a GPU's; without a GPU, host memory),
``HOST`` is host memory next to a GPU, ``DISK`` is a file. A whole layer lives in one tier (``Placement``). A resident
store holds keys and values in the order that kernels need, (kv_heads, seq, storage_dim). The slow tiers hold one row
per token, (seq, 2, kv_heads, storage_dim), with the key before the value. So new tokens are appended at the end, and
consecutive tokens are contiguous and move in one piece.

``Staging`` prefetches: while a pass attends to the layer in one of two buffers, a thread fills the other buffer with
the next spilled layer. After the last spilled layer, the thread fetches the first spilled layer for the next pass. If a
buffer still holds a layer, only the layer's new tokens are moved. So each spilled byte moves at most once per pass. If
layers are on several GPUs, each GPU has its own staging and bus.

On CUDA the thread works with two streams. The first stream copies rows over the bus from pinned memory into two small
device buffers. The second stream writes these rows into the layer's buffer, in the order that kernels need. So the next
copy can start without waiting for this conversion. CUDA events ensure that a buffer is overwritten only after it has
been read, and read only after it has been filled. On a device that only one thread may use, the pass waits for the
prefetch instead of computing meanwhile.

KV in 8 bits moves in its stored format, and is dequantized in the layer's buffer. Resident layers in 8 bits need no
thread. They are dequantized into a separate buffer (``Workspace``).
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import torch

from engine.devices import pin, pinned, stream_of
from engine.errors import ResourceError
from engine.events import KvBytes
from engine.model.kv_shape import KvShape

_log = logging.getLogger(__name__)

# Bytes of a layer's rows that are moved at once without CUDA. This is little enough to stay in the CPU's cache until it
# is written to the buffer.
_CPU_PIECE = 1 << 20
# Bytes of a layer's rows that are moved at once with CUDA. A bus is fast only if it moves many bytes at once.
CUDA_PIECE = 32 << 20
# Minimum number of pieces in which a layer is moved with CUDA. Each of the two device buffers for rows has room for one
# piece, so both buffers together take at most a quarter of a layer's memory.
_LAYER_PIECES = 8


class Tier(str, Enum):
    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


@dataclass(frozen=True)
class Placement:
    """The tier of every layer. For ``DEVICE``, the KV is on the device that has the layer's weights
    (``KvShape.split``).
    """

    tiers: tuple[Tier, ...]

    @staticmethod
    def resident(layers: int) -> Placement:
        """Make the fastest placement, with every layer on the compute device."""
        return Placement((Tier.DEVICE,) * layers)

    @staticmethod
    def spread(layers: int, device: int, host: int) -> Placement:
        """Make a placement with ``device`` layers on the compute device, ``host`` layers in host memory, and the
        remaining layers on disk. The layers of each tier are spread evenly over the model.
        """
        spilled = spread_evenly(layers, layers - device)
        on_disk = spread_evenly(len(spilled), len(spilled) - host)
        tiers = [Tier.DEVICE] * layers
        for order, layer in enumerate(spilled):
            tiers[layer] = Tier.DISK if order in on_disk else Tier.HOST
        return Placement(tuple(tiers))

    @property
    def spilled(self) -> tuple[int, ...]:
        """The layers whose KV is not on the compute device, in order."""
        return tuple(layer for layer, tier in enumerate(self.tiers) if tier is not Tier.DEVICE)

    def count(self, tier: Tier) -> int:
        return self.tiers.count(tier)

    def bytes(self, shape: KvShape, tokens: int) -> KvBytes:
        """Bytes of the KV of ``tokens`` tokens on each device, in host memory and on disk. A device that has no memory
        of its own counts as host memory.
        """
        layer = tokens * shape.bytes_per_token // shape.layers
        devices = [part.bounded_bytes(tokens) for part in shape.parts]
        for index, tier in enumerate(self.tiers):
            devices[shape.part_of(index)] += layer if tier is Tier.DEVICE else 0
        host, disk = (layer * self.count(tier) for tier in (Tier.HOST, Tier.DISK))
        return KvBytes.by_device(devices, host, disk, own_memory=shape.device_kind.own_memory)


def spread_evenly(places: int, count: int) -> list[int]:
    """Choose ``count`` of the indices 0 to ``places - 1``, spaced as evenly as possible."""
    return [(2 * index + 1) * places // (2 * count) for index in range(count)]


class ResidentStore:
    """KV in the memory of the compute device."""

    def __init__(self, shape: KvShape) -> None:
        self._shape = shape
        self.keys, self.values = self._empty(0), self._empty(0)

    def _empty(self, capacity: int) -> torch.Tensor:
        shape = self._shape
        return torch.empty(shape.kv_heads, capacity, shape.storage_dim, dtype=shape.storage_dtype, device=shape.device)

    @property
    def allocated(self) -> int:
        """Bytes of the store."""
        return self.keys.nbytes + self.values.nbytes

    def reserve(self, capacity: int, length: int) -> None:
        """Make room for ``capacity`` tokens; the first ``length`` tokens are kept."""
        self.keys, self.values = (self._grown(old, capacity, length) for old in (self.keys, self.values))

    def _grown(self, old: torch.Tensor, capacity: int, length: int) -> torch.Tensor:
        new = self._empty(capacity)
        new[:, :length] = old[:, :length]
        return new

    def write(self, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store KV (1, kv_heads, n, storage_dim) of the tokens from ``start`` on."""
        stop = start + k.shape[2]
        self.keys[:, start:stop] = k[0]
        self.values[:, start:stop] = v[0]


class HostStore:
    """KV in host memory. If there is a CUDA GPU and the system allows it, the memory is pinned, so that KV can be
    copied while the GPU computes.

    KV in memory that cannot be pinned is copied through small pinned buffers, as from a file. This is slower.
    """

    def __init__(self, shape: KvShape) -> None:
        self._shape = shape
        self._has_streams = shape.device_kind.streams
        self._sent: Any = None  # CUDA event that marks the end of the newest copy from a GPU
        self._pinned = False
        self._asked = False  # whether an attempt to pin these rows was made
        self._rows = self._empty(0)

    @property
    def moves_in_place(self) -> bool:
        """Whether rows can be copied to the device directly from the store's memory, without making the host wait."""
        return self._pinned or not self._has_streams

    @property
    def allocated(self) -> int:
        """Bytes of the store."""
        return self._rows.nbytes

    def _empty(self, capacity: int) -> torch.Tensor:
        shape = self._shape
        self._pinned = self._asked = False
        return torch.empty(capacity, 2, shape.kv_heads, shape.storage_dim, dtype=shape.storage_dtype)

    def _pin(self) -> None:
        """Pin the rows before the first tokens are stored. Each layer pins its own rows when the prefill of a book
        reaches the layer, because pinning all layers for a long book at once would take half a minute.
        """
        if not self._asked and self._has_streams and self._rows.shape[0]:
            self._asked, self._pinned = True, pin(self._rows, self._shape.device)

    def arrived(self) -> None:
        """Wait until all data that a GPU has sent is in this store. Call this before the processor reads the data.

        Only copies to this store are waited for. If another thread waited for the whole device instead, the recording
        of a CUDA graph would be aborted.
        """
        if self._sent is not None:
            self._sent.synchronize()

    def _settle(self) -> None:
        """Wait until no GPU reads or writes these rows. Call this before they are freed."""
        if self._has_streams:
            torch.cuda.current_stream(self._shape.device).synchronize()

    def reserve(self, capacity: int, length: int) -> None:
        """Make room for ``capacity`` tokens; the first ``length`` tokens are kept."""
        self._settle()
        new = self._empty(capacity)
        new[:length] = self._rows[:length]
        self._rows = new
        if length:
            self._pin()

    def write(self, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store KV (1, kv_heads, n, storage_dim) of the tokens from ``start`` on, without waiting for a GPU."""
        self._pin()
        rows = to_rows(k, v)
        self._rows[start : start + rows.shape[0]].copy_(rows, non_blocking=self._pinned)
        if self._pinned:
            self._sent = torch.cuda.current_stream(self._shape.device).record_event()

    def rows(self, start: int, stop: int, buffer: torch.Tensor | None = None) -> torch.Tensor:
        """Rows of the tokens [start, stop): a view of the store or, if ``buffer`` (rows, 2, kv_heads, storage_dim) is
        given, a copy in this buffer.
        """
        rows = self._rows[start:stop]
        return rows if buffer is None else buffer[: stop - start].copy_(rows)

    def gather(self, heads: torch.Tensor, chunks: torch.Tensor, size: int) -> torch.Tensor:
        """Return the rows (n, size, 2, storage_dim) of n chunks of ``size`` tokens. Entry i is chunk ``chunks[i]`` of
        KV head ``heads[i]``.
        """
        total = int(chunks.max()) + 1
        self.arrived()
        return self._rows[: total * size].unflatten(0, (total, size))[chunks, :, :, heads]

    def close(self) -> None:
        self._settle()
        self._rows = self._empty(0)


class DiskStore:
    """KV in its own file, which the system deletes when this process ends, even if the process crashes.

    The file is read into buffers and not mapped into memory, so that it takes no more memory than the buffers.

    Args:
        folder: where the file is made; None takes the system's temporary folder.
    """

    def __init__(self, shape: KvShape, folder: Path | None) -> None:
        self._shape = shape
        self._row_bytes = shape.bytes_per_token // shape.layers
        self._lock = threading.Lock()
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(buffering=0, dir=folder, prefix="spill-")  # noqa: SIM115
        except OSError as error:
            raise _full(error) from error
        # Close the file even if the store is dropped without a call of ``close``.
        weakref.finalize(self, self._file.close)

    moves_in_place = False

    def reserve(self, capacity: int, length: int) -> None:
        """Do nothing, because a file grows as it is written."""

    def arrived(self) -> None:
        """Do nothing, because ``write`` returns only after all data has been written to the file."""

    def write(self, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store KV (1, kv_heads, n, storage_dim) of the tokens from ``start`` on.

        Raises:
            ResourceError: the disk is full.
        """
        if k.shape[2] == 0:
            return
        data = _bytes_of(to_rows(k, v).cpu())
        try:
            with self._lock:
                self._file.seek(start * self._row_bytes)
                while len(data):
                    data = data[self._file.write(data) :]
        except OSError as error:
            raise _full(error) from error

    def rows(self, start: int, stop: int, buffer: torch.Tensor | None = None) -> torch.Tensor:
        """Rows of the tokens [start, stop), read from the file into ``buffer`` (rows, 2, kv_heads, storage_dim), or
        into a new tensor if it is None.
        """
        shape = self._shape
        if buffer is None:
            buffer = torch.empty(stop - start, 2, shape.kv_heads, shape.storage_dim, dtype=shape.storage_dtype)
        rows = buffer[: stop - start]
        into, offset = _bytes_of(rows), start * self._row_bytes
        while len(into):
            count = self._read(into, offset)
            if count <= 0:
                raise ResourceError(
                    "Another program cut short a file with the memory of the book (KV cache).", "Read the book again."
                )
            into, offset = into[count:], offset + count
        return rows

    def gather(self, heads: torch.Tensor, chunks: torch.Tensor, size: int) -> torch.Tensor:
        """Return the rows (n, size, 2, storage_dim) of n chunks of ``size`` tokens. Entry i is chunk ``chunks[i]`` of
        KV head ``heads[i]``.
        """
        shape = self._shape
        wanted, places = chunks.unique(return_inverse=True)
        rows = torch.empty(len(wanted), size, 2, shape.kv_heads, shape.storage_dim, dtype=shape.storage_dtype)
        for place, chunk in enumerate(wanted.tolist()):
            self.rows(chunk * size, (chunk + 1) * size, rows[place])
        return rows[places, :, :, heads]

    def _read(self, buffer: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [buffer], offset)
        with self._lock:  # without ``preadv`` (on Windows), all threads share one file position
            self._file.seek(offset)
            return self._file.readinto(buffer) or 0

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()


SlowStore = HostStore | DiskStore


def to_rows(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """KV (1, kv_heads, n, storage_dim) as rows (n, 2, kv_heads, storage_dim)."""
    return torch.stack([k[0].transpose(0, 1), v[0].transpose(0, 1)], dim=1).contiguous()


def from_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views (kv_heads, n, storage_dim) of keys and values in rows (n, 2, kv_heads, storage_dim)."""
    return rows[:, 0].transpose(0, 1), rows[:, 1].transpose(0, 1)


def _bytes_of(rows: torch.Tensor) -> memoryview:
    return rows.view(torch.uint8).numpy().data.cast("B")


def _full(error: OSError) -> ResourceError:
    return ResourceError(
        f"The memory of the book (KV cache) could not be written to disk ({error.strerror or type(error).__name__}).",
        "Free some space, choose another --spill-folder, or read fewer pages.",
    )


class LayerBuffer:
    """One layer in the model's dtype. The first ``valid`` tokens of ``keys`` and ``values`` (kv_heads, capacity,
    head_dim) are filled.

    ``job`` is the running fetch. ``limit`` is the maximum of ``valid`` after this fetch. If the cache is cropped during
    the fetch, ``limit`` is lowered, because the fetched tokens beyond the new length are invalid.
    """

    def __init__(self, shape: KvShape, capacity: int) -> None:
        self._shape = shape
        size = (shape.kv_heads, capacity, shape.head_dim)
        self.keys, self.values = (torch.empty(size, dtype=shape.dtype, device=shape.device) for _ in range(2))
        self.layer: int | None = None
        self.valid = 0
        self.job: Future[int] | None = None
        self.limit = 0
        self.filled: Any = torch.cuda.Event() if shape.device_kind.streams else None

    @property
    def allocated(self) -> int:
        """Bytes of the buffer."""
        return self.keys.nbytes + self.values.nbytes

    def crop(self, length: int) -> None:
        """Mark the tokens from ``length`` on as not filled."""
        self.valid, self.limit = min(self.valid, length), min(self.limit, length)

    def take(self, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Copy the KV of new tokens into this buffer, if the buffer is filled up to them. Otherwise mark the tokens
        from ``start`` on as not filled. ``k`` and ``v`` (1, kv_heads, n, storage_dim) belong to the tokens from
        position ``start`` on.
        """
        if self.job is None and self.valid >= start:
            self.valid = start + k.shape[2]
            self.fill(start, self.valid, k[0], v[0])
        else:
            self.crop(start)

    def fill(self, start: int, stop: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write KV (kv_heads, stop - start, storage_dim) of the tokens [start, stop) into the buffer."""
        self._shape.dequantize(k, self.keys[:, start:stop])
        self._shape.dequantize(v, self.values[:, start:stop])

    def free(self) -> None:
        """Free the memory."""
        self.keys = self.values = torch.empty(0, device=self._shape.device)


class StagedLayer(LayerBuffer):
    """A buffer for spilled layers.

    If the cache is quantized and the compute device is a CPU, the buffer also holds the keys and values in the 8-bit
    storage format: ``quants``, each (kv_heads, capacity, storage_dim). The CPU kernels read the same format in resident
    layers, so a spilled layer gives the same bits as a resident layer.
    """

    def __init__(self, shape: KvShape, capacity: int) -> None:
        super().__init__(shape, capacity)
        self.quants: tuple[torch.Tensor, torch.Tensor] | None = None
        if shape.quantized and shape.device.type == "cpu":
            size = (shape.kv_heads, capacity, shape.storage_dim)
            self.quants = torch.empty(size, dtype=shape.storage_dtype), torch.empty(size, dtype=shape.storage_dtype)

    @property
    def allocated(self) -> int:
        return super().allocated + sum(tensor.nbytes for tensor in self.quants or ())

    def fill(self, start: int, stop: int, k: torch.Tensor, v: torch.Tensor) -> None:
        super().fill(start, stop, k, v)
        if self.quants is not None:
            self.quants[0][:, start:stop], self.quants[1][:, start:stop] = k, v

    def free(self) -> None:
        super().free()
        self.quants = None


class Workspace:
    """The buffer in which an 8-bit layer on the compute device is dequantized to the model's dtype, while a pass
    attends to the layer.

    If the buffer still holds this layer since an earlier pass, only the tokens that have been added to the layer are
    dequantized.
    """

    def __init__(self, shape: KvShape) -> None:
        self._shape = shape
        self._buffer = LayerBuffer(shape, 0)

    @property
    def allocated(self) -> int:
        """Bytes of the workspace."""
        return self._buffer.allocated

    def reserve(self, capacity: int) -> None:
        """Allocate memory for ``capacity`` tokens. The content of the buffer is lost."""
        self._buffer = LayerBuffer(self._shape, 0)  # free the old memory before new memory is allocated
        self._buffer = LayerBuffer(self._shape, capacity)

    def crop(self, length: int) -> None:
        """Drop the newest tokens so that ``length`` remain."""
        self._buffer.crop(length)

    def at_hand(self, layer: int, stop: int) -> LayerBuffer | None:
        """The buffer, if it holds this layer's tokens [0, stop); else None."""
        return self._buffer if self._buffer.layer == layer and self._buffer.valid >= stop else None

    def acquire(self, layer: int, store: ResidentStore, length: int) -> None:
        """Dequantize a layer's tokens [0, length) into the buffer."""
        buffer = self._buffer
        if buffer.layer != layer:
            buffer.layer, buffer.valid = layer, 0
        start = buffer.valid
        if start >= length:
            return
        buffer.fill(start, length, store.keys[:, start:length], store.values[:, start:length])
        buffer.valid = length

    def has(self, layer: int) -> bool:
        """Whether the buffer holds this layer."""
        return self._buffer.layer == layer

    def wrote(self, layer: int, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Copy KV that has just been stored in the cache into the buffer, if the buffer holds this layer. ``k`` and
        ``v`` (1, kv_heads, n, storage_dim) belong to the tokens from position ``start`` on.
        """
        if self.has(layer):
            self._buffer.take(start, k, v)


class Staging:
    """Two buffers for spilled layers. While a pass attends to the layer in one buffer, the next layer is fetched into
    the other buffer.

    Args:
        shape: shape of the layers on one device; each device has its own staging and bus.
        stores: stores of the spilled layers, keyed by layer.
    """

    def __init__(self, shape: KvShape, stores: Mapping[int, SlowStore]) -> None:
        self._shape = shape
        self._stores = stores
        self._order = sorted(stores)
        self._cuda = shape.device_kind.streams
        self._stream: Any = stream_of(shape.device, "copies") if self._cuda else None
        self._turns: Any = stream_of(shape.device, "transposes") if self._cuda else None
        # Two device buffers for rows, used alternately, each with a CUDA event that marks when its rows have been read.
        self._arrived: list[tuple[torch.Tensor, Any]] = []
        piece = (CUDA_PIECE if self._cuda else _CPU_PIECE) * shape.layers // shape.bytes_per_token
        self._piece = max(16, piece)
        self._local = threading.local()
        self._buffers = [StagedLayer(shape, 0) for _ in range(min(2, len(self._order)))]
        self._current = self._buffers[0]
        self._mover = ThreadPoolExecutor(1, thread_name_prefix="trifold-mover")
        self.moved_bytes = 0
        self.waited_s = 0.0

    @property
    def allocated(self) -> int:
        """Bytes of the buffers on the device. The buffers in host memory are not counted."""
        arrived = sum(rows.nbytes for rows, _ in self._arrived)
        return arrived + sum(buffer.allocated for buffer in self._buffers)

    def settle(self) -> None:
        """Wait until the thread has enqueued all copies, and make the current stream wait for these copies. Afterwards
        stores and buffers may be freed.
        """
        for buffer in self._buffers:
            self._wait(buffer)

    def reserve(self, capacity: int) -> None:
        """Allocate memory for ``capacity`` tokens. The content of the buffers is lost."""
        self.settle()
        for buffer in self._buffers:
            buffer.free()
        self._buffers = [StagedLayer(self._shape, capacity) for _ in self._buffers]
        self._current = self._buffers[0]
        rows = min(self._piece, -(-capacity // _LAYER_PIECES))
        if self._cuda and (not self._arrived or len(self._arrived[0][0]) < rows):
            shape, self._arrived = self._shape, []  # free the old memory before new memory is allocated
            size = (rows, 2, shape.kv_heads, shape.storage_dim)
            for _ in range(2):
                held = torch.empty(size, dtype=shape.storage_dtype, device=shape.device)
                self._arrived.append((held, torch.cuda.Event()))

    def crop(self, length: int) -> None:
        """Drop the newest tokens so that ``length`` remain."""
        for buffer in self._buffers:
            buffer.crop(length)

    def close(self) -> None:
        """End the thread and free the memory."""
        self._mover.shutdown(wait=True, cancel_futures=True)
        if self._turns is not None:
            # Wait for running copies, which could otherwise write to memory that has been freed and is used again. The
            # stream ``_turns`` waits for every copy, so synchronising this stream is enough.
            self._turns.synchronize()
        self._buffers, self._arrived = [], []

    def at_hand(self, layer: int, stop: int) -> StagedLayer | None:
        """The buffer that the current pass attends to, if it holds this layer's tokens [0, stop); else None."""
        buffer = self._current
        return buffer if buffer.layer == layer and buffer.job is None and buffer.valid >= stop else None

    def acquire(self, layer: int, length: int, committed: int) -> StagedLayer:
        """Return the buffer with a layer's tokens [0, length), and begin to fetch the next spilled layer.

        Args:
            committed: number of tokens that the stores of all layers hold.
        """
        buffer = self._holding(layer)
        if buffer is None:
            buffer = self._other()
            self._begin(buffer, layer, length)
        self._wait(buffer)
        if buffer.valid < length:
            self._begin(buffer, layer, length)
            self._wait(buffer)
        self._current = buffer
        following = self._order[(self._order.index(layer) + 1) % len(self._order)]
        if self._holding(following) is None:
            self._begin(self._other(), following, min(length, committed))
        return buffer

    def has(self, layer: int) -> bool:
        """Whether a buffer holds this layer."""
        return self._holding(layer) is not None

    def wrote(self, layer: int, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Copy KV that has just been stored in the cache into the buffer that holds this layer. Do nothing if no buffer
        holds this layer.

        Args:
            start: index in the context of the first token of the KV.
            k, v: (1, kv_heads, n, storage_dim).
        """
        buffer = self._holding(layer)
        if buffer is not None:
            buffer.take(start, k, v)

    def _holding(self, layer: int) -> StagedLayer | None:
        return next((buffer for buffer in self._buffers if buffer.layer == layer), None)

    def _other(self) -> StagedLayer:
        """Return the buffer that the pass does not attend to, after waiting for its fetch. If there is only one buffer,
        return that buffer.
        """
        buffer = next((buffer for buffer in self._buffers if buffer is not self._current), self._current)
        self._wait(buffer)
        return buffer

    def _begin(self, buffer: StagedLayer, layer: int, stop: int) -> None:
        """Make the thread fill the buffer with a layer's tokens before ``stop``."""
        if buffer.layer != layer:
            buffer.layer, buffer.valid = layer, 0
        if buffer.valid >= stop:
            return
        start, buffer.limit = buffer.valid, stop
        self.moved_bytes += (stop - start) * self._shape.bytes_per_token // self._shape.layers
        # The thread waits for this event, because the pass may have enqueued work that still reads this buffer, or that
        # writes the rows to be moved.
        before = torch.cuda.current_stream(self._shape.device).record_event() if self._cuda else None
        buffer.job = self._mover.submit(self._fill, buffer, self._stores[layer], start, stop, before)
        if not self._shape.device_kind.takes_threads:
            wait((buffer.job,))

    def _wait(self, buffer: StagedLayer) -> None:
        job = buffer.job
        if job is None:
            return
        began = time.perf_counter()
        buffer.job = None
        try:
            buffer.valid = min(job.result(), buffer.limit)
        except BaseException:
            buffer.layer, buffer.valid = None, 0
            raise
        if self._cuda:
            torch.cuda.current_stream(self._shape.device).wait_event(buffer.filled)
        self.waited_s += time.perf_counter() - began

    # The thread ------------------------------------------------------------------------------------------------

    def _fill(self, buffer: StagedLayer, store: SlowStore, start: int, stop: int, event: Any) -> int:
        with torch.inference_mode():
            if event is not None:
                self._stream.wait_event(event)
            piece = len(self._arrived[0][0]) if self._cuda else self._piece
            for first in range(start, stop, piece):
                last = min(stop, first + piece)
                if self._cuda:
                    self._stream_in(buffer, store, first, last)
                else:
                    rows = None if store.moves_in_place else self._row_buffer()[0]
                    buffer.fill(first, last, *from_rows(store.rows(first, last, rows).to(self._shape.device)))
            if self._cuda:
                buffer.filled.record(self._turns)
        return stop

    def _stream_in(self, buffer: StagedLayer, store: SlowStore, first: int, last: int) -> None:
        """Enqueue the copy of rows [first, last) to the device on one stream, and their reordering into the buffer on
        another stream.
        """
        self._arrived.append(self._arrived.pop(0))
        held, taken = self._arrived[-1]
        rows = held[: last - first]
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(taken)
            source, moved = (None, None) if store.moves_in_place else self._row_buffer()
            rows.copy_(store.rows(first, last, source), non_blocking=True)
            there = moved or torch.cuda.Event()
            there.record(self._stream)
        with torch.cuda.stream(self._turns):
            self._turns.wait_event(there)
            buffer.fill(first, last, *from_rows(rows))
            taken.record(self._turns)

    def _row_buffer(self) -> tuple[torch.Tensor, Any]:
        """One of the thread's host buffers, for rows that cannot be sent directly from their store. The event that is
        returned with it marks when the buffer may be used again.
        """
        buffers = getattr(self._local, "row_buffers", None)
        if buffers is None:
            shape = self._shape
            size = (self._piece, 2, shape.kv_heads, shape.storage_dim)
            count = 2 if self._cuda else 1
            buffers = self._local.row_buffers = [(self._pinned_rows(size), self._event()) for _ in range(count)]
        buffers.append(buffers.pop(0))
        buffer, moved = buffers[-1]
        if moved is not None:
            moved.synchronize()
        return buffer, moved

    def _pinned_rows(self, size: Sequence[int]) -> torch.Tensor:
        """Allocate host memory for rows. The memory is pinned if there is a CUDA GPU and the system allows this much
        pinned memory.
        """
        make = partial(torch.empty, size, dtype=self._shape.storage_dtype)
        return pinned(make, self._shape.device) if self._cuda else make()

    def _event(self) -> Any:
        return torch.cuda.Event() if self._cuda else None
