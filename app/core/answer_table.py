"""Asks a document a question, turns the answer into a row of a table, and writes the rows of many documents as CSV.

    asked = yield from ask_document(engine, Reading(document), asked)     yields the events of reading and answering
    asked.row, asked.places
    write_table(path, {(file, question): row})

The terminal writes the table to a file (``app.cli.ask_many``). The page stores the answers, and offers them for
download as CSV (``app.core.each``).
"""

from __future__ import annotations

import csv
import io
import re
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.core import best_passages
from app.core.abilities import Abilities, Denials, abilities
from app.core.atomic_upload import unwritable
from app.core.format import of_text
from app.core.question import Ask
from app.core.whole_files import write_whole
from app.launcher import lock
from app.trust.citations import CitationFinder, evidence
from engine import HANDOVER_S, EngineLike
from engine.document import Document, Reading
from engine.errors import ContextTooSmall, InputError, ResourceError, plain
from engine.events import AnswerDone, BookRead, Event, StopReason

COLUMNS = (
    "file",
    "title",
    "question",
    "answer",
    "evidence_level",
    "evidence",
    "page",
    "not_found_in_document",
    "pages_read",
    "pages",
    "stopped",
    "model",
    "error",
    "sha256",
    "pages_recognised",
    "answered_from",
)
_ADDED = ("pages_recognised", "answered_from")  # columns that tables of earlier versions lack, in the order of addition
FROM_PASSAGES, FROM_ALL = "passages", "all pages"
"""The values of the column "answered_from"."""
_SHORT = best_passages.MOST_READ * best_passages.LONGEST  # maximum characters of a document that is read at once
MARK = "utf-8-sig"
"""The encoding of the CSV file. Its byte order mark lets spreadsheets recognise UTF-8."""
OF_DOCUMENT = {"called": "document"}
"""What the sentences of a row call its document (``app.core.format.of_text``)."""
_LEVELS = ("says so", "near", "not found")
# A cell that begins so gets an apostrophe in front: spreadsheets would run it as a formula, some also after spaces
# and signs that nobody sees, or with the wide signs of East Asia. The apostrophe itself is included, so that ``_plain``
# can undo the escape.
_UNSEEN = r" \x85\xa0\xad\u061c\u115f\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ufeff\ufffd"
_FORMULA = re.compile(rf"'|[{_UNSEEN}]*+[=+\-@\t\r＝＋－＠]")
# The same after a character at which a spreadsheet with another separator, such as the German Excel, begins a new cell
# or row within a text. A list item ("- one") is no formula.
_AFTER_SEPARATOR = re.compile(rf"([;\n\r\t][\"{_UNSEEN}]*+)(?=[=@＝＠']|[+\-＋－](?! ))")
_ESCAPED_AFTER_SEPARATOR = re.compile(rf"([;\n\r\t][\"{_UNSEEN}]*+)'(?=[=@＝＠']|[+\-＋－](?! ))")

Row = dict[str, str]


@dataclass(frozen=True)
class Asked:
    """The result of asking one document.

    ``row``: the filled columns of the document's row in the table. ``places``: the passages that support the answer,
    each with its pages and their labels. ``is_stopped``: whether the reading or the answer was stopped before its end.
    """

    row: Row
    places: list[dict[str, Any]] = field(default_factory=list)
    is_stopped: bool = False


def ask_document(
    engine: EngineLike,
    reading: Reading,
    asked: Ask,
    *,
    cancel: threading.Event | None = None,
) -> Generator[Event, None, Asked]:
    """Ask one document a question. The answer comes from the passages that fit best. If no passage supports it, the
    document is read, or restored from disk, and asked as a whole; its KV is saved on disk. A document that is as short
    as its passages is read at once.

    Args:
        asked: ``now`` for passages only, ``whole`` to read the document in any case.
        cancel: stops the work once it is set.

    Raises:
        ContextTooSmall: the document is longer than the window, and is not to be cut; passages did not answer.
        TrifoldError: the document could not be read, or the question not answered.
    """
    document, model = reading.document, engine.status().model
    card = abilities(str(model.path)) if model else Abilities()
    finder = CitationFinder()
    index = finder.prepare(document).result()
    recognised = sum(page.picture == "recognised" for page in document.pages)
    row = {"title": document.title, "pages": str(len(document.pages)), "pages_recognised": str(recognised)}
    passages = best_passages.records(index.words, asked.text)
    if card.would_guess(asked.text, index, finder.index_of(document)):
        return _by_passages(row, card, passages)
    asking = _Asking(engine, document, asked, finder, card, cancel)
    excerpt = best_passages.excerpt(index.words, asked.text)
    first = None
    if excerpt.pages and (asked.now or (not asked.whole and document.characters > _SHORT)):
        first = yield from asking.ask(
            row | {"pages_read": "0", "answered_from": FROM_PASSAGES}, passages, excerpt=excerpt
        )
        if asked.now or first.is_stopped or _is_answered(first):
            return first
    try:
        read = yield from _read(engine, reading, cancel)
    except ContextTooSmall:
        if first is None:
            raise
        return first
    row |= {"pages_read": str(read.pages_read), "answered_from": FROM_ALL}
    if read.stopped:
        return Asked(row, is_stopped=True)
    return (yield from asking.ask(row, passages, pages_read=read.pages_read))


def _is_answered(first: Asked) -> bool:
    """Whether an answer from passages is enough: a passage supports it, and the document has all its names."""
    row = first.row
    return row["evidence_level"] == _LEVELS[0] and not row["not_found_in_document"]


@dataclass(frozen=True)
class _Asking:
    """Asks the model one question about one document, from passages or about all of it."""

    engine: EngineLike
    document: Document
    asked: Ask
    finder: CitationFinder
    card: Abilities
    cancel: threading.Event | None

    def ask(
        self, row: Row, found: Sequence[Mapping[str, Any]], *, excerpt: Document | None = None, pages_read: int = 0
    ) -> Generator[Event, None, Asked]:
        """Ask the question.

        Args:
            found: the records of the passages that fit best.
            excerpt: the text of passages that is asked; None for the document, which has been read.
            pages_read: number of the document's pages that have been read.
        """
        model, begun = self.engine.status().model, self.card.lead(self.asked.text)
        citations = self.finder.begin(self.document, self.asked.text, begun, pages_read=pages_read)
        denials = Denials(self.card, begun)
        asked = replace(self.asked, begun=begun, excerpt=excerpt, wait=HANDOVER_S)
        request = self.engine.ask(asked, cancel=self.cancel)
        for event in (each for one in request for each in denials.pass_on(one)):
            citations.take(event)
            yield event
        self.engine.finish_saving()
        if denials.refused:
            return _by_passages(row, self.card, found)
        row = row | {"model": model.name if model else ""}
        return _by_model(row, request.result(), begun, citations.record(), self.document.unit)


def _read(engine: EngineLike, reading: Reading, cancel: threading.Event | None) -> Generator[Event, None, BookRead]:
    # done first, because reading a document would stop the saving of the document that is in the engine
    engine.finish_saving()
    request = engine.read(replace(reading, wait=HANDOVER_S), cancel=cancel)
    yield from request
    return request.result()


def _by_model(row: Row, done: AnswerDone, begun: str, record: Mapping[str, Any], unit: str) -> Asked:
    """The result if the model has answered.

    Args:
        begun: the words that the answer begins with.
        record: the answer's evidence, as stored by ``app.trust.citations``.
        unit: what the document calls a page.
    """
    text = begun + done.text
    level, best = _best(record, text)
    row |= {"answer": text.strip(), "stopped": done.stop_reason.value, **evidence_of(record, text)}
    places = [{"passage": one["passage"], "pages": one["pages"], "unit": unit} for one in best if one["pages"]]
    return Asked(row, places if level != "not found" else [], done.stop_reason is StopReason.CANCELLED)


def _by_passages(row: Row, card: Abilities, found: Sequence[Mapping[str, Any]]) -> Asked:
    """The result if passages take the place of an answer, because the model would guess. ``found``: the records of the
    passages.
    """
    pages = dict.fromkeys(_label(page) for one in found for page in one["pages"])
    texts = "\n".join(one["text"] for one in found)
    said = of_text(" ".join(card.instead(bool(found))), OF_DOCUMENT)
    row |= {"answer": said, "evidence": texts, "page": "; ".join(pages)}
    row |= {"evidence_level": "", "not_found_in_document": "", "answered_from": FROM_PASSAGES}
    places = [{"passage": one["text"], "pages": one["pages"], "unit": one["unit"]} for one in found]
    return Asked(row | {"stopped": StopReason.END.value}, places)


def evidence_of(record: Mapping[str, Any], answer: str) -> Row:
    """Return the columns about an answer's evidence: the best level of evidence that any of its sentences has, the
    passages at this level with their pages, and the names in the answer or the question that do not occur in the
    document.

    Args:
        record: the answer's evidence, as stored by ``app.trust.citations``.
    """
    level, best = _best(record, answer)
    return {
        "evidence_level": level,
        "evidence": "\n".join(dict.fromkeys(one["passage"] for one in best if one["passage"])),
        "page": "; ".join(dict.fromkeys(_label(page) for one in best for page in one["pages"])),
        "not_found_in_document": "; ".join(record.get("missing", ())),
    }


def _label(page: Mapping[str, Any]) -> str:
    return f"{page['label']} (recognised from a picture)" if page.get("recognised") else str(page["label"])


def _best(record: Mapping[str, Any], answer: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the best level of evidence that any sentence of an answer has ("says so" is the best), and the evidence of
    all sentences with this level. The level is "" if no sentence has evidence.
    """
    entries = evidence(record, answer)
    level = next((level for level in _LEVELS if any(one["level"] == level for one in entries)), "")
    return level, [one for one in entries if one["level"] == level]


def read_table(path: Path) -> dict[tuple[str, str], Row]:
    """Read the rows of an existing table, keyed by file and question; empty if there is no table."""
    if not path.exists():
        return {}
    try:
        with path.open(encoding=MARK, newline="") as file:
            lines = csv.DictReader(file)
            known = [COLUMNS[: len(COLUMNS) - missing] for missing in range(len(_ADDED) + 1)]
            if tuple(lines.fieldnames or ()) not in known:
                raise InputError(f"{path} is not a table of answers.", "Name a new file.")
            rows = [{name: _plain(row.get(name) or "") for name in COLUMNS} for row in lines]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a table.", "Name a new file.") from error
    return {(row["file"], row["question"]): row for row in rows}


def add_row(path: Path, row: Row) -> dict[tuple[str, str], Row]:
    """Add a row to the table, or replace the row of the same file and question. Rows that other programs have added
    meanwhile are kept. Return all rows.

    Raises:
        InputError: the file is no table of answers any more.
        ResourceError: the table cannot be written.
    """
    try:
        with lock.held(path.with_name(f".{path.name}.lock")):
            rows = {**read_table(path), (row["file"], row["question"]): row}
            write_table(path, rows)
            return rows
    except OSError as error:
        raise unwritable(path, error) from error


def write_table(path: Path, rows: Mapping[tuple[str, str], Row]) -> None:
    """Write the rows, keyed by file and question, as a CSV file.

    Raises:
        ResourceError: the table cannot be written.
    """
    try:
        write_whole(path, table_of(rows.values()))
    except PermissionError as error:  # Windows replaces no file that a spreadsheet has open
        raise ResourceError(
            f"{path} cannot be written ({error.strerror}).", "Close it in other programs, or name another file."
        ) from error
    except OSError as error:
        raise unwritable(path, error) from error


def table_of(rows: Iterable[Row]) -> bytes:
    """Write the rows as a CSV table. Return the bytes of the file, in UTF-8 with a byte order mark."""
    text = io.StringIO(newline="")
    lines = csv.DictWriter(text, COLUMNS)
    lines.writeheader()
    lines.writerows({name: _safe(row.get(name, "")) for name in COLUMNS} for row in rows)
    return text.getvalue().encode(MARK, "replace")


def _safe(value: str) -> str:
    """Put an apostrophe before everything that spreadsheets would run as a formula, and make the characters visible
    that a terminal would obey.
    """
    value = plain(value.replace("\r\n", "\n").replace("\r", "\n"))
    value = _AFTER_SEPARATOR.sub(r"\1'", value)
    return f"'{value}" if _FORMULA.match(value) else value


def _plain(cell: str) -> str:
    cell = cell[1:] if cell.startswith("'") and _FORMULA.match(cell, 1) else cell
    return _ESCAPED_AFTER_SEPARATOR.sub(r"\1", cell)
