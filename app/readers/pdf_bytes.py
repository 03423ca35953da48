"""Looks into the bytes of a PDF file for what needs a second parser: fonts that give wrong text, and hidden layers.
Runs only in the child process (``app.readers.child``).

Searching the bytes takes a tenth of the time of opening the file with pypdf, and most files have neither.
"""

from __future__ import annotations

import mmap
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

_MOST_PACKED = 50_000_000  # maximum bytes of a file's packed objects that are looked into
_FONT = 20_000  # maximum bytes of a font's facts before and after its type
_STREAM = re.compile(rb"\bstream\r?\n")
_ESCAPE = re.compile(rb"#[4-7][\dA-Fa-f]")
_BEFORE_ESCAPE = re.compile(rb"/[A-Za-z]{0,12}$")
_LONGEST_BEFORE = 13  # maximum bytes that ``_BEFORE_ESCAPE`` matches

Bytes = bytes | mmap.mmap


def sure_of(path: Path) -> tuple[bool, bool]:
    """Return whether it is certain that no font of a file gives wrong text or no text, and whether it is certain that
    the file has no layers. If the file has escaped names, or objects that cannot be looked into, nothing is certain.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        packed = _packed_objects(data)
        if packed is None or _has_escaped_name(data) or _has_escaped_name(packed):
            return False, False
        fonts = all(_has_table(facts) for some in (data, packed) for facts in _fonts(some))
        return fonts, all(some.find(b"/OCProperties") < 0 for some in (data, packed))


def _packed_objects(data: mmap.mmap) -> bytes | None:
    """Return the objects of a file that are packed in streams; None if they are encrypted, packed in an unusual way, or
    too large.
    """
    objects: list[bytes] = []
    left = _MOST_PACKED
    offset = data.find(b"/ObjStm")
    while offset >= 0:
        begin = _STREAM.search(data, offset)
        facts = data[max(data.rfind(b" obj", 0, offset), 0) : begin.start()] if begin else b""
        if begin is None or b"/FlateDecode" not in facts or b"/DecodeParms" in facts:
            return None
        inflating = zlib.decompressobj()
        try:
            objects.append(inflating.decompress(data[begin.end() : data.find(b"endstream", begin.end())], left))
        except zlib.error:
            return None
        left -= len(objects[-1])
        if not inflating.eof or left <= 0:
            return None
        offset = data.find(b"/ObjStm", begin.end())
    return b"\n".join(objects)


def _has_escaped_name(data: Bytes) -> bool:
    starts = (match.start() for match in _ESCAPE.finditer(data))
    return any(_BEFORE_ESCAPE.search(data[max(start - _LONGEST_BEFORE, 0) : start]) for start in starts)


def _has_table(facts: bytes) -> bool:
    """Whether the facts of a font have a table of its letters, so that the font cannot give wrong text."""
    return b"/ToUnicode" in facts or (b"/Encoding" in facts and b"/Type0" not in facts)


def _fonts(data: Bytes) -> Iterator[bytes]:
    """Yield the facts of each font that may give wrong text or no text: of the types Type0 and TrueType. The facts are
    empty if they are too long or damaged.
    """
    for kind in (b"/Type0", b"/TrueType"):
        offset = data.find(kind)
        while offset >= 0:
            start, end = _outwards(data, offset, back=True), _outwards(data, offset, back=False)
            yield data[start:end] if start >= 0 and end >= 0 else b""
            offset = data.find(kind, offset + 1)


def _outwards(data: Bytes, at: int, *, back: bool) -> int:
    """Return where the dictionary around ``at`` begins (``back``) or ends; -1 if it does neither nearby."""
    far = max(at - _FONT, 0) if back else at + _FONT
    depth = 0
    while True:
        if back:
            opens, closes = data.rfind(b"<<", far, at), data.rfind(b">>", far, at)
            at, inner = max(opens, closes), closes > opens
        else:
            opens, closes = (found if (found := data.find(sign, at, far)) >= 0 else far for sign in (b"<<", b">>"))
            at, inner = (min(opens, closes) + 2 if min(opens, closes) < far else -1), opens < closes
        if at < 0 or (depth == 0 and not inner):
            return at
        depth += 1 if inner else -1
