"""Device I/O of small numbers: where a round waits for a GPU, and where it does not.

A GPU works asynchronously until a result is read. ``to_host`` is the only reading in a round, once for every
verification: a round without a middle level reads once, one with k middle passes k + 1 times, since the accepted part
of a proposal decides what is drafted next. With early stopping the draft model is read after every token as well: a
wait costs tens of microseconds, and a step that is not run several times that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def to_device(numbers: Sequence[int], device: torch.device) -> torch.Tensor:
    """Whole numbers as a tensor (n,) int64 on a device. Waits for nothing: a GPU fetches them from pinned memory."""
    if device.type == "cuda":
        return torch.tensor(numbers, dtype=torch.long, pin_memory=True).to(device, non_blocking=True)
    return torch.tensor(numbers, dtype=torch.long, device=device)


def to_host(*tensors: torch.Tensor) -> list[list[float]]:
    """The numbers of several small tensors (n,) of one device, in one transfer and so with one wait.

    As float64, which token ids and probabilities in float32 go through unchanged.
    """
    joined: list[float] = torch.cat([tensor.double() for tensor in tensors]).tolist()
    found, start = [], 0
    for tensor in tensors:
        found.append(joined[start : start + tensor.shape[0]])
        start += tensor.shape[0]
    return found
