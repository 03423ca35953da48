"""Fingerprints of what KV depends on besides the text: weights, configuration, tokenizer, RoPE.

Taken from what is loaded, not from files, so that it is the same however the model came here, and so that no other
weights can pass for these.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch

from engine.models import Decoder

# Says where a model came from or how it is run, not what it computes.
_NOT_ABOUT_VALUES = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "use_cache")
# Single values of each tensor that are hashed besides the sum of all its bits.
_SAMPLES = 1024
_WORD = 8  # bytes of the integers that are summed


def of_model(decoder: Decoder) -> str:
    """SHA-256 over the configuration and, of every tensor of weights, name, kind, the sum of its bits and samples."""
    digest = hashlib.sha256(json.dumps(_meaning(decoder.config.to_dict()), sort_keys=True, default=str).encode())
    with torch.inference_mode():
        for name, weights in sorted(decoder.model.named_parameters()):
            digest.update(f"{name} {tuple(weights.shape)} {weights.dtype} {_bits(weights)}".encode())
            flat = weights.flatten()
            sample = flat[:: max(1, flat.numel() // _SAMPLES)].contiguous().cpu()
            digest.update(sample.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def of_vocabulary(vocabulary: Mapping[str, int]) -> str:
    """SHA-256 over every token and its id."""
    return hashlib.sha256(json.dumps(sorted(vocabulary.items())).encode()).hexdigest()


def of_rope(decoder: Decoder) -> str:
    """RoPE's parameters in one line; with the window where the frequencies depend on it."""
    config = decoder.config
    parameters = dict(getattr(config, "rope_parameters", None) or {})
    if decoder.rope_depends_on_window:
        parameters["window"] = decoder.window
    return json.dumps(parameters, sort_keys=True, default=str)


def _meaning(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in _NOT_ABOUT_VALUES}


def _bits(weights: torch.Tensor) -> int:
    flat = weights.detach().contiguous().view(torch.uint8).flatten()
    whole = flat.numel() // _WORD * _WORD
    return int(flat[:whole].view(torch.int64).sum()) + int(flat[whole:].sum())
