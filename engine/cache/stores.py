"""Where one layer's KV lies: in the memory that computes, in host memory, or in a file.

A resident store keeps keys and values in the kernels' order, (kv_heads, seq, kept_dim). The slow tiers keep one row
per token, (seq, 2, kv_heads, kept_dim) with the key before the value: new tokens are appended and any span of tokens is
moved in one piece. What is kept of a key or value is ``shape.kept_dim`` numbers of ``shape.kept_dtype``: in 8 bits
(``rounding``) something else than head_dim in the model's dtype. Knows no pass and no policy.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from engine.cache.shape import KvShape
from engine.errors import ResourceError


class ResidentStore:
    """KV in the memory that the model computes in."""

    def __init__(self, shape: KvShape) -> None:
        self._shape = shape
        self.keys, self.values = self._empty(0), self._empty(0)

    def _empty(self, capacity: int) -> torch.Tensor:
        shape = self._shape
        return torch.empty(shape.kv_heads, capacity, shape.kept_dim, dtype=shape.kept_dtype, device=shape.device)

    def reserve(self, capacity: int, length: int) -> None:
        """Make room for ``capacity`` tokens; the first ``length`` stay."""
        self.keys, self.values = (self._grown(old, capacity, length) for old in (self.keys, self.values))

    def _grown(self, old: torch.Tensor, capacity: int, length: int) -> torch.Tensor:
        new = self._empty(capacity)
        new[:, :length] = old[:, :length]
        return new

    def write(self, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store KV (1, kv_heads, n, kept_dim) of the tokens from ``start`` on."""
        stop = start + k.shape[2]
        self.keys[:, start:stop] = k[0]
        self.values[:, start:stop] = v[0]


class HostStore:
    """KV in host memory; pinned beside a GPU, so that it can move while the GPU computes."""

    def __init__(self, shape: KvShape) -> None:
        self._shape = shape
        self._rows = self._empty(0)

    def _empty(self, capacity: int) -> torch.Tensor:
        shape = self._shape
        rows = torch.empty(capacity, 2, shape.kv_heads, shape.kept_dim, dtype=shape.kept_dtype)
        if capacity and shape.device.type == "cuda":
            _pin(rows)
        return rows

    def arrived(self) -> None:
        """Wait until what a GPU has sent is there, before the processor reads it."""
        if self._shape.device.type == "cuda":
            torch.cuda.synchronize(self._shape.device)

    def reserve(self, capacity: int, length: int) -> None:
        """Make room for ``capacity`` tokens; the first ``length`` stay."""
        new = self._empty(capacity)
        self.arrived()
        new[:length] = self._rows[:length]
        self._rows = new

    def write(self, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store KV (1, kv_heads, n, kept_dim) of the tokens from ``start`` on, without waiting for a GPU."""
        rows = to_rows(k, v)
        self._rows[start : start + rows.shape[0]].copy_(rows, non_blocking=True)

    def rows(self, start: int, stop: int, buffer: torch.Tensor | None = None) -> torch.Tensor:
        """Rows of tokens [start, stop): a view."""
        return self._rows[start:stop]

    def gather(self, heads: torch.Tensor, chunks: torch.Tensor, size: int) -> torch.Tensor:
        """Rows (n, size, 2, kept_dim) of n chunks of ``size`` tokens, each of one head; both index tensors (n,)."""
        total = int(chunks.max()) + 1
        self.arrived()
        return self._rows[: total * size].unflatten(0, (total, size))[chunks, :, :, heads]

    def close(self) -> None:
        self.arrived()
        self._rows = self._empty(0)


class DiskStore:
    """KV in a file of its own, which the system deletes when this process ends, however it ends.

    Read by position rather than mapped: what is moved is then bounded by the buffers, and not by what the system keeps
    in memory of a file.

    Args:
        folder: where the file is made; None is the system's own place.
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

    def reserve(self, capacity: int, length: int) -> None:
        """A file grows by itself."""

    def arrived(self) -> None:
        """What is written is there at once."""

    def write(self, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store KV (1, kv_heads, n, kept_dim) of the tokens from ``start`` on.

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
        """Rows of tokens [start, stop), read into ``buffer`` (rows, 2, kv_heads, kept_dim) if one is given."""
        shape = self._shape
        if buffer is None:
            buffer = torch.empty(stop - start, 2, shape.kv_heads, shape.kept_dim, dtype=shape.kept_dtype)
        rows = buffer[: stop - start]
        into, offset = _bytes_of(rows), start * self._row_bytes
        while len(into):
            count = self._read(into, offset)
            if count <= 0:
                raise ResourceError("A file with spilled KV was cut short by another program.", "Read the book again.")
            into, offset = into[count:], offset + count
        return rows

    def gather(self, heads: torch.Tensor, chunks: torch.Tensor, size: int) -> torch.Tensor:
        """Rows (n, size, 2, kept_dim) of n chunks of ``size`` tokens, each of one head; both index tensors (n,)."""
        shape = self._shape
        wanted, places = chunks.unique(return_inverse=True)
        rows = torch.empty(len(wanted), size, 2, shape.kv_heads, shape.kept_dim, dtype=shape.kept_dtype)
        for place, chunk in enumerate(wanted.tolist()):
            self.rows(chunk * size, (chunk + 1) * size, rows[place])
        return rows[places, :, :, heads]

    def _read(self, into: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [into], offset)
        with self._lock:  # Windows reads by position only through the file's one cursor
            self._file.seek(offset)
            return self._file.readinto(into) or 0

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()


SlowStore = HostStore | DiskStore


def _pin(rows: torch.Tensor) -> None:
    """Pin memory in place: the allocator for pinned memory would take the next power of two.

    Raises:
        MemoryError: the system does not allow so much of it.
    """
    runtime: Any = torch.cuda.cudart()
    address, size = rows.data_ptr(), rows.numel() * rows.element_size()
    if int(runtime.cudaHostRegister(address, size, 0)) != 0:
        raise MemoryError(f"{size / 1e9:.1f} GB of host memory could not be pinned")
    weakref.finalize(rows, runtime.cudaHostUnregister, address)


def to_rows(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """KV (1, kv_heads, n, kept_dim) as rows (n, 2, kv_heads, kept_dim)."""
    return torch.stack([k[0], v[0]]).permute(2, 0, 1, 3).contiguous()


def from_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views (kv_heads, n, kept_dim) of keys and values in rows (n, 2, kv_heads, kept_dim)."""
    return rows[:, 0].transpose(0, 1), rows[:, 1].transpose(0, 1)


def _bytes_of(rows: torch.Tensor) -> memoryview:
    return rows.view(torch.uint8).numpy().data.cast("B")


def _full(error: OSError) -> ResourceError:
    return ResourceError(
        f"KV could not be spilled to disk ({error.strerror or type(error).__name__}).",
        "Free some space, choose another --spill-folder, or read fewer pages.",
    )
