"""States the facts about Hunyuan."""

from __future__ import annotations

from engine.model.families.family import Family

FAMILIES = {
    "hunyuan_v1_dense": Family("Hunyuan", norms_after_rope=("query_layernorm", "key_layernorm")),
}
