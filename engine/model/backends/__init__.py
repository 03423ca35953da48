"""Backends, which run passes: the one boundary to the hardware.

``Walk`` goes through transformers' layers and defines the right result. ``ProgramBackend`` runs a processor's passes as
one program of our own kernels. ``TiledBackend`` has weights in 4 bits on a GPU. ``RecordedBackend`` replays another
backend's passes on a GPU. Draft models and the middle level use the same kinds of backends.
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
        """Bits of weights that were made in addition to the model's own; 0 where there are none."""

    @property
    def most_rows(self) -> int:
        """Rows of the widest pass that is computed row by row, where any is. The results of wider passes may differ in
        bits.
        """

    @property
    def token_device(self) -> torch.device:
        """The device on which logits come and tokens are drawn."""

    def ids(self, tokens: Sequence[int]) -> torch.Tensor:
        """Make a tensor (n,) of token ids on the device where tokens are drawn."""

    def scaling(self, layer: int) -> float:
        """The factor of the products of a layer's queries and keys."""

    def decoding(self) -> AbstractContextManager[object]:
        """A context for passes over a few tokens, and for work on their logits."""

    def layer(self, index: int, hidden: torch.Tensor, rope: Rope, view: View) -> torch.Tensor:
        """Run one layer over hidden states (1, n, hidden), attending through ``view``."""

    def forward(self, input_ids: torch.Tensor, view: View, rows: int | None = None) -> torch.Tensor:
        """Run all layers over n new tokens. Return logits (rows, vocabulary) of the last ``rows`` tokens, or of all if
        None.
        """
