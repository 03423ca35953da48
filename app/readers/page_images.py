"""Draws PDF pages for the page viewer, and finds passages on them.

Limits the image widths and the number of images drawn at a time, and caches images in memory. A child process with
limits draws the images (``app.readers.pdf_render``).
"""

from __future__ import annotations

import base64
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from app.readers import recognition
from app.readers.parsed import Limits, packed
from app.readers.parser_process import BUSY, ChildFailed, run_in_child
from app.readers.recognised import PICTURE
from engine.errors import DocumentError, InputError, OptionError, PasswordNeeded, ResourceError

Rectangle = tuple[float, float, float, float]
"""(x0, y0, x1, y1) as fractions of the page, from its top left."""

NARROWEST = 50
"""Minimum width of a picture of a page, in pixels. A narrower one is refused."""
WIDEST = 4000
"""Maximum width of a picture of a page, in pixels. A wider one is refused."""
_SECONDS_PER_IMAGE = 30.0
_LONGEST_PASSAGE = 4_000  # maximum characters of a passage; a longer passage is cut before the search
WIDTHS = (600, 900, 1200, 1800, 2400)  # widths of cached images in pixels
MOST_BYTES = 48 << 20  # default maximum bytes of images in the cache
_AT_ONCE = 2  # maximum requests that run at a time; a request draws or searches a page

Draw = Callable[[Path, int, str | None, int], bytes]
Passage = tuple[str, str, str]
"""(text before, passage, text after). The surrounding text decides between several places with the same passage."""

PlacedWord = tuple[str, float, float, float, float]
"""(word, x0, y0, x1, y1). The word ends in a space if a space follows it on the page."""

Find = Callable[[Path, int, Sequence[Passage], str | None], list[list[Rectangle]]]
Words = Callable[[Path, int, str | None], list[PlacedWord]]


def render_page(path: Path, number: int, password: str | None = None, width: int = 900) -> bytes:
    """Return a page as a PNG.

    Args:
        path: a PDF or picture file.
        number: number of the page, from 1.
        password: password of an encrypted file.
        width: width of the image in pixels.

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
    """Find a passage on a page. Return one rectangle for each line of the passage; [] if the passage is not on the
    page.

    Case, spaces, hyphens and punctuation are ignored. The passage may be the words of a picture beside the text
    (``app.readers.recognised.picture_at``). Raises as ``render_page`` does.
    """
    return find_all_on_page(path, number, [("", passage, "")], password)[0]


def find_all_on_page(
    path: Path, number: int, passages: Sequence[Passage], password: str | None = None
) -> list[list[Rectangle]]:
    """Find several passages on a page. Return one list of rectangles for each passage, as ``find_on_page`` does."""
    asked = [(before, passage[:_LONGEST_PASSAGE], after) for before, passage, after in passages]
    recognised = recognition.load_page(Path(path).parent, number)
    in_pictures = any(passage.startswith(PICTURE) for _, passage, _ in asked)
    known = recognition.load_pictures(Path(path).parent, number) if in_pictures else {}
    work = {"work": "find", "passages": asked, "recognised": recognised, "pictures": known}
    answer = _ask(work, Path(path), number, password)
    return [[(x0, y0, x1, y1) for x0, y0, x1, y1 in rectangles] for rectangles in answer]


def words_on_page(path: Path, number: int, password: str | None = None) -> list[PlacedWord]:
    """Return the words of a page in reading order, each with its rectangle. Raises as ``render_page`` does."""
    recognised = recognition.load_page(Path(path).parent, number)
    answer = _ask({"work": "words", "recognised": recognised}, Path(path), number, password)
    return [(str(text), x0, y0, x1, y1) for text, x0, y0, x1, y1 in answer]


def _ask(work: dict[str, Any], path: Path, number: int, password: str | None) -> Any:
    if number < 1:
        raise OptionError(f"There is no page {number}.", "Pages count from 1.")
    if not path.is_file():
        raise InputError(f"There is no file “{path}”.", "Check the name and the folder.")
    request = {**work, "path": packed(path), "number": number, "password": password}
    limits = Limits(seconds=_SECONDS_PER_IMAGE)
    try:
        with closing(run_in_child(request, limits, time.monotonic() + limits.seconds)) as heard:
            for message in heard:
                if message["type"] == "answer":
                    return message["value"]
                if message["type"] == "refused":
                    error = PasswordNeeded if message["kind"] == "password" else DocumentError
                    raise error(f"“{path.name}” {message['cause']}", message["remedy"])
    except ChildFailed as failure:
        if failure.reason == "busy":
            busy = f"Page {number} of “{path.name}” was not drawn: this machine is too busy."
            raise ResourceError(busy, BUSY) from failure
    raise DocumentError(
        f"Page {number} of “{path.name}” cannot be shown: the program that draws it fails on this page.",
        "The text that was read from the book is not affected.",
    )


class PageImages:
    """Draws images of pages on demand, and caches the images in memory.

    Args:
        draw: draws a page, as ``render_page`` does.
        find: finds passages on a page, as ``find_all_on_page`` does.
        most_bytes: maximum bytes of images in the cache.
        words: lists the words of a page, as ``words_on_page`` does.
    """

    def __init__(
        self,
        draw: Draw = render_page,
        find: Find = find_all_on_page,
        most_bytes: int = MOST_BYTES,
        words: Words = words_on_page,
    ) -> None:
        self._draw = draw
        self._find = find
        self._words = words
        self._most_bytes = most_bytes
        self._kept: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._working = threading.Semaphore(_AT_ONCE)

    def page(self, book: str, path: Path, number: int, width: int, password: str | None = None) -> bytes:
        """Return a page as a PNG. The image gets the smallest width in ``WIDTHS`` that is at least ``width``, or else
        the largest width.

        Args:
            book: hash of the file.
            path: the file.
            number: number of the page, from 1.
            width: requested width in pixels.
            password: password of an encrypted file.

        Raises:
            DocumentError, PasswordNeeded, InputError: the page cannot be drawn.
        """
        key = (book, number, next((wide for wide in WIDTHS if wide >= width), WIDTHS[-1]))
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        with self._working:
            picture = self._draw(path, number, password, key[2])
        with self._lock:
            self._kept[key] = picture
            while len(self._kept) > 1 and sum(map(len, self._kept.values())) > self._most_bytes:
                self._kept.popitem(last=False)
        return picture

    def words(self, path: Path, number: int, password: str | None = None) -> list[PlacedWord]:
        """Return the words of a page with their places, so that a person can select the words on the page's image."""
        with self._working:
            return self._words(path, number, password)

    def find(
        self, path: Path, number: int, passages: Sequence[Passage], password: str | None = None
    ) -> list[list[Rectangle]]:
        """Find passages on a page. Return the rectangles of each passage, as fractions of the page's image."""
        if not passages:
            return []
        with self._working:
            return self._find(path, number, passages, password)
