"""The facts about a family of models, each once: what is supported, and what a model takes by its configuration alone.

Owns the list of architectures that the walk of ``engine.model.decoder`` is right for. Reads no weights, and imports
neither torch nor transformers before it is asked to load: who judges a model before a download needs the same facts.
Sizes are in tokens, bytes and floating point operations.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import ModelError, ModelNotFound, UnsupportedModel
from engine.model import weights

if TYPE_CHECKING:
    import torch

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi3")
"""``model_type`` values whose decoder layers are walked."""

CPU_FLOAT32_PARAMETERS = 1_500_000_000
"""Above this size a CPU holds weights in bfloat16: float32 would not fit, and speed is lost anyway."""

# Far beyond every model that there is.
_MAXIMA = {
    "num_hidden_layers": 1_000,
    "hidden_size": 1 << 18,
    "intermediate_size": 1 << 22,
    "num_attention_heads": 1 << 12,
    "num_key_value_heads": 1 << 12,
    "head_dim": 1 << 13,
    "vocab_size": 1 << 24,
    "max_position_embeddings": 1 << 30,
}
_POSITIVE = ("rope_theta", "factor", "original_max_position_embeddings")  # numbers of RoPE
_REASON = 200  # characters of a library's message


def load_config(name: str) -> Any:
    """The model's configuration.

    Raises:
        ModelNotFound: no such folder or hub model.
        UnsupportedModel: transformers does not know the architecture without remote code.
        ModelError: the files of settings are broken, absurdly large, or of values that mean nothing.
    """
    from transformers import AutoConfig

    if looks_like_path(name) and not Path(name).is_dir():
        raise ModelNotFound(f"There is no model folder {name}.", "Check the path, or leave --model out for the demo.")
    if Path(name).is_dir():
        weights.check_settings(Path(name))
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=False)
    except ValueError as error:
        raise UnsupportedModel(
            f"{display_name(name)} is not an architecture that can be loaded without running its own code.",
            f"Trifold runs no code from model folders. Supported: {', '.join(FAMILIES)}.",
        ) from error
    except OSError as error:
        raise ModelNotFound(
            f"The model {name} has no readable config.json and could not be found on the hub.",
            "Check the name, or connect to the internet once so that it can be downloaded.",
        ) from error
    except Exception as error:
        raise _meaningless(name, " ".join(str(error).split())[:_REASON] or type(error).__name__) from error


def check_numbers(config: Any, name: str) -> None:
    """Refuse settings that no model has, before anything is made of such a size.

    Raises:
        ModelError: which one, and what it says.
    """
    for key, largest in _MAXIMA.items():
        value = getattr(config, key, None)
        if value is not None and (type(value) is not int or not 1 <= value <= largest):
            raise _meaningless(name, f"{key} is {value}")
    rope = getattr(config, "rope_parameters", None) or {}
    numbers = {"rms_norm_eps": getattr(config, "rms_norm_eps", None), **{key: rope.get(key) for key in _POSITIVE}}
    for key, value in numbers.items():
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise _meaningless(name, f"{key} is {value}")


def _meaningless(name: str, what: str) -> ModelError:
    return ModelError(f"config.json of {display_name(name)} cannot be used: {what}.", "Download the model again.")


def check_architecture(config: Any, name: str, window: int) -> None:
    """Refuse what the walk is not right for.

    Raises:
        UnsupportedModel: an architecture outside ``FAMILIES``, or layers without full attention within ``window``.
    """
    kind = config.model_type
    if kind not in FAMILIES:
        raise UnsupportedModel(
            f"{display_name(name)} is a {kind} model, which is not supported yet.",
            f"Supported: {', '.join(FAMILIES)}; these cover Llama, Mistral, Qwen 2 and 3, and Phi-3.",
        )
    others = {t for t in getattr(config, "layer_types", None) or () if t != "full_attention"}
    sliding = getattr(config, "sliding_window", None)
    if others or (sliding is not None and sliding < window):
        what = f"a sliding window of {sliding:,} tokens" if sliding else ", ".join(sorted(others))
        raise UnsupportedModel(
            f"{display_name(name)} has layers with {what}, which is not supported yet: "
            "they do not keep the whole book in view.",
            "Choose a model with full attention in every layer"
            + (f", or --context {sliding} or less." if sliding and not others else "."),
        )


def display_name(name: str) -> str:
    """A hub id as it is; of a folder the last two parts, since pairs often lie side by side as target and draft."""
    return "/".join(Path(name).resolve().parts[-2:]) if looks_like_path(name) else name


def looks_like_path(name: str) -> bool:
    return Path(name).exists() or name.startswith((".", "/", "~")) or "\\" in name or name.count("/") != 1


def pick_dtype(config: Any, dtype: str, device: torch.device) -> torch.dtype:
    """The dtype of weights and KV: the one asked for, or what suits the device and the model's size."""
    import torch

    if dtype != "auto":
        chosen: torch.dtype = getattr(torch, dtype)
        return chosen
    if device.type == "cpu":
        return torch.float32 if estimate_parameters(config) <= CPU_FLOAT32_PARAMETERS else torch.bfloat16
    stored = getattr(config, "dtype", None)
    return stored if stored in (torch.float16, torch.bfloat16) else torch.bfloat16


def head_dim_of(config: Any) -> int:
    """Numbers in a key or value of one head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def estimate_parameters(config: Any) -> int:
    """Parameters of a model, from its configuration alone; good to a few per cent."""
    width, heads, kv_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    block = block_parameters(width, config.intermediate_size, heads, kv_heads, head_dim_of(config))
    return int(config.num_hidden_layers * block + embedding_parameters(config))


def block_parameters(width: int, inner: int, heads: int, kv_heads: int, head_dim: int) -> int:
    """Parameters of one decoder block, without norms and biases: queries, keys, values, output, gated MLP."""
    return width * (2 * (heads + kv_heads) * head_dim + 3 * inner)


def embedding_parameters(config: Any) -> int:
    """Parameters of the embedding, and of the output head where that is not the same matrix."""
    count = 1 if getattr(config, "tie_word_embeddings", False) else 2
    return int(count * config.vocab_size * config.hidden_size)
