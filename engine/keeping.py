"""Keeps read books and chats for a session: finds what is saved, brings it into the cache, and saves what was added.

Between a session, which knows documents, and ``engine.snapshots``, which knows folders. Without a folder it keeps
nothing, and everything is as if there were no snapshots.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engine import fingerprint
from engine.cache.full import FullCache
from engine.cache.snapshot import SnapshotWriter, TurnSpan, TurnWriter, Writer, restore
from engine.config import EngineConfig, bytes_of
from engine.conversation import Conversation, Turn
from engine.document import Document
from engine.errors import SnapshotRefused
from engine.models import Decoder
from engine.snapshot_header import Identity, Snapshot, ids_hash
from engine.snapshots import SnapshotStore, default_cap
from engine.tokenizer import BookTokenizer
from engine.turns import TurnStore


@dataclass(frozen=True)
class Restored:
    """``tokens`` came from disk; ``refused`` says why something that is there was not used."""

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
        self._reading: SnapshotWriter | None = None
        self._turns: list[TurnWriter] = []

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
            with suppress(OSError):  # a folder that cannot be written to keeps it, and it is refused again
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
            self._reading = SnapshotWriter(self._store, identity, self._full, ids, tokens, known)

    def restore_turns(self, chat: str, talk: Conversation, turns: Sequence[Turn]) -> Restored:
        """Put those of a chat's turns that are on disk behind those that the cache holds, and tell the conversation.

        Where none is, nothing changes; where one is missing or refused, the later ones are left for prefill.
        """
        store = self._turns_of(chat, talk)
        position, restored = talk.known(turns), 0
        if store is None:
            return Restored()
        while position < len(turns):
            turn, start = turns[position], talk.kv_start(position)
            try:
                found = store.find(talk.tokens[:start], turn.question, turn.answer)
                if found is None:
                    break
                if max(found.ids) >= self._target.vocabulary:
                    raise SnapshotRefused("The saved turn has tokens that the model does not know.")
                self.let_go(start)
                self._full.crop(start)
                for _ in restore(found, self._full):
                    pass
            except SnapshotRefused as error:
                with suppress(OSError):
                    store.forget(talk.tokens[:start], turn.question, turn.answer)
                return Restored(restored, error.cause)
            talk.recall(position, turn, found.ids)
            restored += len(found.ids) - 1
            position += 1
        return Restored(restored)

    def save_turns(self, chat: str, talk: Conversation) -> None:
        """Begin to write, in the background, the turns of a chat that are not on disk yet."""
        store = self._turns_of(chat, talk)
        if store is None or not talk.turns:
            return
        store.prepare()
        starts = [talk.kv_start(position) for position in range(len(talk.turns))]
        spans = [
            TurnSpan(held.turn.question, held.turn.answer, start, held.stop - 1)
            for start, held in zip(starts, talk.turns, strict=True)
        ]
        self._turns = [writer for writer in self._turns if not writer.finish(0)]
        after: Writer | None = self._turns[-1] if self._turns else self._reading
        self._turns.append(TurnWriter(store, self._full, list(talk.tokens), spans, after))

    def let_go(self, length: int) -> None:
        """The cache is about to be cropped to ``length`` tokens: stop writing turns that reach beyond."""
        for writer in self._turns:
            if writer.stop > length:
                writer.cancel()

    def release(self) -> None:
        """The cache is about to be emptied: stop writing."""
        self.let_go(0)
        self._turns = []
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def finish(self, timeout: float | None = None) -> str:
        """Wait until what was begun is written; what went wrong, as a sentence, or nothing."""
        until = None if timeout is None else time.monotonic() + timeout
        writers: list[Writer] = [*([self._reading] if self._reading else []), *self._turns]
        for writer in writers:
            if not writer.finish(None if until is None else max(0.0, until - time.monotonic())):
                return ""
        return next((str(writer.error) for writer in writers if writer.error), "")

    def _turns_of(self, chat: str, talk: Conversation) -> TurnStore | None:
        """Where turns of a chat are kept; None where they are not: without a name, or without a reading to follow."""
        if self._store is None or not chat or not talk.document.sha256:
            return None
        return TurnStore(self._store, self._identity(talk.document, talk.book.ids).folder, chat)

    def _identity(self, document: Document, ids: Sequence[int]) -> Identity:
        self._model = self._model or fingerprint.of_model(self._target)
        shape = self._full.shape
        return Identity(
            book=document.sha256,
            ids=ids_hash(ids),
            model=self._model,
            tokenizer=fingerprint.of_vocabulary(self._tokenizer.vocabulary),
            rope=fingerprint.of_rope(self._target),
            dtype=shape.kind,
            layers=shape.layers,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
        )
