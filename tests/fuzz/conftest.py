"""How long the fuzzers look: bounded in a normal run, a hundred times longer with TRIFOLD_LONG=1."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

LONG = bool(os.environ.get("TRIFOLD_LONG"))


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny tensors gain nothing from threads, and lose much where processes share the cores."""
    torch.set_num_threads(1)


def looked_at(examples: int) -> settings:
    """Settings for so many examples, with nothing about this machine's speed in them."""
    quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=examples * (100 if LONG else 1), deadline=None, suppress_health_check=quiet)
