"""States the facts about Gemma, Gemma 2 and Gemma 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.model.families.family import SLIDING, Family
from engine.model.families.gguf_layout import NAMES, GgufLayout, Header, head_dim, rope_settings, window

_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")

# Number of layers of the family's largest model, by which a file of this model is recognised. Its query scaling differs
# from that of the smaller models.
_LARGEST_2 = 46
_LARGEST_3 = 62
_PERIOD_3 = 6  # one of this many layers keeps the whole context in Gemma 3
_LOCAL_THETA = 10_000.0  # RoPE's theta in layers with a sliding window

_DEFAULTS_1 = {
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "vocab_size": 256_000,
    "max_position_embeddings": 8_192,
}

_DEFAULTS_2 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 256_000,
    "max_position_embeddings": 8_192,
    "sliding_window": 4_096,
}

_DEFAULTS_3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "sliding_window": 4_096,
}

LAYER_NAMES = {
    **NAMES,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""transformers' names of a layer's weights, as in ``NAMES``."""


def _settings_2(header: Header) -> Mapping[str, Any]:
    return {
        "sliding_window": window(header),
        "query_pre_attn_scalar": _query_scale(header, _LARGEST_2),
        **{cap: float(header.number(cap)) for cap in _CAPS if header.get(cap) is not None},
    }


def _settings_3(header: Header) -> Mapping[str, Any]:
    local = {"rope_type": "default", "rope_theta": float(header.number("rope.freq_base_swa", _LOCAL_THETA))}
    if header.get("attention.sliding_window_pattern", _PERIOD_3) != _PERIOD_3:
        raise header.refusal("has windows in other layers than Gemma 3, which is not")
    return {
        "sliding_window": window(header),
        "query_pre_attn_scalar": _query_scale(header, _LARGEST_3),
        "rope_parameters": {"full_attention": rope_settings(header), "sliding_attention": local},
    }


def _query_scale(header: Header, largest: int) -> int | None:
    """Derive ``query_pre_attn_scalar``, the number whose square root divides the attention scores.

    Files do not state this number. It is the width of the hidden states divided by the number of query heads in the
    family's largest model, and head_dim in all smaller models. The largest model is recognised by its number of layers,
    ``largest``, as in llama.cpp.
    """
    if header.get("block_count") != largest:
        return head_dim(header)
    return int(header.number("embedding_length")) // max(1, int(header.number("attention.head_count")))


FAMILIES = {
    "gemma": Family("Gemma", overflows=True, tied=True, norm_offset=1.0, defaults=_DEFAULTS_1),
    "gemma2": Family(
        "Gemma 2",
        overflows=True,
        tied=True,
        others=SLIDING,
        full_every=2,
        period="sliding_window_pattern",
        norm_offset=1.0,
        reads=_CAPS,
        positive=_CAPS,
        defaults=_DEFAULTS_2,
    ),
    "gemma3_text": Family(
        "Gemma 3",
        wrapper="gemma3",
        overflows=True,
        tied=True,
        others=SLIDING,
        full_every=_PERIOD_3,
        period="sliding_window_pattern",
        norm_offset=1.0,
        rope_by_kind=True,
        reads=("final_logit_softcapping",),
        positive=_CAPS,
        defaults=_DEFAULTS_3,
    ),
}

LAYOUTS = {
    "gemma2": GgufLayout("gemma2", names=LAYER_NAMES, more=_settings_2, centred=True),
    "gemma3": GgufLayout("gemma3_text", names=LAYER_NAMES, more=_settings_3, centred=True),
}
