"""What is trained, how long and on what: the stages of each preset.

Owns the numbers of the recipe. A stage lasts until its share of the minutes has passed, so one plan serves a short
and a long training.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """`until`: share of the whole time at which the stage ends; `length`: tokens in a row; `batch`: rows in a step."""

    until: float
    length: int
    batch: int
    num_layers: int
    mix: dict[str, float]
    skip_share: float = 0.5


@dataclass(frozen=True)
class Plan:
    """Shapes and stages of one preset. `sharpness`: what `guidance.sharpen` gets at the end."""

    width: int
    ffn: int
    draft_layers: int
    learning_rate: float
    decay_from: float
    stages: tuple[Stage, ...]
    draft_stage: Stage
    draft_rate_share: float = 0.5
    sharpness: tuple[float, float] = (1.0, 1.0)


REPEATING = {"repeat": 0.7, "random": 0.2, "prose": 0.1}
COPYING = {"quote": 0.45, "repeat": 0.45, "random": 0.1}
ASKING = {"quote": 0.8, "repeat": 0.15, "prose": 0.05}
READING = {"quote": 0.9, "repeat": 0.05, "prose": 0.05}
DRAFTING = {"quote": 0.5, "prose": 0.5}

PLANS = {
    "cpu": Plan(
        width=256,
        ffn=640,
        draft_layers=2,
        learning_rate=0.02,
        decay_from=0.75,
        stages=(
            Stage(0.13, 256, 16, 4, COPYING),
            Stage(0.26, 80, 24, 4, REPEATING, skip_share=0.0),
            Stage(0.36, 256, 12, 4, COPYING),
            Stage(0.45, 512, 6, 4, ASKING),
            Stage(0.60, 1024, 2, 6, READING),
            Stage(0.68, 2048, 1, 6, READING),
            Stage(0.90, 512, 3, 6, READING),
            Stage(1.00, 1024, 2, 6, READING),
        ),
        draft_stage=Stage(1.00, 512, 4, 0, DRAFTING, skip_share=0.0),
        sharpness=(1.5, 1.6),
    ),
    "gpu": Plan(
        width=320,
        ffn=640,
        draft_layers=1,
        learning_rate=0.02,
        decay_from=0.5,
        stages=(
            Stage(0.06, 256, 256, 10, COPYING),
            Stage(0.30, 1024, 64, 10, ASKING),
            Stage(0.55, 4096, 16, 10, READING),
            Stage(0.72, 16384, 4, 10, READING),
            Stage(0.88, 32768, 2, 10, READING),
            Stage(1.00, 131071, 1, 10, READING, skip_share=0.0),
        ),
        draft_stage=Stage(1.00, 512, 128, 0, DRAFTING, skip_share=0.0),
    ),
}
