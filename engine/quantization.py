"""Formats of weights and KV, quantized or not: bits, scales, bytes and tokens, as arithmetic that needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

BITS = {"8bit": 8, "4bit": 4}
"""Bits of a quantized weight, by the names of the setting."""

GROUP = 32
"""Neighbouring 4-bit weights that share a scale."""

LEVEL_BITS, LAST_LEVEL, MIDDLE_LEVEL = 4, 15, 8
"""Levels of 4-bit weights; the last one named stands for the middle of its group."""

WORD_LEVELS = 32 // LEVEL_BITS
"""Levels of 4 bits in a word of weights that are packed for a processor."""

KERNEL_WIDTH = 16
"""Levels that torch's product with 8-bit weights reads at once on a processor; rows of another length can crash it."""

FLOAT_BYTES = 4

SCALE_BYTES = 2
"""Bytes of the scale stored after the 8-bit levels of a key, a value or a mean key, and of a scale of 4-bit weights."""


SLIDING_SLACK = 1_024
"""Tokens beyond its window that a sliding layer holds at least, so that a chat can be cropped by them; also the most
tokens of a pass."""

SLIDING_BORDER = 512
"""The KV of a sliding layer begins at a multiple of this number of tokens."""


def sliding_capacity(window: int) -> int:
    """Tokens whose KV a layer with this sliding window holds."""
    return window + 2 * SLIDING_SLACK + SLIDING_BORDER


CHAT_PLACES = 4
"""Places of a chat at which copies of recurrent states are kept, so that it can be cropped to them, apart from the end
of the book: where the newest answers begin and end."""

TRACED_TOKENS = 144
"""Tokens of whose effects a recurrent layer keeps a trace: all that the middle level proposes, in its passes, and that
a verification reads."""

_RECURRENT_STATES = 3 + 1 + CHAT_PLACES  # behind the committed tokens, before and behind the newest pass, and those


@dataclass(frozen=True)
class StateSize:
    """The state of a recurrent layer: a memory (heads, key_dim, value_dim) in float32, and what a convolution over
    ``taps`` tokens of so many ``channels`` reads of those before the next."""

    heads: int
    key_dim: int
    value_dim: int
    channels: int
    taps: int

    def bytes(self, itemsize: int) -> int:
        """Bytes of one state; ``itemsize``: of the model's dtype."""
        memory = self.heads * self.key_dim * self.value_dim
        return FLOAT_BYTES * memory + (self.taps - 1) * self.channels * itemsize

    def held_bytes(self, itemsize: int) -> int:
        """Bytes of all states of a layer, with those at the places of a chat, and of its traces: each token's inputs,
        its keys, what it adds, and how much it leaves."""
        values = self.heads * self.value_dim
        trace = FLOAT_BYTES * ((self.channels - values) // 2 + values + self.heads) + self.channels * itemsize
        return _RECURRENT_STATES * self.bytes(itemsize) + TRACED_TOKENS * trace


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
    """Whether mean keys have 8 bits, each with a scale: on a processor where a kernel reads them as they are, on a GPU
    always, since it unpacks a layer's in a moment and has little memory."""
    return not on_cpu or head_dim % KERNEL_WIDTH == 0


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
