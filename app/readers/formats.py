"""Which parser a file goes to, and what every book gets whatever its format: a title, an author, bounds.

Runs in the child only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from app.readers import cleaning, sniff
from app.readers.limits import Limits
from app.readers.parsed import Heading, Parsed, Refused

Step = Callable[[int, int, "int | None"], None]


class Voice(Protocol):
    def step(self, done: int, total: int, page: int | None = None) -> None: ...


_WARNINGS = 30  # that are said one by one
_PARSERS = {
    "pdf": "app.readers.pdf",
    "epub": "app.readers.epub",
    "docx": "app.readers.docx",
    "html": "app.readers.html",
    "markdown": "app.readers.plain",
    "text": "app.readers.plain",
}
_NOT_A_TITLE = re.compile(
    r"^(untitled|title|document\d*|microsoft word.*|unknown|no title|none|noname"
    r"|about:blank|(https?|file)://\S*|.*\.(docx?|pdf|tex|dvi|indd|qxd|rtf|ps|txt))$",
    re.I,
)
_NOT_AN_AUTHOR = re.compile(
    r"^(unknown|author|admin(istrator)?|user|owner|root|none|anonymous user|\(?(anonymous|unspecified)\)?|.*@.*)$", re.I
)


def parse(path: Path, request: dict[str, Any], limits: Limits, voice: Voice) -> Parsed:
    """Read a file of any known format.

    Raises:
        Refused: it cannot be read as a book.
    """
    kind = sniff.kind(path, limits)
    step: Step = voice.step
    parsed: Parsed = import_module(_PARSERS[kind]).parse(path, {**request, "kind": kind}, limits, step)
    if len(parsed.sections) > limits.pages:
        raise Refused(f"has more than {limits.pages:,} {parsed.unit}s.", "Split it into smaller files.")
    characters = sum(len(section.text) for section in parsed.sections)
    if characters > limits.characters:
        raise Refused(
            f"has {characters:,} characters; the limit is {limits.characters:,}.", "Split it into smaller files."
        )
    if not characters:
        raise Refused("has no text in it.", "Choose a document with text.")
    if len(parsed.warnings) > _WARNINGS:
        more = len(parsed.warnings) - _WARNINGS
        parsed.warnings[_WARNINGS:] = [f"There are {more:,} more warnings of this kind."]
    parsed.title = _title(parsed, path)
    parsed.author = _author(parsed.author)
    count = len(parsed.sections)
    parsed.outline = [
        Heading(entry.title, min(max(entry.page, 1), count), max(entry.level, 0)) for entry in parsed.outline
    ]
    voice.step(count, count)
    return parsed


def _title(parsed: Parsed, path: Path) -> str:
    title = cleaning.one_line(parsed.title)
    if sum(sign.isalnum() for sign in title) > 1 and not _NOT_A_TITLE.match(title):
        return title
    return cleaning.one_line(path.stem.replace("_", " ")) or "Untitled"


def _author(author: str) -> str:
    author = cleaning.one_line(author)
    return "" if _NOT_AN_AUTHOR.match(author) else author
