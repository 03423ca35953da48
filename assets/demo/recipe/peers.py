"""Training by several processes, each on different rows. torchrun starts the processes; without torchrun there is only
one.

On two busy cores, two processes of one thread each are much faster than one process of two threads. In one process,
every small matrix product would wait for the slower thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class Peers:
    """The number of this process, and the number of processes."""

    rank: int = 0
    count: int = 1

    @classmethod
    def join(cls) -> Peers:
        """Connect to the other processes if torchrun has started several."""
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count > 1:
            distributed.init_process_group("gloo")
        return cls(int(os.environ.get("RANK", "0")), count)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def average(self, gradients: Iterable[Tensor]) -> None:
        """Replace every tensor by its mean over the processes."""
        if self.count > 1:
            for gradient in gradients:
                distributed.all_reduce(gradient.div_(self.count))

    def agree(self, elapsed: float, stopped: bool) -> tuple[float, bool]:
        """Return the elapsed time of the first process, and whether any process was asked to stop, so that all
        processes agree.
        """
        if self.count == 1:
            return elapsed, stopped
        word = torch.tensor([elapsed if self.leads else 0.0, float(stopped)], dtype=torch.float64)
        distributed.all_reduce(word)
        return float(word[0]), bool(word[1] > 0)
