"""Attention and skinny products on a processor: our own kernels where they can be compiled, torch's otherwise.

``engine.model.kernels.native`` has the loops, ``engine.model.kernels.pool`` the threads that run them. They need
llvmlite and vectors that fit the model's widths; where either is missing torch's fused attention kernel takes over,
with the keys cut into pieces so that all threads work. It gives a row other bits when more rows come with it.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch

from engine.model.kernels import abi, attend_each, in_pieces, plain, split_attend
from engine.model.kernels.abi import bits
from engine.quantization import LAST_LEVEL, LEVEL_BITS, WORD_LEVELS

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
Held = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of a layer."""

KIND = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.int8: "int8"}
"""The kernels' names of dtypes."""


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, cap: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of packed queries to all keys, and its log-sum-exp; shapes as in ``engine.model.kernels``."""
    own = native() if q.shape[2] <= MOST_ROWS else None
    if own is not None and own.takes(q, k, v):
        return own.attend(q, k, v, scaling, _all_seen(q.shape[2], k.shape[2]), cap=cap)
    if cap is not None:
        return in_pieces(q, k, v, scaling, cap)
    pieces = splits(q.shape[1], k.shape[2], torch.get_num_threads())
    if pieces == 1:
        return _fused(q, k, v, scaling)
    return split_attend(q, k, v, pieces, functools.partial(_fused, scaling=scaling))


def reads_levels(q: torch.Tensor) -> bool:
    """Whether ``attend_newest`` takes KV of 8 bits as it is stored, for so many tokens (1, heads, n, head_dim)."""
    own = native() if q.shape[2] <= MOST_ROWS or reads_in_pairs(q) else None
    return own is not None and own.answers(q)


def reads_in_pairs(q: torch.Tensor) -> bool:
    """Whether our kernel is ahead of torch's for many tokens too (1, heads, n, head_dim), 96 rows at a time.

    Where it multiplies pairs it does: 240 to 340 GFLOP/s against 120 to 160 (2 cores with AVX-512 BF16, behind 2,048
    and 7,168 tokens). In float32 both do about 140.
    """
    own = native() if q.dtype is torch.bfloat16 else None
    return own is not None and own.answers(q) and own.takes_pairs(q.shape[3])


def attend_newest(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scaling: float,
    new: int,
    window: int | None = None,
    cap: float | None = None,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The same for the queries of the last ``new`` tokens, each of which sees the keys up to its own, with a ``window``
    that many of them. Returns parts over disjoint keys, to be merged.

    Where ``reads_levels`` says so k and v may be stored in 8 bits, (1, kv_heads, seq, storage_dim) of int8.
    """
    own = native()
    if own is not None and own.takes(q, k, v):
        seen = newest_seen(new, k.shape[2] - new, q.shape[2] // new)
        first = None if window is None else _window_starts(new, k.shape[2] - new, q.shape[2] // new, window)
        return [own.attend(q, k, v, scaling, seen, first, cap)]
    past = k.shape[2] - new
    if cap is not None:
        mask = _newest_mask(new, past, q.shape[2] // new, torch.float32, window)
        return [plain(q, k, v, scaling, mask == 0, cap)]
    pieces = splits(k.shape[1], past, torch.get_num_threads()) if window is None else 1
    even = past // pieces * pieces if pieces > 1 else 0
    mask = _newest_mask(new, past - even, q.shape[2] // new, q.dtype, window)
    tail = _fused(q, k[:, :, even:], v[:, :, even:], scaling, mask)
    if even == 0:
        return [tail]
    kernel = functools.partial(_fused, scaling=scaling)
    return [attend_each(q, k[:, :, :even], v[:, :, :even], pieces, kernel), tail]


def copy_chunks(sources: Sequence[Held], targets: Sequence[Held], chunks: torch.Tensor, size: int) -> bool:
    """Copy chosen chunks of ``size`` tokens to the first places of the targets, in their order.

    Args:
        sources, targets: keys and values of each layer, (kv_heads, capacity, head_dim).
        chunks: numbers of theirs (layers, kv_heads, chosen).

    Returns:
        Whether they have been copied: False where that is nothing for our kernels.
    """
    own = native() if chunks.is_cpu else None
    return own is not None and own.copy_chunks(sources, targets, chunks, size)


# The layers of a pass share these, so the last few are kept.


@functools.lru_cache(maxsize=4)
def _all_seen(rows: int, keys: int) -> torch.Tensor:
    """Number of keys that each packed row sees, (rows,)."""
    return torch.full((rows,), keys, dtype=torch.long)


@functools.lru_cache(maxsize=4)
def from_first(rows: int) -> torch.Tensor:
    """The first key that each of them sees, (rows,)."""
    return torch.zeros(rows, dtype=torch.long)


@functools.lru_cache(maxsize=4)
def newest_seen(n: int, past: int, group: int) -> torch.Tensor:
    """``_all_seen`` of the newest ``n`` tokens, ``group`` times, behind ``past`` others."""
    return torch.arange(past + 1, past + n + 1).repeat(group)


@functools.lru_cache(maxsize=4)
def _window_starts(n: int, past: int, group: int, window: int) -> torch.Tensor:
    return (newest_seen(n, past, group) - window).clamp_(min=0)


@functools.lru_cache(maxsize=4)
def _newest_mask(n: int, past: int, group: int, dtype: torch.dtype, window: int | None) -> torch.Tensor:
    """Additive mask (1, 1, group * n, past + n)."""
    mask = torch.zeros(n, past + n, dtype=dtype)
    mask[:, past:] = torch.full((n, n), float("-inf"), dtype=dtype).triu_(1)
    if window is not None:
        mask += torch.full_like(mask, float("-inf")).tril_(past - window)
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


def multiplies_pairs() -> bool:
    """Whether our own kernels are there, and multiply pairs of bfloat16 numbers."""
    own = native()
    return own is not None and own.multiplies_pairs


@contextmanager
def torch_alone() -> Iterator[None]:
    """While decoding: torch computes on the calling thread, and the kernels' own threads have the cores to themselves.

    What torch does between two of our kernels is small, and handing it to its threads means that these and ours wait
    for each other's cores: a plain step took 7 % longer, and one whose queries are scored twice as long (2 cores,
    SmolLM2-135M in bfloat16, 1,024 tokens). Outside, when a book is read, the kernels' threads go to sleep soon: else
    torch's matrix products begin beside a thread that looks for work, and reading went at 415 tokens a second instead
    of 488 (the same, 7,680 tokens).
    """
    threads, own = torch.get_num_threads(), native()
    torch.set_num_threads(1)
    try:
        with own.pool.patient() if own else nullcontext():
            yield
    finally:
        torch.set_num_threads(threads)


Tiles = tuple[int, int]
"""Tiles of a kernel: how many for each row, and how many beside them."""


class Job(NamedTuple):
    """A call of a kernel for any number of rows: its address, its arguments, its tiles, and the slot of its arguments
    that says how many rows there are, if there is one."""

    kernel: int
    arguments: list[int]
    tiles: Tiles
    rows_at: int | None = None


class Native:
    """The kernels, compiled for what the models at hand need, and the memory they work in.

    Args:
        workers: threads that compute.
        lanes: float32 numbers in a vector; None is what this processor has.
    """

    def __init__(self, workers: int, lanes: int | None = None) -> None:
        from engine.model.kernels import delta, native, pairs, pool, rowwise

        self._compile = pool
        self._emit = {**native.EMIT, **rowwise.EMIT, **pairs.EMIT, **delta.EMIT}
        self.lanes, self.most_rows = lanes or pool.lanes(), MOST_ROWS
        self.multiplies_pairs = lanes in (None, pool.lanes()) and pool.multiplies_pairs()
        self.looks_up_levels = self.multiplies_pairs and pool.looks_up_bytes()
        self.columns = abi.PANEL_VECTORS * self.lanes
        """Outputs in a panel of packed weights."""
        self.pool = pool.Pool(workers)
        self._codes: list[Any] = []
        self._addresses: dict[tuple[Any, ...], int] = {}
        self.lock = threading.RLock()
        self._arguments = (ctypes.c_int64 * abi.NUM_ARGUMENTS)()
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
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scaling: float,
        seen: torch.Tensor,
        first: torch.Tensor | None = None,
        cap: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As ``attend`` of this module; row r of each head sees the keys [``first[r]``, ``seen[r]``), at least one.

        Without ``first`` it sees them from the start.

        k and v may be levels, each with its scale behind it (``engine.kv.shape``): (1, kv_heads, seq, storage_dim).
        """
        heads, rows, head_dim = q.shape[1:]
        length, half = k.shape[2], q.dtype is torch.bfloat16
        levels = k.dtype is torch.int8
        out, lse = torch.empty(heads, rows, head_dim, dtype=q.dtype), torch.empty(heads, rows)
        q = (q.float() if levels and not (half and self.takes_pairs(head_dim)) else q).contiguous()
        first = from_first(rows) if first is None else first
        kernel, join = self.attention(head_dim, out.dtype, k.dtype, cap is not None)
        addresses = k.data_ptr(), v.data_ptr()
        strides = k.stride(1), k.stride(2), v.stride(1), v.stride(2)
        with self.lock:
            arguments = self.attention_arguments(
                q, addresses, strides, (heads, rows, head_dim), length, seen, first, out, lse, scaling, cap
            )
            self._call(kernel, arguments, heads * self.pieces(length))
            self.pool.run(join, self._at, heads)
        return out.unsqueeze(0), (lse * _LN2).unsqueeze(0)

    def pieces(self, length: int) -> int:
        """That so many keys are cut into."""
        return -(-length // abi.PIECE)

    def attention(
        self, head_dim: int, dtype: torch.dtype, stored: torch.dtype, capped: bool = False
    ) -> tuple[int, int]:
        """The addresses of attention to one piece of the keys, which are ``stored`` so, and of what joins pieces."""
        pairs = dtype is torch.bfloat16 and self.takes_pairs(head_dim)
        name = "attend_pairs" if pairs else "attend"
        return self.address(name, head_dim, KIND[stored], capped), self.address("join", head_dim, KIND[dtype])

    def attention_arguments(
        self,
        q: torch.Tensor,
        kv: tuple[int, int],
        strides: tuple[int, ...],
        size: tuple[int, int, int],
        length: int,
        seen: torch.Tensor,
        first: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        scaling: float,
        cap: float | None = None,
    ) -> list[int]:
        """Of both kernels of ``attention``, to be used while the ``lock`` is held.

        Args:
            q, out: (kv_heads, rows, head_dim), which is the ``size``; lse: (kv_heads, rows).
            kv: addresses of keys and values of ``length`` tokens; strides: of each from head to head and from token to
                token, in numbers.
            seen, first: as in ``attend``.
        """
        heads, rows, head_dim = size
        pieces, scale = self.pieces(length), scaling if cap is None else 2 * scaling / cap
        needed = heads * pieces * rows * (head_dim + 2)
        if self._parts.numel() < needed:
            self._parts = torch.empty(needed)
        pairs = out.dtype is torch.bfloat16 and self.takes_pairs(head_dim)
        block = (abi.scratch_size_of_pairs if pairs else abi.scratch_size)(rows, head_dim)
        if self._scratch.numel() < block * self.pool.workers:
            self._scratch = torch.empty(block * self.pool.workers)
        slot, (keys, values) = abi.Attention, kv
        key_head, key_token, value_head, value_token = strides
        return abi.arguments(
            {
                **{slot.QUERIES: q.data_ptr(), slot.KEYS: keys, slot.VALUES: values},
                **{slot.KEY_HEAD: key_head, slot.KEY_TOKEN: key_token},
                **{slot.VALUE_HEAD: value_head, slot.VALUE_TOKEN: value_token},
                **{slot.LENGTH: length, slot.HEAD_ROWS: rows, slot.PIECES: pieces},
                **{slot.FIRST: first.data_ptr(), slot.SEEN: seen.data_ptr()},
                **{
                    slot.PARTS: self._parts.data_ptr(),
                    slot.SCRATCH: self._scratch.data_ptr(),
                    slot.SCRATCH_SIZE: block,
                },
                **{slot.RESULT: out.data_ptr(), slot.LOGSUM: lse.data_ptr()},
                **{slot.SCALE: bits(scale * _LOG2E), slot.CAP: bits((cap or 0.0) * _LOG2E)},
            }
        )

    def takes_pairs(self, head_dim: int) -> bool:
        """Whether attention in bfloat16 multiplies pairs."""
        return self.multiplies_pairs and head_dim % (2 * self.lanes) == 0

    def copy_chunks(self, sources: Sequence[Held], targets: Sequence[Held], chunks: torch.Tensor, size: int) -> bool:
        """As ``copy_chunks`` of this module."""
        (_, kv_heads, chosen), one = chunks.shape, sources[0][0]
        chunk_bytes = size * one.stride(1) * one.itemsize
        if chunk_bytes % abi.COPIED:
            return False
        chunks = chunks.contiguous()
        lines = np.empty((2, len(sources), kv_heads, abi.LINE_WORDS), np.int64)
        heads, line, slot = np.arange(kv_heads), abi.GatheredLine, abi.Gathered
        for at, held in ((line.SOURCE, sources), (line.TARGET, targets)):
            starts = np.array([[part.data_ptr() for part in layer] for layer in held]).T
            lines[..., at] = starts[:, :, None] + heads * (held[0][0].stride(0) * one.itemsize)
        first, step = chunks.data_ptr(), chosen * chunks.itemsize
        lines[..., line.CHUNKS] = first + step * np.arange(len(sources) * kv_heads).reshape(-1, kv_heads)
        with self.lock:
            arguments = {slot.LINES: lines.ctypes.data, slot.CHOSEN: chosen, slot.CHUNK_BYTES: chunk_bytes}
            self._call(self.address("gathered"), abi.arguments(arguments), lines.size // abi.LINE_WORDS)
        return True

    # Products --------------------------------------------------------------------------------------------------

    def pack(self, weight: torch.Tensor, pairs: bool = False) -> torch.Tensor:
        """Weights (out, in) as panels (panels, in, columns), zeros behind the last output.

        Args:
            pairs: of two inputs each, (panels, in / 2, columns, 2); the columns of levels as they are looked up.
        """
        outputs, inputs = weight.shape
        panels = -(-outputs // self.columns)
        packed = weight.new_zeros(panels, *((inputs // 2, self.columns, 2) if pairs else (inputs, self.columns)))
        for panel in range(panels):
            rows = weight[panel * self.columns : (panel + 1) * self.columns]
            packed[panel, :, : rows.shape[0]] = rows.unflatten(1, (-1, 2)).transpose(0, 1) if pairs else rows.t()
        return packed[:, :, abi.LOOKED_UP].contiguous() if pairs and not weight.is_floating_point() else packed

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """What ``pack`` was given, as panels (panels, in, columns)."""
        if not is_paired(packed):
            return packed
        if not packed.is_floating_point():
            packed = packed[:, :, torch.tensor(abi.LOOKED_UP).argsort()]
        return packed.transpose(2, 3).flatten(1, 2)

    def pack4(self, levels: torch.Tensor, pairs: bool = False) -> torch.Tensor:
        """Levels (out, in) from 0 to 15 as words (panels, in / 8, columns): input ``8 * word + n`` at bit ``4 * n``.

        Args:
            pairs: as bytes (panels, in / 4, columns, 2) instead: of four inputs the first two are in the lower bits.
        """
        if pairs:
            low, high = self.pack(levels, pairs=True).unflatten(1, (-1, 2)).unbind(2)
            return low | high << LEVEL_BITS
        panels = self.pack(levels.to(torch.int32)).unflatten(1, (-1, WORD_LEVELS))
        words = torch.zeros_like(panels[:, :, 0])
        for place in range(panels.shape[2]):
            words |= panels[:, :, place] << LEVEL_BITS * place
        return words

    def unpack4(self, words: torch.Tensor) -> torch.Tensor:
        """What ``pack4`` was given, as panels (panels, in, columns)."""
        if is_paired(words):
            both = torch.stack([words & LAST_LEVEL, words >> LEVEL_BITS], dim=2)
            return self.unpack(both.flatten(1, 2))
        places = LEVEL_BITS * torch.arange(WORD_LEVELS, dtype=torch.int32)
        return ((words.unsqueeze(2) >> places[:, None]) & LAST_LEVEL).flatten(1, 2)

    def product(self, x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor | None = None) -> torch.Tensor:
        """x (rows, in) times packed weights: (rows, panels * columns) in float32.

        Args:
            packed: in pairs they meet x rounded to bfloat16.
            scales: (panels * columns,) of weights that are levels of 8 bits.
        """
        x = x.to(input_dtype(packed)).contiguous()  # a job knows its address alone
        out = torch.empty(x.shape[0], packed.shape[0] * packed.shape[2])
        self._run(x.shape[0], self.product_job(x, packed, scales, out))
        return out

    def product_job(self, x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor | None, out: torch.Tensor) -> Job:
        """``product`` of x in the ``input_dtype``, to ``out``."""
        others: dict[int, int] = {}
        kinds = [KIND[packed.dtype]]
        if scales is not None:
            others, kinds = {abi.Product.SCALES: scales.data_ptr()}, [*kinds, KIND[scales.dtype]]
        name = "product_pairs" if is_paired(packed) else "product"
        return self._product_job(self.address(name, *kinds), x, packed, out, others)

    def product4(self, x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """x (rows, in) times weights of 4 bits: (rows, panels * columns) in float32.

        Args:
            words: as ``pack4`` gives them.
            scales: scale and middle of each group, (panels, in / GROUP, 2, columns).
        """
        x = (x.to(input_dtype(words)) if is_paired(words) else x).contiguous()
        rows, inputs = x.shape
        spread, sums = torch.empty(rows, inputs), torch.empty(rows, scales.shape[1])
        out = torch.empty(rows, words.shape[0] * words.shape[2])
        self._run(rows, *self.product4_jobs(x, words, scales, out, spread, sums))
        return out

    def product4_jobs(
        self,
        x: torch.Tensor,
        words: torch.Tensor,
        scales: torch.Tensor,
        out: torch.Tensor,
        spread: torch.Tensor,
        sums: torch.Tensor,
    ) -> tuple[Job, Job]:
        """``product4`` to ``out``, by way of the sums of the groups of x (rows, in / GROUP), and, without pairs, of x
        (rows, in) spread."""
        slot = abi.Spread
        arguments = abi.arguments(
            {
                **{slot.X: x.data_ptr(), slot.OUT: spread.data_ptr()},
                **{slot.INPUTS: x.shape[1], slot.SUMS: sums.data_ptr()},
            }
        )
        pairs = is_paired(words)
        address = self.address("group_sums") if pairs else self.address("spread", KIND[x.dtype])
        kernel = self.address("product4_pairs" if pairs else "product4", KIND[scales.dtype])
        others = {abi.Product.SCALES: scales.data_ptr(), abi.Product.SUMS: sums.data_ptr()}
        product = self._product_job(kernel, x if pairs else spread, words, out, others)
        return Job(address, arguments, EACH_ROW), product

    def _product_job(
        self, kernel: int, x: torch.Tensor, packed: torch.Tensor, out: torch.Tensor, others: Mapping[int, int]
    ) -> Job:
        slot, panels = abi.Product, packed.shape[0]
        size = max(1, panels // (_TILES * self.pool.workers))
        tiles = -(-panels // size)
        arguments = abi.arguments(
            {
                **{slot.X: x.data_ptr(), slot.WEIGHTS: packed.data_ptr(), slot.OUT: out.data_ptr()},
                **{slot.INPUTS: x.shape[1], slot.OUTPUTS: out.shape[1]},
                **{slot.TILE_PANELS: size, slot.PANELS: panels},
                **others,
            }
        )
        return Job(kernel, arguments, (0, tiles), slot.ROWS)

    def _run(self, rows: int, *jobs: Job) -> None:
        with self.lock:
            for job in jobs:
                if job.rows_at is not None:
                    job.arguments[job.rows_at] = rows
                self._call(job.kernel, job.arguments, job.tiles[0] * rows + job.tiles[1])

    def _call(self, kernel: int, arguments: list[int], tiles: int) -> None:
        """Run every tile of a kernel; the ``lock`` is held."""
        self._arguments[:] = [*arguments]
        self.pool.run(kernel, self._at, tiles)

    def norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """RMS norm over the last axis of x, a multiple of ``lanes``; ``weight`` in float32."""
        x = x.contiguous()
        out, width = torch.empty_like(x), x.shape[-1]
        rows = x.numel() // width
        kernel, slot = self.address("norm", KIND[x.dtype]), abi.Norm
        arguments = abi.arguments(
            {
                **{slot.X: x.data_ptr(), slot.WEIGHTS: weight.data_ptr(), slot.OUT: out.data_ptr()},
                **{slot.ROWS: rows, slot.WIDTH: width, slot.TILE_ROWS: _NORM_ROWS, slot.EPSILON: bits(epsilon)},
            }
        )
        with self.lock:
            self._call(kernel, arguments, -(-rows // _NORM_ROWS))
        return out

    # Recurrence ------------------------------------------------------------------------------------------------

    def delta(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        decays: torch.Tensor,
        rates: torch.Tensor,
        memory: torch.Tensor,
        *,
        rule: str = "delta",
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``recurrent.in_chunks``, token by token.

        Args:
            rule: "delta", or "scan" where what is read under a key is left in the memory.
        """
        out, updates = torch.empty(v.shape), torch.empty(v.shape)
        return out, updates, self._recur(rule, (q, k, v, decays, rates, updates), memory, out)

    def replayed(
        self, k: torch.Tensor, updates: torch.Tensor, decays: torch.Tensor, memory: torch.Tensor
    ) -> torch.Tensor:
        """The memory behind tokens that ``delta`` gave updates of: it has the bits of a pass that ended there."""
        return self._recur("replayed", (k, k, updates, decays, decays, updates), memory, updates)

    def _recur(
        self, name: str, tokens: tuple[torch.Tensor, ...], memory: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        tokens, behind = tuple(part.contiguous() for part in tokens), torch.empty_like(memory)
        (rows, key_heads, key_dim), (heads, value_dim) = tokens[1].shape, tokens[2].shape[1:]
        kernel, slot = self.address(name, key_dim, value_dim), abi.Recurrence
        given = (slot.QUERIES, slot.KEYS, slot.VALUES, slot.DECAYS, slot.RATES, slot.UPDATES)
        arguments = abi.arguments(
            {
                **{at: part.data_ptr() for at, part in zip(given, tokens, strict=True)},
                **{slot.BEFORE: memory.data_ptr(), slot.AFTER: behind.data_ptr(), slot.RESULT: out.data_ptr()},
                **{slot.ROWS: rows, slot.HEADS: heads, slot.KEY_HEADS: key_heads},
            }
        )
        with self.lock:
            self._call(kernel, arguments, heads)
        return behind

    def prepare(self, head_dim: int, dtype: torch.dtype, bits: Sequence[int] = (), capped: bool = False) -> None:
        """Compile what a model of this head dimension and dtype can need, so that no answer waits for it.

        Args:
            bits: of quantized weights among its own.
            capped: whether its scores have a cap.
        """
        if head_dim % self.lanes == 0:
            for stored in (dtype, torch.int8):
                self.attention(head_dim, dtype, stored, capped)
        half = dtype is torch.bfloat16
        levels_as_pairs = half and self.looks_up_levels
        if 8 in bits:
            self.address("product_pairs" if levels_as_pairs else "product", KIND[torch.int8], KIND[dtype])
        if 4 in bits:
            self.address(*(("group_sums",) if levels_as_pairs else ("spread", KIND[dtype])))
            self.address("product4_pairs" if levels_as_pairs else "product4", KIND[torch.bfloat16])
        if half:
            self.address("product_pairs" if self.multiplies_pairs else "product", KIND[dtype])
        else:
            for weights in _DTYPES:
                self.address("product", KIND[weights])
        self.address("norm", KIND[dtype])
        self.address("gathered")

    def address(self, name: str, *kind: Any, lanes: int | None = None) -> int:
        """Of a kernel of this name and kind, compiled if it is not yet.

        Args:
            lanes: of its vectors, if they are not those of the others.
        """
        key = (name, lanes, *kind)
        known = self._addresses.get(key)
        if known is None:
            module = self._compile.module(name)
            self._emit[name](module, name, lanes or self.lanes, *kind)
            code = self._compile.Code(module)
            self._codes.append(code)
            known = self._addresses[key] = code.address(name)
        return known


def is_paired(packed: torch.Tensor) -> bool:
    """Whether packed weights lie in pairs."""
    return packed.dim() == 4


def input_dtype(packed: torch.Tensor) -> torch.dtype:
    """Of what packed weights are multiplied with."""
    return torch.bfloat16 if is_paired(packed) else torch.float32


EACH_ROW: Tiles = (1, 0)
"""A tile is a row."""


class Program:
    """Kernels that run one after the other in one call.

    Args:
        kernels: whose threads run them.
    """

    def __init__(self, kernels: Native) -> None:
        self._kernels = kernels
        self._jobs: list[tuple[int, list[int] | int, Tiles]] = []
        self._row_counts: list[tuple[int, int]] = []
        self._rows = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def add(
        self, kernel: int, slots: Mapping[int, int] | int, tiles: Tiles = (0, 1), rows_at: int | None = None
    ) -> int:
        """Append a kernel, before the first run; returns its place.

        Args:
            slots: of its arguments; or the place of the kernel that it shares them with.
            rows_at: the slot that says how many rows there are.
        """
        return self._append(kernel, slots if isinstance(slots, int) else abi.arguments(slots), tiles, rows_at)

    def add_job(self, job: Job) -> int:
        """Append a job, before the first run; returns its place."""
        return self._append(*job)

    def _append(self, kernel: int, arguments: list[int] | int, tiles: Tiles, rows_at: int | None) -> int:
        self._jobs.append((kernel, arguments, tiles))
        if rows_at is not None:
            self._row_counts.append((len(self._jobs) - 1, rows_at))
        return len(self._jobs) - 1

    @functools.cached_property
    def arguments(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Of each kernel, by place: (kernels, ``NUM_ARGUMENTS``)."""
        found = np.zeros((len(self._jobs), abi.NUM_ARGUMENTS), np.int64)
        for own, (_, given, _) in zip(found, self._jobs, strict=True):
            if not isinstance(given, int):
                own[:] = given
        return found

    @functools.cached_property
    def _table(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Kernel, arguments and tiles of each."""
        first, size = self.arguments.ctypes.data, self.arguments.strides[0]
        places = [given if isinstance(given, int) else place for place, (_, given, _) in enumerate(self._jobs)]
        return np.array([(job[0], first + size * place, 0) for job, place in zip(self._jobs, places, strict=True)])

    @functools.cached_property
    def _tiles(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Of each kernel for each row, and beside them: (2, kernels)."""
        return np.array([tiles for _, _, tiles in self._jobs]).T

    def set_tiles(self, places: Sequence[int], tiles: int) -> None:
        """Let kernels have so many tiles until the number of rows is another."""
        self._table[places, 2] = tiles

    def resize(self, rows: int) -> None:
        """The next run is for so many rows."""
        if rows == self._rows:
            return
        self._table[:, 2] = self._tiles[0] * rows + self._tiles[1]
        for place, at in self._row_counts:
            self.arguments[place, at] = rows
        self._rows = rows

    def run(self, first: int = 0, stop: int | None = None) -> None:
        """Run the kernels [first, stop)."""
        stop = len(self._jobs) if stop is None else stop
        with self._kernels.lock:
            address = self._table.ctypes.data + first * self._table.strides[0]
            self._kernels.pool.run_all(address, stop - first)


class Memory:
    """What the layers of a model compute in, one after the other: (rows, width), by name."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int, torch.dtype], torch.Tensor] = {}

    def of(self, name: str, width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self._held.setdefault((name, width, dtype), torch.empty(MOST_ROWS, width, dtype=dtype))
