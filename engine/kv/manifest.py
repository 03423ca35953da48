"""Writes, reads and checks manifests. A manifest describes KV that is saved in a folder of several files (shards).

The snapshot of a book is a folder with ``snapshot.json`` and safetensors shards. A turn of a chat is a folder with
``turn.json`` and shards of its own. The manifest states everything that the KV depends on. If one of these facts
differs for the current model or book, the saved KV is refused, and the error names the fact. The checks use only names,
hashes and JSON, so no tensor is read before them.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from engine.errors import SnapshotRefused, SnapshotUnreadable

FORMAT = 1
MANIFEST, TURN_MANIFEST = "snapshot.json", "turn.json"
# Maximum bytes of a manifest. A larger file was not written by this module, and is refused before it is parsed.
_MAX_MANIFEST_BYTES = 4 << 20
_MAX_SHARDS = 1 << 16
_SHOWN = 20  # maximum characters that an error quotes of a value in a manifest
BOOK_DIGITS = 32
"""Number of digits of a book's hash at the start of its folder's name."""

_IDENTITY_DIGITS = 16
# Errors that may be raised while a malformed manifest is read, in addition to ``SnapshotRefused`` from our own checks.
_UNUSABLE = (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Identity:
    """Everything that a book's KV depends on.

    ``book`` is the SHA-256 of the book's file. ``ids`` is the SHA-256 of the token ids of the whole book, as they are
    in the target's prompt. ``model`` and ``tokenizer`` are fingerprints. ``rope`` is JSON with the RoPE parameters.
    ``layers``, ``kv_heads`` and ``head_dim`` are the shape of the target's KV. ``dtype`` is the storage format of the
    KV: the model's dtype, or its quantization to 8 bits.
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

    def computes_as(self, other: Identity) -> bool:
        """Whether the same tokens have the same KV under both identities, even if these belong to different books."""
        return replace(self, book=other.book, ids=other.ids) == other

    @property
    def folder(self) -> str:
        """Name of the snapshot's folder: digits of the book's hash, and of a hash of the whole identity. So the same
        book has a different folder for a different model or different token ids.
        """
        text = json.dumps(asdict(self), sort_keys=True)
        return f"{self.book[:BOOK_DIGITS]}-{sha256(text.encode())[:_IDENTITY_DIGITS]}"


@dataclass(frozen=True)
class Shard:
    """The KV of the tokens [start, stop), in a file with ``size`` bytes and the checksum ``crc32``."""

    start: int
    stop: int
    size: int
    crc32: int

    @property
    def file(self) -> str:
        """Name of the file. It is derived from the numbers of the tokens, because a name in a manifest cannot be
        trusted.
        """
        return f"tokens-{self.start:08d}-{self.stop:08d}.safetensors"


class WindowShard(Shard):
    """The file with the sliding windows and recurrent states after the first ``stop`` tokens, which are all saved
    tokens. A window holds the KV of the tokens [start, stop).
    """

    @property
    def file(self) -> str:
        return f"window-{self.start:08d}-{self.stop:08d}.safetensors"


@dataclass(frozen=True)
class Snapshot:
    """The manifest of a book's snapshot, after its checks.

    ``tokens`` is the number of saved tokens, counted from the start of the book. ``prefix`` is the hash of their ids.
    ``shards`` are the files with KV, and ``window`` is the file with sliding windows and recurrent states, if the model
    has any.

    ``borders`` has a pair for each document that ends before the last saved token: the index after the document's last
    token, and the hash of all ids before this index.
    """

    folder: Path
    identity: Identity
    tokens: int
    prefix: str
    shards: tuple[Shard, ...]
    window: WindowShard | None = None
    borders: tuple[tuple[int, str], ...] = ()

    @property
    def start(self) -> int:
        """The first saved token, which is 0 for a book."""
        return 0


@dataclass(frozen=True)
class SavedTurn:
    """The manifest of a turn, after its checks. It describes the KV of the tokens [start, tokens) of a chat's context.

    ``ids`` are the ids of these tokens and of the next token. The KV of the next token is not saved, because it is
    computed only when the next question is asked.
    """

    folder: Path
    start: int
    ids: tuple[int, ...]
    shards: tuple[Shard, ...]
    window: WindowShard | None = None

    @property
    def tokens(self) -> int:
        return self.start + len(self.ids) - 1


def write_manifest(
    folder: Path,
    identity: Identity,
    ids: Sequence[int],
    shards: Sequence[Shard],
    window: Shard | None = None,
    borders: Sequence[int] = (),
) -> None:
    """Write the manifest of a book's snapshot. ``shards`` begin at the book's first token, and ``ids`` are the ids of
    all tokens of the book.

    Args:
        borders: tokens at which one of several documents ends and the next begins.
    """
    tokens = shards[-1].stop if shards else 0
    about: dict[str, Any] = {"identity": asdict(identity), "tokens": tokens, "prefix": ids_hash(ids[:tokens])}
    if within := [border for border in borders if border < tokens]:
        about["borders"] = [[border, ids_hash(ids[:border])] for border in within]
    _write(folder / MANIFEST, about, shards, window)


def write_turn_manifest(
    folder: Path, reading: str, ids: Sequence[int], shards: Sequence[Shard], window: Shard | None = None
) -> None:
    """Write the manifest of a turn.

    Args:
        folder: the turn's folder.
        reading: name of the folder of the book's snapshot.
        ids: token ids of the whole context, up to and including the token after the last shard.
        shards: the files with the turn's KV, in order.
        window: the file with sliding windows and recurrent states, if the model has any.
    """
    start, stop = shards[0].start, shards[-1].stop
    own, whole = list(ids[start : stop + 1]), ids_hash(ids[: stop + 1])
    about = {"reading": reading, "start": start, "ids": own, "before": ids_hash(ids[:start]), "context": whole}
    _write(folder / TURN_MANIFEST, about, shards, window)


def _write(path: Path, about: dict[str, Any], shards: Sequence[Shard], window: Shard | None) -> None:
    manifest = {"format": FORMAT, **about, "shards": [asdict(shard) for shard in shards]}
    if window is not None:
        manifest["window"] = asdict(window)
    write_synced(path, json.dumps(manifest).encode())


def read_manifest(folder: Path) -> Snapshot:
    """Read and check the manifest of a book's snapshot.

    Raises:
        SnapshotRefused: the manifest is missing or malformed, or contradicts itself or the files in its folder.
        SnapshotUnreadable: the manifest could not be opened.
    """
    try:
        manifest = _load(folder / MANIFEST)
        named = manifest["identity"]
        identity = Identity(**{field.name: _typed(named[field.name], str(field.type)) for field in fields(Identity)})
        shards = _shards(folder, manifest, start=0)
        if not shards or shards[-1].stop != manifest["tokens"]:
            raise SnapshotRefused("The saved reading has gaps.")
        stop, prefix = shards[-1].stop, _typed(manifest["prefix"], "str")
        window, borders = _window(folder, manifest, stop), _borders(manifest, stop)
        return Snapshot(folder, identity, stop, prefix, shards, window, borders)
    except _UNUSABLE as error:
        raise SnapshotRefused(f"The saved reading has no usable header ({type(error).__name__}).") from error
    except OSError as error:
        raise unreadable(error) from error


def read_turn_manifest(folder: Path, reading: str, prefix: Sequence[int]) -> SavedTurn:
    """Read and check the manifest of a turn that follows the tokens ``prefix``. ``reading`` is the name of the folder
    of the book's snapshot.

    Raises:
        SnapshotRefused: as in ``read_manifest``, or the turn belongs to another chat.
    """
    try:
        manifest = _load(folder / TURN_MANIFEST)
        ids = [_typed(number, "int") for number in manifest["ids"]]
        if (manifest["reading"], manifest["start"], manifest["before"]) != (reading, len(prefix), ids_hash(prefix)):
            raise SnapshotRefused("The saved turn is of another chat.")
        if manifest["context"] != ids_hash([*prefix, *ids]):
            raise SnapshotRefused("The saved turn has other words than it had.")
        shards = _shards(folder, manifest, start=len(prefix))
        if not shards or shards[-1].stop != len(prefix) + len(ids) - 1:
            raise SnapshotRefused("The saved turn has gaps.")
        return SavedTurn(folder, len(prefix), tuple(ids), shards, _window(folder, manifest, shards[-1].stop))
    except _UNUSABLE as error:
        raise SnapshotRefused(f"The saved turn has no usable header ({type(error).__name__}).") from error
    except OSError as error:
        raise unreadable(error) from error


def unreadable(error: OSError) -> SnapshotUnreadable:
    """Make the error for saved KV that the operating system cannot read."""
    return SnapshotUnreadable(f"The saved reading cannot be opened ({error.strerror or type(error).__name__}).")


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():  # read only files, because reading a pipe or a device could never end
        raise SnapshotRefused("The saved reading has no usable header: it is no file.")
    if path.stat().st_size > _MAX_MANIFEST_BYTES:
        raise SnapshotRefused("The saved reading has a header of an impossible size.")
    manifest: dict[str, Any] = json.loads(path.read_bytes())
    if manifest["format"] != FORMAT:
        named = str(manifest["format"])[:_SHOWN]
        raise SnapshotRefused(f"The saved reading has format {named}, and {FORMAT} is known.")
    return manifest


def _shards(folder: Path, manifest: dict[str, Any], start: int) -> tuple[Shard, ...]:
    """Read what the manifest says about the shards. Check that they follow one another from token ``start`` on, and
    that all files exist.
    """
    shards = [Shard(*_numbers(shard)) for shard in manifest["shards"][:_MAX_SHARDS]]
    stop = start
    for shard in shards:
        if shard.start != stop or shard.stop <= stop:
            raise SnapshotRefused("The saved reading has gaps.")
        stop = shard.stop
        _check_size(folder, shard)
    return tuple(shards)


def _window(folder: Path, manifest: dict[str, Any], stop: int) -> WindowShard | None:
    """Read what the manifest says about the shard of sliding windows and recurrent states; None if there is no such
    shard. Check that the shard ends at token ``stop``, like the last shard of KV.
    """
    if manifest.get("window") is None:
        return None
    window = WindowShard(*_numbers(manifest["window"]))
    if window.stop != stop or window.start >= stop:
        raise SnapshotRefused("The saved reading has gaps.")
    _check_size(folder, window)
    return window


def _borders(manifest: dict[str, Any], stop: int) -> tuple[tuple[int, str], ...]:
    """Read the borders between documents that the manifest names within the first ``stop`` tokens."""
    borders = [(_typed(tokens, "int"), _typed(digest, "str")) for tokens, digest in manifest.get("borders", ())]
    return tuple((tokens, digest) for tokens, digest in borders[:_MAX_SHARDS] if 0 < tokens < stop)


def _numbers(shard: dict[str, Any]) -> list[int]:
    return [_typed(shard[name], "int") for name in ("start", "stop", "size", "crc32")]


def _check_size(folder: Path, shard: Shard) -> None:
    file = folder / shard.file
    if not shard.size or not file.is_file() or file.stat().st_size != shard.size:
        raise SnapshotRefused(f"The saved reading is cut short: {shard.file} is missing or has another size.")


def _typed(value: Any, kind: str) -> Any:
    right = type(value) is int and value >= 0 if kind == "int" else type(value) is str
    if not right:
        raise ValueError("a value of the wrong kind")
    return value


def check_identity(found: Identity, expected: Identity) -> None:
    """Check that the identity ``found`` in a manifest is the ``expected`` one.

    Raises:
        SnapshotRefused: the two differ; the message names a difference.
    """
    what = {
        "book": "another book",
        "ids": "another text",
        "model": "another model",
        "tokenizer": "another tokenizer",
        "rope": "other RoPE parameters",
        "dtype": f"{found.dtype[:_SHOWN]} instead of {expected.dtype}",
    }
    for field in fields(Identity):
        if getattr(found, field.name) != getattr(expected, field.name):
            raise SnapshotRefused(f"The saved reading is of {what.get(field.name, 'a model of another shape')}.")


def ids_hash(ids: Sequence[int]) -> str:
    """SHA-256 of a sequence of token ids."""
    return sha256(array("q", ids).tobytes())


def sha256(data: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the list of a folder's files is on disk. Does nothing on Windows, where this is neither possible nor
    necessary.
    """
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
