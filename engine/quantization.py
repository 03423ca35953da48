"""Describes the formats of weights and KV, quantized or not: bits, scales, bytes and tokens. Computed without torch."""

from __future__ import annotations

from dataclasses import dataclass

BITS = {"8bit": 8, "4bit": 4}
"""Bits of a quantized weight, keyed by the value of the setting ``weights``."""

GROUP = 32
"""Number of neighbouring 4-bit weights that share a scale."""

LEVEL_BITS, LAST_LEVEL, MIDDLE_LEVEL = 4, 15, 8
"""Of 4-bit weights: bits of a level, the highest level, and the level that stands for the middle of a group's range."""

WORD_LEVELS = 32 // LEVEL_BITS
"""Number of 4-bit levels in a 32-bit word of weights packed for a processor."""

KERNEL_WIDTH = 16
"""Number of levels that torch's product with 8-bit weights reads at once on a processor. Rows whose length is no
multiple of it can crash the product.
"""

FLOAT_BYTES = 4

SCALE_BYTES = 2
"""Bytes of a scale, which follows the 8-bit levels of a key, a value or a mean key, and is part of 4-bit weights."""


SLIDING_SLACK = 1_024
"""Minimum tokens that a sliding layer holds in addition to its window, so that a chat can be cropped; also the maximum
tokens of a pass.
"""

SLIDING_BORDER = 512
"""The KV of a sliding layer begins at a multiple of this number of tokens."""


def sliding_capacity(window: int) -> int:
    """Tokens whose KV a layer with this sliding window holds."""
    return window + 2 * SLIDING_SLACK + SLIDING_BORDER


CHAT_PLACES = 4
"""Number of places of a chat at which copies of recurrent states are stored, in addition to the end of the book: the
beginnings and ends of the newest answers. The chat can be cropped to these places.
"""

TRACED_TOKENS = 144
"""Number of tokens for which a recurrent layer stores a trace: all proposals of the middle level in its passes, and all
tokens of a verification.
"""

# number of states: 3 for the committed tokens, before the newest pass and after it; 1 at the book's end; the chat's
# places
_RECURRENT_STATES = 3 + 1 + CHAT_PLACES


@dataclass(frozen=True)
class StateSize:
    """The state of a recurrent layer: a memory (heads, key_dim, value_dim) in float32, and the newest inputs of a
    convolution over ``taps`` tokens of ``channels`` channels.
    """

    heads: int
    key_dim: int
    value_dim: int
    channels: int
    taps: int

    def bytes(self, itemsize: int) -> int:
        """Bytes of one state. ``itemsize`` is the number of bytes of the model's dtype."""
        memory = self.heads * self.key_dim * self.value_dim
        return FLOAT_BYTES * memory + (self.taps - 1) * self.channels * itemsize

    def held_bytes(self, itemsize: int) -> int:
        """Bytes of all states of a layer, including those at the places of a chat, and of its traces: each token's
        inputs, keys, updates and decays.
        """
        values = self.heads * self.value_dim
        trace = FLOAT_BYTES * ((self.channels - values) // 2 + values + self.heads) + self.channels * itemsize
        return _RECURRENT_STATES * self.bytes(itemsize) + TRACED_TOKENS * trace


def bytes_per_weight(weights: str, itemsize: int) -> float:
    """Bytes of a weight of the decoder blocks, scales included.

    Args:
        weights: "stored", or the name of a quantized format.
        itemsize: bytes of the dtype.
    """
    if weights not in BITS:
        return float(itemsize)
    return 1.0 if BITS[weights] == 8 else 0.5 + 2 * SCALE_BYTES / GROUP


def index_is_quantized(head_dim: int, on_cpu: bool) -> bool:
    """Whether mean keys have 8 bits, each with a scale. On a processor this needs a kernel that reads them directly. On
    a GPU they always have 8 bits, because a GPU unpacks a layer quickly and has little memory.
    """
    return not on_cpu or head_dim % KERNEL_WIDTH == 0


def index_bytes(heads: int, head_dim: int, itemsize: int, chunk_size: int, quantized: bool) -> int:
    """Bytes of mean keys for each token of context, on the compute device.

    Args:
        heads: KV heads of all layers together.
        itemsize: bytes of the compute dtype.
        chunk_size: tokens that share a mean key.
        quantized: see ``index_is_quantized``.
    """
    each = head_dim + SCALE_BYTES if quantized else head_dim * itemsize
    return -(-heads * each // chunk_size)
