"""How much a file may cost while it is read. Knows no format."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds for the reading of one file.

    ``seconds_per_page`` is the longest silence of the child process; a chapter of a format without pages counts as
    a page. ``zip_ratio`` is uncompressed size over compressed size of one entry.
    """

    memory_bytes: int = 2 << 30
    seconds_per_page: float = 10.0
    seconds: float = 300.0
    pages: int = 20_000
    characters: int = 40_000_000
    file_bytes: int = 1 << 30
    zip_entries: int = 10_000
    zip_bytes: int = 500_000_000
    zip_ratio: float = 200.0
