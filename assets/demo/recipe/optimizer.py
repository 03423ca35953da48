"""Muon for the matrices and AdamW for the rest, behind one `step`.

Muon (Keller Jordan, 2024) replaces the update of a matrix by the nearest semi-orthogonal one, found with a few
Newton-Schulz steps on the momentum. Written here because torch's own insists on bfloat16, which is slow on a CPU.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
MUON_MOMENTUM = 0.95
ADAM_BETAS = (0.9, 0.98)
ADAM_SHARE = 0.15
"""AdamW's learning rate, as a share of Muon's."""


def orthogonalized(update: Tensor) -> Tensor:
    """The semi-orthogonal matrices nearest to a stack (n, rows, columns)."""
    x = update.bfloat16() if update.is_cuda else update
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(update.dtype)


class Optimizer:
    """Both optimizers over one model; matrices of the layers go to Muon, embeddings and norms to AdamW."""

    def __init__(self, model: nn.Module) -> None:
        matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and ".layers." in name]
        others = [p for name, p in model.named_parameters() if p.ndim != 2 or ".layers." not in name]
        self._groups: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for p in matrices:
            self._groups[p.shape].append(p)
        self._momentum = {
            shape: torch.zeros(len(ps), *shape, device=ps[0].device) for shape, ps in self._groups.items()
        }
        self._adam = torch.optim.AdamW(others, betas=ADAM_BETAS, weight_decay=0.0)
        self._parameters = matrices + others

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One update from the gradients, which are cleared."""
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for shape, parameters in self._groups.items():
            gradient = torch.stack([p.grad for p in parameters if p.grad is not None])
            momentum = self._momentum[shape]
            momentum.lerp_(gradient, 1 - MUON_MOMENTUM)
            update = orthogonalized(gradient.lerp_(momentum, MUON_MOMENTUM))
            scale = learning_rate * max(1.0, shape[0] / shape[1]) ** 0.5
            for parameter, change in zip(parameters, update, strict=True):
                parameter.add_(change, alpha=-scale)
        for group in self._adam.param_groups:
            group["lr"] = learning_rate * ADAM_SHARE
        self._adam.step()
        for parameter in self._parameters:
            parameter.grad = None

    def state(self) -> dict[str, Any]:
        return {"momentum": list(self._momentum.values()), "adam": self._adam.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        for mine, saved in zip(self._momentum.values(), state["momentum"], strict=True):
            mine.copy_(saved)
        self._adam.load_state_dict(state["adam"])
