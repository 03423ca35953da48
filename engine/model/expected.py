"""Derives two facts about a model from its configuration: the shape of its KV, and whether a GPU may use rounded
weights.
"""

from __future__ import annotations

from typing import Any

import torch

from engine.model.architectures import kv_heads_of, kv_sources, recurrent_layers, sliding_layers, state_size
from engine.model.families import FAMILIES, FULL, SLIDING
from engine.model.kv_shape import KvShape, Recurrent, Sliding
from engine.quantization import BITS


def kv_shape_of(config: Any, dtype: torch.dtype, device: torch.device) -> KvShape:
    """Derive the shape of a model's KV from its configuration alone."""
    sources = kv_sources(config)
    windowed = tuple(layer for layer in sliding_layers(config) if layer not in sources)
    sliding = Sliding(windowed, config.sliding_window, *kv_heads_of(config, SLIDING)) if windowed else None
    numbers = recurrent_layers(config)
    states = Recurrent(numbers, state_size(config)) if numbers else None
    layers = config.num_hidden_layers - len(windowed) - len(numbers) - len(sources)
    heads = kv_heads_of(config, FULL)
    shared = tuple(sources.items())
    group = config.num_attention_heads // heads[0]
    return KvShape(layers, *heads, dtype, device, sliding=sliding, recurrent=states, sources=shared, group=group)


def can_round(config: Any, weights: str, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a model's passes over the retrieval cache can use weights rounded to ``weights`` ("8bit" or "4bit") on a
    GPU.

    Only "4bit" is allowed. 8-bit weights are slow on a GPU: each thread of torch's product reads all weights of one
    output, so neighbouring threads read distant addresses (pytorch 190529).
    """
    known = FAMILIES[config.model_type].plain and dtype is torch.bfloat16
    return known and device.type == "cuda" and weights in BITS and BITS[weights] == 4
