"""The measurements that are kept: files, their page and pictures, from a run on a tiny pair."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from engine.bench import measurements, open_bench, parser
from engine.bench.rows import Bench
from engine.bench.workloads import held_back_books
from engine.document import Document
from engine.errors import OptionError
from tests.engine.bench.test_bench import library

PARTS = (
    measurements.Experiment("1k", "Rows.", 300, ("plain", "hierarchical"), ("prose", "quote"), 8, questions=6),
    measurements.Experiment("refresh", "Refreshing.", 300, ("hierarchical",), ("prose",), 8, sweep="refresh"),
)


@pytest.fixture
def bench(tiny: Callable[..., str], book: Document) -> Bench:
    line = ["--quiet", "--context", "300", "--budget", "64", "--model", tiny("llama", spread=0.1)]
    options = parser().parse_args([*line, "--draft", tiny("llama", seed=1, layers=1, width=32)])
    return open_bench(options, book)


def test_what_is_kept_is_what_was_measured(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "PARTS", PARTS)
    measured = [measurements.measure(bench, part) for part in PARTS]
    for part, results in zip(PARTS, measured, strict=True):
        measurements.write(tmp_path, part, bench, "The lamp", results)
    measurements.draw(tmp_path)
    assert [results for _, _, results in measurements.read(tmp_path)] == measured
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert page.index("## Rows.") < page.index("| plain | prose | 300 |") < page.index("## Refreshing.")
    assert "The lamp; at most 8 tokens, budget 64, one run." in page
    for picture in ("contexts.svg", "refresh.svg"):
        assert f"({picture})" in page
        assert ElementTree.parse(tmp_path / picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert page.rstrip().endswith(measurements.LEFT_OUT)


def test_tables_are_medians_over_held_back_books_and_sweeps_are_run_on_another(
    tiny: Callable[..., str], book: Document, tmp_path: Path
) -> None:
    library(tmp_path, book, 7)
    line = ["--quiet", "--budget", "64", "--model", tiny("llama", spread=0.1), "--books", str(tmp_path)]
    part = measurements.Experiment("1k", "Rows.", 120, ("plain", "hierarchical"), ("prose",), 6)
    longer = measurements.Experiment("2k", "Rows.", 160, ("plain", "hierarchical"), ("prose",), 6)
    sweep = measurements.Experiment("refresh", "Refreshing.", 120, ("hierarchical",), ("prose",), 4, sweep="refresh")
    measurements.run(parser().parse_args(line), (part, longer, sweep), tmp_path)
    drawn = [path.stem for path in held_back_books(tmp_path)]
    written = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in ("1k", "2k", "refresh")}
    assert [written[name]["how"]["book"] for name in written] == [*[", ".join(drawn[:6])] * 2, drawn[6]]
    assert [[r["books"] for r in written[name]["results"]] for name in ("1k", "2k")] == [[6, 6], [6, 6]]
    assert [r["context"] for r in written["2k"]["results"]] == [160, 160]
    assert {r["books"] for r in written["refresh"]["results"]} == {1}
    (tmp_path / f"{drawn[0]}.txt").unlink()
    (tmp_path / f"{drawn[1]}.txt").unlink()
    with pytest.raises(OptionError, match="5 have 120 tokens, and 6 are needed"):
        measurements.run(parser().parse_args(line), (part,), tmp_path)


def test_more_questions_are_more_cases(bench: Bench) -> None:
    bench.prefill(300)
    few, many = (bench.workloads.cases("quote", 300, count) for count in (4, 9))
    assert (len(few), len(many)) == (4, 9)
    assert many[:4] == few


def test_contexts_only_grow() -> None:
    contexts = [part.context for part in measurements.PARTS]
    assert contexts == sorted(contexts)


def test_a_quotation_is_right_from_its_key_to_the_end_of_a_sentence(bench: Bench) -> None:
    workloads = bench.workloads
    case = workloads.cases("quote", 300)[0]
    text = " ".join(bench.session.tokenizer.decode(bench.ids[:300]).split())
    at = text.index(case.key)
    end = next(place for place in range(at + len(case.key), len(text)) if text[place] in ".!?") + 1

    def judged(answer: str) -> bool:
        return workloads.is_quotation(case, 300, bench.session.tokenizer.words(answer))

    assert judged(f"“… {text[at:end]}”")
    assert judged(text[at:end].replace(" ", "\n", 1))
    assert not judged(f"“… {text[at : end - 3]}”")
    assert not judged(f"“… {text[at + 3 : end]}”")
    assert not judged(f"“… {case.key} and never a word of it.”")
