"""States the facts about gpt-oss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.model.families.family import SLIDING, Family
from engine.model.families.gguf_layout import NAMES_AFTER_ATTENTION, GgufLayout, Header, rope_settings, window

MXFP4 = "mxfp4"
"""The format of 4-bit weights that can be loaded, named as in ``quant_method``."""

# YaRN settings that GGUF files do not state.
_YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}

_LAYER_NAMES = {
    **NAMES_AFTER_ATTENTION,
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
}


def _settings(header: Header) -> Mapping[str, Any]:
    rope = rope_settings(header)
    if rope["rope_type"] == "yarn":
        rope |= _YARN
    return {
        "num_local_experts": header.get("expert_count"),
        "num_experts_per_tok": header.get("expert_used_count"),
        "intermediate_size": header.get("expert_feed_forward_length"),
        "sliding_window": window(header),
        "rope_parameters": rope,
    }


FAMILIES = {
    "gpt_oss": Family(
        "gpt-oss",
        others=SLIDING,
        full_every=2,
        period="sliding_window_pattern",
        experts=True,
        stored=MXFP4,
        overflows=True,
        positive=("swiglu_alpha", "swiglu_limit"),
        defaults={"num_experts_per_tok": 4, "sliding_window": 128, "head_dim": 64, "decoder_sparse_step": 1},
    ),
}

LAYOUTS = {"gpt-oss": GgufLayout("gpt_oss", names=_LAYER_NAMES, more=_settings, experts=True)}
