"""A real pair of tiny models, made as in the engine's tests, and a small book in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.conftest import tiny  # noqa: F401 - a fixture

SENTENCE = "The lamp stood on the sill. Maren lit it at dusk and read the log by its light.\n\n"


@pytest.fixture
def book_file(tmp_path: Path) -> Path:
    path = tmp_path / "Das kleine Bücherl é.txt"
    path.write_text("The Lamp\n\n" + SENTENCE * 20, encoding="utf-8")
    return path


@pytest.fixture
def pair(tiny: Callable[..., str]) -> list[str]:  # noqa: F811
    """Options that name a tiny target and a tiny draft model."""
    return ["--model", tiny("llama"), "--draft", tiny("llama", seed=1, layers=1)]
