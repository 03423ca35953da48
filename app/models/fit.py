"""Whether a pair fits on this machine, before it is downloaded: arithmetic on its numbers and a sentence. Pure.

The engine's planner has the last word once a book is there; this says beforehand what it will say for the longest book.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.models.shapes import Shape

Verdict = Literal["whole", "part", "none"]

MEMORY_SHARE = 0.85
"""Share of the free memory that weights and cache may take (``engine.planner``; a test keeps the two alike)."""

# The same of memory beside a GPU and of the disk, and the layers of buffer between them: the planner's numbers too.
HOST_SHARE = 0.6
DISK_SHARE = 0.8
_STAGES = 2

CPU_FLOAT32_PARAMETERS = 1_500_000_000
"""Up to this size a processor holds weights in four bytes each (``engine.architecture``)."""

SHORTEST_BOOK = 4_096  # tokens; a machine that holds less than this of a book is no place for the model
_WORDS_PER_TOKEN = 0.75


@dataclass(frozen=True)
class Room:
    """What this machine has, in bytes. ``memory`` is where the model computes, once the present one is gone; ``host``
    is memory beside a GPU that a cache can spill to, 0 without one; ``disk`` is what is free there. ``kv`` is how this
    start keeps a cache: "model", or "8bit" to round it.
    """

    memory: int
    disk: int
    on_gpu: bool
    host: int = 0
    kv: str = "model"

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
    weights = target.parameters * itemsize + (draft.parameters * _itemsize(draft, room) if draft else 0)
    per_token, whole = target.kv_bytes_per_token(itemsize), 0
    if room.kv == "8bit":
        per_token, whole = target.rounded_kv_bytes_per_token, per_token
    left = int((room.memory - weights) * MEMORY_SHARE)
    tokens = most_tokens(target, per_token, left, 0, 0, whole)
    spilled = most_tokens(target, per_token, left, int(room.host * HOST_SHARE), int(room.disk * DISK_SHARE), whole)
    verdict: Verdict = "whole" if tokens == target.window else "part" if spilled >= SHORTEST_BOOK else "none"
    return Fit(verdict, tokens, spilled, weights, 1000 * per_token, _sentence(verdict, tokens, spilled, weights, room))


def most_tokens(shape: Shape, per_token: int, device: int, host: int, disk: int, whole: int = 0) -> int:
    """The longest context whose KV has a place, by the rule of ``engine.planner.plan``: layers that do not fit where
    the model computes go to host memory, then to disk, through buffers of two layers.

    Args:
        per_token: bytes that are kept of a token.
        whole: bytes of a token in buffers, where what is kept is rounded; resident layers need one buffer then.
    """

    def has_a_place(tokens: int) -> bool:
        layer = max(1, tokens * per_token // shape.layers)
        buffer = max(1, tokens * (whole or per_token) // shape.layers)
        staging = buffer if whole else 0
        resident = min(shape.layers, (device - staging) // layer)
        if resident < shape.layers:
            resident = (device - staging - _STAGES * buffer) // layer
        if resident < 0:
            return False
        on_disk = max(0, shape.layers - resident - host // layer)
        return on_disk * layer <= disk

    low, high = 0, shape.window
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if has_a_place(middle) else (low, middle - 1)
    return low


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
