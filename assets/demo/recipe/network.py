"""Builds the two networks, which are Llama models of transformers, and runs their forward passes in training.

Owns shapes and the training forward pass. Knows nothing of the data.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

from recipe import attention, guidance, wiring
from recipe.vocabulary import MAX_POSITIONS, VOCABULARY_SIZE

ROPE_BASE = 1e16
"""RoPE's base. It is so large that two thirds of each head's pairs turn by less than half a radian over 128K tokens, so
that matching by content works at any distance. The fast third still distinguishes neighbouring positions.
"""
Memory = list[tuple[Tensor, Tensor]]
LOGITS_AT_ONCE = 8192
"""Maximum tokens whose logits are in memory at once: 4 KB each, and as much again for the gradient."""


def build(*, num_layers: int, width: int, ffn: int, heads: int, token_ids: dict[str, int]) -> LlamaForCausalLM:
    """Make a new model. `token_ids` has the ids of bos, eos and pad. The output projections of all layers are zero, so
    layers add nothing at first.
    """
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=width,
        intermediate_size=ffn,
        num_hidden_layers=num_layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=wiring.HEAD_DIM,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_BASE},
        tie_word_embeddings=True,
        bos_token_id=token_ids["bos"],
        eos_token_id=token_ids["eos"],
        pad_token_id=token_ids["pad"],
    )
    config._attn_implementation = attention.NAME
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


def hidden_states(model: LlamaForCausalLM, ids: Tensor, positions: Tensor) -> Tensor:
    """Return the final hidden states (batch, seq, width). Attention is causal in the order of a row, whatever
    `positions` are.
    """
    return _run(model, ids, positions, None, None)[0]


@torch.no_grad()
def read(model: LlamaForCausalLM, ids: Tensor) -> Memory:
    """Compute the keys and values of every layer for a long text (1, seq), without gradient."""
    body, kept = model.model, []
    hidden = body.embed_tokens(ids)
    positions = torch.arange(ids.shape[1], device=ids.device)[None]
    rotary = body.rotary_emb(hidden, positions)
    for layer in body.layers:
        hidden = layer(hidden, attention_mask=None, position_ids=positions, position_embeddings=rotary, kept=kept)
    return kept


def shortened(memory: Memory, first: int, last: int) -> Memory:
    """Keep only the `first` and the `last` places of a memory, like a streaming cache."""
    return [
        (torch.cat([k[:, :, :first], k[:, :, -last:]], 2), torch.cat([v[:, :, :first], v[:, :, -last:]], 2))
        for k, v in memory
    ]


def hidden_states_after(model: LlamaForCausalLM, memory: Memory, ids: Tensor, begin: int) -> Tensor:
    """Return the final hidden states of rows (batch, seq) that follow the text of `memory`. `begin`: position of the
    first token of each row.
    """
    body = model.model
    hidden = body.embed_tokens(ids)
    positions = torch.arange(begin, begin + ids.shape[1], device=ids.device)[None]
    rotary = body.rotary_emb(hidden, positions)
    for layer in body.layers:
        hidden = layer(hidden, attention_mask=None, position_ids=positions, position_embeddings=rotary, memory=memory)
    return body.norm(hidden)


def guided_hidden_states(
    model: LlamaForCausalLM,
    ids: Tensor,
    positions: Tensor,
    places: tuple[Tensor, Tensor, Tensor],
    bank: guidance.KeyBank,
) -> tuple[Tensor, Tensor]:
    """Return the hidden states as `hidden_states` does, and the sum of the losses of `guidance`. places: the sources,
    echoes and starts of the tokens (see `guidance`), which these losses need.
    """
    return _run(model, ids, positions, places, bank)


def _run(
    model: LlamaForCausalLM,
    ids: Tensor,
    positions: Tensor,
    places: tuple[Tensor, Tensor, Tensor] | None,
    bank: guidance.KeyBank | None,
) -> tuple[Tensor, Tensor]:
    body = model.model
    hidden = body.embed_tokens(ids)
    rotary = body.rotary_emb(hidden, positions)
    guided = hidden.new_zeros(())
    for number, layer in enumerate(body.layers):
        if places and bank and number == wiring.LOOKUP_LAYER:
            guided = guided + guidance.lookup_loss(layer, hidden, rotary, places[0], bank)
            guided = guided + guidance.question_loss(layer, hidden, rotary, places[1])
        if places and bank and number == wiring.START_LAYER:
            guided = guided + guidance.start_loss(layer, hidden, rotary, places[2])
        hidden = layer(hidden, attention_mask=None, position_ids=positions, position_embeddings=rotary)
    return body.norm(hidden), guided


def precision(device: torch.device) -> AbstractContextManager[None]:
    """Return a context in which matrix products are computed in bfloat16."""
    return torch.autocast(device.type, torch.bfloat16)


def token_losses(model: LlamaForCausalLM, hidden: Tensor, ids: Tensor) -> Tensor:
    """Return the cross entropy of every next token (batch, seq - 1). `hidden` has the states of all tokens but the
    last.
    """

    def losses(part: Tensor, wanted: Tensor) -> Tensor:
        return functional.cross_entropy(model.lm_head(part).float(), wanted, reduction="none")

    states, wanted = hidden.flatten(0, 1), ids[:, 1:].flatten()
    if len(states) <= LOGITS_AT_ONCE:
        return losses(states, wanted).view(ids.shape[0], -1)
    parts = zip(states.split(LOGITS_AT_ONCE), wanted.split(LOGITS_AT_ONCE), strict=True)
    return torch.cat([checkpoint(losses, *part, use_reentrant=False) for part in parts]).view(ids.shape[0], -1)
