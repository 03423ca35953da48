"""The training loop of the target, with timed stages, checkpoints and a log of losses.

Owns time, learning rate, checkpoints and the log. `samples.py` makes the sequences, `network.py` has the shapes.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from recipe import network, wiring
from recipe.corpus import Book
from recipe.guidance import KeyBank
from recipe.optimizer import Optimizer
from recipe.peers import Peers
from recipe.plan import Plan, Stage
from recipe.samples import ANSWER_WEIGHT, Samples
from recipe.vocabulary import ASSISTANT, SYSTEM, USER, closers

WARM_UP_STEPS = 30
FINAL_LEARNING_RATE = 0.05
"""Learning rate at the end, as a share of the full rate."""
PROBE_EVERY = 50
MEMORY_EVERY = 3
GUIDANCE_WEIGHT = 0.3
CONSISTENCY_WEIGHT = 0.5
SINKS, RECENT = 8, (128, 1024)
"""Tokens that the shortened memory keeps: at the beginning of a long text, and (range) at its end."""
BANK_KEYS = 16384
"""Maximum places of earlier batches in the loss of the lookup heads."""
PROBE_TOKENS = 2048
SAVE_EVERY_SECONDS = 240
SEED_STRIDE = 1_000_003
"""Distance between the seeds of two processes, so that the processes train on different rows."""


@dataclass
class Materials:
    """Data and settings that training reads."""

    train: list[Book]
    held_back: list[Book]
    tokenizer: PreTrainedTokenizerFast
    device: torch.device
    seed: int
    workers: int
    peers: Peers = field(default_factory=Peers)

    def samples(self, stage: Stage, books: list[Book], seed: int) -> Samples:
        return Samples(
            books, self.tokenizer, length=stage.length, mix=stage.mix, skip_share=stage.skip_share, seed=seed
        )

    def loader(self, stage: Stage, books: list[Book], seed: int, *, workers: int = 0) -> DataLoader:
        samples = self.samples(stage, books, seed)
        return DataLoader(samples, batch_size=stage.batch, num_workers=workers, pin_memory=self.device.type == "cuda")


class TargetTraining:
    """Trains the target for `minutes`, starting from the last checkpoint in `folder` if there is one.

    start: a trained target of the same shape, whose weights are copied. The hand-set weights are set again.
    """

    def __init__(
        self, plan: Plan, materials: Materials, folder: Path, minutes: float, start: Path | None = None
    ) -> None:
        self.plan, self.materials, self.folder, self.seconds = plan, materials, folder, minutes * 60
        self.step, self.elapsed, self.tokens = 0, 0.0, 0
        self._stopped = False
        self._guided = 0.0
        torch.manual_seed(materials.seed)
        self.model = self._fresh()
        if start:
            trained = LlamaForCausalLM.from_pretrained(start, dtype=torch.float32).to(materials.device)
            wiring.take_over(self.model, trained, self._special)
        self._guard = wiring.Guard(self.model, self._special)
        self._wired = {*wiring.WIRED_HEADS, wiring.START_LAYER, plan.num_layers - 1}
        self.optimizer = Optimizer(self.model, self._wired)
        self._bank = KeyBank(BANK_KEYS)
        if self._checkpoint.exists():
            self._resume()

    def run(self) -> LlamaForCausalLM:
        """Train until the time is over. Returns the model."""
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
        """End training after the current step, with a checkpoint. Called on Ctrl-C and SIGTERM."""
        self._stopped = True

    def _run_stage(self, stage: Stage, bar: tqdm) -> None:
        material = self.materials
        seed = material.seed + self.step + SEED_STRIDE * material.peers.rank
        batches = iter(material.loader(stage, material.train, seed, workers=material.workers))
        texts = material.samples(stage, material.train, seed).with_memory(stage.memory, stage.memory_rows)
        saved = began = time.monotonic()
        before = self.elapsed
        while not self._ended and self._stage() is stage:
            if stage.memory and self.step % MEMORY_EVERY == 0:
                loss = self._train_behind(next(texts))
                tokens = stage.length * stage.memory_rows
            else:
                loss = self._train_on(next(batches))
                tokens = stage.length * stage.batch
            self.tokens += tokens * material.peers.count
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
        batch = [part.to(self.materials.device, non_blocking=True) for part in batch]
        ids, weights, positions, *places = batch
        with network.precision(self.materials.device):
            hidden, guided = network.guided_hidden_states(
                self.model, ids[:, :-1], positions[:, :-1], tuple(place[:, 1:] for place in places), self._bank
            )
            losses = network.token_losses(self.model, hidden, ids)
        weights = weights[:, 1:]
        self._guided = float(guided.detach())
        return self._learn((losses * weights).sum() / weights.sum() + GUIDANCE_WEIGHT * guided)

    def _train_behind(self, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Train one step on short rows that follow a long text. Only the rows have gradients."""
        text, ids, weights = (part.to(self.materials.device) for part in batch)
        with network.precision(self.materials.device):
            memory, begin = network.read(self.model, text), text.shape[1]
            hidden = network.hidden_states_after(self.model, memory, ids[:, :-1], begin)
            losses = network.token_losses(self.model, hidden, ids)
            apart = self._forgetting(memory, hidden[:1], ids[:1, :-1], begin)
        weights = weights[:, 1:]
        return self._learn((losses * weights).sum() / weights.sum() + CONSISTENCY_WEIGHT * apart)

    def _forgetting(self, memory: network.Memory, hidden: torch.Tensor, ids: torch.Tensor, begin: int) -> torch.Tensor:
        """Compute the divergence between two predictions of plain text (1, seq) that follows a long text. One
        prediction sees the whole long text, the other only its sinks and its newest tokens.

        Training reduces the divergence, so that a small cache predicts the full cache's tokens. Then only quoting needs
        the whole book.
        """
        few = network.shortened(memory, SINKS, random.randint(*RECENT))
        short = network.hidden_states_after(self.model, few, ids, begin)
        whole = self.model.lm_head(hidden.detach()).float().detach().log_softmax(-1)
        part = self.model.lm_head(short).float().log_softmax(-1)
        return torch.nn.functional.kl_div(part[0], whole[0], reduction="batchmean", log_target=True)

    def _learn(self, loss: torch.Tensor) -> torch.Tensor:
        loss.backward()
        self.materials.peers.average(p.grad for p in self.model.parameters())
        self.step += 1
        self.optimizer.step(self._learning_rate())
        self._guard.restore(self.model)
        return loss.detach()

    def _learning_rate(self) -> float:
        progress, start = self.elapsed / self.seconds, self.plan.decay_from
        fallen = max(0.0, (progress - start) / (1 - start))
        decay = 1 - (1 - FINAL_LEARNING_RATE) * min(1.0, fallen)
        return self.plan.learning_rate * decay * min(1.0, self.step / WARM_UP_STEPS)

    def _stage(self) -> Stage:
        progress = self.elapsed / self.seconds
        return next((stage for stage in self.plan.stages if progress < stage.until), self.plan.stages[-1])

    def _fresh(self) -> LlamaForCausalLM:
        tokenizer, plan = self.materials.tokenizer, self.plan
        ids = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "pad": tokenizer.pad_token_id}
        model = network.build(
            num_layers=plan.num_layers, width=plan.width, ffn=plan.ffn, heads=plan.heads, token_ids=ids
        )
        wiring.wire(model, self._special, self.materials.seed)
        return model.to(self.materials.device)

    @property
    def _special(self) -> wiring.Special:
        tokenizer = self.materials.tokenizer
        openers = tokenizer.convert_tokens_to_ids([SYSTEM, USER, ASSISTANT])
        ellipsis = tokenizer("…", add_special_tokens=False).input_ids[-1]
        return wiring.Special(tokenizer.bos_token_id, *openers, ellipsis, closers(tokenizer))

    @torch.no_grad()
    def probe(self, stage: Stage) -> dict[str, float]:
        """Measure on held-back books: the losses of book text, answers and copies of random tokens, and the share of
        correctly predicted answer tokens (`copied`).
        """
        text, answers, hits = self._held_back_losses("quote", max(256, stage.length))
        copies, _, _ = self._held_back_losses("random", min(256, stage.length))
        return {"text": text, "answer": answers, "copied": hits, "random_copies": copies}

    def _held_back_losses(self, kind: str, length: int) -> tuple[float, float, float]:
        """Return the mean loss of the tokens with weight 1, the mean loss of answer tokens, and the share of answer
        tokens that are predicted correctly.
        """
        device = self.materials.device
        asking = Stage(1, length, max(1, PROBE_TOKENS // length), {kind: 1.0})
        ids, weights, positions, *_ = next(iter(self.materials.loader(asking, self.materials.held_back, 7)))
        with network.precision(device):
            hidden = network.hidden_states(self.model, ids[:, :-1].to(device), positions[:, :-1].to(device))
            logits = self.model.lm_head(hidden)
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
        state |= {"step": self.step, "elapsed": self.elapsed, "tokens": self.tokens}
        torch.save(state, self._checkpoint.with_suffix(".tmp"))
        self._checkpoint.with_suffix(".tmp").replace(self._checkpoint)

    def _resume(self) -> None:
        state = torch.load(self._checkpoint, map_location=self.materials.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.restore(state["optimizer"])
        self.step, self.elapsed, self.tokens = state["step"], state["elapsed"], state["tokens"]
