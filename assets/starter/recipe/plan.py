"""The stages of training, with lengths of texts and rows, and the constants of the optimizer."""

from __future__ import annotations

from dataclasses import dataclass

WARM_UP_STEPS = 20
BETAS = (0.9, 0.98)
CLIP = 1.0
AVERAGE = 0.98
"""Share of the adapter's running average that is kept at each step. The average is the adapter that is saved for use.
"""


@dataclass(frozen=True)
class Stage:
    """A stage that ends before step `until`. Its steps read texts of `text_tokens` and learn from `row_tokens` of
    questions after them.

    steps_per_text: steps for one reading of a text. The steps change the weights, so the text's keys and values become
    slightly outdated. through_text: whether gradients go through the text too. learning_rate: learning rate after the
    warm-up.
    """

    until: int
    text_tokens: int
    row_tokens: int
    steps_per_text: int
    through_text: bool
    learning_rate: float = 1.5e-3


STAGES = (
    Stage(80, 512, 640, 2, False),
    Stage(160, 1024, 640, 4, False),
    Stage(214, 2048, 640, 6, False),
    Stage(280, 1024, 640, 4, False, 1e-3),
    Stage(400, 2048, 640, 6, False, 1e-3),
    Stage(414, 4096, 640, 8, False, 8e-4),
    Stage(627, 2048, 640, 6, False, 8e-4),
    Stage(772, 4096, 640, 8, False, 3e-4),
    Stage(916, 512, 896, 8, False, 8e-4),
    Stage(956, 2048, 896, 6, False, 6e-4),
    Stage(1150, 4096, 896, 8, False, 3e-4),
    Stage(1250, 2048, 896, 4, False, 3e-4),
    Stage(1322, 4096, 896, 4, False, 3e-4),
    Stage(1450, 2048, 896, 4, False, 3e-4),
    Stage(100_000, 4096, 896, 4, False, 3e-4),
)


def stage_at(step: int) -> Stage:
    return next(stage for stage in STAGES if step < stage.until)
