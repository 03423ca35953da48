"""Stores a session's KV on disk, so that a later start can use it: the KV of books, and of turns of chats about them.

``KvPersistence`` finds the saved KV of a session's documents and chats, restores it into the cache, and saves new KV.
``engine.kv.snapshots`` manages the folders. Without a snapshot folder, nothing is saved or restored.

Saved KV is valid only for the model that computed it. The fingerprint of a model is computed from the weights,
configuration, tokenizer and RoPE of the loaded model, and not from its files. So it does not depend on how the model
was stored, but it differs if any weight differs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from engine.config import EngineConfig, bytes_of
from engine.devices import KINDS
from engine.document import Document
from engine.errors import SnapshotRefused, SnapshotUnreadable
from engine.kv.full import FullCache
from engine.kv.manifest import Identity, Snapshot, ids_hash
from engine.kv.snapshot_io import SnapshotWriter, TurnSpan, TurnWriter, Writer, restore
from engine.kv.snapshots import SnapshotStore, TurnStore, default_cap
from engine.prompt import BookTokenizer, BookTokens, Conversation, Turn

if TYPE_CHECKING:
    from engine.model.decoder import Decoder

# Configuration keys that a model's fingerprint leaves out, because they do not change what the model computes.
_NOT_ABOUT_VALUES = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "use_cache")
_WORD = 8  # bytes of each integer that a fingerprint sums
# Number of 8-byte words in a block of a fingerprint. Each word of a block has its own multiplier.
_BLOCK = 4096
# Number of blocks of a fingerprint that are multiplied and summed at once.
_BLOCKS = 256


@dataclass(frozen=True)
class Restored:
    """The result of restoring a book or turns of a chat.

    Args:
        tokens: number of tokens that came from disk.
        refused: why saved KV was refused; "" if none was.
        changed: whether the conversation's turns have changed. Cached turns are forgotten before a saved turn is
            restored in their place. So ``changed`` is True even if restoring the saved turn failed.
    """

    tokens: int = 0
    refused: str = ""
    changed: bool = False


class KvPersistence:
    """Restores and saves the snapshots of the books that one session reads, and of the chats about these books.

    Args:
        config: gives ``snapshot_folder`` and ``snapshot_cap``.
        target: the target model.
        tokenizer: the target's tokenizer.
        full: the target's full cache.
    """

    def __init__(self, config: EngineConfig, target: Decoder, tokenizer: BookTokenizer, full: FullCache) -> None:
        self._target, self._tokenizer, self._full = target, tokenizer, full
        self._store: SnapshotStore | None = None
        if config.snapshot_folder:
            folder = Path(config.snapshot_folder)
            self._store = SnapshotStore(folder, bytes_of(config.snapshot_cap) or default_cap(folder))
        self.restored = Restored()
        self._model = ""
        self._book_writer: SnapshotWriter | None = None
        self._turn_writers: list[TurnWriter] = []

    def restore(self, document: Document, ids: Sequence[int]) -> Generator[int, None, None]:
        """Fill the empty cache from the snapshot of a book, if there is one. Yields the number of usable tokens so far.
        Afterwards ``restored`` holds the result.
        """
        self.restored = Restored()
        if self._store is None:
            return
        identity = self._identity(document, ids)
        found: Snapshot | None = None
        try:
            found = self._longest(identity, ids)
            if found is None:
                return
            for usable in restore(found, self._full):
                self.restored = Restored(usable)
                yield usable
        except SnapshotRefused as error:
            if _is_damaged(error):
                # If the snapshot folder is read-only, the damaged snapshot stays, and is refused again at the next
                # ``restore``.
                with suppress(OSError):
                    self._store.discard(found.identity if found else identity)
            self.restored = Restored(refused=error.cause)

    def kept(self, document: Document, ids: Sequence[int]) -> int:
        """Number of tokens, from the start of a book, that ``restore`` would take from disk."""
        if self._store is None:
            return 0
        try:
            found = self._longest(self._identity(document, ids), ids)
        except SnapshotRefused:
            return 0
        return found.tokens if found else 0

    def _longest(self, identity: Identity, ids: Sequence[int]) -> Snapshot | None:
        """Find the snapshot that holds the most tokens of a book: the book's own snapshot, or a snapshot of another
        book that begins with the same text. None if there is none.

        Raises:
            SnapshotRefused: the book's own snapshot is damaged.
        """
        assert self._store is not None
        own = self._store.find(identity, ids)
        if own is not None and own.tokens == len(ids):
            return own
        shared = self._store.beginning(identity, ids)
        return shared if shared and (own is None or own.tokens < shared.tokens) else own

    def save(self, document: Document, book: BookTokens, tokens: int) -> None:
        """Begin to write the first ``tokens`` tokens in the background, unless a snapshot already has them.

        A snapshot that ``restore`` refused is replaced even if it has ``tokens`` tokens. A snapshot that cannot be
        opened has an unknown number of tokens, so it is replaced only when the whole book has been read.
        """
        self.cancel()
        # snapshots are deleted together with the file of their book, so a text without a file gets no snapshot
        if self._store is None or tokens == 0 or not document.sha256:
            return
        ids = book.ids
        identity = self._identity(document, ids)
        known: Snapshot | None = None
        try:
            known = self._store.find(identity, ids)
        except SnapshotRefused as error:
            if not _is_damaged(error) and tokens < len(ids):
                return
        anew = known is None or known.tokens < tokens
        if known is not None and not anew and not (self.restored.refused and known.tokens == tokens):
            return
        shared = self._store.beginning(identity, ids) if anew else None
        several = tuple(member.sha256 for member in document.members)
        self._book_writer = SnapshotWriter(
            self._store, identity, self._full, ids, tokens, shared, book.borders, several
        )

    def restore_turns(self, chat: str, conversation: Conversation, turns: Sequence[Turn]) -> Restored:
        """Append the saved turns of a chat to the cached turns, and update ``conversation``.

        Restoring ends at the first turn that is missing or refused. This turn and all later turns have to be prefilled.
        In any case, ``conversation`` and the cache contain the same turns afterwards.
        """
        position, restored, changed = conversation.known(turns), 0, False
        store = self._turn_store(chat, conversation) if position < len(turns) else None
        if store is None:
            return Restored()
        while position < len(turns):
            turn, start = turns[position], conversation.kv_start(position)
            try:
                found = store.find(conversation.tokens[:start], turn.question, turn.answer)
                if found is None:
                    break
                if max(found.ids) >= self._target.vocabulary:
                    raise SnapshotRefused("The saved turn has tokens that the model does not know.")
                self.cancel_beyond(start)
                changed = True
                # Forget the cached turns before their tokens in the cache are replaced.
                conversation.forget_from(position)
                self._full.crop(start)
                for _ in restore(found, self._full):
                    pass
            except SnapshotRefused as error:
                if _is_damaged(error):
                    with suppress(OSError):
                        store.forget(conversation.tokens[:start], turn.question, turn.answer)
                return Restored(restored, error.cause, changed)
            conversation.recall(turn, found.ids)
            restored += len(found.ids) - 1
            position += 1
        return Restored(restored, changed=changed)

    def save_turns(self, chat: str, conversation: Conversation) -> None:
        """Begin to write, in the background, the turns of a chat that are not yet on disk. A turn with a thought, and
        those after it, are not written: the next question reads the turn again, without its thought.
        """
        store = self._turn_store(chat, conversation)
        turns = list(itertools.takewhile(lambda held: not held.turn.thought, conversation.turns))
        if store is None or not turns:
            return
        store.prepare()
        starts = [conversation.kv_start(position) for position in range(len(turns))]
        spans = [
            TurnSpan(held.turn.question, held.turn.answer, start, held.stop - 1)
            for start, held in zip(starts, turns, strict=True)
        ]
        self._turn_writers = [writer for writer in self._turn_writers if not writer.finish(0)]
        after: Writer | None = self._turn_writers[-1] if self._turn_writers else self._book_writer
        self._turn_writers.append(TurnWriter(store, self._full, list(conversation.tokens), spans, after))

    def cancel_beyond(self, length: int) -> None:
        """Stop writing the turns that end after ``length`` tokens. Call this before the cache is cropped to ``length``
        tokens.
        """
        for writer in self._turn_writers:
            if writer.stop > length:
                writer.cancel()

    def cancel(self) -> None:
        """Stop all writing. Call this before the cache is emptied."""
        self.cancel_beyond(0)
        self._turn_writers = []
        if self._book_writer is not None:
            self._book_writer.cancel()
            self._book_writer = None

    def finish(self, timeout: float | None = None) -> str:
        """Wait until all snapshots are written, but at most ``timeout`` seconds. Return the first error as a sentence;
        "" if there is none, or if the time was not enough.
        """
        until = None if timeout is None else time.monotonic() + timeout
        writers = self._writers()
        for writer in writers:
            if not writer.finish(None if until is None else max(0.0, until - time.monotonic())):
                return ""
        return next((str(writer.error) for writer in writers if writer.error), "")

    def is_saving(self) -> bool:
        """Whether a snapshot is being written."""
        return any(not writer.finish(0.0) for writer in self._writers())

    def _writers(self) -> list[Writer]:
        return [*([self._book_writer] if self._book_writer else []), *self._turn_writers]

    def _turn_store(self, chat: str, conversation: Conversation) -> TurnStore | None:
        """The store of a chat's turns. None if the chat has no name, or if the book is not saved."""
        if self._store is None or not chat or not conversation.document.sha256:
            return None
        return TurnStore(self._store, self._identity(conversation.document, conversation.book.ids).folder, chat)

    def _identity(self, document: Document, ids: Sequence[int]) -> Identity:
        self._model = self._model or model_fingerprint(self._target)
        shape = self._full.shape
        return Identity(
            book=document.sha256,
            ids=ids_hash(ids),
            model=self._model,
            tokenizer=vocabulary_fingerprint(self._tokenizer.vocabulary),
            rope=rope_settings(self._target),
            dtype=shape.kind,
            layers=shape.layers,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
        )


def _is_damaged(error: SnapshotRefused) -> bool:
    """Whether a refused snapshot can never be used, and is therefore deleted."""
    return not isinstance(error, SnapshotUnreadable)


def model_fingerprint(decoder: Decoder) -> str:
    """SHA-256 over the configuration and, for every tensor of weights, its name, shape, dtype and ``fingerprint``."""
    digest = hashlib.sha256(json.dumps(_meaning(decoder.config.to_dict()), sort_keys=True, default=str).encode())
    with torch.inference_mode():
        for name, weights in decoder.named_weights():
            digest.update(f"{name} {tuple(weights.shape)} {weights.dtype}".encode())
            digest.update(fingerprint(weights))
    return digest.hexdigest()


def fingerprint(weights: torch.Tensor) -> bytes:
    """SHA-256 over sums of a tensor's bits. The tensor is divided into words of 8 bytes, and the words into blocks of
    ``_BLOCK``. Each word is multiplied by an odd random number, which depends only on its place in the block, and the
    products of a block are summed.

    The sums are computed on the tensor's device at the speed of its memory, or on the host if the device cannot sum
    64-bit integers correctly. Two different tensors have the same fingerprint with a probability of about 2 ** -64.
    A fingerprint detects mistakes, not forgeries.
    """
    weights = weights.detach() if KINDS[weights.device.type].has_64_bits else weights.detach().cpu()
    flat = weights.contiguous().view(torch.uint8).flatten()
    whole = flat.numel() // _WORD * _WORD
    words = flat[:whole].view(torch.int64)
    generator = torch.Generator().manual_seed(_BLOCK)
    places = torch.randint(-(2**63), 2**63 - 1, (_BLOCK,), generator=generator).to(words.device) | 1
    digest = hashlib.sha256(flat[whole:].cpu().numpy().tobytes())
    for some in words.split(_BLOCK * _BLOCKS):
        blocks = some.numel() // _BLOCK
        sums = (some[: blocks * _BLOCK].view(blocks, _BLOCK) * places).sum(dim=1)
        rest = some[blocks * _BLOCK :]
        digest.update(torch.cat([sums, (rest * places[: len(rest)]).sum(dim=0, keepdim=True)]).cpu().numpy().tobytes())
    return digest.digest()


def vocabulary_fingerprint(vocabulary: Mapping[str, int]) -> str:
    """SHA-256 over every token and its id."""
    return hashlib.sha256(json.dumps(sorted(vocabulary.items())).encode()).hexdigest()


def rope_settings(decoder: Decoder) -> str:
    """Return RoPE's parameters as JSON. They include the context window if RoPE's frequencies depend on the window."""
    config = decoder.config
    parameters = dict(getattr(config, "rope_parameters", None) or {})
    if decoder.rope_depends_on_window:
        parameters["window"] = decoder.window
    return json.dumps(parameters, sort_keys=True, default=str)


def _meaning(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in _NOT_ABOUT_VALUES}
