"""``ask BOOK QUESTION --parts`` asks a question of a book that exceeds the model's window, part by part.

The parts' answers go to stderr one after another, the final answer to stdout. With ``--json``, stdout gets only one
JSON object. A command that was stopped can be repeated; the parts that it has read are then restored from disk.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.cli.ask import (
    ask_whole,
    book_line,
    evidence_lines,
    keep,
    lines_of,
    loaded_engine,
    opened_and_asked,
    progress_line,
)
from app.core.abilities import Abilities
from app.core.document_kind import called
from app.core.forecast import PROBED, Range, Remaining, stretch
from app.core.format import counted
from app.core.part_run import NO_ANSWER, Joining, PartAnswer, PartAnswered, PartBegun, PartsAnswered, ask_parts
from app.core.parts import Part, PartsChoice, choose_parts, cut, left_out, mentioned
from app.core.question import Ask
from app.core.settings import Settings
from app.launcher.console import ProgressLine, say, write, write_json
from app.trust.citations import CitationFinder, evidence
from engine.document import Document
from engine.errors import OptionError
from engine.events import BookRead, ReadingProgress, StopReason, TextDelta

if TYPE_CHECKING:
    from engine import Engine


def run(options: argparse.Namespace, settings: Settings) -> int:
    if options.fit:
        raise OptionError("--parts and --fit cannot be combined.", "Leave out one of them.")
    first = opened_and_asked(options, settings)
    document, question = first.document, first.question
    if first.are_the_answer:
        first.write_as_answer()
        return 0
    first.say()
    with loaded_engine(settings) as engine:
        fit = engine.measure(document)
        if fit.fits:
            say(f"Note: the whole {called(document)} fits, so it is not read in parts.")
            ask_whole(engine, first, question, options, settings)
            return 0
        parts = cut(document, fit)
        finder = first.finder
        words, count = finder.prepare(document).result().words, min(question.parts, len(parts))
        choice = choose_parts(question.text, parts, words, count)
        _say_choice(engine, document, choice, parts)
        status = engine.status()
        card = first.card
        try:
            done = _follow(engine, choice, question, document, card, finder, options.json)
        finally:
            keep(engine)
    if done.stopped:
        raise KeyboardInterrupt
    done = replace(done, record=first.noted(done.record))
    if done.text == NO_ANSWER:
        first.write_as_answer()
        return 0
    if options.json:
        write_json(report_of(document, choice, parts, done, status.model.name if status.model else None))
    else:
        _say_end(document, choice, parts, done, card)
    return 0


def _say_end(
    document: Document, choice: PartsChoice, parts: tuple[Part, ...], done: PartsAnswered, card: Abilities
) -> None:
    """Print the answer, unless it was printed while it was written, its evidence and its speed."""
    if not done.joined:
        write(f"{done.text}\n")
    for line in evidence_lines(done.record, document.unit):
        say(line)
    for mention in choice.mentions:
        say(mentioned(mention, choice.reach, document))
    if said := left_out(choice, parts, [one.part for one in done.answers]):
        say(f"Note: {said}")
    if done.done is not None:
        say("\n".join(lines_of(done.done, card)))


def report_of(
    document: Document, choice: PartsChoice, parts: tuple[Part, ...], done: PartsAnswered, model: str | None
) -> dict[str, Any]:
    """The object that ``ask --parts --json`` prints. Page numbers count from 1."""
    where = {part.number: part for part in parts}
    answered = [one.part for one in done.answers]
    return {
        "answer": done.text,
        "evidence": evidence(done.record, done.text),
        "joined": done.joined,
        "reach": choice.reach.value,
        "title": document.title,
        "model": model,
        "parts": [{"part": part.number, "pages": [part.first, part.last], "tokens": part.tokens} for part in parts],
        "answers": [
            {
                "part": one.part,
                "pages": [where[one.part].first, where[one.part].last],
                "answer": one.text,
                "level": one.level,
                "evidence": evidence(one.record, one.text),
                "stop_reason": one.stopped.value,
                "source": "snapshot" if one.from_disk else "read",
            }
            for one in done.answers
        ],
        "mentions": [{"words": one.words, "page": one.page, "label": one.label} for one in choice.mentions],
        "not_asked": [part.number for part in parts if part.number not in answered],
        "said": left_out(choice, parts, answered),
    }


def _say_choice(engine: Engine, document: Document, choice: PartsChoice, parts: tuple[Part, ...]) -> None:
    """Tell what could not be read of the document, how many parts there are, which of them are asked, and how long it
    takes to read a part.
    """
    for warning in document.warnings:
        say(f"Note: {warning}")
    for mention in choice.mentions:  # mentions are found by text search before any part is read
        say(mentioned(mention, choice.reach, document))
    largest = max(choice.parts, key=lambda part: part.tokens)
    seconds = engine.measure(largest.document).reading_s
    time = f" A part takes {stretch(Range.about(seconds, PROBED))} to read the first time." if seconds else ""
    most = "up to " if choice.until_found and len(choice.parts) > 1 else ""
    say(f"It is read in {counted(len(parts), 'part')}; {most}{len(choice.parts)} asked.{time}")


def _follow(
    engine: Engine,
    choice: PartsChoice,
    question: Ask,
    document: Document,
    card: Abilities,
    citation_finder: CitationFinder,
    quiet: bool,
) -> PartsAnswered:
    """Ask the parts of the book, and return the final event. Progress and the parts' answers go to stderr. The final
    answer, which joins the parts' answers, goes to stdout while it is generated, unless ``quiet``.
    """
    line: ProgressLine | None = None
    remaining, joining = Remaining(), False
    steps = ask_parts(engine, choice, question, document, card, citation_finder=citation_finder)
    for event in steps:
        if isinstance(event, PartBegun):
            line, remaining = ProgressLine(f"Part {event.part.number}, {event.part.pages}"), Remaining()
        elif isinstance(event, ReadingProgress) and line is not None:
            remaining = remaining.after(event)
            line.update(progress_line(event, remaining))
        elif isinstance(event, BookRead) and line is not None:
            line.done(book_line(event))
            line.__exit__()
            line = None
        elif isinstance(event, PartAnswered):
            _say_answer(event.answer, document.unit)
        elif isinstance(event, Joining):
            say(f"Putting {counted(event.count, 'answer')} together")
            joining = event.last
        elif isinstance(event, TextDelta) and joining and not quiet:
            write(event.text)
        elif isinstance(event, PartsAnswered):
            if event.joined and not quiet:
                write("\n")
            return event
    raise AssertionError("the last event of a run is its answer")


def _say_answer(answer: PartAnswer, unit: str) -> None:
    cut_off = " (cut)" if answer.stopped is StopReason.LENGTH else ""
    say(f"Part {answer.part}, {answer.pages}: {answer.text}{cut_off}")
    for line in evidence_lines(answer.record, unit):
        say(f"  {line}")
