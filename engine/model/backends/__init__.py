"""Defines backends, which run the passes of a model on a kind of hardware.

``Walk`` runs transformers' layers, and its result is the reference for all other backends. ``ProgramBackend`` runs a
processor's passes as one program of our own kernels. ``JointBackend`` runs Llama's layers on a GPU with fewer kernel
launches, because it joins matrix products that have the same input. ``TiledBackend`` uses 4-bit copies of the weights
on a GPU. ``RecordedBackend`` replays another backend's passes on a GPU as CUDA graphs. Draft models and the target on
the retrieval cache use these backends too.
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
        """Number of bits of a weight if the weights were quantized for this backend; 0 if it uses the model's own
        weights.
        """

    @property
    def most_rows(self) -> int:
        """Maximum rows of a pass in which our own kernels give each row the same bits, whatever the other rows are. In
        larger passes, the bits of a row may depend on the other rows.
        """

    @property
    def token_device(self) -> torch.device:
        """The device on which logits arrive and tokens are drawn."""

    def ids(self, tokens: Sequence[int]) -> torch.Tensor:
        """Make a tensor (n,) of token ids on ``token_device``."""

    def scaling(self, layer: int) -> float:
        """The factor by which the layer multiplies the dot products of queries and keys."""

    def decoding(self) -> AbstractContextManager[object]:
        """Make a context manager in which the caller runs passes over a few tokens and processes their logits. Within
        the context no gradients are computed. If our own kernels run on the processor, torch uses only one thread.
        """

    def layer(self, index: int, hidden: torch.Tensor, rope: Rope, view: View) -> torch.Tensor:
        """Run one layer over hidden states (1, n, hidden). ``view`` computes the layer's attention."""

    def forward(self, input_ids: torch.Tensor, view: View, rows: int | None = None) -> torch.Tensor:
        """Run all layers over n new tokens. Return the logits (rows, vocabulary) of the last ``rows`` tokens, or of all
        tokens if ``rows`` is None.
        """
