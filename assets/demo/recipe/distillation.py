"""The draft: begins as pieces of the target and learns to foresee its distribution.

Owns the draft's start and its training. It is judged only by how often the target accepts its tokens, so the loss is
the divergence from the target's own distribution, never from the text.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm
from transformers import LlamaForCausalLM

from recipe import network
from recipe.optimizer import Optimizer
from recipe.plan import Plan
from recipe.training import FINAL_LEARNING_RATE, WARM_UP_STEPS, Materials

LOG_EVERY = 10


def started_from(target: LlamaForCausalLM, num_layers: int) -> LlamaForCausalLM:
    """A draft with the target's embedding and `num_layers` of its layers, the first ones and the last."""
    config = target.config
    ids = {"bos": config.bos_token_id, "eos": config.eos_token_id, "pad": config.pad_token_id}
    draft = network.build(
        num_layers=num_layers, width=config.hidden_size, ffn=config.intermediate_size, token_ids=ids
    ).to(target.device)
    draft.model.embed_tokens.load_state_dict(target.model.embed_tokens.state_dict())
    draft.model.norm.load_state_dict(target.model.norm.state_dict())
    taken = [*target.model.layers[: num_layers - 1], target.model.layers[-1]]
    for mine, theirs in zip(draft.model.layers, taken, strict=True):
        mine.load_state_dict(theirs.state_dict())
    return draft


def divergence(target_logits: Tensor, draft_logits: Tensor) -> Tensor:
    """KL(target || draft) in nats per token, from logits (batch, seq, vocabulary)."""
    expected = functional.log_softmax(target_logits.float(), -1)
    given = functional.log_softmax(draft_logits.float(), -1)
    return functional.kl_div(given, expected, reduction="none", log_target=True).sum(-1)


def distill(
    target: LlamaForCausalLM, plan: Plan, materials: Materials, folder: Path, minutes: float
) -> LlamaForCausalLM:
    """Trains the draft until it has had `minutes`, over all runs that ended in `folder`."""
    draft, checkpoint, spent = started_from(target, plan.draft_layers), folder / "draft.pt", 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=target.device, weights_only=True)
        draft.load_state_dict(state["model"])
        spent = state["minutes"]
    optimizer, began, step = Optimizer(draft), time.monotonic(), 0
    loader = materials.loader(
        plan.draft_stage, materials.train, materials.seed + 1 + int(spent), workers=materials.workers
    )
    with tqdm(total=minutes, unit="min", desc="draft", initial=spent) as bar, (folder / "draft.jsonl").open("a") as log:
        for batch in loader:
            progress = (spent + (time.monotonic() - began) / 60) / minutes
            if progress >= 1:
                break
            loss = _step(target, draft, batch, materials)
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


def _step(target: LlamaForCausalLM, draft: LlamaForCausalLM, batch: list[Tensor], materials: Materials) -> float:
    ids, _, positions, _ = (part.to(materials.device) for part in batch)
    with network.precision(materials.device):
        with torch.no_grad():
            expected = target.lm_head(network.hidden_states(target, ids, positions))
        given = draft.lm_head(network.hidden_states(draft, ids, positions))
    loss = divergence(expected, given).mean()
    loss.backward()
    return loss.item()
