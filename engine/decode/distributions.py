"""Represents distributions over a vocabulary, and computes only the probabilities that sampling needs.

A verification of 16 tokens has 17 rows of logits. With today's vocabularies of 150,000 tokens, these rows take 10 MB in
float32. Rejection sampling reads one probability of each row, and a whole row only after a rejection. So on a CPU,
probabilities are computed on demand. For ``KernelRows``, our own kernels (``engine.model.kernels.own_sampling``) first
find which tokens of each row temperature, top-k and top-p keep. This takes 0.02 to 0.4 ms a row. On other devices, and
where our kernels do not run, distributions are tensors (n, vocabulary) in float32. A greedy distribution is stored as
the one token that has probability 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn import functional

from engine.model.kernels import native
from engine.model.kernels.own_sampling import OwnSampling, PatchedLogits

NO_TOKEN = -1
"""The id that is used instead of a token if the logits of a row are not finite."""

_LOG2E = 1.4426950408889634
# Possible sizes, in tokens, of a block. To draw a token, first the block is found and then the token within it. The
# first size that divides the length of the row is used.
_BLOCKS = (256, 128, 64, 32, 16, 8, 4, 2, 1)


class Rows(Protocol):
    """Distributions (n, vocabulary) in host memory."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice) -> Rows: ...

    def of(self, tokens: torch.Tensor) -> torch.Tensor:
        """The probabilities (m,) float32 of ``tokens`` (m,): entry i is the probability of ``tokens[i]`` in row i."""

    def row(self, index: int) -> torch.Tensor:
        """The probabilities (vocabulary,) float32 of one row, in a tensor that the caller may change."""


@dataclass(frozen=True)
class KernelRows:
    """Distributions on a CPU that are computed from logits on demand.

    Args:
        logits: (n, vocabulary).
        scale: log2(e) / temperature.
        stats: numbers that say which tokens of each row temperature, top-k and top-p keep (``OwnSampling.measured``);
            (n, ``abi.STATS_WORDS``) float64.
        patches: logits that the repetition penalty changed; None if there are none.
        kernels: our sampling kernels.
    """

    logits: torch.Tensor
    scale: float
    stats: torch.Tensor
    patches: PatchedLogits | None
    kernels: OwnSampling

    def __len__(self) -> int:
        return len(self.stats)

    def __getitem__(self, index: slice) -> KernelRows:
        patches = None if self.patches is None else (self.patches[0][index], self.patches[1][index])
        return replace(self, logits=self.logits[index], stats=self.stats[index], patches=patches)

    def of(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.kernels.asked(self.logits, self.scale, self.stats, self.patches, tokens)

    def row(self, index: int) -> torch.Tensor:
        own = self[index : index + 1]
        return self.kernels.probabilities(own.logits, self.scale, own.stats, own.patches)


def kernel_rows(
    logits: torch.Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    patches: PatchedLogits | None = None,
) -> KernelRows | None:
    """Make distributions from logits (n, vocabulary); None if our kernels do not support them.

    Args:
        top_k: 0 keeps every token. top_p: 1 keeps every token.
    """
    kernels = _kernels(logits)
    if kernels is None:
        return None
    if missing := -logits.shape[1] % kernels.lanes:
        logits = functional.pad(logits, (0, missing), value=-math.inf)
    scale = _LOG2E / temperature
    top_k = top_k if top_k < logits.shape[1] else 0
    return KernelRows(logits, scale, kernels.measured(logits, scale, top_k, top_p, patches), patches, kernels)


def likeliest(logits: torch.Tensor, patches: PatchedLogits | None = None) -> torch.Tensor:
    """The most likely token (n,) int64 of each row of logits (n, vocabulary). Among equally likely tokens the first is
    taken. A row that is not finite gives ``NO_TOKEN``.

    Args:
        patches: changed logits, a few in each row. So that the logits need not be copied, the most likely token with a
            changed logit is compared with the most likely token with an unchanged logit.
    """
    kernels = _kernels(logits)
    if patches is not None and kernels is not None:
        return _likeliest_of_both(logits, *patches)
    logits = patched(logits, patches)
    if kernels is not None and not logits.shape[1] % kernels.lanes:
        return kernels.likeliest(logits)
    largest, tokens = logits.max(-1)
    return tokens.where(largest < math.inf, NO_TOKEN)


def _likeliest_of_both(logits: torch.Tensor, ids: torch.Tensor, changed: torch.Tensor) -> torch.Tensor:
    """Compute ``likeliest`` for logits with patches, without copying the logits. ``ids`` are the patched tokens,
    ``changed`` their new logits. Their entries in ``logits`` are overwritten for a moment, and then restored.
    """
    rows, places = (ids >= 0).nonzero(as_tuple=True)
    columns = ids[rows, places]
    with torch.inference_mode():
        kept = logits[rows, columns]
        # exclude patched tokens by the lowest finite number and not by -inf, because a row of -inf counts as not finite
        logits[rows, columns] = torch.finfo(logits.dtype).min
        unpatched = likeliest(logits)
        best = logits.gather(1, unpatched.clamp(min=0).unsqueeze(1)).squeeze(1).float()
        logits[rows, columns] = kept
    if not ids.shape[1]:
        return unpatched
    changed = changed.where(ids >= 0, -math.inf)
    most = changed.amax(1)
    first = ids.where((changed == most.unsqueeze(1)) & (ids >= 0), logits.shape[1]).amin(1)
    chosen = first.where((most > best) | ((most == best) & (first < unpatched)), unpatched)
    return chosen.where((unpatched != NO_TOKEN) & (most < math.inf), NO_TOKEN)


def patched(logits: torch.Tensor, patches: PatchedLogits | None) -> torch.Tensor:
    """Logits (n, vocabulary) in float32, with the patches written into them."""
    if patches is None:
        return logits
    (ids, changed), vocabulary = patches, logits.shape[1]
    # Patches with id -1 change no token: they are written to an added column, which is dropped.
    with_room = functional.pad(logits.float(), (0, 1))
    return with_room.scatter_(1, ids.where(ids >= 0, vocabulary), changed)[:, :vocabulary]


def _kernels(logits: torch.Tensor) -> OwnSampling | None:
    """Our sampling kernels if they support these logits, else None."""
    own = native.own() if logits.is_cpu else None
    return own.sampling if own is not None and own.sampling.takes(logits) else None


@dataclass(frozen=True)
class PointMasses:
    """Rows in which one token has probability 1.

    Args:
        tokens: (n,) int64.
        vocabulary: number of probabilities in a row.
    """

    tokens: torch.Tensor
    vocabulary: int

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: slice) -> PointMasses:
        return replace(self, tokens=self.tokens[index])

    def of(self, tokens: torch.Tensor) -> torch.Tensor:
        return (self.tokens[: len(tokens)] == tokens).float()

    def row(self, index: int) -> torch.Tensor:
        out = torch.zeros(self.vocabulary)
        out[self.tokens[index]] = 1.0
        return out


@dataclass(frozen=True)
class JoinedRows:
    """The rows of several distributions, concatenated."""

    parts: Sequence[Rows]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getitem__(self, index: slice) -> JoinedRows:
        start, stop, _ = index.indices(len(self))
        kept: list[Rows] = []
        for part in self.parts:
            if stop > 0 and start < len(part):
                kept.append(part[max(start, 0) : stop])
            start, stop = start - len(part), stop - len(part)
        return JoinedRows(kept)

    def of(self, tokens: torch.Tensor) -> torch.Tensor:
        probabilities, done = [tokens.new_empty(0, dtype=torch.float32)], 0
        for part in self.parts:
            probabilities.append(part.of(tokens[done : done + len(part)]))
            done += len(part)
        return torch.cat(probabilities)

    def row(self, index: int) -> torch.Tensor:
        for part in self.parts:
            if index < len(part):
                return part.row(index)
            index -= len(part)
        raise IndexError(index)


def draw_from(row: np.ndarray[Any, np.dtype[np.float32]], chance: float) -> int:
    """Draw a token from a row (vocabulary,) of probabilities in host memory, with a random number from [0, 1). The row
    need not sum to 1. Returns ``NO_TOKEN`` if its sum is not above 0.

    Inverts the cumulative distribution in float64: over blocks first, then within one block.
    """
    size = next(size for size in _BLOCKS if row.shape[0] % size == 0)
    blocks = row.reshape(-1, size)
    reached = np.add.reduce(blocks, 1).cumsum(dtype=np.float64)
    if not 0.0 < reached[-1] < math.inf:
        return NO_TOKEN
    wanted = chance * reached[-1]
    # side "right" skips blocks and tokens of probability 0. ``min`` keeps the index within the row if ``wanted`` was
    # rounded up to the sum of the row.
    block = min(int(reached.searchsorted(wanted, side="right")), len(reached) - 1)
    within = blocks[block].cumsum(dtype=np.float64)
    if block:
        wanted -= reached[block - 1]
    last = int(within.searchsorted(within[-1]))
    return block * size + min(int(within.searchsorted(wanted, side="right")), last)
