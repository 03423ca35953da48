"""States the facts about Llama, whose layers all other families are compared with."""

from __future__ import annotations

from engine.model.families.family import Family
from engine.model.families.gguf_layout import GgufLayout

FAMILIES = {"llama": Family("Llama", plain=True)}

LAYOUTS = {"llama": GgufLayout("llama", halves=True)}
