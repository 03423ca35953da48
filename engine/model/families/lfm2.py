"""States the facts about LFM2, most of whose layers are short convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.model.families.family import CONVOLUTION, FULL, Family
from engine.model.families.gguf_layout import TOP, GgufLayout, Header
from engine.quantization import StateSize

_DEFAULTS: dict[str, Any] = {"conv_L_cache": 3, "max_position_embeddings": 128_000, "num_key_value_heads": 8}
_DEFAULTS_WITH_EXPERTS = {"num_experts_per_tok": 4, "num_dense_layers": 2, "moe_intermediate_size": 1_792}

_LAYER_NAMES = {
    "attn_norm": "operator_norm",
    **{f"attn_{each}": f"self_attn.{each}_proj" for each in "qkv"},
    **{f"attn_{each}_norm": f"self_attn.{each}_layernorm" for each in "qk"},
    "attn_output": "self_attn.out_proj",
    **{f"shortconv.{each}": f"conv.{each}" for each in ("in_proj", "conv", "out_proj")},
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
}
_TOP_NAMES = {**TOP, "token_embd_norm": "model.embedding_norm"}


@dataclass(frozen=True)
class ConvolutionFamily(Family):
    """A family with layers that are short convolutions, and with MLPs whose inner size follows from the settings."""

    def unnamed_kinds(self, config: Any, layers: int) -> tuple[str, ...]:
        full = getattr(config, "full_attn_idxs", None)
        full = full if isinstance(full, list | tuple) else range(layers)
        return tuple(FULL if layer in full else CONVOLUTION for layer in range(layers))

    def state_size(self, config: Any) -> StateSize:
        return StateSize(0, 0, 0, config.hidden_size, config.conv_L_cache)

    def state_parameters(self, config: Any) -> int:
        width = int(config.hidden_size)
        return width * 4 * width + int(config.conv_L_cache) * width

    def inner(self, config: Any) -> int:
        """Two thirds of the configured size, times a factor, rounded up to a multiple of ``block_multiple_of``."""
        if not self.setting(config, "block_auto_adjust_ff_dim"):
            return super().inner(config)
        factor = getattr(config, "block_ffn_dim_multiplier", None) or 1.0
        inner = int(factor * int(2 * super().inner(config) / 3))
        step = getattr(config, "block_multiple_of", 256)
        return -(-inner // step) * step


def _settings(header: Header) -> Mapping[str, Any]:
    heads = header.get("attention.head_count_kv")
    if not isinstance(heads, list) or len(heads) != header.get("block_count") or not any(heads):
        raise header.refusal("does not say which layers have attention, without which it is not")
    return {
        "num_key_value_heads": max(heads),
        "conv_L_cache": header.get("shortconv.l_cache"),
        "layer_types": ["full_attention" if each else "conv" for each in heads],
        "norm_eps": float(header.number("attention.layer_norm_rms_epsilon")),
        "block_auto_adjust_ff_dim": False,  # the inner size in the file is final
    }


FAMILIES = {
    "lfm2": ConvolutionFamily(
        "LFM2",
        tied=True,
        others=CONVOLUTION,
        last_norm="embedding_norm",
        dense_inner="block_ff_dim",
        reads=("block_auto_adjust_ff_dim",),
        sizes={"conv_L_cache": 1 << 8, "block_multiple_of": 1 << 22},
        positive=("block_ffn_dim_multiplier",),
        state_settings=("conv_L_cache",),
        defaults={**_DEFAULTS, "block_auto_adjust_ff_dim": True},
    ),
    "lfm2_moe": ConvolutionFamily(
        "LFM2 with experts",
        tied=True,
        others=CONVOLUTION,
        experts=True,
        last_norm="embedding_norm",
        sizes={"conv_L_cache": 1 << 8},
        state_settings=("conv_L_cache",),
        defaults={**_DEFAULTS, **_DEFAULTS_WITH_EXPERTS},
    ),
}

LAYOUTS = {"lfm2": GgufLayout("lfm2", names=_LAYER_NAMES, top=_TOP_NAMES, more=_settings, has_heads=False)}
