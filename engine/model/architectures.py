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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import model_files
from engine.errors import ModelError, ModelNotFound, UnsupportedModel
from engine.model.families import (
    CONVOLUTION,
    EXPERT_SIZES,
    FAMILIES,
    FULL,
    MAMBA,
    MOST_LAYERS,
    ORDINARY,
    RECURRENT,
    SLIDING,
    MixtureShape,
    count_experts,
    family_of,
)
from engine.quantization import FLOAT_BYTES, StateSize

if TYPE_CHECKING:
    import torch

__all__ = ["SHARED_VOCABULARY"]


WRAPPERS = frozenset(family.wrapper for family in FAMILIES.values()) - {""}
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
OWN_HEAD = "reads_hidden_states"
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

# Maximum values of settings that all families have, far above the values of every existing model. A model with a larger
# value is refused. ``Family.sizes`` has the maxima of other settings.
_MAXIMA = {
    "num_hidden_layers": MOST_LAYERS,
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 1 << 12),
    "head_dim": 1 << 13,
    "hidden_size": 1 << 18,
    "intermediate_size": 1 << 22,
    **dict.fromkeys(("vocab_size", DRAFT_HEAD), 1 << 24),
    **dict.fromkeys(("max_position_embeddings", "sliding_window"), 1 << 30),
    **EXPERT_SIZES,
}
_POSITIVE_ROPE = ("rope_theta", "factor", "original_max_position_embeddings")
_POSITIVE = (
    "rms_norm_eps",
    "layer_norm_eps",
    "norm_eps",
    "logits_scaling",
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
)
_SUPPORTED = f"Supported: {', '.join(family.title for family in FAMILIES.values())}."
_HASH = re.compile("[0-9a-f]{16,}")  # matches a folder name that is a hash
_NONE_ALLOWED = ("num_local_experts", "num_experts_per_tok")  # models without experts may have 0 here
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
    family_of(config).register()
    return config


def text_config(config: Any) -> Any:
    """Return the configuration of a model's text part. Settings that only the whole model's configuration has are
    copied to it.
    """
    text = getattr(config, "text_config", None)
    if text is None:
        family_of(config).prepare(config)
        return config
    # ``tie_word_embeddings`` is set if the text part's or the whole model's configuration sets it. If only one of them
    # does, the files hold both embedding and head, and transformers keeps these separate in spite of the setting.
    text.tie_word_embeddings = any(getattr(each, "tie_word_embeddings", False) for each in (text, config))
    text.wrapper = config.model_type
    for key in ("eos_token_id", "dtype", "quantization_config"):
        if getattr(text, key, None) is None and getattr(config, key, None) is not None:
            setattr(text, key, getattr(config, key))
    family_of(text).prepare(text)
    return text


def setting(config: Any, key: str, default: Any = None) -> Any:
    """The value of a setting; ``default`` if the setting is missing, or if the model's family ignores it
    (``Family.reads``).
    """
    return family_of(config).setting(config, key, default)


def text_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a model's text part from a parsed ``config.json``, whose values may be of any type.
    Missing settings get the family's defaults.
    """
    text, outer = settings.get("text_config"), {}
    if isinstance(text, Mapping):
        outer = {key: settings[key] for key in ("tie_word_embeddings", "quantization_config") if key in settings}
        outer["wrapper"] = settings.get("model_type")
    merged = {**outer, **(text if isinstance(text, Mapping) else settings)}
    kind = merged.get("model_type")
    family = FAMILIES.get(kind, ORDINARY) if isinstance(kind, str) else ORDINARY
    merged = {**family.defaults, **merged}
    family.complete(merged)
    return merged


def check_numbers(config: Any, name: str) -> None:
    """Refuse settings that no model can have, before memory is allocated for them.

    Raises:
        ModelError: a setting is impossible; the message has its name and value.
    """
    # Unsupported families are not checked, because they may name these settings differently or have a separate number
    # for each layer.
    if config.model_type not in FAMILIES:
        return
    family = family_of(config)
    for key, largest in {**_MAXIMA, **family.sizes}.items():
        value = getattr(config, key, None)
        least = 0 if key in (*_NONE_ALLOWED, *family.may_be_zero) else 1
        if value is not None and (type(value) is not int or not least <= value <= largest):
            raise _meaningless(name, f"{key} is {value}")
    rope = getattr(config, "rope_parameters", None) or {}
    numbers = [(key, getattr(config, key, None)) for key in (*_POSITIVE, *family.positive)]
    _check_kinds_of_rope(config, rope, name)
    for each in [own for own in rope.values() if isinstance(own, Mapping)] or [rope]:
        numbers += [(key, each.get(key)) for key in _POSITIVE_ROPE]
    heads, kv_heads = (getattr(config, key, None) or 1 for key in ("num_attention_heads", "num_key_value_heads"))
    if heads % kv_heads:
        raise _meaningless(name, f"num_attention_heads is {heads} for {kv_heads} num_key_value_heads")
    if (experts := family.mixture(config)) is not None and not 1 <= experts.chosen <= experts.count:
        raise _meaningless(name, f"num_experts_per_tok is {experts.chosen} of {experts.count}")
    if (shared := family.shared_kv_layers(config)) and not family.kv_sources(config):
        raise _meaningless(name, f"num_kv_shared_layers is {shared}")
    if key := family.rope_by_layer:
        named = getattr(config, key, [0] * config.num_hidden_layers)
        if not isinstance(named, list | tuple) or len(named) < config.num_hidden_layers:
            raise _meaningless(name, f"{key} does not speak of every layer")
    if family.query_scale:
        numbers.append((family.query_scale, rope.get(family.query_scale, "missing")))
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
    if kind not in FAMILIES and (experts := count_experts(config)) > 1:
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
    return bool(method) and method == family_of(config).stored


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
    return family_of(config).layer_kinds(config)


def sliding_layers(config: Any) -> tuple[int, ...]:
    """The indices of the layers in which a token sees only the newest ``sliding_window`` tokens. They include layers
    that read another layer's KV. Empty if the family's sliding windows are not supported.
    """
    return () if getattr(config, "sliding_window", None) is None else family_of(config).layers_of(config, SLIDING)


def kv_sources(config: Any) -> dict[int, int]:
    """Map each layer without its own keys and values to the layer whose KV it reads: the last layer of the same kind
    that has KV.
    """
    family = family_of(config)
    return family.kv_sources(config) if family.shared_kv_layers(config) else {}


def kv_heads_of(config: Any, kind: str) -> tuple[int, int]:
    """The number of KV heads, and the head_dim, of a layer of the kind ``kind``."""
    return family_of(config).kv_heads(config, kind)


def inputs_of_layers(config: Any) -> int:
    """Width of the additional embedding of a token for each layer (per-layer embeddings); 0 if the model has none."""
    width = setting(config, "hidden_size_per_layer_input")
    return width if type(width) is int else 0


def recurrent_layers(config: Any) -> tuple[int, ...]:
    """The indices of the layers with a recurrent state instead of KV. Empty if the model has none, or if the family's
    recurrent layers are not supported.
    """
    return family_of(config).layers_of(config, RECURRENT, CONVOLUTION, MAMBA)


def state_size(config: Any) -> StateSize:
    """Dimensions of the state of one recurrent layer."""
    return family_of(config).state_size(config)


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


def rotated_layers(config: Any) -> tuple[bool, ...]:
    """For every layer, whether RoPE rotates its queries and keys."""
    layers = config.num_hidden_layers
    family = family_of(config)
    if family.rope_by_layer and (named := getattr(config, family.rope_by_layer, None)) is not None:
        return tuple(bool(rotated) for rotated in named[:layers])
    if family.rope_in_windows and config.sliding_window is not None:
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


def experts_of(config: Any) -> MixtureShape | None:
    """Describe the experts of a model; None if the model has no experts, or if they are not supported."""
    return family_of(config).mixture(config)


def is_distilled(config: Any) -> bool:
    """Whether a model is a distilled draft, which has neither an embedding nor a head."""
    return getattr(config, DRAFT_HEAD, None) is not None


def is_own_head(config: Any) -> bool:
    """Whether a model is a draft head that reads the target's hidden states (``engine.model.own_head``)."""
    return bool(getattr(config, OWN_HEAD, False))


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


def card_bytes_per_weight(config: Any) -> float:
    """Mean bytes of a weight on a GPU that keeps the blocks of a GGUF file (``engine.model.products.card_blocks``); 0
    if the settings do not state this number.
    """
    return _bytes_stated(config, "card_bytes_per_weight")


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
    mixture = experts_of(config)
    return family_of(config).block_parameters(config, (mixture.count if mixture else 0) if experts is None else experts)


def parameters_asked(config: Any) -> int:
    """Number of parameters of one decoder block that are active for a token: only the chosen experts are counted."""
    experts = experts_of(config)
    return family_of(config).block_parameters(config, experts.chosen if experts else 0)


def embedding_parameters(config: Any) -> int:
    """Number of parameters of the embedding and, if it is a separate matrix, of the output head. A distilled draft has
    neither; its copied rows of the target's head are counted. A target's own draft head has a projection instead.
    """
    if is_own_head(config):
        return int(2 * config.hidden_size**2)
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
