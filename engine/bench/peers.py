"""The peers: transformers' own generate on a copy of the same KV: plain, with prompt lookup, the draft as assistant.

What a peer does once at its start (a copy of the KV, the assistant's own prefill of the whole context) is left out of
its time per token: the first step of every peer is not counted.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from engine.bench.report import Run

if TYPE_CHECKING:
    from engine.kv.full import FullCache
    from engine.model.decoder import Decoder

PEERS = ("hf_generate", "hf_prompt_lookup", "hf_assisted")
# Tokens that transformers' prompt lookup proposes at once: the value of its documentation's example.
_LOOKUP_TOKENS = 10


def generate(
    peer: str,
    target: Decoder,
    draft: Decoder | None,
    full: FullCache,
    prompt: list[int],
    count: int,
    end_ids: list[int] | None,
    sampling: dict[str, Any],
) -> Run:
    """At most ``count`` tokens after ``prompt``, all of which but the last is in ``full``.

    Args:
        end_ids: tokens that end the text; None decodes all.
        sampling: temperature, top_p and seed; greedy at temperature 0.
    """
    from transformers import DynamicCache, StoppingCriteriaList

    model = target.model
    cache = DynamicCache(config=model.config, offloading=peer == "hf_offloaded")
    for layer in range(target.num_layers):
        k, v = full.keys(layer, 0, full.length), full.values(layer, 0, full.length)
        cache.update(k.unsqueeze(0).clone(), v.unsqueeze(0).clone(), layer)
    ids = target.ids(prompt).unsqueeze(0)
    stamps: list[tuple[int, float]] = []

    def stamp(seen: torch.Tensor, _scores: Any, **_: Any) -> torch.Tensor:
        stamps.append((seen.shape[1], time.perf_counter()))
        return torch.zeros(1, dtype=torch.bool, device=ids.device)

    options: dict[str, Any] = {"do_sample": sampling["temperature"] > 0}
    if options["do_sample"]:
        options |= {"temperature": sampling["temperature"], "top_p": sampling["top_p"], "top_k": 0}
    if peer == "hf_prompt_lookup":
        options["prompt_lookup_num_tokens"] = _LOOKUP_TOKENS
    if peer == "hf_assisted":
        assert draft is not None
        options["assistant_model"] = draft.model
    with _own_attention(model), _own_attention(draft.model if draft else model), _only_what_is_new(model):
        torch.manual_seed(sampling["seed"])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            past_key_values=cache,
            max_new_tokens=count,
            eos_token_id=end_ids,
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([stamp]),
            **options,
        )
    return _run(out[0, len(prompt) :].tolist(), len(prompt), stamps)


def _run(tokens: list[int], start: int, stamps: list[tuple[int, float]]) -> Run:
    """Tokens with the time of each; those of the first step count as the mean of the others."""
    run = Run(tokens=tokens)
    for (before, began), (after, ended) in itertools.pairwise(stamps):
        made = min(after, start + len(tokens)) - before
        if made > 0:
            run.ms += [(ended - began) * 1000.0 / made] * made
    return run


@contextmanager
def _own_attention(model: Any) -> Iterator[None]:
    """transformers' default attention for a while."""
    own = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(own)


@contextmanager
def _only_what_is_new(model: Any) -> Iterator[None]:
    """The first step of transformers' assisted decoding feeds the whole prompt, even what a given cache holds already
    (seen in 5.23: other tokens come out). For a while it feeds the rest only."""
    own = model.prepare_inputs_for_generation

    @functools.wraps(own)  # generate checks its options against this signature
    def prepare(input_ids: torch.Tensor, *args: Any, **options: Any) -> Any:
        past = options.get("past_key_values")
        known = past.get_seq_length() if past is not None else 0
        if options.get("next_sequence_length", 0) is None and known:
            options["next_sequence_length"] = input_ids.shape[1] - known
        return own(input_ids, *args, **options)

    model.prepare_inputs_for_generation = prepare
    try:
        yield
    finally:
        del model.prepare_inputs_for_generation
