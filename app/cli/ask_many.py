"""``ask FOLDER QUESTION --csv FILE``: asks every document of a folder the same question, and writes a table with a row
for each.

The table is written anew after every document, whole or not at all. A stopped command continues when it is repeated:
answered documents are not asked again, failed ones are. Other questions go into the same table.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.citations import NoteTaker, evidence
from app.cli.ask import answer, kept_in, loaded_engine, read_book, sampling_of
from app.cli.read import recognition
from app.core.abilities import Abilities, abilities
from app.core.atomic_upload import unwritable, write_whole
from app.core.format import counted
from app.core.settings import Settings
from app.launcher.console import say
from app.readers import read_document
from engine import Question
from engine.config import SamplingParams
from engine.errors import InputError, OptionError, TrifoldError

if TYPE_CHECKING:
    from engine import Engine

COLUMNS = (
    *("file", "title", "question", "answer", "evidence_level", "evidence", "page"),
    *("not_found_in_document", "pages_read", "pages", "stopped", "model", "error", "sha256"),
)
_LEVELS = ("says so", "near", "not found")
# first characters of a formula, which a spreadsheet would run; the last one is our mark
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")
_MARK = "utf-8-sig"  # with the mark at the start by which spreadsheets recognise UTF-8

Row = dict[str, str]


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Ask every document and write the table."""
    sampling = sampling_of(options)
    question = " ".join(options.question)
    table = _table(options)
    rows = read_table(table)
    files = documents(Path(options.file).expanduser(), table)
    wanted = [(name, path) for name, path in files.items() if not _answered(rows.get((name, question)), path)]
    if len(wanted) < len(files):
        say(f"Note: {len(files) - len(wanted)} of {counted(len(files), 'document')} stand in {table.name} already.")
    if wanted:
        with loaded_engine(settings) as engine:
            for number, (name, path) in enumerate(wanted, start=1):
                say(f"{number} of {len(wanted)}: {name}")
                rows[name, question] = _row(engine, name, path, question, sampling, options, kept_in(options, settings))
                write_table(table, rows)
    failed = [name for name in files if rows[name, question]["error"]]
    say(f"{counted(len(files) - len(failed), 'document')} answered, in {table}.")
    if failed:
        say(f"Note: {counted(len(failed), 'document')} could not be asked; the column “error” says why.")
    return 0


def documents(place: Path, table: Path) -> dict[str, Path]:
    """The files of a folder and its subfolders, by their names within it, or the one given file. Hidden files and the
    table are left out.

    Raises:
        InputError: there is no file.
    """
    if place.is_file():
        return {place.name: place}
    found = {
        path.relative_to(place).as_posix(): path
        for path in sorted(place.rglob("*"))
        if path.is_file()
        and path.resolve() != table.resolve()
        and not any(part.startswith(".") for part in path.relative_to(place).parts)
    }
    if not found:
        raise InputError(f"There is no document in {place}.", "Name a folder with documents.")
    return found


def read_table(path: Path) -> dict[tuple[str, str], Row]:
    """Read the rows that an earlier run has written, by file and question.

    Raises:
        InputError: the file is another table, or cannot be read.
    """
    if not path.exists():
        return {}
    try:
        with path.open(encoding=_MARK, newline="") as file:
            lines = csv.DictReader(file)
            if tuple(lines.fieldnames or ()) != COLUMNS:
                raise InputError(f"{path} is another table.", "Name a file that is not there yet.")
            rows = [{name: _plain(row[name] or "") for name in COLUMNS} for row in lines]
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a table.", "Name a file that is not there yet.") from error
    return {(row["file"], row["question"]): row for row in rows}


def write_table(path: Path, rows: Mapping[tuple[str, str], Row]) -> None:
    """Write the table.

    Raises:
        ResourceError: the disk refuses.
    """
    text = io.StringIO(newline="")
    lines = csv.DictWriter(text, COLUMNS)
    lines.writeheader()
    lines.writerows({name: _safe(value) for name, value in row.items()} for row in rows.values())
    try:
        write_whole(path, text.getvalue().encode(_MARK, "replace"))
    except OSError as error:
        raise unwritable(path, error) from error


def evidence_of(record: Mapping[str, Any], answer: str) -> Row:
    """The evidence of an answer: the best level of its sentences, the passages of that level with their pages, and the
    names of the answer or the question that occur nowhere in the document.

    Args:
        record: the answer's notes, as kept.
    """
    found = evidence(record, answer)
    level = next((level for level in _LEVELS if any(one["level"] == level for one in found)), "")
    best = [one for one in found if one["level"] == level]
    return {
        "evidence_level": level,
        "evidence": "\n".join(dict.fromkeys(one["passage"] for one in best if one["passage"])),
        "page": "; ".join(dict.fromkeys(page["label"] for one in best for page in one["pages"])),
        "not_found_in_document": "; ".join(record.get("missing", ())),
    }


def _table(options: argparse.Namespace) -> Path:
    """Read the table of a command line.

    Raises:
        OptionError, InputError: the table cannot be used.
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
        raise OptionError(f"{table} cannot be written.", "Name a file in a folder that is there.")
    return table


def _answered(row: Row | None, path: Path) -> bool:
    """Whether a row's answer is about the file's present content."""
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
        with recognition(path.name, books, options.recognise) as how:
            document = read_document(path, options.password, comments=not options.no_comments, recognition=how)
        row |= {"title": document.title, "pages": str(len(document.pages))}
        read = read_book(engine, document, options.fit)
        model = engine.status().model
        begun = (abilities(model.path) if model else Abilities()).lead(question)
        asked = Question(question, sampling=sampling, mode=options.mode, begun=begun)
        notes = NoteTaker().begin(document, question, begun, pages_read=read.pages_read)
        done = answer(engine, asked, notes, show=False)
        row |= {
            "answer": done.text.strip(),
            "pages_read": str(read.pages_read),
            "stopped": done.stop_reason.value,
            "model": model.name if model else "",
        }
        row |= evidence_of(notes.record(), done.text)
        engine.finish_saving()
    except TrifoldError as error:
        row["error"] = f"{error.cause} {error.remedy}".strip()
    return row


def _safe(value: str) -> str:
    """Change a cell so that no spreadsheet takes it for a formula."""
    return f"'{value}" if value.startswith(_FORMULA) else value


def _plain(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA) else cell
