"""Where read books are kept on disk, so that opening one again costs what reading its bytes costs.

A snapshot is a folder: ``snapshot.json`` (the header) and safetensors shards, each with the KV of all layers for one
run of tokens. It is written under a temporary name, synced and renamed, so it is there whole or not at all. This module
owns the folder: names, headers and their checks, the cap on disk (least recently used goes first) and forgetting. It
knows no tensors; ``engine.cache.snapshot`` writes and reads the shards.

Everything that the KV depends on is in the header, and a snapshot that differs in any of it is refused with the reason.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import shutil
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import psutil

from engine.errors import ResourceError, SnapshotRefused

FORMAT = 1
HEADER = "snapshot.json"
# A header that is larger is none of ours: it is refused before it is parsed.
_MOST_HEADER_BYTES = 4 << 20
_MOST_SHARDS = 1 << 16
# Disk that is always left free for everything else.
_SPARE_BYTES = 2_000_000_000
_PARTIAL, _STALE = ".partial-", ".stale-"
_BOOK_DIGITS, _IDENTITY_DIGITS = 32, 16


@dataclass(frozen=True)
class Identity:
    """All that a book's KV depends on.

    ``book`` is the SHA-256 of the book's file, ``ids`` that of all its tokens as the target's prompt holds them;
    ``model`` and ``tokenizer`` are fingerprints; ``rope`` are the RoPE parameters in one line.
    """

    book: str
    ids: str
    model: str
    tokenizer: str
    rope: str
    dtype: str
    layers: int
    kv_heads: int
    head_dim: int

    @property
    def folder(self) -> str:
        """Name of the folder: the same book with another model or other pages gets another."""
        text = json.dumps(asdict(self), sort_keys=True)
        return f"{self.book[:_BOOK_DIGITS]}-{_sha256(text.encode())[:_IDENTITY_DIGITS]}"


@dataclass(frozen=True)
class Shard:
    """KV of tokens [start, stop), in a file of ``size`` bytes with this CRC-32."""

    start: int
    stop: int
    size: int
    crc32: int

    @property
    def file(self) -> str:
        """Named by what it holds, never by what a header says."""
        return f"tokens-{self.start:08d}-{self.stop:08d}.safetensors"


@dataclass(frozen=True)
class Snapshot:
    """A header that has passed its checks. ``tokens`` of the book are kept; ``prefix`` is the hash of their ids."""

    folder: Path
    identity: Identity
    tokens: int
    prefix: str
    shards: tuple[Shard, ...]


class SnapshotStore:
    """Args:
    folder: where snapshots are kept; made on first use.
    cap: bytes that all of them may take together.
    """

    def __init__(self, folder: Path, cap: int) -> None:
        self.folder = folder
        self.cap = cap

    def find(self, identity: Identity, ids: Sequence[int]) -> Snapshot | None:
        """The snapshot of a book, or None if there is none.

        Raises:
            SnapshotRefused: there is one, and it is damaged or of something else; the reason is in the message.
        """
        folder = self.folder / identity.folder
        if not folder.is_dir():
            return None
        snapshot = read_header(folder)
        _check_identity(snapshot.identity, identity)
        if snapshot.tokens > len(ids) or snapshot.prefix != ids_hash(ids[: snapshot.tokens]):
            raise SnapshotRefused("The saved reading is of another text.")
        with suppress(OSError):  # marks it as used; a folder that cannot be written to can still be read
            os.utime(folder / HEADER)
        return snapshot

    def begin(self, identity: Identity, needed: int) -> Path:
        """A temporary folder for a new snapshot of about ``needed`` bytes; makes room for it first.

        Raises:
            ResourceError: it is larger than the cap, or the disk is too full.
        """
        self._sweep()
        self._make_room(identity, needed)
        partial = self.folder / f"{_PARTIAL}{identity.folder}-{os.getpid()}-{secrets.token_hex(4)}"
        partial.mkdir(parents=True)
        return partial

    def commit(self, partial: Path, identity: Identity, ids: Sequence[int], shards: Sequence[Shard]) -> Snapshot:
        """Write the header, sync and give the folder its name; an older snapshot of the same makes way."""
        tokens = shards[-1].stop if shards else 0
        snapshot = Snapshot(self.folder / identity.folder, identity, tokens, ids_hash(ids[:tokens]), tuple(shards))
        header = {
            "format": FORMAT,
            "identity": asdict(identity),
            "tokens": tokens,
            "prefix": snapshot.prefix,
            "shards": [asdict(shard) for shard in shards],
        }
        write_synced(partial / HEADER, json.dumps(header).encode())
        sync_folder(partial)
        self._discard(snapshot.folder)
        os.rename(partial, snapshot.folder)
        sync_folder(self.folder)
        return snapshot

    def abandon(self, partial: Path) -> None:
        """Delete a snapshot that was begun."""
        shutil.rmtree(partial, ignore_errors=True)

    def discard(self, identity: Identity) -> None:
        """Delete the snapshot of exactly this."""
        self._discard(self.folder / identity.folder)

    def forget(self, book: str) -> None:
        """Delete everything kept of a book, by the SHA-256 of its file; what is being written of it too."""
        name = book[:_BOOK_DIGITS]
        for entry in self._entries():
            if entry.name.removeprefix(_PARTIAL).startswith(name):
                self._discard(entry)

    def size_of(self, book: str) -> int:
        """Bytes kept of a book, by the SHA-256 of its file."""
        return sum(_size(entry) for entry in self._whole() if entry.name.startswith(book[:_BOOK_DIGITS]))

    def used(self) -> int:
        """Bytes that whole snapshots take."""
        return sum(_size(entry) for entry in self._whole())

    def _make_room(self, identity: Identity, needed: int) -> None:
        if needed > self.cap:
            raise ResourceError(
                f"Keeping this reading takes {needed / 1e9:.1f} GB, and {self.cap / 1e9:.1f} GB are allowed.",
                "Raise --snapshot-cap to keep it.",
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        others = [entry for entry in self._whole() if entry.name != identity.folder]
        others.sort(key=_last_used)
        taken = sum(_size(entry) for entry in others)
        while others and (taken + needed > self.cap or self._free() - needed < _SPARE_BYTES):
            oldest = others.pop(0)
            taken -= _size(oldest)
            self._discard(oldest)
        if self._free() - needed < _SPARE_BYTES:
            raise ResourceError(
                f"Keeping this reading takes {needed / 1e9:.1f} GB, and the disk has {self._free() / 1e9:.1f} GB free.",
                "Free some space to keep it.",
            )

    def _free(self) -> int:
        return shutil.disk_usage(self.folder).free

    def _entries(self) -> list[Path]:
        return [entry for entry in self.folder.iterdir() if entry.is_dir()] if self.folder.is_dir() else []

    def _whole(self) -> list[Path]:
        return [entry for entry in self._entries() if not entry.name.startswith(".")]

    def _sweep(self) -> None:
        """Delete what writers that are gone have left behind."""
        for entry in self._entries():
            left = entry.name.startswith(_PARTIAL) and not psutil.pid_exists(_writer(entry))
            if left or entry.name.startswith(_STALE):
                shutil.rmtree(entry, ignore_errors=True)

    def _discard(self, folder: Path) -> None:
        """Take a folder out of sight in one step, then delete it: no half of it is ever found."""
        stale = self.folder / f"{_STALE}{secrets.token_hex(8)}"
        with suppress(FileNotFoundError):
            os.rename(folder, stale)
        shutil.rmtree(stale, ignore_errors=True)


def default_cap(folder: Path) -> int:
    """Bytes that snapshots may take when nobody says otherwise: a quarter of what is free, within 1 to 100 GB."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    return int(min(100e9, max(1e9, shutil.disk_usage(existing).free / 4)))


def read_header(folder: Path) -> Snapshot:
    """Read and check a header.

    Raises:
        SnapshotRefused: it is missing, unreadable, or contradicts itself or the files beside it.
    """
    try:
        path = folder / HEADER
        if path.stat().st_size > _MOST_HEADER_BYTES:
            raise SnapshotRefused("The saved reading has a header of an impossible size.")
        return _checked(folder, json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise SnapshotRefused(f"The saved reading has no usable header ({type(error).__name__}).") from error


def _checked(folder: Path, header: dict[str, Any]) -> Snapshot:
    if header["format"] != FORMAT:
        raise SnapshotRefused(f"The saved reading has format {header['format']!r}, and {FORMAT} is known.")
    named = header["identity"]
    identity = Identity(**{field.name: _typed(named[field.name], str(field.type)) for field in fields(Identity)})
    shards = [
        Shard(*(_typed(shard[name], "int") for name in ("start", "stop", "size", "crc32")))
        for shard in header["shards"][:_MOST_SHARDS]
    ]
    stop = 0
    for shard in shards:
        if shard.start != stop or shard.stop <= stop:
            raise SnapshotRefused("The saved reading has gaps.")
        stop = shard.stop
        file = folder / shard.file
        if not file.is_file() or file.stat().st_size != shard.size:
            raise SnapshotRefused(f"The saved reading is cut short: {shard.file} is missing or has another size.")
    if stop != header["tokens"] or stop == 0:
        raise SnapshotRefused("The saved reading has gaps.")
    return Snapshot(folder, identity, stop, _typed(header["prefix"], "str"), tuple(shards))


def _typed(value: Any, kind: str) -> Any:
    right = type(value) is int and value >= 0 if kind == "int" else type(value) is str
    if not right:
        raise ValueError("a value of the wrong kind")
    return value


def _check_identity(found: Identity, wanted: Identity) -> None:
    what = {
        "book": "another book",
        "ids": "another text",
        "model": "another model",
        "tokenizer": "another tokenizer",
        "rope": "other RoPE parameters",
        "dtype": f"{found.dtype} instead of {wanted.dtype}",
    }
    for field in fields(Identity):
        if getattr(found, field.name) != getattr(wanted, field.name):
            raise SnapshotRefused(f"The saved reading is of {what.get(field.name, 'a model of another shape')}.")


def ids_hash(ids: Sequence[int]) -> str:
    """SHA-256 of token ids."""
    return _sha256(array("q", ids).tobytes())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the disk has a folder's entries. Windows can neither do that nor needs it."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _size(folder: Path) -> int:
    with suppress(OSError):
        return sum(file.stat().st_size for file in folder.iterdir())
    return 0


def _last_used(folder: Path) -> float:
    with suppress(OSError):
        return (folder / HEADER).stat().st_mtime
    return -math.inf


def _writer(partial: Path) -> int:
    """Process id in the name of a temporary folder; one that no process has if the name is odd."""
    number = partial.name.split("-")[-2:][0]
    return int(number) if number.isdecimal() else -1
