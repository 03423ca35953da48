"""The bench on a tiny model: every row decodes the same prompt, and what it writes is what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import bench
from engine.document import Document
from engine.errors import InputError


def run(tiny: Callable[..., str], book: Document, tmp_path: Path, *arguments: str) -> dict[str, object]:
    out = tmp_path / "bench.json"
    status = bench.main(
        ["--quiet", "--json", str(out), "--tokens", "12", "--repeats", "2", *arguments],
        model=tiny("llama", spread=0.1),
        draft=tiny("llama", seed=1, layers=1, width=32),
        book=Path("the lamp"),
        open_book=lambda _: book,
    )
    assert status == 0
    return json.loads(out.read_text(encoding="utf-8"))


def test_rows_decode_the_same_prompt(
    tiny: Callable[..., str], book: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(tiny, book, tmp_path, "--context", "300,600", "--workloads", "prose,quote", "--budget", "64")
    results = found["results"]
    assert isinstance(results, list)
    assert {r["row"] for r in results} == set(bench.ROWS)
    assert len(results) == len(bench.ROWS) * 2 * 2
    for r in results:
        assert r["identical_to_plain"] or r["first_difference"]["logit_margin"] < 1e-3
        assert r["ms_per_token"] > 0
        if r["row"] == "plain":
            assert r["ratio_to_plain"] == 1.0
            assert r["mean_acceptance_length"] is None
        if r["row"] == "hierarchical":
            assert 0 <= r["acceptance"]["verify"] <= 1
            assert sum(r["time_split"].values()) == pytest.approx(r["ms_per_token"], rel=0.5)
    assert {"system", "processor", "threads", "torch"} <= set(found["machine"])  # type: ignore[arg-type]
    table = capsys.readouterr().out
    assert table.count("| hierarchical |") == 4


def test_sampled_rows_have_no_equality_to_claim(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    found = run(tiny, book, tmp_path, "--context", "300", "--temperature", "0.8", "--rows", "plain,hierarchical")
    assert [r["identical_to_plain"] for r in found["results"]] == [None, None]  # type: ignore[attr-defined]


def test_a_book_that_is_too_short_is_said(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="4,000 was asked for"):
        run(tiny, book, tmp_path, "--context", "4000")


def test_unknown_rows_are_refused(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        run(tiny, book, tmp_path, "--rows", "fastest")
