"""The bundled book: its file, and questions that are worth asking it. Knows only the folder it lies in."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path

_DESCRIPTION = "sample.json"
_FORMS = (".pdf", ".epub", ".txt")


class Sample:
    """Args:
    folder: holds the book and ``sample.json``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def file(self) -> Path | None:
        """The book in the best form there is."""
        named = self._folder / str(self._description.get("file", ""))
        if named.is_file():
            return named
        return next((file for form in _FORMS for file in sorted(self._folder.glob(f"*{form}"))), None)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.file.read_bytes()).hexdigest() if self.file else ""

    @cached_property
    def questions(self) -> tuple[str, ...]:
        found = self._description.get("questions", ())
        return tuple(str(item["question"]) for item in found if isinstance(item, dict) and "question" in item)

    @cached_property
    def _description(self) -> dict:
        try:
            found = json.loads((self._folder / _DESCRIPTION).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}
