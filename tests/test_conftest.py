"""What pytest makes for all tests, and what is left of that."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import pytest_configure


class _Config:
    """The one method of pytest's ``Config`` that is called: what it holds is run when pytest ends, whatever it did."""

    def __init__(self) -> None:
        self.cleanups: list[Callable[[], Any]] = []
        self.add_cleanup = self.cleanups.append


def test_a_call_without_a_session_leaves_no_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTEST_XDIST_WORKER", "TRIFOLD_KERNELS"):
        monkeypatch.setenv(name, "")  # as before when the test has ended
        monkeypatch.delenv(name)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    config = _Config()
    pytest_configure(config)  # type: ignore[arg-type]
    (made,) = tmp_path.iterdir()
    (made / "nursery").touch()
    for clean in config.cleanups:
        clean()
    assert list(tmp_path.iterdir()) == []
