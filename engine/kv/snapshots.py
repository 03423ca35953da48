"""Manages the folder of snapshots: the saved KV of books and of chats about them. With a snapshot, opening a book again
takes only the time to read the bytes.

    <folder>/<book>-<identity>/                       a book: snapshot.json and shards of consecutive tokens
    <folder>/<book>-<identity>.chats/<chat>/<turn>/   a turn of a chat about it: turn.json and shards

A book's snapshot is written under a temporary name, synced to disk and renamed, so that it exists completely or not at
all. Before that, an older snapshot of the same book is renamed. The older snapshot gets its name back if the new
snapshot cannot be renamed. A turn is written in the same way, and never changes the book's snapshot.

``SnapshotStore`` owns names, deletion and the cap on disk: the least recently used book or chat is deleted first.
``TurnStore`` finds a turn by its question, its answer and the exact tokens before it. So several branches of a chat can
be stored. Turns are deleted with their chat and with the book. If a chat or book is deleted while a turn is being
written, the turn is not saved. ``engine.kv.snapshot_io`` reads and writes the shards.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from engine.errors import ResourceError, SnapshotRefused
from engine.kv.manifest import (
    BOOK_DIGITS,
    MANIFEST,
    Identity,
    SavedTurn,
    Shard,
    Snapshot,
    check_identity,
    ids_hash,
    read_manifest,
    read_turn_manifest,
    sha256,
    sync_folder,
    write_manifest,
    write_turn_manifest,
)

__all__ = ["SnapshotStore"]

DOCUMENTS = "documents.json"
"""Name of the file that lists the hashes of a collection's documents. It lies in the folder of the snapshot."""
CHATS = ".chats"
"""Suffix of the folder with the turns of all chats about a book. The folder contains a folder for each chat."""

# Bytes that snapshots always leave free on the disk, for other uses.
_SPARE_BYTES = 2_000_000_000
# Maximum seconds to wait until no other program has a file of a folder open; then the folder keeps its name.
_SCAN_S = 5.0
# Seconds between two attempts to rename a folder.
_LOOK_S = 0.1
_PARTIAL, _STALE, _ASIDE = ".partial-", ".stale-", ".aside-"
# Number of hash digits in the name of a chat's folder.
_CHAT_DIGITS = 32
# Number of hash digits in the name of a turn's folder.
_TURN_DIGITS = 32


class SnapshotStore:
    """Finds and deletes the snapshots of books and chats in one folder, and limits their total size.

    Args:
        folder: folder of all snapshots; made on first use.
        cap: maximum bytes of all snapshots together.
    """

    def __init__(self, folder: Path, cap: int) -> None:
        self.folder = folder
        self.cap = cap

    def find(self, identity: Identity, ids: Sequence[int]) -> Snapshot | None:
        """Find the snapshot of a book; None if there is none.

        Raises:
            SnapshotRefused: the snapshot is damaged or holds a different text; the message tells these cases apart.
        """
        folder = self.folder / identity.folder
        self._put_back(folder)
        if not folder.is_dir():
            return None
        snapshot = read_manifest(folder)
        check_identity(snapshot.identity, identity)
        if snapshot.tokens > len(ids) or snapshot.prefix != ids_hash(ids[: snapshot.tokens]):
            raise SnapshotRefused("The saved reading is of another text.")
        mark_used(folder / MANIFEST)
        return snapshot

    def beginning(self, identity: Identity, ids: Sequence[int]) -> Snapshot | None:
        """Find the snapshot that has the longest prefix in common with a text, whatever book it was saved for. The
        returned snapshot counts only the tokens of this prefix; None if there is none.

        A prefix ends at the border of a document or at the snapshot's end. If the model has sliding windows or
        recurrent states, it can only end at the snapshot's end, because windows and states are saved only there.
        Damaged snapshots are skipped.
        """
        best: Snapshot | None = None
        hashes: dict[int, str] = {}
        for folder in self._whole():
            with suppress(SnapshotRefused):
                snapshot = read_manifest(folder)
                if not snapshot.identity.computes_as(identity):
                    continue
                for tokens, prefix in (
                    *(() if snapshot.window else snapshot.borders),
                    (snapshot.tokens, snapshot.prefix),
                ):
                    if (best.tokens if best else 0) < tokens <= len(ids):
                        known = hashes.setdefault(tokens, "") or ids_hash(ids[:tokens])
                        hashes[tokens] = known
                        if known == prefix:
                            best = replace(snapshot, tokens=tokens, prefix=prefix)
        if best is not None:
            mark_used(best.folder / MANIFEST)
        return best

    def begin(self, identity: Identity, needed: int, documents: Sequence[str] = ()) -> Path:
        """Make a temporary folder for a new snapshot of about ``needed`` bytes, after freeing space for it.

        Args:
            identity: the book and the model of the snapshot.
            documents: if the book consists of several documents, the hashes of their files. The snapshot is deleted
                when any of these documents is deleted.

        Raises:
            ResourceError: the snapshot is larger than the cap, or the disk is too full.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        own = self.folder / identity.folder  # the new snapshot replaces this folder, whose bytes therefore do not count
        self.free_space(needed, keep=(own,), less=_size(own))
        partial = self.folder / partial_name(identity.folder)
        partial.mkdir()
        if documents:
            (partial / DOCUMENTS).write_text(json.dumps(list(documents)), encoding="utf-8")
        return partial

    def commit(
        self,
        partial: Path,
        identity: Identity,
        ids: Sequence[int],
        shards: Sequence[Shard],
        window: Shard | None = None,
        borders: Sequence[int] = (),
    ) -> None:
        """Write the manifest of a new snapshot, sync its folder ``partial`` to disk, and give the folder its final
        name. An older snapshot of the same book is removed.
        """
        write_manifest(partial, identity, ids, shards, window, borders)
        sync_folder(partial)
        folder = self.folder / identity.folder
        self._put_back(folder)
        with suppress(FileNotFoundError):
            _rename(folder, _aside(folder))
        try:
            _rename(partial, folder)
            sync_folder(self.folder)
        finally:
            self._put_back(folder)

    def abandon(self, partial: Path) -> None:
        """Delete the temporary folder of a snapshot that is not completed."""
        shutil.rmtree(partial, ignore_errors=True)

    def discard(self, identity: Identity) -> None:
        """Delete the snapshot that has exactly the identity ``identity``."""
        self.remove(self.folder / identity.folder)

    def forget(self, book: str) -> None:
        """Delete everything that is saved for the book whose file has the SHA-256 ``book``: its snapshots, its chats,
        snapshots of collections that contain the book, and unfinished snapshots.
        """
        # List the folder again after each deletion, because an unfinished snapshot may have got its final name
        # meanwhile.
        while entries := self._saved_of(book):
            for entry in entries:
                self.remove(entry)

    def _saved_of(self, book: str) -> list[Path]:
        folders = _folders(self.folder)
        readings = [entry for entry in folders if _is_of(entry, book) or book in _documents_of(entry)]
        chats = {f"{entry.name}{CHATS}" for entry in readings}
        return [*readings, *(entry for entry in folders if entry.name in chats and entry not in readings)]

    def forget_chat(self, chat: str) -> None:
        """Delete all turns of a chat, including unfinished ones."""
        for chats in self._chats():
            self.remove(chats / chat_folder(chat))
            with suppress(OSError):  # this fails, as it should, if the folder still holds other chats
                chats.rmdir()

    def size_of(self, book: str) -> int:
        """Bytes saved for a book and the chats about it. The book is given by the SHA-256 of its file."""
        return sum(_size(entry) for entry in self._whole() if entry.name.startswith(book[:BOOK_DIGITS]))

    def used(self) -> int:
        """Bytes of all complete snapshots and their turns."""
        return sum(_size(entry) for entry in self._whole())

    def free_space(self, needed: int, keep: Sequence[Path], less: int = 0) -> None:
        """Delete the least recently used snapshots of books and chats until ``needed`` bytes fit.

        Args:
            keep: folders of books and chats that are not deleted.
            less: bytes of existing snapshots that do not count against the cap.

        Raises:
            ResourceError: the bytes would not fit even if all books and chats were deleted, except those to keep. In
                this case nothing is deleted.
        """
        self._sweep()
        if needed > self.cap:
            raise ResourceError(
                f"Keeping this reading takes {_amount(needed)}, and {_amount(self.cap)} are allowed.",
                "Raise --snapshot-cap to keep it.",
            )
        while (missing := max(self.used() - less + needed - self.cap, _SPARE_BYTES + needed - self._free())) > 0:
            units = [unit for unit in self._units() if unit not in keep]
            if missing > sum(map(_size, units)):
                raise ResourceError(
                    f"Keeping this reading takes {_amount(needed)} more; {_amount(self._free())} are free on the disk, "
                    f"and {_amount(self.cap)} are allowed.",
                    "Free some space or raise --snapshot-cap to keep it.",
                )
            self.remove(min(units, key=_last_used))

    def remove(self, folder: Path) -> None:
        """Rename a folder in one step, then delete it, so that no half-deleted folder is ever found."""
        stale = self.folder / f"{_STALE}{secrets.token_hex(8)}"
        with suppress(FileNotFoundError):
            _rename(folder, stale)
        shutil.rmtree(stale, ignore_errors=True)

    def _put_back(self, folder: Path) -> None:
        """Give a snapshot that was renamed (``_aside``) its name back. If a newer snapshot has taken the name, delete
        the renamed snapshot.
        """
        aside = _aside(folder)
        if not aside.is_dir():
            return
        with suppress(OSError):  # nothing can be renamed or deleted in a read-only folder
            if folder.is_dir():
                self.remove(aside)
            else:
                _rename(aside, folder)

    def _free(self) -> int:
        return shutil.disk_usage(self.folder).free

    def _whole(self) -> list[Path]:
        return [entry for entry in _folders(self.folder) if not entry.name.startswith(".")]

    def _chats(self) -> list[Path]:
        return [entry for entry in self._whole() if entry.name.endswith(CHATS)]

    def _units(self) -> Iterator[Path]:
        """The folders that are deleted only as a whole: one for each book, and one for each chat."""
        for entry in self._whole():
            if entry.name.endswith(CHATS):
                yield from _folders(entry)
            else:
                yield entry

    def _sweep(self) -> None:
        """Delete the unfinished folders of processes that no longer exist, and folders whose deletion was interrupted.
        Finish or undo interrupted replacements of snapshots (``_put_back``).
        """
        for place in (self.folder, *(chat for chats in self._chats() for chat in _folders(chats))):
            for entry in _folders(place):
                left = entry.name.startswith(_PARTIAL) and not _is_running(_writer(entry))
                if left or entry.name.startswith(_STALE):
                    shutil.rmtree(entry, ignore_errors=True)
                elif entry.name.startswith(_ASIDE):
                    self._put_back(place / entry.name.removeprefix(_ASIDE))


@dataclass(frozen=True)
class TurnStore:
    """The saved turns of one chat about one book.

    Args:
        store: the store that holds the book's snapshot.
        reading: name of the folder of the book's snapshot (``Identity.folder``).
        chat: the chat's name; turns are found only under this name.
    """

    store: SnapshotStore
    reading: str
    chat: str

    @property
    def folder(self) -> Path:
        return self.store.folder / f"{self.reading}{CHATS}" / chat_folder(self.chat)

    def find(self, prefix: Sequence[int], question: str, answer: str) -> SavedTurn | None:
        """Find the turn with this ``question`` and ``answer`` after the tokens ``prefix``; None if there is none.

        Raises:
            SnapshotRefused: the turn is damaged or holds a different text; the message tells these cases apart.
        """
        folder = self._place(prefix, question, answer)
        if not folder.is_dir():
            return None
        turn = read_turn_manifest(folder, self.reading, prefix)
        self._mark_used()
        return turn

    def holds(self, prefix: Sequence[int], question: str, answer: str) -> bool:
        """Whether this turn is saved, even if it is damaged. The arguments are as in ``find``."""
        return self._place(prefix, question, answer).is_dir()

    def prepare(self) -> None:
        """Make the folder for the chat's turns. No other method makes this folder. So if the chat is deleted while a
        turn is being written, the turn is not saved.
        """
        with suppress(OSError):  # if the folder cannot be made, ``begin`` raises the error later
            self.folder.mkdir(parents=True, exist_ok=True)

    def begin(self, needed: int) -> Path:
        """Make a temporary folder for a turn of about ``needed`` bytes, after freeing space for it.

        Raises:
            ResourceError: there is not enough space.
            OSError: the chat or the book's snapshot has been deleted, so the turn would be useless.
        """
        reading = self.store.folder / self.reading
        os.stat(reading / MANIFEST)
        self.store.free_space(needed, keep=(reading, self.folder))
        partial = self.folder / partial_name("turn")
        partial.mkdir()
        self._mark_used()
        return partial

    def commit(
        self,
        partial: Path,
        ids: Sequence[int],
        question: str,
        answer: str,
        shards: Sequence[Shard],
        window: Shard | None = None,
    ) -> None:
        """Write the manifest of a turn, sync its folder ``partial`` to disk, and give the folder its final name, unless
        the same turn is saved already.

        Args:
            ids: token ids of the whole context, up to and including the token after the last shard.
        """
        write_turn_manifest(partial, self.reading, ids, shards, window)
        sync_folder(partial)
        place = self._place(ids[: shards[0].start], question, answer)
        if not place.is_dir():
            _rename(partial, place)
            sync_folder(self.folder)

    def forget(self, prefix: Sequence[int], question: str, answer: str) -> None:
        """Delete a turn, for example a damaged one."""
        self.store.remove(self._place(prefix, question, answer))

    def _mark_used(self) -> None:
        """Mark the chat and its book's snapshot as used now, so that they are deleted last."""
        mark_used(self.folder)
        mark_used(self.store.folder / self.reading / MANIFEST)

    def _place(self, prefix: Sequence[int], question: str, answer: str) -> Path:
        words = json.dumps([ids_hash(prefix), question, answer])
        return self.folder / sha256(words.encode())[:_TURN_DIGITS]


def default_cap(folder: Path) -> int:
    """The default maximum of all snapshots' bytes: a quarter of the free space on the disk, at least 1 GB and at most
    100 GB.
    """
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    return int(min(100e9, max(1e9, shutil.disk_usage(existing).free / 4)))


def partial_name(name: str) -> str:
    """A temporary name for a folder that this process is writing."""
    return f"{_PARTIAL}{name}-{os.getpid()}-{secrets.token_hex(4)}"


def _is_of(entry: Path, book: str) -> bool:
    """Whether a snapshot's folder, complete or not, belongs to the book with the hash ``book``."""
    return entry.name.removeprefix(_PARTIAL).removeprefix(_ASIDE).startswith(f"{book[:BOOK_DIGITS]}-")


def _documents_of(entry: Path) -> list[str]:
    """The hashes of the documents in the snapshot of a collection; empty for a single document, or if the file with the
    hashes (``DOCUMENTS``) cannot be read.
    """
    with suppress(OSError, ValueError, RecursionError):
        documents = json.loads((entry / DOCUMENTS).read_text(encoding="utf-8"))
        return documents if isinstance(documents, list) else []
    return []


def _rename(folder: Path, place: Path) -> None:
    """Rename a folder. On Windows this fails while another program, such as a virus scanner, has one of its files open.
    So it is tried again there for some seconds.
    """
    until = time.monotonic() + (_SCAN_S if sys.platform == "win32" else 0.0)
    while True:
        try:
            os.rename(folder, place)
            return
        except PermissionError:
            if time.monotonic() >= until:
                raise
            time.sleep(_LOOK_S)


def _aside(folder: Path) -> Path:
    """The temporary name of a book's snapshot while a newer snapshot replaces it."""
    return folder.with_name(f"{_ASIDE}{folder.name}")


def chat_folder(chat: str) -> str:
    """Name of a chat's folder: a hash, because a chat's own name may not be a valid file name."""
    return sha256(chat.encode("utf-8", "surrogatepass"))[:_CHAT_DIGITS]


def mark_used(path: Path) -> None:
    """Set the time of a book's manifest or of a chat's folder to now, so that the book or chat is deleted last. Does
    nothing if the folder cannot be written to, because its snapshots can be used all the same.
    """
    with suppress(OSError):
        os.utime(path)


def _folders(folder: Path) -> list[Path]:
    with suppress(OSError):
        return [entry for entry in folder.iterdir() if entry.is_dir()]
    return []


def _amount(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _size(folder: Path) -> int:
    """Bytes of all files below a folder. Files that are deleted meanwhile count as 0. The bytes of a shard that several
    snapshots share are divided among the snapshots, so that they are counted once in total.
    """
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                file = os.stat(os.path.join(place, name))
                total += file.st_size // max(1, file.st_nlink)
    return total


def _last_used(unit: Path) -> float:
    """The time, in seconds since the epoch, at which a book or chat was last used: the time of a book's manifest or of
    a chat's folder.
    """
    for path in (unit / MANIFEST, unit):
        with suppress(OSError):
            return path.stat().st_mtime
    return -math.inf


def _is_running(process: int) -> bool:
    try:
        return psutil.pid_exists(process)
    except OverflowError:  # the number is too large for a process id
        return False


def _writer(partial: Path) -> int:
    """The process id in the name of a temporary folder; -1, which no process has, if the name is malformed."""
    number = partial.name.split("-")[-2:][0]
    return int(number) if number.isdecimal() else -1
