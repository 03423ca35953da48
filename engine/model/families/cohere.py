"""States the facts about Command A and R7B of Cohere."""

from __future__ import annotations

from engine.model.families.family import SLIDING, Family

FAMILIES = {
    "cohere2": Family(
        "Command A and R7B",
        tied=True,
        others=SLIDING,
        full_every=4,
        period="sliding_window_pattern",
        rope_in_windows=True,
        logits_factor="logit_scale",
        positive=("logit_scale",),
    ),
}
