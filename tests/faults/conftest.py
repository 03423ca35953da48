"""A tiny pair of random models whose answers have no end, a small book, and apps to break: real processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

LONG = bool(os.environ.get("TRIFOLD_LONG"))
WINDOW = 65_536


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import sys

    if sys.platform == "win32":
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="these end processes as Linux and macOS do"))


def make_pair(folder: Path) -> tuple[str, ...]:
    """Options that name a tiny random pair whose answers have no end, made in ``folder``."""
    from tests.endless import endless
    from tests.engine import conftest as tiny

    options: list[str] = []
    for role, seed, layers in (("model", 0, 2), ("draft", 1, 1)):
        place = folder / role
        tiny.build_tokenizer(place)
        tiny.build_model(place, "llama", seed, layers, 64, 0.1)
        config = place / "config.json"
        shape = json.loads(config.read_text(encoding="utf-8"))
        config.write_text(json.dumps({**shape, "max_position_embeddings": WINDOW}), encoding="utf-8")
        options += [f"--{role}", str(endless(place))]
    return tuple(options)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return make_pair(tmp_path_factory.mktemp("Modelle é"))


@pytest.fixture(scope="session")
def small_book() -> bytes:
    from tests.engine.conftest import TEXT

    return "\n\n".join(f"CHAPTER {at}\n\n{TEXT}" for at in range(1, 7)).encode()
