"""The presets of training: sizes of the models, and stages with their lengths and data.

Owns the numbers of the recipe. A stage ends at a share of the total minutes, so that a plan works for short and long
training.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """`until`: share of the whole time at which the stage ends; `length`: tokens in a row; `batch`: rows in a step.

    memory: tokens of a text that every third step reads without gradient, before rows that follow the text; 0 for none.
    """

    until: float
    length: int
    batch: int
    mix: dict[str, float]
    skip_share: float = 0.5
    memory: int = 0
    memory_rows: int = 4


@dataclass(frozen=True)
class Plan:
    """The shapes of the models and the stages of training, for one preset."""

    num_layers: int
    width: int
    ffn: int
    heads: int
    learning_rate: float
    decay_from: float
    stages: tuple[Stage, ...]
    draft_stage: Stage
    draft_layers: int = 2
    draft_ffn: int = 256
    draft_heads: int = 2
    draft_rate_share: float = 0.5


STARTING = {"quote": 0.7, "repeat": 0.05, "random": 0.05, "prose": 0.2}
READING = {"quote": 0.6, "prose": 0.4}
DRAFTING = {"quote": 0.4, "prose": 0.6}

PLANS = {
    "cpu": Plan(
        num_layers=8,
        width=384,
        ffn=512,
        heads=3,
        learning_rate=0.02,
        decay_from=0.4,
        stages=(
            Stage(0.06, 256, 12, STARTING),
            Stage(0.35, 512, 8, READING),
            Stage(0.65, 512, 8, READING, memory=4096),
            Stage(1.00, 512, 8, READING, memory=12288),
        ),
        draft_stage=Stage(1.00, 512, 8, DRAFTING, skip_share=0.0),
    ),
    "gpu": Plan(
        num_layers=8,
        width=384,
        ffn=512,
        heads=3,
        learning_rate=0.02,
        decay_from=0.5,
        stages=(
            Stage(0.30, 512, 128, STARTING),
            Stage(0.60, 2048, 32, READING),
            Stage(0.80, 8192, 8, READING),
            Stage(0.92, 32768, 2, READING),
            Stage(1.00, 131071, 1, READING, skip_share=0.0),
        ),
        draft_stage=Stage(1.00, 512, 128, DRAFTING, skip_share=0.0),
    ),
}
