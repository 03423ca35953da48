"""Turns of chats on disk: the KV that a question and its answer left behind the book, to go on from after a restart.

A turn is found by the very tokens before it and by its words, so the branches of a chat lie side by side, each behind
its own past. Turns belong to a chat and are deleted with it and with the book; a turn that is still to be written then
finds no place any more. Writing one never touches the book's reading. Knows no tensors and no cache.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engine.snapshot_header import (
    HEADER,
    SavedTurn,
    Shard,
    ids_hash,
    read_turn,
    sha256,
    sync_folder,
    write_turn_header,
)
from engine.snapshots import CHATS, SnapshotStore, chat_folder, mark_used, partial_name

_TURN_DIGITS = 32


@dataclass(frozen=True)
class TurnStore:
    """The turns of one chat about one reading of a book.

    Args:
        store: that holds the reading.
        reading: name of the reading's folder (``Identity.folder``).
        chat: what the chat is called; only this name finds its turns.
    """

    store: SnapshotStore
    reading: str
    chat: str

    @property
    def folder(self) -> Path:
        return self.store.folder / f"{self.reading}{CHATS}" / chat_folder(self.chat)

    def find(self, before: Sequence[int], question: str, answer: str) -> SavedTurn | None:
        """The turn with these words behind the tokens ``before``, or None if there is none.

        Raises:
            SnapshotRefused: there is one, and it is damaged or of something else; the reason is in the message.
        """
        folder = self._place(before, question, answer)
        if not folder.is_dir():
            return None
        found = read_turn(folder, self.reading, before)
        self._mark_used()
        return found

    def holds(self, before: Sequence[int], question: str, answer: str) -> bool:
        """Whether there is such a turn, whole or not."""
        return self._place(before, question, answer).is_dir()

    def prepare(self) -> None:
        """Make the place for the chat's turns. Nothing else does: what comes after it was deleted is not kept."""
        with suppress(OSError):  # then writing says what is wrong
            self.folder.mkdir(parents=True, exist_ok=True)

    def begin(self, needed: int) -> Path:
        """A temporary folder for a turn of about ``needed`` bytes; makes room for it first.

        Raises:
            ResourceError: there is no room.
            OSError: the chat or the book's reading has been deleted: a turn is nothing without them.
        """
        reading = self.store.folder / self.reading
        os.stat(reading / HEADER)
        self.store.make_room(needed, keep=(reading, self.folder))
        partial = self.folder / partial_name("turn")
        partial.mkdir()
        self._mark_used()
        return partial

    def commit(self, partial: Path, ids: Sequence[int], question: str, answer: str, shards: Sequence[Shard]) -> None:
        """Write the header, sync and give the folder its name.

        Args:
            ids: of the whole context up to the turn's last token.
        """
        write_turn_header(partial, self.reading, ids, shards)
        sync_folder(partial)
        place = self._place(ids[: shards[0].start], question, answer)
        if not place.is_dir():
            os.rename(partial, place)
            sync_folder(self.folder)

    def forget(self, before: Sequence[int], question: str, answer: str) -> None:
        """Delete a turn, such as one that turned out to be damaged."""
        self.store.remove(self._place(before, question, answer))

    def _mark_used(self) -> None:
        """The chat, and the reading that is of use to it."""
        mark_used(self.folder)
        mark_used(self.store.folder / self.reading / HEADER)

    def _place(self, before: Sequence[int], question: str, answer: str) -> Path:
        words = json.dumps([ids_hash(before), question, answer])
        return self.folder / sha256(words.encode())[:_TURN_DIGITS]
