"""HTML files as books: sections by headings. Child only."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.readers import encoding, markup
from app.readers.limits import Limits
from app.readers.parsed import Parsed, Refused
from app.readers.sections import by_headings, finish, split_levels

Step = Callable[[int, int, "int | None"], None]

_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset=[\"']?([A-Za-z0-9_.:-]{1,40})", re.I)
_XML_CHARSET = re.compile(rb"\s*<\?xml[^>]{0,100}?encoding=[\"']([A-Za-z0-9_.:-]{1,40})", re.I)
_NOT_OF_FILES = {
    "idna",
    "punycode",
    "unicode-escape",
    "raw-unicode-escape",
    "unicode_escape",
    "raw_unicode_escape",
    "utf-7",
}
_MOST_MARKUP = 5  # bytes of a file for each character that a book may have


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read an HTML file."""
    step(0, 1, None)
    data = path.read_bytes()
    if len(data) > _MOST_MARKUP * limits.characters:
        raise Refused(f"has {len(data) / 1e6:,.0f} MB; that is more than a book.", "Split it into parts.")
    blocks, title, author = markup.read(decode(data), lambda: step(0, 1, None))
    step(0, 1, None)
    sections, outline = finish(by_headings(blocks, split_levels(blocks)))
    first = next((block.text for block in blocks if block.level), "")
    return Parsed("html", "section", sections, title.strip() or first, author, outline)


def decode(data: bytes) -> str:
    """Text of HTML bytes: marks, then what the file declares, as XML or as HTML, then a guess."""
    declared = _XML_CHARSET.match(data) or _CHARSET.search(data[:4096])
    if declared and encoding.decode_sample(data) is None:
        try:
            name = codecs.lookup(declared[1].decode("ascii")).name
            if name not in _NOT_OF_FILES:
                return data.decode(name)
        except (LookupError, UnicodeError):
            pass
    return encoding.decode(data)[0]
