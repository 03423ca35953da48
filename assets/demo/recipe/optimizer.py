"""Combines Muon for matrices and AdamW for all other parameters in one `step`.

Muon (Keller Jordan, 2024) replaces the update of a matrix by the nearest semi-orthogonal matrix, which a few
Newton-Schulz steps on the momentum find. Muon would destroy matrices that were set by hand. So AdamW trains them, with
steps that are small relative to a parameter's size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
MUON_MOMENTUM = 0.95
ADAM_BETAS = (0.9, 0.98)
EMBEDDING_SHARE, OTHERS_SHARE = 0.12, 0.15
"""AdamW's learning rate for a parameter whose entries are about 1, as a share of Muon's."""
LEAST_SIZE = 0.05
"""Minimum size of a parameter's entries in the computation of its rate, so that zeros move too."""


def orthogonalized(update: Tensor) -> Tensor:
    """Compute the semi-orthogonal matrix nearest to each matrix of a stack (n, rows, columns)."""
    x = update.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(update.dtype)


class Optimizer:
    """Both optimizers for one model. Muon trains the matrices of the layers, and AdamW trains all other parameters.
    AdamW also trains the attention of the layers `wired`, whose weights were set by hand.
    """

    def __init__(self, model: nn.Module, wired: Collection[int] = (), others_share: float = OTHERS_SHARE) -> None:
        kept = tuple(f".layers.{number}.self_attn." for number in wired)
        matrices, others = [], []
        for name, p in model.named_parameters():
            to_muon = p.ndim == 2 and ".layers." in name and not any(part in name for part in kept)
            (matrices if to_muon else others).append(p)
        self._groups: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for p in matrices:
            self._groups[p.shape].append(p)
        self._momentum = {
            shape: torch.zeros(len(ps), *shape, device=ps[0].device) for shape, ps in self._groups.items()
        }
        embedding = model.get_input_embeddings().weight
        shares = [EMBEDDING_SHARE if p is embedding else others_share for p in others]
        sizes = [max(LEAST_SIZE, p.detach().square().mean().sqrt().item()) for p in others]
        self._rates = [share * size for share, size in zip(shares, sizes, strict=True)]
        self._adam = torch.optim.AdamW([{"params": [p]} for p in others], betas=ADAM_BETAS, weight_decay=0.0)
        self._parameters = matrices + others

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Update all parameters from their gradients, and clear the gradients."""
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for shape, parameters in self._groups.items():
            gradient = torch.stack([p.grad for p in parameters if p.grad is not None])
            momentum = self._momentum[shape]
            momentum.lerp_(gradient, 1 - MUON_MOMENTUM)
            update = orthogonalized(gradient.lerp_(momentum, MUON_MOMENTUM))
            scale = learning_rate * max(1.0, shape[0] / shape[1]) ** 0.5
            for parameter, change in zip(parameters, update, strict=True):
                parameter.add_(change, alpha=-scale)
        for group, rate in zip(self._adam.param_groups, self._rates, strict=True):
            group["lr"] = learning_rate * rate
        self._adam.step()
        for parameter in self._parameters:
            parameter.grad = None

    def state(self) -> dict[str, Any]:
        return {"momentum": list(self._momentum.values()), "adam": self._adam.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        for mine, saved in zip(self._momentum.values(), state["momentum"], strict=True):
            mine.copy_(saved)
        self._adam.load_state_dict(state["adam"])
