"""Derives from a model's configuration alone whether the model is supported, the kinds of its layers, and its sizes.

This module refuses architectures that ``engine.model.backends`` would compute wrongly. The differences between families
are stated only in the table of ``engine.model.families``. This module reads no weights, and imports torch and
transformers only in the functions that need them, so that the app can check a model before its download. Sizes are in
tokens, bytes and floating point operations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import model_files
from engine.errors import ModelError, ModelNotFound, UnsupportedModel
from engine.model.families import CONVOLUTION, FAMILIES, FULL, MAMBA, ORDINARY, RECURRENT, SLIDING
from engine.quantization import FLOAT_BYTES, StateSize

if TYPE_CHECKING:
    import torch


MLP_NUMBERS = (
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "top_k_experts",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "decoder_sparse_step",
    "block_multiple_of",
)
"""Settings of MLPs and experts. No family has all these settings."""

STATE_NUMBERS = {
    RECURRENT: (
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    ),
    CONVOLUTION: ("conv_L_cache",),
    MAMBA: ("mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_conv", "mamba_d_head"),
}
"""Settings of recurrent states, keyed by the kind of the layer."""

WRAPPERS = ("mistral3", "gemma3", "gemma4", "qwen3_5", "qwen3_5_moe", "muse_glimmer")
"""``model_type`` of models that also take images. Only their text part is loaded."""

TEXT_WEIGHTS = {
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
    r"^model\.language_model\.": "model.",
}
"""Replacements that turn the weight names in the files of a model that takes images (``WRAPPERS``) into the names in
its text part. They are keyed by regular expressions.
"""

DRAFT_HEAD = "draft_head_tokens"
"""The setting that only distilled drafts have: the number of tokens that the draft can produce. A distilled draft uses
its target's embedding, and the rows of the target's head for these tokens.
"""

SHARED_VOCABULARY = 0.95
"""Minimum number of tokens that the vocabularies of draft and target have in common, divided by the size of the larger
vocabulary. A draft with fewer common tokens is refused.
"""

# Models with at most this number of parameters are held in float32 on a processor without instructions that multiply
# pairs of bfloat16 numbers. Such a processor holds larger models in bfloat16.
_CPU_FLOAT32_PARAMETERS = 1_500_000_000

# Maximum values of settings, far above the values of every existing model. A model with a larger value is refused.
_MAXIMA = {
    **dict.fromkeys(("num_hidden_layers", "num_kv_shared_layers"), 1_000),
    **dict.fromkeys(("linear_conv_kernel_dim", "conv_L_cache", "mamba_d_conv"), 1 << 8),
    "decoder_sparse_step": 1 << 10,
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "num_global_key_value_heads"), 1 << 12),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "mamba_n_heads", "mamba_n_groups"), 1 << 12),
    **dict.fromkeys(("head_dim", "global_head_dim", "linear_key_head_dim", "linear_value_head_dim"), 1 << 13),
    **dict.fromkeys(("mamba_d_state", "mamba_d_head"), 1 << 13),
    **dict.fromkeys(("num_experts", "num_local_experts", "num_experts_per_tok", "top_k_experts"), 1 << 14),
    **dict.fromkeys(("hidden_size", "hidden_size_per_layer_input"), 1 << 18),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size"), 1 << 22),
    **dict.fromkeys(("shared_intermediate_size", "block_multiple_of"), 1 << 22),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", DRAFT_HEAD), 1 << 24),
    **dict.fromkeys(("max_position_embeddings", "sliding_window"), 1 << 30),
}
_POSITIVE_ROPE = ("rope_theta", "factor", "original_max_position_embeddings")
_POSITIVE = (
    "rms_norm_eps",
    "layer_norm_eps",
    "norm_eps",
    "logits_scaling",
    "logit_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
    "swiglu_alpha",
    "swiglu_limit",
    "block_ffn_dim_multiplier",
    "qk_scale_factor",
    "output_multiplier",
    "post_norm_eps",
)
# Settings with a list of one value for each layer. A layer whose value is 0 has no RoPE.
_ROPE_BY_LAYER = ("no_rope_layers", "layer_rope_theta")
# Name of the setting for the rate at which the scale of queries grows with their position.
_QUERY_SCALE = "llama_4_scaling_beta"
_SUPPORTED = f"Supported: {', '.join(family.title for family in FAMILIES.values())}."
_HASH = re.compile("[0-9a-f]{16,}")  # matches a folder name that is a hash
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_NONE_ALLOWED = (
    "num_local_experts",
    "num_experts_per_tok",  # Granite 4's models without experts have 0 here
    "num_kv_shared_layers",
    "hidden_size_per_layer_input",
)
_MAMBA_EXPANDS = 2  # width of all heads of a Mamba layer together, divided by the width of the hidden states
_SHARED = ("shared_expert_intermediate_size", "shared_intermediate_size")
_PERIOD = {SLIDING: "sliding_window_pattern", RECURRENT: "full_attention_interval"}
_SLIDING = "a sliding window"
# A model that uses one of these settings is refused, unless ``Family.reads`` of its family has the setting. The values
# complete the error message.
_UNLIKE = {
    "attn_logit_softcapping": "caps its attention scores",
    "use_bidirectional_attention": "lets tokens see those after them",
}
# A model with this value of ``use_bidirectional_attention`` is not refused, because only image tokens see later tokens.
_EYES_ALONE = "vision"
_RECURRENT = (RECURRENT, CONVOLUTION, MAMBA, "mamba2", "recurrent", "hybrid")
_REASON = 200  # maximum number of characters of a library's error message that are quoted


def load_config(name: str) -> Any:
    """Load a model's configuration. If the model also takes images, return only the configuration of its text part.

    Raises:
        ModelNotFound: there is no such folder or hub model.
        UnsupportedModel: transformers cannot load the architecture without remote code.
        ModelError: a settings file is damaged or far too large, holds impossible values, or describes an unknown text
            part.
    """
    from transformers import AutoConfig, PreTrainedConfig

    if looks_like_path(name) and Path(name).is_file():
        if Path(name).suffix.lower() == ".gguf":
            raise ModelNotFound(
                f"{name} is a GGUF file, and the engine opens model folders.",
                "Open the file with the app (python launch.py --model FILE.gguf).",
            )
        raise ModelNotFound(
            f"{name} is neither a model folder nor a GGUF file (.gguf).",
            "Check the path, or leave --model out for the demo.",
        )
    if looks_like_path(name) and not Path(name).is_dir():
        raise ModelNotFound(f"There is no model folder {name}.", "Check the path, or leave --model out for the demo.")
    if (folder := model_files.folder_of(name)) is not None:
        model_files.check_settings(folder)
    try:
        whole = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except ValueError as error:
        raise UnsupportedModel(
            f"{display_name(name)} is not an architecture that can be loaded without running its own code.",
            f"Trifold runs no code from model folders. {_SUPPORTED}",
        ) from error
    except OSError as error:
        raise ModelNotFound(
            f"The model {name} has no readable config.json and could not be found on the hub.",
            "Check the name, or connect to the internet once so that it can be downloaded.",
        ) from error
    except Exception as error:
        raise _meaningless(name, " ".join(str(error).split())[:_REASON] or type(error).__name__) from error
    if not isinstance(getattr(whole, "text_config", None) or whole, PreTrainedConfig):
        raise _meaningless(name, "its text_config is none of a model that is known")
    config = text_config(whole)
    if FAMILIES.get(config.model_type, ORDINARY).without_head:
        from engine.model import muse

        muse.register()
    return config


def text_config(config: Any) -> Any:
    """Return the configuration of a model's text part. Settings that only the whole model's configuration has are
    copied to it.
    """
    text = getattr(config, "text_config", None)
    if text is None:
        return _with_both_heads(config)
    # ``tie_word_embeddings`` is set if the text part's or the whole model's configuration sets it. If only one of them
    # does, the files hold both embedding and head, and transformers keeps these separate in spite of the setting.
    text.tie_word_embeddings = any(getattr(each, "tie_word_embeddings", False) for each in (text, config))
    text.wrapper = config.model_type
    for key in ("eos_token_id", "dtype", "quantization_config"):
        if getattr(text, key, None) is None and getattr(config, key, None) is not None:
            setattr(text, key, getattr(config, key))
    return _with_both_heads(text)


def setting(config: Any, key: str, default: Any = None) -> Any:
    """The value of a setting; ``default`` if the setting is missing, or if the model's family ignores it
    (``Family.reads``).
    """
    return getattr(config, key, default) if key in FAMILIES.get(config.model_type, ORDINARY).reads else default


def _with_both_heads(config: Any) -> Any:
    """Set ``num_global_key_value_heads`` and ``global_head_dim`` in a configuration: the number of KV heads and the
    head_dim of full-attention layers. Does nothing unless transformers stores both numbers separately for each layer.

    If layers of the same kind differ, or if there is no full-attention layer, ``global_head_dim`` becomes 0.
    ``check_numbers`` then refuses the model.
    """
    own = FAMILIES.get(config.model_type, ORDINARY).reads
    if not getattr(config, "is_heterogeneous", False) or "global_head_dim" not in own:
        return config
    config.allow_global_per_layer_attribute_access = True
    kinds, layers = config.layer_types, config.per_layer_config
    found: dict[str, set[tuple[Any, Any]]] = {FULL: set(), SLIDING: set()}
    for kind, layer in zip(kinds, layers, strict=False):
        found.setdefault(kind, set()).add((layer.num_key_value_heads, layer.head_dim))
    if any(len(sizes) > 1 for sizes in found.values()) or not found[FULL]:
        config.global_head_dim = 0
        return config
    config.num_global_key_value_heads, config.global_head_dim = next(iter(found[FULL]))
    return config


def text_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a model's text part from a parsed ``config.json``, whose values may be of any type.
    Missing settings get the family's defaults.
    """
    text, outer = settings.get("text_config"), {}
    if isinstance(text, Mapping):
        outer = {key: settings[key] for key in ("tie_word_embeddings", "quantization_config") if key in settings}
        outer["wrapper"] = settings.get("model_type")
    found = {**outer, **(text if isinstance(text, Mapping) else settings)}
    kind = found.get("model_type")
    family = FAMILIES.get(kind, ORDINARY) if isinstance(kind, str) else ORDINARY
    found = {**family.defaults, **found}
    if "global_head_dim" in family.reads:
        found |= _saved_heads(found)
    if found.get("mamba_d_head") == "auto":
        inner, heads = (found.get(key) for key in ("hidden_size", "mamba_n_heads"))
        found["mamba_d_head"] = _MAMBA_EXPANDS * inner // heads if type(inner) is type(heads) is int and heads else 0
    return found


def _saved_heads(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of KV heads and the head_dim of full-attention layers, if ``settings`` states them in
    ``per_layer_config``, as transformers saves them.
    """
    layers = settings.get("per_layer_config")
    own = next((one for one in layers.values() if isinstance(one, Mapping)), {}) if isinstance(layers, Mapping) else {}
    names = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
    return {name: own[key] for key, name in names.items() if key in own}


def check_numbers(config: Any, name: str) -> None:
    """Refuse settings that no model can have, before memory is allocated for them.

    Raises:
        ModelError: a setting is impossible; the message has its name and value.
    """
    # Unsupported families are not checked, because they may name these settings differently or have a separate number
    # for each layer.
    if config.model_type not in FAMILIES:
        return
    for key, largest in _MAXIMA.items():
        value = getattr(config, key, None)
        least = 0 if key in _NONE_ALLOWED else 1
        if value is not None and (type(value) is not int or not least <= value <= largest):
            raise _meaningless(name, f"{key} is {value}")
    rope = getattr(config, "rope_parameters", None) or {}
    numbers = [(key, getattr(config, key, None)) for key in _POSITIVE]
    _check_kinds_of_rope(config, rope, name)
    for each in [own for own in rope.values() if isinstance(own, Mapping)] or [rope]:
        numbers += [(key, each.get(key)) for key in _POSITIVE_ROPE]
    heads, kv_heads = (getattr(config, key, None) or 1 for key in ("num_attention_heads", "num_key_value_heads"))
    if heads % kv_heads:
        raise _meaningless(name, f"num_attention_heads is {heads} for {kv_heads} num_key_value_heads")
    if (experts := experts_of(config)) is not None and not 1 <= experts.chosen <= experts.count:
        raise _meaningless(name, f"num_experts_per_tok is {experts.chosen} of {experts.count}")
    if (shared := _shared_kv_layers(config)) and not _sources(config):
        raise _meaningless(name, f"num_kv_shared_layers is {shared}")
    for key in _ROPE_BY_LAYER:
        named = setting(config, key, [0] * config.num_hidden_layers)
        if not isinstance(named, list | tuple) or len(named) < config.num_hidden_layers:
            raise _meaningless(name, f"{key} does not speak of every layer")
    if _QUERY_SCALE in FAMILIES[config.model_type].reads:
        numbers.append((_QUERY_SCALE, rope.get(_QUERY_SCALE, "missing")))
    for key, value in numbers:
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise _meaningless(name, f"{key} is {value}")


def _check_kinds_of_rope(config: Any, rope: Mapping[str, Any], name: str) -> None:
    """Check that the RoPE settings have the family's form.

    Raises:
        ModelError: a kind of layers has RoPE settings of its own, although all layers of the family share one RoPE; or
            a kind of layers lacks settings, although each kind has its own RoPE.
    """
    own = [key for key, value in rope.items() if isinstance(value, Mapping)]
    if not FAMILIES[config.model_type].rope_by_kind:
        if own:
            raise _meaningless(name, f"rope_parameters speaks of {own[0]}, and all layers share one RoPE")
        return
    for kind in sorted(set(layer_kinds(config))):
        if kind not in own or "rope_theta" not in rope[kind]:
            raise _meaningless(name, f"rope_parameters has no rope_theta for {kind}")


def _meaningless(name: str, problem: str) -> ModelError:
    return ModelError(f"config.json of {display_name(name)} cannot be used: {problem}.", "Download the model again.")


def check_architecture(config: Any, name: str, window: int) -> None:
    """Refuse a model that ``engine.model.backends`` would compute wrongly.

    Args:
        config: a transformers configuration, or any object with the attributes of a ``config.json``.
        window: maximum tokens of a context; a sliding window of at least this size is no obstacle.

    Raises:
        UnsupportedModel: the message says what is not supported.
    """
    kind, title = config.model_type, display_name(name)
    quantized = getattr(config, "quantization_config", None)
    method = quantized.get("quant_method") if isinstance(quantized, Mapping) else None
    if quantized is not None and not is_expanded(config):
        raise UnsupportedModel(
            f"The weights of {title} are stored quantized{f' ({method})' if isinstance(method, str) else ''}, "
            "which is not supported yet.",
            "Choose the model in its usual precision, often named BF16; --weights 8bit or 4bit rounds it here.",
        )
    sliding = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if type(sliding) is not int or sliding >= window:
        sliding = None
    others = _other_layers(config)
    if others or (sliding is not None and kind in FAMILIES and FAMILIES[kind].others != SLIDING):
        what = (others or _SLIDING).replace(_SLIDING, f"{_SLIDING} of {sliding:,} tokens" if sliding else _SLIDING)
        shorter = f", or --context {sliding} or less." if sliding and not others else "."
        raise UnsupportedModel(
            f"{title} has layers with {what}, which is not supported yet: they do not keep the whole book in view.",
            f"Choose a model with full attention in every layer{shorter}",
        )
    if kind not in FAMILIES and (experts := _count_experts(config)) > 1:
        raise UnsupportedModel(f"{title} is a mixture of {experts} experts, which is not supported yet.", _SUPPORTED)
    wrapper = getattr(config, "wrapper", None)
    if kind not in FAMILIES:
        raise UnsupportedModel(f"{title} is a {wrapper or kind} model, which is not supported yet.", _SUPPORTED)
    if wrapper is not None and wrapper not in WRAPPERS:
        raise UnsupportedModel(
            f"{title} is a {wrapper} model around {FAMILIES[kind].title}: where its text part lies is not known yet.",
            "Choose a model of the same family that is for text alone.",
        )
    for key, what in _UNLIKE.items():
        if key not in FAMILIES[kind].reads and getattr(config, key, None) not in (None, False, 0, _EYES_ALONE):
            raise UnsupportedModel(f"{title} {what}, which is not supported yet.", _SUPPORTED)


def is_expanded(config: Any) -> bool:
    """Whether a model's weights are stored in a 4-bit format that transformers dequantizes when it loads them."""
    quantized = getattr(config, "quantization_config", None)
    method = quantized.get("quant_method") if isinstance(quantized, Mapping) else None
    return bool(method) and method == FAMILIES.get(config.model_type, ORDINARY).stored


def _other_layers(config: Any) -> str:
    """Describe the unsupported kinds of a model's layers in words; "" if all layers are supported."""
    others = set(layer_kinds(config)) - {FULL}
    if (sliding_layers(config) or recurrent_layers(config)) and FULL in layer_kinds(config):
        others -= {FAMILIES[config.model_type].others}
    words = {SLIDING: _SLIDING, **dict.fromkeys(_RECURRENT, "a recurrent state")}
    return " and ".join(sorted({words.get(t, t) for t in others}))


def layer_kinds(config: Any) -> tuple[str, ...]:
    """The kind of every layer, named as in ``layer_types``. Empty if all layers have full attention and the
    configuration names no kinds.
    """
    named = getattr(config, "layer_types", None)
    family = FAMILIES.get(config.model_type, ORDINARY)
    if isinstance(named, list | tuple):
        words = {RECURRENT: MAMBA, "attention": FULL} if family.others == MAMBA else {}
        return tuple(words.get(kind, kind) for kind in named if isinstance(kind, str))
    layers = getattr(config, "num_hidden_layers", None)
    if not family.others or type(layers) is not int:
        return ()
    if family.others == SLIDING and type(getattr(config, "sliding_window", None)) is not int:
        return ()
    if family.others == CONVOLUTION:
        full = getattr(config, "full_attn_idxs", None)
        full = full if isinstance(full, list | tuple) else range(layers)
        return tuple(FULL if at in full else CONVOLUTION for at in range(min(layers, _MAXIMA["num_hidden_layers"])))
    own = getattr(config, _PERIOD.get(family.others, ""), None)
    every = own if type(own) is int and own > 0 else family.full_every
    return tuple(
        family.others if layer % every else FULL for layer in range(1, min(layers, _MAXIMA["num_hidden_layers"]) + 1)
    )


def sliding_layers(config: Any) -> tuple[int, ...]:
    """The indices of the layers in which a token sees only the newest ``sliding_window`` tokens. They include layers
    that read another layer's KV. Empty if the family's sliding windows are not supported.
    """
    return () if getattr(config, "sliding_window", None) is None else _layers_of(config, SLIDING)


def kv_sources(config: Any) -> dict[int, int]:
    """Map each layer without its own keys and values to the layer whose KV it reads: the last layer of the same kind
    that has KV.
    """
    return _sources(config) if _shared_kv_layers(config) else {}


def _shared_kv_layers(config: Any) -> int:
    shared = setting(config, "num_kv_shared_layers")
    return shared if type(shared) is int else 0


def _sources(config: Any) -> dict[int, int]:
    """Compute ``kv_sources`` for a model in which layers share KV. Empty if a layer without KV has no earlier layer of
    its kind whose KV it could read; ``check_numbers`` refuses such a model.
    """
    kinds = layer_kinds(config)
    first = len(kinds) - _shared_kv_layers(config)
    last = {kind: layer for layer, kind in enumerate(kinds[: max(0, first)])}
    found = {layer: last.get(kinds[layer], -1) for layer in range(max(0, first), len(kinds))}
    return {} if -1 in found.values() else found


def kv_heads_of(config: Any, kind: str) -> tuple[int, int]:
    """The number of KV heads, and the head_dim, of a layer of the kind ``kind``."""
    heads, width, own = int(config.num_key_value_heads), head_dim_of(config), setting(config, "global_head_dim")
    if kind != FULL or own is None:
        return heads, width
    alike = setting(config, "attention_k_eq_v", False)
    return int((alike and setting(config, "num_global_key_value_heads")) or heads), int(own)


def inputs_of_layers(config: Any) -> int:
    """Width of the additional embedding of a token for each layer (per-layer embeddings); 0 if the model has none."""
    width = setting(config, "hidden_size_per_layer_input")
    return width if type(width) is int else 0


def recurrent_layers(config: Any) -> tuple[int, ...]:
    """The indices of the layers with a recurrent state instead of KV. Empty if the model has none, or if the family's
    recurrent layers are not supported.
    """
    return _layers_of(config, RECURRENT, CONVOLUTION, MAMBA)


def _layers_of(config: Any, *wanted: str) -> tuple[int, ...]:
    others = FAMILIES.get(config.model_type, ORDINARY).others
    if others not in wanted:
        return ()
    return tuple(layer for layer, kind in enumerate(layer_kinds(config)) if kind == others)


def state_size(config: Any) -> StateSize:
    if FAMILIES[config.model_type].others == CONVOLUTION:
        return StateSize(0, 0, 0, config.hidden_size, config.conv_L_cache)
    if FAMILIES[config.model_type].others == MAMBA:
        heads, keys, width = config.mamba_n_heads, config.mamba_d_state, config.mamba_d_head
        # The channels of the convolution are the values of all heads, and the keys and queries (Mamba's B and C) of all
        # groups.
        return StateSize(heads, keys, width, heads * width + 2 * config.mamba_n_groups * keys, config.mamba_d_conv)
    heads, width = config.linear_num_value_heads, config.linear_value_head_dim
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    taps = config.linear_conv_kernel_dim
    return StateSize(heads, config.linear_key_head_dim, width, 2 * keys + heads * width, taps)


def display_name(name: str) -> str:
    """Return a model's name for people. A hub id stays unchanged. A path is cut to its last two parts, because the last
    part alone is often just "target" or "draft". If the first of these is a hash, it is left out.
    """
    if not looks_like_path(name):
        return name
    parts = Path(name).resolve().parts[-2:]
    return parts[-1] if _HASH.fullmatch(parts[0]) else "/".join(parts)


def looks_like_path(name: str) -> bool:
    return Path(name).exists() or name.startswith((".", "/", "~")) or "\\" in name or name.count("/") != 1


def head_dim_of(config: Any) -> int:
    """Number of elements in the key or value of one head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def rotated_layers(config: Any) -> tuple[bool, ...]:
    """For every layer, whether RoPE rotates its queries and keys."""
    layers = config.num_hidden_layers
    for key in _ROPE_BY_LAYER:
        if (named := setting(config, key)) is not None:
            return tuple(bool(rotated) for rotated in named[:layers])
    if FAMILIES[config.model_type].rope_in_windows and config.sliding_window is not None:
        return tuple(kind == SLIDING for kind in config.layer_types[:layers])
    return (setting(config, "position_embedding_type", "rope") == "rope",) * layers


def rope_kinds(config: Any) -> tuple[str, ...]:
    """The kinds of layers, if each kind has its own RoPE; empty if all layers share one RoPE."""
    if not FAMILIES[config.model_type].rope_by_kind:
        return ()
    return (FULL, SLIDING) if sliding_layers(config) else (FULL,)


def embedding_multiplier(config: Any) -> float:
    """The factor that embeddings are multiplied by before the first layer."""
    return float(getattr(config, "embedding_multiplier", 1.0))


def logits_divisor(config: Any) -> float:
    """The number that logits are divided by."""
    if factor := FAMILIES[config.model_type].logits_factor:
        return 1.0 / float(getattr(config, factor))
    return float(getattr(config, "logits_scaling", 1.0))


def logits_cap(config: Any) -> float | None:
    """The cap of the logits: logits become cap * tanh(logits / cap). None if they are not capped."""
    cap = setting(config, "final_logit_softcapping")
    return None if cap is None else float(cap)


@dataclass(frozen=True)
class MixtureShape:
    """A mixture of experts.

    ``layers`` is the number of layers with experts; all other layers have one MLP. A layer with experts has ``count``
    MLPs of inner size ``inner``, of which ``chosen`` are active for a token. ``shared`` is the inner size of an
    additional MLP of these layers that is active for every token; 0 if there is none.
    """

    count: int
    chosen: int
    inner: int
    layers: int
    shared: int


def experts_of(config: Any) -> MixtureShape | None:
    """Describe the experts of a model; None if the model has no experts, or if they are not supported."""
    family = FAMILIES.get(config.model_type, ORDINARY)
    if not family.experts or not _count_experts(config):
        return None
    # Gemma 4 has experts in every layer or in none, in addition to an MLP that is active for every token.
    if "enable_moe_block" in family.reads:
        if not setting(config, "enable_moe_block"):
            return None
        chosen, inner = (getattr(config, key, None) or 0 for key in ("top_k_experts", "moe_intermediate_size"))
        return MixtureShape(_count_experts(config), chosen, inner, config.num_hidden_layers, config.intermediate_size)
    every, dense = getattr(config, "decoder_sparse_step", 1), getattr(config, "mlp_only_layers", None)
    dense = dense if isinstance(dense, list | tuple) else ()
    numbers = range(1, min(config.num_hidden_layers, _MAXIMA["num_hidden_layers"]) + 1)
    first = getattr(config, "num_dense_layers", 0)
    first = first if type(first) is int else 0
    layers = sum(number % every == 0 and number - 1 not in dense and number > first for number in numbers)
    inner = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    shared = next((n for key in _SHARED if (n := getattr(config, key, None))), 0)
    return MixtureShape(_count_experts(config), config.num_experts_per_tok, inner, layers, shared)


def _count_experts(config: Any) -> int:
    return max((n for key in _EXPERTS if type(n := getattr(config, key, None)) is int), default=0)


def is_distilled(config: Any) -> bool:
    """Whether a model is a distilled draft, which has neither an embedding nor a head."""
    return getattr(config, DRAFT_HEAD, None) is not None


def pick_dtype(config: Any, dtype: str, device: torch.device) -> torch.dtype:
    """Choose the dtype of weights and KV: ``dtype``, or for "auto" a dtype that fits the device, the model's size and
    its stored dtype.
    """
    import torch

    from engine import devices

    if dtype != "auto":
        chosen: torch.dtype = getattr(torch, dtype)
        return chosen
    if device.type == "cpu":
        return torch.bfloat16 if cpu_holds_halves(estimate_parameters(config)) else torch.float32
    stored = getattr(config, "dtype", None)
    chosen = stored if stored in (torch.float16, torch.bfloat16) else torch.bfloat16
    # On a GPU that is slow in bfloat16, float16 is used unless activations of the family are known to exceed the range
    # of float16. If another family's activations exceed it, the prefill of the first tokens raises an error.
    slow = not devices.multiplies_bfloat16(device) and not FAMILIES[config.model_type].overflows
    return torch.float16 if slow else chosen


def stored_bytes_per_weight(config: Any) -> float:
    """Mean bytes of a weight in the model's GGUF file (``engine.model.gguf``); 0 for a model that is no GGUF file."""
    return _bytes_stated(config, "stored_bytes_per_weight")


def fitted_bytes_per_weight(config: Any) -> float:
    """Mean bytes of a weight of the decoder blocks after a GGUF file was rounded to fit a GPU
    (``quantization.FITTED``); 0 if the settings do not state this number.
    """
    return _bytes_stated(config, "fitted_bytes_per_weight")


def _bytes_stated(config: Any, key: str) -> float:
    stated = getattr(config, key, 0.0)
    return stated if type(stated) is float and 0 < stated <= FLOAT_BYTES else 0.0


def cpu_holds_halves(parameters: int) -> bool:
    """Whether a processor holds weights and KV in bfloat16 instead of float32.

    A processor with instructions that multiply pairs of bfloat16 numbers always holds them in bfloat16. A token of the
    demo pair of models then takes 7.3 ms instead of 12.7 (2 cores with AVX-512 BF16, after 8,192 tokens). All other
    processors need many instructions to round to bfloat16, so they use bfloat16 only for models that are too large in
    float32.

    The choice does not depend on a timing, because on a busy machine a timing could choose another dtype than before.
    All stored KV would then be useless, and all books would have to be read again.
    """
    from engine.model.kernels import native

    return parameters > _CPU_FLOAT32_PARAMETERS or native.multiplies_pairs()


def estimate_parameters(config: Any) -> int:
    """Estimate the parameters of a model from its configuration alone, to within a few per cent."""
    return int(config.num_hidden_layers * parameters_of_block(config) + embedding_parameters(config))


def parameters_of_block(config: Any, experts: float | None = None) -> int:
    """Number of parameters of one decoder block, without norms and biases; the mean over all blocks if they differ.

    Args:
        experts: how many of a layer's experts are counted; None counts all.
    """
    found = experts_of(config)
    return _parameters_of_block(config, (found.count if found else 0) if experts is None else experts)


def parameters_asked(config: Any) -> int:
    """Number of parameters of one decoder block that are active for a token: only the chosen experts are counted."""
    experts = experts_of(config)
    return _parameters_of_block(config, experts.chosen if experts else 0)


def _parameters_of_block(config: Any, experts: float) -> int:
    """Number of parameters of one decoder block with ``experts`` experts."""
    if setting(config, "global_head_dim") is not None:
        return _parameters_of_unlike_layers(config, experts) // int(config.num_hidden_layers)
    family, width, layers = FAMILIES.get(config.model_type, ORDINARY), config.hidden_size, config.num_hidden_layers
    # Number of projections that are as wide as the queries: query, output and, in some families, a gate.
    of_queries = 3 if family.gated else 2
    heads = of_queries * config.num_attention_heads + 2 * config.num_key_value_heads
    mixing = layers * width * heads * head_dim_of(config)
    if states := len(recurrent_layers(config)):
        size = state_size(config)
        values = 3 * width if family.others == CONVOLUTION else 2 * size.heads * (size.value_dim + 1)
        values -= size.heads if family.others == MAMBA else 0
        recurrent = width * (size.channels + values) + size.taps * size.channels
        mixing += states * (recurrent - mixing // layers)
    found = experts_of(config)
    if found is None:
        return int(mixing // layers + family.mlp_matrices * width * _inner(config))
    asked = family.mlp_matrices * (experts * found.inner + found.shared) + found.count + bool(found.shared)
    # ``_inner`` is called only if there are dense layers, because other models may lack the setting that it reads.
    dense = layers - found.layers
    alone = dense * family.mlp_matrices * _inner(config) if dense else 0
    return int((mixing + width * (found.layers * asked + alone)) // layers)


def _parameters_of_unlike_layers(config: Any, experts: float) -> int:
    """Number of parameters of all blocks together, for a model whose layers differ in their heads or in whether they
    have KV.
    """
    width, inner, sources = config.hidden_size, config.intermediate_size, kv_sources(config)
    matrices, found = 0.0, experts_of(config)
    for layer, kind in enumerate(layer_kinds(config)[: config.num_hidden_layers]):
        heads, head_dim = kv_heads_of(config, kind)
        alike = kind == FULL and setting(config, "attention_k_eq_v")
        own = 0 if layer in sources else heads * (1 if alike else 2)
        doubled = layer in sources and setting(config, "use_double_wide_mlp")
        matrices += head_dim * (2 * config.num_attention_heads + own) + 3 * inner * (2 if doubled else 1)
        matrices += 2 * inputs_of_layers(config)
        if found is not None:
            matrices += 3 * experts * found.inner + found.count
    return int(width * matrices)


def _inner(config: Any) -> int:
    """Inner size of a dense MLP. In LFM2 it is two thirds of the configured size, times a factor, rounded up to a
    multiple of ``block_multiple_of``.
    """
    family = FAMILIES.get(config.model_type, ORDINARY)
    inner = int(getattr(config, family.dense_inner, None) or config.intermediate_size)
    if not setting(config, "block_auto_adjust_ff_dim"):
        return inner
    inner = int(getattr(config, "block_ffn_dim_multiplier", 1.0) * int(2 * inner / 3))
    step = getattr(config, "block_multiple_of", 256)
    return -(-inner // step) * step


def embedding_parameters(config: Any) -> int:
    """Number of parameters of the embedding and, if it is a separate matrix, of the output head. A distilled draft has
    neither; its copied rows of the target's head are counted.
    """
    if is_distilled(config):
        return int(getattr(config, DRAFT_HEAD) * config.hidden_size)
    count = 1 if getattr(config, "tie_word_embeddings", False) else 2
    return int(count * config.vocab_size * config.hidden_size + parameters_of_inputs(config))


def parameters_of_inputs(config: Any) -> int:
    """Number of parameters of the per-layer embeddings: a table, of which a token uses one row, and a projection of the
    hidden states.
    """
    inputs = config.num_hidden_layers * inputs_of_layers(config)
    return int(inputs * (config.vocab_size_per_layer_input + config.hidden_size)) if inputs else 0
