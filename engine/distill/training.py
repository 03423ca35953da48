"""Trains the draft to predict the target's distribution.

The draft begins as copies of the target's first and last layers, and shares the target's embedding and head. Rows look
like what a draft sees in use: the first tokens of a prompt, then the newest tokens. A draft is useful if the target
accepts its tokens. Acceptance depends on how close the draft's distribution is to the target's, so the loss is the
divergence between these distributions, over the tokens that the draft can produce. A stopped training continues from
the last checkpoint.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from pathlib import Path
from typing import Any, TextIO

import torch
from torch.nn import functional

from engine.distill.corpus import ROWS, Corpus, CorpusShard, logits_of
from engine.model import beside, distilled, own_head
from engine.model.architectures import logits_divisor
from engine.model.products.quantized import wide_dtype

LEARNING_RATE = 1.0e-3
BETAS = (0.9, 0.98)
CLIP = 1.0  # gradients with a larger L2 norm are scaled down to this norm
WARM_UP_STEPS = 30  # number of first steps in which the learning rate rises linearly to ``LEARNING_RATE``
BATCH_ROWS = 4
SAVE_EVERY_S = 120.0
LOG_EVERY = 10
AHEAD = 2
"""Number of tokens that a draft head learns to propose, one after another."""


def ends_of(count: int, draft_layers: int) -> list[int]:
    """Choose the indices of the target's layers that a draft of ``draft_layers`` layers copies, if the target has
    ``count`` layers: the first ``draft_layers - 1`` and the last. A draft of one layer copies the first.
    """
    return (
        list(range(count))
        if draft_layers >= count
        else [*range(draft_layers - 1), count - 1]
        if draft_layers > 1
        else [0]
    )


def started_from(target: Any, num_layers: int, token_ids: torch.Tensor) -> tuple[Any, Any]:
    """Make a draft in float32 from copies of the target's layers. Return the draft and its configuration.

    Args:
        target: a transformers causal LM.
        token_ids: (tokens,), the tokens that the draft can produce.
    """
    kept = ends_of(target.config.num_hidden_layers, num_layers)
    config = distilled.draft_config(target.config, kept, len(token_ids))
    draft = beside.skeleton(config, torch.float32, target.device)
    draft.set_attn_implementation("sdpa")
    for mine, layer in zip(draft.model.layers, kept, strict=True):
        mine.load_state_dict(target.model.layers[layer].state_dict())
    draft.model.norm.load_state_dict(target.model.norm.state_dict())
    draft.lm_head = distilled.partial_head(target, token_ids)
    draft.set_input_embeddings(target.get_input_embeddings())
    return draft, config


def head_started_from(target: Any, token_ids: torch.Tensor) -> tuple[Any, Any]:
    """Make a draft head (``engine.model.own_head``) in float32 whose layer is a copy of the target's last layer, and
    whose projection adds the embedding and the hidden state. Return the head and its configuration.

    Args:
        target: a transformers causal LM.
        token_ids: (tokens,), the tokens whose probabilities it learns.
    """
    config = own_head.config_of(target.config)
    head = own_head.skeleton(config, torch.float32, target.device)
    head.set_attn_implementation("sdpa")
    head.model.layers[0].load_state_dict(target.model.layers[own_head.layer_of(target.config)].state_dict())
    head.model.norm.load_state_dict(target.model.norm.state_dict())
    width = torch.eye(config.hidden_size, device=target.device)
    head.model.fusion.projection.weight.data.copy_(torch.cat([width, width], dim=1))
    head.lm_head = distilled.partial_head(target, token_ids)
    head.set_input_embeddings(target.get_input_embeddings())
    return head, config


class Training:
    """Trains a draft on a corpus and keeps checkpoints in a folder.

    Args:
        target: a transformers causal LM.
        draft: the draft that ``started_from`` made.
        corpus: the corpus of the target's own text.
        shards, epochs: number of shards to train on, and number of times that each row is read.
        folder: folder of the checkpoint and the log.
        seed: seed of the order of rows.
    """

    def __init__(
        self, target: Any, draft: Any, corpus: Corpus, shards: int, epochs: int, folder: Path, seed: int
    ) -> None:
        self._target, self._draft, self._corpus = target, draft, corpus
        self._shards, self._folder, self._seed = shards, folder, seed
        self.num_steps = shards * epochs * ROWS // BATCH_ROWS
        self.step = 0
        self._held: dict[int, CorpusShard] = {}
        own = [p for name, p in draft.named_parameters() if not name.startswith(("model.embed_tokens.", "lm_head."))]
        self._own = own
        self._optimizer = torch.optim.AdamW(own, lr=LEARNING_RATE, betas=BETAS, weight_decay=0.0)
        self._wide = wide_dtype(torch.bfloat16) if target.device.type == "cpu" else torch.bfloat16
        if self._checkpoint.exists():
            self._resume()

    @property
    def _checkpoint(self) -> Path:
        return self._folder / "checkpoint.pt"

    def run(self, progress: TextIO) -> None:
        """Train until all steps are done. Write a line to ``progress`` every ``LOG_EVERY`` steps."""
        saved = time.monotonic()
        while self.step < self.num_steps:
            measured = self.learn()
            if measured is not None:
                self._log({"step": self.step, **measured})
                figures = ", ".join(f"{name} {value:.3f}" for name, value in measured.items())
                progress.write(f"step {self.step} of {self.num_steps}: {figures}\n")
            if time.monotonic() - saved > SAVE_EVERY_S:
                self._save()
                saved = time.monotonic()
        self._save()

    def learn(self) -> dict[str, float] | None:
        """Train for one step. Every ``LOG_EVERY`` steps, return the divergence in nats and the expected acceptance
        rate; otherwise return None.
        """
        tokens, hidden = self._batch()
        expected, given = self._distributions(tokens, hidden)
        loss = functional.kl_div(given, expected, reduction="none", log_target=True).sum(-1).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._own, CLIP)
        done = self.step / self.num_steps
        rate = LEARNING_RATE * min(1.0, (self.step + 1) / WARM_UP_STEPS) * 0.5 * (1.0 + math.cos(math.pi * done))
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.step += 1
        if self.step % LOG_EVERY:
            return None
        return {"divergence": loss.item(), "accepted": self._overlap(hidden, given.detach())}

    def _distributions(self, tokens: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the log probabilities of the target and of the draft, both (rows, length, tokens). Only the tokens
        that the draft can produce are included.
        """
        head, divisor = self._draft.lm_head.linear, logits_divisor(self._draft.config)
        with torch.autocast(self._target.device.type, self._wide, enabled=self._wide is not torch.float32):
            own = self._draft.model(input_ids=tokens, use_cache=False).last_hidden_state
            theirs, ours = (head(states.to(head.weight.dtype)).float() / divisor for states in (hidden, own))
        return functional.log_softmax(theirs, -1), functional.log_softmax(ours, -1)

    @torch.no_grad()
    def _overlap(self, hidden: torch.Tensor, given: torch.Tensor) -> float:
        """Compute the expected acceptance rate of rejection sampling: the sum of min(p, q) over the vocabulary,
        averaged over all positions. p and q are the target's and the draft's probabilities.
        """
        chance = logits_of(self._target, hidden).softmax(-1)[..., self._draft.lm_head.token_ids]
        return float(torch.minimum(chance, given.exp()).sum(-1).mean())

    def _batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Read the rows of the current step from a shard: tokens (rows, length) and hidden states (rows, length, hidden
        size). Every epoch reads the rows in a different order.
        """
        per_shard = ROWS // BATCH_ROWS
        turn, within = divmod(self.step, per_shard)
        epoch, place = divmod(turn, self._shards)
        number = place
        if epoch:  # the first epoch reads the shards by number, because they are made in it
            number = random.Random(f"{self._seed}/epoch {epoch}").sample(range(self._shards), self._shards)[place]
        if number not in self._held:
            self._held = {number: self._corpus.shard(number)}
        order = random.Random(f"{self._seed}/{epoch}/{number}").sample(range(ROWS), ROWS)
        chosen = torch.tensor(order[within * BATCH_ROWS : (within + 1) * BATCH_ROWS])
        shard, device = self._held[number], self._target.device
        return shard.tokens[chosen].to(device), shard.hidden[chosen].to(device, self._target.dtype)

    def _save(self) -> None:
        state = {"step": self.step, "draft": self._own, "optimizer": self._optimizer.state_dict()}
        partial = self._checkpoint.with_suffix(".tmp")
        torch.save(state, partial)
        os.replace(partial, self._checkpoint)

    def _resume(self) -> None:
        state = torch.load(self._checkpoint, map_location=self._target.device, weights_only=True)
        with torch.no_grad():
            for parameter, saved in zip(self._own, state["draft"], strict=True):
                parameter.copy_(saved)
        self._optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]

    def _log(self, row: dict[str, Any]) -> None:
        with (self._folder / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps({name: round(value, 4) for name, value in row.items()}) + "\n")


class HeadTraining(Training):
    """Trains a draft head on the target's hidden states. The head learns the distributions of the next ``AHEAD``
    tokens: of the first from the target's hidden state, and of each further token from its own output, as in use.
    """

    def _distributions(self, tokens: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        head, model = self._draft.lm_head.linear, self._draft.model
        divisor = logits_divisor(self._draft.config)
        expected: list[torch.Tensor] = []
        given: list[torch.Tensor] = []
        with torch.autocast(self._target.device.type, self._wide, enabled=self._wide is not torch.float32):
            states = hidden
            for ahead in range(1, AHEAD + 1):
                following = tokens[:, ahead:]
                fused = model.fusion(model.embed_tokens(following), states[:, : following.shape[1]])
                states = model(inputs_embeds=fused, use_cache=False).last_hidden_state
                for results, source in ((expected, hidden[:, ahead:]), (given, states)):
                    logits = head(source.to(head.weight.dtype)).float() / divisor
                    results.append(functional.log_softmax(logits, -1))
        return torch.cat(expected, dim=1), torch.cat(given, dim=1)

    @torch.no_grad()
    def _overlap(self, hidden: torch.Tensor, given: torch.Tensor) -> float:
        count = hidden.shape[1] - 1
        return super()._overlap(hidden[:, 1:], given[:, :count])
