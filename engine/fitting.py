"""The rule of what fits where, as arithmetic, and its verdict as a record.

For the planner, and for whoever must know before a model or torch is there: the page's list of models, and a server
elsewhere. Imports no torch and looks at no machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.events import KvBytes

MIN_CHAT_TOKENS = 256
"""Room that is kept free behind a book for a question and an answer."""

MEMORY_SHARE = 0.85
"""Share of the free memory that weights and cache may take: the rest is for activations and for all else that runs."""

PINNED_SHARE = 0.6
"""The same of host memory beside a GPU: what is pinned there cannot be swapped out."""

DISK_SHARE = 0.8

CHUNK, FINE_CHUNK = 8, 2
"""Tokens of a chunk of the retrieval cache: TriForce's, and what finds the bundled pair's quotations (README)."""

BITS = {"8bit": 8, "4bit": 4}
"""Bits of a rounded weight, by the names of the setting."""

GROUP = 32
"""Neighbouring 4-bit weights that share a scale."""

KERNEL_WIDTH = 16
"""Codes that torch's product with 8-bit weights reads at once on a processor; rows of another length can crash it."""

SCALE_BYTES = 2
"""Of the scale that stands behind the codes of a key, a value or a mean key kept in 8 bits."""

# Buffers that spilled layers pass through; resident ones in 8 bits have one of their own.
_STAGES = 2


@dataclass(frozen=True)
class Fit:
    """Whether a book fits. ``tokens`` of the book, ``limit`` of the window, ``kv_bytes`` that reading it will take.

    ``kv`` says where they will lie; ``reading_s`` and ``step_ms`` what is to be expected, None where nothing has been
    measured; ``estimate`` says it in words. Of a model elsewhere the tokens are a guess, and its cache takes nothing
    here.
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
    """What a model's KV takes. ``kept`` are bytes of a token in all layers, ``whole`` those of one in a buffer, which
    differ where what is kept is ``rounded``: resident layers need a buffer then, too. ``index`` are those of the
    retrieval cache's mean keys, which lie on the device wherever the KV is.
    """

    layers: int
    kept: int
    whole: int
    rounded: bool = False
    index: int = 0

    def spread(self, tokens: int, device: int, host: int, disk: int) -> Spread | None:
        """Where the KV of ``tokens`` tokens goes, given the bytes that it may take: residency first, then host memory,
        then disk. None if there is no place for it.
        """
        per_layer = max(1, tokens * self.kept // self.layers)
        buffer = max(1, tokens * self.whole // self.layers)
        device -= tokens * self.index
        staging = buffer * self.rounded
        resident = min(self.layers, (device - staging) // per_layer)
        if resident < self.layers:
            staging += _STAGES * buffer
            resident = (device - staging) // per_layer
        if resident < 0:
            return None
        in_host = min(self.layers - resident, host // per_layer)
        on_disk = self.layers - resident - in_host
        return Spread(resident, in_host, on_disk, staging) if on_disk * per_layer <= disk else None

    def most_tokens(self, limit: int, device: int, host: int, disk: int) -> int:
        """The longest context, at most ``limit``, that has a place."""
        return _most(limit, lambda tokens: self.spread(tokens, device, host, disk) is not None)


def bytes_per_weight(weights: str, itemsize: int) -> float:
    """Bytes of a weight of the decoder blocks, scales included.

    Args:
        weights: "stored", or the name of what they are rounded to.
        itemsize: of the dtype.
    """
    if weights not in BITS:
        return float(itemsize)
    return 1.0 if BITS[weights] == 8 else 0.5 + 2 * itemsize / GROUP


def index_is_rounded(head_dim: int, on_cpu: bool) -> bool:
    """Whether mean keys are kept in 8 bits, each with a scale: where a kernel reads them as they are."""
    return on_cpu and head_dim % KERNEL_WIDTH == 0


def index_bytes(heads: int, head_dim: int, itemsize: int, chunk_size: int, rounded: bool) -> int:
    """Bytes of mean keys per token of context, which lie where the model computes.

    Args:
        heads: KV heads of all layers together.
        itemsize: of the dtype that is computed with.
        chunk_size: tokens that share a mean key.
        rounded: see ``index_is_rounded``.
    """
    each = head_dim + SCALE_BYTES if rounded else head_dim * itemsize
    return -(-heads * each // chunk_size)


def _most(limit: int, holds: Callable[[int], bool]) -> int:
    """The largest number up to ``limit`` for which something holds that holds for all smaller ones."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
