"""States the facts about Mistral and Ministral 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.model.families.family import Family
from engine.model.families.gguf_layout import GgufLayout, Header, rope_settings

_BETAS = (32.0, 1.0)  # YaRN's default beta_fast and beta_slow, for files that do not state them
_QUERY_SCALE = "llama_4_scaling_beta"


def _settings(header: Header) -> Mapping[str, Any]:
    rope = rope_settings(header)
    if rope["rope_type"] != "yarn" or header.get("attention.temperature_scale") is None:
        raise header.refusal("stretches its window in another way than Ministral 3, which is not")
    rope |= {
        "beta_fast": float(header.number("rope.scaling.yarn_beta_fast", _BETAS[0])),
        "beta_slow": float(header.number("rope.scaling.yarn_beta_slow", _BETAS[1])),
        "mscale": 1.0,  # files do not state mscale, and llama.cpp assumes 1
        "mscale_all_dim": float(header.number("rope.scaling.yarn_log_multiplier")),
        _QUERY_SCALE: float(header.number("attention.temperature_scale")),
    }
    return {"rope_parameters": rope}


FAMILIES = {
    "mistral": Family("Mistral", plain=True),
    "ministral3": Family("Ministral 3", wrapper="mistral3", query_scale=_QUERY_SCALE),
}

LAYOUTS = {"mistral3": GgufLayout("ministral3", more=_settings, halves=True)}
