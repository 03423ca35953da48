"""``read`` describes a file, or prints all of its text. Also opens the files for other commands.

Tokens are counted with the model's tokenizer alone; the model is not loaded.
"""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from app.core.atomic_upload import clean
from app.core.forecast import Range, stretch
from app.core.format import counted
from app.core.settings import Settings
from app.launcher.console import ProgressLine, say, write, write_json
from app.readers.conversion import ConversionOffer
from app.readers.recognition import Pictures, Recognition
from app.readers.unpacking import unpack, without_unreadable
from engine.document import Document, Page, extent_of
from engine.errors import ModelError, PasswordNeeded
from engine.model_files import TEMPORARY

CONVERT = "Add --convert, and LibreOffice on this machine converts it."
"""The remedy for a file that LibreOffice can convert."""
_TRIES = 3  # maximum number of attempts to type the password of a file


def run(options: argparse.Namespace, settings: Settings) -> int:
    document = open_books(
        options.files,
        options.password,
        comments=not options.no_comments,
        books=settings.books,
        doubtful=options.recognise,
        pictures=not options.no_pictures,
        convert=options.convert,
    )
    if options.text and not options.json:
        # written as UTF-8 bytes, so that the output is the same on every machine
        sys.stdout.buffer.write(text_of(document).encode())
        for warning in document.warnings:
            say(f"Note: {warning}")
        return 0
    try:
        tokens, trouble = count_tokens(document, settings.model), None
    except ModelError as error:  # without a usable tokenizer, the file is described without its number of tokens
        tokens, trouble = None, f"The tokens are not counted. {error}"
    if trouble:
        say(trouble)
    report = report_of(document, tokens)
    if options.json:
        write_json(report, indent=2)
    else:
        write("\n".join(lines_of(report)) + "\n")
    return 0


def report_of(document: Document, tokens: int | None) -> dict[str, Any]:
    return {
        "title": document.title,
        "author": document.author,
        "kind": document.kind,
        "unit": document.unit,
        "pages": len(document.pages),
        "characters": document.characters,
        "tokens": tokens,
        "sha256": document.sha256,
        "outline": [{"title": item.title, "page": item.page, "level": item.level} for item in document.outline],
        "warnings": list(document.warnings),
        **parts_of(document),
        "page_texts": [
            {
                "page": own_number(document, page),
                "label": page.label,
                "text": page.text,
                **({"picture": page.picture} if page.picture else {}),
                **_document_of(document, page),
            }
            for page in document.pages
        ],
    }


def parts_of(document: Document) -> dict[str, Any]:
    """The documents of a collection under the key "documents", each with its title and other facts; {} for a single
    document.
    """
    documents = [
        {
            "title": member.title,
            "author": member.author,
            "kind": member.kind,
            "unit": member.unit,
            "pages": sum(document.member_at(page.number) is member for page in document.pages),
            "sha256": member.sha256,
        }
        for member in document.members
    ]
    return {"documents": documents} if documents else {}


def own_number(document: Document, page: Page) -> int:
    """The number of a page within its own document, which may be one of several in ``document``."""
    member = document.member_at(page.number)
    return page.number - (member.page_offset if member else 0)


def _document_of(document: Document, page: Page) -> dict[str, str]:
    member = document.member_at(page.number)
    return {"document": member.title} if member else {}


def text_of(document: Document) -> str:
    """Return the text exactly as the model reads it. A heading before the text of each page names the page."""

    def called(page: Page) -> str:
        member = document.member_at(page.number)
        title = f"{' '.join(member.title.split())}, " if member else ""
        return f"{title}{'page ' if (member or document).unit == 'page' else ''}{page.label}"

    return "".join(f"=== {called(page)} ===\n{page.text}\n" for page in document.pages)


def lines_of(report: dict[str, Any]) -> list[str]:
    """Describe a report (``report_of``) in lines for a person."""
    by = f" by {report['author']}" if report["author"] else ""
    parts = report.get("documents") or [report]
    pages = extent_of([(part["pages"], part["unit"]) for part in parts], report["pages"])
    size = f"{pages}, {report['characters']:,} characters"
    if report["tokens"] is not None:
        size += f", {report['tokens']:,} tokens"
    lines = [f"{report['title']}{by}", size]
    for part in report.get("documents", ()):
        lines.append(f"- {part['title']}: {counted(part['pages'], part['unit'])}")
    if report["outline"]:
        lines.append(f"Table of contents with {len(report['outline'])} entries.")
    return lines + [f"Note: {warning}" for warning in report["warnings"]]


# Opening files, for every command -------------------------------------------------------------------------------------


def open_books(
    files: Sequence[str],
    password: str | None = None,
    *,
    comments: bool = True,
    books: Path | None = None,
    doubtful: bool = False,
    pictures: bool = True,
    convert: bool = False,
) -> Document:
    """Read one file, or several files in the given order as one book. A zip archive stands for its documents; those
    that cannot be read are left out with a warning.

    Args:
        doubtful: whether text recognition also runs on pages that have text, if that text is probably wrong.
        pictures: whether words of pictures beside the text are read too.
        convert: whether LibreOffice may convert a file that no parser knows.

    Raises:
        DocumentError: a file cannot be read as a book.
    """
    read = partial(
        open_book,
        password=password,
        comments=comments,
        books=books,
        doubtful=doubtful,
        pictures=pictures,
        convert=convert,
    )
    opened: list[Document] = []
    told: list[str] = []
    for file in files:
        with unpacked(Path(file).expanduser(), told) as parts:
            readable = without_unreadable(map(str, parts), read, told)
        opened += readable or [read(file)]
    if len(opened) == 1:
        return replace(opened[0], warnings=(*told, *opened[0].warnings))
    together = Document.together(opened, title=Path(files[0]).stem if len(files) == 1 else "")
    return replace(together, warnings=(*told, *together.warnings))


@contextmanager
def unpacked(path: Path, told: list[str]) -> Iterator[list[Path]]:
    """Unpack the documents of a zip archive into a temporary folder, each under its own name, and yield them. What is
    left out is added to ``told``. Yield [] for a file that is no archive of documents.
    """
    if path.suffix.lower() != ".zip":
        yield []
        return
    with TemporaryDirectory(prefix=TEMPORARY) as folder:
        archive = unpack(path, Path(folder))
        told += archive.warnings if archive else ()
        yield [_named(file, name) for file, name in archive.documents] if archive else []


def _named(file: Path, name: str) -> Path:
    """Give an unpacked file its own name, which readers and errors show, in a folder of its own."""
    place = file.with_suffix("") / clean(name)
    try:
        place.parent.mkdir()
        return file.rename(place)
    except OSError:  # this machine has no such names
        return file


def open_book(
    file: str,
    password: str | None = None,
    *,
    comments: bool = True,
    books: Path | None = None,
    doubtful: bool = False,
    pictures: bool = True,
    convert: bool = False,
) -> Document:
    """Read a file, with or without the comments in it, and ask for its password if it is locked.

    Raises:
        DocumentError: the file cannot be read as a book.
    """
    path = Path(file).expanduser()
    read = partial(_read, path, comments=comments, books=books, doubtful=doubtful, pictures=pictures, convert=convert)
    try:
        return read(password)
    except PasswordNeeded as error:
        if password is not None:
            raise
        if not sys.stdin.isatty():
            raise PasswordNeeded(error.cause, "Give its password with --password.") from error
        return _unlocked(read, error)


def _unlocked(read: Callable[[str], Document], error: PasswordNeeded) -> Document:
    """Ask the person for the password at the terminal, at most ``_TRIES`` times, and read the file with it. The typed
    password is not shown.
    """
    for _ in range(_TRIES):
        say(error.cause)
        try:
            password = getpass.getpass("Password: ")
        except EOFError:
            break
        try:
            return read(password)
        except PasswordNeeded as wrong:
            error = wrong
    raise PasswordNeeded(error.cause, "Look it up and try again.")


def _read(
    path: Path,
    password: str | None,
    *,
    comments: bool,
    books: Path | None,
    doubtful: bool,
    pictures: bool,
    convert: bool,
) -> Document:
    from app.readers import read_document

    try:
        with recognition(path.name, books, doubtful, pictures=pictures) as how:
            return read_document(path, password, comments=comments, recognition=how, convert=convert)
    except ConversionOffer as offer:
        raise ConversionOffer(offer.cause, CONVERT) from offer


@contextmanager
def recognition(
    name: str, books: Path | None, doubtful: bool = False, *, pictures: bool = True
) -> Iterator[Recognition]:
    """Yield the ``Recognition`` with which a parser recognises pages that are pictures. The progress of the recognition
    is shown on one line. Ctrl-C ends the recognition; the text of finished pages stays stored.

    Args:
        name: the file's name.
        books: the library's folder, where recognised text is stored; None stores nothing.
        doubtful: whether pages that have text are recognised too, if that text is probably wrong.
        pictures: whether words of pictures beside the text are recognised too.
    """
    with ExitStack() as stack:
        lines: list[ProgressLine] = []

        def show(done: int, total: int, seconds: float | None) -> None:
            if not lines:
                lines.append(stack.enter_context(ProgressLine(f"Recognising words in pictures of {name}")))
            left = f", {stretch(Range(seconds, seconds))} left" if seconds else ""
            lines[0].update(f"{done:,} of {total:,}{left}")
            if done == total:
                lines[0].done(f"{total:,} of {total:,}")

        folder = (lambda sha256: books / sha256) if books is not None else None
        which: Pictures = "all" if pictures else ""
        yield Recognition(folder, agreed=True, doubtful=doubtful, pictures=which, progress=show)


def count_tokens(document: Document, model: str) -> int:
    """Count the tokens that a book takes in a model's context, including the tokens of the chat template. Loads only
    the tokenizer.

    Raises:
        ModelError: the model has no usable tokenizer.
    """
    from engine.prompt import BookTokenizer

    tokenizer = BookTokenizer(model)
    return len(tokenizer.book(document, tokenizer.format_for(document.opening)).ids)
