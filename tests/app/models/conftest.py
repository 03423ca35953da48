"""A hub on loopback with two models, and everything that would lead anywhere else turned off."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.settings import DEMO_DRAFT, DEMO_MODEL
from app.models.local import LocalModels
from tests.app.models.hub import Hub, start

TARGET, DRAFT = "acme/target", "acme/draft"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    hub = Hub()
    hub.add(TARGET, DEMO_MODEL)
    hub.add(DRAFT, DEMO_DRAFT)
    server = start(hub)
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    yield hub
    hub.go_on.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def local_models(tmp_path: Path) -> LocalModels:
    return LocalModels(tmp_path / "models")


@pytest.fixture
def copy_of_demo(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO_MODEL, tmp_path / "copy"))
