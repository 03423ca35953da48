"""The training loop of the target: stages by the clock, checkpoints, a log of losses.

Owns time, learning rate, checkpoints and the log. What a sequence holds is in `samples.py`, shapes in `network.py`.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from recipe import network
from recipe.corpus import Book
from recipe.optimizer import Optimizer
from recipe.peers import Peers
from recipe.plan import Plan, Stage
from recipe.samples import ANSWER_WEIGHT, Samples

WARM_UP_STEPS = 30
FINAL_LEARNING_RATE = 0.05
"""At the end, as a share of the full rate."""
PROBE_EVERY = 50
GUIDANCE_WEIGHT = 0.6
PROBE_TOKENS = 2048
SAVE_EVERY_SECONDS = 240
SEED_STRIDE = 1_000_003
"""Keeps the rows of one process apart from those of another."""


@dataclass
class Materials:
    """Everything that training reads."""

    train: list[Book]
    held_back: list[Book]
    tokenizer: PreTrainedTokenizerFast
    device: torch.device
    seed: int
    workers: int
    peers: Peers = field(default_factory=Peers)

    def loader(self, stage: Stage, books: list[Book], seed: int, *, workers: int = 0) -> DataLoader:
        samples = Samples(
            books, self.tokenizer, length=stage.length, mix=stage.mix, skip_share=stage.skip_share, seed=seed
        )
        return DataLoader(samples, batch_size=stage.batch, num_workers=workers, pin_memory=self.device.type == "cuda")


class TargetTraining:
    """Trains the target for `minutes`, from the last checkpoint in `folder` if there is one."""

    def __init__(self, plan: Plan, materials: Materials, folder: Path, minutes: float) -> None:
        self.plan, self.materials, self.folder, self.seconds = plan, materials, folder, minutes * 60
        self.step, self.elapsed, self.tokens = 0, 0.0, 0
        self._steps_since_change = 0
        self._stopped = False
        self._guided = 0.0
        torch.manual_seed(materials.seed)
        self.model = self._fresh(plan.stages[0].num_layers)
        self.optimizer = Optimizer(self.model)
        if self._checkpoint.exists():
            self._resume()

    def run(self) -> LlamaForCausalLM:
        """Trains to the end of the time and returns the model."""
        with tqdm(
            total=round(self.seconds / 60, 1),
            unit="min",
            desc="target",
            disable=not self.materials.peers.leads,
            initial=self.elapsed / 60,
        ) as bar:
            while not self._ended:
                self._run_stage(self._stage(), bar)
        self._save()
        if self._stopped:
            raise SystemExit("Stopped; the same command goes on from here.")
        return self.model

    @property
    def _ended(self) -> bool:
        return self._stopped or self.elapsed >= self.seconds

    def stop(self, *_: Any) -> None:
        """Ends training after the step in hand, with a checkpoint: what Ctrl-C and a polite kill do."""
        self._stopped = True

    def _run_stage(self, stage: Stage, bar: tqdm) -> None:
        self._fit_layers(stage.num_layers)
        material = self.materials
        batches = iter(
            material.loader(
                stage,
                material.train,
                material.seed + self.step + SEED_STRIDE * material.peers.rank,
                workers=material.workers,
            )
        )
        saved = began = time.monotonic()
        before = self.elapsed
        while not self._ended and self._stage() is stage:
            loss = self._train_on(next(batches))
            self.tokens += stage.length * stage.batch * material.peers.count
            now = time.monotonic()
            elapsed, self._stopped = material.peers.agree(before + now - began, self._stopped)
            bar.update((elapsed - self.elapsed) / 60)
            self.elapsed = elapsed
            if self.step % PROBE_EVERY == 0 and material.peers.leads:
                self._log(stage, loss.item())
            if now - saved > SAVE_EVERY_SECONDS:
                saved = now
                self._save()

    def _train_on(self, batch: list[torch.Tensor]) -> torch.Tensor:
        ids, weights, positions, sources = (part.to(self.materials.device, non_blocking=True) for part in batch)
        with network.precision(self.materials.device):
            hidden, guided = network.guided_hidden_states(self.model, ids[:, :-1], positions[:, :-1], sources[:, 1:])
            losses = network.token_losses(self.model, hidden, ids)
        weights = weights[:, 1:]
        self._guided = float(guided.detach())
        loss = (losses * weights).sum() / weights.sum() + GUIDANCE_WEIGHT * guided
        loss.backward()
        self.materials.peers.average(p.grad for p in self.model.parameters())
        self.step += 1
        self._steps_since_change += 1
        self.optimizer.step(self._learning_rate())
        return loss.detach()

    def _learning_rate(self) -> float:
        progress, start = self.elapsed / self.seconds, self.plan.decay_from
        fallen = max(0.0, (progress - start) / (1 - start))
        decay = 1 - (1 - FINAL_LEARNING_RATE) * min(1.0, fallen)
        return self.plan.learning_rate * decay * min(1.0, self._steps_since_change / WARM_UP_STEPS)

    def _stage(self) -> Stage:
        progress = self.elapsed / self.seconds
        return next((stage for stage in self.plan.stages if progress < stage.until), self.plan.stages[-1])

    def _fresh(self, num_layers: int) -> LlamaForCausalLM:
        tokenizer = self.materials.tokenizer
        ids = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "pad": tokenizer.pad_token_id}
        model = network.build(num_layers=num_layers, width=self.plan.width, ffn=self.plan.ffn, token_ids=ids)
        return model.to(self.materials.device)

    def _fit_layers(self, num_layers: int) -> None:
        if num_layers > self.model.config.num_hidden_layers:
            self.model = network.grow(self.model, num_layers)
            self.optimizer = Optimizer(self.model)
            self._steps_since_change = 0

    @torch.no_grad()
    def probe(self, stage: Stage) -> dict[str, float]:
        """Held-back losses: book text, answers, and copied answer tokens, copies of random tokens."""
        text, answers, hits = self._held_back_losses("quote", max(256, stage.length))
        copies, _, _ = self._held_back_losses("random", min(256, stage.length))
        return {"text": text, "answer": answers, "copied": hits, "random_copies": copies}

    def _held_back_losses(self, kind: str, length: int) -> tuple[float, float, float]:
        """Losses of the tokens of weight 1 and of answers, and the share of answer tokens that are foreseen."""
        device = self.materials.device
        asking = Stage(1, length, max(1, PROBE_TOKENS // length), 0, {kind: 1.0})
        ids, weights, positions, _ = next(iter(self.materials.loader(asking, self.materials.held_back, 7)))
        logits = self.model.lm_head(
            network.hidden_states(self.model, ids[:, :-1].to(device), positions[:, :-1].to(device))
        )
        logits, wanted = logits.float().cpu(), ids[:, 1:]
        nll = torch.nn.functional.cross_entropy(logits.mT, wanted, reduction="none")
        answer, text = weights[:, 1:] == ANSWER_WEIGHT, weights[:, 1:] == 1.0
        hits = (logits.argmax(-1) == wanted)[answer].float()
        return tuple(round(float(part.mean()), 4) for part in (nll[text], nll[answer], hits))

    def _log(self, stage: Stage, loss: float) -> None:
        row = {
            "step": self.step,
            "minutes": round(self.elapsed / 60, 2),
            "tokens": self.tokens,
            "length": stage.length,
            "layers": self.model.config.num_hidden_layers,
            "loss": round(loss, 4),
            "guided": round(self._guided, 3),
            "rate": round(self._learning_rate(), 5),
            **self.probe(stage),
        }
        with (self.folder / "losses.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "target.pt"

    def _save(self) -> None:
        if not self.materials.peers.leads:
            return
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state()}
        state |= {"layers": self.model.config.num_hidden_layers, "step": self.step}
        state |= {"elapsed": self.elapsed, "tokens": self.tokens}
        torch.save(state, self._checkpoint.with_suffix(".tmp"))
        self._checkpoint.with_suffix(".tmp").replace(self._checkpoint)

    def _resume(self) -> None:
        state = torch.load(self._checkpoint, map_location=self.materials.device, weights_only=True)
        self.model = self._fresh(state["layers"])
        self.model.load_state_dict(state["model"])
        self.optimizer = Optimizer(self.model)
        self.optimizer.restore(state["optimizer"])
        self.step, self.elapsed, self.tokens = state["step"], state["elapsed"], state["tokens"]
