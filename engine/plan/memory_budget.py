"""The memory budget: how KV is spread over device, host memory and disk, as arithmetic, and the verdict on a book.

For the planner, and for the list of models and servers elsewhere, which judge before a model or torch is there: imports
no torch and looks at no machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.events import KvBytes

MIN_CHAT_TOKENS = 256
"""Tokens of the window that stay free behind a book for a question and an answer."""

MEMORY_SHARE = 0.85
"""Share of the free memory that weights and cache may take: the rest is for activations and for all else that runs."""

PINNED_SHARE = 0.6
"""The same of host memory beside a GPU: pinned memory cannot be swapped out."""

DISK_SHARE = 0.8

CHUNK, FINE_CHUNK = 8, 2
"""Tokens of a chunk of the retrieval cache: TriForce's, and the one that finds the bundled pair's quotations
(assets/measurements)."""

# Buffers that spilled layers pass through; resident ones in 8 bits have one of their own.
_STAGING_BUFFERS = 2


@dataclass(frozen=True)
class BookFit:
    """Whether a book fits: ``tokens`` of the book, ``limit`` of the window, ``kv_bytes`` of the cache once it is read.

    ``kv`` are these bytes by tier; ``reading_s`` and ``step_ms`` the expected times, None where nothing has been
    measured, and ``estimate`` the same in words. Of a model elsewhere the tokens are a guess, and its cache takes
    nothing here.
    """

    tokens: int
    limit: int
    fits: bool
    pages_that_fit: int
    kv_bytes: int
    sentence: str
    kv: KvBytes = field(default_factory=KvBytes)
    reading_s: float | None = None
    step_ms: float | None = None
    estimate: str = ""


@dataclass(frozen=True)
class Spread:
    """Layers by where their KV lies, and bytes of the buffers that it passes through."""

    resident: int
    in_host: int
    on_disk: int
    staging: int


@dataclass(frozen=True)
class KvSize:
    """Bytes of a token's KV in all layers.

    Args:
        stored: in storage. computed: in a buffer, in the dtype of the computation.
        quantized: whether the two differ: resident layers need a buffer then, too.
        index: of the retrieval cache's mean keys, which lie on the device wherever the KV is.
    """

    layers: int
    stored: int
    computed: int
    quantized: bool = False
    index: int = 0

    def spread(self, tokens: int, device: int, host: int, disk: int) -> Spread | None:
        """Where the KV of ``tokens`` tokens goes, given the bytes that it may take: residency first, then host memory,
        then disk. None if there is no place for it.
        """
        per_layer = max(1, tokens * self.stored // self.layers)
        buffer = max(1, tokens * self.computed // self.layers)
        device -= tokens * self.index
        staging = buffer * self.quantized
        resident = min(self.layers, (device - staging) // per_layer)
        if resident < self.layers:
            staging += _STAGING_BUFFERS * buffer
            resident = (device - staging) // per_layer
        if resident < 0:
            return None
        in_host = min(self.layers - resident, host // per_layer)
        on_disk = self.layers - resident - in_host
        return Spread(resident, in_host, on_disk, staging) if on_disk * per_layer <= disk else None

    def longest_context(self, limit: int, device: int, host: int, disk: int) -> int:
        """The longest context, at most ``limit``, that has a place."""
        return _largest(limit, lambda tokens: self.spread(tokens, device, host, disk) is not None)


def _largest(limit: int, holds: Callable[[int], bool]) -> int:
    """The largest number up to ``limit`` for which something holds that holds for all smaller ones."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
