"""States the facts about HyperCLOVA X."""

from __future__ import annotations

from engine.model.families.family import Family

FAMILIES = {
    "hyperclovax": Family("HyperCLOVA X", logits_factor="logits_scaling"),
}
