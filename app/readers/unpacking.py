"""Unpacks a zip archive of documents, so that each of them can be a book of its own. A child process unpacks it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from app.readers.parsed import Limits, packed
from app.readers.parser_process import ChildFailed, run_in_child
from engine.errors import DocumentError

Part = TypeVar("Part")
Taken = TypeVar("Taken")
MOST = 100
"""Maximum documents of an archive that is unpacked. One with more is read as a single book (``app.readers.bundle``)."""


@dataclass(frozen=True)
class ArchiveParts:
    """``documents``: file and original name of each document, in the order of the archive. ``warnings``: what is left
    out.
    """

    documents: tuple[tuple[Path, str], ...]
    warnings: tuple[str, ...]


def without_unreadable(parts: Iterable[Part], take: Callable[[Part], Taken], told: list[str]) -> list[Taken]:
    """Return what ``take`` makes of each document of an archive. A document for which ``take`` raises a
    ``DocumentError`` is left out, and the words of the error are added to ``told``.
    """
    taken = []
    for part in parts:
        try:
            taken.append(take(part))
        except DocumentError as refused:
            told.append(str(refused))
    return taken


def unpack(path: Path, folder: Path, limits: Limits | None = None) -> ArchiveParts | None:
    """Unpack the documents of a zip archive into a folder. Return None for a file that is no such archive, has too many
    documents, or cannot be unpacked within the limits.
    """
    limits = limits or Limits()
    request = {"work": "unpack", "path": packed(path), "folder": packed(folder), "most": MOST, "limits": asdict(limits)}
    try:
        with closing(run_in_child(request, limits, time.monotonic() + limits.seconds)) as heard:
            for message in heard:
                if message["type"] == "answer" and message["value"]["documents"]:
                    named = message["value"]["documents"]
                    documents = tuple(
                        (folder / f"{number}{suffix}", name) for number, (suffix, name) in enumerate(named)
                    )
                    return ArchiveParts(documents, tuple(message["value"]["warnings"]))
    except ChildFailed:
        pass  # the parser of the archive says what is wrong
    return None
