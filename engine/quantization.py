"""Formats of weights and KV, quantized or not: bits, scales, bytes and tokens, as arithmetic that needs no torch."""

from __future__ import annotations

BITS = {"8bit": 8, "4bit": 4}
"""Bits of a quantized weight, by the names of the setting."""

GROUP = 32
"""Neighbouring 4-bit weights that share a scale."""

LEVEL_BITS, LAST_LEVEL, MIDDLE_LEVEL = 4, 15, 8
"""Of 4-bit weights; the last one named stands for the middle of its group."""

KERNEL_WIDTH = 16
"""Levels that torch's product with 8-bit weights reads at once on a processor; rows of another length can crash it."""

SCALE_BYTES = 2
"""Of the scale stored behind the 8-bit levels of a key, a value or a mean key; of a scale of 4-bit weights."""


SLIDING_SLACK = 1_024
"""Tokens behind its window that a sliding layer holds at least, so that a chat can be cropped by as many; the most
tokens of a pass, too."""

SLIDING_BORDER = 512
"""The KV that a sliding layer holds begins at a multiple of so many tokens."""


def sliding_capacity(window: int) -> int:
    """Tokens whose KV a layer with this sliding window holds."""
    return window + 2 * SLIDING_SLACK + SLIDING_BORDER


def bytes_per_weight(weights: str, itemsize: int) -> float:
    """Bytes of a weight of the decoder blocks, scales included.

    Args:
        weights: "stored", or the name of a quantized format.
        itemsize: of the dtype.
    """
    if weights not in BITS:
        return float(itemsize)
    return 1.0 if BITS[weights] == 8 else 0.5 + 2 * SCALE_BYTES / GROUP


def index_is_quantized(head_dim: int, on_cpu: bool) -> bool:
    """Whether mean keys have 8 bits, each with a scale: where a kernel reads them as they are."""
    return on_cpu and head_dim % KERNEL_WIDTH == 0


def index_bytes(heads: int, head_dim: int, itemsize: int, chunk_size: int, quantized: bool) -> int:
    """Bytes of mean keys per token of context, which lie where the model computes.

    Args:
        heads: KV heads of all layers together.
        itemsize: of the dtype of the computation.
        chunk_size: tokens that share a mean key.
        quantized: see ``index_is_quantized``.
    """
    each = head_dim + SCALE_BYTES if quantized else head_dim * itemsize
    return -(-heads * each // chunk_size)
