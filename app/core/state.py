"""Holds the state of the program: the open book, the progress of reading it, the shown chat, and the tab whose question
is being answered.

``AppState`` owns one immutable record, ``OpenBook``, and replaces it under a lock at every change. The program has one
engine and one user, so it has one open book, and every tab of the browser shows this book.

The functions below the class open a book: they parse its file, measure the book and read it. They run in a thread. A
``Job`` represents their work and can be cancelled. An error in this thread is written into ``OpenBook`` as a sentence
for the user.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.core import books
from app.core.book_parser import BookParser, Reader
from app.core.bookmark import Bookmark, Mark, keep_value, kept_value
from app.core.books import Book, Books
from app.core.chats import Chat, Chats, Trouble
from app.core.forecast import Experience, Remaining
from app.core.notes import NOTES, NoteStore, books_of, to_read
from app.core.open_book import Action, Awaited, OpenBook, Pictured, Recognising, Stage
from app.core.parts import Part, cut
from app.core.question import AnswersFrom, Ask
from app.core.signal import Signal
from app.readers.conversion import ConversionOffer
from app.readers.recognised import PICTURE
from app.readers.recognition import LongRecognition, Recognition, missing
from app.trust.citations import CitationFinder
from engine import HANDOVER_S, EngineLike
from engine.document import Document, Reading
from engine.errors import Busy, ContextTooSmall, DocumentError, OptionError, PasswordNeeded, TrifoldError
from engine.events import BookRead, ReadingProgress
from engine.plan import BookFit

if TYPE_CHECKING:
    from engine.kv.snapshots import SnapshotStore

logger = logging.getLogger(__name__)

_PATIENCE = 0.05  # seconds between two checks of a value that another thread changes
_CLOSE_S = 5.0  # maximum seconds to wait for a thread that is about to write into the library, when the program ends
_COMMENTS, _PICTURES, _IN_PARTS, _SOURCE = (
    "comments",
    "pictures",
    "in parts",
    "source",
)  # keys of values in the database table ``app_state``
_MOST_IN_PARTS = 200  # maximum number of books that are remembered as read in parts; the oldest are forgotten


class Job:
    """The work of opening and reading one book, which can be cancelled."""

    def __init__(self) -> None:
        self.cancelled = False
        self.ended = threading.Event()  # cleared while a thread works for this job
        self.ended.set()
        self.stop = threading.Event()  # set to end the engine's current request to read
        self.enough = threading.Event()  # set when the user wants no more pages to be recognised

    def cancel(self) -> None:
        self.cancelled = True
        self.enough.set()
        self.stop.set()


class AppState:
    """The state of the program. Every method may be called from any thread. ``delete``, ``close``, and ``stop_asking``
    with the argument ``wait`` may take seconds; all other methods return at once.

    Args:
        engine: the engine of this machine, a server, or a proxy of either.
        books: the store of the books' files.
        chats: the store of questions and answers.
        read_document: turns a file into a document.
        snapshots: the store of the books' KV on disk, keyed by the books' hashes.
        experience: stores the durations of earlier readings and answers on this machine, from which times are
            estimated.
    """

    def __init__(
        self,
        engine: EngineLike,
        books: Books,
        chats: Chats,
        read_document: Reader,
        snapshots: SnapshotStore | None = None,
        experience: Experience | None = None,
    ) -> None:
        self.engine = engine
        self.books = books
        self.chats = chats
        self.notes = NoteStore(chats.database)
        self._snapshots = snapshots
        self.experience = experience or Experience()
        self._bookmark = Bookmark(chats.database)
        comments = kept_value(chats.database, _COMMENTS) is not False
        pictures = kept_value(chats.database, _PICTURES) is not False
        self.parser = BookParser(books, read_document, comments=comments, pictures=pictures)
        self._record = OpenBook()
        self._lock = threading.RLock()
        self._released = threading.Condition(self._lock)
        self._job = Job()
        self._asking: threading.Event | None = None
        self._check = threading.Event()  # set to stop the check of what the last question assumes
        self._gives_way = False  # whether a question of the person stops the one that is being answered
        self.source = _source(kept_value(chats.database, _SOURCE))
        self.citation_finder = CitationFinder()

    @property
    def changed(self) -> Signal:
        """Sent when the open book, a growing answer or a table of the database has changed."""
        return self.chats.database.changed

    @property
    def current(self) -> OpenBook:
        """The record of the open book. Only this class replaces it, and a new record is announced to the pages."""
        return self._record

    @current.setter
    def current(self, record: OpenBook) -> None:
        self._record = record
        self.changed.send()

    @property
    def chat(self) -> Chat | None:
        return self.chats.get(self.current.chat)

    # The book ------------------------------------------------------------------------------------------------

    def open(
        self,
        book: Book,
        password: str | None = None,
        chat: str = "",
        *,
        recognise: bool = False,
        agreed: Collection[str] = (),
        put_off: bool = False,
    ) -> None:
        """Open another book and read it. Show the chat with the id ``chat``. If that is "", show the last chat about
        the book, or begin a chat.

        Args:
            recognise: whether to run text recognition on pages that are pictures and on pages whose text is doubtful,
                however long this takes. If it is False, pages that are pictures are recognised if that is quick.
            agreed: hashes of files whose pages that are pictures are recognised however long this takes.
            put_off: whether the reading waits for the first question (``read_for``), unless all of it comes back from
                disk.
        """
        with self._lock:
            if chat:
                self.current = replace(self.current, chat=chat)
            job = self._take_over(stage=Stage.OPENING, book=book, converts=self.parser.may_convert(book))
        how = _recognition(self, job, recognise=recognise)
        start(self, job, lambda: open_book(self, job, book, password, how, agreed, put_off))

    @property
    def comments(self) -> bool:
        """Whether comments in a book's file, by readers or reviewers, are read as part of the book."""
        return self.parser.comments

    def read_comments(self, enabled: bool) -> None:
        """Set whether comments in a book's file, by readers or reviewers, are read as part of the book. An open book is
        opened again after a change.
        """
        with self._lock:
            if enabled == self.parser.comments:
                return
            self.parser.read_comments(enabled)
            keep_value(self.chats.database, _COMMENTS, enabled)
            if (book := self.current.book) is not None:
                self.open(book)

    def read_pictures(self, enabled: bool) -> None:
        """Set whether the words of charts and other pictures beside the text are read as part of the book. An open book
        is opened again after a change.
        """
        with self._lock:
            if enabled == self.parser.pictures:
                return
            self.parser.read_pictures(enabled)
            keep_value(self.chats.database, _PICTURES, enabled)
            if (book := self.current.book) is not None:
                self.open(book)

    def read_pictured(self) -> None:
        """Let the model read the open book with the words of its pictures. What stands before the first of these words
        is not read again.
        """
        with self._lock:
            if (pictured := self.current.pictured) is not None:
                self.current = replace(self.current, whole=pictured.document, whole_fit=None, parts=())
                self._read(pictured.document)

    def answer_from(self, source: AnswersFrom) -> None:
        """Set what answers come from. An open book is read, or its reading is stopped, if the change says so."""
        with self._lock:
            before, self.source = self.source, source
            keep_value(self.chats.database, _SOURCE, source.value)
            if before is not source and AnswersFrom.PASSAGES in (before, source):
                self.read_again()

    def as_set(self, asked: Ask) -> Ask:
        """A question as the person's settings have it."""
        if self.source is AnswersFrom.PASSAGES:
            return replace(asked, now=True, whole=False)
        return replace(asked, whole=True) if self.source is AnswersFrom.WHOLE and not asked.now else asked

    def is_open(self, book: Book) -> bool:
        """Whether a book is open with all its pages, or is on the way there. True while the book is opened or read, and
        when questions about all its pages can be asked. False while the user chooses pages, or if only chosen pages can
        be asked about.
        """
        current = self.current
        if current.book is None or current.book.sha256 != book.sha256:
            return False
        ready = current.stage in (Stage.READY, Stage.PARTS, Stage.UNREAD) and current.document is current.whole
        return ready or current.stage in (Stage.OPENING, Stage.WAITING, Stage.READING)

    def arrange(
        self, hashes: Sequence[str], *, as_new: bool = False, open_sha256: str = "", agreed: Collection[str] = ()
    ) -> None:
        """Open the documents with these hashes, in this order, as one book and read it. If documents of the open
        collection were only moved or left out, the reading waits for the first question. A collection of which a single
        document is left is deleted, and its chats become chats about this document.

        Args:
            as_new: whether to make a new collection. If it is False and a collection is open, the open collection gets
                these documents instead of its own.
            open_sha256: hash of the book that the user's page showed; "" if unknown. If a different book is open by
                now, that book is not changed.
            agreed: hashes of files whose pages that are pictures are recognised however long this takes, because the
                user has agreed (``app.core.several.Cost.recognises``).

        Raises:
            DocumentError: a document is no longer in the library.
            ResourceError: the data folder cannot be written.
        """
        documents = [self.books.get(sha256) for sha256 in hashes]
        current = self.current.book
        changed = current if current is not None and current.is_collection and not as_new else None
        changed = changed if changed is not None and open_sha256 in ("", changed.sha256) else None
        known = set(self.books.listed(changed)) if changed is not None else set()
        fewer = bool(known) and known.issuperset(hashes)
        if changed is not None and fewer and len(set(hashes)) == 1:
            chat = self.current.chat
            self.chats.move(changed.sha256, hashes[0])
            self.open(documents[0], chat=chat, agreed=agreed, put_off=True)
            self.delete(changed.sha256)
        else:
            self.open(self.books.collect(documents, changed), agreed=agreed, put_off=fewer)

    def rename(self, sha256: str, name: str) -> None:
        """Give a book a name, which the page shows instead of its title. The model and citations keep the title.

        Raises:
            DocumentError: there is no such book.
            ResourceError: the data folder cannot be written.
        """
        book = self.books.rename(sha256, name)
        with self._lock:
            if self.current.book is not None and self.current.book.sha256 == sha256:
                self.current = replace(self.current, book=book)

    def read_for(self, asked: Ask) -> None:
        """Begin to read an open book whose reading waits for a question. Its pictures waited too. A reading that the
        person stopped does not begin again by itself.
        """

        def look(job: Job) -> None:
            _look_at_pictures(self, job, _recognition(self, job, recognise=False))

        with self._lock:
            current = self.current
            waits = current.stage is Stage.UNREAD and self.source is not AnswersFrom.PASSAGES
            if waits and not asked.now and not current.asking and current.document is not None and current.read is None:
                self._read(current.document, look)

    def choose(self, first: int, last: int) -> None:
        """Let the model read only the pages ``first`` to ``last`` (numbers from 1, both included) of the open book,
        because the whole book does not fit into its window.
        """
        whole = self.current.whole
        if whole is not None:
            self._read(whole.select(first, last))

    def choose_pages(self, numbers: Collection[int]) -> None:
        """Let the model read only these pages of the open book, because the whole book does not fit into its window.

        Raises:
            OptionError: the book has none of these pages.
        """
        whole = self.current.whole
        if whole is not None:
            some = whole.only(numbers)
            if not some.pages:
                raise OptionError("No chapter is chosen.", "Tick one.")
            self._read(whole if len(some.pages) == len(whole.pages) else some)

    def read_in_parts(self) -> None:
        """Switch the open book to reading in parts. Each question is then put to parts of the book instead of the whole
        book.

        Raises:
            OptionError: the book has no parts, because it fits or because a page is longer than a part.
        """
        with self._lock:
            if not self.current.parts:
                raise OptionError("This book cannot be read in parts.", "Choose pages of it instead.")
            self._turn_to(Stage.PARTS)

    def choose_again(self) -> None:
        """Let the user choose again which pages of the open book to read."""
        with self._lock:
            if self.current.whole_fit is not None:
                self._turn_to(Stage.CHOOSING)

    def _turn_to(self, stage: Stage) -> None:
        """Stop the current reading. Reset the record ``OpenBook`` to the whole book at ``stage``, with no page read."""
        current = self.current
        kept = {name: getattr(current, name) for name in ("book", "whole", "whole_fit", "parts")}
        self._take_over(stage=stage, document=current.whole, fit=current.whole_fit, **kept)
        if current.book is not None:
            self._remember_parts(current.book.sha256, stage is Stage.PARTS)

    def was_in_parts(self, book: Book | None) -> bool:
        """Whether a book was read in parts when it was last open."""
        return book is not None and book.sha256 in self._books_in_parts()

    def _books_in_parts(self) -> list[str]:
        known = kept_value(self.chats.database, _IN_PARTS)
        return known if isinstance(known, list) else []

    def _remember_parts(self, sha256: str, in_parts: bool) -> None:
        known = self._books_in_parts()
        if (sha256 in known) != in_parts:
            others = [one for one in known if one != sha256]
            keep_value(self.chats.database, _IN_PARTS, [*others, sha256][-_MOST_IN_PARTS:] if in_parts else others)

    def read_again(self) -> None:
        """Let the model read the open document again. Whether the book fits is also measured again, because the model
        may have changed.
        """
        with self._lock:
            self.current = replace(self.current, whole_fit=None, parts=())
            # a book that is still being opened, or waits for a model, is left to its job, which will measure and read
            # it with the new model
            if self.current.document is not None and self.current.stage not in (Stage.OPENING, Stage.WAITING):
                self._read(self.current.document)

    def read_notes(self) -> None:
        """Let the model read the notes on the open book instead of the book, and begin a chat about the notes.

        Raises:
            Busy: an answer is being written.
            OptionError: no page has a note.
        """
        with self._lock:
            self._check_silence()
            current = self.current
            if current.book is None or current.whole is None:
                raise OptionError("No book is open.", "Open one first.")
            notes = to_read(current.whole, self.notes.of(books_of(current.whole, current.book.sha256)))
            if not notes.pages:
                raise OptionError("There are no notes on the pages of this book.", "Mark a passage and note it first.")
            before = current.before_notes or (current.document or current.whole, current.chat)
            self.begin_chat()
            self._read(notes)
            self.current = replace(self.current, before_notes=before)

    def leave_notes(self) -> None:
        """Return from the notes to the book's text and to the chat that was open before.

        Raises:
            Busy: an answer is being written.
        """
        with self._lock:
            self._check_silence()
            if self.current.before_notes is not None:
                document, chat = self.current.before_notes
                if self.chats.get(chat) is not None:
                    self._show(chat)
                self._read(document)

    def stop_reading(self) -> None:
        """Cancel the reading. Questions about the pages read so far are still possible. If the file is still being
        opened, only the recognition of its pages is stopped, and the reading follows. The recognition of pictures
        beside the text, which follows the reading, is stopped too.
        """
        if self.current.stage is Stage.OPENING:
            self._job.enough.set()
        else:
            self._job.cancel()

    def restore(self) -> None:
        """Open the book that was open when the program ended, if it was ready, read in parts, locked or waiting for a
        choice of pages. A book that was still being opened or read, or whose opening had failed, is not opened.
        """
        mark = self._bookmark.find()
        if mark is None or not mark.ready or self.current.book is not None:
            return
        try:
            book = self.books.get(mark.book)
        except DocumentError:
            return
        self.open(book, chat=mark.chat)

    def close_book(self) -> None:
        """Close the open book, and give the memory of its reading back."""
        with self._lock:
            self._take_over()
            self.citation_finder.forget()
            self.engine.forget_book()

    def delete(self, sha256: str) -> None:
        """Delete a book, its chats and notes, and everything made from its file.

        Raises:
            DocumentError: there is no such book, or a collection contains it.
            ResourceError: its files cannot be deleted.
        """
        self.books.get(sha256)
        self.books.check_unused(sha256)
        job, here = self._job, self.current.book is not None and self.current.book.sha256 == sha256
        if here:
            self.close_book()
            job.ended.wait(HANDOVER_S)
            self.stop_asking(wait=HANDOVER_S)
        self.books.forget(sha256)
        self.chats.forget_book(sha256)
        self.notes.forget_book(sha256)
        self.parser.passwords.pop(sha256, None)
        self._remember_parts(sha256, False)
        if self._snapshots is not None:
            for book in (sha256, *(holder.sha256 for holder in self.books.collections_that_had(sha256))):
                self._snapshots.forget(book)

    def size_of(self, book: Book) -> int:
        """Bytes on disk of a book and of everything made from its file."""
        kept = self._snapshots.size_of(book.sha256) if self._snapshots is not None else 0
        return self.books.size(book) + int(kept)

    def _read(self, document: Document, after: Callable[[Job], None] = lambda job: None) -> None:
        current = self.current
        if current.book is not None and document is not current.whole and document.kind != NOTES:
            self._remember_parts(current.book.sha256, False)
        kept = {name: getattr(current, name) for name in ("book", "whole", "whole_fit", "parts")}
        before = current.before_notes if document.kind == NOTES else None
        job = self._take_over(stage=Stage.WAITING, document=document, **kept, before_notes=before)

        def work() -> None:
            prepare(self, job, document)
            after(job)

        start(self, job, work)

    # Chats about the open book ------------------------------------------------------------------------------

    def begin_chat(self) -> None:
        """Begin an empty chat about the open book.

        Raises:
            Busy: an answer is being written.
        """
        with self._lock:
            if self.current.book is not None:
                self._check_silence()
                self.show_chat(self.chats.begin(self.current.book.sha256).id)

    def show_chat(self, chat_id: str) -> None:
        """Show a different chat about the open book.

        Raises:
            Busy: an answer is being written.
        """
        with self._lock:
            self._check_silence()
            self._show(chat_id)

    def _show(self, chat_id: str) -> None:
        """Show a chat. Reset the highlighted pages, because they belong to an answer of the previous chat."""
        if chat_id != self.current.chat:
            self.current = replace(self.current, chat=chat_id, scores=())
        self._mark()

    def _check_silence(self) -> None:
        self._let_give_way()
        if self.current.asking:
            raise Busy("An answer is being written.", "Stop it, or wait for its end.")

    def show_version(self, message: int) -> None:
        """Show another version of a question or an answer of the open chat.

        Raises:
            Busy: an answer is being written into this chat.
        """
        with self._lock:
            self._check_silence()
            self.chats.show(self.current.chat, message)

    def delete_chat(self, chat_id: str) -> None:
        """Delete a chat.

        Raises:
            Busy: an answer is being written into the chat.
        """
        with self._lock:
            if chat_id == self.current.chat and self.current.asking:
                raise Busy("An answer is being written into this chat.", "Stop it first.")
            self.chats.delete(chat_id)
            if chat_id == self.current.chat:
                self._show(self._chat_for(self.current.book))
        if self._snapshots is not None:
            self._snapshots.forget_chat(chat_id)

    def claim(self, tab: str = "", *, gives_way: bool = False) -> threading.Event:
        """Reserve the right to ask one question. Only one question may be asked at a time.

        Args:
            tab: the tab that asks.
            gives_way: whether the question is stopped as soon as another one wants this right, because no person waits
                for it.

        Returns:
            an event; setting it stops this question.

        Raises:
            Busy: another question is waiting or being answered.
        """
        with self._lock:
            self._check.set()
            if not gives_way:
                self._let_give_way()
            if self._asking is not None:
                raise Busy("Another question is being answered.", "Wait for its answer, or stop it.")
            self._asking, self._gives_way = threading.Event(), gives_way
            begun = replace(self.current, asking=True, asked_by=tab, waiting="", cited=None)
            self.current = replace(begun, figures=None, pace=())
            return self._asking

    def release(self, claim: threading.Event) -> None:
        with self._lock:
            if self._asking is claim:
                self._asking = None
                self.current = replace(self.current, asking=False)
                self._released.notify_all()

    def begin_check(self) -> threading.Event:
        """Begin a check after an answer. Returns an event, which the next question sets to stop it."""
        with self._lock:
            self._check.set()
            self._check = threading.Event()
            return self._check

    def _let_give_way(self) -> None:
        """Stop the question that is being answered if it gives way, and wait until it has ended."""
        if self._gives_way:
            self.stop_asking(wait=HANDOVER_S)

    def wait_for_whole(self, awaited: Awaited) -> None:
        """Remember that the whole book is to answer a question again."""
        with self._lock:
            if awaited.answer not in self.current.awaited_answers:
                self.current = replace(self.current, awaited=(*self.current.awaited, awaited))

    def wait_no_longer(self, answer: int) -> None:
        """Forget that the whole book is to answer the question of this answer again. If it is doing so, stop it."""
        with self._lock:
            left = tuple(one for one in self.current.awaited if one.answer != answer)
            self.current = replace(self.current, awaited=left)
            chat = self.chat
            written = chat.open_exchange if chat else None
            if self._gives_way and written is not None and written.answer_id == answer:
                self.stop_asking()

    def read_back(self, claim: threading.Event, document: Document | None) -> None:
        """End a run that put questions to other documents (``app.core.each``): release its right to ask, and read the
        open book again, because the other documents have replaced it in the engine.

        Args:
            claim: the event that ``AppState.claim`` returned to the run.
            document: the document that was open before the run. If it is no longer open, nothing is read.
        """
        with self._lock:
            current = self.current
            if document is not None and current.document is document and current.stage is Stage.READY:
                self._read(document)
                self.current = replace(self.current, before_notes=current.before_notes)
            self.release(claim)

    def stop_asking(self, wait: float = 0.0) -> None:
        """Stop the question that is being answered, and wait up to ``wait`` seconds until it has ended."""
        with self._lock:
            if self._asking is not None:
                self._asking.set()
            self._released.wait_for(lambda: self._asking is None, wait)

    def leave(self) -> None:
        """Stop the answer if its question came from a tab of the browser. Called when no tab has been connected for a
        while.
        """
        with self._lock:
            if self.current.asked_by:
                self.stop_asking()

    def show(self, **changes: Any) -> None:
        """Change fields of ``OpenBook`` that describe the growing answer, such as figures and page scores."""
        with self._lock:
            self.current = replace(self.current, **changes)

    def close(self) -> None:
        """End all work, save what it made, and close the library."""
        job = self._job
        job.cancel()
        self.stop_asking()
        self.engine.close()
        job.ended.wait(_CLOSE_S)
        self.stop_asking(wait=_CLOSE_S)
        self.chats.save_now()
        self.chats.database.close()

    # Called by the functions below the class -----------------------------------------------------------------

    def set(self, job: Job, **changes: Any) -> None:
        """Change fields of ``OpenBook`` for a job. Do nothing if a newer job has replaced this job."""
        with self._lock:
            if job is self._job:
                self.current = replace(self.current, **changes)
                self._mark()

    def forget_other(self, job: Job) -> None:
        """Give the memory of the last reading back, because the book of this job is not read for now. Do nothing if a
        newer job has replaced this job.
        """
        with self._lock:
            if job is self._job:
                self.engine.forget_book()

    def _take_over(self, **changes: Any) -> Job:
        """Cancel the running job, stop the answer, and replace ``OpenBook`` by a new record. Return a new job."""
        with self._lock:
            self._job.cancel()
            self.stop_asking()
            self._job = Job()
            self.current = replace(
                OpenBook(asking=self.current.asking, **changes), chat=self._chat_for(changes.get("book"))
            )
            self._mark()
            return self._job

    def _chat_for(self, book: Book | None) -> str:
        """Return the id of the open chat if this chat is about the book. Otherwise return the id of the last chat about
        the book, or of a new chat if there is none. Without a book, return "".
        """
        if book is None:
            return ""
        shown = self.chat
        if shown is not None and shown.book == book.sha256:
            return shown.id
        lines = self.chats.of_book(book.sha256)
        return lines[0].id if lines else self.chats.begin(book.sha256).id

    def _mark(self) -> None:
        current = self.current
        ready = current.stage in (Stage.READY, Stage.PARTS, Stage.CHOOSING, Stage.LOCKED, Stage.UNREAD)
        self._bookmark.keep(Mark(current.book.sha256, current.chat, ready) if current.book else None)


def _source(kept: Any) -> AnswersFrom:
    """What answers come from, as stored; the default if nothing valid is stored."""
    try:
        return AnswersFrom(kept)
    except ValueError:
        return AnswersFrom.FIRST


def start(state: AppState, job: Job, work: Callable[[], None]) -> None:
    """Run the work of a job in a thread. An error is written into ``OpenBook`` as a sentence for the user."""
    job.ended.clear()
    threading.Thread(target=_guarded, args=(state, job, work), name="trifold-book", daemon=True).start()


def open_book(
    state: AppState,
    job: Job,
    book: Book,
    password: str | None,
    recognition: Recognition,
    agreed: Collection[str],
    put_off: bool,
) -> None:
    """Parse a book's file, measure the book and read it, unless its reading is put off (``AppState.open``)."""
    path = state.books.path(book)
    document = state.parser.parse(book, password, recognition, agreed)
    if job.cancelled:
        return
    kept = state.books.remember(
        book, title=document.title, author=document.author, pages=len(document.pages), unit=document.unit
    )
    books.draw_cover(path, document, password)
    unseen = sum(page.pictures for page in document.pages) if state.parser.pictures and not missing() else 0
    state.set(job, book=kept, whole=document, document=document, recognising=None, unseen=unseen)
    prepare(state, job, document, put_off)
    if not put_off or state.current.stage is not Stage.UNREAD:
        _look_at_pictures(state, job, recognition, password, agreed)


def _look_at_pictures(
    state: AppState, job: Job, recognition: Recognition, password: str | None = None, agreed: Collection[str] = ()
) -> None:
    """Recognise the words of the open book's pictures beside the text, after the book has been read. If there are any,
    the page offers to read them; if the model reads no book, they are part of the book at once. After an error the book
    stays as it was read.
    """
    current = state.current
    book, document = current.book, current.whole
    waits = document is not None and any(page.pictures for page in document.pages)
    if job.cancelled or book is None or document is None or not waits or not state.parser.pictures or missing():
        return
    try:
        with_words = state.parser.parse(book, password, replace(recognition, pictures="all"), agreed)
    except TrifoldError:
        return
    finally:
        state.set(job, recognising=None)
    pictures = sum(page.text.count(PICTURE) for page in with_words.pages)
    if job.cancelled or [page.text for page in with_words.pages] == [page.text for page in document.pages]:
        return
    model = state.engine.status().model
    fit = state.experience.corrected(model, state.engine.measure(with_words))
    time = state.experience.reading_on(model, fit)
    state.set(job, pictured=Pictured(with_words, pictures, time))
    if state.source is AnswersFrom.PASSAGES and not job.cancelled:
        state.read_pictured()


def prepare(state: AppState, job: Job, document: Document, put_off: bool = False) -> None:
    """Wait for the model, measure the book, and read the book if it fits. If it does not fit, read it in parts if it
    was read in parts before, otherwise let the user choose pages.

    Args:
        put_off: whether the reading waits for a question, unless all of it comes back from disk.
    """
    state.set(job, stage=Stage.WAITING, document=document)
    state.citation_finder.prepare(document)
    while state.engine.status().state == "loading":
        if job.cancelled:
            return
        time.sleep(_PATIENCE)
    state.engine.wait_ready(HANDOVER_S)
    model = state.engine.status().model
    fit = state.experience.corrected(model, state.engine.measure(document))
    total = state.experience.reading(model, fit.tokens, fit.reading_s)
    state.set(job, fit=fit, remaining=Remaining(total))
    whole = state.current.whole
    if whole is not None and (document is whole or state.current.whole_fit is None):
        of_whole = fit if document is whole else state.experience.corrected(model, state.engine.measure(whole))
        state.set(job, whole_fit=of_whole, parts=() if of_whole.fits else _in_parts(whole, of_whole))
    if state.source is AnswersFrom.PASSAGES or (put_off and fit.fits and fit.kept < fit.tokens):
        state.set(job, stage=Stage.UNREAD)
        state.forget_other(job)
    elif fit.fits:
        _read(state, job, document)
    else:
        current = state.current
        again = document is current.whole and current.parts and state.was_in_parts(current.book)
        state.set(job, stage=Stage.PARTS if again else Stage.CHOOSING)
        state.forget_other(job)


def _in_parts(document: Document, fit: BookFit) -> tuple[Part, ...]:
    """Cut a book that exceeds the window into parts. Empty if a page is longer than a part, or if the engine has not
    measured the pages.
    """
    with suppress(ContextTooSmall):
        return cut(document, fit) if fit.page_tokens else ()
    return ()


def _read(state: AppState, job: Job, document: Document) -> None:
    """Let the model read the book. Questions that come meanwhile are answered beside it (``engine.aside``)."""
    state.set(job, stage=Stage.READING)
    request = state.engine.read(Reading(document, wait=HANDOVER_S), cancel=job.stop)
    try:
        for event in request:
            if isinstance(event, ReadingProgress):
                state.set(job, progress=event, remaining=state.current.remaining.after(event))
        read = request.result()
    except TrifoldError as error:
        _fail(state, job, error, Stage.FAILED, Action.READ_AGAIN)
        return
    state.experience.read(state.engine.status().model, read)
    _finish(state, job, read)


def _finish(state: AppState, job: Job, read: BookRead) -> None:
    """Keep the result of a reading. If the person stopped it before a page was read, questions are answered from
    passages, and the reading waits until the person begins it (``AppState.read_again``).
    """
    if read.stopped and not read.pages_read:
        state.set(job, stage=Stage.UNREAD, read=read)
        return
    state.set(job, stage=Stage.READY, read=read)
    book = state.current.book
    document = state.current.document
    if book is not None and document is not None and document.kind != NOTES:
        state.set(job, book=state.books.read(book, tokens=read.tokens_total, pages_read=read.pages_read))


def _guarded(state: AppState, job: Job, work: Callable[[], None]) -> None:
    """Run the work of a job. Write an error into ``OpenBook`` as a sentence for the user, with the stage and the button
    that fit the error.
    """
    try:
        work()
    except PasswordNeeded as error:
        _fail(state, job, error, Stage.LOCKED, Action.PASSWORD)
    except ContextTooSmall as error:
        _fail(state, job, error, Stage.CHOOSING, Action.NONE)
    except LongRecognition as error:
        _fail(state, job, error, Stage.FAILED, Action.RECOGNISE)
    except ConversionOffer as error:
        _fail(state, job, error, Stage.FAILED, Action.CONVERT)
    except TrifoldError as error:
        if isinstance(error, DocumentError):
            _forget_unreadable(state, job)
        _fail(state, job, error, Stage.FAILED, Action.OTHER_BOOK)
    except Exception:  # the page must show any error; the log has the traceback
        logger.exception("opening a book failed")
        surprise = TrifoldError("Something in Trifold broke while opening this book.", "Try again.")
        _fail(state, job, surprise, Stage.FAILED, Action.OPEN_AGAIN)
    finally:
        job.ended.set()


def _fail(state: AppState, job: Job, error: TrifoldError, stage: Stage, action: Action) -> None:
    state.set(job, stage=stage, trouble=Trouble(error.cause, error.remedy), action=action)


def _forget_unreadable(state: AppState, job: Job) -> None:
    """Remove the open book from the library if its file has never been parsed."""
    book = state.current.book
    if not job.cancelled and book is not None:
        try:
            if not state.books.get(book.sha256).pages:
                state.books.forget(book.sha256)
        except TrifoldError as error:
            logger.warning("a file that is no book stays in the library: %s", error)


def _recognition(state: AppState, job: Job, *, recognise: bool) -> Recognition:
    """Make the settings of text recognition for a job. The progress of the recognition is written into ``OpenBook``."""

    def show(done: int, total: int, seconds: float | None) -> None:
        state.set(job, recognising=Recognising(done, total, seconds))

    return Recognition(state.books.folder, agreed=recognise, doubtful=recognise, stop=job.enough, progress=show)
