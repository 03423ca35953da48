"""Several processes training one model, each on its own rows: started by torchrun, or a single process without it.

Two processes of one thread each use two busy cores far better than one process of two threads, whose every small
matrix product waits for the slower thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class Peers:
    """This process's number and how many there are."""

    rank: int = 0
    count: int = 1

    @classmethod
    def join(cls) -> Peers:
        """Meets the other processes that torchrun has started, if it has."""
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count > 1:
            distributed.init_process_group("gloo")
        return cls(int(os.environ.get("RANK", "0")), count)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def average(self, gradients: Iterable[Tensor]) -> None:
        """Replaces every tensor by its mean over the processes."""
        if self.count > 1:
            for gradient in gradients:
                distributed.all_reduce(gradient.div_(self.count))

    def agree(self, elapsed: float, stopped: bool) -> tuple[float, bool]:
        """The first process's clock for all; stopped when any of them was asked to stop."""
        if self.count == 1:
            return elapsed, stopped
        word = torch.tensor([elapsed if self.leads else 0.0, float(stopped)], dtype=torch.float64)
        distributed.all_reduce(word)
        return float(word[0]), bool(word[1] > 0)
