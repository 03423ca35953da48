"""The GPU measurements, run through on a CPU with tiny sizes: every part gives figures, the table holds them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import bench
from engine.bench import gpu, report, rows, synthetic_weights
from engine.bench.gpu import Sizes
from engine.bench.report import STAND_IN
from engine.bench.synthetic_weights import SHAPES
from engine.config import EngineConfig
from engine.decode import levels, tuning
from engine.decode.acceptance import Costs
from engine.document import Document, Page
from engine.errors import OptionError
from engine.model import graphs
from engine.session import Session
from tests.engine.conftest import deeper
from tests.engine.tape import TapeRecorder

pytestmark = pytest.mark.usefixtures("torch_alone")


@pytest.fixture(autouse=True)
def tiny_shape(tiny: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny pair, with one more layer."""
    monkeypatch.setattr(gpu, "TARGET", tiny("llama", spread=0.1))
    monkeypatch.setattr(gpu, "DRAFT", tiny("llama", seed=1, layers=1, width=32))
    monkeypatch.setitem(SHAPES, "tiny", deeper(gpu.TARGET))


@pytest.mark.parametrize(
    ("part", "context"), [("spilled", 300), ("gqa", 300), ("reading", 300), ("kernels", 100), ("graphs", 300)]
)
def test_a_part_gives_its_figures(part: str, context: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if part == "graphs":
        monkeypatch.setattr(graphs, "recorder_for", lambda device: TapeRecorder())
    sizes = Sizes("tiny", context, 4, 256, "cpu")
    figures = report.collect(gpu.measure(part, sizes, gpu.SAMPLE), part)
    assert not [figure for figure in figures if figure.what == "ended early"], figures
    words = " ".join(figure.what for figure in figures)
    if part in ("spilled", "gqa"):
        assert "plain, " in words
        assert "hierarchical_lookup, " in words
        assert ("over memory's floor" in words) == (part == "gqa"), "it counts what is resident"
        assert all("differs" not in figure.note for figure in figures)
    if part == "reading":
        assert "second question" in words
        assert "matrix rate" in words
        estimate = next(figure for figure in figures if "estimate" in figure.what)
        assert isinstance(estimate.value, float)
        assert estimate.value > 0
    if part == "graphs":
        replays = {figure.what: figure.value for figure in figures if "replays, " in figure.what}
        assert set(replays) == {f"graphs auto: replays, {level}" for level in ("draft", "middle", "verify")}
        assert all("ended" not in figure.note for figure in figures)
    out = tmp_path / "gpu.json"
    report.add_figures(out, part, f"shape {sizes.shape}, {STAND_IN}", figures)
    report.add_figures(out, part, f"shape {sizes.shape}, {STAND_IN}", figures)  # measured again, a part replaces itself
    results = json.loads(out.read_text())
    assert len(results["runs"]) == 1
    text = report.figure_table(results)
    assert "stand-in weights" in text
    assert text.count("\n| ") == len(figures) + 1


def test_passes_are_timed_again_with_what_their_row_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row without a draft model never starts it, so that its steps cannot be timed."""
    monkeypatch.setattr(graphs, "recorder_for", lambda device: TapeRecorder())
    monkeypatch.setattr(tuning, "TUNING", replace(tuning.TUNING, slow_step_ms=math.inf))
    timed: list[tuple[bool, bool]] = []
    measure = levels.measure

    def noted(context: Any, plain_ms: float, target: Any, retrieval: Any, middle: Any, draft: Any) -> Costs:
        timed.append((retrieval is opened.session.hierarchy.retrieval, draft is not None))
        return measure(context, plain_ms, target, retrieval, middle, draft)

    monkeypatch.setattr(levels, "measure", noted)
    with gpu._bench(Sizes("tiny", 500, 12, 256, "cpu"), gpu.SAMPLE) as opened:
        for row, used in (
            ("retrieval_only", (True, False)),
            ("streaming_hierarchical", (False, True)),
            ("hierarchical", (True, True)),
        ):
            timed.clear()
            opened.options.rows = [row]
            assert len(list(opened.one_by_one(500))) == 1
            assert set(timed) == {used}, row


@pytest.mark.parametrize("rate", [0.0, 0.8, 1.0])
def test_an_acceptance_rate_that_is_set_is_that_of_judged_tokens(rate: float) -> None:
    """Whatever the models say, here that no proposal is right; the token behind is the one that was drawn."""
    judge = rows.set_acceptance(rate, random.Random(3))
    accepted = judged = 0
    proposed, likeliest = torch.arange(10, 18), torch.arange(100, 109)
    for _ in range(500):
        found = judge(proposed, None, likeliest, torch.Generator())
        count = found.num_accepted
        assert found.tokens == (*range(10, 10 + count), 100)
        accepted, judged = accepted + count, judged + min(8, count + 1)
    assert accepted / judged == pytest.approx(rate, abs=0.03)


def test_an_error_is_written_down() -> None:
    def failing() -> object:
        yield report.Figure("x", "one", 1.0, "ms")
        raise RuntimeError("CUDA error: out of memory")

    one, end = report.collect(failing(), "x")  # type: ignore[arg-type]
    assert one.value == 1.0
    assert "out of memory" in str(end.value)


def test_shapes_by_name() -> None:
    config = EngineConfig(model=gpu.TARGET, draft=gpu.DRAFT, context=512, device="cpu")
    with pytest.raises(OptionError, match=r"llama-2-7b"):
        synthetic_weights.synthetic_pair(config, "llama-9")
    made = Session(config, *synthetic_weights.synthetic_pair(config, "tiny", "tiny"))
    assert report.remarks(made) == {"weights": "stand-in"}
    assert made.draft is not None
    assert "stand-in" in made.draft.name


def test_the_bench_says_on_every_row_that_weights_are_stand_ins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--stand-in", "tiny", "--context", "300", "--tokens", "4", "--repeats", "1", "--rows", "plain"]
    text = Document("Book", "", (Page(1, "1", gpu.SAMPLE.read_text(encoding="utf-8")[:9000]),), "text", "")
    model, draft = gpu.TARGET, gpu.DRAFT
    status = bench.main(
        [*arguments, "--quiet", "--device", "cpu"], model=model, draft=draft, book=tmp_path, open_book=lambda _: text
    )
    assert status == 0
    assert "weights=stand-in" in capsys.readouterr().out
