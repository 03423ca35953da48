"""Writes and restores the shards of ``engine.kv.snapshots``: the KV of a book, and of the turns of chats about it.

A writer saves tokens of a full cache on its own thread. The KV of a book does not change while the book is open, and
the KV of a turn does not change while its chat goes on. So questions need not wait for the writer. A cancelled writer
stops between two shards. ``restore`` maps the shards into memory, checks the checksum of each, and copies it straight
into the cache's tiers.

Sliding windows and recurrent states change with every token. So a writer copies them when it is constructed, and writes
them as one more shard at the end. The saved KV of a model with such layers can only be used as a whole, because only
the state at its end is saved.
"""

from __future__ import annotations

import logging
import mmap
import os
import sys
import threading
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from engine.errors import ResourceError, SnapshotRefused, SnapshotUnreadable, TrifoldError
from engine.kv.bounded import BoundedCopy, Sizes
from engine.kv.full import FullCache, retry_with_spill
from engine.kv.manifest import Identity, SavedTurn, Shard, Snapshot, WindowShard, unreadable, write_synced
from engine.kv.snapshots import SnapshotStore, TurnStore

# Approximate bytes of a shard. A smaller shard is read more slowly. A larger shard takes longer to write, and a
# cancelled writer first completes its shard.
SHARD_BYTES = 64 << 20
# The number of tokens in a shard is a multiple of this number, except in the last shard.
SHARD_STEP = 64
# Number of shards whose checksums are computed in advance, each by its own thread, while earlier shards are copied.
_AHEAD = 4
# Seconds between two checks for cancellation, in a writer that waits for another writer.
_POLL_S = 0.05
# The nice value of a writer's thread, with which it runs at lower priority than the engine.
_NICE = 10

_log = logging.getLogger(__name__)


class Writer:
    """Writes KV of a cache on its own thread, which the constructor starts. If only one thread may use the device, the
    constructor waits until everything is written.

    Args:
        full: the cache; its first ``stop`` tokens must not change until the writer has ended.
        predecessor: a writer that must finish first.
    """

    def __init__(self, full: FullCache, stop: int, predecessor: Writer | None = None) -> None:
        self.error: TrifoldError | None = None
        self.stop = stop
        self._full, self._after = full, predecessor
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trifold-snapshot", daemon=True)
        self._thread.start()
        if not full.shape.device_kind.takes_threads:
            self._thread.join()

    def cancel(self) -> None:
        """Stop writing, and wait until the writer no longer reads the cache."""
        self._cancelled.set()
        self._thread.join()

    def finish(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds for the end of the writer. Return whether the writer has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        if sys.platform == "linux":  # elsewhere the number of a thread could be that of another program's process
            with suppress(OSError):
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
        """Write the KV of the tokens [start, stop) in shards, and return the shards. If the writer is cancelled, the
        last shards are left out.
        """
        step = max(SHARD_STEP, SHARD_BYTES // self._full.shape.bytes_per_token // SHARD_STEP * SHARD_STEP)
        shards = []
        while start < stop and not self._cancelled.is_set():
            end = min(stop, start + step)
            shards.append(self._write_shard(folder, start, end))
            start = end
        return shards

    def _write_shard(self, folder: Path, start: int, stop: int) -> Shard:
        layers = [self._full.export(layer, start, stop) for layer in range(self._full.shape.layers)]
        named = [{"keys": keys, "values": values} for keys, values in layers]
        return _write_layers(folder, Shard, start, stop, named)


class SnapshotWriter(Writer):
    """Writes the snapshot of a book: the first ``tokens`` tokens of a cache. If the writer is cancelled, it saves the
    shards written so far. It does not save them if the snapshot on disk holds at least as many tokens, or if the model
    has sliding windows or recurrent states.

    Args:
        store: the store to write to.
        identity: identity of the book and the model.
        full: the cache.
        ids: all tokens of the book.
        tokens: the number of tokens that have been read.
        known: a snapshot of the same book or of its beginning, whose complete shards are reused.
        borders: tokens at which one of several documents ends and the next begins.
        documents: if the book consists of several documents, the hashes of their files.
    """

    def __init__(
        self,
        store: SnapshotStore,
        identity: Identity,
        full: FullCache,
        ids: Sequence[int],
        tokens: int,
        known: Snapshot | None = None,
        borders: Sequence[int] = (),
        documents: Sequence[str] = (),
    ) -> None:
        self._documents = documents
        self._store, self._identity = store, identity
        self._ids, self._known, self._borders = ids, known, borders
        self._place = full.bounded.at(tokens)
        super().__init__(full, tokens)

    def _write(self) -> None:
        shape = self._full.shape
        needed = self.stop * shape.bytes_per_token + _size(self._place)
        partial = self._store.begin(self._identity, needed, self._documents)
        try:
            shards = self._take_over(partial)
            shards += self._write_shards(partial, shards[-1].stop if shards else 0, self.stop)
            whole = bool(shards) and shards[-1].stop == self.stop
            if shape.bounded and (self._place is None or not whole):
                return
            if not self._cancelled.is_set() or self._are_more(shards):
                window = _write_place(partial, self._place)
                self._store.commit(partial, self._identity, self._ids, shards, window, self._borders)
        finally:
            self._store.abandon(partial)

    def _are_more(self, shards: Sequence[Shard]) -> bool:
        """Whether the new shards hold more tokens than the snapshot that is on disk."""
        kept = None
        try:
            kept = self._store.find(self._identity, self._ids)
        except SnapshotUnreadable:
            return False
        except SnapshotRefused:
            pass
        return bool(shards) and (kept is None or shards[-1].stop > kept.tokens)

    def _take_over(self, partial: Path) -> list[Shard]:
        """Reuse the shards of the known snapshot by making hard links to them in the folder ``partial``. Return the
        reused shards; none if the file system has no hard links.
        """
        taken: list[Shard] = []
        known = self._known
        for shard in known.shards if known else ():
            if known is None or shard.stop > min(self.stop, known.tokens):
                break
            try:
                os.link(known.folder / shard.file, partial / shard.file)
            except OSError:
                break
            taken.append(shard)
        return taken


@dataclass(frozen=True)
class TurnSpan:
    """A turn of a chat in the cache: the text of its question and answer, and the tokens [start, stop) whose KV it
    added.
    """

    question: str
    answer: str
    start: int
    stop: int


class TurnWriter(Writer):
    """Writes the turns of a chat that are not on disk.

    Args:
        store: the chat's store.
        full: the cache.
        ids: token ids of the whole context, up to at least one token after the last turn's ``stop``.
        turns: all turns of the context. The first turn follows directly after the book.
        predecessor: the writer of the book or of earlier turns, which must finish first.
    """

    def __init__(
        self,
        store: TurnStore,
        full: FullCache,
        ids: Sequence[int],
        turns: Sequence[TurnSpan],
        predecessor: Writer | None,
    ) -> None:
        self._store, self._ids, self._turns = store, ids, turns
        bounded = bool(full.shape.bounded)
        self._places = {
            turn: place
            for turn in turns
            if bounded and not self._is_saved(turn) and (place := full.bounded.copy(turn.start, turn.stop))
        }
        super().__init__(full, turns[-1].stop, predecessor)

    def _write(self) -> None:
        for turn in self._turns:
            if self._cancelled.is_set():
                return
            if not self._is_saved(turn) and (turn in self._places or not self._full.shape.bounded):
                self._write_turn(turn)

    def _is_saved(self, turn: TurnSpan) -> bool:
        return self._store.holds(self._ids[: turn.start], turn.question, turn.answer)

    def _write_turn(self, turn: TurnSpan) -> None:
        place = self._places.get(turn)
        partial = self._store.begin((turn.stop - turn.start) * self._full.shape.bytes_per_token + _size(place))
        try:
            shards = self._write_shards(partial, turn.start, turn.stop)
            if not self._cancelled.is_set():
                window = _write_place(partial, place)
                self._store.commit(partial, self._ids[: turn.stop + 1], turn.question, turn.answer, shards, window)
        finally:
            self._store.store.abandon(partial)


def restore(snapshot: Snapshot | SavedTurn, full: FullCache) -> Iterator[int]:
    """Append saved KV to a cache, which must hold exactly the tokens that come before the saved tokens. After every
    shard, yield the number of usable tokens.

    If the last shard holds more tokens than ``snapshot.tokens``, only the tokens up to this number are used. If the
    generator is closed early, the cache ends with the last restored shard. If the model has sliding windows or
    recurrent states, tokens are usable only after the last shard.

    Raises:
        SnapshotRefused: a shard is damaged, cut short or has a wrong shape. After any error, the cache holds the same
            tokens as before.
        SnapshotUnreadable: a shard could not be opened, or the context window is too small.
        ResourceError: memory ran out.
    """
    _check_fits(snapshot, full)
    shape, window = full.shape, snapshot.window
    shards: deque[Shard] = deque(shard for shard in snapshot.shards if shard.start < snapshot.tokens)
    if shape.bounded and window:
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
                count = min(shard.stop, snapshot.tokens) - shard.start
                if isinstance(shard, WindowShard):
                    _append_place(path, shard, full)
                else:
                    _append(path, shard, full, count)
                if not shape.bounded:
                    full.advance(count)
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


def _check_fits(snapshot: Snapshot | SavedTurn, full: FullCache) -> None:
    """Check that a snapshot can follow the tokens of a cache. Raises the errors of ``restore``."""
    if full.length != snapshot.start:
        raise ValueError(f"a cache of {full.length} tokens cannot go on from token {snapshot.start}")
    if snapshot.tokens > full.limit:
        raise SnapshotUnreadable("The saved reading is longer than the window.")
    shape, window = full.shape, snapshot.window
    needed = max(snapshot.start, snapshot.tokens - shape.sliding.window + 1) if shape.sliding else 0
    if shape.bounded and (not window or window.start > needed):
        what = "a sliding window" if shape.sliding else "a state"
        raise SnapshotRefused(f"The saved reading lacks what layers with {what} hold.")


def _is_whole(path: Path, shard: Shard) -> bool:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size != shard.size:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return zlib.crc32(data) == shard.crc32


def _append(path: Path, shard: Shard, full: FullCache, count: int) -> None:
    """Append the KV of the first ``count`` tokens of a shard to the cache."""
    shape = full.shape
    size = (shape.kv_heads, shard.stop - shard.start, shape.storage_dim), shape.storage_dtype
    layers = _layers(path, shard, [{"keys": size, "values": size}] * shape.layers)
    with torch.inference_mode():
        for layer, held in enumerate(layers):
            keys, values = (held[name][:, :count].unsqueeze(0) for name in ("keys", "values"))
            full.adopt(layer, shard.start, keys, values)


def _append_place(path: Path, shard: Shard, full: FullCache) -> None:
    layers = _layers(path, shard, full.bounded.sizes(shard.start, shard.stop))
    with torch.inference_mode():
        full.bounded.adopt(BoundedCopy(shard.start, shard.stop, tuple(layers)))


def _layers(path: Path, shard: Shard, sizes: Sequence[Sizes]) -> list[Mapping[str, torch.Tensor]]:
    """Map a shard into memory, and check its tensors' shapes and dtypes. Return the tensors of each layer, keyed by
    name.
    """
    expected = {f"{name}.{layer}": size for layer, of in enumerate(sizes) for name, (size, _) in of.items()}
    try:
        opened = safetensors.safe_open(path, framework="pt")
    except RuntimeError as error:  # torch raises a RuntimeError if the system cannot map the file into memory
        raise SnapshotUnreadable("The saved reading cannot be opened: the system does not map it.") from error
    with torch.inference_mode(), opened as file:
        if set(file.keys()) != expected.keys() or any(
            tuple(file.get_slice(name).get_shape()) != size for name, size in expected.items()
        ):
            raise SnapshotRefused(f"The saved reading is of a model of another shape: {shard.file}.")
        layers: list[Mapping[str, torch.Tensor]] = [
            {name: file.get_tensor(f"{name}.{layer}") for name in of} for layer, of in enumerate(sizes)
        ]
    if any(held[name].dtype != of[name][1] for held, of in zip(layers, sizes, strict=True) for name in of):
        raise SnapshotRefused(f"The saved reading is of another dtype: {shard.file}.")
    return layers


def _write_place(folder: Path, place: BoundedCopy | None) -> Shard | None:
    return None if place is None else _write_layers(folder, WindowShard, place.start, place.stop, place.layers)


def _write_layers(
    folder: Path, kind: type[Shard], start: int, stop: int, layers: Sequence[Mapping[str, torch.Tensor]]
) -> Shard:
    """Write a shard with the tensors of ``layers``, and return its description."""
    tensors = {f"{name}.{layer}": part for layer, held in enumerate(layers) for name, part in held.items()}
    data = safetensors.torch.save(tensors)
    shard = kind(start, stop, len(data), zlib.crc32(data))
    write_synced(folder / shard.file, data)
    return shard


def _size(place: BoundedCopy | None) -> int:
    return sum(part.nbytes for held in place.layers for part in held.values()) if place else 0
