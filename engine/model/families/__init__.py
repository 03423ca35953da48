"""Holds one file for each family of models, with everything in which the family differs from Llama.

A file states ``FAMILIES``, keyed by ``model_type`` in transformers, and ``LAYOUTS`` if GGUF files of the family can be
read, keyed by the architecture that such files name. This module finds the files by themselves, so a new family is a
new file. ``architectures`` interprets a configuration with them, and ``gguf_settings`` a header. Imports no torch.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from engine.model.families.family import (
    CONVOLUTION,
    EXPERT_SIZES,
    FULL,
    MAMBA,
    MOST_LAYERS,
    ORDINARY,
    RECURRENT,
    SLIDING,
    Family,
    MixtureShape,
    count_experts,
    head_dim_of,
)
from engine.model.families.gguf_layout import GgufLayout

_MODULES = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]

FAMILIES: Mapping[str, Family] = {
    kind: family for module in _MODULES for kind, family in getattr(module, "FAMILIES", {}).items()
}
"""Supported families, keyed by ``model_type``. All or some of their decoder layers keep the whole context."""

LAYOUTS: Mapping[str, GgufLayout] = {
    name: layout for module in _MODULES for name, layout in getattr(module, "LAYOUTS", {}).items()
}
"""Layouts of the GGUF files that can be read, keyed by the name of the architecture in a file."""


def family_of(config: Any) -> Family:
    """The family of a configuration; ``ORDINARY`` if it is not supported."""
    kind = getattr(config, "model_type", None)
    return FAMILIES.get(kind, ORDINARY) if isinstance(kind, str) else ORDINARY


__all__ = [
    "CONVOLUTION",
    "EXPERT_SIZES",
    "FAMILIES",
    "FULL",
    "LAYOUTS",
    "MAMBA",
    "MOST_LAYERS",
    "ORDINARY",
    "RECURRENT",
    "SLIDING",
    "Family",
    "GgufLayout",
    "MixtureShape",
    "count_experts",
    "family_of",
    "head_dim_of",
]
