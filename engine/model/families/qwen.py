"""States the facts about Qwen 2 and Qwen 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.model.families.family import Family
from engine.model.families.gguf_layout import EXPERT_NAMES, GgufLayout, Header

_DEFAULTS_WITH_EXPERTS = {
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "use_sliding_window": False,
}

# Of the makers' cards, "Best Practices" (https://huggingface.co/Qwen/Qwen3-8B). The files have those of a thought.
CARD = {
    True: {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
    False: {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
}


def _settings_with_experts(header: Header) -> Mapping[str, Any]:
    return {
        "num_experts": header.get("expert_count"),
        "num_experts_per_tok": header.get("expert_used_count"),
        "moe_intermediate_size": header.get("expert_feed_forward_length"),
        "norm_topk_prob": True,
        # The inner size of dense MLPs is missing if all MLPs are experts.
        "intermediate_size": header.get("feed_forward_length", header.get("expert_feed_forward_length")),
    }


FAMILIES = {
    "qwen2": Family("Qwen 2", plain=True),
    "qwen3": Family("Qwen 3", plain=True, card=CARD),
    "qwen3_moe": Family(
        "Qwen 3 with experts", experts=True, softmax_of_all=True, defaults=_DEFAULTS_WITH_EXPERTS, card=CARD
    ),
}

LAYOUTS = {
    "qwen2": GgufLayout("qwen2", has_heads=False),
    "qwen3": GgufLayout("qwen3"),
    "qwen3moe": GgufLayout("qwen3_moe", names=EXPERT_NAMES, more=_settings_with_experts, experts=True),
}
