"""Models of the hub in the terminal: found or fetched before a command runs, with one sentence when that fails."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli.models import _without_models, on_this_machine
from app.core.settings import DEMO_DRAFT, DEMO_MODEL, make_settings
from engine.errors import ModelNotFound
from tests.app.models.conftest import DRAFT, TARGET
from tests.app.models.hub import Hub, start


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    made = Hub()
    made.add(TARGET, DEMO_MODEL)
    made.add(DRAFT, DEMO_DRAFT)
    server = start(made)
    for name, value in {"HF_ENDPOINT": made.address, "HF_HOME": str(tmp_path), "no_proxy": "*"}.items():
        monkeypatch.setenv(name, value)
    yield made
    server.shutdown()
    server.server_close()


def test_a_pair_is_fetched_once_and_named_by_its_folders(
    hub: Hub, data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["--model", TARGET, f"--draft={DRAFT}", "--tokens", "8"]
    options = argparse.Namespace(command="bench", rest=line)
    settings = on_this_machine(options, make_settings(model=TARGET, draft=DRAFT))
    assert settings.model == str(data_folder / "models" / "acme" / "target")
    assert settings.draft == str(data_folder / "models" / "acme" / "draft")
    assert options.rest == ["--tokens", "8"], "bench reads its own line, and must not look for hub ids"
    assert "Looking for acme/target" in capsys.readouterr().err
    hub.asked.clear()
    assert on_this_machine(argparse.Namespace(command="ask"), make_settings(model=TARGET, draft=DRAFT)) == settings
    assert hub.asked == []
    read = on_this_machine(argparse.Namespace(command="read"), make_settings(model=TARGET, draft="acme/not-here"))
    assert (read.model, read.draft) == (settings.model, None)
    doctor = on_this_machine(argparse.Namespace(command="doctor"), make_settings(model=TARGET, draft="acme/not-here"))
    assert (doctor.model, doctor.draft) == (settings.model, "acme/not-here")
    assert hub.asked == [], "the doctor looks only"


def test_offline_is_said_before_anything_is_loaded(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelNotFound, match="offline"):
        on_this_machine(argparse.Namespace(command="ask"), make_settings(model=TARGET))


def test_folders_and_other_commands_are_left_alone() -> None:
    settings = make_settings()
    assert on_this_machine(argparse.Namespace(command="ask"), settings) is settings
    far = make_settings(model="owner/name")
    assert on_this_machine(argparse.Namespace(command="app"), far) is far
    line = ["--pair", "--book", "--model-like", "--model", "a/b", "--draft=none"]
    assert _without_models(line) == ["--book", "--model-like"]
