"""Reads the sizes of a model from its settings file: layers, heads, parameters, bytes of KV. Needs neither torch nor
weights. Settings files are untrusted, so every number is checked before it is used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from engine import model_files
from engine.errors import ModelError, ModelNotFound
from engine.model.architectures import (
    card_bytes_per_weight,
    check_architecture,
    display_name,
    experts_of,
    fitted_bytes_per_weight,
    is_expanded,
    kv_heads_of,
    kv_sources,
    parameters_asked,
    parameters_of_block,
    parameters_of_inputs,
    recurrent_layers,
    sliding_layers,
    state_size,
    stored_bytes_per_weight,
    text_settings,
)
from engine.model.families import FAMILIES, FULL, Family
from engine.quantization import SCALE_BYTES, StateSize, sliding_capacity

CONFIG = "config.json"

_LARGEST = 1 << 31
"""Upper bound of numbers in a settings file: every number must be below it."""


@dataclass(frozen=True)
class ModelShape:
    """The sizes of one model.

    Parameters: ``parameters`` is the number of all parameters, and ``embeddings`` the number of those in the embeddings
    and the output head, which are never quantized. ``inputs`` is the part of ``embeddings`` in the per-layer input
    embeddings. ``asked`` is the number of parameters that are active for a token, which include only the chosen
    experts; 0 means all parameters.

    Layers: ``sliding_layers`` is the number of layers that hold a window of ``sliding_window`` tokens. ``sliding_kv``
    are KV heads and head_dim of these layers; None if they are the same as in other layers. ``recurrent_layers`` is the
    number of layers that hold a ``state`` of constant size. ``sharing_layers`` is the number of layers without a cache
    of their own. Of these, ``full_sharing`` layers read the cache of a layer that keeps the whole context.

    Files: ``weights_bytes`` are the bytes of the model's files. ``expanded`` says whether the files hold 4-bit weights
    that are dequantized when they are loaded. ``stored`` is the number of bytes of a weight in GGUF files; 0 for other
    files. On a processor, weights from GGUF files stay in this format in memory. ``fitted`` is the number of bytes of a
    decoder block's weight if a GGUF file is rounded to fit a GPU; 0 if it is unknown. ``on_card`` is the number of
    bytes of a weight on a GPU that keeps the blocks of the GGUF file; 0 if no GPU keeps them.

    ``window`` is the longest context, in tokens, that the settings allow.
    """

    layers: int
    kv_heads: int
    head_dim: int
    parameters: int
    weights_bytes: int
    window: int
    embeddings: int = 0
    sliding_layers: int = 0
    sliding_window: int = 0
    recurrent_layers: int = 0
    state: StateSize | None = None
    asked: int = 0
    expanded: bool = False
    sliding_kv: tuple[int, int] | None = None
    sharing_layers: int = 0
    full_sharing: int = 0
    inputs: int = 0
    stored: float = 0.0
    fitted: float = 0.0
    on_card: float = 0.0

    @property
    def parameters_asked(self) -> int:
        """Number of parameters that are active for a token."""
        return self.asked or self.parameters

    @property
    def full_layers(self) -> int:
        """Number of layers that keep the whole context."""
        return self.layers - self.sliding_layers - self.recurrent_layers - self.sharing_layers

    @property
    def reading_layers(self) -> int:
        """Number of layers that read the whole context, from their own cache or from another layer's."""
        return self.full_layers + self.full_sharing

    def kv_bytes_per_token(self, itemsize: int = 2) -> int:
        """Bytes that one token takes in the full cache: keys and values of every KV head in ``full_layers``."""
        return 2 * self.full_layers * self.kv_heads * self.head_dim * itemsize

    def bounded_bytes(self, itemsize: int = 2) -> int:
        """Bytes of sliding windows and recurrent states, whatever the number of tokens."""
        held = sliding_capacity(self.sliding_window) + self.sliding_window
        heads, width = self.sliding_kv or (self.kv_heads, self.head_dim)
        windows = 2 * self.sliding_layers * heads * width * itemsize * held
        states = self.recurrent_layers * (self.state.held_bytes(itemsize) if self.state else 0)
        return windows + states

    @property
    def quantized_kv_bytes_per_token(self) -> int:
        """Bytes that one token takes in the full cache if KV has 8 bits: a byte for each number, and a scale for each
        key and each value of a head.
        """
        return 2 * self.full_layers * self.kv_heads * (self.head_dim + SCALE_BYTES)


def read_config(folder: Path) -> dict[str, Any]:
    """Read the settings of a model folder.

    Raises:
        ModelNotFound: there is no such folder, or no settings in it.
        ModelError: the settings cannot be read.
    """
    path = folder / CONFIG
    if not os.path.lexists(path):
        raise ModelNotFound(f"There is no model in {folder}: {CONFIG} is missing.", "Choose the folder that holds it.")
    return model_files.read_object(path)


def shape_of(config: Mapping[str, Any], name: str, weights_bytes: int = 0) -> ModelShape:
    """Compute the sizes of a model from its settings.

    Args:
        weights_bytes: bytes of the model's files; 0 means unknown, and two bytes per parameter are assumed.

    Raises:
        UnsupportedModel: the engine does not support the model; the message says why.
        ModelError: a number is missing or impossible.
    """
    config, name = text_settings(config), display_name(name)
    kind = config.get("model_type")
    config["model_type"] = kind = kind if isinstance(kind, str) else "nameless"
    window = _number(config, "max_position_embeddings", name) if kind in FAMILIES else 0
    check_architecture(SimpleNamespace(**config), name, window)
    family = FAMILIES[kind]
    sized = _sized(config, name)
    layers, vocabulary = sized.num_hidden_layers, _number(config, "vocab_size", name)
    tied = config.get("tie_word_embeddings", family.tied)
    embeddings = (1 if tied else 2) * vocabulary * sized.hidden_size
    _check_own(config, family, name)
    recurrent = len(recurrent_layers(sized))
    sources = _check_kv_sources(sized, name)
    inputs = parameters_of_inputs(sized)
    embeddings += inputs
    parameters = layers * parameters_of_block(sized) + embeddings
    weights_bytes = weights_bytes or 2 * parameters
    own = kv_heads_of(sized, FULL)
    shape = ModelShape(layers, *own, parameters, weights_bytes, window, embeddings)
    shape = replace(shape, expanded=is_expanded(sized), inputs=inputs, stored=stored_bytes_per_weight(sized))
    shape = replace(shape, fitted=fitted_bytes_per_weight(sized))
    shape = replace(shape, on_card=card_bytes_per_weight(sized))
    if experts_of(sized) is not None or inputs:
        shape = replace(shape, asked=layers * parameters_asked(sized) + embeddings - inputs)
    windows = set(sliding_layers(sized))
    sliding = len(windows.difference(sources))
    if sources:
        shape = replace(shape, sharing_layers=len(sources), full_sharing=len(sources.keys() - windows))
    if own != (usual := (sized.num_key_value_heads, sized.head_dim)):
        shape = replace(shape, sliding_kv=usual)
    if sliding + recurrent + len(sources) >= layers:
        raise ModelError(f"{CONFIG} of {name} names layers that the model does not have.", "Download the model again.")
    width = _number(config, "sliding_window", name) if sliding else 0
    shape = replace(shape, sliding_layers=sliding, sliding_window=width)
    return replace(shape, recurrent_layers=recurrent, state=state_size(sized) if recurrent else None)


def _sized(config: Mapping[str, Any], name: str) -> SimpleNamespace:
    """Return a model's settings with all sizes of its layers. A size that the settings do not state is derived from
    other sizes.

    Raises:
        ModelError: a number is missing or impossible.
    """
    width, layers, heads = (
        _number(config, key, name) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    inner = config.get(FAMILIES[config["model_type"]].dense_inner, config.get("moe_intermediate_size"))
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": _number(config, "num_key_value_heads", name, heads),
        "head_dim": _number(config, "head_dim", name, width // heads),
        "intermediate_size": _number(config, "intermediate_size", name, inner),
    }
    return SimpleNamespace(**{**config, **sizes})


def _check_own(config: Mapping[str, Any], family: Family, name: str) -> None:
    """Check the settings that only some families have."""
    for key, default in family.whole_numbers(SimpleNamespace(**config)).items():
        _number(config, key, name, default)
    for key in family.positive:
        value = config.get(key)
        if value is not None and (type(value) not in (int, float) or not 0 < value < _LARGEST):
            raise ModelError(f"{CONFIG} of {name} gives an impossible {key} ({value}).", "Download the model again.")


def _check_kv_sources(config: Any, name: str) -> dict[int, int]:
    """Check the number of layers without KV of their own. Return, for each of these layers, the layer whose KV it
    reads.
    """
    shared = getattr(config, "num_kv_shared_layers", None) or 0
    if type(shared) is not int or not 0 <= shared < config.num_hidden_layers:
        raise ModelError(f"{CONFIG} of {name} names layers that the model does not have.", "Download the model again.")
    return kv_sources(config)


def _number(config: Mapping[str, Any], key: str, name: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        value = default
    if type(value) is not int or not 0 < value < _LARGEST:
        raise ModelError(f"{CONFIG} of {name} gives no {key} that can be right.", "Download the model again.")
    return value
