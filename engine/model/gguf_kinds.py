"""Defines the kinds of models that can be read from GGUF files. Translates a header into a ``config.json``, and the
names of tensors into transformers' names of weights.

This module refuses unsupported files by the header alone. It states the changes that llama.cpp's converter made to the
tensors; ``engine.model.gguf`` undoes them. Standard library only, because the app uses this module before any other
work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.errors import ModelError

LLAMA_3_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
FACTORS = (LLAMA_3_FACTORS, LONG_FACTORS, SHORT_FACTORS)
"""Tensors with the factors that divide RoPE's frequencies, in Llama 3 and Phi-3. The fields of a header do not hold
these factors.
"""

EXPERTS = ".experts"
"""The last part of the path of a layer's experts in transformers."""

STATE_NORM = "linear_attn.norm"
"""The norm of a recurrent layer's output. Its weights are stored unchanged, even in kinds whose other norms are stored
with 1 added to the weights.
"""

STATE_DECAY = "A_log"
"""The decay of a recurrent state. The file stores -exp(A_log), where A_log is transformers' parameter."""

OUTPUT = "output.weight"
"""The tensor of the output head. A model without this tensor uses its embedding as the head."""

_VALUES = ".attn_v.weight"  # end of the name of the weights that compute a layer's values

_ELSEWHERE = "Many more models are read as safetensors: a folder of this machine, or owner/name on the hub."
_AGAIN = "Get the file again."
_VOCABULARIES = ("gpt2", "llama", "gemma4")
_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# RoPE's long wavelengths are stretched by the factor 8 in Llama 3.1 and 3.3, and by 32 in Llama 3.2.
_LLAMA_3_FACTORS = (8.0, 32.0)
_CLOSE = 1e-3  # Relative tolerance in comparisons with stored factors, which were rounded to 32 bits.
# Number of layers of the largest Gemma 2, by which a file of this model is recognised. Its query scaling differs from
# that of the smaller models.
_GEMMA_2_LARGEST = 46
# Number of layers of the largest Gemma 3, by which a file of this model is recognised. Its query scaling differs from
# that of the smaller models.
_GEMMA_3_LARGEST = 62
_GEMMA_LOCAL_THETA = 10_000.0  # RoPE's theta in layers with a sliding window
_GEMMA_3_PERIOD = 6
# In files of Gemma 4, factors of at least this size mark dimensions that RoPE does not rotate. llama.cpp's converter
# writes 1e30.
_NOT_TURNED = 1e29
_BETAS = (32.0, 1.0)  # YaRN's default beta_fast and beta_slow, for files that do not state them
# YaRN settings of gpt-oss, which its GGUF files do not state.
_GPT_OSS_YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}

# Settings that are read from fields of the header, keyed by the field's name without the architecture before it.
_NUMBERS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "context_length": "max_position_embeddings",
    "vocab_size": "vocab_size",
}
_IDS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "padding_token_id": "pad_token_id"}
_SAMPLING = {
    "temp": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "penalty_repeat": "repetition_penalty",
}
_ENDS = ("eos", "eot", "eom")
"""Fields with the tokens that end a text, a turn and a message. A model stops after each of these tokens."""

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_NAMES = {
    "attn_norm": "input_layernorm",
    **{f"attn_{each}": f"self_attn.{each}_proj" for each in "qkv"},
    **{f"attn_{each}_norm": f"self_attn.{each}_norm" for each in "qk"},
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    **{f"ffn_{each}": f"mlp.{each}_proj" for each in ("gate", "up", "down")},
}
"""transformers' names of a layer's weights, keyed by the file's names. Both begin after the layer number."""

_GEMMA_NAMES = {
    **_NAMES,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

_GEMMA_4_NAMES = {
    **_GEMMA_NAMES,
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
_GEMMA_4_TOP = {
    **_TOP,
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}

_EXPERT_NAMES = {
    **_NAMES,
    "ffn_gate_inp": "mlp.gate",
    **{f"ffn_{each}_exps": f"mlp.experts.{each}" for each in ("gate", "up", "down")},
}
"""Names in kinds with experts, as in ``_NAMES``. transformers joins the gate and up weights of experts in
``gate_up_proj``, so our own names are used below ``mlp.experts``.
"""

_AFTER_ATTENTION = {
    **{name: here for name, here in _EXPERT_NAMES.items() if name != "ffn_norm"},
    "post_attention_norm": "post_attention_layernorm",
}
"""Names in kinds whose files call the norm before the MLP ``post_attention_norm`` instead of ``ffn_norm``."""

_GPT_OSS_NAMES = {
    **_AFTER_ATTENTION,
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
}

_QWEN_3_5_NAMES = {
    **_AFTER_ATTENTION,
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

_LFM_NAMES = {
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
_LFM_TOP = {**_TOP, "token_embd_norm": "model.embedding_norm"}


class Header:
    """The content of a GGUF file's header.

    Args:
        fields: values of the fields, keyed by name.
        names: names of the file's tensors.
        vocabulary: number of tokens of the vocabulary.
        file: the file's name for messages.
    """

    def __init__(self, fields: Mapping[str, Any], names: Collection[str], vocabulary: int, file: str) -> None:
        self.fields, self.names, self.vocabulary, self.file = fields, names, vocabulary, file
        self.architecture = str(fields.get("general.architecture", ""))

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field of the model's architecture; ``default`` if the field is missing."""
        return self.fields.get(f"{self.architecture}.{name}", default)

    def number(self, name: str, default: float | None = None) -> Any:
        """Return a field of the model's architecture that must be a finite number; ``default`` if the field is missing.

        Raises:
            ModelError: the value is no finite number, or the field is missing and ``default`` is None.
        """
        value = self.get(name, default)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ModelError(f"{self.file} gives no {name} that can be right.", _AGAIN)
        return value

    def token(self, name: str) -> int | None:
        """Return the id of a special token. None if the field is missing, or if the id is not in the vocabulary. Some
        files have such an id for the padding token.
        """
        value = self.fields.get(f"tokenizer.ggml.{name}")
        return value if type(value) is int and 0 <= value < self.vocabulary else None

    def refusal(self, property_name: str) -> ModelError:
        """Make the error for a property of the file that is not supported."""
        return ModelError(f"{self.file} {property_name} read from GGUF.", _ELSEWHERE)


@dataclass(frozen=True)
class Kind:
    """An architecture of models in GGUF files.

    Args:
        model_type: the architecture's ``model_type`` in transformers.
        names: transformers' names of a layer's weights, keyed by the file's names. The last part (``weight`` or
            ``bias``) is left out where both names end with the same part.
        top: transformers' names of weights outside of layers, keyed by the file's names.
        more: makes the architecture's additional settings from a header.
        has_heads: whether the architecture's ``config.json`` states head_dim.
        centred: whether norms are stored with 1 added to their weights.
        halves: whether files store the rows of queries and keys in the order of llama.cpp's RoPE, which differs from
            transformers'.
        tiled: whether neighbouring value heads in the file belong to different key heads. transformers keeps the value
            heads of a key head together.
        experts: whether the architecture is a mixture of experts; None if some of its models are.
        ends: tokens that end a text, in addition to those that the file's fields name.
    """

    model_type: str
    names: Mapping[str, str] = field(default_factory=lambda: _NAMES)
    top: Mapping[str, str] = field(default_factory=lambda: _TOP)
    more: Callable[[Header], Mapping[str, Any]] = lambda _: {}
    has_heads: bool = True
    centred: bool = False
    halves: bool = False
    tiled: bool = False
    experts: bool | None = False
    ends: tuple[str, ...] = ()

    def name(self, tensor: str) -> str | None:
        """Translate a tensor's name in the file into the name of its weight or bias in transformers; None if
        transformers has no such weight.
        """
        path, _, last = tensor.rpartition(".")
        if not path.startswith("blk."):
            found = self.top.get(path)
            return found and f"{found}.{last}"
        _, layer, own = (*path.split(".", 2), "", "")[:3]
        if whole := self.names.get(f"{own}.{last}"):
            return f"model.layers.{layer}.{whole}"
        found = self.names.get(own)
        return found and f"model.layers.{layer}.{found}.{last}"


def settings_of(header: Header) -> dict[str, Any]:
    """Make the content of the model's ``config.json``.

    Raises:
        ModelError: the model is not supported; the message says why.
    """
    architecture = header.architecture
    kind = KINDS.get(architecture)
    if kind is None or kind.experts not in (None, bool(header.get("expert_count"))):
        named = f"{architecture} with experts" if kind and not kind.experts else architecture or "nameless"
        raise header.refusal(f"holds a model of the kind {named}, which is not")
    if (words := header.fields.get("tokenizer.ggml.model")) not in _VOCABULARIES:
        raise header.refusal(f"has a vocabulary of the kind {words or 'nameless'}, which is not")
    settings = {here: header.get(there) for there, here in _NUMBERS.items() if header.get(there) is not None}
    settings |= {
        "model_type": kind.model_type,
        "dtype": "bfloat16",
        **{here: header.token(there) for there, here in _IDS.items()},
        "vocab_size": header.get("vocab_size", header.vocabulary),
        "tie_word_embeddings": OUTPUT not in header.names,
    }
    if kind.has_heads and (head_dim := _head_dim(header)) is not None:
        settings["head_dim"] = head_dim
    settings |= kind.more(header)
    if "rope_parameters" not in settings:
        settings["rope_parameters"] = _rope(header)
    if any(isinstance(settings.get(here), list) for here in _NUMBERS.values()):
        raise header.refusal("holds layers of several shapes, which are not")
    return settings


def generation_of(header: Header, more_ends: Sequence[int] = ()) -> dict[str, Any]:
    """Make the content of the model's ``generation_config.json``: the tokens that begin and end a text, and the
    sampling settings.

    Args:
        more_ends: ids of tokens that end a text although no field of the file says so (``Kind.ends``).
    """
    ids: dict[str, Any] = {here: header.token(there) for there, here in _IDS.items()}
    ends = (header.token(f"{end}_token_id") for end in _ENDS)
    ids["eos_token_id"] = list(dict.fromkeys(end for end in (*ends, *more_ends) if end is not None)) or None
    sampling = {here: header.fields.get(f"general.sampling.{there}") for there, here in _SAMPLING.items()}
    found = {name: value for name, value in {**ids, **sampling}.items() if value is not None}
    return {**found, "do_sample": True} if sampling["temperature"] else found


def stretch(settings: dict[str, Any], factors: Mapping[str, Sequence[float]]) -> None:
    """Set the RoPE scaling in ``settings`` from the scaling factors of a file. ``factors`` is keyed by the names in
    ``FACTORS``. Each list has one factor for each pair of head dimensions.

    Raises:
        ModelError: the factors are of an unsupported kind.
    """
    rope = settings["rope_parameters"]
    rope = rope.get("full_attention", rope)
    if rope.get("rope_type") == "proportional":
        rope["partial_rotary_factor"] = turned_part(factors[LLAMA_3_FACTORS])
    elif LLAMA_3_FACTORS in factors:
        rope |= llama_3_rope(rope["rope_theta"], factors[LLAMA_3_FACTORS])
    if LONG_FACTORS in factors:
        rope |= {"rope_type": "longrope", "long_factor": list(factors[LONG_FACTORS])}
        rope |= {"short_factor": list(factors[SHORT_FACTORS])}


def llama_3_rope(theta: float, factors: Sequence[float]) -> dict[str, Any]:
    """Find the RoPE settings of the Llama 3 model that has these scaling factors, one for each pair of head dimensions.

    Raises:
        ModelError: the factors are not those of Llama 3.
    """
    pairs = len(factors)
    for factor in _LLAMA_3_FACTORS:
        usual = [_llama_3_factor(theta ** (pair / pairs), factor) for pair in range(pairs)]
        if all(math.isclose(one, other, rel_tol=_CLOSE) for one, other in zip(factors, usual, strict=True)):
            return {"rope_type": "llama3", "factor": factor, **_LLAMA_3}
    raise ModelError("Its positions are stretched in a way that is not known here.", "Choose it as safetensors.")


def turned_part(factors: Sequence[float]) -> float:
    """Return the share of a head's dimensions that Gemma 4's RoPE rotates in full-attention layers. ``factors`` begins
    with a 1 for each rotated pair of dimensions. All other pairs follow, with a huge number each.

    Raises:
        ModelError: the factors are not those of Gemma 4.
    """
    turned = sum(factor == 1.0 for factor in factors)
    if not turned or min(factors[turned:], default=math.inf) < _NOT_TURNED or set(factors[:turned]) != {1.0}:
        raise ModelError("Its positions are stretched in a way that is not known here.", "Choose it as safetensors.")
    return turned / len(factors)


def _llama_3_factor(inverse: float, factor: float) -> float:
    """Compute the factor by which Llama 3 stretches one of RoPE's wavelengths, as ``_compute_llama3_parameters`` of
    transformers.

    Args:
        inverse: the reciprocal of the frequency; the wavelength is ``2 * pi * inverse`` tokens.
        factor: the factor for long wavelengths.
    """
    original, low, high = _LLAMA_3["original_max_position_embeddings"], 1.0, _LLAMA_3["high_freq_factor"]
    length = 2 * math.pi * inverse
    if length < original / high:
        return 1.0
    if length > original / low:
        return factor
    smooth = (original / length - low) / (high - low)
    return 1 / ((1 - smooth) / factor + smooth)


def _head_dim(header: Header) -> int | None:
    """Return the head_dim that the header states or implies; None if it does neither."""
    width, heads = header.get("embedding_length"), header.get("attention.head_count")
    usual = width // heads if type(width) is int and type(heads) is int and heads else None
    found = header.get("attention.key_length", usual)
    return found if type(found) is int else None


def _rope(header: Header) -> dict[str, Any]:
    """Make the RoPE settings. In models with sliding windows, these are the settings of layers that keep the whole
    context.
    """
    stretching = header.get("rope.scaling.type", "none")
    if LONG_FACTORS in header.names or stretching not in ("none", "linear", "yarn"):
        raise header.refusal("has a window that was stretched in a way that is not")
    turned = header.get("rope.dimension_count")
    if turned is not None and turned != _head_dim(header):
        raise header.refusal("turns a part of each head only, which is not")
    rope = {"rope_type": "default", "rope_theta": float(header.number("rope.freq_base", 10_000.0))}
    if stretching == "none":
        return rope
    rope |= {"rope_type": stretching, "factor": float(header.number("rope.scaling.factor"))}
    if stretching == "yarn":
        rope["original_max_position_embeddings"] = int(header.number("rope.scaling.original_context_length"))
    return rope


def _window(header: Header) -> int | None:
    """The size of a sliding window in tokens; None if there is none."""
    return header.get("attention.sliding_window") or None


def _ministral3(header: Header) -> Mapping[str, Any]:
    rope = _rope(header)
    if rope["rope_type"] != "yarn" or header.get("attention.temperature_scale") is None:
        raise header.refusal("stretches its window in another way than Ministral 3, which is not")
    rope |= {
        "beta_fast": float(header.number("rope.scaling.yarn_beta_fast", _BETAS[0])),
        "beta_slow": float(header.number("rope.scaling.yarn_beta_slow", _BETAS[1])),
        "mscale": 1.0,  # files do not state mscale, and llama.cpp assumes 1
        "mscale_all_dim": float(header.number("rope.scaling.yarn_log_multiplier")),
        "llama_4_scaling_beta": float(header.number("attention.temperature_scale")),
    }
    return {"rope_parameters": rope}


def _phi3(header: Header) -> Mapping[str, Any]:
    head_dim = _head_dim(header)
    turned = header.number("rope.dimension_count", head_dim)
    if (
        head_dim is None
        or not 0 < turned <= head_dim
        or header.get("rope.scaling.type", "none") not in ("none", "longrope")
    ):
        raise header.refusal("has a window that was stretched in a way that is not")
    rope = {"rope_type": "default", "rope_theta": float(header.number("rope.freq_base", 10_000.0))}
    rope["partial_rotary_factor"] = turned / head_dim
    found = {"rope_parameters": rope, "sliding_window": _window(header)}
    if LONG_FACTORS not in header.names:
        return found
    if SHORT_FACTORS not in header.names:
        raise header.refusal("has a window that was stretched in a way that is not")
    original = int(header.number("rope.scaling.original_context_length"))
    rope["original_max_position_embeddings"] = original
    return {**found, "original_max_position_embeddings": original}


def _gemma2(header: Header) -> Mapping[str, Any]:
    caps = (f"{each}_logit_softcapping" for each in ("attn", "final"))
    return {
        "sliding_window": _window(header),
        "query_pre_attn_scalar": _scale_of_gemma(header, _GEMMA_2_LARGEST),
        **{cap: float(header.number(cap)) for cap in caps if header.get(cap) is not None},
    }


def _gemma3(header: Header) -> Mapping[str, Any]:
    local = {"rope_type": "default", "rope_theta": float(header.number("rope.freq_base_swa", _GEMMA_LOCAL_THETA))}
    if header.get("attention.sliding_window_pattern", _GEMMA_3_PERIOD) != _GEMMA_3_PERIOD:
        raise header.refusal("has windows in other layers than Gemma 3, which is not")
    return {
        "sliding_window": _window(header),
        "query_pre_attn_scalar": _scale_of_gemma(header, _GEMMA_3_LARGEST),
        "rope_parameters": {"full_attention": _rope(header), "sliding_attention": local},
    }


def _gemma4(header: Header) -> Mapping[str, Any]:
    layers, head_dim = int(header.number("block_count")), int(header.number("attention.key_length"))
    sliding = header.get("attention.sliding_window_pattern")
    shared = int(header.number("attention.shared_kv_layers", 0))
    if not isinstance(sliding, list) or len(sliding) != layers or all(sliding) or sliding[-1]:
        raise header.refusal("does not say which layers have windows, without which it is not")
    if LLAMA_3_FACTORS not in header.names:
        raise header.refusal(f"lacks {LLAMA_3_FACTORS}, without which it is not")
    width, narrow = int(header.number("attention.key_length_swa")), header.get("rope.dimension_count_swa")
    if narrow not in (None, width):
        raise header.refusal("turns a part of each head only, which is not")
    if (full := _rope(header))["rope_type"] != "default":
        raise header.refusal("has a window that was stretched in a way that is not")
    local = {"rope_type": "default", "rope_theta": float(header.number("rope.freq_base_swa"))}
    found = {
        "head_dim": width,
        "global_head_dim": head_dim,
        "layer_types": ["sliding_attention" if each else "full_attention" for each in sliding],
        "sliding_window": _window(header),
        "num_kv_shared_layers": shared,
        "hidden_size_per_layer_input": header.get("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": header.get("vocab_size", header.vocabulary),
        "rope_parameters": {"full_attention": {**full, "rope_type": "proportional"}, "sliding_attention": local},
        **_heads_of_gemma_4(header, sliding, shared),
        **_inner_of_gemma_4(header, layers - shared),
    }
    if header.get("final_logit_softcapping") is not None:
        found["final_logit_softcapping"] = float(header.number("final_logit_softcapping"))
    if header.get("expert_count"):
        found |= {
            "enable_moe_block": True,
            "num_experts": header.get("expert_count"),
            "top_k_experts": header.get("expert_used_count"),
            "moe_intermediate_size": header.get("expert_feed_forward_length"),
        }
    return found


def _heads_of_gemma_4(header: Header, sliding: Sequence[bool], shared: int) -> dict[str, Any]:
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
    found = {"num_key_value_heads": next(iter(narrow or wide)), "attention_k_eq_v": alike}
    return {**found, "num_global_key_value_heads": next(iter(wide))} if alike else found


def _inner_of_gemma_4(header: Header, kv_layers: int) -> dict[str, Any]:
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


def _qwen3_moe(header: Header) -> Mapping[str, Any]:
    return {
        "num_experts": header.get("expert_count"),
        "num_experts_per_tok": header.get("expert_used_count"),
        "moe_intermediate_size": header.get("expert_feed_forward_length"),
        "norm_topk_prob": True,
        # The inner size of dense MLPs is missing if all MLPs are experts.
        "intermediate_size": header.get("feed_forward_length", header.get("expert_feed_forward_length")),
    }


def _gpt_oss(header: Header) -> Mapping[str, Any]:
    rope = _rope(header)
    if rope["rope_type"] == "yarn":
        rope |= _GPT_OSS_YARN
    return {
        "num_local_experts": header.get("expert_count"),
        "num_experts_per_tok": header.get("expert_used_count"),
        "intermediate_size": header.get("expert_feed_forward_length"),
        "sliding_window": _window(header),
        "rope_parameters": rope,
    }


def _lfm2(header: Header) -> Mapping[str, Any]:
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


def _qwen3_5(header: Header) -> Mapping[str, Any]:
    heads, head_dim = int(header.number("ssm.time_step_rank")), int(header.number("attention.key_length"))
    turned = header.number("rope.dimension_count", head_dim)
    if not 0 < turned <= head_dim or header.get("rope.scaling.type", "none") != "none" or heads < 1:
        raise header.refusal("has a window that was stretched in a way that is not")
    sections = header.get("rope.dimension_sections", [])
    found = {
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
        found |= {
            "num_experts": header.get("expert_count"),
            "num_experts_per_tok": header.get("expert_used_count"),
            "moe_intermediate_size": header.get("expert_feed_forward_length"),
            "shared_expert_intermediate_size": header.get("expert_shared_feed_forward_length"),
        }
    return found


def _scale_of_gemma(header: Header, largest: int) -> int | None:
    """Derive ``query_pre_attn_scalar``, the number whose square root divides the attention scores.

    Files do not state this number. It is the width of the hidden states divided by the number of query heads in the
    family's largest model, and head_dim in all smaller models. The largest model is recognised by its number of layers,
    ``largest``, as in llama.cpp.
    """
    if header.get("block_count") != largest:
        return _head_dim(header)
    return int(header.number("embedding_length")) // max(1, int(header.number("attention.head_count")))


KINDS = {
    "llama": Kind("llama", halves=True),
    "mistral3": Kind("ministral3", more=_ministral3, halves=True),
    "qwen2": Kind("qwen2", has_heads=False),
    "qwen3": Kind("qwen3"),
    "qwen3moe": Kind("qwen3_moe", names=_EXPERT_NAMES, more=_qwen3_moe, experts=True),
    "qwen35": Kind("qwen3_5_text", names=_QWEN_3_5_NAMES, more=_qwen3_5, centred=True, tiled=True),
    "qwen35moe": Kind("qwen3_5_moe_text", names=_QWEN_3_5_NAMES, more=_qwen3_5, centred=True, tiled=True, experts=True),
    "gpt-oss": Kind("gpt_oss", names=_GPT_OSS_NAMES, more=_gpt_oss, experts=True),
    "lfm2": Kind("lfm2", names=_LFM_NAMES, top=_LFM_TOP, more=_lfm2, has_heads=False),
    "phi3": Kind(
        "phi3",
        names={**_NAMES, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        more=_phi3,
        has_heads=False,
    ),
    "gemma2": Kind("gemma2", names=_GEMMA_NAMES, more=_gemma2, centred=True),
    "gemma3": Kind("gemma3_text", names=_GEMMA_NAMES, more=_gemma3, centred=True),
    "gemma4": Kind(
        "gemma4_text",
        names=_GEMMA_4_NAMES,
        top=_GEMMA_4_TOP,
        more=_gemma4,
        experts=None,
        ends=("<turn|>", "<|tool_response>"),
    ),
}
"""Kinds of models, keyed by the name of the architecture in the file."""
