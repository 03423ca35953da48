"""Whether a pair fits on this machine, before it is downloaded: arithmetic on its numbers and a sentence. Pure.

The engine's planner has the last word once a book is there; this says beforehand what it will say for the longest book.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from app.models.shapes import Shape
from engine.fitting import (
    BITS,
    CHUNK,
    DISK_SHARE,
    MEMORY_SHARE,
    PINNED_SHARE,
    KvSize,
    bytes_per_weight,
    index_bytes,
    index_is_rounded,
)

Verdict = Literal["whole", "part", "none"]

CPU_FLOAT32_PARAMETERS = 1_500_000_000
"""Up to this size a processor holds weights in four bytes each (``engine.architecture``)."""

SHORTEST_BOOK = 4_096  # tokens; a machine that holds less than this of a book is no place for the model
_WORDS_PER_TOKEN = 0.75


@dataclass(frozen=True)
class Room:
    """What this machine has, in bytes. ``memory`` is where the model computes, once the present one is gone; ``host``
    is memory beside a GPU that a cache can spill to, 0 without one; ``disk`` is what is free there. ``kv`` is how this
    start keeps a cache: "model", or "8bit" to round it; ``rounding`` what it rounds a target's weights to: "8bit",
    "4bit", or "stored", which is not at all.
    """

    memory: int
    disk: int
    on_gpu: bool
    host: int = 0
    kv: str = "model"
    rounding: str = "stored"

    @property
    def where(self) -> str:
        return "GPU memory" if self.on_gpu else "memory"


@dataclass(frozen=True)
class Fit:
    """``tokens`` of context fit beside the weights, ``spilled`` of them if slower tiers are used as well.

    ``weights`` are bytes in memory; ``kv_per_1k`` is bytes of cache for 1,000 tokens.
    """

    verdict: Verdict
    tokens: int
    spilled: int
    weights: int
    kv_per_1k: int
    sentence: str


def fit(target: Shape, draft: Shape | None, room: Room) -> Fit:
    """What running this pair takes here."""
    itemsize = _itemsize(target, room)
    weights = _weights(target, itemsize, room.rounding)
    weights += _weights(draft, _itemsize(draft, room), "stored") if draft else 0
    size = _kv_size(target, itemsize, room)
    left = int((room.memory - weights) * MEMORY_SHARE)
    tokens = size.most_tokens(target.window, left, 0, 0)
    spilled = size.most_tokens(target.window, left, int(room.host * PINNED_SHARE), int(room.disk * DISK_SHARE))
    verdict: Verdict = "whole" if tokens == target.window else "part" if spilled >= SHORTEST_BOOK else "none"
    sentence = _sentence(verdict, tokens, spilled, weights, room)
    if verdict == "none" and (way := _way_out(target, draft, room)):
        sentence += f" With --weights {way} it would fit."
    return Fit(verdict, tokens, spilled, weights, 1000 * size.kept, sentence)


def _way_out(target: Shape, draft: Shape | None, room: Room) -> str:
    """What the weights of a model that does not fit would have to be rounded to; empty if that does not help."""
    ways = BITS if room.rounding == "stored" else ()
    return next((way for way in ways if fit(target, draft, replace(room, rounding=way)).verdict != "none"), "")


def _kv_size(shape: Shape, itemsize: int, room: Room) -> KvSize:
    whole = shape.kv_bytes_per_token(itemsize)
    rounded = room.kv == "8bit"
    kept = shape.rounded_kv_bytes_per_token if rounded else whole
    small = index_is_rounded(shape.head_dim, not room.on_gpu)
    index = index_bytes(shape.layers * shape.kv_heads, shape.head_dim, itemsize, CHUNK, small)
    return KvSize(shape.layers, kept, whole, rounded, index)


def _weights(shape: Shape, itemsize: int, rounding: str) -> int:
    """Bytes in memory; embedding and output head stay as they are."""
    blocks = shape.parameters - shape.embeddings
    return int(shape.embeddings * itemsize + blocks * bytes_per_weight(rounding, itemsize))


def _itemsize(shape: Shape, room: Room) -> int:
    return 4 if not room.on_gpu and shape.parameters <= CPU_FLOAT32_PARAMETERS else 2


def _sentence(verdict: Verdict, tokens: int, spilled: int, weights: int, room: Room) -> str:
    if verdict == "none":
        return (
            f"Does not fit: it needs {weights / 1e9:.1f} GB and room for a book, "
            f"and {max(0, room.memory) / 1e9:.1f} GB of {room.where} are free."
        )
    if verdict == "whole":
        return f"Fits, with books of up to {_books(tokens)}."
    slower = "partly in slower memory or on disk" if room.on_gpu else "partly on disk"
    if tokens < SHORTEST_BOOK:
        return f"Fits, with little {room.where} left for books: they lie {slower}, and answers are slow."
    longer = "" if spilled <= tokens else f" Longer ones lie {slower}, and answers are slower."
    return f"Fits, with books of up to {_books(tokens)} in {room.where}.{longer}"


def _books(tokens: int) -> str:
    return f"{tokens:,} tokens, about {round(tokens * _WORDS_PER_TOKEN, -3):,.0f} words"
