"""A window of its own: what happens with pywebview and without. A small module stands in its place, as a process."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

from app.cli import serve, window
from tests.nursery import Nursery
from tests.processes import begun, free_port

# Draws nothing; writes down what it was told to show and then closes, as a person does.
STAND_IN = """
import json, os
said = {}
settings = {"ALLOW_DOWNLOADS": False}
def create_window(title, url, **more): said.update(title=title, url=url, **more)
def start(**more):
    said.update(more, downloads=settings["ALLOW_DOWNLOADS"])
    open(os.environ["SHOWN"], "w").write(json.dumps(said))
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "webview.py").write_text(STAND_IN, encoding="utf-8")
    return {**os.environ, "PYTHONPATH": str(tmp_path), "SHOWN": str(tmp_path / "shown.json")}


def test_closing_the_window_ends_the_program(
    stand_in: dict[str, str], data_folder: Path, tmp_path: Path, nursery: Nursery | None
) -> None:
    command = [sys.executable, "-m", "app.cli", "--window", "--port", str(free_port())]
    said = tmp_path / "said"
    assert begun(command, said, stand_in, nursery=nursery).wait(300) == 0, said.read_text(encoding="utf-8")
    shown = Path(stand_in["SHOWN"]).read_text(encoding="utf-8")
    assert "/?token=" in shown
    assert '"title": "Trifold"' in shown
    assert '"downloads": true' in shown, "chats can be saved from it"
    assert not (data_folder / "instance.json").exists(), "the next start begins anew"


def test_without_pywebview_the_browser_opens_and_a_sentence_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(window, "is_possible", lambda: False)
    asked = argparse.Namespace(window=True, no_browser=False)
    assert serve._how(asked) == serve.BROWSER
    assert "pip install pywebview" in capsys.readouterr().err
    assert serve._how(argparse.Namespace(window=False, no_browser=True)) == serve.NOWHERE
