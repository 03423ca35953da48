"""What the tests of the bench share: a machine whose rates are measured on little memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.bench import gpu, rows
from engine.plan import probe


@pytest.fixture(scope="session", autouse=True)
def little_memory() -> Iterator[None]:
    """Figures are looked at here, and never how good they are: every run would fill and read 200 MB several times."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, value in (
            (rows, "_MEMORY_BYTES", 1 << 20),
            (probe, "_PROBE_BYTES", 1 << 20),
            (probe, "COPY_BYTES", 1 << 20),
            (probe, "_CPU_MATRIX_WIDTH", 64),
            (gpu, "_QUERIES", (1,)),
        ):
            patch.setattr(owner, name, value)
        yield
