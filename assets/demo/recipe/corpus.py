"""Reads the books, decides which books are held back from training, and varies the layout of their text.

Owns reading the texts, the hold-out rule, and the layout variants (straight or curly quotes, one paragraph a line
or lines broken as on a page). Knows no tokens and no questions.
"""

from __future__ import annotations

import hashlib
import random
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

HOLD_OUT_EVERY = 20
"""A book is held back when sha256(slug) is divisible by this: about 5 % of the books."""

CURLY_SHARE = 0.35
WRAPPED_SHARE = 0.06
LINE_WIDTHS = (56, 84)

_OPENING_DOUBLE = re.compile(r'(^|[\s(\[—\-])"')
_OPENING_SINGLE = re.compile(r"(^|[\s(\[—\-“])'")


@dataclass(frozen=True)
class Book:
    """One book. `slug`: the file's name without its suffix. `title`: the first line of the text."""

    slug: str
    title: str
    text: str


def is_held_back(slug: str) -> bool:
    """Whether a book is held back from training. The rule uses only the book's name, so that it can be repeated."""
    return int(hashlib.sha256(slug.encode()).hexdigest(), 16) % HOLD_OUT_EVERY == 0


def read_books(folder: Path, *, held_back: bool) -> list[Book]:
    """Read the books of `folder` (*.txt), in the order of their names: the books held back from training, or all other
    books.
    """
    books = []
    for path in sorted(folder.glob("*.txt")):
        if is_held_back(path.stem) is held_back:
            text = path.read_text(encoding="utf-8").strip()
            books.append(Book(path.stem, text.split("\n", 1)[0].strip(), text))
    if not books:
        raise SystemExit(f"No books in {folder}: unpack books.tar.xz there, or give --books FOLDER.")
    return books


def curl_quotes(text: str) -> str:
    """Replace straight quotation marks by curly ones."""
    text = _OPENING_DOUBLE.sub(r"\1“", text).replace('"', "”")
    return _OPENING_SINGLE.sub(r"\1‘", text).replace("'", "’")


def wrap_lines(text: str, width: int) -> str:
    """Break every paragraph into lines of at most `width` characters, like text extracted from a page."""
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    return "\n".join("\n".join(wrapper.wrap(line)) for line in text.split("\n"))


def lay_out(text: str, rng: random.Random) -> str:
    """Give a text a random layout, as in PDFs, e-books or plain text."""
    if rng.random() < CURLY_SHARE:
        text = curl_quotes(text)
    if rng.random() < WRAPPED_SHARE:
        text = wrap_lines(text, rng.randint(*LINE_WIDTHS))
    return text


def random_span(books: list[Book], num_chars: int, rng: random.Random) -> tuple[Book, str, str]:
    """Pick a random book, weighted by length. Returns the book, about `num_chars` of its text from a paragraph's start,
    and the text that follows.
    """
    book = rng.choices(books, weights=[len(book.text) for book in books])[0]
    start = rng.randrange(max(1, len(book.text) - num_chars))
    start = book.text.rfind("\n", 0, start) + 1
    end = book.text.find(" ", min(start + num_chars, len(book.text) - 1))
    end = len(book.text) if end < 0 else end
    return book, book.text[start:end].strip(), book.text[end : end + num_chars].lstrip()
