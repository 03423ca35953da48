"""What the tiers cost, measured: the script's figures, and that opening a book again is worth its disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from engine.bench import tiers
from engine.config import EngineConfig

LONG = bool(os.environ.get("TRIFOLD_LONG"))
# Tokens, and how much faster than reading opening again must be; a tenth of what was measured, for busy machines. Of
# few tokens reading takes about a second, and most of opening is what it costs whatever the length.
WINDOW, LEAST = (32_768, 20.0) if LONG else (3_072, 1.2)


def test_opening_again_is_much_faster_than_reading_wherever_the_kv_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tiers.json"
    assert tiers.main(["--context", str(WINDOW), "--device", "cpu", "--out", str(out)]) == 0
    figures = {figure["what"]: figure for figure in json.loads(out.read_text())["runs"][0]["figures"]}
    assert not [what for what in figures if what == "ended early"], figures
    reading = next(figure["value"] for what, figure in figures.items() if what.startswith("reading"))
    for what in ("opening it again", "opening it again, all KV to a file"):
        assert reading > LEAST * figures[what]["value"], figures
        assert figures[what]["note"].endswith("the same answer")
    for count in (1, 16):
        assert figures[f"verifying {count} tokens, all KV in a file"]["value"] > 0
    assert "| opening it again |" in capsys.readouterr().out


def test_kv_that_does_not_lie_on_disk_is_not_measured_as_if_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(tiers.TARGET, None, 1_536, "cpu")
    monkeypatch.setattr(tiers, "_all_on_disk", lambda *_: "1G")
    figures = tiers.measure(config, tiers.SAMPLE.read_text(encoding="utf-8"), "Who?")
    with pytest.raises(ValueError, match="not all KV of the book lies on disk"):
        list(figures)
