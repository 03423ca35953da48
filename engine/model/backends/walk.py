"""Runs passes through transformers' own layers, one after another. Tests compare every other backend with this one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from engine.model.kernels.abi import MOST_ROWS
from engine.model.kernels.native import torch_alone
from engine.model.products.packed import PackedLinear, has_kernels

if TYPE_CHECKING:
    from engine.model.pieces import Pieces, Rope
    from engine.model.view import View


class Walk:
    """Runs passes through transformers' layers.

    Args:
        pieces: the loaded model's embedding, blocks and output head.
        head: the product from hidden states to logits; None takes the model's own.
        bits: number of bits of a weight if this backend has quantized weights; 0 if it has the model's own.
        blocks: the blocks to run; None takes the model's own.
    """

    most_rows = MOST_ROWS

    def __init__(self, pieces: Pieces, head: Any = None, bits: int = 0, blocks: Sequence[Any] | None = None) -> None:
        self.pieces, self.bits = pieces, bits
        self._own_blocks = pieces.blocks if blocks is None else blocks
        self._head = self._whole_head = pieces.last_product if head is None else head
        self._alone = torch_alone if has_kernels(pieces.model) else nullcontext

    @property
    def token_device(self) -> torch.device:
        return self.pieces.token_device

    def ids(self, tokens: Sequence[int]) -> torch.Tensor:
        return self.pieces.ids(tokens)

    def scaling(self, layer: int) -> float:
        return self.pieces.scaling(layer)

    @contextmanager
    def decoding(self) -> Iterator[None]:
        with torch.inference_mode(), self._alone():
            yield

    def narrow(self, tokens: int) -> None:
        """From now on, compute logits of only the first tokens of the vocabulary, at least ``tokens``. All logits are
        computed as before if the head is not packed.
        """
        head = self._whole_head
        narrows = isinstance(head, PackedLinear) and tokens < head.out_features
        self._head = head.first(tokens) if narrows else head

    def layer(self, index: int, hidden: torch.Tensor, rope: Rope, view: View) -> torch.Tensor:
        return self.pieces.block(self._own_blocks[index], index, hidden, rope, view)

    def forward(self, input_ids: torch.Tensor, view: View, rows: int | None = None) -> torch.Tensor:
        return self.logits(self._through(input_ids, self.pieces.embed(input_ids), view), rows)

    def logits(self, hidden: torch.Tensor, rows: int | None) -> torch.Tensor:
        """Compute the logits of the last ``rows`` tokens, or of all tokens if ``rows`` is None. ``hidden`` (1, n,
        hidden) is the output of the last layer.
        """
        return self.pieces.logits(hidden if rows is None else hidden[:, -rows:], self._head)

    def _through(self, input_ids: torch.Tensor, hidden: torch.Tensor, view: View) -> torch.Tensor:
        """Run all layers, one after another. Return the output of the last layer."""
        pieces, positions = self.pieces, view.positions(len(input_ids))
        rope = pieces.no_rope(len(input_ids)) if positions is None else pieces.rope(positions)
        ropes = pieces.on_devices(pieces.with_inputs(rope, input_ids, hidden))
        for index in range(pieces.num_layers):
            hidden = self.layer(index, pieces.carry(hidden, index), ropes[pieces.part_of(index)], view)
        return hidden
