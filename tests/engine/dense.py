"""Distributions as tensors of probabilities, whatever they are computed by."""

from __future__ import annotations

import torch

from engine.decode.verify import Distributions


def dense(distributions: Distributions, vocabulary: int) -> torch.Tensor:
    """Probabilities (n, vocabulary) in float32. Not of greedy distributions."""
    if isinstance(distributions, torch.Tensor):
        return distributions
    rows = torch.stack([distributions.row(index) for index in range(len(distributions))])
    assert not rows[:, vocabulary:].any(), "what is beside the vocabulary has no probability"
    return rows[:, :vocabulary]
