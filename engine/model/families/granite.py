"""States the facts about Granite, with and without Mamba layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.model.families.family import FULL, MAMBA, RECURRENT, Family
from engine.quantization import StateSize

_EXPANDS = 2  # width of all heads of a Mamba layer together, divided by the width of the hidden states
_STATE_SIZES = {
    "mamba_n_heads": 1 << 12,
    "mamba_n_groups": 1 << 12,
    "mamba_d_state": 1 << 13,
    "mamba_d_conv": 1 << 8,
    "mamba_d_head": 1 << 13,
}

_DEFAULTS = {
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_d_head": "auto",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 1_024,
}


@dataclass(frozen=True)
class MambaFamily(Family):
    """A family with Mamba-2 layers."""

    def complete(self, settings: dict[str, Any]) -> None:
        if settings.get("mamba_d_head") != "auto":
            return
        inner, heads = (settings.get(key) for key in ("hidden_size", "mamba_n_heads"))
        settings["mamba_d_head"] = _EXPANDS * inner // heads if type(inner) is type(heads) is int and heads else 0

    def state_size(self, config: Any) -> StateSize:
        heads, keys, width = config.mamba_n_heads, config.mamba_d_state, config.mamba_d_head
        # The channels of the convolution are the values of all heads, and the keys and queries (Mamba's B and C) of all
        # groups.
        return StateSize(heads, keys, width, heads * width + 2 * config.mamba_n_groups * keys, config.mamba_d_conv)

    def state_parameters(self, config: Any) -> int:
        size = self.state_size(config)
        values = 2 * size.heads * (size.value_dim + 1) - size.heads
        return int(config.hidden_size * (size.channels + values) + size.taps * size.channels)


FAMILIES = {
    "granite": Family("Granite"),
    "granitemoehybrid": MambaFamily(
        "Granite 4 with Mamba",
        others=MAMBA,
        experts=True,
        full_every=10,
        layer_words={RECURRENT: MAMBA, "attention": FULL},
        dense_inner="shared_intermediate_size",  # ``intermediate_size`` is the inner size of the experts in this family
        reads=("position_embedding_type",),
        sizes={**_STATE_SIZES, "shared_intermediate_size": 1 << 22},
        state_settings=tuple(_STATE_SIZES),
        defaults=_DEFAULTS,
    ),
}
