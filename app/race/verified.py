"""What was verified on this machine: that this pair of models, here, decodes the same tokens as plain decoding.

Owns one small file in the data folder. A record is written only by a check that was really run (a race, a self-test),
belongs to one pair on one device in one precision, and is dropped by a check that fails.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

FEWEST_TOKENS = 16
"""Fewer equal tokens than these prove little and are not remembered."""


@dataclass(frozen=True)
class Record:
    """A check that held: ``tokens`` were equal. ``how`` is "race" or "selftest"; ``when`` seconds since the epoch."""

    how: str
    tokens: int
    when: float


class Verified:
    """Args:
    file: where the records are kept; made on first use.
    clock: seconds since the epoch.
    """

    def __init__(self, file: Path, clock: Callable[[], float] = time.time) -> None:
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at = -1  # when the file that was read had been written; another program may write it too
        self._records: dict[str, Record] = {}

    def of(self, model: Any) -> Record | None:
        """The record of a loaded pair (``engine.ModelInfo``), if there is one. Cheap."""
        with self._lock:
            return None if model is None else self._all().get(_name(model))

    def note(self, model: Any, how: str, same: int, tokens: int) -> None:
        """A check has ended: ``same`` of ``tokens`` tokens were equal."""
        with self._lock:
            records = dict(self._all())
            if same < tokens:
                records.pop(_name(model), None)
            elif tokens >= FEWEST_TOKENS:
                records[_name(model)] = Record(how, tokens, self._clock())
            self._save(records)
            self._records, self._read_at = records, self._written_at()

    def _all(self) -> dict[str, Record]:
        written = self._written_at()
        if written != self._read_at:
            self._read_at = written
            try:
                kept = json.loads(self._file.read_text(encoding="utf-8"))
                self._records = {name: Record(**record) for name, record in kept.items()}
            except (OSError, ValueError, TypeError, AttributeError):
                self._records = {}  # nothing, or nothing that can be read: then nothing is verified
        return self._records

    def _written_at(self) -> int:
        try:
            return self._file.stat().st_mtime_ns
        except OSError:
            return 0

    def _save(self, records: dict[str, Record]) -> None:
        written = self._file.with_name(f"{self._file.name}.{secrets.token_hex(4)}")
        text = json.dumps({name: asdict(record) for name, record in records.items()}, indent=1)
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            written.write_text(text, encoding="utf-8")
            os.replace(written, self._file)
        except OSError:
            logger.exception("what was verified could not be written down")


def _name(model: Any) -> str:
    """Everything of a loaded pair that the check depends on."""
    parts = [model.path, model.parameters, model.draft_name, model.draft_parameters, model.dtype, model.device]
    return " | ".join(map(str, [*parts, model.kv_note] if model.kv_note else parts))
