"""Keeps read books for a session: finds the snapshot of a book, brings it into the cache, and saves what was read.

Between a session, which knows documents, and ``engine.snapshots``, which knows folders. Without a folder it keeps
nothing, and everything is as if there were no snapshots.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engine import fingerprint
from engine.cache.full import FullCache
from engine.cache.snapshot import SnapshotWriter, restore
from engine.config import EngineConfig, bytes_of
from engine.document import Document
from engine.errors import SnapshotRefused
from engine.models import Decoder
from engine.snapshots import Identity, Snapshot, SnapshotStore, default_cap, ids_hash
from engine.tokenizer import BookTokenizer


@dataclass(frozen=True)
class Restored:
    """``tokens`` of the book came from disk; ``refused`` says why a snapshot that is there was not used."""

    tokens: int = 0
    refused: str = ""


class Keeping:
    """Snapshots of the books that one session reads.

    Args:
        config: names the folder and the cap.
        target: the target model; tokenizer: its tokenizer; full: its cache.
    """

    def __init__(self, config: EngineConfig, target: Decoder, tokenizer: BookTokenizer, full: FullCache) -> None:
        self._target, self._tokenizer, self._full = target, tokenizer, full
        self._store: SnapshotStore | None = None
        if config.snapshot_folder:
            folder = Path(config.snapshot_folder)
            self._store = SnapshotStore(folder, bytes_of(config.snapshot_cap) or default_cap(folder))
        self.restored = Restored()
        self._model = ""
        self._writer: SnapshotWriter | None = None

    def restore(self, document: Document, ids: Sequence[int]) -> Generator[int, None, None]:
        """Fill the empty cache from the snapshot of a book, if there is one; yields the usable tokens so far.

        ``restored`` says afterwards what came of it.
        """
        self.restored = Restored()
        if self._store is None:
            return
        identity = self._identity(document, ids)
        try:
            found = self._store.find(identity, ids)
            if found is None:
                return
            for usable in restore(found, self._full):
                self.restored = Restored(usable)
                yield usable
        except SnapshotRefused as error:
            self._store.discard(identity)
            self.restored = Restored(refused=error.cause)

    def save(self, document: Document, ids: Sequence[int], tokens: int) -> None:
        """Begin to write the first ``tokens`` tokens in the background, unless a snapshot already has them."""
        self.release()
        if self._store is None or tokens == 0 or not document.sha256:  # a text without a file is nobody's to delete
            return
        identity = self._identity(document, ids)
        known: Snapshot | None = None
        with suppress(SnapshotRefused):
            known = self._store.find(identity, ids)
        if known is None or known.tokens < tokens:
            self._writer = SnapshotWriter(self._store, identity, self._full, ids, tokens, known)

    def release(self) -> None:
        """The cache is about to be emptied: stop writing."""
        if self._writer is not None:
            self._writer.cancel()
            self._writer = None

    def finish(self, timeout: float | None = None) -> str:
        """Wait until what was begun is written; what went wrong, as a sentence, or nothing."""
        if self._writer is None or not self._writer.finish(timeout):
            return ""
        return str(self._writer.error or "")

    def _identity(self, document: Document, ids: Sequence[int]) -> Identity:
        self._model = self._model or fingerprint.of_model(self._target)
        shape = self._full.shape
        return Identity(
            book=document.sha256,
            ids=ids_hash(ids),
            model=self._model,
            tokenizer=fingerprint.of_vocabulary(self._tokenizer.vocabulary),
            rope=fingerprint.of_rope(self._target),
            dtype=str(shape.dtype).removeprefix("torch."),
            layers=shape.layers,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
        )
