"""Asks several documents the same question, one document at a time ("Ask each"), stores the answers, and continues a
stopped run.

    each = AskEach(state)
    each.start(Ask("What is the notice period?"), [sha256, ...])      returns at once
    each.run                                                                     the state of the run, for the page

Every document is read alone, or restored from disk, and its answer is stored in its folder. A document that has
answered a question is not asked this question again, even after a stop or a restart. During a run no other question can
be asked. Stopping the answer, or opening another book, stops the run. A run begins when the model has been loaded and
the open book has been read. After the run, the open book is read again.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.core.answer_table import COLUMNS, Asked, Row, ask_document, table_of
from app.core.bookmark import keep_value, kept_value
from app.core.books import Book
from app.core.question import Ask
from app.core.state import AppState
from app.core.whole_files import write_whole
from app.readers.conversion import ConversionOffer
from app.readers.recognition import LongRecognition, Recognition
from app.sealed import BROKEN, seal, unseal
from engine.document import Reading
from engine.errors import Busy, ContextTooSmall, ModelError, OptionError, PasswordNeeded, TrifoldError
from engine.events import AnswerStarted, Event, ReadingProgress

logger = logging.getLogger(__name__)

FILE = "asked.json"
"""The file with a document's answers, in the document's folder. Each answer is a sealed line of its own, so that damage
loses only the answers that it hits.
"""
_RUN = "each"  # key of the most recent run in the table ``app_state``
_MOST_KEPT = 200  # maximum number of questions whose answers are stored for a document
_POLL_S = 0.05  # seconds between two checks whether a run can begin


@dataclass(frozen=True)
class Answer:
    """One document's answer: its row of the table, and the passages that support it, with their pages."""

    row: Row
    places: list[dict[str, Any]] = field(default_factory=list)

    @property
    def error(self) -> str:
        """The error that prevented an answer about the document; "" if there was no error."""
        return self.row.get("error", "")


@dataclass(frozen=True)
class EachRun:
    """A question, the hashes of its documents, and its progress.

    ``answers`` are keyed by document. ``running``: whether the run has not ended yet. ``document`` is the document that
    is being asked ("" while the run waits to begin). ``read`` is the share of this document that has been read, and
    ``is_answering`` says whether its answer has begun. ``stopping``: whether the person has stopped the run.
    ``unkept``: whether an answer could not be written to disk, and is lost when the program ends.
    """

    question: str = ""
    documents: tuple[str, ...] = ()
    answers: Mapping[str, Answer] = field(default_factory=dict)
    running: bool = False
    stopping: bool = False
    document: str = ""
    read: float = 0.0
    is_answering: bool = False
    unkept: bool = False

    @property
    def left(self) -> int:
        """Number of documents that are still to be asked, including those whose answer is an error."""
        return sum(_is_open(self.answers.get(one)) for one in self.documents)


class AskEach:
    """Runs "Ask each", which puts one question to several documents. Every method may be called from any thread.

    Args:
        state: the state of the program.
    """

    def __init__(self, state: AppState) -> None:
        self.state = state
        self._claim: threading.Event | None = None
        self._lock = threading.Lock()
        self.run = self._last()

    def start(self, asked: Ask, documents: Sequence[str]) -> None:
        """Begin to ask the documents with these hashes, in this order. A collection stands for its documents. Returns
        at once.

        Raises:
            Busy: another question is being answered, or the model is being changed.
            DocumentError: a document is no longer in the library.
            ModelError: no model is loaded.
            OptionError: there is no document.
        """
        state = self.state
        books = [state.books.get(sha256) for sha256 in documents]
        parts = [part for book in books for part in (state.books.members(book) or (book,))]
        wanted = tuple(dict.fromkeys(part.sha256 for part in parts))
        if not wanted:
            raise OptionError("No document is chosen.", "Tick one.")
        status = state.engine.status()
        if status.model is None and status.state != "loading":
            raise ModelError("No model is loaded.", "Choose one in the settings.")
        current = state.current
        if status.state == "loading" and current.document is not None and not current.stage.is_on_the_way:
            # while the model is being changed, no run begins, because the open book is read again with the new model,
            # and that would stop the run
            raise Busy("The model is being changed.", "Wait until the new one is loaded.")
        self._claim = claim = state.claim()
        known = {one: answer for one in wanted if (answer := self._kept(one).get(asked.text)) is not None}
        with self._lock:
            self.run = EachRun(asked.text, wanted, known, running=True)
        keep_value(state.chats.database, _RUN, {"question": asked.text, "documents": wanted})
        asked = state.as_set(asked)
        threading.Thread(target=self._go, args=(asked, claim), name="trifold-each", daemon=True).start()

    def stop(self) -> None:
        """Stop the run. The answers so far stay stored."""
        if self._claim is not None and self.run.running:
            self._show(stopping=True)
            self._claim.set()

    def rows(self) -> list[tuple[Book, Answer | None]]:
        """The documents of the run that are still in the library, in order, each with its answer, or None if it has
        none.
        """
        run = self.run
        books = {book.sha256: book for book in self.state.books.all()}
        return [(books[one], run.answers.get(one)) for one in run.documents if one in books]

    def table(self) -> bytes:
        """The answers of the run as a CSV file, in the format of ``app.core.answer_table``."""
        return table_of(answer.row for _, answer in self.rows() if answer is not None)

    # The run -------------------------------------------------------------------------------------------------

    def _go(self, question: Ask, claim: threading.Event) -> None:
        state = self.state
        while self._has_to_wait() and not claim.wait(_POLL_S):
            pass
        # without a model no document can be asked; the page shows why none could be loaded
        if state.engine.status().model is None:
            claim.set()
        document = state.current.document
        try:
            for sha256 in self.run.documents:
                if claim.is_set():
                    break
                if _is_open(self.run.answers.get(sha256)):
                    self._show(document=sha256, read=0.0, is_answering=False)
                    self._ask(sha256, question, claim)
        finally:
            try:
                state.read_back(claim, document)
            # The run is marked as ended last, even after an error, so that another question can be asked as soon as the
            # page shows the end.
            finally:
                self._end(claim)

    def _has_to_wait(self) -> bool:
        return self.state.engine.status().state == "loading" or self.state.current.stage.is_on_the_way

    def _end(self, claim: threading.Event) -> None:
        with self._lock:
            if self._claim is claim:  # False if a newer run has begun, which must go on
                self.run = replace(self.run, running=False, stopping=False, document="", read=0.0, is_answering=False)

    def _ask(self, sha256: str, question: Ask, claim: threading.Event) -> None:
        """Ask one document. An error is written into the document's row. If the answer was stopped, the document gets
        no row.
        """
        row = dict.fromkeys(COLUMNS, "") | {"question": question.text, "sha256": sha256}
        try:
            book = self.state.books.get(sha256)
            row |= {"file": book.name, "title": book.shown}
            asked = self._answered(book, question, claim)
            if asked is None or asked.is_stopped:
                return
            answer = Answer(row | asked.row, asked.places)
        except TrifoldError as error:
            if claim.is_set():
                return
            answer = Answer(row | {"error": f"{error.cause} {_remedy(error)}".strip()})
        except Exception:  # the run continues with the other documents, and the log has the traceback
            logger.exception("asking a document failed")
            answer = Answer(row | {"error": "Something in Trifold broke while asking this document. Try again."})
        self._show(answers={**self.run.answers, sha256: answer})
        self._keep(sha256, question.text, answer)

    def _answered(self, book: Book, question: Ask, claim: threading.Event) -> Asked | None:
        """Ask a document and return the result; None if the run was stopped before the document was read."""
        books = self.state.books
        document = self.state.parser.parse(book, recognition=Recognition(books.folder, stop=claim))
        if claim.is_set():
            return None
        return self._followed(ask_document(self.state.engine, Reading(document), question, cancel=claim))

    def _followed(self, steps: Generator[Event, None, Asked]) -> Asked:
        while True:
            try:
                event = next(steps)
            except StopIteration as ended:
                asked: Asked = ended.value
                return asked
            if isinstance(event, ReadingProgress):
                self._show(read=event.tokens_done / max(1, event.tokens_total))
            elif isinstance(event, AnswerStarted):
                self._show(read=1.0, is_answering=True)

    def _show(self, **changes: Any) -> None:
        with self._lock:
            self.run = replace(self.run, **changes)

    # Stored answers ------------------------------------------------------------------------------------------

    def _last(self) -> EachRun:
        """The most recent run, restored from the database and the stored answers; an empty run if there was none."""
        kept = kept_value(self.state.chats.database, _RUN)
        try:
            question, documents = str(kept["question"]), tuple(map(str, kept["documents"]))
        except (TypeError, KeyError):
            return EachRun()
        known = {one: answer for one in documents if (answer := self._kept(one).get(question)) is not None}
        return EachRun(question, documents, known)

    def _kept(self, sha256: str) -> dict[str, Answer]:
        """The stored answers of a document, keyed by question; empty if there are none. Damaged answers are left
        out.
        """
        answers: dict[str, Answer] = {}
        try:
            content = (self.state.books.folder(sha256) / FILE).read_bytes()
        except OSError:
            return answers
        for line in content.splitlines():
            try:
                answers.update(_of_version_0(line) if line.startswith(b"{") else [_answer(unseal(line))])
            except BROKEN:
                logger.warning("a stored answer about %s is damaged, and is asked again", sha256)
        return answers

    def _keep(self, sha256: str, question: str, answer: Answer) -> None:
        folder = self.state.books.folder(sha256)
        if not folder.is_dir():  # the document was deleted while it was asked
            return
        every = self._kept(sha256)
        every.pop(question, None)
        newest = [*every.items(), (question, answer)][-_MOST_KEPT:]
        lines = [seal({"question": asked, "row": one.row, "places": one.places}) for asked, one in newest]
        try:
            write_whole(folder / FILE, b"".join(lines))
        except OSError as error:
            logger.warning("an answer was not kept: %s", error)
            self._show(unkept=True)


def _answer(record: Any) -> tuple[str, Answer]:
    """A stored answer and its question."""
    return str(record["question"]), Answer(dict(record["row"]), list(record["places"]))


def _of_version_0(line: bytes) -> list[tuple[str, Answer]]:
    """The answers in a file of before 0.2.0, which is one JSON object keyed by question."""
    return [_answer({"question": question, **kept}) for question, kept in json.loads(line).items()]


def _is_open(answer: Answer | None) -> bool:
    """Whether a document is still to be asked: it has no answer, or its answer is an error."""
    return answer is None or bool(answer.error)


def _remedy(error: TrifoldError) -> str:
    """The remedy to show after an error that prevented an answer about a document."""
    if isinstance(error, PasswordNeeded):
        return "Open it by itself once, with its password, and then go on."
    if isinstance(error, LongRecognition):
        return "Open it by itself once, and have its pages recognised."
    if isinstance(error, ConversionOffer):
        return "Open it by itself once, and have it converted."
    if isinstance(error, ContextTooSmall):
        return "Open it by itself, and choose pages of it or ask its parts."
    return error.remedy
