"""Computes attention with our own kernels: checks tensors, allocates memory and makes arguments. Also copies chosen
chunks of KV.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from engine.model.kernels import abi
from engine.model.kernels.abi import KIND, WIDE_DTYPES, bits

if TYPE_CHECKING:
    from engine.model.kernels.compiled import Compiled

_LN2 = 0.6931471805599453  # natural logarithm of 2
_LOG2E = 1.4426950408889634  # logarithm of e to base 2; kernels compute powers of 2 instead of e

Held = tuple[torch.Tensor, torch.Tensor]
"""The keys and values of a layer."""


class OwnAttention:
    """Computes attention with compiled kernels, and owns their working memory. Queries are packed: a KV head has the
    rows of all query heads that share it.

    Args:
        kernels: the compiled kernels.
    """

    def __init__(self, kernels: Compiled) -> None:
        self._kernels = kernels
        self._parts, self._scratch = torch.empty(0), torch.empty(0)

    def takes(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
        """Whether the kernels support these queries, keys and values."""
        return (
            self.answers(q)
            and k.is_cpu
            and k.dtype == v.dtype
            and k.dtype in (q.dtype, torch.int8)
            and k.stride(3) == v.stride(3) == 1
            and k.shape[2] > 0
        )

    def answers(self, q: torch.Tensor) -> bool:
        """Whether the kernels support queries of this shape and dtype."""
        return q.is_cpu and q.dtype in WIDE_DTYPES and q.shape[3] % self._kernels.lanes == 0

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
        """Compute attention. In each head, row r of q sees the keys from ``first[r]`` to ``seen[r] - 1``, at least one
        key. If ``first`` is None, the row sees all keys up to ``seen[r] - 1``.

        k and v may be quantized (``model.kv_shape``): quants followed by a scale, (1, kv_heads, seq, storage_dim).

        Returns:
            The output, with the shape of q, and the log-sum-exp of each row's scores (1, kv_heads, rows).
        """
        heads, rows, head_dim = q.shape[1:]
        length, half = k.shape[2], q.dtype is torch.bfloat16
        quantized = k.dtype is torch.int8
        out, lse = torch.empty(heads, rows, head_dim, dtype=q.dtype), torch.empty(heads, rows)
        q = (q.float() if quantized and not (half and self.takes_pairs(head_dim)) else q).contiguous()
        first = from_first(rows) if first is None else first
        kernel, join = self.addresses(head_dim, out.dtype, k.dtype, cap is not None)
        addresses = kv_addresses([k], [v])[:, 0].tolist()
        strides = k.stride(1), k.stride(2), v.stride(1), v.stride(2)
        with self._kernels.lock:
            arguments = self.arguments(
                q, addresses, strides, (heads, rows, head_dim), length, seen, first, out, lse, scaling, cap
            )
            self._kernels.call(kernel, arguments, heads * self.pieces(length), join, heads)
        return out.unsqueeze(0), (lse * _LN2).unsqueeze(0)

    def pieces(self, length: int) -> int:
        """Return the number of pieces into which ``length`` keys are cut."""
        return -(-length // abi.PIECE)

    def addresses(
        self, head_dim: int, dtype: torch.dtype, stored: torch.dtype, capped: bool = False
    ) -> tuple[int, int]:
        """Return the addresses of two kernels. The first kernel computes attention to a piece of the keys, which have
        the dtype ``stored``. The second kernel merges the results of all pieces.
        """
        pairs = dtype is torch.bfloat16 and self.takes_pairs(head_dim)
        name = "attend_pairs" if pairs else "attend"
        return self._kernels.address(name, head_dim, KIND[stored], capped), self._kernels.address(
            "join", head_dim, KIND[dtype]
        )

    def arguments(
        self,
        q: torch.Tensor,
        kv: Sequence[int],
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
        """Make the arguments of the two attention kernels (see ``addresses``). The arguments point to working memory
        that all calls share, so the caller holds the ``lock`` of the kernels until the kernels have run.

        Args:
            size: (kv_heads, rows, head_dim), the shape of ``q`` and ``out``.
            lse: (kv_heads, rows).
            kv: addresses of the keys and values of ``length`` tokens.
            strides: for keys and for values, the strides between heads and between tokens, counted in elements.
            seen, first: as in ``attend``.
        """
        heads, rows, head_dim = size
        pieces, scale = self.pieces(length), scaling if cap is None else 2 * scaling / cap
        needed = heads * pieces * rows * (head_dim + 2)
        if self._parts.numel() < needed:
            self._parts = torch.empty(needed)
        pairs = out.dtype is torch.bfloat16 and self.takes_pairs(head_dim)
        block = (abi.scratch_size_of_pairs if pairs else abi.scratch_size)(rows, head_dim)
        if self._scratch.numel() < block * self._kernels.pool.workers:
            self._scratch = torch.empty(block * self._kernels.pool.workers)
        slot, (keys, values) = abi.Attention, kv
        key_head, key_token, value_head, value_token = strides
        return abi.arguments(
            {
                slot.QUERIES: q.data_ptr(),
                slot.KEYS: keys,
                slot.VALUES: values,
                slot.KEY_HEAD: key_head,
                slot.KEY_TOKEN: key_token,
                slot.VALUE_HEAD: value_head,
                slot.VALUE_TOKEN: value_token,
                slot.LENGTH: length,
                slot.HEAD_ROWS: rows,
                slot.PIECES: pieces,
                slot.FIRST: first.data_ptr(),
                slot.SEEN: seen.data_ptr(),
                slot.PARTS: self._parts.data_ptr(),
                slot.SCRATCH: self._scratch.data_ptr(),
                slot.SCRATCH_SIZE: block,
                slot.RESULT: out.data_ptr(),
                slot.LOGSUM: lse.data_ptr(),
                slot.SCALE: bits(scale * _LOG2E),
                slot.CAP: bits((cap or 0.0) * _LOG2E),
                slot.BETWEEN: (self._kernels.pool.workers - 1) * abi.PIECE,
            }
        )

    def takes_pairs(self, head_dim: int) -> bool:
        """Whether the kernels compute attention in bfloat16 by multiplying pairs of numbers."""
        return self._kernels.multiplies_pairs and head_dim % (2 * self._kernels.lanes) == 0

    def copy_chunks(self, sources: Sequence[Held], targets: Sequence[Held], chunks: torch.Tensor, size: int) -> bool:
        """Copy chunks like ``engine.model.kernels.cpu.copy_chunks``. Returns False if a chunk is no multiple of
        ``abi.COPIED`` bytes.
        """
        (_, kv_heads, chosen), one = chunks.shape, sources[0][0]
        chunk_bytes = size * one.stride(1) * one.itemsize
        if chunk_bytes % abi.COPIED:
            return False
        chunks = chunks.contiguous()
        lines = np.empty((2, len(sources), kv_heads, abi.LINE_WORDS), np.int64)
        heads, line, slot = np.arange(kv_heads), abi.GatheredLine, abi.Gathered
        for field, held in ((line.SOURCE, sources), (line.TARGET, targets)):
            starts = kv_addresses(*zip(*held, strict=True))
            lines[..., field] = starts[:, :, None] + heads * (held[0][0].stride(0) * one.itemsize)
        first, step = chunks.data_ptr(), chosen * chunks.itemsize
        lines[..., line.CHUNKS] = first + step * np.arange(len(sources) * kv_heads).reshape(-1, kv_heads)
        arguments = {slot.LINES: lines.ctypes.data, slot.CHOSEN: chosen, slot.CHUNK_BYTES: chunk_bytes}
        self._kernels.call(self._kernels.address("gathered"), abi.arguments(arguments), lines.size // abi.LINE_WORDS)
        return True


def kv_addresses(*kinds: Sequence[torch.Tensor]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the addresses of a cache's tensors, (number of arguments, layers). Each argument lists a tensor of every
    layer, such as the keys of every layer.
    """
    return np.array([[held.data_ptr() for held in kind] for kind in kinds], np.int64)


# All layers of a pass call the following functions with equal arguments, so the most recent results are cached.


@functools.lru_cache(maxsize=4)
def from_first(rows: int) -> torch.Tensor:
    """Make the argument ``first`` of ``OwnAttention.attend`` for rows that see all keys from the start: zeros
    (rows,).
    """
    return torch.zeros(rows, dtype=torch.long)


@functools.lru_cache(maxsize=4)
def newest_seen(n: int, past: int, group: int) -> torch.Tensor:
    """Make the argument ``seen`` of ``OwnAttention.attend``, (group * n,), for the newest ``n`` tokens after ``past``
    earlier tokens. Each of the ``group`` query heads of a KV head has ``n`` rows, and each row sees the tokens up to
    and including its own.
    """
    return torch.arange(past + 1, past + n + 1).repeat(group)
