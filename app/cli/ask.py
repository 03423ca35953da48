"""``ask`` opens a book, asks one question, writes the answer while it is generated, and reports the answer's length,
speed and acceptance rates.

The answer goes to stdout, everything else to stderr. With ``--json``, stdout gets only one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.read import open_books, parts_of
from app.core import best_passages, contents, speed
from app.core.abilities import Abilities, Denials, abilities
from app.core.chats import thought_record
from app.core.document_kind import called_record
from app.core.forecast import Remaining
from app.core.format import (
    absence,
    assumed,
    counted,
    first_line,
    not_found_in,
    of_text,
    of_the_question,
    page_of,
    place_named,
    size,
    thought_line,
)
from app.core.listed import found_by_program
from app.core.outside import asked_record, text_record
from app.core.premise import checked, is_looked_up, without_doubt
from app.core.question import Ask
from app.core.settings import DEMO, READER, READER_LONG, STARTER, STARTER_LONG, Settings, model_name
from app.core.side_by_side import SIDE_BY_SIDE, SideBySide
from app.launcher.console import ProgressLine, say, write, write_json
from app.models import reader
from app.readers.file_formats import suffixes
from app.trust.citations import CitationFinder, Citations, evidence
from engine import Question
from engine.config import SamplingParams, options_of
from engine.document import Document, Reading
from engine.errors import ContextTooSmall, InputError, OptionError
from engine.events import AnswerDone, BookRead, Figures, KvBytes, ReadingProgress, StopReason, TextDelta, ThoughtDelta

if TYPE_CHECKING:
    from engine import Engine, EngineLike, ModelInfo

_POLL_S = 0.5
_LOOPED = (
    "The answer only repeated itself and was stopped. A temperature of 0.7 or another question often leads out of it."
)

_MISSING_FILE = re.compile(rf"\S+(?:{'|'.join(map(re.escape, suffixes()))})", re.IGNORECASE)
"""Matches a word that is meant as a file name. It is used to detect a missing file among the words before the
question.
"""

_LARGER = {
    STARTER: f"--model {STARTER_LONG} holds twice as much, --model {READER} four times",
    STARTER_LONG: f"--model {READER} holds twice as much",
    READER: f"--model {READER_LONG} holds four times as much",
}
"""Advice for a book that is too long for a bundled model, keyed by the name of the model's folder. It is added to the
error.
"""


def run(options: argparse.Namespace, settings: Settings) -> int:
    first = opened_and_asked(options, settings)
    question = first.question
    if first.comparison is not None:
        comparison = first.comparison
        _write_made(first.document, comparison.made, comparison.answer, comparison.chips, as_json=options.json)
        return 0
    if first.are_the_answer:
        first.write_as_answer()
        return 0
    first.say()
    with loaded_engine(settings) as engine:
        if (table := first.side_by_side) is not None:
            ask_each(engine, table, question, as_json=options.json)
        elif question.now and first.excerpt.pages:
            ask_now(engine, first, question, options)
        else:
            ask_whole(engine, first, question, options, settings)
    return 0


class FirstPassages:
    """The passages that fit a question best, found before a model has been loaded.

    Args:
        document: what is asked: the book, or the chosen pages of it.
        whole: the book with all its pages.
        card: the card of the model that is to answer.
        as_json: whether stdout gets JSON.
    """

    def __init__(self, document: Document, whole: Document, question: Ask, card: Abilities, *, as_json: bool) -> None:
        self.document, self._whole = document, whole
        self.card = card
        self.finder = CitationFinder()
        self.question, self._as_json = question, as_json
        index = self.finder.prepare(document).result()
        self.are_the_answer = card.would_guess(question.text, index, self.finder.index_of(document))
        self.found = best_passages.records(index.words, question.text)
        self.comparison = found_by_program(document, question.text)
        self._index = index

    def say(self) -> None:
        """Show the passages, unless no evidence is wanted."""
        if self.question.evidence and self.found:
            above = best_passages.heading(len(self.found), self.question.text)
            say("\n".join((f"{above}:", *self._lines())))

    def write_as_answer(self) -> None:
        """Write that the passages are the answer, and the passages."""
        said, why = self.card.instead(bool(self.found))
        answer = f"{of_text(said, called_record(self._whole))} {why}"
        outside = {} if self.found else asked_record(self.question.text, self.document, self._whole)
        if self._as_json:
            book = {"title": self.document.title, **parts_of(self.document)}
            there = not_found_in(outside) if outside else {}
            write_json({"answer": answer, "by_passages": True, "passages": self.view, **there, **book})
            return
        write("\n".join((*self._lines(), "")) if self.found else "")
        write(f"{answer}\n")
        if outside:
            say(f"{absence(outside)}.")
        if self.card.limit:
            say(f"The reader is chosen by --model {READER}.")
        for warning in self.document.warnings:
            say(f"Note: {warning}")

    @property
    def side_by_side(self) -> SideBySide | None:
        """The table for a question that compares the documents; None if it is put to all of them at once."""
        return SideBySide.of(self.document, self.question, self.card)

    @cached_property
    def excerpt(self) -> Document:
        """The passages from which a model answers at once."""
        return best_passages.excerpt(self._index.words, self.question.text)

    def noted(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The record of an answer, with the pages outside the chosen ones that have what these lack."""
        return {**record, **text_record(self.document, self._whole, record.get("missing"))}

    @property
    def view(self) -> list[dict[str, Any]]:
        """The passages as other programs get them."""
        return best_passages.as_evidence(self.found)

    def _lines(self) -> list[str]:
        unit = self.document.unit
        return [f"[{place_named(one, unit, long=False)}] {one['text']}" for one in self.found]


def opened_and_asked(options: argparse.Namespace, settings: Settings) -> FirstPassages:
    """Open the document that a command line names, or only those of its pages or chapters that the command line
    selects, and find passages for the question.

    Raises:
        InputError: the question is empty.
        DocumentError: as in ``open_books``.
        OptionError: the book lacks these pages or chapters, both pages and chapters are named, pages are named for
            several files, or a sampling option is out of range.
    """
    sampling = sampling_of(options)
    files, question = files_and_question(options.file, options.question)
    if not question.strip():
        raise InputError("The question is empty.", "Type a question.")
    if options.pages and options.chapters:
        raise OptionError("--pages and --chapters cannot be combined.", "Leave out one of them.")
    if options.pages and len(files) > 1:
        raise _several()
    whole = open_books(
        files,
        options.password,
        comments=not options.no_comments,
        books=kept_in(options, settings),
        doubtful=options.recognise,
        pictures=not options.no_pictures,
        convert=options.convert,
    )
    if options.pages and whole.members:
        raise _several()
    document = _selected(whole, options)
    card = abilities(settings.model)
    return FirstPassages(document, whole, ask_of(question, sampling, options), card, as_json=options.json)


def _several() -> OptionError:
    return OptionError(
        "--pages needs a single document, and several are named.", "Name one document, or leave out --pages."
    )


def _selected(whole: Document, options: argparse.Namespace) -> Document:
    if options.chapters is not None:
        return whole.only(contents.chosen(whole, options.chapters))
    return whole.select(*options.pages) if options.pages else whole


def ask_of(question: str, sampling: SamplingParams, options: argparse.Namespace) -> Ask:
    """The record of the question that a command line asks."""
    said = {one.name: getattr(options, one.name) for one in options_of(Ask)}
    return Ask(question, sampling=sampling, parts=options.parts or 0, **said)


def kept_in(options: argparse.Namespace, settings: Settings) -> Path | None:
    """The folder in which recognised text is stored; None if nothing is to be stored on disk."""
    return None if options.no_snapshot else settings.books


def ask_now(engine: EngineLike, first: FirstPassages, question: Ask, options: argparse.Namespace) -> None:
    """Ask the question about the passages that fit it best, without reading the document, and print the answer, its
    evidence and its speed.
    """
    document, status = first.document, engine.status()
    say(first_line({"passages": len(first.excerpt.pages), "read": ""}))
    question = dataclasses.replace(question, begun=first.card.lead(question.text), excerpt=first.excerpt)
    citations = first.finder.begin(document, question.text if question.evidence else None, question.begun)
    denials = Denials(first.card, question.begun)
    done = answer(engine, question, citations, denials, show=not options.json)
    if denials.refused:
        first.write_as_answer()
        return
    record = first.noted(citations.record())
    if not options.json:
        _say_end(engine, first, record, done)
        return
    report = {
        "answer": done.text,
        "now": True,
        "stop_reason": done.stop_reason.value,
        "model": status.model.name if status.model else None,
        "title": document.title,
        **parts_of(document),
        "prompt_tokens": done.figures.prompt_tokens,
        "answer_tokens": done.figures.answer_tokens,
        "ttft_s": done.figures.ttft_s,
    }
    record = checked(engine, document, question.text, record)
    write_json(report | _looked_up(record, done) | {"passages": first.view})


def ask_each(engine: Engine, table: SideBySide, question: Ask, *, as_json: bool) -> None:
    """Put a question that compares the documents to each of them alone, and print the answers by document, with their
    evidence.
    """
    say(f"Asking each of {counted(len(table.document.members), 'document')}.")
    for _ in table.ask(engine, question, threading.Event()):
        pass
    chips = table.chips if question.evidence else []
    text = table.answer if as_json else "\n".join(table.lines)
    _write_made(table.document, SIDE_BY_SIDE, text, chips, as_json=as_json)


def _write_made(
    document: Document, made: str, answer: str, chips: Sequence[Mapping[str, Any]], *, as_json: bool
) -> None:
    """Write an answer that the program has put together, and its evidence. ``made``: the key in JSON that says how."""
    record = {"chips": chips}
    if as_json:
        told = {"answer": answer, made: True, "evidence": evidence(record, answer)}
        write_json(told | {"title": document.title, **parts_of(document)})
        return
    write(f"{answer}\n")
    say("\n".join(evidence_lines(record, document.unit)))


def _looked_up(record: Mapping[str, Any], done: AnswerDone) -> dict[str, Any]:
    """What was looked up in the book for an answer, and what the model thought before it, for ``--json``."""
    answer, thought = done.text, done.thought
    record_of = partial(thought_record, is_open=bool(thought and thought.is_open))
    return {
        **({"thought": record_of(thought.text, thought.figures)} if thought else {}),
        "evidence": evidence(record, answer),
        **not_found_in(record),
        **of_the_question(record),
    }


def _say_end(engine: EngineLike, first: FirstPassages, record: dict[str, Any], done: AnswerDone) -> None:
    """Print an answer's evidence and its speed. What the model has to look up first, in seconds, comes at the end."""
    document, looks_up = first.document, is_looked_up(engine, record)
    if done.thought is not None:
        say(thought_line(thought_record(done.thought.text, done.thought.figures, is_open=False)))
        if done.thought.is_open:
            say(
                "Note: The answer ended while the model was still thinking. A larger --think-tokens gives it more room."
            )
    for line in evidence_lines(without_doubt(record) if looks_up else record, document.unit):
        say(line)
    say("\n".join(lines_of(done, first.card)))
    if done.stop_reason is StopReason.LOOP:
        say(f"Note: {_LOOPED}")
    if looks_up:
        for line in _premise_lines(checked(engine, document, first.question.text, record), document.unit):
            say(line)


def ask_whole(
    engine: Engine, first: FirstPassages, question: Ask, options: argparse.Namespace, settings: Settings
) -> None:
    """Read a document, ask the question, and print the answer, its evidence and its speed. If a small model refuses to
    answer, the passages take the place of the answer.

    Raises:
        ContextTooSmall: the document is longer than the model's window, and ``--fit`` is not given.
    """
    document, card = first.document, first.card
    try:
        book = read_book(engine, document, options.fit)
    except ContextTooSmall as error:
        name = Path(settings.model).name
        if (larger := _LARGER.get(name)) is None:
            raise
        demo = f"Or let another model read it: --model {DEMO} only quotes, but holds whole books"
        worth = f" {reader.verdict(READER_LONG)}" if name == READER else ""
        raise ContextTooSmall(error.cause, f"{error.remedy} {demo}; {larger}.{worth}") from error
    _say_what_was_read(document, book)
    status = engine.status()
    question = dataclasses.replace(question, begun=card.lead(question.text))
    about = question.text if question.evidence else None
    citations = first.finder.begin(document, about, question.begun, pages_read=book.pages_read)
    denials = Denials(card, question.begun)
    done = answer(engine, question, citations, denials, show=not options.json)
    keep(engine)
    if denials.refused:
        first.write_as_answer()
        return
    record = first.noted(citations.record())
    if not options.json:
        _say_end(engine, first, record, done)
        return
    record = checked(engine, document, question.text, record)
    report = report_of(document, book, done, status.model)
    passages = first.view if question.evidence else []
    write_json(report | _looked_up(record, done) | {"passages": passages})


def files_and_question(first: str, words: Sequence[str]) -> tuple[list[str], str]:
    """Split the words after ``ask`` into the files and the question.

    Args:
        first: the name of the first file.
        words: names of further files, followed by the question as one word or several.

    Raises:
        InputError: a file named before the question does not exist.
    """
    count = 0
    while count < len(words) and _is_file(words[count]):
        count += 1
    if count < len(words) - 1 and _MISSING_FILE.fullmatch(words[count]):
        raise InputError(f"There is no file “{words[count]}”.", "Check the name; the question comes last.")
    return [first, *words[:count]], " ".join(words[count:])


def _is_file(word: str) -> bool:
    try:
        return Path(word).expanduser().is_file()
    except (OSError, ValueError, RuntimeError):  # the word may be a whole question, which is too long for a file name
        return False


def sampling_of(options: argparse.Namespace) -> SamplingParams:
    """The sampling parameters that a command line asks for.

    Raises:
        OptionError: a value is out of range.
    """
    return SamplingParams(**{one.name: getattr(options, one.name) for one in options_of(SamplingParams)})


@contextlib.contextmanager
def loaded_engine(settings: Settings) -> Iterator[Engine]:
    """Load the models and yield the engine. The engine is closed at the end of the ``with`` block.

    Raises:
        ModelError: a model cannot be loaded.
    """
    from engine import Engine

    engine = Engine(settings.engine_config())
    try:
        with ProgressLine("Loading the model") as line:
            while engine.status().state == "loading":
                engine.wait_ready(_POLL_S)
                line.update("...")
            status = engine.wait_ready()
            line.done(model_line(status.model) if status.model else "done")
        yield engine
    finally:
        engine.close()


def read_book(engine: Engine, document: Document, fit: bool) -> BookRead:
    """Prefill the book, and show the progress on one line of the terminal. With ``fit``, read only the first pages that
    fit if the book is longer than the window.

    Raises:
        ContextTooSmall: the book is longer than the window, and ``fit`` is false.
        EngineError: reading failed.
    """
    with ProgressLine(f"Reading {document.title}") as line:
        remaining = Remaining()
        request = engine.read(Reading(document, fit=fit))
        for event in request:
            if isinstance(event, ReadingProgress):
                remaining = remaining.after(event)
                line.update(progress_line(event, remaining))
        read = request.result()
        line.done(book_line(read))
    return read


def answer(engine: EngineLike, question: Question, citations: Citations, denials: Denials, show: bool) -> AnswerDone:
    """Ask the question, pass the engine's events to ``citations``, which collects evidence, and return the final event.
    If ``show``, write the answer to stdout while it is generated, unless it is a refusal.
    """
    if show:
        write(question.begun)
    request, thinks = engine.ask(question), False
    for event in (each for one in request for each in denials.pass_on(one)):
        if isinstance(event, TextDelta) and show:
            write(event.text)
        if isinstance(event, ThoughtDelta) and show and not thinks:
            thinks = True
            say("The model thinks…")
        citations.take(event)
    if show and not denials.refused:
        write("\n")
    done = request.result()
    if done.stop_reason is StopReason.CANCELLED:
        raise KeyboardInterrupt
    return dataclasses.replace(done, text=question.begun + done.text)


def keep(engine: Engine) -> None:
    """Wait until the KV cache of the book is saved on disk. Ctrl-C ends the wait without an error, because the answer
    is already printed.
    """
    with contextlib.suppress(KeyboardInterrupt):
        trouble = engine.finish_saving()
        if trouble:
            say(f"Note: {trouble}")


def _say_what_was_read(document: Document, book: BookRead) -> None:
    if book.refused:
        say(f"Note: {book.refused} It was read again.")
    for warning in document.warnings:
        say(f"Note: {warning}")
    pages, unit = document.pages, document.unit
    if book.pages_read < len(pages) and document.members:
        left = f"{len(pages) - book.pages_read} of {document.extent()} are left out"
        say(f"Note: what fits was read, to {page_of(document, pages[max(book.pages_read, 1) - 1])}; {left}.")
    elif book.pages_read < len(pages):
        first, last = pages[0].number, pages[book.pages_read - 1].number
        fit = f"{unit} {first} fits and was read" if first == last else f"{unit}s {first}-{last} fit and were read"
        say(f"Note: {fit}; {len(pages) - book.pages_read} of {len(pages)} {unit}s are left out.")


# Figures -------------------------------------------------------------------------------------------------------------


def report_of(document: Document, book: BookRead, done: AnswerDone, model: ModelInfo | None) -> dict[str, Any]:
    """The object that ``ask --json`` prints. The name of a time says whether it is in seconds or milliseconds.
    Acceptance rates are from 0 to 1, and sizes are in bytes.
    """
    live = done.figures
    return {
        "answer": done.text,
        "token_ids": list(done.token_ids),
        "stages": [line.value for line in done.sources],
        "stop_reason": done.stop_reason.value,
        "mode": live.mode,
        "model": model.name if model else None,
        "draft": model.draft_name if model else None,
        "weights_note": model.weights_note if model else "",
        "kv_note": model.kv_note if model else "",
        "title": document.title,
        "pages": [document.pages[0].number, document.pages[max(book.pages_read, 1) - 1].number],
        **parts_of(document),
        "prompt_tokens": live.prompt_tokens,
        "prefilled_tokens": live.prefilled_tokens,
        "book_tokens": book.tokens,
        "answer_tokens": live.answer_tokens,
        "context_tokens": live.context_tokens,
        "context_limit": live.context_limit,
        "ttft_s": live.ttft_s,
        "source": book.source,
        "open_s": book.seconds,
        "restored_tokens": book.tokens_restored,
        "refused": book.refused or None,
        "prefill_s": book.seconds,
        "prefill_tokens_per_s": book.tokens_per_s,
        "ms_per_token": {
            "mean": live.ms_per_token_mean,
            "p50": live.ms_per_token_p50,
            "p95": live.ms_per_token_p95,
        },
        "tokens_per_s": live.tokens_per_s,
        "rounds": live.rounds,
        "acceptance": {"middle": live.middle.rate, "verify": live.verify.rate},
        "mean_acceptance_length": live.mean_acceptance_length,
        "plain_ms_per_token": live.plain_ms,
        "plain_steps": live.plain_steps,
        "plain_age_s": live.plain_age_s,
        "speedup_vs_plain": live.speedup_vs_plain,
        "time_split_ms": dataclasses.asdict(live.time_split),
        "kv_bytes": {name: held for name, held in dataclasses.asdict(live.kv_bytes).items() if name != "cards" or held},
    }


def lines_of(done: AnswerDone, card: Abilities | None = None) -> list[str]:
    """Describe an answer's length, speed and cache in lines for a person.

    Args:
        card: the abilities of the model that answered. They list the model's refusals; for a refusal no speed is given.
    """
    live = done.figures
    why_not = speed.uncounted(done.text, refused=card is not None and card.refuses(done.text))
    lines = [f"{live.answer_tokens:,} tokens ({done.stop_reason.value}), {live.mode} decoding"]
    lines += [line for line in (_speed_line(live, why_not), _acceptance_line(live)) if line]
    lines.append(
        f"KV cache: {_kv_line(live.kv_bytes)}; {live.context_tokens:,} of {live.context_limit:,} tokens used; "
        f"this question prefilled {live.prefilled_tokens:,}"
    )
    return lines


def evidence_lines(record: Mapping[str, Any], unit: str) -> list[str]:
    """Describe an answer's evidence in lines for a person: first a line about names and numbers that do not occur in
    the book, then a line for each supporting passage.
    """
    lines = [f"{said}."] if (said := absence(record)) else []
    lines += _premise_lines(record, unit)
    words = {"says": "{}", "near": "check {}", "quoted": "{}", "verbatim": "{}"}
    for chip in record["chips"]:
        if chip["kind"] in words:
            place = words[chip["kind"]].format(place_named(chip, unit, long=False))
            line = f"[{place}] {chip['extract']['hit']}"
            if line not in lines:
                lines.append(line)
    return lines


def _premise_lines(record: Mapping[str, Any], unit: str) -> list[str]:
    return [line if line.endswith((".", "!", "?", "…")) else f"{line}." for line in assumed(record, unit)]


def book_line(book: BookRead) -> str:
    """Say in one line how many tokens of a book were read or restored from disk, and how fast."""
    if book.source == "snapshot" and book.tokens_restored >= book.tokens:
        return f"{book.tokens:,} tokens from disk in {book.seconds:.2f} s"
    return f"{book.tokens:,} tokens, {book.tokens_per_s:,.0f} tokens/s"


def progress_line(event: ReadingProgress, remaining: Remaining) -> str:
    share = event.tokens_done / event.tokens_total if event.tokens_total else 1.0
    said = f"{event.tokens_done:,} of {event.tokens_total:,} tokens, {share:.0%}, {event.tokens_per_s:,.0f} tokens/s"
    return ", ".join(part for part in (said, remaining.words) if part)


def model_line(model: ModelInfo) -> str:
    draft = f" with {model.draft_name}" if model.draft_name else " without a draft model"
    notices = "".join(f"; {notice}" for notice in (model.weights_note, model.kv_note) if notice)
    return f"{model_name(model.name, str(model.path))}{draft}, {model.dtype} on {model.device}{notices}"


def _speed_line(live: Figures, why_not: str) -> str:
    parts = []
    if live.ttft_s is not None:
        parts.append(f"first token after {live.ttft_s:.2f} s")
    mean, median, p95 = live.ms_per_token_mean, live.ms_per_token_p50, live.ms_per_token_p95
    if mean is not None and median is not None and p95 is not None:
        parts.append(f"{mean:.1f} ms per token (median {median:.1f}, p95 {p95:.1f})")
    if live.tokens_per_s is not None:
        parts.append(f"{live.tokens_per_s:.1f} tokens/s")
    if why_not:
        parts.append(speed.WHY_NO_SPEED[why_not])
    elif (times := speed.speedup(live)) is not None:
        steps = f"{live.plain_steps} plain steps timed, the last {live.plain_age_s or 0.0:.1f} s before the end"
        parts.append(f"{speed.than_plain(times)} ({steps})")
    return ", ".join(parts)


def _acceptance_line(live: Figures) -> str:
    parts = []
    for level, acceptance in (("middle", live.middle), ("verify", live.verify)):
        if acceptance.rate is not None:
            parts.append(f"{level} {acceptance.rate:.0%}")
    if live.mean_acceptance_length is not None:
        parts.append(f"{live.mean_acceptance_length:.1f} tokens per verification")
    return "accepted: " + ", ".join(parts) if parts else ""


def _kv_line(kv: KvBytes) -> str:
    tiers = [f"{size(count)} {tier}" for tier in ("device", "host", "disk") if (count := getattr(kv, tier))]
    return ", ".join(tiers) or "empty"
