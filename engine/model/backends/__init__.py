"""What runs a pass: the one boundary to the hardware.

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
        """Of the weights that it was made with beside the model's own; 0 for those."""

    @property
    def most_rows(self) -> int:
        """Rows of the widest pass that is computed row by row, where anything is: wider ones may have other bits."""

    @property
    def token_device(self) -> torch.device:
        """Where logits come, and tokens are drawn."""

    def ids(self, tokens: Sequence[int]) -> torch.Tensor:
        """Token ids as a tensor (n,) where tokens are drawn."""

    def scaling(self, layer: int) -> float:
        """What the products of a layer's queries and keys are multiplied by."""

    def decoding(self) -> AbstractContextManager[object]:
        """What passes over a few tokens run in, and what is done with their logits."""

    def layer(self, index: int, hidden: torch.Tensor, rope: Rope, view: View) -> torch.Tensor:
        """One layer over hidden states (1, n, hidden), attending through ``view``."""

    def forward(self, input_ids: torch.Tensor, view: View, rows: int | None = None) -> torch.Tensor:
        """All layers over n new tokens: logits (rows, vocabulary) of the last ``rows`` of them, all if None."""
