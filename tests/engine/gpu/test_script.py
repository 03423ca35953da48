"""The script for real hardware runs to its end on two simulated cards, with tokens that are identical in every row."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.bench import gpu, rows
from engine.bench.gpu import Sizes
from engine.bench.report import collect
from engine.bench.synthetic_weights import SHAPES
from engine.config import EngineConfig
from engine.plan import probe
from tests.engine.conftest import TEXT, deeper
from tests.engine.gpu.simulated_cuda import simulated_cuda

LAYERS = 1
# In half precision ties may fall either way; lengths that are given are not measured first.
OPTIONS: dict[str, Any] = {"dtype": "float32", "num_draft_tokens": 1, "num_pending_tokens": 2}


@pytest.fixture
def small(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "tiny", deeper(pair[0]))
    for owner, name, value in (
        (gpu, "TARGET", pair[0]),
        (gpu, "DRAFT", pair[1]),
        (gpu, "EngineConfig", partial(EngineConfig, **OPTIONS)),
        (gpu, "_QUERIES", (1,)),
        (gpu, "_KEYS", (64,)),
        (gpu, "_FIRST_PIN", 1 << 16),
        (gpu, "SCRIPT", tuple((part, Sizes("tiny", 100, 4, 32)) for part in dict(gpu.SCRIPT))),
        (probe, "COPY_BYTES", 1 << 16),
        (rows, "_MEMORY_BYTES", 1 << 16),
        (probe, "_MATRIX_WIDTH", 64),
        (probe, "_PROBE_BYTES", 1 << 16),
        (probe, "_CUDA_BLOCK", 64),
        (probe, "_CONTEXT", 64),
    ):
        monkeypatch.setattr(owner, name, value)


@pytest.mark.usefixtures("small")
def test_the_script_runs_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book, out = tmp_path / "book.txt", tmp_path / "gpu.json"
    book.write_text(TEXT, encoding="utf-8")
    with simulated_cuda("lazy", cards=2, limit=100_000_000):
        assert gpu.main(["--book", str(book), "--out", str(out)]) == 0
    results = json.loads(out.read_text(encoding="utf-8"))
    figures = {figure["what"]: figure for run in results["runs"] for figure in run["figures"]}
    assert len(results["runs"]) == len(gpu.SCRIPT)
    assert not [figure for figure in figures.values() if "early" in figure["what"]], figures
    for what, figure in figures.items():
        if figure["unit"] == "ms/token" and "T=0.6" not in what:
            assert "identical to plain" in figure["note"] or "differs" in figure["note"]
            assert "differs" not in figure["note"], what
    words = " ".join(figures)
    for told in ("two cards: hierarchical_lookup", "layers that made room", "pinned in one piece", "second question"):
        assert told in words
    capsys.readouterr()
    assert gpu.main(["--share", str(out)]) == 0
    shared = capsys.readouterr().out
    assert shared.startswith("Title: Measured on simulated")
    assert "Nothing of this has been sent" in shared
    assert all(what in shared for what in figures)


@pytest.mark.usefixtures("small")
def test_the_middle_level_is_measured_by_the_weights_and_by_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "EngineConfig", partial(EngineConfig, **(OPTIONS | {"dtype": "bfloat16"})))
    book = tmp_path / "book.txt"
    book.write_text(TEXT, encoding="utf-8")
    with simulated_cuda("lazy"):
        figures = collect(gpu.measure("middle", Sizes("tiny", 100, 4, 32), book), "middle")
        asked = {figure.what: figure for figure in figures}
        for middle in ("stored", "4bit"):
            assert f"middle {middle}: plain, 100 tokens, T=0.0" in asked
            assert float(asked[f"middle {middle}: hierarchical, its middle level for a token"].value) > 0


def test_what_does_not_begin_in_time_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = iter((0.0, 1.0, *(gpu.LIMIT_S + 1.0 for _ in gpu.SCRIPT)))
    begun: list[str] = []
    monkeypatch.setattr(gpu, "run", lambda part, *_: begun.append(part))
    gpu.run_script(tmp_path, tmp_path, lambda: next(seconds))
    assert begun == [gpu.SCRIPT[0][0]]
    assert capsys.readouterr().out.count("left out, the time is over") == len(gpu.SCRIPT) - 1
