"""``ask FOLDER QUESTION --csv FILE`` asks every document of a folder the same question, and writes a table with a row
for each document.

The whole table is written anew after every document, so that it is never half written. Several commands may write to
one table at once. A command that was stopped can be repeated. Repeating it asks only documents without an answer,
documents that failed, and documents whose file has changed. If the command is repeated with another question, the new
answers are added to the table.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.ask import ask_of, book_line, kept_in, loaded_engine, progress_line, sampling_of
from app.cli.read import CONVERT, recognition, unpacked
from app.core.answer_table import COLUMNS, Asked, Row, add_row, ask_document, read_table
from app.core.atomic_upload import clean
from app.core.forecast import Remaining
from app.core.format import counted, recognised_line
from app.core.settings import Settings
from app.launcher.console import ProgressLine, say
from app.readers import read_document
from app.readers.conversion import ConversionOffer
from engine.config import SamplingParams
from engine.document import Document, Reading
from engine.errors import CONTROLS, ContextTooSmall, InputError, OptionError, TrifoldError, plain
from engine.events import BookRead, Event, ReadingProgress

if TYPE_CHECKING:
    from engine import Engine

_WRITTEN = {sign: chr(sign).encode("unicode_escape").decode() for sign in (*CONTROLS, *map(ord, "\t\n\u200e\u200f"))}
_TOO_LONG = "Ask it by itself, with --chapters, --pages or --parts and without --csv; or read what fits with --fit."


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Ask every document and write the table."""
    table, place = _table(options), Path(options.file).expanduser()
    told: list[str] = []
    with unpacked(place, told) as parts:
        for warning in told:
            say(f"Note: {warning}")
        return _ask_all(documents(place, table, parts), table, options, settings)


def _ask_all(files: dict[str, Path], table: Path, options: argparse.Namespace, settings: Settings) -> int:
    sampling = sampling_of(options)
    question = plain(" ".join(options.question))
    rows = read_table(table)
    wanted = [(name, path) for name, path in files.items() if not _answered(rows.get((name, question)), path)]
    if len(wanted) < len(files):
        say(f"Note: {len(files) - len(wanted)} of {counted(len(files), 'document')} are already in {table.name}.")
    if wanted:
        with loaded_engine(settings) as engine:
            for number, (name, path) in enumerate(wanted, start=1):
                if _answered(rows.get((name, question)), path):
                    continue  # another command has asked it meanwhile
                say(f"{number} of {len(wanted)}: {clean(name)}")
                row = _row(engine, name, path, question, sampling, options, kept_in(options, settings))
                rows = add_row(table, row)
    failed = [name for name in files if rows[name, question]["error"]]
    say(f"{counted(len(files) - len(failed), 'document')} answered, in {table}.")
    if failed:
        say(f"Note: {counted(len(failed), 'document')} could not be asked; the column “error” says why.")
    return 0


def documents(place: Path, table: Path, parts: Sequence[Path] = ()) -> dict[str, Path]:
    """The files of the folder ``place`` and its subfolders, keyed by their path within the folder. If ``place`` is a
    file, the result has only this file, or the documents ``parts`` of the archive that the file is. Hidden files and
    the table are left out.

    Raises:
        InputError: the folder has no document.
    """
    if place.is_file():
        named: dict[str, Path] = {}
        for part in parts or [place]:
            name = _written(part.name)
            named[name if name not in named else f"{name} ({len(named) + 1})"] = part
        return named
    files = {
        _written(path.relative_to(place).as_posix()): path
        for path in sorted(place.rglob("*"))
        if path.is_file()
        and path.resolve() != table.resolve()
        and not any(part.startswith(".") for part in path.relative_to(place).parts)
    }
    if not files:
        raise InputError(f"There is no document in {place}.", "Name a folder with documents.")
    return files


def _written(name: str) -> str:
    """A file's name in the table. Characters that are not UTF-8, that a terminal obeys or that turn the direction of
    writing are written with backslashes, so that the row is found again and harms nobody who prints the table.
    """
    return name.encode("utf-8", "backslashreplace").decode().translate(_WRITTEN)


def _table(options: argparse.Namespace) -> Path:
    """Check the options of a command line, and return the path of its table.

    Raises:
        OptionError: no table is named, it cannot be written, or another option does not go with ``--csv``.
        InputError: the folder does not exist.
    """
    if not options.csv:
        raise OptionError(f"{options.file} is a folder.", "To ask each of its documents, name a table: --csv FILE.csv")
    if options.json or options.pages or options.chapters or options.parts is not None:
        raise OptionError(
            "--csv asks whole documents and writes a table.", "Leave --json, --pages, --chapters and --parts out."
        )
    if not Path(options.file).expanduser().exists():
        raise InputError(f"There is no folder {options.file}.", "Check the name.")
    table = Path(options.csv).expanduser()
    if table.is_dir() or not table.parent.is_dir():
        raise OptionError(f"{table} cannot be written.", "Name a file in an existing folder.")
    return table


def _answered(row: Row | None, path: Path) -> bool:
    """Whether a row's answer is about the file's current content."""
    return row is not None and not row["error"] and row["sha256"] == _sha256(path)


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _row(
    engine: Engine,
    name: str,
    path: Path,
    question: str,
    sampling: SamplingParams,
    options: argparse.Namespace,
    books: Path | None,
) -> Row:
    """Ask one document and make its row. An error is written into the row."""
    row = dict.fromkeys(COLUMNS, "") | {"file": name, "question": question, "sha256": _sha256(path)}
    try:
        with recognition(path.name, books, options.recognise, pictures=not options.no_pictures) as how:
            asked_for = {"comments": not options.no_comments, "convert": options.convert}
            document = read_document(path, options.password, recognition=how, **asked_for)
        row |= {"title": document.title, "pages": str(len(document.pages))}
        asked = ask_of(question, sampling, options)
        row |= _followed(document, ask_document(engine, Reading(document, fit=options.fit), asked))
    except ContextTooSmall as error:
        row["error"] = f"{error.cause} {_TOO_LONG}"
    except ConversionOffer as offer:
        row["error"] = f"{offer.cause} {CONVERT}"
    except TrifoldError as error:
        row["error"] = f"{error.cause} {error.remedy}".strip()
    return row


def _followed(document: Document, steps: Generator[Event, None, Asked]) -> Row:
    """Run ``steps``, the generator that ``ask_document`` returned, and show the progress of the reading on one line.
    Return the columns of the document's row that ``ask_document`` has filled.

    Raises:
        KeyboardInterrupt: the reading or the answer was stopped.
    """
    with ProgressLine(f"Reading {document.title}") as line:
        remaining = Remaining()
        try:
            while True:
                event = next(steps)
                if isinstance(event, ReadingProgress):
                    remaining = remaining.after(event)
                    line.update(progress_line(event, remaining))
                elif isinstance(event, BookRead):
                    line.done(book_line(event))
        except StopIteration as ended:
            asked: Asked = ended.value
    if asked.is_stopped:
        raise KeyboardInterrupt
    if told := recognised_line(int(asked.row["pages_recognised"]), int(asked.row["pages"])):
        say(f"Note: {told}")
    return asked.row
