"""The script for real hardware runs to its end on two simulated cards, with tokens that are identical in every row."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from engine.bench import card_products, gpu, rows
from engine.bench.gpu import Sizes
from engine.bench.report import Figure, add_figures, collect
from engine.bench.synthetic_weights import SHAPES
from engine.config import EngineConfig
from engine.errors import ResourceError
from engine.plan import probe
from tests.engine.conftest import TEXT, deeper
from tests.engine.gpu.simulated_cuda import simulated_cuda

LAYERS = 1
# In half precision ties may fall either way; lengths that are given are not measured first.
OPTIONS: dict[str, Any] = {"dtype": "float32", "num_draft_tokens": 1, "num_pending_tokens": 2}


def _tiny(part: str, sizes: Sizes) -> Sizes:
    """One part has a temperature and a rate that is set, as the script has them."""
    if part != "resident":
        return Sizes("tiny", 100, 2, 32)
    return Sizes("tiny", 100, 2, 32, temperatures=sizes.temperatures, acceptances=sizes.acceptances[-1:])


ALONE = len(gpu.SCRIPT) - 1
"""Parts of the script without a real pair."""


@pytest.fixture
def small(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "tiny", deeper(pair[0]))
    for owner, name, value in (
        (gpu, "TARGET", pair[0]),
        (gpu, "DRAFT", pair[1]),
        (gpu, "EngineConfig", partial(EngineConfig, **OPTIONS)),
        (gpu, "_QUERIES", (1,)),
        (gpu, "_KEYS", (64,)),
        (gpu, "_LENGTHS", (1, 3)),
        (card_products, "SHAPES", ((16, 256),)),
        (card_products, "_ROWS", (1,)),
        (card_products, "_READ_BYTES", 1 << 16),
        (gpu, "_FIRST_PIN", 1 << 16),
        (gpu, "SCRIPT", tuple((part, _tiny(part, sizes)) for part, sizes in dict(gpu.SCRIPT).items())),
        (probe, "COPY_BYTES", 1 << 16),
        (rows, "_MEMORY_BYTES", 1 << 16),
        (probe, "_MATRIX_WIDTH", 64),
        (probe, "_PROBE_BYTES", 1 << 16),
        (probe, "_CUDA_BLOCK", 64),
        (probe, "_CONTEXT", 64),
    ):
        monkeypatch.setattr(owner, name, value)


@pytest.mark.usefixtures("small")
def test_the_script_runs_to_its_end(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    book, out = tmp_path / "book.txt", tmp_path / "gpu.json"
    book.write_text(TEXT, encoding="utf-8")
    begun, made = [], gpu.synthetic_pair

    def noted(*args: Any, **options: Any) -> Any:
        begun.append(sum(card.allocated))
        return made(*args, **options)

    decode, left = rows.Bench.decode, []

    def decoded(*given: Any, **options: Any) -> Any:
        left.append(torch.cuda.mem_get_info(0)[0])
        return decode(*given, **options)

    monkeypatch.setattr(rows.Bench, "decode", decoded)
    monkeypatch.setattr(gpu, "synthetic_pair", noted)
    assert gpu._PIECE >= 10 << 20, "torch takes 20 MiB for each smaller tensor"
    monkeypatch.setattr(gpu, "_PIECE", 1 << 20)
    with simulated_cuda("lazy", cards=2, limit=100_000_000) as card:
        assert gpu.main(["--book", str(book), "--out", str(out), "--model", pair[0], "--draft", pair[1]]) == 0
    assert len(begun) == len(gpu.SCRIPT) - 1  # the kernels have no session, two cards have two
    assert max(begun) < 1000, "a part begins with the weights of the one before"
    results = json.loads(out.read_text(encoding="utf-8"))
    figures = {figure["what"]: figure for run in results["runs"] for figure in run["figures"]}
    assert len(results["runs"]) == len(gpu.SCRIPT) - 1
    (own,) = json.loads((tmp_path / "gpu-pair.json").read_text(encoding="utf-8"))["runs"]
    assert own["model"] == " and ".join(Path(name).name for name in pair)
    assert not [figure for figure in own["figures"] if "stand-in" in figure["note"] or "early" in figure["what"]]
    assert not [figure for figure in figures.values() if "early" in figure["what"]], figures
    for what, figure in figures.items():
        if figure["unit"] == "ms/token" and "acceptance set to 0.95" in what:
            assert "identical" not in figure["note"], "its text is nobody's"
            judged = figure["also"]["middle level's tokens, accepted of judged"]
            assert judged is None or 0.0 <= judged <= 1.0
            assert figure["also"]["tokens a round"] >= 1.0
            assert figure["also"]["verify ms a token"] > 0.0
        elif figure["unit"] == "ms/token" and "T=0.6" not in what:
            assert "identical" in figure["note"] or "differs" in figure["note"]
            assert "differs" not in figure["note"], what
    assert min(left) < 2 << 20, "an answer is decoded on a full card"
    words = " ".join(figures)
    for told in (
        "two cards: hierarchical_lookup",
        "layers that made room",
        "pinned in one piece",
        "T=0.6, acceptance set to 0.95",
        "a verification of 3 tokens after 100",
        "product of 3",
    ):
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
    now, out = [0.0], tmp_path / "gpu.json"

    def figures(part: str, *_: object) -> Iterator[Figure]:
        for what in ("one", "two", "three"):
            now[0] += 0.6 * gpu.LIMIT_S
            yield Figure(part, what, 1.0, "ms")

    monkeypatch.setattr(gpu, "measure", figures)
    gpu.run_script(tmp_path, out, lambda: now[0])
    assert capsys.readouterr().out.count("left out, the time is over") == len(gpu.SCRIPT)
    (run,) = json.loads(out.read_text(encoding="utf-8"))["runs"]
    assert [figure["what"] for figure in run["figures"]] == ["one", "two", "the rest"]


def test_figures_are_in_the_file_as_they_come_whatever_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton without the headers of Python raises what nobody expects, and somebody may pull the plug."""
    out, seen = tmp_path / "gpu.json", []

    def figures(part: str, *_: object) -> Iterator[Figure]:
        yield Figure(part, "one", 1.0, "ms")
        seen.append(json.loads(out.read_text(encoding="utf-8"))["runs"][-1]["figures"][-1]["what"])
        raise subprocess.CalledProcessError(1, "cc")

    monkeypatch.setattr(gpu, "measure", figures)
    gpu.run_script(tmp_path, out)
    assert seen == ["one"] * ALONE
    for run in json.loads(out.read_text(encoding="utf-8"))["runs"]:
        assert [figure["what"] for figure in run["figures"]] == ["one", "ended early"]


@pytest.mark.parametrize("held", ["no results", "[1]", '{"runs": 2}', None])
def test_a_file_that_cannot_take_figures_is_said_before_anything_is_measured(
    held: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "run_script", lambda *_: pytest.fail("it was measured"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    book, out = tmp_path / "book.txt", tmp_path / ("gpu.json" if held else "folder/gpu.json")
    with pytest.raises(SystemExit, match="2"):
        gpu.main(["--book", str(book), "--out", str(out)])
    assert "there is no text" in capsys.readouterr().err
    book.write_text(TEXT, encoding="utf-8")
    if held:
        out.write_text(held, encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        gpu.main(["--book", str(book), "--out", str(out)])
    assert "name another file with --out" in capsys.readouterr().err


def test_a_card_that_has_failed_takes_no_figure_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an illegal access every question to CUDA fails, that for its name too."""
    out = tmp_path / "gpu.json"
    failed: list[str] = []

    def name() -> str:
        if failed:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return "card"

    def figures(part: str, *_: object) -> Iterator[Figure]:
        yield Figure(part, "one", 1.0, "ms")
        failed.append(part)
        name()

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", name)
    monkeypatch.setattr(gpu, "measure", figures)
    gpu.run_script(tmp_path, out)
    runs = json.loads(out.read_text(encoding="utf-8"))["runs"]
    assert len(runs) == ALONE
    for run in runs:
        assert [figure["what"] for figure in run["figures"]] == ["one", "ended early"]
        assert run["machine"]["gpu"] == "card"


@pytest.mark.usefixtures("small")
def test_memory_that_ends_in_a_part_costs_no_other_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part keeps the figures that it had, and the next one begins with an empty card."""
    book, out = tmp_path / "book.txt", tmp_path / "gpu.json"
    book.write_text(TEXT, encoding="utf-8")
    begun: list[int] = []
    measure, made = gpu.measure, gpu.synthetic_pair
    parts = ("checks", "two_cards", "reading")
    monkeypatch.setattr(gpu, "SCRIPT", tuple((part, Sizes("tiny", 100, 2, 32)) for part in parts))

    def ending(part: str, sizes: Sizes, book: Path, _: gpu.RealPair | None) -> Iterator[Figure]:
        try:
            for figure in measure(part, sizes, book):
                yield figure
                card.fails_from = card.allocations + 1 + 3 * len(begun)  # at another place in each part
        finally:
            card.fails_from = None

    def noted(*args: Any, **options: Any) -> Any:
        begun.append(sum(card.allocated))
        return made(*args, **options)

    monkeypatch.setattr(gpu, "synthetic_pair", noted)
    monkeypatch.setattr(gpu, "measure", ending)
    with simulated_cuda("lazy", cards=2, limit=100_000_000) as card:
        gpu.run_script(book, out)
    assert len(begun) == len(parts)
    assert max(begun) < 1000, "a part that failed keeps its weights"
    results = json.loads(out.read_text(encoding="utf-8"))
    assert [run["part"].split(",")[0] for run in results["runs"]] == list(parts)
    for run in results["runs"]:
        *rows, early = run["figures"]
        assert rows
        assert early["what"] == "ended early"
        assert "memory" in early["value"].lower()


def test_parts_are_measured_by_another_process_where_the_card_answers_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an illegal access every later part ended early in the same process."""
    book, out = tmp_path / "book.txt", tmp_path / "gpu.json"
    book.write_text(TEXT, encoding="utf-8")
    asked: list[list[str]] = []
    waited: list[float] = []
    now = [0.0]

    class Replaced(BaseException):
        """This process is another one."""

    def replace_process(_: str, given: list[str]) -> None:
        asked.append(given)
        raise Replaced

    def figures(part: str, *_: object) -> Iterator[Figure]:
        yield Figure(part, "one", float(torch.ones(1, device="cuda").sum()), "ms")
        now[0] += 30.0
        card.failed = "CUDA error: an illegal memory access was encountered" * (len(asked) < 2)
        torch.ones(1, device="cuda")

    def timer(seconds: float, work: Callable[[], None]) -> threading.Timer:
        waited.append(seconds)
        return threading.Timer(seconds, work)

    monkeypatch.setattr(gpu, "measure", figures)
    monkeypatch.setattr(gpu.os, "execv", replace_process)
    monkeypatch.setattr(gpu, "run_script", partial(gpu.run_script, clock=lambda: now[0], timer=timer))
    given = ["--book", str(book), "--out", str(out)]
    for _ in range(2):
        with simulated_cuda("eager") as card, pytest.raises(Replaced):
            gpu.main(given)
        assert asked[-1][1:3] == ["-m", "engine.bench.gpu"]
        given = asked[-1][3:]
        now[0] = 0.0
    with simulated_cuda("eager") as card:
        gpu.main(given)
    assert waited == [gpu.END_S, gpu.END_S - 30.0, gpu.END_S - 60.0]
    runs = json.loads(out.read_text(encoding="utf-8"))["runs"]
    assert len(runs) == ALONE
    early = [run["figures"][-1]["what"] == "ended early" for run in runs]
    assert early == [True, True] + [False] * (len(runs) - 2)


def test_what_never_ends_is_ended_and_the_figures_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A driver that hangs, a bus that takes minutes for a token: nobody asks for the time meanwhile."""
    out, after, started = tmp_path / "gpu.json", [], []

    class Timer(threading.Timer):
        def __init__(self, seconds: float, work: Callable[[], None]) -> None:
            super().__init__(seconds, work)
            after.append((seconds, work))

        def start(self) -> None:
            """When is said below."""
            started.append(self.daemon)

    def figures(part: str, *_: object) -> Iterator[Figure]:
        yield Figure(part, "one", 1.0, "ms")
        ((seconds, work),) = after
        assert gpu.LIMIT_S < seconds <= 700
        assert started == [True], "once, and it keeps no process alive"
        work()

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(gpu, "measure", figures)
    monkeypatch.setattr(gpu.os, "_exit", leave)
    held: list[object] = []  # where a call of the driver lets no thread of Python run
    monkeypatch.setattr(
        gpu.faulthandler,
        "dump_traceback_later",
        lambda seconds, exit, file: held.append((seconds, exit)),
    )
    monkeypatch.setattr(gpu.faulthandler, "cancel_dump_traceback_later", lambda: held.append("cancelled"))
    with pytest.raises(SystemExit, match="0"):
        gpu.run_script(tmp_path, out, timer=Timer)
    assert "The time is over" in capsys.readouterr().out
    assert held == [(720, True), "cancelled"]
    (run,) = json.loads(out.read_text(encoding="utf-8"))["runs"]
    assert [figure["what"] for figure in run["figures"]] == ["one"]
    before = out.read_text(encoding="utf-8")

    def torn(*_: object) -> None:
        raise OSError("torn")

    monkeypatch.setattr("os.replace", torn)
    with pytest.raises(OSError, match="torn"):
        add_figures(out, "another", "", [])
    assert out.read_text(encoding="utf-8") == before


def test_a_row_follows_an_answer_in_which_passes_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 60 tokens eight passes were recordings, which is what the rows had measured."""
    bench, answers = mock.MagicMock(), iter(range(100))
    bench.workloads.cases.return_value = [mock.MagicMock()]
    bench.options.temperature, bench.options.rows = [0.6], ["plain", "hierarchical"]
    bench.decode.side_effect = lambda row, *_: (row, next(answers))
    bench.warm.side_effect = lambda row, *_: rows.Bench.warm(bench, row, *_)
    bench._policies, bench.session.hierarchy.record_ahead.return_value = {}, ()
    monkeypatch.setattr(rows, "Run", lambda: mock.MagicMock())
    monkeypatch.setattr(rows, "measurement_of", lambda row, runs, *_: runs[row][0].add.call_args.args)
    assert list(rows.Bench.one_by_one(bench, 100)) == [(("plain", 1),), (("hierarchical", 3),)]


def test_a_part_is_measured_in_the_size_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its full size the first row would run out of memory and take the part's figures along."""
    monkeypatch.setattr(gpu, "_bench", lambda *_: nullcontext(mock.MagicMock()))
    monkeypatch.setattr(gpu, "_cut_to_memory", lambda _, __, sizes: replace(sizes, context=7))
    for part in ("reading", "checks", "contexts", "middle", "graphs"):
        told = partial(lambda *given, name: iter([Figure(name, "tokens", given[-1].context, "")]), name=part)
        monkeypatch.setattr(gpu, f"_{part}", told)
        assert [figure.value for figure in gpu.measure(part, Sizes("tiny", 100, 2), tmp_path)] == [7]


@pytest.mark.usefixtures("small")
def test_a_context_is_cut_to_what_the_card_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_STEP", 16)
    monkeypatch.setattr(gpu, "_ANSWERS", 16)
    book = tmp_path / "book.txt"
    book.write_text(TEXT, encoding="utf-8")
    sizes = Sizes("tiny", 200, 4, 32)
    with simulated_cuda("eager"), gpu._bench(sizes, book) as bench:
        shape, config = bench.session.full.shape, bench.session.config
        bench.session.config = replace(config, device_memory=str(100 * shape.bytes_per_token))
        cut = gpu._cut_to_memory(bench, "resident", sizes)
        assert cut.context == 80  # beside mean keys and an answer, in whole steps
        bench.session.config = replace(config, device_memory=str(20 * shape.bytes_per_token))
        with pytest.raises(ResourceError, match="only room for"):
            gpu._cut_to_memory(bench, "resident", sizes)
