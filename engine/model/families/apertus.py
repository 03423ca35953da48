"""States the facts about Apertus."""

from __future__ import annotations

from engine.model.families.family import Family

FAMILIES = {
    "apertus": Family("Apertus", mlp_matrices=2),
}
