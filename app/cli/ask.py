"""``ask``: open a book, ask one question, watch the answer come. The words go to stdout, all else to stderr."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from app.cli import figures
from app.cli.books import open_book
from app.launcher.speech import Stage, say
from app.settings import Settings
from engine.config import Mode, SamplingParams
from engine.document import Document
from engine.errors import EngineError, InputError
from engine.events import AnswerDone, BookRead, Event, Failed, ReadingProgress, StopReason, TextDelta

if TYPE_CHECKING:
    from engine import Engine, Request

_POLL_S = 0.5
_SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "seed")


def run(options: argparse.Namespace, settings: Settings) -> int:
    sampling = SamplingParams(**{name: getattr(options, name) for name in _SAMPLING})
    question = " ".join(options.question)
    if not question.strip():
        raise InputError("The question is empty.", "Type a question.")
    document = open_book(options.file, options.password, options.pages)
    with loaded_engine(settings) as engine:
        book = read_book(engine, document, options.fit)
        _say_what_was_read(document, book)
        done = answer(engine, question, sampling, options.mode, show=not options.json)
        status = engine.status()
        _keep(engine)
    if options.json:
        report = figures.report_of(document, book, done, status.model)
        sys.stdout.write(json.dumps(report, ensure_ascii=False) + "\n")
    else:
        say("\n".join(figures.lines_of(done)))
    return 0


@contextlib.contextmanager
def loaded_engine(settings: Settings) -> Iterator[Engine]:
    """An engine whose models are loaded; closed afterwards.

    Raises:
        ModelError: a model cannot be loaded.
    """
    from engine import Engine

    engine = Engine(settings.engine_config())
    try:
        with Stage("Loading the model") as stage:
            while engine.status().state == "loading":
                engine.wait_ready(_POLL_S)
                stage.update("...")
            status = engine.wait_ready()
            stage.done(figures.model_line(status.model) if status.model else "done")
        yield engine
    finally:
        engine.close()


def read_book(engine: Engine, document: Document, fit: bool) -> BookRead:
    """Prefill the book, with progress.

    Raises:
        ContextTooSmall: it is too long, and ``fit`` is not set.
        EngineError: reading failed.
    """
    with Stage(f"Reading {document.title}") as stage:
        for event in events_of(engine.read(document, fit=fit)):
            if isinstance(event, ReadingProgress):
                stage.update(figures.progress_line(event))
            elif isinstance(event, BookRead):
                stage.done(figures.book_line(event))
                return event
            elif isinstance(event, Failed):
                raise EngineError(event.cause, event.remedy)
    raise EngineError("Reading ended without a result.", "Please try again.")


def answer(engine: Engine, question: str, sampling: SamplingParams, mode: Mode, show: bool) -> AnswerDone:
    """Ask, and write the answer to stdout while it comes."""
    for event in events_of(engine.ask(question, sampling=sampling, mode=mode)):
        if isinstance(event, TextDelta) and show:
            sys.stdout.write(event.text)
            sys.stdout.flush()
        elif isinstance(event, AnswerDone):
            if show:
                sys.stdout.write("\n")
                sys.stdout.flush()
            if event.stop_reason is StopReason.CANCELLED:
                raise KeyboardInterrupt
            return event
        elif isinstance(event, Failed):
            raise EngineError(event.cause, event.remedy)
    raise EngineError("The answer ended without a result.", "Please try again.")


def events_of(request: Request) -> Iterator[Event]:
    """A request's events. Waits in short steps, since a long wait would not hear Ctrl-C on Windows."""
    try:
        while not request.finished:
            event = request.next_event(_POLL_S)
            if event is not None:
                yield event
    finally:
        request.cancel()


def _keep(engine: Engine) -> None:
    """Wait until the reading is on disk. Interrupted, nothing of it is kept, and the answer has been given."""
    with contextlib.suppress(KeyboardInterrupt):
        trouble = engine.finish_saving()
        if trouble:
            say(f"Note: {trouble}")


def _say_what_was_read(document: Document, book: BookRead) -> None:
    if book.refused:
        say(f"Note: {book.refused} The book was read again.")
    for warning in document.warnings:
        say(f"Note: {warning}")
    pages, unit = document.pages, document.unit
    if book.pages_read < len(pages):
        first, last = pages[0].number, pages[book.pages_read - 1].number
        fit = f"{unit} {first} fits and was read" if first == last else f"{unit}s {first}-{last} fit and were read"
        say(f"Note: {fit}; {len(pages) - book.pages_read} of {len(pages)} {unit}s are left out.")
