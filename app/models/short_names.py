"""The short names of models, with the module that provides each model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from app.core.settings import READER_DRAFT, READERS, STARTERS
from app.models import reader, starter
from engine.plan import ModelShape


class ModelSource(Protocol):
    """What a module in ``SOURCES`` must define. The argument ``models`` of the functions is the folder of all
    downloaded models.
    """

    NAME: str
    SIZE: str
    LICENCE: str

    def shape_of(self, name: str) -> ModelShape: ...
    def is_made(self, models: Path, name: str) -> bool: ...
    def is_at_hand(self, models: Path, name: str) -> bool: ...
    def verdict(self, name: str) -> str: ...
    def download_words(self, name: str) -> str: ...


SOURCES: Mapping[str, ModelSource] = {
    **dict.fromkeys(STARTERS, starter),
    **dict.fromkeys((*READERS, READER_DRAFT), reader),
}
