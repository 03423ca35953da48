"""Describes the sizes of weights, KV and recurrent states, quantized or not. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

BITS = {"8bit": 8, "4bit": 4}
"""Bits of a quantized weight, keyed by the value of the setting ``weights``."""

FITTED = "fitted"
"""The value of the setting ``weights`` for a GGUF file whose expanded weights do not fit a GPU. Each tensor gets the
format that ``fitted_format`` chooses. Only the planner sets this value.
"""

# GGML's numbers of F32, F16 and BF16.
_FLOAT_KINDS = (0, 1, 30)
# Formats with equal steps between values and with less than 5 bits: GGML's numbers of Q4_0, Q4_1, Q2_K, Q3_K and Q4_K.
_FOUR_BIT_KINDS = (2, 3, 10, 11, 12)

# Formats whose quants are indices into a table, which the kernels for GPUs do not read: GGML's numbers of IQ4_NL and
# IQ4_XS.
_CODED_KINDS = frozenset((20, 23))
# Bytes of a block on a GPU, as a multiple of its bytes in the file: an upper estimate (Q4_K has 37 for 36). Quants of
# fewer than 4 bits take 4 bits there: Q2_K and Q3_K, by GGML's numbers.
_PLANES = 1.03
_WIDER_PLANES = {10: 1.96, 11: 1.33}

GROUP = 32
"""Number of neighbouring 4-bit weights that share a scale."""

QUANT_BITS = 4
"""Number of bits of a quant. 4-bit weights are stored as quants (integers)."""
LAST_QUANT = 15
"""The highest quant of a 4-bit weight."""
MIDDLE_QUANT = 8
"""The quant that represents the middle between a group's minimum and maximum."""

WORD_QUANTS = 32 // QUANT_BITS
"""Number of 4-bit quants in a 32-bit word of weights packed for a processor."""

FLOAT_BYTES = 4
_HALF_BYTES = 2  # bytes of a number in bfloat16 or float16

SCALE_BYTES = 2
"""Bytes of a scale. In 8-bit KV and in 8-bit mean keys, a scale is stored after the values of each vector. 4-bit
weights have scales of the same size.
"""


SLIDING_SLACK = 1_024
"""Minimum number of tokens that a layer with a sliding window holds in addition to the window, so that this many tokens
can be cropped. It is also the maximum number of tokens in a pass through the layer.
"""

SLIDING_BORDER = 512
"""The KV of a sliding layer begins at a multiple of this number of tokens."""


def sliding_capacity(window: int) -> int:
    """Number of tokens whose KV a layer with this sliding window holds."""
    return window + 2 * SLIDING_SLACK + SLIDING_BORDER


CHAT_PLACES = 4
"""Number of places of a chat at which copies of recurrent states are stored, in addition to the end of the book: the
beginnings and ends of the newest answers. The chat can be cropped to these places.
"""

TRACED_TOKENS = 144
"""Maximum number of newest tokens for which a recurrent layer stores traces. From the traces, the state after any of
these tokens can be computed (``engine.kv.states``). The number is enough for a verification and for the passes of the
target on the retrieval cache.
"""

# Number of states that a recurrent layer stores: after the committed tokens, before the newest pass, after the newest
# pass, at the end of the book, and at ``CHAT_PLACES`` places of the chat.
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
        """Bytes of all states of a layer, including the copies at ``CHAT_PLACES``, and of its trace. A trace is what is
        stored of the newest tokens to compute the state after any of them: inputs, keys, updates and decays.
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


def fitted_format(kind: int) -> str:
    """The format of a tensor with the setting ``FITTED``: "4bit", "8bit", or "stored" if the tensor is not rounded.

    IQ4_NL, IQ4_XS and MXFP4 take 8 bits. The steps between their values are unequal. Rounding these values to 4 bits
    with equal steps would add an error as large as the rounding error that the file already has. Q2_K and Q3_K, with a
    scale for each 16 weights, take 4 bits, because 8 bits would triple their bytes.

    Args:
        kind: GGML's number for the tensor's format in the file.
    """
    return "stored" if kind in _FLOAT_KINDS else "4bit" if kind in _FOUR_BIT_KINDS else "8bit"


def fitted_size(kind: int, weights: int) -> float:
    """Bytes on a GPU of a tensor with this number of weights in the format ``fitted_format(kind)``."""
    return weights * bytes_per_weight(fitted_format(kind), _HALF_BYTES)


def card_bytes_per_weight(stored: float, kinds: Iterable[int]) -> float:
    """Mean bytes of a weight on a GPU that keeps the blocks of a GGUF file; 0 if no GPU keeps all of its formats.

    Args:
        stored: mean bytes of a weight in the file.
        kinds: GGML's numbers for the formats of the file's weights.
    """
    distinct = set(kinds)
    wider = max((_WIDER_PLANES.get(kind, _PLANES) for kind in distinct), default=_PLANES)
    return 0.0 if distinct & _CODED_KINDS else wider * stored


def index_bytes(heads: int, head_dim: int, chunk_size: int) -> int:
    """Bytes of mean keys for each token of context, on the compute device. A mean key has 8 bits a number, and a scale.

    Args:
        heads: KV heads of all layers together.
        head_dim: numbers in the mean key of one head.
        chunk_size: tokens that share a mean key.
    """
    return -(-heads * (head_dim + SCALE_BYTES) // chunk_size)
