"""Samples from rows of logits with our own kernels: checks tensors, allocates memory and makes arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from engine.model.kernels import abi
from engine.model.kernels.abi import KIND, WIDE_DTYPES, Logits, bits, double_bits

if TYPE_CHECKING:
    from engine.model.kernels.compiled import Compiled

_PIECE = 16_384  # tokens in a tile of ``probabilities``

PatchedLogits = tuple[torch.Tensor, torch.Tensor]
"""Changed logits of n rows: token ids (n, m) int64, where -1 means no token, and the logits (n, m) float32 of these
tokens.
"""


class OwnSampling:
    """Samples with compiled kernels, and owns their working memory. The size of a vocabulary must be a multiple of
    ``lanes``.

    Args:
        kernels: the compiled kernels.
    """

    def __init__(self, kernels: Compiled) -> None:
        self._kernels = kernels
        self._scratch = torch.empty(0)

    @property
    def lanes(self) -> int:
        return self._kernels.lanes

    def takes(self, logits: torch.Tensor) -> bool:
        """Whether the kernels support these logits (n, vocabulary)."""
        return logits.is_cpu and logits.dtype in WIDE_DTYPES and logits.stride(1) == 1

    def likeliest(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the most likely token (n,) int64 of each row of logits (n, vocabulary). Of equally likely tokens, the
        first is returned. A row that has a NaN or whose largest logit is infinite gets -1.
        """
        out = torch.empty(logits.shape[0], dtype=torch.int64)
        self._call("likeliest", logits, logits.shape[0], {Logits.OUT: out.data_ptr()})
        return out

    def measured(
        self, logits: torch.Tensor, scale: float, top_k: int, top_p: float, patches: PatchedLogits | None
    ) -> torch.Tensor:
        """Find which tokens temperature, top-k and top-p keep in each row of logits (n, vocabulary). Returns the
        numbers of ``abi.Stats`` for each row, (n, ``STATS_WORDS``) float64.

        Args:
            scale: log2(e) / temperature.
            top_k: 0 keeps every token.
            top_p: 1 keeps every token.
        """
        count, width = logits.shape
        stats = torch.empty(count, abi.STATS_WORDS, dtype=torch.float64)
        size = abi.scratch_size_of_logits(width, self.lanes)
        with self._kernels.lock:
            if self._scratch.numel() < size * self._kernels.pool.workers:
                self._scratch = torch.empty(size * self._kernels.pool.workers)
            own = {Logits.TOP_K: top_k, Logits.TOP_P: double_bits(top_p), Logits.STATS: stats.data_ptr()}
            own |= {Logits.SCALE: bits(scale), Logits.SCRATCH: self._scratch.data_ptr(), Logits.SCRATCH_SIZE: size}
            self._call("measured", logits, count, own, patches)
        return stats

    def probabilities(
        self, logits: torch.Tensor, scale: float, stats: torch.Tensor, patches: PatchedLogits | None
    ) -> torch.Tensor:
        """Compute the probabilities (vocabulary,) float32 of one row of logits (1, vocabulary). ``stats`` are the row's
        results from ``measured``; ``patches`` are its changed logits.
        """
        out = torch.empty(logits.shape[1])
        own = {Logits.STATS: stats.data_ptr(), Logits.OUT: out.data_ptr(), Logits.PIECE: _PIECE}
        own[Logits.SCALE] = bits(scale)
        self._call("probabilities", logits, -(-out.shape[0] // _PIECE), own, patches)
        return out

    def asked(
        self,
        logits: torch.Tensor,
        scale: float,
        stats: torch.Tensor,
        patches: PatchedLogits | None,
        tokens: torch.Tensor,
    ) -> torch.Tensor:
        """Compute the probability (n,) float32 of one given token (n,) of each row. It has the same bits as in
        ``probabilities``.
        """
        out, tokens = torch.empty(tokens.shape[0]), tokens.contiguous()
        own = {Logits.STATS: stats.data_ptr(), Logits.OUT: out.data_ptr(), Logits.TOKENS: tokens.data_ptr()}
        own[Logits.SCALE] = bits(scale)
        self._call("asked", logits, tokens.shape[0], own, patches)
        return out

    def prepare(self) -> None:
        """Compile the kernels for float32 and bfloat16, so that no answer waits for compilation. Compiling takes 0.2 s
        for each dtype. Models in bfloat16 need both dtypes, because logits become float32 if a repetition penalty or
        the rule for quotations changes them.
        """
        for dtype in WIDE_DTYPES:
            for name in ("likeliest", "measured", "asked", "probabilities"):
                self._kernels.address(name, KIND[dtype])

    def _call(
        self,
        name: str,
        logits: torch.Tensor,
        tiles: int,
        slots: dict[int, int],
        patches: PatchedLogits | None = None,
    ) -> None:
        slots |= {Logits.LOGITS: logits.data_ptr(), Logits.STRIDE: logits.stride(0), Logits.WIDTH: logits.shape[1]}
        if patches is not None and patches[0].shape[1]:
            patches = patches[0].contiguous(), patches[1].contiguous()
            slots |= {Logits.PATCH_IDS: patches[0].data_ptr(), Logits.PATCHES: patches[1].data_ptr()}
            slots[Logits.PATCH_COUNT] = patches[0].shape[1]
        self._kernels.call(self._kernels.address(name, KIND[logits.dtype]), abi.arguments(slots), tiles)
