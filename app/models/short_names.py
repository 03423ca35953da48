"""The models that a short word names: the module that knows each of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from app.core.settings import READERS, STARTERS
from app.models import reader, starter
from engine.plan import ModelShape


class Source(Protocol):
    """What such a module says of its models. ``models``: the folder of all that was fetched."""

    SIZE: str
    LICENCE: str

    def shape_of(self, name: str) -> ModelShape: ...
    def is_made(self, models: Path, name: str) -> bool: ...
    def is_at_hand(self, models: Path, name: str) -> bool: ...
    def verdict(self, name: str) -> str: ...
    def download_words(self) -> str: ...


SOURCES: Mapping[str, Source] = {**dict.fromkeys(STARTERS, starter), **dict.fromkeys(READERS, reader)}
