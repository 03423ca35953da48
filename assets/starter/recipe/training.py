"""Trains the adapter: reads a text, then takes steps on rows of questions after the text.

Owns the optimizer, the running average, checkpoints and the log. Checkpoints are saved between two texts, and lessons
are numbered by step, so resumed training continues with the next lesson.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from assets.starter.recipe import adapter, network, plan
from assets.starter.recipe.lessons import Lesson, LessonMaker
from assets.starter.recipe.prompting import Row

SAVE_EVERY_SECONDS = 240.0
PROBE_EVERY = 50
PROBE_TEXTS = 3
PROBE_LENGTHS = (1024, 512)


class Training:
    """Trains an adapter on `model` with lessons of `maker` and keeps checkpoints in `folder`.

    probe: makes lessons from held-back books, to measure progress.
    start: an adapter to start from if there is no checkpoint, with its step and its seconds of training.
    heads: the heads that are trained to attend to the right passage, keyed by layer.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        maker: LessonMaker,
        probe: LessonMaker,
        folder: Path,
        *,
        start: tuple[dict[str, Tensor], int, float] | None = None,
        heads: Mapping[int, Sequence[int]] = network.LOOKING,
    ) -> None:
        self._heads = heads
        self.model, self.maker, self.folder = model, maker, folder
        network.prepare(model)
        self.added = adapter.attach(model, maker.seed)
        self.step, self.seconds, self._stopped = 0, 0.0, False
        self._optimizer = torch.optim.AdamW(
            (part for matrix in self.added.values() for part in (matrix.down, matrix.up)),
            lr=plan.stage_at(0).learning_rate,
            betas=plan.BETAS,
            weight_decay=0.0,
        )
        self._warm_from = 0
        if start is not None:
            named, self.step, self.seconds = start
            adapter.load(self.added, named)
            self._warm_from = self.step
        self.average = {name: tensor.clone() for name, tensor in adapter.tensors(self.added).items()}
        if self._checkpoint.exists():
            self._resume()
        self._probes = [probe.lesson(number, *PROBE_LENGTHS) for number in range(PROBE_TEXTS)]

    def run(self, until: float) -> None:
        """Train until `until` (`time.time()`) or until the process is asked to stop. Then save."""
        previous = [signal.signal(kind, self.stop) for kind in (signal.SIGTERM, signal.SIGINT)]
        saved = time.monotonic()
        while not self._stopped and time.time() < until:
            began = time.monotonic()
            self.learn_lesson()
            self.seconds += time.monotonic() - began
            if time.monotonic() - saved > SAVE_EVERY_SECONDS:
                self.save()
                saved = time.monotonic()
        self.save()
        for kind, handler in zip((signal.SIGTERM, signal.SIGINT), previous, strict=True):
            signal.signal(kind, handler)

    def stop(self, *_: Any) -> None:
        """End training after the current lesson."""
        self._stopped = True

    def next_lesson(self) -> tuple[plan.Stage, Lesson]:
        """Return the lesson of the current step, and the step's stage."""
        stage = plan.stage_at(self.step)
        return stage, self.maker.lesson(self.step, stage.text_tokens, stage.row_tokens * stage.steps_per_text)

    def learn_lesson(self) -> None:
        """Read one text, and train the adapter in several steps on the lesson's rows of questions and answers."""
        stage, lesson = self.next_lesson()
        self.model.train()
        layers = None if stage.through_text else network.read(self.model, lesson.book)
        for rows in parts(lesson.rows, stage.steps_per_text):
            began = time.monotonic()
            ids = [row.ids for row in rows]
            looks = places_of(rows, self._heads)
            bins = network.Bins.of(ids, len(lesson.book), self.model.dtype, looks)
            if layers is None:
                hidden = network.hidden_together(self.model, lesson.book, bins)
            else:
                hidden = network.hidden_behind(self.model, layers, bins)
            loss = network.loss(self.model, hidden, *joined(rows))
            looking = looks.loss() if looks is not None else loss.new_zeros(())
            (loss + network.LOOKING_WEIGHT * looking).backward()
            self._update()
            row = {"step": self.step, "text": stage.text_tokens, "loss": round(loss.item(), 4)}
            row["looking"] = round(looking.item(), 4)
            self._log(row | {"seconds": round(time.monotonic() - began, 1), "minutes": round(self.seconds / 60, 2)})
            if self.step % PROBE_EVERY == 0:
                self._log({"step": self.step, **self.probe()})

    def _update(self) -> None:
        trained = self._optimizer.param_groups[0]["params"]
        torch.nn.utils.clip_grad_norm_(trained, plan.CLIP)
        self.step += 1
        warm = min(1.0, (self.step - self._warm_from) / plan.WARM_UP_STEPS)
        self._optimizer.param_groups[0]["lr"] = plan.stage_at(self.step).learning_rate * warm
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        # The share of the newest weights in the average begins at a half, because the average would otherwise stay
        # close to the initial weights. The share then shrinks.
        stay = min(plan.AVERAGE, 1 - 1 / (self.step - self._warm_from + 1))
        for name, tensor in adapter.tensors(self.added).items():
            self.average[name].lerp_(tensor, 1 - stay)

    @torch.no_grad()
    def probe(self) -> dict[str, float]:
        """Measure on held-back books: the loss, and for each form the share of answers with all tokens predicted
        correctly.
        """
        self.model.eval()
        right: dict[str, list[bool]] = {}
        losses = []
        for lesson in self._probes:
            layers = network.read(self.model, lesson.book)
            bins = network.Bins.of([row.ids for row in lesson.rows], len(lesson.book), self.model.dtype)
            hidden = network.hidden_behind(self.model, layers, bins)
            ids, weights = joined(lesson.rows)
            losses.append(network.loss(self.model, hidden, ids, weights).item())
            begin = 0
            for row, turns in zip(lesson.rows, lesson.turns, strict=True):
                end = begin + len(row.ids)
                if len(turns) == 1:
                    wanted = weights[begin + 1 : end] > 0
                    hits = self.model.lm_head(hidden[begin : end - 1]).argmax(-1) == ids[begin + 1 : end]
                    right.setdefault(turns[0].form, []).append(bool(hits[wanted].all()))
                begin = end
        made = {form: round(sum(hits) / len(hits), 2) for form, hits in sorted(right.items())}
        return {"probe": round(sum(losses) / len(losses), 4), **made}

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    def save(self) -> None:
        """Write the checkpoint, the average as an adapter, and the progress of training."""
        state = {
            "adapter": adapter.tensors(self.added),
            "average": self.average,
            "optimizer": self._optimizer.state_dict(),
            **self.progress,
        }
        partial = self._checkpoint.with_suffix(".tmp")
        torch.save(state, partial)
        os.replace(partial, self._checkpoint)
        adapter.save(self.average, self.folder / "adapter.safetensors")
        words = {**self.progress, "stage": asdict(plan.stage_at(self.step)), "seed": self.maker.seed}
        (self.folder / "state.json").write_text(json.dumps(words, indent=1) + "\n", encoding="utf-8")

    @property
    def progress(self) -> dict[str, float]:
        return {"step": self.step, "seconds": round(self.seconds, 1), "warm_from": self._warm_from}

    def _resume(self) -> None:
        state = torch.load(self._checkpoint, weights_only=True)
        adapter.load(self.added, state["adapter"])
        self.average = state["average"]
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds, self._warm_from = int(state["step"]), state["seconds"], int(state["warm_from"])

    def _log(self, row: dict[str, Any]) -> None:
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")


def parts(rows: list[Row], count: int) -> list[list[Row]]:
    """Divide rows into `count` parts of about the same number of tokens."""
    return [rows[number::count] for number in range(count)]


def places_of(rows: list[Row], heads: Mapping[int, Sequence[int]]) -> network.Looks | None:
    """Collect the ``looks`` of rows, with indexes into the concatenated rows; None if there are none."""
    queries: list[int] = []
    places: list[int] = []
    begin = 0
    for row in rows:
        queries += [begin + at for at, _ in row.looks]
        places += [place for _, place in row.looks]
        begin += len(row.ids)
    return network.Looks(torch.tensor(queries), torch.tensor(places), heads) if queries else None


def joined(rows: list[Row]) -> tuple[Tensor, Tensor]:
    """Return the ids and weights (seq,) of concatenated rows."""
    ids = torch.tensor([token for row in rows for token in row.ids])
    weights = torch.tensor([weight for row in rows for weight in row.weights])
    return ids, weights
