"""What is trained in which order: the lengths of texts and rows, stage by stage, and the optimizer's figures."""

from __future__ import annotations

from dataclasses import dataclass

LEARNING_RATE = 1.5e-3
WARM_UP_STEPS = 20
BETAS = (0.9, 0.98)
CLIP = 1.0
AVERAGE = 0.98
"""How much of the running average of the adapter stays at each step; the average is what is saved to be used."""


@dataclass(frozen=True)
class Stage:
    """Steps up to `until` read texts of `text_tokens` and learn from `row_tokens` of questions behind them.

    steps_per_text: steps behind one reading, whose keys and values grow a little old meanwhile.
    through_text: gradient goes through the text as well.
    """

    until: int
    text_tokens: int
    row_tokens: int
    steps_per_text: int
    through_text: bool


STAGES = (
    Stage(80, 512, 640, 2, False),
    Stage(160, 1024, 640, 4, False),
    Stage(400, 2048, 640, 6, False),
    Stage(1000, 4096, 640, 8, False),
    Stage(100_000, 8192, 640, 12, False),
)


def stage_at(step: int) -> Stage:
    return next(stage for stage in STAGES if step < stage.until)
