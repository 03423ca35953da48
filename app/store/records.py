"""Event records as JSON and back, for the columns that hold them. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from typing import Any, get_type_hints

from engine.events import Figures


def to_json(value: Any) -> str | None:
    """Compact JSON; None stays None."""
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def from_json(text: str | None) -> Any:
    """What ``to_json`` wrote; None for anything else."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None


def figures_to_json(figures: Figures | None) -> str | None:
    return to_json(asdict(figures)) if figures is not None else None


def figures_from_json(text: str | None) -> Figures | None:
    """Figures that this version understands; None if another version wrote them otherwise."""
    found, hints = from_json(text) or {}, get_type_hints(Figures)
    try:
        return Figures(**{name: _part(kind, found[name]) for name, kind in hints.items() if name in found})
    except TypeError:
        return None


def _part(kind: Any, value: Any) -> Any:
    return kind(**value) if is_dataclass(kind) and isinstance(kind, type) else value
