"""The measurements that need a GPU, in parts of under ten minutes each; needs torch and transformers only.

    python -m engine.bench.gpu --part kernels --out gpu.json
    python -m engine.bench.gpu --part resident --book BOOK.txt --out gpu.json
    python -m engine.bench.gpu --table gpu.json

Every part adds its figures to the file, with the date and the device; ``--table`` prints all of them as Markdown. The
models are stand-ins (``engine.bench.synthetic_weights``): a trained pair grown into the sizes of real models, so that
text and acceptance are real and weights, KV and arithmetic cost what they cost. Each row says so. An error ends its
part and is written down.

Parts: ``kernels`` (copy bandwidth, matrix rate, attention side by side), ``resident`` and ``spilled`` (TriForce's 7B at
122K with all KV on the device, and all in host memory), ``gqa`` (8B at 128K, resident, spilled, beside transformers
with an offloaded cache), ``reading`` (128K read, second question), ``contexts`` (8K to 512K), ``graphs`` (passes of the
cheap levels recorded and not, and how often a round waits for the GPU).
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from engine.bench.peers import generate
from engine.bench.report import STAND_IN, Figure, Measurement, add_figures, collect, figure_table
from engine.bench.rows import Bench
from engine.bench.synthetic_weights import synthetic_pair
from engine.bench.workloads import DRAFT, SAMPLE, TARGET
from engine.config import GRAPHS, GREEDY, EngineConfig
from engine.decode import prefill
from engine.document import Document, Page
from engine.events import AnswerDone, BookRead
from engine.kv.offload import Placement
from engine.model.kernels import cuda
from engine.plan import probe
from engine.plan.probe import bus_rate, copy_rate, matrix_rate
from engine.session import Session

_QUERIES = (1, 8, 16, 64)
_GB = 1e9


@dataclass(frozen=True)
class Sizes:
    """Sizes of a part. The usual ones are those of published measurements; tests take tiny ones."""

    shape: str
    context: int
    tokens: int
    budget: int = 4096
    device: str = "cuda"


PARTS = ("kernels", "resident", "spilled", "gqa", "reading", "contexts", "graphs")
USUAL = {
    "kernels": Sizes("llama-3.1-8b", 131_072, 0),
    "resident": Sizes("llama-2-7b", 124_928, 128),
    "spilled": Sizes("llama-2-7b", 124_928, 48),
    "gqa": Sizes("llama-3.1-8b", 130_048, 128),
    "reading": Sizes("llama-3.1-8b", 130_048, 32),
    "contexts": Sizes("llama-3.1-8b", 524_288, 64),
    "graphs": Sizes("llama-2-7b", 32_768, 128),
}


def measure(part: str, sizes: Sizes, book: Path) -> Iterator[Figure]:
    """All figures of a part."""
    if part == "kernels":
        yield from _kernels(sizes)
        return
    window = sizes.context + 4096
    session = _session(sizes, window)
    text = _long_enough(session, book.read_text(encoding="utf-8"), sizes.context)
    if part == "reading":
        yield from _reading(session, text, sizes)
        return
    bench = Bench(
        session, _ids(session, text), _options(sizes, (0.0, 0.6) if part in ("resident", "spilled") else (0.0,))
    )
    layers = session.target.num_layers
    placements = {"resident": Placement.resident(layers), "spilled": Placement.spread(layers, 0, layers)}
    if part == "contexts":
        yield from _contexts(bench, sizes)
    if part == "graphs":
        yield from _graphs(bench, sizes)
    for name in ("resident", "spilled") if part == "gqa" else (part,):
        if name in placements:
            yield from _placed(bench, part, name, placements[name], sizes)


# Parts ---------------------------------------------------------------------------------------------------------


def _kernels(sizes: Sizes) -> Iterator[Figure]:
    device = torch.device(sizes.device)
    dtype = torch.bfloat16
    rate = copy_rate(device)
    yield Figure("kernels", "copy on the device, read and written", rate / _GB, "GB/s")
    if device.type == "cuda":
        yield Figure("kernels", "host memory to device, pinned", bus_rate(device) / _GB, "GB/s")
    yield Figure("kernels", "matrix product", matrix_rate(device, dtype) / 1e12, "TFLOP/s", note="bfloat16")
    for heads, group in ((8, 4), (32, 1)):
        for keys in [count for count in (16_384, 32_768, 131_072) if count <= sizes.context]:
            for queries in _QUERIES:
                yield from _attention(device, dtype, heads, group, keys, queries, rate)


def _attention(
    device: torch.device, dtype: torch.dtype, heads: int, group: int, keys: int, queries: int, rate: float
) -> Iterator[Figure]:
    moved = 2 * heads * keys * 128 * dtype.itemsize
    for name in cuda.installed():
        ms = cuda.measure(name, device, dtype, heads, 128, keys, queries * group)
        what = f"{name}: {queries} queries, {keys:,} keys, {heads} KV heads, group {group}"
        if ms is None:
            yield Figure("kernels", what, "does not run here", "")
        else:
            share = moved / (ms / 1000.0) / rate
            yield Figure("kernels", what, ms, "ms", "80 % of copy", f"{share:.0%} of the copy rate")


def _placed(bench: Bench, part: str, name: str, placement: Placement, sizes: Sizes) -> Iterator[Figure]:
    """Read with this placement, then every row of the bench on it."""
    session = bench.session
    session.full.crop(0)
    session.full.place(placement, session.target.window)
    bench.prefill(sizes.context)
    results = list(bench.run())
    kv = session.full.kv_bytes().total
    weights = sum(p.numel() * p.element_size() for p in session.target.model.parameters())
    floor = (weights + kv) / copy_rate(session.target.device) * 1000.0
    for result in results:
        yield _decoded(part, name, result)
    plain = next(result for result in results if result.row == "plain")
    yield Figure(
        part, f"{name}: plain step over memory's floor", plain.ms_per_token / floor, "x", "1.25x", "resident only"
    )
    if part == "gqa" and name == "spilled" and session.target.device.type == "cuda":
        yield _offloaded(bench, sizes)


def _decoded(part: str, name: str, result: Measurement) -> Figure:
    targets = {"resident": "3.5x", "spilled": "12x"} if part in ("resident", "spilled") else {}
    ratio = f"{result.ratio_to_plain:.2f}x of plain" if result.ratio_to_plain else ""
    rate = result.acceptance.get("verify")
    accepted = f", verify {rate:.2f}" if rate is not None else ""
    same = {True: ", same as plain", False: f", differs at {result.first_difference}", None: ""}[
        result.identical_to_plain
    ]
    what = f"{name}: {result.row}, {result.context:,} tokens, T={result.temperature}"
    return Figure(
        part, what, result.ms_per_token, "ms/token", targets.get(name, ""), f"{STAND_IN}; {ratio}{accepted}{same}"
    )


def _offloaded(bench: Bench, sizes: Sizes) -> Figure:
    session = bench.session
    prompt = bench.ids[: sizes.context]
    session.full.crop(min(session.full.length, sizes.context - 1))
    greedy = {"temperature": 0.0, "top_p": 1.0, "seed": 1}
    run = generate("hf_offloaded", session.target, None, session.full, prompt, 12, None, greedy)
    return Figure("gqa", "transformers generate, offloaded cache", run.ms_per_token, "ms/token", "beside ours")


def _reading(session: Session, text: str, sizes: Sizes) -> Iterator[Figure]:
    """The whole way of a person: read, ask, ask again."""
    document = Document("Book", "", (Page(1, "1", text),), "text", "0" * 64)
    *_, read = session.read(document)
    if not isinstance(read, BookRead):
        raise TypeError("reading ended without a result")
    work = prefill.work_of(session.target, 0, read.tokens)
    share = work / read.seconds / matrix_rate(session.target.device, session.target.dtype)
    yield Figure(
        "reading", f"reading {read.tokens:,} tokens", read.seconds, "s", "15 s", f"{read.tokens_per_s:,.0f} tokens/s"
    )
    yield Figure("reading", "share of the matrix rate", 100 * share, "%", "60 %")
    planned = probe.measure(session.target.config, session.target.dtype, session.target.device)
    expected = planned.reading_s(read.tokens, read.kv_bytes)
    yield Figure("reading", "the planner's estimate of it", expected, "s", "", "by probes of one layer")
    for number in ("first", "second"):
        *_, done = session.ask("What is said about the light?", sampling=replace(GREEDY, max_tokens=sizes.tokens))
        if isinstance(done, AnswerDone) and done.figures.ttft_s is not None:
            yield Figure("reading", f"{number} question, time to first token", done.figures.ttft_s, "s", "1 s")
    session.close()


def _contexts(bench: Bench, sizes: Sizes) -> Iterator[Figure]:
    session, context = bench.session, 8192
    session.full.place(Placement.resident(session.target.num_layers), session.target.window)
    while context <= sizes.context:
        bench.options.context = [context]
        yield from (_decoded("contexts", "resident", result) for result in bench.run())
        context *= 2


def _graphs(bench: Bench, sizes: Sizes) -> Iterator[Figure]:
    """The same rows with recorded passes and without, what was replayed, and how often a round waits for the GPU."""
    session, own = bench.session, bench.session.config
    session.full.place(Placement.resident(session.target.num_layers), session.target.window)
    for graphs in GRAPHS:
        bench.reshape(replace(own, graphs=graphs))
        for result in bench.run():
            yield _decoded("graphs", f"graphs {graphs}", result)
            for stage in ("draft", "middle"):
                what = f"graphs {graphs}: {result.row}, {stage}"
                yield Figure("graphs", what, result.time_split[stage], "ms/token", note=STAND_IN)
        for level, replays in session.hierarchy.recorded().items():
            state = "ended by an error or a difference, see the log" if replays.off else ""
            yield Figure("graphs", f"graphs {graphs}: replays, {level}", replays.replayed, "passes", note=state)
        if session.target.device.type == "cuda":
            yield _waits(bench, sizes, graphs)
    bench.reshape(own)


def _waits(bench: Bench, sizes: Sizes, graphs: str) -> Figure:
    """Waits for the GPU in a round, as torch counts them, over one answer by the hierarchy."""
    case = bench.workloads.cases("prose", sizes.context)[0]
    rounds = bench.rounds("hierarchical", bench.context_of(case, 0.0, 1.0), bench.start(case))
    next(rounds)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            done = list(rounds)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = sum("synchroniz" in str(warning.message) for warning in caught)
    per_round = waits / max(1, len(done))
    passes = sum(one.passes for one in done) / max(1, len(done))
    note = f"{passes:.1f} middle passes a round; one wait each, one for the verification, one for each drafted token"
    return Figure("graphs", f"graphs {graphs}: waits for the GPU in a round", per_round, "", "", note)


# Setting up ----------------------------------------------------------------------------------------------------


def _session(sizes: Sizes, window: int) -> Session:
    config = EngineConfig(
        model=TARGET,
        draft=DRAFT,
        context=window,
        device=sizes.device,
        retrieval_budget=min(sizes.budget, sizes.context // 4),
    )
    return Session(config, *synthetic_pair(config, sizes.shape))


def _long_enough(session: Session, text: str, tokens: int) -> str:
    """The text, repeated if it is too short, cut to about ``tokens`` tokens."""
    per_token = len(text) / max(1, len(session.tokenizer.words(text)))
    wanted = int(0.98 * tokens * per_token)
    return (text * (1 + wanted // len(text)))[:wanted]


def _ids(session: Session, text: str) -> Sequence[int]:
    document = Document("Bench", "", (Page(1, "1", text + text[: len(text) // 8]),), "text", "")
    return session.tokenizer.book(document, session.tokenizer.format_for("Bench")).ids


def _options(sizes: Sizes, temperatures: Sequence[float]) -> argparse.Namespace:
    return argparse.Namespace(
        context=[sizes.context],
        tokens=sizes.tokens,
        temperature=list(temperatures),
        top_p=0.9,
        rows=["plain", "hierarchical", "hierarchical_lookup"],
        workloads=["prose"],
        repeats=1,
        questions=1,
        seed=1,
        quiet=False,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The script's command line."""
    parser = argparse.ArgumentParser(prog="python -m engine.bench.gpu", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--part", choices=PARTS, help="what to measure")
    parser.add_argument("--book", type=Path, default=SAMPLE, help="a text; repeated where it is too short")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="file of results; parts are added to it")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print a file of results as Markdown")
    options = parser.parse_args(arguments)
    if options.table:
        sys.stdout.write(figure_table(json.loads(options.table.read_text(encoding="utf-8"))) + "\n")
        return 0
    if options.part is None:
        parser.error("name a --part, or a --table")
    if not torch.cuda.is_available():
        parser.error("torch sees no NVIDIA GPU here")
    sizes = USUAL[options.part]
    results = add_figures(
        options.out,
        options.part,
        f"shape {sizes.shape}, {STAND_IN}",
        collect(measure(options.part, sizes, options.book), options.part),
    )
    sys.stdout.write(figure_table({"runs": results["runs"][-1:]}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
