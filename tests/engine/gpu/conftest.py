"""What the tests on the simulated device share."""

from __future__ import annotations

import pytest

from tests.engine.gpu.simulated_cuda import why_not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say why, where there can be no simulated device."""
    reason = why_not()
    for item in items:
        if reason and "tests/engine/gpu" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason=reason))
