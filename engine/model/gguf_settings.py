"""Translates the header of a GGUF file into the content of ``config.json`` and ``generation_config.json``.

Refuses unsupported files by the header alone. What differs between architectures is in the files of
``engine.model.families``. Standard library only, because the app uses this module before any other work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.config import SamplingParams, options_of
from engine.model.families import LAYOUTS
from engine.model.families.gguf_layout import OUTPUT, Header, head_dim, rope_settings

__all__ = ["settings_of"]

_VOCABULARIES = ("gpt2", "llama", "gemma4")

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
_ENDS = ("eos", "eot", "eom")
"""Fields with the tokens that end a text, a turn and a message. A model stops after each of these tokens."""


def settings_of(header: Header) -> dict[str, Any]:
    """Make the content of the model's ``config.json``.

    Raises:
        ModelError: the model is not supported; the message says why.
    """
    architecture = header.architecture
    layout = LAYOUTS.get(architecture)
    if layout is None or layout.experts not in (None, bool(header.get("expert_count"))):
        named = f"{architecture} with experts" if layout and not layout.experts else architecture or "nameless"
        raise header.refusal(f"holds a model of the kind {named}, which is not")
    if (words := header.fields.get("tokenizer.ggml.model")) not in _VOCABULARIES:
        raise header.refusal(f"has a vocabulary of the kind {words or 'nameless'}, which is not")
    settings = {here: header.get(there) for there, here in _NUMBERS.items() if header.get(there) is not None}
    settings |= {
        "model_type": layout.model_type,
        "dtype": "bfloat16",
        **{here: header.token(there) for there, here in _IDS.items()},
        "vocab_size": header.get("vocab_size", header.vocabulary),
        "tie_word_embeddings": OUTPUT not in header.names,
    }
    if layout.has_heads and (width := head_dim(header)) is not None:
        settings["head_dim"] = width
    settings |= layout.more(header)
    if "rope_parameters" not in settings:
        settings["rope_parameters"] = rope_settings(header)
    if any(isinstance(settings.get(here), list) for here in _NUMBERS.values()):
        raise header.refusal("holds layers of several shapes, which are not")
    return settings


def generation_of(header: Header, more_ends: Sequence[int] = ()) -> dict[str, Any]:
    """Make the content of the model's ``generation_config.json``: the tokens that begin and end a text, and the
    sampling settings.

    Args:
        more_ends: ids of tokens that end a text although no field of the file says so (``GgufLayout.ends``).
    """
    ids: dict[str, Any] = {here: header.token(there) for there, here in _IDS.items()}
    ends = (header.token(f"{end}_token_id") for end in _ENDS)
    ids["eos_token_id"] = list(dict.fromkeys(end for end in (*ends, *more_ends) if end is not None)) or None
    named = {one.name: one.gguf for one in options_of(SamplingParams) if one.gguf}
    sampling = {here: header.fields.get(f"general.sampling.{there}") for here, there in named.items()}
    settings = {name: value for name, value in {**ids, **sampling}.items() if value is not None}
    return {**settings, "do_sample": True} if sampling["temperature"] else settings
