"""States the facts about ERNIE 4.5."""

from __future__ import annotations

from engine.model.families.family import Family

FAMILIES = {
    "ernie4_5": Family("ERNIE 4.5", tied=True),
}
