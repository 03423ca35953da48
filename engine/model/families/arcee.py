"""States the facts about Arcee."""

from __future__ import annotations

from engine.model.families.family import Family

FAMILIES = {
    "arcee": Family("Arcee", mlp_matrices=2),
}
