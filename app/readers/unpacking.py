"""Unpacks a zip archive of documents, so that each of them can be a book of its own. A child process unpacks it."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from app.readers.parsed import Limits, packed
from app.readers.parser_process import ChildFailed, run_in_child

MOST = 100
"""Maximum documents of an archive that is unpacked. One with more is read as a single book (``app.readers.bundle``)."""


@dataclass(frozen=True)
class ArchiveParts:
    """``documents``: file and original name of each document, in the order of the archive. ``warnings``: what is left
    out.
    """

    documents: tuple[tuple[Path, str], ...]
    warnings: tuple[str, ...]


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
                    found = tuple((folder / f"{at}{suffix}", name) for at, (suffix, name) in enumerate(named))
                    return ArchiveParts(found, tuple(message["value"]["warnings"]))
    except ChildFailed:
        pass  # the reader of the archive says what is wrong
    return None
