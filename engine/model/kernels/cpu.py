"""Attention and skinny products on a processor: our own kernels where they can be compiled, torch's otherwise.

``engine.model.kernels.native`` has the loops, ``engine.model.kernels.pool`` the threads that run them. They need
llvmlite and vectors that fit the model's widths; where either is missing torch's fused attention kernel takes over,
with the keys cut into pieces so that all threads work. It gives a row other bits when more rows come with it.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import struct
import threading
from collections.abc import Sequence
from typing import Any

import torch

from engine.model.kernels import attend_each, merge, split_attend
from engine.quantization import LAST_LEVEL, LEVEL_BITS

logger = logging.getLogger(__name__)

MOST_ROWS = 72
"""Rows of the largest pass that is computed row by row: the longest verification (64 tokens of the book and the one
before them), and a few more. Reading a book is a matrix product."""

# Keys are cut into at most this number of pieces; shorter ones cost more in the merge than they gain.
_MAX_SPLITS, _MIN_PIECE = 16, 2048
# Time that may be lost to workers that wait for the last one, as a factor, before keys are cut further.
_TOLERATED_WAIT = 1.1
_LN2, _LOG2E = 0.6931471805599453, 1.4426950408889634
_TILES = 16  # of a product: small enough that threads end together, large enough to hand out
_NORM_ROWS = 16  # of a tile
_DTYPES = (torch.float32, torch.bfloat16)
_KIND = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.int8: "int8"}  # by the kernels' names


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of packed queries to all keys, and its log-sum-exp; shapes as in ``engine.model.kernels``."""
    own = native() if q.shape[2] <= MOST_ROWS else None
    if own is not None and own.takes(q, k, v):
        return own.attend(q, k, v, scaling, _all_seen(q.shape[2], k.shape[2]))
    pieces = splits(q.shape[1], k.shape[2], torch.get_num_threads())
    if pieces == 1:
        return _fused(q, k, v, scaling)
    return split_attend(q, k, v, pieces, functools.partial(_fused, scaling=scaling))


def reads_levels(q: torch.Tensor) -> bool:
    """Whether ``attend_newest`` takes KV of 8 bits as it is stored, for so many tokens (1, heads, n, head_dim)."""
    own = native() if q.shape[2] <= MOST_ROWS else None
    return own is not None and own.answers(q)


def attend_newest(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, new: int) -> torch.Tensor:
    """The same for the queries of the last ``new`` tokens, each of which sees the keys up to its own. Returns out.

    Where ``reads_levels`` says so k and v may be stored in 8 bits, (1, kv_heads, seq, storage_dim) of int8.
    """
    own = native()
    if own is not None and own.takes(q, k, v):
        return own.attend(q, k, v, scaling, _newest_seen(new, k.shape[2] - new, q.shape[2] // new))[0]
    past = k.shape[2] - new
    pieces = splits(k.shape[1], past, torch.get_num_threads())
    even = past // pieces * pieces if pieces > 1 else 0
    mask = _newest_mask(new, past - even, q.shape[2] // new, q.dtype)
    tail = _fused(q, k[:, :, even:], v[:, :, even:], scaling, mask)
    if even == 0:
        return tail[0]
    kernel = functools.partial(_fused, scaling=scaling)
    return merge([*attend_each(q, k[:, :, :even], v[:, :, :even], pieces, kernel), tail])


# The layers of a pass share these, so the last few are kept.


@functools.lru_cache(maxsize=4)
def _all_seen(rows: int, keys: int) -> torch.Tensor:
    """Number of keys that each packed row sees, (rows,)."""
    return torch.full((rows,), keys, dtype=torch.long)


@functools.lru_cache(maxsize=4)
def _newest_seen(n: int, past: int, group: int) -> torch.Tensor:
    return torch.arange(past + 1, past + n + 1).repeat(group)


@functools.lru_cache(maxsize=4)
def _newest_mask(n: int, past: int, group: int, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask (1, 1, group * n, past + n)."""
    mask = torch.zeros(n, past + n, dtype=dtype)
    mask[:, past:] = torch.full((n, n), float("-inf"), dtype=dtype).triu_(1)
    return mask.repeat(group, 1)[None, None]


def _fused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = kernel(q, k, v, 0.0, False, attn_mask=mask, scale=scaling)
    return out, lse


def splits(heads: int, seq: int, workers: int) -> int:
    """Pieces to cut ``seq`` keys into, so that heads times pieces keeps all workers busy, and about equally.

    Three heads on two workers would take as long as four.
    """
    largest = max(1, min(_MAX_SPLITS, seq // _MIN_PIECE))
    waits = [-(-heads * n // workers) * workers / (heads * n) for n in range(1, largest + 1)]
    return next(n for n, wait in enumerate(waits, 1) if wait <= max(_TOLERATED_WAIT, min(waits)))


@functools.cache
def native() -> Native | None:
    """Our own kernels; None where they cannot be compiled."""
    try:
        return Native(torch.get_num_threads())
    except Exception:  # llvmlite is missing, or does not know this processor: everything works without
        logger.warning("no kernels of our own on this processor; torch's are used", exc_info=True)
        return None


class Native:
    """The kernels, compiled for what the models at hand need, and the memory they work in.

    Args:
        workers: threads that compute.
        lanes: float32 numbers in a vector; None is what this processor has.
    """

    def __init__(self, workers: int, lanes: int | None = None) -> None:
        from engine.model.kernels import native, pool

        self._kernels, self._compile = native, pool
        self.lanes = lanes or pool.lanes()
        self.columns = native.PANEL_VECTORS * self.lanes
        """Outputs in a panel of packed weights."""
        self._pool = pool.Pool(workers)
        self._codes: list[Any] = []
        self._addresses: dict[tuple[Any, ...], int] = {}
        self._lock = threading.Lock()
        self._arguments = (ctypes.c_int64 * native.NUM_ARGUMENTS)()
        self._at = ctypes.addressof(self._arguments)
        self._parts, self._scratch = torch.empty(0), torch.empty(0)

    # Attention -------------------------------------------------------------------------------------------------

    def takes(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
        """Whether these queries, keys and values are of a kind that the kernels know."""
        return (
            self.answers(q)
            and k.is_cpu
            and k.dtype == v.dtype
            and k.dtype in (q.dtype, torch.int8)
            and k.stride(3) == v.stride(3) == 1
            and k.shape[2] > 0
        )

    def answers(self, q: torch.Tensor) -> bool:
        """Whether these queries are of a kind that the kernels know."""
        return q.is_cpu and q.dtype in _DTYPES and q.shape[3] % self.lanes == 0

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, seen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As ``attend`` of this module; row r of each head sees the first ``seen[r]`` keys, at least one.

        k and v may be levels, each with its scale behind it (``engine.kv.shape``): (1, kv_heads, seq, storage_dim).
        """
        heads, rows, head_dim = q.shape[1:]
        length, half = k.shape[2], q.dtype is torch.bfloat16
        levels = k.dtype is torch.int8
        pieces = -(-length // self._kernels.PIECE)
        q = (q.float() if levels else q).contiguous()
        out, lse = torch.empty(heads, rows, head_dim), torch.empty(heads, rows)
        kernel = self._address("attend", head_dim, _KIND[k.dtype])
        join = self._address("join", head_dim)
        with self._lock:
            needed = heads * pieces * rows * (head_dim + 2)
            if self._parts.numel() < needed:
                self._parts = torch.empty(needed)
            block = self._kernels.BLOCK * (2 * head_dim + 2 + rows) + rows * head_dim
            if self._scratch.numel() < block * self._pool.workers:
                self._scratch = torch.empty(block * self._pool.workers)
            self._arguments[:] = [
                *(q.data_ptr(), k.data_ptr(), v.data_ptr()),
                *(k.stride(1), k.stride(2), v.stride(1), v.stride(2), length),
                *(rows, pieces, seen.data_ptr(), self._parts.data_ptr()),
                *(self._scratch.data_ptr(), block, out.data_ptr(), lse.data_ptr(), _bits(scaling * _LOG2E)),
            ]
            self._pool.run(kernel, self._at, heads * pieces)
            self._pool.run(join, self._at, heads)
        return (out.bfloat16() if half else out).unsqueeze(0), (lse * _LN2).unsqueeze(0)

    # Products --------------------------------------------------------------------------------------------------

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        """Weights (out, in) as panels (panels, in, columns), zeros behind the last output."""
        outputs, inputs = weight.shape
        panels = -(-outputs // self.columns)
        packed = weight.new_zeros(panels, inputs, self.columns)
        for panel in range(panels):
            rows = weight[panel * self.columns : (panel + 1) * self.columns]
            packed[panel, :, : rows.shape[0]] = rows.t()
        return packed

    def pack4(self, levels: torch.Tensor) -> torch.Tensor:
        """Levels (out, in) from 0 to 15 as words (panels, in / 8, columns): input ``8 * word + n`` at bit ``4 * n``."""
        panels = self.pack(levels.to(torch.int32)).unflatten(1, (-1, self._kernels.WORD_LEVELS))
        words = torch.zeros_like(panels[:, :, 0])
        for place in range(panels.shape[2]):
            words |= panels[:, :, place] << LEVEL_BITS * place
        return words

    def unpack4(self, words: torch.Tensor) -> torch.Tensor:
        """What ``pack4`` was given, as panels (panels, in, columns)."""
        places = LEVEL_BITS * torch.arange(self._kernels.WORD_LEVELS, dtype=torch.int32)
        return ((words.unsqueeze(2) >> places[:, None]) & LAST_LEVEL).flatten(1, 2)

    def product(self, x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor | None = None) -> torch.Tensor:
        """x (rows, in) times packed weights: (rows, panels * columns) in float32.

        Args:
            scales: (panels * columns,) of weights that are levels of 8 bits.
        """
        panels, inputs, columns = packed.shape
        wide = x.float().contiguous()
        out = torch.empty(x.shape[0], panels * columns)
        kinds = (_KIND[packed.dtype],) if scales is None else (_KIND[packed.dtype], _KIND[scales.dtype])
        others = () if scales is None else (scales.data_ptr(),)
        with self._lock:
            self._multiply(self._address("product", *kinds), wide, packed, out, inputs, *others)
        return out

    def product4(self, x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """x (rows, in) times weights of 4 bits: (rows, panels * columns) in float32.

        Args:
            words: as ``pack4`` gives them.
            scales: scale and middle of each group, (panels, in / GROUP, 2, columns).
        """
        rows, inputs = x.shape
        x = x.contiguous()
        spread, sums = torch.empty(rows, inputs), torch.empty(rows, scales.shape[1])
        out = torch.empty(rows, words.shape[0] * words.shape[2])
        prepare = self._address("spread", _KIND[x.dtype])
        kernel = self._address("product4", _KIND[scales.dtype])
        with self._lock:
            self._arguments[:10] = [x.data_ptr(), 0, spread.data_ptr(), rows, inputs, 0, 0, 0, 0, sums.data_ptr()]
            self._pool.run(prepare, self._at, rows)
            self._multiply(kernel, spread, words, out, inputs, scales.data_ptr(), sums.data_ptr())
        return out

    def _multiply(
        self, kernel: int, x: torch.Tensor, packed: torch.Tensor, out: torch.Tensor, inputs: int, *others: int
    ) -> None:
        panels = packed.shape[0]
        size = max(1, panels // (_TILES * self._pool.workers))
        self._arguments[: 8 + len(others)] = [
            *(x.data_ptr(), packed.data_ptr(), out.data_ptr()),
            *(x.shape[0], inputs, out.shape[1], size, panels),
            *others,
        ]
        self._pool.run(kernel, self._at, -(-panels // size))

    def norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """RMS norm over the last axis of x, a multiple of ``lanes``; ``weight`` in float32."""
        x = x.contiguous()
        out, width = torch.empty_like(x), x.shape[-1]
        rows = x.numel() // width
        kernel = self._address("norm", _KIND[x.dtype])
        with self._lock:
            self._arguments[:7] = [
                *(x.data_ptr(), weight.data_ptr(), out.data_ptr()),
                *(rows, width, _NORM_ROWS, _bits(epsilon)),
            ]
            self._pool.run(kernel, self._at, -(-rows // _NORM_ROWS))
        return out

    def prepare(self, head_dim: int, dtype: torch.dtype, bits: Sequence[int] = ()) -> None:
        """Compile what a model of this head dimension and dtype can need, so that no answer waits for it.

        Args:
            bits: of quantized weights among its own.
        """
        if head_dim % self.lanes == 0:
            for stored in (dtype, torch.int8):
                self._address("attend", head_dim, _KIND[stored])
            self._address("join", head_dim)
        if 8 in bits:
            self._address("product", _KIND[torch.int8], _KIND[dtype])
        if 4 in bits:
            self._address("spread", _KIND[dtype])
            self._address("product4", _KIND[torch.bfloat16])
        for weights in _DTYPES:
            self._address("product", _KIND[weights])
        self._address("norm", _KIND[dtype])

    def _address(self, name: str, *kind: Any) -> int:
        key = (name, *kind)
        known = self._addresses.get(key)
        if known is None:
            code = self._compile.Code(self._kernels.module(name, self.lanes, *kind))
            self._codes.append(code)
            known = self._addresses[key] = code.address(name)
        return known


def _bits(value: float) -> int:
    """A float32 as a kernel finds it among its arguments."""
    return int.from_bytes(struct.pack("<f", value), "little")
