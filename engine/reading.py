"""Before and while a book is read: what of it fits, and how far the reading is. Pure: touches no cache."""

from __future__ import annotations

from engine import prefill
from engine.cache.full import KvShape
from engine.conversation import Conversation
from engine.document import Document
from engine.errors import ContextTooSmall, InputError
from engine.events import ReadingProgress
from engine.planner import Resources, fit_of
from engine.prompt import ChatFormat
from engine.tokenizer import BookTokenizer, BookTokens


def fitted(
    tokenizer: BookTokenizer,
    document: Document,
    form: ChatFormat,
    window: int,
    shape: KvShape,
    free: Resources,
    *,
    fit: bool,
) -> tuple[Document, BookTokens]:
    """The document, or of one that is too long the pages that fit, with its tokens.

    Args:
        window: tokens that the model takes; shape: of its KV; free: what KV may take.
        fit: whether a book that is too long may be cut.

    Raises:
        InputError: there is no text in the document.
        ContextTooSmall: the book does not fit.
    """
    if not document.text.strip():
        raise InputError("There is no text in this document.", "Choose another file.")
    book = tokenizer.book(document, form)
    found = fit_of(document, book, window, shape, free)
    if found.fits:
        return document, book
    if not fit or found.pages_that_fit == 0:
        raise ContextTooSmall(
            found.sentence, "Choose a range of pages (--pages), or read from the start what fits (--fit)."
        )
    cut = document.select(document.pages[0].number, document.pages[found.pages_that_fit - 1].number)
    return cut, tokenizer.book(cut, form)


def progress(talk: Conversation, step: prefill.Step, start: int, seconds: float) -> ReadingProgress:
    """How far the reading of ``talk``'s book is after a step, ``seconds`` after it went on from token ``start``."""
    total = len(talk.book.ids)
    done = max(step.usable, start + int(step.work * (total - start)))
    return ReadingProgress(
        tokens_done=done,
        tokens_total=total,
        pages_done=talk.book.pages_within(step.usable),
        pages_total=len(talk.document.pages),
        tokens_per_s=(done - start) / max(seconds, 1e-9),
        seconds_left=seconds * (1.0 - step.work) / max(step.work, 1e-9),
    )
