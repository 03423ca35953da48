"""States the facts about InternLM 3."""

from __future__ import annotations

from engine.model.families.family import Family

FAMILIES = {
    "internlm3": Family("InternLM 3"),
}
