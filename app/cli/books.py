"""What the commands that take a FILE share: reading it, and counting its tokens without loading a model."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app.launcher.speech import say
from engine.errors import PasswordNeeded

if TYPE_CHECKING:
    from engine.document import Document


_TRIES = 3


def open_book(file: str, password: str | None = None, pages: tuple[int, int] | None = None) -> Document:
    """Read a file, or some pages of it.

    Raises:
        DocumentError: the file cannot be read as a book.
        OptionError: the book does not have these pages.
    """
    from app.readers import read_document

    path = Path(file).expanduser()
    try:
        document = read_document(path, password)
    except PasswordNeeded as error:
        if password is not None or not sys.stdin.isatty():
            raise PasswordNeeded(error.cause, "Give its password with --password.") from error
        document = _unlocked(path, error)
    return document.select(*pages) if pages else document


def _unlocked(path: Path, error: PasswordNeeded) -> Document:
    """Ask the person at the terminal, without showing what is typed."""
    from app.readers import read_document

    for _ in range(_TRIES):
        say(error.cause)
        try:
            password = getpass.getpass("Password: ")
        except EOFError:
            break
        try:
            return read_document(path, password)
        except PasswordNeeded as wrong:
            error = wrong
    raise PasswordNeeded(error.cause, "Look it up and try again.")


def count_tokens(document: Document, model: str) -> int:
    """Tokens of the book in the words of a model, template included; loads the tokenizer only.

    Raises:
        ModelError: the model has no usable tokenizer.
    """
    from engine.tokenizer import BookTokenizer

    tokenizer = BookTokenizer(model)
    return len(tokenizer.book(document, tokenizer.format_for(document.title)).ids)
