"""States the facts about Qwen 3.5 and Qwen3-Next, most of whose layers have a state under the gated delta rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.model.families.family import RECURRENT, Family
from engine.model.families.gguf_layout import NAMES_AFTER_ATTENTION, STATE_NORM, GgufLayout, Header
from engine.model.families.qwen import CARD
from engine.quantization import StateSize

_DEFAULTS = {
    "hidden_size": 4_096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 32,
    "vocab_size": 248_320,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 32_768,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}

_DEFAULTS_OF_EXPERTS = {
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "decoder_sparse_step": 1,
    "num_key_value_heads": 2,
    "hidden_size": 2_048,
    "num_hidden_layers": 40,
}

_STATE_SIZES = {
    "linear_num_key_heads": 1 << 12,
    "linear_num_value_heads": 1 << 12,
    "linear_key_head_dim": 1 << 13,
    "linear_value_head_dim": 1 << 13,
    "linear_conv_kernel_dim": 1 << 8,
}

_LAYER_NAMES = {
    **NAMES_AFTER_ATTENTION,
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_out": "linear_attn.out_proj",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": STATE_NORM,
    ".ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    **{f"ffn_{each}_shexp": f"mlp.shared_expert.{each}_proj" for each in ("gate", "up", "down")},
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}


@dataclass(frozen=True)
class DeltaFamily(Family):
    """A family with layers under the gated delta rule."""

    def state_size(self, config: Any) -> StateSize:
        heads, width = config.linear_num_value_heads, config.linear_value_head_dim
        keys = config.linear_num_key_heads * config.linear_key_head_dim
        taps = config.linear_conv_kernel_dim
        return StateSize(heads, config.linear_key_head_dim, width, 2 * keys + heads * width, taps)

    def state_parameters(self, config: Any) -> int:
        size = self.state_size(config)
        values = 2 * size.heads * (size.value_dim + 1)
        return int(config.hidden_size * (size.channels + values) + size.taps * size.channels)


def _settings(header: Header) -> Mapping[str, Any]:
    heads, head_dim = int(header.number("ssm.time_step_rank")), int(header.number("attention.key_length"))
    turned = header.number("rope.dimension_count", head_dim)
    if not 0 < turned <= head_dim or header.get("rope.scaling.type", "none") != "none" or heads < 1:
        raise header.refusal("has a window that was stretched in a way that is not")
    sections = header.get("rope.dimension_sections", [])
    settings = {
        # The last layers are for multi-token prediction, and are not part of the model.
        "num_hidden_layers": int(header.number("block_count") - header.number("nextn_predict_layers", 0)),
        "full_attention_interval": header.get("full_attention_interval"),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": int(header.number("ssm.inner_size")) // heads,
        "linear_num_key_heads": header.get("ssm.group_count"),
        "linear_key_head_dim": header.get("ssm.state_size"),
        "linear_conv_kernel_dim": header.get("ssm.conv_kernel"),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": float(header.number("rope.freq_base")),
            "partial_rotary_factor": turned / head_dim,
            "mrope_interleaved": True,
            "mrope_section": [section for section in sections if section],
        },
    }
    if header.get("expert_count"):
        settings |= {
            "num_experts": header.get("expert_count"),
            "num_experts_per_tok": header.get("expert_used_count"),
            "moe_intermediate_size": header.get("expert_feed_forward_length"),
            "shared_expert_intermediate_size": header.get("expert_shared_feed_forward_length"),
        }
    return settings


# Of the makers' cards, "general tasks" (https://huggingface.co/Qwen/Qwen3.5-35B-A3B).
_CARD = {
    True: {"temperature": 1.0, "top_p": 0.95, "top_k": 20, "presence_penalty": 1.5},
    False: {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "presence_penalty": 1.5},
}
_DENSE = DeltaFamily(
    "Qwen 3.5",
    wrapper="qwen3_5",
    gated=True,
    others=RECURRENT,
    full_every=4,
    period="full_attention_interval",
    norm_offset=1.0,
    sizes=_STATE_SIZES,
    state_settings=tuple(_STATE_SIZES),
    defaults=_DEFAULTS,
    card=_CARD,
)
_WITH_EXPERTS = replace(
    _DENSE,
    title="Qwen 3.5 with experts",
    wrapper="qwen3_5_moe",
    experts=True,
    softmax_of_all=True,
    sizes={**_STATE_SIZES, "shared_expert_intermediate_size": 1 << 22},
    defaults={**_DEFAULTS, **_DEFAULTS_OF_EXPERTS},
)

FAMILIES = {
    "qwen3_5_text": _DENSE,
    "qwen3_5_moe_text": _WITH_EXPERTS,
    "qwen3_next": replace(
        _WITH_EXPERTS,
        title="Qwen3-Next",
        wrapper="",
        card=CARD,
        defaults={**_WITH_EXPERTS.defaults, "num_experts_per_tok": 10, "num_hidden_layers": 48},
    ),
}

LAYOUTS = {
    "qwen35": GgufLayout("qwen3_5_text", names=_LAYER_NAMES, more=_settings, centred=True, tiled=True),
    "qwen35moe": GgufLayout(
        "qwen3_5_moe_text", names=_LAYER_NAMES, more=_settings, centred=True, tiled=True, experts=True
    ),
}
