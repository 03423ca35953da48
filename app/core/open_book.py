"""Defines the record of the open book, which every tab of the browser shows. The record is immutable; a change replaces
it by a new record.

Owns the stages of a book on its way from a file to an answer, and the buttons that remedy a trouble. ``AppState``
replaces the record, and the page reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from app.core.books import Book
from app.core.chats import Exchange, Trouble
from app.core.forecast import Range, Remaining
from app.core.parts import Part
from app.core.question import Ask
from engine.document import Document
from engine.events import BookRead, Figures, ReadingProgress
from engine.plan import BookFit


class Stage(str, Enum):
    """How far the open book has come on the way from its file to answers."""

    EMPTY = "empty"  # no book is open
    OPENING = "opening"  # the book's file is being parsed
    LOCKED = "locked"  # the book needs a password
    CHOOSING = "choosing"  # the book does not fit into the window, and the person chooses pages
    WAITING = "waiting"  # the book waits for the model to be loaded
    READING = "reading"  # the model reads the book
    # questions are answered from passages, because the settings say that no book is read, the reading waits for a
    # question (``AppState.read_for``), or the person stopped it before a page was read
    UNREAD = "unread"
    READY = "ready"  # the person can ask questions about the book
    # the book does not fit into the window; a question goes to parts of it, each of which is read when first needed
    PARTS = "parts"
    FAILED = "failed"  # an error has ended the opening or the reading; see ``OpenBook.trouble``

    @property
    def is_on_the_way(self) -> bool:
        """Whether the book is still being opened or read, so that it will be ready without any action by the person."""
        return self in (Stage.OPENING, Stage.WAITING, Stage.READING)


class Action(str, Enum):
    """The button that the page shows beside a trouble, as its remedy."""

    OPEN_AGAIN = "open-again"
    READ_AGAIN = "read-again"
    RECOGNISE = "recognise"
    CONVERT = "convert"
    OTHER_BOOK = "other-book"
    PASSWORD = "password"
    NONE = ""


@dataclass(frozen=True)
class Recognising:
    """The progress of the recognition of pages that are pictures: ``done`` of ``total`` pages. ``seconds``: remaining
    time; None if unknown.
    """

    done: int
    total: int
    seconds: float | None


@dataclass(frozen=True)
class Pictured:
    """The open book with the words of its pictures, which were recognised after it had been read. ``pictures``: how
    many have words. ``time``: what reading them takes.
    """

    document: Document
    pictures: int
    time: Range | None


@dataclass(frozen=True)
class Awaited:
    """An answer from passages that the whole book will answer again when it has been read.

    ``chat`` is the id of its chat, ``answer`` the id of its message, and ``asked`` the question with its options.
    """

    chat: str
    answer: int
    asked: Ask


@dataclass(frozen=True)
class OpenBook:
    """The open book, the open chat and the answer being written, at one moment.

    - ``document``: the text that the model reads
    - ``converts``: whether LibreOffice may convert the file that is being opened
    - ``recognising``: progress of the recognition of pages that are pictures, or of pictures beside the text, which
      begins when the book has been read; None unless it is running
    - ``unseen``: number of such pictures that are looked at when the book has been read; 0 if that is switched off
    - ``pictured``: the document with the words of such pictures; None unless some were found and are not read yet
    - ``progress``: progress of the reading; ``read``: result of the reading
    - ``trouble``: why the book cannot be used; ``action``: the button that offers the remedy
    - ``chat``: id of the open chat; ``asking``: whether an answer is being written in a chat
    - ``figures``, ``pace``: speed of an answer being written in no chat, for a race or a program, and the points of
      its pace curve (``format.PacePoint``); None and () before its first token, and of an answer in a chat
    - ``scores``: how strongly the newest tokens attended to each page (``PagesScored``)
    - ``fit``: whether ``document`` fits into the window, as measured by the engine
    - ``whole``, ``whole_fit``: the document with all pages of the book, and whether it fits
    - ``parts``: the parts of a book that does not fit; empty if the book cannot be divided
    - ``remaining``: the remaining time of the reading
    - ``asked_by``: the tab whose question is being answered; "" if the question comes from no tab
    - ``waiting``: what the answer waits for, in words
    - ``cited``: the growing answer as it was when its citations were last looked up
    - ``awaited``: the answers from passages that wait for the whole book, the oldest first
    - ``before_notes``: while notes are read instead of the book, the document that was read before, and its chat
    """

    stage: Stage = Stage.EMPTY
    book: Book | None = None
    converts: bool = False
    whole: Document | None = None
    document: Document | None = None
    fit: BookFit | None = None
    whole_fit: BookFit | None = None
    parts: tuple[Part, ...] = ()
    recognising: Recognising | None = None
    unseen: int = 0
    pictured: Pictured | None = None
    progress: ReadingProgress | None = None
    remaining: Remaining = field(default_factory=Remaining)
    read: BookRead | None = None
    trouble: Trouble | None = None
    action: Action = Action.NONE
    chat: str = ""
    asking: bool = False
    asked_by: str = ""
    waiting: str = ""
    cited: Exchange | None = None
    figures: Figures | None = None
    scores: tuple[float, ...] = field(default=())
    pace: tuple[tuple[float, float, float, int], ...] = field(default=())
    awaited: tuple[Awaited, ...] = ()
    before_notes: tuple[Document, str] | None = None

    @property
    def awaited_answers(self) -> frozenset[int]:
        """The ids of the answers from passages that wait for the whole book."""
        return frozenset(one.answer for one in self.awaited)
