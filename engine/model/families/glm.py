"""States the facts about GLM-4."""

from __future__ import annotations

from engine.model.families.family import Family

FAMILIES = {
    "glm": Family("GLM-4"),
    "glm4": Family("GLM-4-0414"),
}
