"""What the tests on the simulated device share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.model import decoder
from tests.engine.gpu.simulated_cuda import why_not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say why, where there can be no simulated device."""
    reason = why_not()
    for item in items:
        if reason and "tests/engine/gpu" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True, scope="session")
def loaded_once(tiny: Callable[..., str]) -> None:
    """transformers settles some things in the first load of a process; if that one is inside of the simulation, no
    later one has RoPE's frequencies, on a processor neither."""
    decoder.load(tiny(), window=64, device=torch.device("cpu"))
