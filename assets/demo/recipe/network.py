"""The two networks: ordinary transformers Llama models, how they start, grow and are run in training.

Owns shapes and the training forward pass. Knows nothing of the data.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from recipe import guidance
from recipe.vocabulary import MAX_POSITIONS, VOCABULARY_SIZE

HEAD_DIM = 64
ROPE_BASE = 1e8
"""So large that over 128K tokens about a third of each head turns by less than a radian: matching words by
content then works at any distance, while the fast third still tells neighbours apart."""


def build(*, num_layers: int, width: int, ffn: int, token_ids: dict[str, int]) -> LlamaForCausalLM:
    """A fresh model; `token_ids` gives bos, eos and pad."""
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=width,
        intermediate_size=ffn,
        num_hidden_layers=num_layers,
        num_attention_heads=width // HEAD_DIM,
        num_key_value_heads=width // HEAD_DIM,
        head_dim=HEAD_DIM,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_BASE},
        tie_word_embeddings=True,
        bos_token_id=token_ids["bos"],
        eos_token_id=token_ids["eos"],
        pad_token_id=token_ids["pad"],
    )
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:
        _silence(layer)
    return model


def grow(model: LlamaForCausalLM, num_layers: int) -> LlamaForCausalLM:
    """The same function with more layers: each new one starts as a silent copy, spread evenly among the old."""
    old = list(model.model.layers)
    extra = num_layers - len(old)
    if extra <= 0:
        return model
    copies_after = [round(extra * (i + 1) / len(old)) - round(extra * i / len(old)) for i in range(len(old))]
    layers = []
    for layer, copies in zip(old, copies_after, strict=True):
        layers.append(layer)
        layers += [_silence(copy.deepcopy(layer)) for _ in range(copies)]
    for number, layer in enumerate(layers):
        layer.self_attn.layer_idx = number
    model.model.layers = nn.ModuleList(layers)
    model.config.num_hidden_layers = len(layers)
    return model


def hidden_states(model: LlamaForCausalLM, ids: Tensor, positions: Tensor) -> Tensor:
    """Final hidden states, (batch, seq, width), causal over the whole row whatever the positions say."""
    return _run(model, ids, positions, None)[0]


def guided_hidden_states(
    model: LlamaForCausalLM, ids: Tensor, positions: Tensor, sources: Tensor
) -> tuple[Tensor, Tensor]:
    """The same, and how far the guided heads are from looking where they should; sources as in `guidance`."""
    return _run(model, ids, positions, sources)


def _run(model: LlamaForCausalLM, ids: Tensor, positions: Tensor, sources: Tensor | None) -> tuple[Tensor, Tensor]:
    body = model.model
    hidden = body.embed_tokens(ids)
    rotary = body.rotary_emb(hidden, positions)
    back, lookup = guidance.guided_layers(len(body.layers))
    guided = hidden.new_zeros(())
    for number, layer in enumerate(body.layers):
        if sources is not None and number == back:
            guided = guided + guidance.looking_back_loss(layer, hidden, rotary)
        if sources is not None and number == lookup:
            guided = guided + guidance.lookup_loss(layer, hidden, rotary, sources)
        hidden = layer(hidden, attention_mask=None, position_ids=positions, position_embeddings=rotary)
    return body.norm(hidden), guided


def precision(device: torch.device) -> AbstractContextManager[None]:
    """bfloat16 arithmetic where the device is fast at it, float32 elsewhere."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


def token_losses(model: LlamaForCausalLM, hidden: Tensor, ids: Tensor) -> Tensor:
    """Cross entropy of every next token, (batch, seq - 1), from the hidden states of all but the last."""
    logits = model.lm_head(hidden).float()
    return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(ids.shape[0], -1)


def _silence(layer: nn.Module) -> nn.Module:
    """Makes a layer add nothing, until training says otherwise."""
    nn.init.zeros_(layer.self_attn.o_proj.weight)
    nn.init.zeros_(layer.mlp.down_proj.weight)
    return layer
