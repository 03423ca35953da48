"""What the commands that take a FILE share: reading it, and counting its tokens without loading a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import PasswordNeeded

if TYPE_CHECKING:
    from engine.document import Document


def open_book(file: str, password: str | None = None, pages: tuple[int, int] | None = None) -> Document:
    """Read a file, or some pages of it.

    Raises:
        DocumentError: the file cannot be read as a book.
        OptionError: the book does not have these pages.
    """
    from app.readers import read_document

    try:
        document = read_document(Path(file).expanduser(), password)
    except PasswordNeeded as error:
        raise PasswordNeeded(error.cause, "Give its password with --password.") from error
    return document.select(*pages) if pages else document


def count_tokens(document: Document, model: str) -> int:
    """Tokens of the book in the words of a model, template included; loads the tokenizer only.

    Raises:
        ModelError: the model has no usable tokenizer.
    """
    from engine.tokenizer import BookTokenizer

    tokenizer = BookTokenizer(model)
    return len(tokenizer.book(document, tokenizer.format_for(document.title)).ids)
