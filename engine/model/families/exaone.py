"""States the facts about EXAONE 4."""

from __future__ import annotations

from engine.model.families.family import SLIDING, Family

FAMILIES = {
    "exaone4": Family("EXAONE 4", others=SLIDING, full_every=4, period="sliding_window_pattern", rope_in_windows=True),
}
