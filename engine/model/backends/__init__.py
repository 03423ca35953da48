"""Defines backends, which run the passes of a model on a kind of hardware.

``Walk`` runs transformers' layers, and its result is the reference for all other backends. ``ProgramBackend`` runs a
processor's passes as one program of our own kernels. ``JointBackend`` runs Llama's layers on a GPU with fewer kernel
launches, because it computes matrix products with the same input as one. ``TiledBackend`` uses 4-bit copies of the
weights on a GPU. ``RecordedBackend`` replays another backend's passes on a GPU as CUDA graphs. Draft models and the
target on the retrieval cache run in these backends too.
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
    """Runs the passes of one model over new tokens."""

    @property
    def bits(self) -> int:
        """Bits of the weights if they were rounded for this backend; 0 if it uses the model's own weights."""

    @property
    def most_rows(self) -> int:
        """Maximum rows of a pass for which our own kernels give a row the same bits whatever other rows are in the
        pass. Wider passes may give different bits.
        """

    @property
    def token_device(self) -> torch.device:
        """The device on which logits arrive and tokens are drawn."""

    def ids(self, tokens: Sequence[int]) -> torch.Tensor:
        """Make a tensor (n,) of token ids on ``token_device``."""

    def scaling(self, layer: int) -> float:
        """The factor that the products of a layer's queries and keys are multiplied by."""

    def decoding(self) -> AbstractContextManager[object]:
        """Make a context manager for passes over a few tokens and work on their logits. Within the context no gradients
        are computed. If our own kernels run on the processor, torch uses only one thread.
        """

    def layer(self, index: int, hidden: torch.Tensor, rope: Rope, view: View) -> torch.Tensor:
        """Run one layer over hidden states (1, n, hidden). Its attention goes through ``view``."""

    def forward(self, input_ids: torch.Tensor, view: View, rows: int | None = None) -> torch.Tensor:
        """Run all layers over n new tokens. Return the logits (rows, vocabulary) of the last ``rows`` tokens, or of all
        tokens if ``rows`` is None.
        """
