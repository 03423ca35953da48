"""The shards of ``engine.kv.snapshots``: KV of a read book, and of the turns about it, to disk and back.

A writer copies its part of a full cache on a thread of its own: that part does not change while the book is open, or
while the chat goes on, so questions need not wait for it. It stops between two shards when it is cancelled. ``restore``
maps the shards and copies them straight into the cache's tiers, each checked before its first byte is used.

Layers with a sliding window hold their newest tokens alone, and those do change: a writer copies them when it is made,
into one more shard at the end of what it writes. So what is saved of such a model can be used only as a whole.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from engine.errors import ResourceError, SnapshotRefused, SnapshotUnreadable, TrifoldError
from engine.kv.full import FullCache, retry_with_spill
from engine.kv.manifest import Identity, SavedTurn, Shard, Snapshot, WindowShard, unreadable, write_synced
from engine.kv.snapshots import SnapshotStore, TurnStore
from engine.kv.windowed import Windows

# Approximate bytes of a shard: small enough to be copied and stopped quickly, large enough to be read fast.
_SHARD_BYTES = 64 << 20
# Shards are cut at multiples of this many tokens.
_SHARD_STEP = 64
# Shards whose checksum is computed ahead of the copying, each by a thread.
_AHEAD = 4
# Seconds between two checks whether a writer that waits for another has been cancelled.
_POLL_S = 0.05
# The nice value of a writer's thread, below the engine.
_NICE = 10

_log = logging.getLogger(__name__)


class Writer:
    """Writes KV of a cache on a thread of its own, beginning at once.

    Args:
        full: the cache; its first ``stop`` tokens must stay as they are until the writer has ended.
        after: a writer whose end is waited for first.
    """

    def __init__(self, full: FullCache, stop: int, after: Writer | None = None) -> None:
        self.error: TrifoldError | None = None
        self.stop = stop
        self._full, self._after = full, after
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trifold-snapshot", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Stop; what is written and whole stays. Returns when the cache is no longer looked at."""
        self._cancelled.set()
        self._thread.join()

    def finish(self, timeout: float | None = None) -> bool:
        """Wait for the end; whether it came within ``timeout`` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while self._after is not None and not self._after.finish(_POLL_S):
            if self._cancelled.is_set():
                return
        self._after = None
        try:
            self._write()
        except TrifoldError as error:
            self.error = error
        except OSError as error:
            self.error = ResourceError(f"The reading could not be kept ({error.strerror or type(error).__name__}).")
        except Exception:  # noqa: BLE001 - a thread has nobody to raise to
            _log.exception("saving a reading failed")
            self.error = ResourceError("The reading could not be kept; the log has the details.")

    def _write(self) -> None:
        raise NotImplementedError

    def _write_shards(self, folder: Path, start: int, stop: int) -> list[Shard]:
        """Shards for tokens [start, stop); fewer of them once this has been cancelled."""
        step = max(_SHARD_STEP, _SHARD_BYTES // self._full.shape.bytes_per_token // _SHARD_STEP * _SHARD_STEP)
        shards = []
        while start < stop and not self._cancelled.is_set():
            end = min(stop, start + step)
            shards.append(self._write_shard(folder, start, end))
            start = end
        return shards

    def _write_shard(self, folder: Path, start: int, stop: int) -> Shard:
        layers = [self._full.export(layer, start, stop) for layer in range(self._full.shape.layers)]
        return _write_layers(folder, Shard, start, stop, layers)


class SnapshotWriter(Writer):
    """Writes the first ``tokens`` tokens of a cache: a reading of a book. Cancelled, it keeps the shards that it has.

    Args:
        store: where to.
        identity: of the book and the model.
        full: the cache.
        ids: all tokens of the book.
        tokens: the number of them that have been read.
        known: an earlier, shorter snapshot of the same, whose whole shards are taken over.
    """

    def __init__(
        self,
        store: SnapshotStore,
        identity: Identity,
        full: FullCache,
        ids: Sequence[int],
        tokens: int,
        known: Snapshot | None = None,
    ) -> None:
        self._store, self._identity = store, identity
        self._ids, self._known = ids, known
        self._windows = full.windowed.at(tokens)
        super().__init__(full, tokens)

    def _write(self) -> None:
        shape = self._full.shape
        partial = self._store.begin(self._identity, self.stop * shape.bytes_per_token + _size(self._windows))
        try:
            shards = self._take_over(partial)
            shards += self._write_shards(partial, shards[-1].stop if shards else 0, self.stop)
            whole = bool(shards) and shards[-1].stop == self.stop
            if shape.sliding is not None and (self._windows is None or not whole):
                return
            if not self._cancelled.is_set() or self._are_more(shards):
                window = _write_windows(partial, self._windows)
                self._store.commit(partial, self._identity, self._ids, shards, window)
        finally:
            self._store.abandon(partial)

    def _are_more(self, shards: Sequence[Shard]) -> bool:
        """Whether shards hold more than what is kept already."""
        kept = None
        try:
            kept = self._store.find(self._identity, self._ids)
        except SnapshotUnreadable:
            return False
        except SnapshotRefused:
            pass
        return bool(shards) and (kept is None or shards[-1].stop > kept.tokens)

    def _take_over(self, partial: Path) -> list[Shard]:
        """Link what an earlier snapshot of the same book already holds; nothing where links cannot be made."""
        taken: list[Shard] = []
        known = self._known
        for shard in known.shards if known else ():
            if known is None or shard.stop > self.stop:
                break
            try:
                os.link(known.folder / shard.file, partial / shard.file)
            except OSError:
                break
            taken.append(shard)
        return taken


@dataclass(frozen=True)
class TurnSpan:
    """A turn of a chat in the cache: its words, and the tokens [start, stop) whose KV it added."""

    question: str
    answer: str
    start: int
    stop: int


class TurnWriter(Writer):
    """Writes those turns of a chat that are not on disk.

    Args:
        store: of the chat.
        full: the cache.
        ids: of the whole context; one more than the last turn's ``stop`` at least.
        turns: all turns of the context, the first behind the book.
        after: the writer of the reading, or of earlier turns.
    """

    def __init__(
        self, store: TurnStore, full: FullCache, ids: Sequence[int], turns: Sequence[TurnSpan], after: Writer | None
    ) -> None:
        self._store, self._ids, self._turns = store, ids, turns
        sliding = full.shape.sliding is not None
        self._windows = {
            turn: windows
            for turn in turns
            if sliding and not self._is_saved(turn) and (windows := full.windowed.copy(turn.start, turn.stop))
        }
        super().__init__(full, turns[-1].stop, after)

    def _write(self) -> None:
        for turn in self._turns:
            if self._cancelled.is_set():
                return
            if not self._is_saved(turn) and (turn in self._windows or self._full.shape.sliding is None):
                self._write_turn(turn)

    def _is_saved(self, turn: TurnSpan) -> bool:
        return self._store.holds(self._ids[: turn.start], turn.question, turn.answer)

    def _write_turn(self, turn: TurnSpan) -> None:
        windows = self._windows.get(turn)
        partial = self._store.begin((turn.stop - turn.start) * self._full.shape.bytes_per_token + _size(windows))
        try:
            shards = self._write_shards(partial, turn.start, turn.stop)
            if not self._cancelled.is_set():
                window = _write_windows(partial, windows)
                self._store.commit(partial, self._ids[: turn.stop + 1], turn.question, turn.answer, shards, window)
        finally:
            self._store.store.abandon(partial)


def restore(snapshot: Snapshot | SavedTurn, full: FullCache) -> Iterator[int]:
    """Append saved KV to a cache that holds the tokens before it; yields the usable tokens after every shard.

    Closing the generator leaves the cache at the last shard's border.

    Raises:
        SnapshotRefused: a shard is damaged, cut short or of another shape. After any error the cache is as it was.
        SnapshotUnreadable: a shard could not be opened, or the window is too small.
        ResourceError: memory ran out.
    """
    if full.length != snapshot.start:
        raise ValueError(f"a cache of {full.length} tokens cannot go on from token {snapshot.start}")
    if snapshot.tokens > full.limit:
        raise SnapshotUnreadable("The saved reading is longer than the window.")
    sliding, window = full.shape.sliding, snapshot.window
    if sliding and (not window or window.start > max(snapshot.start, snapshot.tokens - sliding.window + 1)):
        raise SnapshotRefused("The saved reading lacks what layers with a sliding window hold.")
    shards: deque[Shard] = deque(snapshot.shards)
    if sliding and window:
        shards.append(window)
    with ThreadPoolExecutor(_AHEAD, thread_name_prefix="trifold-check") as pool:
        checks: deque[Future[bool]] = deque()
        pending = iter(list(shards))
        try:
            retry_with_spill(full, lambda: full.reserve(snapshot.tokens))
            while shards:
                while len(checks) < _AHEAD and (ahead := next(pending, None)) is not None:
                    checks.append(pool.submit(_is_whole, snapshot.folder / ahead.file, ahead))
                shard = shards.popleft()
                if not checks.popleft().result():
                    raise SnapshotRefused(f"The saved reading is damaged: {shard.file} has another checksum.")
                path = snapshot.folder / shard.file
                if isinstance(shard, WindowShard):
                    _append_windows(path, shard, full)
                else:
                    _append(path, shard, full)
                if sliding is None:
                    full.advance(shard.stop - shard.start)
                elif not shards:
                    full.advance(snapshot.tokens - snapshot.start)
                yield full.length
        except Exception as error:
            full.crop(snapshot.start)
            if isinstance(error, OSError):
                raise unreadable(error) from error
            if isinstance(error, safetensors.SafetensorError):
                raise SnapshotRefused(f"The saved reading is no safetensors file: {shard.file}.") from error
            raise
        finally:
            for check in checks:
                check.cancel()


def _is_whole(path: Path, shard: Shard) -> bool:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size != shard.size:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return zlib.crc32(data) == shard.crc32


def _append(path: Path, shard: Shard, full: FullCache) -> None:
    shape = full.shape
    layers = _layers(path, shard, shape.layers, [shape.kv_heads, shape.storage_dim], shape.storage_dtype)
    with torch.inference_mode():
        for layer, (keys, values) in enumerate(layers):
            full.adopt(layer, shard.start, keys.unsqueeze(0), values.unsqueeze(0))


def _append_windows(path: Path, shard: Shard, full: FullCache) -> None:
    shape = full.shape
    layers = _layers(path, shard, shape.model_layers - shape.layers, [shape.kv_heads, shape.head_dim], shape.dtype)
    with torch.inference_mode():
        full.windowed.adopt(Windows(shard.start, shard.stop, tuple(layers)))


def _layers(
    path: Path, shard: Shard, count: int, size: Sequence[int], dtype: torch.dtype
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values (kv_heads, tokens, width) of the ``count`` layers in a shard; ``size`` is (kv_heads, width)."""
    expected = [size[0], shard.stop - shard.start, size[1]]
    try:
        opened = safetensors.safe_open(path, framework="pt")
    except RuntimeError as error:  # torch maps the file, and says so when the system refuses
        raise SnapshotUnreadable("The saved reading cannot be opened: the system does not map it.") from error
    with torch.inference_mode(), opened as file:
        names = {f"{part}.{layer}" for layer in range(count) for part in ("keys", "values")}
        if set(file.keys()) != names or any(file.get_slice(name).get_shape() != expected for name in names):
            raise SnapshotRefused(f"The saved reading is of a model of another shape: {shard.file}.")
        layers = [(file.get_tensor(f"keys.{layer}"), file.get_tensor(f"values.{layer}")) for layer in range(count)]
    if any(part.dtype != dtype for both in layers for part in both):
        raise SnapshotRefused(f"The saved reading is of another dtype: {shard.file}.")
    return layers


def _write_windows(folder: Path, windows: Windows | None) -> Shard | None:
    if windows is None:
        return None
    return _write_layers(folder, WindowShard, windows.start, windows.stop, windows.layers)


def _write_layers(
    folder: Path, kind: type[Shard], start: int, stop: int, layers: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> Shard:
    """Write a shard with the keys and values of some layers."""
    tensors = {}
    for layer, (keys, values) in enumerate(layers):
        tensors[f"keys.{layer}"], tensors[f"values.{layer}"] = keys, values
    data = safetensors.torch.save(tensors)
    shard = kind(start, stop, len(data), zlib.crc32(data))
    write_synced(folder / shard.file, data)
    return shard


def _size(windows: Windows | None) -> int:
    return sum(part.nbytes for both in windows.layers for part in both) if windows else 0
