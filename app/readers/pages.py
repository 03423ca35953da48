"""Pictures of PDF pages, and where on them a passage stands, for the page viewer.

The work is done in the same kind of bounded child process as the reading. Knows no user interface.
"""

from __future__ import annotations

import base64
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from app.readers.limits import Limits
from app.readers.process import ChildFailed, messages
from engine.errors import DocumentError, InputError, OptionError, PasswordNeeded

Rectangle = tuple[float, float, float, float]

NARROWEST, WIDEST = 50, 4000
_SECONDS = 30.0
_PASSAGE = 4_000  # characters looked for at most


def render_page(path: Path, number: int, password: str | None = None, width: int = 900) -> bytes:
    """A page as PNG.

    Args:
        path: a PDF file.
        number: of the page, from 1.
        password: where the file needs one.
        width: of the picture in pixels.

    Raises:
        OptionError: the width or the page number is out of range.
        PasswordNeeded: the password is missing or wrong.
        DocumentError: the page cannot be drawn.
        InputError: there is no such file.
    """
    if not NARROWEST <= width <= WIDEST:
        raise OptionError(f"A page {width} pixels wide cannot be drawn.", f"Choose {NARROWEST} to {WIDEST}.")
    answer = _ask({"work": "render", "width": width}, Path(path), number, password)
    return base64.b64decode(answer)


def find_on_page(path: Path, number: int, passage: str, password: str | None = None) -> list[Rectangle]:
    """Where a passage stands on a page: (x0, y0, x1, y1) of each line, as fractions of the page from its top left.

    Case, spaces, hyphens and punctuation do not matter. Empty when the passage is not on the page. Raises as
    ``render_page``.
    """
    answer = _ask({"work": "find", "passage": passage[:_PASSAGE]}, Path(path), number, password)
    return [(x0, y0, x1, y1) for x0, y0, x1, y1 in answer]


def _ask(work: dict[str, Any], path: Path, number: int, password: str | None) -> Any:
    if number < 1:
        raise OptionError(f"There is no page {number}.", "Pages count from 1.")
    if not path.is_file():
        raise InputError(f"There is no file “{path}”.", "Check the name and the folder.")
    request = {**work, "path": str(path.resolve()), "number": number, "password": password}
    limits = Limits(seconds=_SECONDS)
    try:
        with closing(messages(request, limits, time.monotonic() + limits.seconds)) as heard:
            for message in heard:
                if message["type"] == "answer":
                    return message["value"]
                if message["type"] == "refused":
                    error = PasswordNeeded if message["kind"] == "password" else DocumentError
                    raise error(f"“{path.name}” {message['cause']}", message["remedy"])
    except ChildFailed:
        pass
    raise DocumentError(
        f"Page {number} of “{path.name}” cannot be shown: it breaks the program that draws it.",
        "The text that was read from the book is not affected.",
    )
