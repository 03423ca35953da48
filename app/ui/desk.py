"""What lies on the desk: the one book that is open, how far it has been read, and whose question is being answered.

Owns the state that every tab shows, one frozen record (``state``) that is replaced under a lock, and who may change
it. How a book gets there is in ``opening``. Does not know how any of it is drawn. The program has one engine and one
person, so it has one desk; tabs are windows on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from app.books import Book, Books
from app.chats import Chat, Chats
from app.pages import NoteTaker
from app.store.bookmark import Bookmark, Mark
from app.ui import opening
from app.ui.state import Action, Desk, Job, Stage
from engine.document import Document
from engine.errors import Busy, DocumentError

__all__ = ["Action", "Desk", "Job", "Keeper", "Stage"]

_PATIENCE = 0.05  # seconds between two looks at something that another thread changes
_HANDOVER = 20.0  # seconds within which a cancelled request has surely let go of the engine


Reader = Callable[..., Document]


class Keeper:
    """Changes what lies on the desk. Every method may be called from any thread; all but ``delete`` return at once.

    Args:
        engine: the engine, as ``engine.Engine``.
        books: where files are kept.
        chats: where questions and answers are kept.
        read_document: turns a file into a document; raises ``DocumentError``.
        readings: what the engine keeps of books on disk, by their hashes, as ``engine.snapshots.SnapshotStore``.
    """

    def __init__(
        self,
        engine: Any,
        books: Books,
        chats: Chats,
        read_document: Reader,
        readings: Any = None,
    ) -> None:
        self.engine = engine
        self.books = books
        self.chats = chats
        self.read_document = read_document
        self._readings = readings
        self._bookmark = Bookmark(chats.database)
        self._desk = Desk()
        self._lock = threading.RLock()
        self._job = Job()
        self._asking: threading.Event | None = None
        self.note_taker = NoteTaker()
        self.passwords: dict[str, str] = {}  # of locked books, by hash: their pages are drawn from the file

    @property
    def desk(self) -> Desk:
        return self._desk

    @property
    def chat(self) -> Chat | None:
        return self.chats.get(self._desk.chat)

    # The book ------------------------------------------------------------------------------------------------

    def open(self, book: Book, password: str | None = None, chat: str = "") -> None:
        """Put another book on the desk and read it; with it a chat about it, or the last one."""
        with self._lock:
            if chat:
                self._desk = replace(self._desk, chat=chat)
            job = self._take_over(stage=Stage.OPENING, book=book)
        opening.start(self, job, lambda: opening.open_book(self, job, book, password))

    def choose(self, first: int, last: int) -> None:
        """Read pages first..last (from 1, both included) of the book that did not fit."""
        whole = self._desk.whole
        if whole is not None:
            self._read(whole.select(first, last))

    def read_again(self) -> None:
        """Read the document on the desk from its start."""
        if self._desk.document is not None:
            self._read(self._desk.document)

    def stop_reading(self) -> None:
        """What was read stays usable."""
        self._job.cancel()

    def pause_reading(self) -> None:
        """Let a question in: the reading stops at the end of a page, and goes on when nobody asks any more."""
        with self._lock:
            if self._desk.stage is Stage.READING and not self._desk.paused:
                self._job.pause()

    def restore(self) -> None:
        """Put on the desk what was there when the program was last at work, unless that did it harm."""
        mark = self._bookmark.find()
        if mark is None or not mark.ready or self._desk.book is not None:
            return
        try:
            book = self.books.get(mark.book)
        except DocumentError:
            return
        self.open(book, chat=mark.chat)

    def close_book(self) -> None:
        """Clear the desk."""
        self._take_over()

    def delete(self, sha256: str) -> None:
        """Delete a book with its chats and all that was made from it.

        Raises:
            DocumentError: there is no such book.
            ResourceError: its files cannot be deleted.
        """
        self.books.get(sha256)
        job, here = self._job, self._desk.book is not None and self._desk.book.sha256 == sha256
        if here:
            self.close_book()
            job.ended.wait(_HANDOVER)
            self._wait_for_silence()
        self.books.forget(sha256)
        self.chats.forget_book(sha256)
        self.passwords.pop(sha256, None)
        if self._readings is not None:
            self._readings.forget(sha256)

    def _wait_for_silence(self) -> None:
        """Until an answer that was told to stop has let go."""
        until = time.monotonic() + _HANDOVER
        while self._desk.asking and time.monotonic() < until:
            time.sleep(_PATIENCE)

    def size_of(self, book: Book) -> int:
        """Bytes on disk of a book and all that was made from it."""
        kept = self._readings.size_of(book.sha256) if self._readings is not None else 0
        return self.books.size(book) + int(kept)

    def _read(self, document: Document) -> None:
        desk = self._desk
        job = self._take_over(stage=Stage.WAITING, book=desk.book, whole=desk.whole)
        opening.start(self, job, lambda: opening.prepare(self, job, document))

    # Its chats -----------------------------------------------------------------------------------------------

    def begin_chat(self) -> None:
        """A clean page about the same book.

        Raises:
            Busy: an answer is being written.
        """
        with self._lock:
            if self._desk.book is not None:
                self._check_silence()
                self.show_chat(self.chats.begin(self._desk.book.sha256).id)

    def show_chat(self, chat_id: str) -> None:
        """Lay another chat about this book on the desk.

        Raises:
            Busy: an answer is being written.
        """
        with self._lock:
            self._check_silence()
            self._lay(chat_id)

    def _lay(self, chat_id: str) -> None:
        """Figures, pace and what glows belong to an answer of the chat that lay here before."""
        if chat_id != self._desk.chat:
            self._desk = replace(self._desk, chat=chat_id, figures=None, scores=(), pace=())
        self._mark()

    def _check_silence(self) -> None:
        if self._desk.asking:
            raise Busy("An answer is being written.", "Stop it, or wait for its end.")

    def show_version(self, message: int) -> None:
        """Show another version of a question or an answer of the chat on the desk.

        Raises:
            Busy: an answer is being written into this chat.
        """
        with self._lock:
            self._check_silence()
            self.chats.show(self._desk.chat, message)

    def delete_chat(self, chat_id: str) -> None:
        """Raises:
        Busy: an answer is being written into it.
        """
        with self._lock:
            if chat_id == self._desk.chat and self._desk.asking:
                raise Busy("An answer is being written into this chat.", "Stop it first.")
            self.chats.delete(chat_id)
            if chat_id == self._desk.chat:
                self._lay(self._chat_for(self._desk.book))
        if self._readings is not None:
            self._readings.forget_chat(chat_id)

    def claim(self) -> threading.Event:
        """Take the right to ask: one question at a time.

        Returns:
            an event that is set when somebody wants this question stopped.

        Raises:
            Busy: another question is waiting or being answered.
        """
        with self._lock:
            if self._asking is not None:
                raise Busy("Another tab is asking a question.", "Wait for its answer, or stop it.")
            self._asking = threading.Event()
            self._desk = replace(self._desk, asking=True)
            return self._asking

    def release(self, claim: threading.Event) -> None:
        with self._lock:
            if self._asking is claim:
                self._asking = None
                self._desk = replace(self._desk, asking=False)

    def stop_asking(self) -> None:
        with self._lock:
            if self._asking is not None:
                self._asking.set()

    def show(self, **changes: Any) -> None:
        """Figures, scores and pace of the answer that is being written."""
        with self._lock:
            self._desk = replace(self._desk, **changes)

    def close(self) -> None:
        self._job.cancel()
        self.stop_asking()
        self.engine.close()
        self.chats.save_now()

    # For ``opening`` -----------------------------------------------------------------------------------------

    def set(self, job: Job, **changes: Any) -> None:
        """Change the desk, unless another book has been put on it."""
        with self._lock:
            if job is self._job:
                self._desk = replace(self._desk, **changes)
                self._mark()

    def go_on_reading(self, job: Job) -> bool:
        """Whether the reading that was paused for a question goes on now, in one step with saying so."""
        with self._lock:
            if self._desk.asking and not job.cancelled:
                return False
            self.set(job, paused=False, read=None)
            job.paused = False
            return True

    def _take_over(self, **changes: Any) -> Job:
        """End what runs, and begin a new state of the desk."""
        with self._lock:
            self._job.cancel()
            self.stop_asking()
            self._job = Job()
            self._desk = replace(Desk(asking=self._desk.asking, **changes), chat=self._chat_for(changes.get("book")))
            self._mark()
            return self._job

    def _chat_for(self, book: Book | None) -> str:
        """The chat on the desk if it is about this book, else the last one that was, else a new one."""
        if book is None:
            return ""
        shown = self.chat
        if shown is not None and shown.book == book.sha256:
            return shown.id
        lines = self.chats.of_book(book.sha256)
        return lines[0].id if lines else self.chats.begin(book.sha256).id

    def _mark(self) -> None:
        desk = self._desk
        ready = desk.stage in (Stage.READY, Stage.CHOOSING, Stage.LOCKED)
        self._bookmark.keep(Mark(desk.book.sha256, desk.chat, ready) if desk.book else None)
