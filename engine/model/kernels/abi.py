"""Defines the interface between the emitters and the callers of processor kernels: the slots of a kernel's arguments,
and the layouts of memory.

A kernel is called as ``kernel(arguments, tile, worker)``. ``arguments`` is the address of ``NUM_ARGUMENTS`` words of 64
bits. A slot is the index of one of these words. A word holds an address, an integer, the bits of a float64, or in its
lower half the bits of a float32. Strides count numbers, not bytes. ``tile`` is the number of a tile, the part of the
work that one call does.

Each class below names the slots of some kernels. All other modules use only these names, so slots may have any order;
``tests/engine/model/test_abi.py`` shuffles them.

This module needs no llvmlite.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import torch

MOST_ROWS = 72
"""Maximum rows of a pass that our own kernels compute row by row. The longest verification has 65 rows: 64 proposed
tokens and the token before them. Longer passes, such as reading a book, use ordinary matrix products.
"""

KIND = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.int8: "int8"}
"""Names of dtypes in the kernels."""

WIDE_DTYPES = (torch.float32, torch.bfloat16)
"""Dtypes that a kernel's activations may have."""

# Memory ----------------------------------------------------------------------------------------------------------

PANEL_VECTORS = 2
"""Number of vectors in one row of a panel of packed weights. A panel has ``PANEL_VECTORS * lanes`` columns."""

LOOKED_UP = [16 * (at % 8 // 4) + 4 * (at // 8) + at % 4 for at in range(32)]
"""The order in which the columns of a panel of 8-bit or 4-bit weights are stored, if the weights are in pairs. A table
lookup then returns the columns in natural order.
"""

PIECE = 512
"""Number of keys in a piece, which one tile of attention computes; a multiple of ``BLOCK``."""

BLOCK = 64
"""Keys for which scores and softmax weights are computed together. The online softmax takes one step for each block."""

COPIED = 64
"""Bytes that one step of ``gathered`` copies. The size of a chunk must be a multiple of this number."""

JOB_WORDS = 3
"""Number of words of a job in the pool. The words are the address of the kernel, the address of its arguments, and the
number of tiles.
"""


def scratch_size(rows: int, head_dim: int) -> int:
    """Size of a worker's scratch memory for ``attend``, in float32 numbers. It holds a block of keys and a block of
    values, each with a scale for every token, then the queries and the scores of all rows.
    """
    return 2 * BLOCK * (head_dim + 1) + rows * (head_dim + BLOCK)


def scratch_size_of_pairs(rows: int, head_dim: int) -> int:
    """Size of a worker's scratch memory for ``attend_pairs``, in float32 numbers. It holds a block of keys or values
    with a scale for every token, the same block laid out in pairs, the scales of a piece's values, and the scores of
    all rows.
    """
    return BLOCK * (head_dim + 1) + BLOCK * head_dim + (1 + rows) * PIECE


def is_paired(packed: torch.Tensor) -> bool:
    """Whether packed weights are stored as pairs of inputs, for instructions that multiply pairs of bfloat16
    numbers.
    """
    return packed.dim() == 4


def input_dtype(packed: torch.Tensor) -> torch.dtype:
    """The dtype of the activations that are multiplied with these packed weights."""
    return torch.bfloat16 if is_paired(packed) else torch.float32


SPAN = 32
"""Number of neighbouring inputs that share a scale (``UNITS``), if activations are in fixed point. The number of inputs
is a multiple of ``SPAN`` in all formats of GGUF files.
"""

BLOCK_VECTORS = 16
"""Vectors in a block of a row of logits. ``measured`` first finds the largest value of each block."""


def scratch_size_of_logits(width: int, lanes: int) -> int:
    """Size of a worker's scratch memory for ``measured``, in float32 numbers. It holds a copy of a row of logits, the
    row's candidates for top-k and top-p, some vectors of padding, and the largest logit of each block.
    """
    return 2 * width + width // BLOCK_VECTORS + 8 * lanes * BLOCK_VECTORS


# Slots -----------------------------------------------------------------------------------------------------------


class Product:
    """Slots of all products: ``OUT`` (rows, outputs) = ``X`` (rows, inputs) @ ``WEIGHTS``.

    A panel has the weights of some neighbouring outputs, and a tile is ``TILE_PANELS`` of the ``PANELS`` panels.
    ``SCALES`` are the scales of quantized weights. ``SUMS`` are sums of ``X`` over neighbouring inputs: for 4-bit
    weights over each group (rows, groups), for blocks of GGUF files over each run of ``formats.RUN`` inputs (rows,
    runs). ``UNITS`` (rows, inputs / ``SPAN``) are the scales of ``X`` if it is in fixed point.
    """

    X, WEIGHTS, OUT, ROWS, INPUTS, OUTPUTS, TILE_PANELS, PANELS, SCALES, SUMS, UNITS = range(11)


class Spread:
    """Slots of ``spread``, ``group_sums`` and ``arranged``, which prepare ``X`` (rows, inputs) for a product. ``OUT``
    is ``X`` in the layout and number format that the product reads. ``SUMS`` and ``UNITS`` are as in ``Product``. A
    tile is one row.
    """

    X, OUT, INPUTS, SUMS, UNITS = range(5)


class Attention:
    """Slots of ``attend``, ``attend_pairs`` and ``join``. All three get the same arguments.

    A tile of ``attend`` or ``attend_pairs`` is a piece of a KV head's keys. A tile of ``join`` is a KV head.
    ``QUERIES`` and ``RESULT`` are (kv_heads, head_rows, head_dim); row r sees the keys [``FIRST[r]``, ``SEEN[r]``) of
    the ``LENGTH`` keys. ``KEY_HEAD``, ``KEY_TOKEN``, ``VALUE_HEAD`` and ``VALUE_TOKEN`` are strides between heads or
    tokens. ``PARTS`` (kv_heads, pieces, head_rows, head_dim + 2) are the results of the pieces; ``LOGSUM`` (kv_heads,
    head_rows) are log-sum-exps to base 2. ``SCRATCH`` has ``SCRATCH_SIZE`` numbers for each worker. ``SCALE`` and
    ``CAP`` are floats. ``BETWEEN`` is the number of keys between the end of a piece and the start of the piece that
    the same worker probably computes next.
    """

    QUERIES, KEYS, VALUES, KEY_HEAD, KEY_TOKEN, VALUE_HEAD, VALUE_TOKEN, LENGTH = range(8)
    HEAD_ROWS, PIECES, SEEN, PARTS, SCRATCH, SCRATCH_SIZE, RESULT, LOGSUM, SCALE, FIRST, CAP, BETWEEN = range(8, 20)


class Norm:
    """Slots of ``norm``: ``OUT`` is the RMS norm of ``X`` (rows, width). A tile is ``TILE_ROWS`` rows; ``EPSILON`` is a
    float.
    """

    X, WEIGHTS, OUT, ROWS, WIDTH, TILE_ROWS, EPSILON = range(7)


class Residual:
    """Slots of ``normed`` and ``added``, which add a product's result to the residual stream (rows, width).

    ``X`` and ``SUM`` are the residual stream before and after the addition. The product's result ``DELTA`` has
    ``DELTA_STRIDE`` numbers a row; its bias ``BIAS`` is added too. ``WEIGHTS`` and ``EPSILON``, a float, belong to the
    norm. A tile is one row.
    """

    X, DELTA, DELTA_STRIDE, BIAS, SUM, WEIGHTS, EPSILON, OUT, WIDTH = range(9)


class Rotated:
    """Slots of ``rotated``, which splits a joint product into queries, keys and values, and applies RoPE to queries and
    keys. A tile is one row.

    A row of ``X`` has the heads of the queries, then of the keys, then of the values. ``X_STRIDE`` is the row stride of
    ``X`` in numbers. ``COS`` and ``SIN`` are (rows, rotary). ``QUERIES`` receives (heads, rows, head_dim). The first
    row's keys and values are written to the addresses ``KEYS`` and ``VALUES``, with ``KV_HEAD`` as the stride between
    heads. Its keys before RoPE are written to the address ``UNTURNED``, unless this is 0. ``NORM_EPSILON`` is a float.
    """

    X, X_STRIDE, BIAS, COS, SIN, QUERIES, ROWS, HEADS, KEY_HEADS, QUERY_NORM, KEY_NORM, NORM_EPSILON = range(12)
    KEYS, VALUES, KV_HEAD, UNTURNED = range(12, 16)


class Collected:
    """Slots of ``collected``, which concatenates heads: ``X`` (heads, rows, head_dim) becomes ``OUT`` (rows, heads *
    head_dim). A tile is one row.
    """

    X, OUT, ROWS, HEADS = range(4)


class Gated:
    """Slots of ``gated``, which computes SiLU(gate) * value. A row of ``X`` has ``GATES`` gates, followed by the same
    number of values. ``X_STRIDE`` is the row stride in numbers. A row is cut into ``PIECES`` pieces of ``PIECE`` gates,
    and a tile is one piece.
    """

    X, X_STRIDE, BIAS, OUT, GATES, PIECE, PIECES = range(7)


class Gathered:
    """Slots of ``gathered``, which copies chosen chunks of KV. For each line of ``LINES`` (``GatheredLine``),
    ``CHOSEN`` chunks of ``CHUNK_BYTES`` bytes are copied, all from the keys or the values of one head. A tile is one
    line.
    """

    LINES, CHOSEN, CHUNK_BYTES = range(3)


class GatheredLine:
    """Words of a line of ``Gathered.LINES``: the address of one head's chunks, the address to copy the chosen chunks
    to, and the address of the indices of the chosen chunks.
    """

    SOURCE, TARGET, CHUNKS = range(3)


LINE_WORDS = 3
"""Number of words of a ``GatheredLine``."""


class Recurrence:
    """Slots of ``delta``, ``scan`` and ``replayed``, which update the state of a recurrent layer's head token by token.
    A tile is one head.

    ``QUERIES`` and ``KEYS`` are (rows, key_heads, key_dim). ``VALUES``, ``UPDATES`` and ``RESULT`` are (rows, heads,
    value_dim). ``UPDATES`` are the vectors that tokens add to the state, and ``RATES`` (rows, heads) are factors of
    these vectors. ``DECAYS`` (rows, heads) are logarithms of the factors that the state is multiplied by. ``BEFORE``
    and ``AFTER`` (heads, key_dim, value_dim) are the states before and after the rows.
    """

    QUERIES, KEYS, VALUES, DECAYS, RATES, UPDATES, BEFORE, AFTER, RESULT, ROWS, HEADS, KEY_HEADS = range(12)


class Interleaved:
    """Slots of ``interleaved``, which copies rows of ``BLOCKS`` (outputs, ``ROW_BYTES``) into the columns of the panels
    ``WEIGHTS``. ``ORDER`` (panels * columns) holds the index of each column's row; -1 makes a column of zeros. A tile
    is one panel.
    """

    BLOCKS, ROW_BYTES, ORDER, WEIGHTS, INPUTS = range(5)


class Expanded:
    """Slots of ``expanded``, which dequantizes some panels of ``WEIGHTS``, packed blocks of a GGUF file, into ``OUT``
    (inputs, outputs). ``CHOSEN`` are the indices of these panels. A tile is one panel.
    """

    WEIGHTS, CHOSEN, OUT, INPUTS, OUTPUTS = range(5)


class Logits:
    """Slots of ``likeliest``, ``measured``, ``asked`` and ``probabilities``: rows of ``WIDTH`` logits, ``STRIDE``
    numbers apart.

    A tile is one row; for ``probabilities`` it is ``PIECE`` tokens of a row. Each row has ``PATCH_COUNT`` patches: the
    changed logits ``PATCHES`` of the tokens ``PATCH_IDS``; an id of -1 marks an unused patch. ``SCALE`` is log2(e) /
    temperature as a float, ``TOP_P`` the bits of a double. ``SCRATCH`` has ``SCRATCH_SIZE`` numbers for each worker.
    ``STATS`` are the ``Stats`` of a row. ``OUT`` gets the most likely ids or the probabilities. ``TOKENS`` holds one id
    for each row.
    """

    LOGITS, STRIDE, WIDTH, PATCH_IDS, PATCHES, PATCH_COUNT, SCALE, TOP_K, TOP_P = range(9)
    SCRATCH, SCRATCH_SIZE, STATS, OUT, PIECE, TOKENS = range(9, 15)


class Stats:
    """The float64 numbers that ``measured`` computes for a row: its largest logit, the smallest logit that top-k keeps,
    the smallest weight that top-p keeps, the last kept token id with this weight, and the sum of the kept weights. A
    weight is exp((logit - largest logit) / temperature). The sum is NaN if the row has a NaN or its largest logit is
    infinite.
    """

    LARGEST, LEAST_LOGIT, LEAST_WEIGHT, LAST_ID, MASS = range(5)


STATS_WORDS = 5
"""Number of words in the ``Stats`` of a row."""

SLOTS: tuple[type, ...] = (
    Product,
    Spread,
    Attention,
    Norm,
    Residual,
    Rotated,
    Collected,
    Gated,
    Gathered,
    GatheredLine,
    Recurrence,
    Interleaved,
    Expanded,
    Logits,
)
"""All classes of slots."""

NUM_ARGUMENTS = 20
"""Number of words in a kernel's argument array, the same for all kernels."""


def arguments(slots: Mapping[int, int]) -> list[int]:
    """Make the words of a kernel's argument array. Words whose index is not in ``slots`` are zero."""
    words = [0] * NUM_ARGUMENTS
    for slot, value in slots.items():
        words[slot] = value
    return words


def double_bits(value: float) -> int:
    """Return the bits of a float64 as an integer, to be put into a kernel's argument array."""
    return int.from_bytes(struct.pack("<d", value), "little", signed=True)


def bits(value: float) -> int:
    """Return the bits of a float32 as an integer, to be put into a kernel's argument array."""
    return int.from_bytes(struct.pack("<f", value), "little")
