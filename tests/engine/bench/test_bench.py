"""The bench on a tiny model: every row decodes the same prompt, and what it writes is what it says."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import bench
from engine.bench import rows
from engine.bench.peers import PEERS
from engine.bench.report import Measurement, Run, measurement_of, never_slower, table
from engine.bench.rows import COMPARED, ROWS, SPECULATING, SWEEPS, Bench
from engine.bench.workloads import SAMPLE, Workloads, held_back_books, is_held_back, open_text
from engine.decode import prefill
from engine.decode.controller import Controller
from engine.document import Document
from engine.errors import InputError, OptionError
from engine.events import Acceptance, Round, TimeSplit, TokenSource
from engine.kv import full
from engine.kv.full import FullCache
from engine.model import decoder, loading
from engine.session import Session
from tests.real import real_or_skip


def run(
    tiny: Callable[..., str],
    book: Document,
    tmp_path: Path,
    *arguments: str,
    open_book: Callable[[Path], Document] | None = None,
) -> dict[str, Any]:
    out = tmp_path / "bench.json"
    status = bench.main(
        ["--quiet", "--json", str(out), "--tokens", "12", "--repeats", "1", *arguments],
        model=tiny("llama", spread=0.1),
        draft=tiny("llama", seed=1, layers=1, width=32),
        book=Path("the lamp"),
        open_book=open_book or (lambda _: book),
    )
    assert status == 0
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def test_rows_decode_the_same_prompt(
    tiny: Callable[..., str], book: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--context", "600", "--workloads", "prose,followup", "--budget", "64", "--repeats", "2"]
    found = run(tiny, book, tmp_path, *given)
    results = found["results"]
    assert {r["row"] for r in results} == set(ROWS)
    assert len(results) == len(ROWS) * 2
    for r in results:
        assert r["identical_to_plain"] or r["logit_margin"] < 1e-3, r
        assert r["ms_per_token"] > 0
        assert r["ratio_to_plain"] > 0
        assert r["ratio_to_generate"] > 0
        if r["row"] == "plain":
            assert r["ratio_to_plain"] == 1.0
            assert r["mean_acceptance_length"] is None
        assert len(r["runs_ms_per_token"]) == (4 if r["row"] == "plain" else 2)
        if r["row"] == "hierarchical":
            assert sum(r["time_split"].values()) == pytest.approx(r["ms_per_token"], rel=0.5)
        if r["row"] == "draft_only":
            assert r["acceptance"]["middle"] is None
    assert {"system", "processor", "threads", "torch", "transformers"} <= set(found["machine"])
    assert found["model"]["draft"]
    table = capsys.readouterr().out
    assert table.count("| hierarchical |") == 2


@pytest.mark.parametrize("kind", ["gemma3_text", "qwen3_5_text"])
def test_peers_are_left_out_where_layers_hold_something_of_fixed_size(
    kind: str, tiny: Callable[..., str], book: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the book is read once, though a state cannot be cropped."""
    real, read = prefill.run, []

    def noted(model: decoder.Decoder, full: FullCache, ids: torch.Tensor, **more: Any) -> None:
        read.append(ids.shape[0])
        real(model, full, ids, **more)

    monkeypatch.setattr(prefill, "run", noted)
    arguments = "--model", tiny(kind), "--draft", tiny(kind, seed=1, layers=1, width=32)
    results = run(tiny, book, tmp_path, *arguments, "--context", "600", "--workloads", "prose")["results"]
    assert {r["row"] for r in results} == set(ROWS) - set(PEERS)
    assert max(read) == read[0] > 300 > max(read[1:])
    assert all(r["identical_to_plain"] or r["logit_margin"] < 1e-3 for r in results)


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


def test_chats_are_asked_with_a_models_own_sampling(
    tiny: Callable[..., str], book: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a book is about, questions about its names, and about its places; and how busy the cores were."""
    arguments = ["--context", "300", "--temperature", "0.7", "--top-k", "20", "--repetition-penalty", "1.1"]
    found = run(tiny, book, tmp_path, *arguments, "--rows", "plain", "--workloads", "summary,question,explain")
    assert [line["workload"] for line in found["results"]] == ["summary", "question", "explain"]
    assert all(line["cores"] > 0 and line["read_cores"] > 0 < line["first_token_s"] for line in found["results"])
    said = capsys.readouterr().out
    assert " cores |" in said


def test_questions_are_about_the_names_of_the_book() -> None:
    text = "Then Maren saw Holt. She went with Maren and Holt to the light, and with Maren, home. The end. The end."
    tokenizer: Any = SimpleNamespace(decode=lambda ids: text, format_for=lambda title: None)
    workloads = Workloads([1] * 9, tokenizer, lambda prompt, count: [])
    assert workloads._chats("question", [1] * 9) == ["Who is Maren?", "What does Holt want?"]
    (asked,) = workloads._chats("summary", [1] * 9)
    assert asked.startswith("What is this text about?")


@pytest.mark.parametrize("sweep", [sweep for sweep in SWEEPS if sweep != "threads"])
def test_sweeps_vary_one_setting(
    sweep: str, tiny: Callable[..., str], book: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.bench.rows.BUDGETS", (32, 64))
    monkeypatch.setattr("engine.bench.rows.TEMPERATURES", (0.0, 1.0))
    monkeypatch.setattr("engine.bench.rows.GAMMAS1", (1, 2))
    monkeypatch.setattr("engine.bench.rows.GAMMAS2", (2, 4))
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
    rounded = run(tiny, book, tmp_path, *arguments, "--kv", "8bit", "--weights", "8bit")
    assert rounded["model"]["config"]["kv"] == rounded["model"]["config"]["weights"] == "8bit"
    assert "(8-bit weights)" in rounded["model"]["target"]
    assert [r["settings"] for r in rounded["results"]] == [{"kv": "8bit"}] * 3
    assert [r["settings"] for r in exact["results"]] == [{}] * 3
    assert [r["identical_to_plain"] for r in rounded["results"]] == [True] * 3
    table = capsys.readouterr().out
    assert "exact with respect to 8-bit KV" in table
    assert "| plain kv=8bit | prose | 600 |" in table
    with pytest.raises(SystemExit):
        run(tiny, book, tmp_path, "--kv", "2bit")


def test_plain_decoding_is_timed_before_the_others_and_behind_them_and_never_while_the_cache_grows(
    tiny: Callable[..., str],
    book: Document,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its first steps copied all KV to larger memory where the book filled the cache: 0.2 s behind 32,768 tokens."""
    monkeypatch.setattr(full, "GROWTH", 64)
    happened: list[tuple[str, int, int]] = []  # with the cache's capacity before and afterwards
    decode = Bench.decode

    def noted_decode(self: Bench, row: str, *rest: Any) -> Run:
        before = self.session.full.capacity
        result = decode(self, row, *rest)
        happened.append((row, before, self.session.full.capacity))
        return result

    monkeypatch.setattr(Bench, "decode", noted_decode)
    run(tiny, book, tmp_path, "--context", "128", "--budget", "64", "--rows", "plain,hierarchical")
    first = [row for row, _, _ in happened].index("plain")
    timed, grown = happened[first:], happened[-1][2]
    assert timed == [("plain", grown, grown), ("hierarchical", grown, grown), ("plain", grown, grown)]
    assert ", before and behind the others)" in capsys.readouterr().out


def test_never_slower_is_asked_of_controllers_that_know_nothing(
    tiny: Callable[..., str],
    book: Document,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made: list[Controller] = []

    def controller(*given: Any) -> Controller:
        made.append(Controller(*given))
        return made[-1]

    monkeypatch.setattr(rows, "Controller", controller)
    found = run(tiny, book, tmp_path, "--context", "200", "--budget", "64", "--never-slower", "2")
    plain, app = found["results"]
    assert (plain["row"], app["row"]) == ("plain", "hierarchical_lookup")
    assert len(made) == len(app["runs_to_plain"]) == 2
    before_and_behind = plain["runs_ms_per_token"][2:]
    assert app["runs_to_plain"][1] == pytest.approx(sum(before_and_behind) / 2 / app["runs_ms_per_token"][1], rel=0.01)
    said = capsys.readouterr().out.strip().splitlines()[-1]
    assert f"hierarchical_lookup, prose 200 T=0.0: {statistics.median(app['runs_to_plain']):.2f}x, medians" in said
    measured = replace(Measurement(**app), books=2, runs_to_plain=[0.5, 0.98, 1.5, 2.0, 3.0, 1.0])
    slower = replace(measured, runs_to_plain=[1.5, 0.96, 0.9, 2.0, 3.0, 1.0])
    fast, slow = never_slower([measured, slower]).splitlines()
    assert fast.startswith("never slower than plain: hierarchical_lookup, prose 200 T=0.0: 0.98x, 2.00x, medians of 3")
    assert fast.endswith("runs from 0.50x to 3.00x")
    assert slow.startswith("SLOWER THAN PLAIN: hierarchical_lookup, prose 200 T=0.0: 0.96x, 2.00x")


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_a_plain_row_stands_beside_what_memory_allows(
    tiny: Callable[..., str], tmp_path: Path, tied: bool, packed: bool
) -> None:
    folder = Path(shutil.copytree(tiny("llama", spread=0.1), tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": tied}), encoding="utf-8")
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if not tied or name != "lm_head.weight"}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    one = loading.load(str(folder), window=64, device=torch.device("cpu"), packed=packed)
    rows = sum(weight.nbytes for weight in one.model.parameters())
    embedding = config["vocab_size"] * config["hidden_size"] * 4
    assert one.bytes_read_by_step == rows - (0 if tied else embedding)


def test_a_book_that_is_too_short_is_said(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="4,000 was asked for"):
        run(tiny, book, tmp_path, "--context", "4000")


def test_unknown_rows_are_refused(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        run(tiny, book, tmp_path, "--rows", "fastest")


# Which books, and what of them counts ---------------------------------------------------------------------------------


def library(folder: Path, book: Document, count: int) -> list[Path]:
    """A folder with ``count`` held-back books, each a little different, and as many others."""
    books: list[Path] = []
    for number in itertools.count():
        path = folder / f"book-{number}.txt"
        if len(books) < count or not is_held_back(path):
            path.write_text(f"Book {number}. {book.text}", encoding="utf-8")
            books += [path] * is_held_back(path)
        if len(books) == count:
            return books
    return books


def test_books_are_held_back_by_the_rule_of_the_training(tmp_path: Path, book: Document) -> None:
    from assets.demo.recipe import corpus

    written = library(tmp_path, book, 4)
    assert all(is_held_back(path) == corpus.is_held_back(path.stem) for path in tmp_path.glob("*.txt"))
    drawn = held_back_books(tmp_path)
    assert sorted(drawn) == sorted(written) != sorted(tmp_path.glob("*.txt"))
    assert drawn == sorted(written, key=lambda path: hashlib.sha256(path.stem.encode()).hexdigest())


def test_a_table_is_the_median_over_held_back_books_and_a_sweep_takes_others(
    tiny: Callable[..., str], book: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library(tmp_path, book, 7)
    arguments = ["--context", "200", "--books", str(tmp_path), "--repeats", "1", "--tokens", "8", "--budget", "64"]

    def on_books(*more: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = run(tiny, book, tmp_path, *arguments, *more, open_book=open_text)["results"]
        return found

    plain, fast = on_books("--rows", "plain,hierarchical")
    drawn = [path.stem for path in held_back_books(tmp_path)]
    said = capsys.readouterr().out
    assert f"median and range over 6 held-back books: {', '.join(drawn[:6])}\n" in said
    assert (plain["books"], len(plain["runs_ms_per_token"])) == (6, 6)
    assert plain["span_to_plain"] == [1.0, 1.0]
    assert fast["span_to_plain"][0] <= fast["ratio_to_plain"] <= fast["span_to_plain"][1]
    assert fast["ms_per_token"] == pytest.approx(statistics.median(fast["runs_ms_per_token"]), rel=1e-2)
    assert fast["read_tokens_per_s"] > 0
    swept = on_books("--sweep", "temperature")
    assert {r["books"] for r in swept} == {1}
    assert f"over 1 held-back books: {drawn[6]}\n" in capsys.readouterr().out
    with pytest.raises(OptionError, match="0 have 3,000 tokens, and 6 are needed"):
        on_books("--context", "3000")


def test_a_context_that_leaves_no_room_is_refused_before_any_work(
    tiny: Callable[..., str], book: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(tiny("llama", spread=0.1), tmp_path / "small"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 600}), encoding="utf-8")
    workloads = ["--model", str(folder), "--workloads", "prose,quote,followup", "--repeats", "1"]
    for workload, largest in (("prose", 584), ("prose,quote", 456), ("followup", 280)):
        rows = "plain,hierarchical_lookup,hf_generate"
        fits = [*workloads, "--workloads", workload, "--rows", rows, "--context", str(largest)]
        results = run(tiny, book, tmp_path, *fits)["results"]
        assert {r["context"] for r in results} == {largest}
        with monkeypatch.context() as loading:
            loading.setattr(Session, "load", lambda config: pytest.fail("nothing is loaded"))
            with pytest.raises(OptionError, match=f"--context {largest} or less"):
                run(tiny, book, tmp_path, *fits[:-1], str(largest + 1))


def test_circles_are_counted_apart() -> None:
    text = [*range(20), *[7, 8] * 20]
    case = Run(list(text), [10.0] * 20 + [2.0] * 40, [spoken(4, 40.0)] * 5 + [spoken(8, 16.0)] * 5)
    run, other = Run(), Run(list(range(12)), [10.0] * 10, [])
    run.add(case)
    run.add(other)  # of transformers: the first step has no time
    assert (run.cases, len(run.tokens), len(run.ms), len(run.circling_ms)) == ([60, 12], 72, 32, 38)
    assert run.ms_per_token == pytest.approx((20 * 10 + 2 * 2 + 10 * 10) / 32)
    place = {"workload": "prose", "context": 9, "temperature": 0.0, "settings": {}}
    line = measurement_of("hierarchical", {"hierarchical": [run]}, place, None)
    assert line.circling == pytest.approx(38 / 70)
    assert line.circling_ms_per_token == pytest.approx(2.0)
    assert "| 54% (2.0 ms) |" in table([line])
    turning = Run()
    turning.add(Run([9] * 50, [3.0] * 50, []))
    turning.ms.clear()
    assert turning.ms_per_token == 3.0


# llama.cpp ------------------------------------------------------------------------------------------------------------


# The binding's calls that the row makes: it says 11, 12, 13 ... after any prompt, and writes down what it is asked.
BINDING = """
import itertools, json, numpy, pathlib, sys, types
NOTES = pathlib.Path(__file__).with_name("notes.jsonl")
__path__, own = [], types.ModuleType("llama_cpp.llama_speculative")
sys.modules[own.__name__] = own
class LlamaPromptLookupDecoding:
    def __init__(self, num_pred_tokens): self.most = num_pred_tokens
    def __call__(self, text): return text[:0]
own.LlamaPromptLookupDecoding = LlamaPromptLookupDecoding
LLAMA_ROPE_SCALING_TYPE_YARN, GGML_TYPE_F16, GGML_TYPE_Q8_0 = 2, 1, 8
def note(**what):
    with NOTES.open("a") as file:
        file.write(json.dumps(what) + chr(10))
class Llama:
    def __init__(self, path, **options):
        print("words of the library")
        note(path=path, **options)
        self.window, self.draft_model, self.scores = options["n_ctx"], None, numpy.empty((64, 384))
        self.n_tokens, self.input_ids = 0, numpy.empty(self.window, numpy.intc)
    def n_vocab(self): return 384
    def n_ctx(self): return self.window
    def set_seed(self, seed): pass
    def generate(self, prompt, **options):
        if not options.pop("reset", True):
            note(drafts=len(prompt), behind=self.n_tokens)
        else:
            text, self.n_tokens = numpy.array([*prompt, 11, 12], numpy.intc), 0
            proposes = self.draft_model and (getattr(self.draft_model, "most", 0) or self.draft_model(text).tolist())
            note(length=len(prompt), proposes=proposes, rows=len(self.scores), keeps=self._logits_all, **options)
        self.input_ids[self.n_tokens : self.n_tokens + len(prompt)] = prompt
        self.n_tokens += len(prompt)
        yield from itertools.count(11)
"""


def test_llama_cpp_is_a_row_where_it_is_installed_and_has_a_file(
    tiny: Callable[..., str], book: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "plain,llama_cpp,llama_cpp_lookup,llama_cpp_draft"
    arguments = ["--context", "300", "--rows", rows, "--tokens", "8", "--repeats", "2"]
    load = Session.load
    monkeypatch.setattr(Session, "load", lambda config: pytest.fail("nothing is loaded"))
    with pytest.raises(OptionError, match="draft model in a GGUF file"):
        run(tiny, book, tmp_path, *arguments)
    small = tiny("llama", seed=1, layers=1, width=32)
    monkeypatch.setattr(bench, "_own_file", lambda model: tmp_path / "draft.gguf" if model == small else None)
    with pytest.raises(OptionError, match="--gguf FILE"):
        run(tiny, book, tmp_path, *arguments)
    arguments += ["--gguf", str(tmp_path / "model.gguf")]
    monkeypatch.setattr("engine.bench.peers.has_llama_cpp", lambda: False)
    with pytest.raises(OptionError, match="-m pip install llama-cpp-python"):
        run(tiny, book, tmp_path, *arguments)
    monkeypatch.setattr("engine.bench.peers.has_llama_cpp", lambda: True)
    monkeypatch.setattr(Session, "load", load)
    (tmp_path / "llama_cpp.py").write_text(BINDING, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    plain, llama, lookup, drafted = run(tiny, book, tmp_path, *arguments)["results"]
    assert (llama["row"], llama["answer_tokens"], llama["identical_to_plain"]) == ("llama_cpp", 8, False)
    assert llama["read_tokens_per_s"] > 0
    assert plain["ratio_to_plain"] == 1.0
    assert plain["over_floor"] > 1
    assert plain["memory_gb_per_s"] > 0
    assert llama["over_floor"] is None
    assert (lookup["row"], lookup["answer_tokens"]) == ("llama_cpp_lookup", 8)
    assert lookup["read_tokens_per_s"] > 0
    assert llama["cores"] is not None, "its own process is asked"
    assert (drafted["row"], drafted["answer_tokens"]) == ("llama_cpp_draft", 8)
    made, *notes = [json.loads(line) for line in (tmp_path / "notes.jsonl").read_text(encoding="utf-8").splitlines()]
    asked = [note for note in notes if "length" in note]
    [other] = [note for note in notes if "path" in note]
    assert other == {**made, "path": str(tmp_path / "draft.gguf")}
    # The draft reads the prompt before the time counts, and then only what is new to it.
    drafts = [(note["drafts"], note["behind"]) for note in notes if "drafts" in note]
    assert drafts == [(300, 0), (2, 300), (1, 299), (2, 300)]
    assert (made["n_ctx"], made["n_threads"], made["flash_attn"]) == (316, torch.get_num_threads(), True)
    assert (made["type_k"], made["type_v"]) == (1, 1)
    # The book is read once, then both repeats are asked with the same prompt as ours.
    assert [(one["length"], one["temp"]) for one in asked] == [(300, 0.0)] * 7
    # Lookup is told behind the book: the logits of its tokens are not kept.
    assert [one["proposes"] for one in asked] == [None, *[None, 10, [11, 12]] * 2]
    assert [one["keeps"] for one in asked] == [False, *[False, True, True] * 2]
    assert [one["rows"] for one in asked] == [64, 64, *[316] * 5]
    (tmp_path / "llama_cpp.py").write_text("raise OSError('no such library')", encoding="utf-8")
    with pytest.raises(OptionError, match="OSError: no such library"):
        run(tiny, book, tmp_path, *arguments)


def test_llama_cpp_itself_on_real_weights() -> None:
    pytest.importorskip("llama_cpp", reason="llama.cpp is compiled for minutes and is nowhere required")
    real = real_or_skip()
    options = bench.parser().parse_args(["--quiet", "--repeats", "1", "--tokens", "16", "--gguf", str(real.gguf)])
    options.rows, options.context, options.model = ["plain", "llama_cpp"], [400], str(real.folder)
    plain, llama = bench.open_bench(options, open_text(SAMPLE)).run()
    assert llama.answer_tokens == 16
    assert llama.ms_per_token > 0
    assert plain.read_tokens_per_s
    assert llama.read_tokens_per_s
    # The same weights, less the rounding to bfloat16: the texts begin alike.
    assert llama.identical_to_plain or (llama.first_difference or 0) >= 4
