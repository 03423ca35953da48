"""What the engine is doing and with what: frozen snapshots for people and programs. No tensors, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.events import Figures

State = Literal["loading", "idle", "reading", "answering", "failed", "closed"]


@dataclass(frozen=True)
class ModelInfo:
    """The loaded models, for people."""

    name: str
    path: str
    parameters: int
    architecture: str
    context_limit: int
    dtype: str
    device: str
    vocabulary: int
    kv_bytes_per_token: int
    draft_name: str | None
    draft_parameters: int | None
    kv_note: str = ""
    """What a person has to know of how KV is kept; nothing where it is kept as it is computed."""


@dataclass(frozen=True)
class BookInfo:
    """The open book and how much of it has been read."""

    title: str
    tokens: int
    tokens_total: int
    pages_read: int
    pages_total: int

    @property
    def complete(self) -> bool:
        return self.tokens >= self.tokens_total


@dataclass(frozen=True)
class Status:
    """A snapshot of the engine. ``detail`` is a sentence for the person."""

    state: State
    detail: str
    model: ModelInfo | None = None
    book: BookInfo | None = None
    figures: Figures | None = None
    page_scores: tuple[float, ...] = ()
