"""A model by its numbers: what its settings file says about size, window and cache. Reads JSON; loads nothing.

A settings file comes from strangers: every number is checked before it is used in arithmetic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelError, ModelNotFound, UnsupportedModel
from engine.fitting import SCALE_BYTES

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi3")
"""What the engine walks (``engine.architecture.FAMILIES``; a test keeps the two alike)."""

CONFIG = "config.json"
MAX_CONFIG_BYTES = 4_000_000
_LARGEST = 1 << 31


@dataclass(frozen=True)
class Shape:
    """The numbers of one model.

    ``weights_bytes`` are those of its files; ``window`` is the longest context in tokens that its settings allow;
    ``embeddings`` are the parameters of embedding and output head, which are never rounded.
    """

    layers: int
    kv_heads: int
    head_dim: int
    parameters: int
    weights_bytes: int
    window: int
    embeddings: int = 0

    def kv_bytes_per_token(self, itemsize: int = 2) -> int:
        """Bytes that one token takes in the full cache: keys and values of every layer and KV head."""
        return 2 * self.layers * self.kv_heads * self.head_dim * itemsize

    @property
    def rounded_kv_bytes_per_token(self) -> int:
        """Of cache in 8 bits: a byte a number, and the scale of each key and value of a head."""
        return 2 * self.layers * self.kv_heads * (self.head_dim + SCALE_BYTES)


def read_config(folder: Path) -> dict[str, Any]:
    """The settings of a model folder.

    Raises:
        ModelNotFound: there is no such folder, or no settings in it.
        ModelError: they cannot be read.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise ModelNotFound(f"There is no model in {folder}: {CONFIG} is missing.", "Choose the folder that holds it.")
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise ModelError(f"{CONFIG} in {folder} is larger than any model's settings.", "Download the model again.")
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{CONFIG} in {folder} cannot be read.", "Download the model again.") from error
    if not isinstance(config, dict):
        raise ModelError(f"{CONFIG} in {folder} cannot be read.", "Download the model again.")
    return config


def shape_of(config: Mapping[str, Any], name: str, weights_bytes: int = 0) -> Shape:
    """The numbers in a model's settings.

    Args:
        weights_bytes: size of its files; 0 estimates it from the shape, at two bytes a parameter.

    Raises:
        UnsupportedModel: an architecture that the engine does not walk.
        ModelError: a number is missing or cannot be right.
    """
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise UnsupportedModel(
            f"{name} is a {kind if isinstance(kind, str) else 'nameless'} model, which is not supported yet.",
            "Supported: Llama, Mistral, Qwen 2 and 3, and Phi-3.",
        )
    width = _number(config, "hidden_size", name)
    layers = _number(config, "num_hidden_layers", name)
    heads = _number(config, "num_attention_heads", name)
    kv_heads = _number(config, "num_key_value_heads", name, heads)
    head_dim = _number(config, "head_dim", name, width // heads)
    inner = _number(config, "intermediate_size", name)
    vocabulary = _number(config, "vocab_size", name)
    attention = 2 * width * head_dim * (heads + kv_heads)
    tied = 1 if config.get("tie_word_embeddings") else 2
    embeddings = tied * vocabulary * width
    parameters = layers * (attention + 3 * width * inner) + embeddings
    window = _number(config, "max_position_embeddings", name)
    return Shape(layers, kv_heads, head_dim, parameters, weights_bytes or 2 * parameters, window, embeddings)


def _number(config: Mapping[str, Any], key: str, name: str, otherwise: int | None = None) -> int:
    value = config.get(key)
    if value is None and otherwise is not None:
        value = otherwise
    if type(value) is not int or not 0 < value < _LARGEST:
        raise ModelError(f"{CONFIG} of {name} gives no {key} that can be right.", "Download the model again.")
    return value
