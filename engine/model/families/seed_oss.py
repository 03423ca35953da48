"""States the facts about Seed-OSS."""

from __future__ import annotations

from engine.model.families.family import Family

FAMILIES = {
    "seed_oss": Family("Seed-OSS"),
}
