"""Trains the draft model, which starts from parts of the target and learns to predict the target's distribution.

Owns the draft's initial weights, its training texts and its training. What matters is that the target accepts the
draft's tokens. So the loss is the divergence from the target's distribution, never from the text. The draft reads the
same tokens as in use: the first and the newest tokens of the context, with consecutive positions. Half of the training
batches are written by the target, because in use the draft predicts the target's text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm
from transformers import LlamaForCausalLM

from recipe import network, wiring
from recipe.optimizer import Optimizer
from recipe.plan import Plan
from recipe.training import FINAL_LEARNING_RATE, WARM_UP_STEPS, Materials

LOG_EVERY = 10
SINKS = 4
SHARPNESS = 1.4
"""Factor of both models' logits in the loss. Only the few tokens that may be chosen matter."""
WRITE_EVERY, WRITTEN_ROWS = 40, 32
"""Every WRITE_EVERY steps, the target writes WRITTEN_ROWS rows. Until then, rows are drawn from these, so that each is
read several times.
"""
OTHERS_SHARE = 0.2
"""Learning rate of AdamW, relative to the rate of Muon. It is higher than for the target, because the draft must move
away from its initial weights.
"""
TEMPERATURES = (0.0, 0.6, 1.0)


def started_from(target: LlamaForCausalLM, plan: Plan) -> LlamaForCausalLM:
    """Make a draft with the target's embedding and first heads, and a lookup head, which copies from recent words."""
    config = target.config
    ids = {"bos": config.bos_token_id, "eos": config.eos_token_id, "pad": config.pad_token_id}
    draft = network.build(
        num_layers=plan.draft_layers,
        width=config.hidden_size,
        ffn=plan.draft_ffn,
        heads=plan.draft_heads,
        token_ids=ids,
    ).to(target.device)
    wiring.wire_draft(draft, target)
    return draft


def divergence(target_logits: Tensor, draft_logits: Tensor) -> Tensor:
    """Return KL(target || draft) in nats per token. Both logits (batch, seq, vocabulary) are first multiplied by
    SHARPNESS.
    """
    expected = functional.log_softmax(SHARPNESS * target_logits.float(), -1)
    given = functional.log_softmax(SHARPNESS * draft_logits.float(), -1)
    return functional.kl_div(given, expected, reduction="none", log_target=True).sum(-1)


def distill(
    target: LlamaForCausalLM,
    plan: Plan,
    materials: Materials,
    folder: Path,
    minutes: float,
    start: Path | None = None,
) -> LlamaForCausalLM:
    """Train the draft for `minutes`. These minutes include earlier runs with the same `folder`.

    start: a trained draft of an earlier target, whose weights the draft starts from.
    """
    draft, checkpoint, spent = started_from(target, plan), folder / "draft.pt", 0.0
    if start:
        draft.load_state_dict(LlamaForCausalLM.from_pretrained(start, dtype=torch.float32).state_dict())
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=target.device, weights_only=True)
        draft.load_state_dict(state["model"])
        spent = state["minutes"]
    optimizer, began, step = Optimizer(draft, range(plan.draft_layers), OTHERS_SHARE), time.monotonic(), 0
    target.requires_grad_(False)
    rows = readings(target, plan, materials, materials.seed + 1 + int(spent))
    with tqdm(total=minutes, unit="min", desc="draft", initial=spent) as bar, (folder / "draft.jsonl").open("a") as log:
        for ids in rows:
            progress = (spent + (time.monotonic() - began) / 60) / minutes
            if progress >= 1:
                break
            loss = _step(target, draft, ids, materials)
            step += 1
            decay = 1 - (1 - FINAL_LEARNING_RATE) * progress
            optimizer.step(plan.learning_rate * plan.draft_rate_share * decay * min(1.0, step / WARM_UP_STEPS))
            bar.update(progress * minutes - bar.n)
            if step % LOG_EVERY == 0:
                row = {"step": step, "minutes": round(progress * minutes, 2), "divergence": round(loss, 4)}
                log.write(json.dumps(row) + "\n")
                log.flush()
    torch.save({"model": draft.state_dict(), "minutes": max(minutes, spent)}, checkpoint)
    return draft


def readings(target: LlamaForCausalLM, plan: Plan, materials: Materials, seed: int) -> Iterator[Tensor]:
    """Yield batches of rows (batch, length) without end. Batches are alternately taken from the books and written by
    the target.
    """
    stage = plan.draft_stage
    batches = iter(materials.loader(stage, materials.train, seed, workers=materials.workers))
    generator = torch.Generator(materials.device).manual_seed(seed)
    written = torch.empty(0)
    for number in range(2**62):
        ids = next(batches)[0].to(materials.device)
        if number % WRITE_EVERY == 0:
            rows = [ids, *(next(batches)[0].to(materials.device) for _ in range(WRITTEN_ROWS // len(ids) - 1))]
            written = write(target, torch.cat(rows)[:, : stage.length // 2], stage.length, generator)
        if number % 2:
            chosen = torch.randperm(len(written), generator=generator, device=materials.device)[: stage.batch]
            yield written[chosen]
        else:
            yield ids


@torch.inference_mode()
def write(target: LlamaForCausalLM, ids: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """Let the target continue `ids` (batch, seq), each row at one of the temperatures. Returns rows of `length` + 1
    tokens.
    """
    temperature = torch.tensor(TEMPERATURES, device=ids.device).repeat(len(ids))[: len(ids), None]
    cache, newest = None, ids
    with network.precision(ids.device):
        while ids.shape[1] <= length:
            out = target(input_ids=newest, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, logits = out.past_key_values, out.logits[:, -1].float()
            drawn = torch.multinomial((logits / temperature.clamp(min=0.01)).softmax(-1), 1, generator=generator)
            newest = torch.where(temperature == 0, logits.argmax(-1, keepdim=True), drawn)
            ids = torch.cat([ids, newest], dim=1)
    return ids.clone()


def _step(target: LlamaForCausalLM, draft: LlamaForCausalLM, ids: Tensor, materials: Materials) -> float:
    """Compute gradients for one batch. Returns the loss. The target reads whole rows; the draft reads their first SINKS
    tokens and their second half.
    """
    ids = ids[:, :-1]
    half = ids.shape[1] // 2
    window = torch.cat([ids[:, :SINKS], ids[:, half:]], dim=1)
    positions = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
    with network.precision(materials.device):
        with torch.no_grad():
            expected = target.lm_head(network.hidden_states(target, ids, positions)[:, half:])
        given = network.hidden_states(draft, window, positions[:, : window.shape[1]])[:, SINKS:]
        given = draft.lm_head(given)
    loss = divergence(expected, given).mean()
    loss.backward()
    return loss.item()
