"""Pictures of pages, drawn when they are looked at and kept in memory for as long as there is room.

Owns the cache and the bounds: a few widths, a few megabytes, two pages drawn at a time. The drawing itself happens in
a bounded child process (``app.readers``). Knows no user interface.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from app.readers.pages import Rectangle, find_on_page, render_page

WIDTHS = (600, 900, 1200, 1800, 2400)
MOST_BYTES = 48 << 20
_AT_ONCE = 2

Draw = Callable[[Path, int, str | None, int], bytes]
Find = Callable[[Path, int, str, str | None], list[Rectangle]]


class Pictures:
    """Args:
    draw, find: how a page is drawn and a passage found on it; see ``app.readers.pages``.
    room: bytes of pictures that are kept.
    """

    def __init__(self, draw: Draw = render_page, find: Find = find_on_page, room: int = MOST_BYTES) -> None:
        self._draw = draw
        self._find = find
        self._room = room
        self._kept: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._working = threading.Semaphore(_AT_ONCE)

    def page(self, book: str, path: Path, number: int, width: int, password: str | None = None) -> bytes:
        """A page as PNG, at least ``width`` pixels wide where that is allowed.

        Args:
            book: hash of the file.

        Raises:
            DocumentError, PasswordNeeded, InputError: it cannot be drawn.
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
            while len(self._kept) > 1 and sum(map(len, self._kept.values())) > self._room:
                self._kept.popitem(last=False)
        return picture

    def find(self, path: Path, number: int, passage: str, password: str | None = None) -> list[Rectangle]:
        """Where a passage stands on the picture of a page, as fractions of it."""
        with self._working:
            return self._find(path, number, passage, password)
