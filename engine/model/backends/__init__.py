"""Backends, which run passes: the one boundary to the hardware.

``Walk`` goes through transformers' layers and defines what is right. ``ProgramBackend`` is a processor's: one program
of our own kernels. ``TiledBackend`` has weights in 4 bits on a GPU. ``RecordedBackend`` replays passes of another one
there. Those that propose, a draft model's or the middle level's, are no other kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from engine.model.pieces import Rope
    from engine.model.view import View


class Backend(Protocol):
    """Runs passes of one model over new tokens."""

    @property
    def bits(self) -> int:
        """Bits of weights that were made in addition to the model's own; 0 without any."""

    @property
    def most_rows(self) -> int:
        """Rows of the widest pass that is computed row by row, where anything is: wider ones may have other bits."""

    @property
    def token_device(self) -> torch.device:
        """The device on which logits come and tokens are drawn."""

    def ids(self, tokens: Sequence[int]) -> torch.Tensor:
        """Token ids as a tensor (n,) where tokens are drawn."""

    def scaling(self, layer: int) -> float:
        """The factor of the products of a layer's queries and keys."""

    def decoding(self) -> AbstractContextManager[object]:
        """A context for passes over a few tokens, and for the work on their logits."""

    def layer(self, index: int, hidden: torch.Tensor, rope: Rope, view: View) -> torch.Tensor:
        """Run one layer over hidden states (1, n, hidden), attending through ``view``."""

    def forward(self, input_ids: torch.Tensor, view: View, rows: int | None = None) -> torch.Tensor:
        """Run all layers over n new tokens: logits (rows, vocabulary) of the last ``rows`` of them, all if None."""
