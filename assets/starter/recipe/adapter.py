"""The adapter: low-rank additions to the matrices of a Llama (LoRA, arXiv 2106.09685), in a file, and merged.

Every linear layer of every block computes ``W x + scale * B (A x)``. Knows no text and no training.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaForCausalLM

MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RANK = 16
SCALE = 2.0


class LowRank(nn.Module):
    """A frozen linear layer with its low-rank addition. `down`: (rank, in), `up`: (out, rank), both float32."""

    def __init__(self, base: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features, generator=generator) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, states: Tensor) -> Tensor:
        kind = states.dtype
        narrow = functional.linear(states, self.down.to(kind))
        added: Tensor = self.base(states) + functional.linear(narrow, (SCALE * self.up).to(kind))
        return added


def attach(model: LlamaForCausalLM, seed: int, rank: int = RANK) -> dict[str, LowRank]:
    """Puts an addition beside every matrix of every block and freezes all else; a new one changes nothing yet."""
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    added = {}
    for name, base in list(_matrices(model)):
        parent = model.get_submodule(name.rpartition(".")[0])
        added[name] = LowRank(base, rank, generator)
        setattr(parent, name.rpartition(".")[2], added[name])
    return added


def tensors(added: dict[str, LowRank]) -> dict[str, Tensor]:
    """The adapter as named tensors, sharing memory with what is trained."""
    named = {}
    for name, matrix in added.items():
        named[f"{name}.down"], named[f"{name}.up"] = matrix.down.data, matrix.up.data
    return named


def load(added: dict[str, LowRank], named: dict[str, Tensor]) -> None:
    """Sets attached additions to named tensors."""
    for name, tensor in tensors(added).items():
        tensor.copy_(named[name])


def save(named: dict[str, Tensor], path: Path) -> None:
    """Writes an adapter in half precision."""
    halves = {name: tensor.detach().to(torch.float16).contiguous() for name, tensor in named.items()}
    save_file(halves, path, metadata={"format": "pt", "scale": str(SCALE)})


def read(path: Path) -> dict[str, Tensor]:
    """An adapter from its file, in float32."""
    return {name: tensor.float() for name, tensor in load_file(path).items()}


@torch.no_grad()
def merge(model: LlamaForCausalLM, named: dict[str, Tensor]) -> None:
    """Adds an adapter to the matrices themselves; afterwards the model is an ordinary one."""
    for name, base in _matrices(model):
        addition = SCALE * named[f"{name}.up"] @ named[f"{name}.down"]
        base.weight += addition.to(base.weight.dtype)


def _matrices(model: LlamaForCausalLM) -> Iterator[tuple[str, nn.Linear]]:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in MATRICES:
            yield name, module
