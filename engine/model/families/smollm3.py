"""States the facts about SmolLM3."""

from __future__ import annotations

from engine.model.families.family import Family

FAMILIES = {
    "smollm3": Family("SmolLM3", tied=True, reads=("no_rope_layers",), rope_by_layer="no_rope_layers"),
}
