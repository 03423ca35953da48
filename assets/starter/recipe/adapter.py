"""The adapter: low-rank additions to the matrices of a Llama (LoRA, arXiv 2106.09685). Attaches, loads, saves and
merges them.

Every linear layer of every block computes ``W x + scale * B (A x)``. Knows nothing about texts or training.
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
    """Attach an addition to every matrix of every block, and freeze all other weights. A new addition has no effect."""
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    added = {}
    for name, base in list(_matrices(model)):
        parent = model.get_submodule(name.rpartition(".")[0])
        added[name] = LowRank(base, rank, generator)
        setattr(parent, name.rpartition(".")[2], added[name])
    return added


def tensors(added: dict[str, LowRank]) -> dict[str, Tensor]:
    """Return the adapter's tensors by name. They share memory with the trained parameters."""
    named = {}
    for name, matrix in added.items():
        named[f"{name}.down"], named[f"{name}.up"] = matrix.down.data, matrix.up.data
    return named


def load(added: dict[str, LowRank], named: dict[str, Tensor]) -> None:
    """Copy the tensors of an adapter, keyed by name, into the additions that ``attach`` has made in a model."""
    for name, tensor in tensors(added).items():
        tensor.copy_(named[name])


def save(named: dict[str, Tensor], path: Path) -> None:
    """Write an adapter in half precision."""
    halves = {name: tensor.detach().to(torch.float16).contiguous() for name, tensor in named.items()}
    save_file(halves, path, metadata={"format": "pt", "scale": str(SCALE)})


def read(path: Path) -> dict[str, Tensor]:
    """Read an adapter from its file, in float32."""
    return {name: tensor.float() for name, tensor in load_file(path).items()}


@torch.no_grad()
def merge(model: LlamaForCausalLM, named: dict[str, Tensor]) -> None:
    """Add an adapter to the matrices themselves, so that the model is an ordinary one afterwards."""
    for name, base in _matrices(model):
        addition = SCALE * named[f"{name}.up"] @ named[f"{name}.down"]
        base.weight += addition.to(base.weight.dtype)


def _matrices(model: LlamaForCausalLM) -> Iterator[tuple[str, nn.Linear]]:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in MATRICES:
            yield name, module
