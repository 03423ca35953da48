"""States the facts about Gemma 4, whose layers differ in their heads and in whether they have KV of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.model.families.family import FULL, MOST_LAYERS, SLIDING, Family, MixtureShape, count_experts, head_dim_of
from engine.model.families.gemma import LAYER_NAMES
from engine.model.families.gguf_layout import (
    LLAMA_3_FACTORS,
    TOP,
    GgufLayout,
    Header,
    rope_settings,
    unknown_factors,
    window,
)

_VALUES = ".attn_v.weight"  # end of the name of the weights that compute a layer's values
# Factors of at least this size mark dimensions that RoPE does not rotate. llama.cpp's converter writes 1e30.
_NOT_TURNED = 1e29

_DEFAULTS = {
    "hidden_size": 2_304,
    "intermediate_size": 9_216,
    "num_hidden_layers": 30,
    "vocab_size": 262_144,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "max_position_embeddings": 131_072,
    "sliding_window": 512,
    "num_kv_shared_layers": 0,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
}

_LAYER_NAMES = {
    **LAYER_NAMES,
    "layer_output_scale.weight": "layer_scalar",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_gate_up_exps": "experts.gate_up",
    "ffn_down_exps": "experts.down",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
}
_TOP_NAMES = {
    **TOP,
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}


@dataclass(frozen=True)
class Gemma4Family(Family):
    """Layers with the whole context have their own number of KV heads and head_dim; the last layers may read the KV of
    earlier ones; a layer may have experts in addition to an MLP that is active for every token.
    """

    def prepare(self, config: Any) -> None:
        """Set ``num_global_key_value_heads`` and ``global_head_dim``: the number of KV heads and the head_dim of
        full-attention layers. Does nothing unless transformers stores both numbers separately for each layer.

        If layers of the same kind differ, or if there is no full-attention layer, ``global_head_dim`` becomes 0. The
        check of ``sizes`` then refuses the model.
        """
        if not getattr(config, "is_heterogeneous", False):
            return
        config.allow_global_per_layer_attribute_access = True
        kinds, layers = config.layer_types, config.per_layer_config
        shapes: dict[str, set[tuple[Any, Any]]] = {FULL: set(), SLIDING: set()}
        for kind, layer in zip(kinds, layers, strict=False):
            shapes.setdefault(kind, set()).add((layer.num_key_value_heads, layer.head_dim))
        if any(len(sizes) > 1 for sizes in shapes.values()) or not shapes[FULL]:
            config.global_head_dim = 0
            return
        config.num_global_key_value_heads, config.global_head_dim = next(iter(shapes[FULL]))

    def complete(self, settings: dict[str, Any]) -> None:
        """Set both numbers if ``per_layer_config`` states them, as transformers saves them."""
        layers = settings.get("per_layer_config")
        own = (
            next((one for one in layers.values() if isinstance(one, Mapping)), {})
            if isinstance(layers, Mapping)
            else {}
        )
        names = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
        settings |= {name: own[key] for key, name in names.items() if key in own}

    def kv_heads(self, config: Any, kind: str) -> tuple[int, int]:
        heads, width = int(config.num_key_value_heads), head_dim_of(config)
        own = getattr(config, "global_head_dim", None)
        if kind != FULL or own is None:
            return heads, width
        alike = getattr(config, "attention_k_eq_v", False)
        return int((alike and getattr(config, "num_global_key_value_heads", None)) or heads), int(own)

    def mixture(self, config: Any) -> MixtureShape | None:
        if not getattr(config, "enable_moe_block", None) or not count_experts(config):
            return None
        chosen, inner = (getattr(config, key, None) or 0 for key in ("top_k_experts", "moe_intermediate_size"))
        return MixtureShape(count_experts(config), chosen, inner, config.num_hidden_layers, config.intermediate_size)

    def whole_numbers(self, config: Any) -> dict[str, int | None]:
        numbers: dict[str, int | None] = {"global_head_dim": None, "num_global_key_value_heads": 1}
        if getattr(config, "hidden_size_per_layer_input", None):
            numbers |= dict.fromkeys(("hidden_size_per_layer_input", "vocab_size_per_layer_input"))
        if getattr(config, "enable_moe_block", None) is True:
            numbers |= dict.fromkeys(("num_experts", "top_k_experts", "moe_intermediate_size"))
        return numbers

    def block_parameters(self, config: Any, experts: float) -> int:
        if getattr(config, "global_head_dim", None) is None:
            return super().block_parameters(config, experts)
        width, inner = config.hidden_size, config.intermediate_size
        sources = self.kv_sources(config) if self.shared_kv_layers(config) else {}
        matrices, mixture = 0.0, self.mixture(config)
        for layer, kind in enumerate(self.layer_kinds(config)[: config.num_hidden_layers]):
            heads, head_dim = self.kv_heads(config, kind)
            alike = kind == FULL and getattr(config, "attention_k_eq_v", False)
            own = 0 if layer in sources else heads * (1 if alike else 2)
            doubled = layer in sources and getattr(config, "use_double_wide_mlp", False)
            matrices += head_dim * (2 * config.num_attention_heads + own) + 3 * inner * (2 if doubled else 1)
            matrices += 2 * (getattr(config, "hidden_size_per_layer_input", None) or 0)
            if mixture is not None:
                matrices += 3 * experts * mixture.inner + mixture.count
        return int(width * matrices) // int(config.num_hidden_layers)


def _settings(header: Header) -> Mapping[str, Any]:
    layers, full_dim = int(header.number("block_count")), int(header.number("attention.key_length"))
    sliding = header.get("attention.sliding_window_pattern")
    shared = int(header.number("attention.shared_kv_layers", 0))
    if not isinstance(sliding, list) or len(sliding) != layers or all(sliding) or sliding[-1]:
        raise header.refusal("does not say which layers have windows, without which it is not")
    if LLAMA_3_FACTORS not in header.names:
        raise header.refusal(f"lacks {LLAMA_3_FACTORS}, without which it is not")
    width, narrow = int(header.number("attention.key_length_swa")), header.get("rope.dimension_count_swa")
    if narrow not in (None, width):
        raise header.refusal("turns a part of each head only, which is not")
    if (full := rope_settings(header))["rope_type"] != "default":
        raise header.refusal("has a window that was stretched in a way that is not")
    local = {"rope_type": "default", "rope_theta": float(header.number("rope.freq_base_swa"))}
    settings = {
        "head_dim": width,
        "global_head_dim": full_dim,
        "layer_types": ["sliding_attention" if each else "full_attention" for each in sliding],
        "sliding_window": window(header),
        "num_kv_shared_layers": shared,
        "hidden_size_per_layer_input": header.get("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": header.get("vocab_size", header.vocabulary),
        "rope_parameters": {"full_attention": {**full, "rope_type": "proportional"}, "sliding_attention": local},
        **_heads(header, sliding, shared),
        **_inner(header, layers - shared),
    }
    if header.get("final_logit_softcapping") is not None:
        settings["final_logit_softcapping"] = float(header.number("final_logit_softcapping"))
    if header.get("expert_count"):
        settings |= {
            "enable_moe_block": True,
            "num_experts": header.get("expert_count"),
            "top_k_experts": header.get("expert_used_count"),
            "moe_intermediate_size": header.get("expert_feed_forward_length"),
        }
    return settings


def _heads(header: Header, sliding: Sequence[bool], shared: int) -> dict[str, Any]:
    """Derive the settings for the numbers of KV heads, and ``attention_k_eq_v``: whether full-attention layers use
    their keys as values. Such layers have no weights for values.
    """
    heads = header.get("attention.head_count_kv")
    heads = heads if isinstance(heads, list) else [heads] * len(sliding)
    own = [layer for layer, windowed in enumerate(sliding) if not windowed and layer < len(sliding) - shared]
    alike = bool(own) and f"blk.{own[0]}{_VALUES}" not in header.names
    narrow = {one for one, windowed in zip(heads, sliding, strict=False) if windowed}
    wide = {one for one, windowed in zip(heads, sliding, strict=False) if not windowed}
    if len(heads) != len(sliding) or len(wide) > 1 or len(narrow) > 1 or not (alike or narrow <= wide):
        raise header.refusal("holds layers of several shapes, which are not")
    settings = {"num_key_value_heads": next(iter(narrow or wide)), "attention_k_eq_v": alike}
    return {**settings, "num_global_key_value_heads": next(iter(wide))} if alike else settings


def _inner(header: Header, kv_layers: int) -> dict[str, Any]:
    """Derive the settings for the inner size of MLPs, and for whether layers without KV have twice this size. The first
    ``kv_layers`` layers have KV.
    """
    inner = header.get("feed_forward_length")
    if not isinstance(inner, list):
        return {"intermediate_size": inner}
    doubled = len(inner) > kv_layers and inner[-1] != inner[0]
    later = 2 * inner[0] if doubled else inner[0]
    if inner != [inner[0]] * kv_layers + [later] * (len(inner) - kv_layers) or len(inner) != header.get("block_count"):
        raise header.refusal("holds layers of several shapes, which are not")
    return {"intermediate_size": inner[0], "use_double_wide_mlp": doubled}


def _stretch(rope: dict[str, Any], factors: Mapping[str, Sequence[float]]) -> None:
    rope["partial_rotary_factor"] = turned_part(factors[LLAMA_3_FACTORS])


def turned_part(factors: Sequence[float]) -> float:
    """Return the share of a head's dimensions that Gemma 4's RoPE rotates in full-attention layers. ``factors`` begins
    with a 1 for each rotated pair of dimensions. All other pairs follow, with a huge number each.

    Raises:
        ModelError: the factors are not those of Gemma 4.
    """
    turned = sum(factor == 1.0 for factor in factors)
    if not turned or min(factors[turned:], default=math.inf) < _NOT_TURNED or set(factors[:turned]) != {1.0}:
        raise unknown_factors()
    return turned / len(factors)


FAMILIES = {
    "gemma4_text": Gemma4Family(
        "Gemma 4",
        wrapper="gemma4",
        overflows=True,
        tied=True,
        others=SLIDING,
        experts=True,
        full_every=6,
        period="sliding_window_pattern",
        rotates_apart=True,
        rope_by_kind=True,
        reads=("num_kv_shared_layers", "hidden_size_per_layer_input", "final_logit_softcapping"),
        sizes={
            "num_global_key_value_heads": 1 << 12,
            "global_head_dim": 1 << 13,
            "top_k_experts": 1 << 14,
            "num_kv_shared_layers": MOST_LAYERS,
            "hidden_size_per_layer_input": 1 << 18,
            "vocab_size_per_layer_input": 1 << 24,
        },
        may_be_zero=("num_kv_shared_layers", "hidden_size_per_layer_input"),
        positive=("final_logit_softcapping",),
        defaults=_DEFAULTS,
    ),
}

LAYOUTS = {
    "gemma4": GgufLayout(
        "gemma4_text",
        names=_LAYER_NAMES,
        top=_TOP_NAMES,
        more=_settings,
        experts=None,
        ends=("<turn|>", "<|tool_response>"),
        stretch=_stretch,
    ),
}
