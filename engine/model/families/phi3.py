"""States the facts about Phi-3 and Phi-4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.model.families.family import Family
from engine.model.families.gguf_layout import LONG_FACTORS, NAMES, SHORT_FACTORS, GgufLayout, Header, head_dim, window


def _settings(header: Header) -> Mapping[str, Any]:
    width = head_dim(header)
    turned = header.number("rope.dimension_count", width)
    if width is None or not 0 < turned <= width or header.get("rope.scaling.type", "none") not in ("none", "longrope"):
        raise header.refusal("has a window that was stretched in a way that is not")
    rope = {"rope_type": "default", "rope_theta": float(header.number("rope.freq_base", 10_000.0))}
    rope["partial_rotary_factor"] = turned / width
    settings = {"rope_parameters": rope, "sliding_window": window(header)}
    if LONG_FACTORS not in header.names:
        return settings
    if SHORT_FACTORS not in header.names:
        raise header.refusal("has a window that was stretched in a way that is not")
    original = int(header.number("rope.scaling.original_context_length"))
    rope["original_max_position_embeddings"] = original
    return {**settings, "original_max_position_embeddings": original}


FAMILIES = {"phi3": Family("Phi-3 and Phi-4", plain=True)}

LAYOUTS = {
    "phi3": GgufLayout(
        "phi3",
        names={**NAMES, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        more=_settings,
        has_heads=False,
    ),
}
