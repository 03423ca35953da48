"""The model that was chosen in the page, kept for the next start. A file for this person's eyes: it can hold a key."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FILE = "model.json"


@dataclass(frozen=True)
class Remote:
    """A server elsewhere that answers in a local model's place; ``model`` "" is the first that it offers."""

    address: str
    model: str = ""
    key: str = ""
    context: int | None = None


@dataclass(frozen=True)
class Choice:
    """What answers: a pair by the names that a person gave, or a server."""

    model: str
    draft: str | None
    remote: Remote | None = None


def load(data: Path) -> Choice | None:
    """The choice of the last time; None if there was none, or if its file makes no sense."""
    try:
        kept = json.loads((data / FILE).read_text(encoding="utf-8"))
        remote = Remote(**kept["remote"]) if kept.get("remote") else None
        choice = Choice(kept["model"], kept["draft"], remote)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return choice if _makes_sense(choice) else None


def save(data: Path, choice: Choice) -> None:
    """Raises:
    OSError: it cannot be written.
    """
    data.mkdir(parents=True, exist_ok=True)
    written = data / f"{FILE}.{secrets.token_hex(4)}"
    written.touch(mode=0o600)
    written.write_text(json.dumps(asdict(choice), indent=1), encoding="utf-8")
    os.replace(written, data / FILE)


def _makes_sense(choice: Choice) -> bool:
    def text(value: Any) -> bool:
        return isinstance(value, str) and bool(value)

    pair = text(choice.model) and (choice.draft is None or text(choice.draft))
    remote = choice.remote
    return pair and (
        remote is None or (text(remote.address) and isinstance(remote.model, str) and isinstance(remote.key, str))
    )
