"""Keeps the target's newest hidden states, which its own draft head reads (``engine.model.own_head``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from engine.model.pieces import Pieces


class HiddenStates:
    """Keeps the hidden states of the newest tokens of a context, as the target's passes compute them.

    Args:
        pieces: the target.
        most: number of newest tokens whose states are always kept.
    """

    def __init__(self, pieces: Pieces, most: int) -> None:
        self._pieces, self.most = pieces, most
        self._held: torch.Tensor | None = None  # the states from position ``_base`` on, and free room after them
        self._base = 0
        self.start = self.stop = 0
        """The states of the positions from ``start`` to ``stop - 1`` are held."""

    def note(self, start: int, states: torch.Tensor | None = None) -> None:
        """Keep hidden states of tokens from position ``start`` on. The states of all later tokens are forgotten,
        because their contexts may have changed.

        Args:
            states: (1, n, hidden); None takes those of the target's newest pass.
        """
        states = self._pieces.states if states is None else states
        count = states.shape[1]
        if count > self.most:
            start, states, count = start + count - self.most, states[:, -self.most :], self.most
            self.crop(0)
        if self._held is None:
            self._held = states.new_empty(1, 2 * self.most, states.shape[-1])
        if not self.start <= start <= self.stop:
            self._base = self.start = start
        if start + count - self._base > self._held.shape[1]:
            kept = min(self.most, start - self.start)
            at = start - kept - self._base
            self._held[:, :kept] = self._held[:, at : at + kept].clone()
            self._base = self.start = start - kept
        at = start - self._base
        self._held[:, at : at + count] = states
        self.stop = start + count

    def replace(self, start: int, states: torch.Tensor) -> None:
        """Hold only ``states`` (1, n, hidden) of the tokens from position ``start`` on."""
        self._base = self.start = self.stop = start
        self.note(start, states)

    def crop(self, length: int) -> None:
        """Forget the states of all tokens from position ``length`` on."""
        self.stop = min(self.stop, length)
        self.start = min(self.start, self.stop)

    def forget_before(self, start: int) -> None:
        """Forget the states of all tokens before position ``start``."""
        self.start = min(max(self.start, start), self.stop)

    def between(self, start: int, stop: int) -> torch.Tensor:
        """The states (1, n, hidden) of the positions from ``start`` to ``stop - 1``, which must be held."""
        assert self._held is not None
        return self._held[:, start - self._base : stop - self._base]
