"""The bench on a tiny model: every row decodes the same prompt, and what it writes is what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from engine import bench
from engine.bench.report import Run, measurement_of, table
from engine.bench.rows import COMPARED, ROWS, SPECULATING
from engine.bench.sweeps import SWEEPS
from engine.document import Document
from engine.errors import InputError, OptionError
from engine.events import Acceptance, Round, TimeSplit, TokenSource


def run(tiny: Callable[..., str], book: Document, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    out = tmp_path / "bench.json"
    status = bench.main(
        ["--quiet", "--json", str(out), "--tokens", "12", "--repeats", "2", *arguments],
        model=tiny("llama", spread=0.1),
        draft=tiny("llama", seed=1, layers=1, width=32),
        book=Path("the lamp"),
        open_book=lambda _: book,
    )
    assert status == 0
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def test_rows_decode_the_same_prompt(
    tiny: Callable[..., str], book: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workloads = "prose,quote,followup"
    found = run(tiny, book, tmp_path, "--context", "600", "--workloads", workloads, "--budget", "64")
    results = found["results"]
    assert {r["row"] for r in results} == set(ROWS)
    assert len(results) == len(ROWS) * 3
    for r in results:
        assert r["identical_to_plain"] or r["logit_margin"] < 1e-3, r
        assert r["ms_per_token"] > 0
        assert r["ratio_to_plain"] > 0
        assert r["ratio_to_generate"] > 0
        if r["row"] == "plain":
            assert r["ratio_to_plain"] == 1.0
            assert r["mean_acceptance_length"] is None
        if r["row"] == "hierarchical":
            assert sum(r["time_split"].values()) == pytest.approx(r["ms_per_token"], rel=0.5)
        if r["row"] == "draft_only":
            assert r["acceptance"]["middle"] is None
    assert {"system", "processor", "threads", "torch", "transformers"} <= set(found["machine"])
    assert found["model"]["draft"]
    table = capsys.readouterr().out
    assert table.count("| hierarchical |") == 3


def test_fixed_lengths_speculate_in_every_row(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    """Where lengths are given no controller may choose plain decoding, so every level shows what it accepts."""
    given = ["--gamma1", "2", "--gamma2", "3", "--budget", "64", "--rows", "plain," + ",".join(SPECULATING)]
    results = run(tiny, book, tmp_path, "--context", "600", *given)["results"]
    for r in results:
        assert r["identical_to_plain"] or r["logit_margin"] < 1e-3
        if r["row"] != "plain":
            assert r["acceptance"]["verify"] is not None
            assert (r["acceptance"]["retrieval_judged"] is None) == (r["row"] == "draft_only")
            assert (r["acceptance"]["drafted_judged"] is None) == (r["row"] != "draft_only")
            assert (r["acceptance"]["middle"] is None) == (r["row"] in ("draft_only", "retrieval_only"))


def test_words_of_the_book_to_one_level_alone(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    """Rows for comparison: run when they are named, equal to plain, and each leaves the other way out."""
    rows = ["plain", *COMPARED]
    results = run(tiny, book, tmp_path, "--context", "600", "--tokens", "64", "--rows", ",".join(rows))["results"]
    by_row = {r["row"]: r for r in results}
    assert set(by_row) == set(rows)
    assert all(r["identical_to_plain"] or r["logit_margin"] < 1e-3 for r in results)
    assert by_row["lookup_to_middle"]["acceptance"]["lookup"] is None


def test_sampled_rows_have_no_equality_to_claim(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    arguments = ["--context", "300", "--temperature", "0.8,0", "--rows", "plain,hierarchical_lookup,hf_assisted"]
    found = run(tiny, book, tmp_path, *arguments)
    same = {(r["row"], r["temperature"]): r["identical_to_plain"] for r in found["results"]}
    assert [same[row, 0.8] for row in ("plain", "hierarchical_lookup", "hf_assisted")] == [None] * 3
    assert same["hierarchical_lookup", 0.0] is True


@pytest.mark.parametrize("sweep", [sweep for sweep in SWEEPS if sweep != "threads"])
def test_sweeps_vary_one_setting(
    sweep: str, tiny: Callable[..., str], book: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.bench.sweeps._BUDGETS", (32, 64))
    monkeypatch.setattr("engine.bench.sweeps._TEMPERATURES", (0.0, 1.0))
    monkeypatch.setattr("engine.bench.sweeps._GAMMAS1", (1, 2))
    monkeypatch.setattr("engine.bench.sweeps._GAMMAS2", (2, 4))
    picture = tmp_path / "sweep.svg"
    more = ["--budget", "64", "--repeats", "1", "--plot", str(picture)]
    results = run(tiny, book, tmp_path, "--context", "300", "--sweep", sweep, *more)["results"]
    tried = [tuple(r["settings"].values()) for r in results]
    assert (
        len(tried) == len(set(tried)) == {"budget": 2, "chunk": 6, "temperature": 2, "gammas": 4, "refresh": 7}[sweep]
    )
    assert {r["row"] for r in results} == {"hierarchical"}
    assert marked_points(picture) == len(results)


def marked_points(picture: Path) -> int:
    drawn = ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    lines = [group for group in drawn.iter() if group.get("id", "").startswith("line-")]
    return sum(len(line.findall(".//{*}use")) for line in lines)


def test_without_matplotlib_a_picture_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    options = bench.parser().parse_args(["--model", "/nowhere", "--plot", str(tmp_path / "bench.svg")])
    with pytest.raises(OptionError, match="-m pip install matplotlib"):
        bench.load_session(options)


def test_a_picture_has_a_line_for_every_row(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    picture = tmp_path / "bench.svg"
    run(tiny, book, tmp_path, "--context", "200,400,600", "--rows", "plain,hierarchical", "--plot", str(picture))
    text = picture.read_text(encoding="utf-8")
    assert marked_points(picture) == 6
    assert ">plain</text>" in text
    assert ">hierarchical</text>" in text
    assert ">600</text>" in text
    with pytest.raises(OptionError, match="svg"):
        run(tiny, book, tmp_path, "--context", "200", "--plot", str(tmp_path / "bench.bmp"))


def spoken(tokens: int, ms: float, verify: Acceptance | None = None, **more: Any) -> Round:
    split = TimeSplit(verify=ms)
    return Round((1,) * tokens, (TokenSource.TARGET,) * tokens, split, False, verify=verify or Acceptance(), **more)


def test_acceptance_is_counted_by_hand() -> None:
    rounds = [
        spoken(4, 3.0, Acceptance(3, 8), middle=Acceptance(3, 4), passes=1),
        spoken(9, 5.0, Acceptance(8, 8), middle=Acceptance(6, 6), passes=2),
        spoken(2, 1.0, Acceptance(1, 3)),  # drafted straight to the full cache
        spoken(1, 0.5, Acceptance(0, 0)),  # a plain step
        spoken(3, 0.5, lookup=Acceptance(2, 16)),
    ]
    run = Run([1] * 19, [1.0] * 19, rounds, [19])
    place = {"workload": "prose", "context": 9, "temperature": 0.0, "settings": {}}
    found = measurement_of("hierarchical", {"hierarchical": [run], "plain": [Run([1] * 19, [2.0] * 19)]}, place, None)
    assert found.acceptance == pytest.approx(
        {
            "middle": 0.9,
            "verify": 12 / 19,
            "verify_judged": 12 / 14,
            "retrieval_judged": 11 / 12,
            "drafted_judged": 1 / 2,
            "lookup": 0.125,
        }
    )
    assert found.runs_retrieval_judged == [pytest.approx(11 / 12)]
    assert "| 0.632 (0.857) | 0.917 | 0.500 | 0.125 |" in table([found])
    other = Run([1] * 4, [1.0] * 4, rounds[:1], [4])
    both = measurement_of("hierarchical", {"hierarchical": [run, other]}, place, None)
    assert "| 0.875 (0.750 to 0.917) |" in table([both])
    assert found.mean_acceptance_length == pytest.approx(19 / 5)
    assert found.ratio_to_plain == pytest.approx(2.0)
    assert found.time_split["verify"] == pytest.approx(10 / 19)
    assert found.time_split["other"] == pytest.approx(9 / 19)


def test_rows_on_rounded_kv_are_compared_with_plain_on_rounded_kv(
    tiny: Callable[..., str], book: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--context", "600", "--budget", "64", "--rows", "plain,hierarchical,hierarchical_lookup"]
    exact = run(tiny, book, tmp_path, *arguments)
    capsys.readouterr()
    rounded = run(tiny, book, tmp_path, *arguments, "--kv", "8bit")
    assert rounded["model"]["config"]["kv"] == "8bit"
    assert [r["settings"] for r in rounded["results"]] == [{"kv": "8bit"}] * 3
    assert [r["settings"] for r in exact["results"]] == [{}] * 3
    assert [r["identical_to_plain"] for r in rounded["results"]] == [True] * 3
    table = capsys.readouterr().out
    assert "exact with respect to 8-bit KV" in table
    assert "| plain kv=8bit | prose | 600 |" in table
    with pytest.raises(SystemExit):
        run(tiny, book, tmp_path, "--kv", "2bit")


def test_a_book_that_is_too_short_is_said(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="4,000 was asked for"):
        run(tiny, book, tmp_path, "--context", "4000")


def test_unknown_rows_are_refused(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        run(tiny, book, tmp_path, "--rows", "fastest")
