"""States the facts about OLMo 2 and OLMo 3."""

from __future__ import annotations

from engine.model.families.family import SLIDING, Family

FAMILIES = {
    "olmo2": Family("OLMo 2"),
    "olmo3": Family("OLMo 3", others=SLIDING, full_every=4, period="sliding_window_pattern", rope_by_kind=True),
}
