"""Real weights for tests: SmolLM2-135M-Instruct, made once and kept outside the checkout.

``TRIFOLD_REAL_MODEL`` names another folder for it than ``~/.cache/trifold``.
"""

from __future__ import annotations

import os

import pytest

from engine.errors import OptionError
from engine.model.real_model import RealModel, real_model

LONG = bool(os.environ.get("TRIFOLD_LONG"))


def real_or_skip(factor: int = 1) -> RealModel:
    """The real model, with a window stretched by YaRN; skips the test where it cannot be had."""
    try:
        return real_model(factor)
    except OptionError as error:
        pytest.skip(f"no real weights here: {error}")
