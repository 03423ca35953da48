"""Loads experts in their stored 4-bit format (MXFP4), and expands them one by one while they are rounded.

transformers expands the experts of all layers at once, which takes three times the memory of the files before any
weight can be rounded. With this module experts keep the stored format until they are rounded, and transformers' own
function expands one matrix at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

GROUP = 32
"""Number of neighbouring inputs that share a scale."""

_BYTES = GROUP // 2  # bytes of a group's numbers: each byte holds two numbers


class StoredExperts(nn.Module):
    """The experts of a layer in the stored format. Each of the two matrices has two buffers: ``_blocks`` (experts, out,
    in / 32, 16) with two 4-bit numbers in a byte, and ``_scales`` (experts, out, in / 32).

    Args:
        experts: transformers' experts, before their weights are loaded.
    """

    is_transposed, is_concatenated = False, False

    def __init__(self, experts: Any) -> None:
        super().__init__()
        self.alpha, self.limit = experts.alpha, experts.limit
        self.dtype: torch.dtype = experts.down_proj.dtype
        for name in ("gate_up_proj", "down_proj"):
            weights = getattr(experts, name)
            count, inputs, outputs = weights.shape
            scales = weights.new_empty(count, outputs, inputs // GROUP, dtype=torch.uint8)
            self.register_buffer(f"{name}_blocks", scales.new_empty(*scales.shape, _BYTES))
            self.register_buffer(f"{name}_scales", scales)
            self.register_parameter(f"{name}_bias", getattr(experts, f"{name}_bias"))

    def matrix(self, name: str, expert: int) -> torch.Tensor:
        """Expand the matrix ``name`` (out, in) of one expert."""
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors

        place = slice(expert, expert + 1)
        stored = (getattr(self, f"{name}_{part}")[place] for part in ("blocks", "scales"))
        expanded: torch.Tensor = convert_moe_packed_tensors(*stored, dtype=self.dtype)[0]
        return expanded.t()


def holding_stored(architecture: Any) -> Any:
    """Make a subclass of a transformers causal LM whose experts are loaded in the stored format (``StoredExperts``)."""

    class Holding(architecture):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            for layer in self.model.layers:
                layer.mlp.experts = StoredExperts(layer.mlp.experts)

    return Holding
