"""The draft: begins as pieces of the target and learns to foresee its distribution.

Owns the draft's start, what it reads and its training. It is judged only by how often the target accepts its tokens, so
the loss is the divergence from the target's own distribution, never from the text; and it reads as it will in use: the
first tokens of the context and the newest ones, positions counted among these. A good part of what it reads the target
has written itself, because that is what it will have to foresee.
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
"""By which both sides' logits are multiplied in the loss: what counts is the few tokens that may be chosen."""
WRITE_EVERY, WRITTEN_ROWS = 40, 32
"""The target writes this many rows before every so many steps; each is read several times until the next."""
OTHERS_SHARE = 0.2
"""AdamW's rate; higher than for the target, because the draft has to get away from where it starts."""
TEMPERATURES = (0.0, 0.6, 1.0)


def started_from(target: LlamaForCausalLM, plan: Plan) -> LlamaForCausalLM:
    """A draft with the target's embedding and first heads, and a lookup head for words said a moment ago."""
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
    """KL(target || draft) in nats per token after sharpening, from logits (batch, seq, vocabulary)."""
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
    """Trains the draft until it has had `minutes`, over all runs that ended in `folder`.

    start: a trained draft to begin with, of an earlier target.
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
    """Endless batches of rows (batch, length): by turns from the books and written by the target."""
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
    """Rows of `length` tokens that the target continues from (batch, seq), each at one of the temperatures."""
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
    """The target reads whole rows, the draft their first few tokens and their second half."""
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
