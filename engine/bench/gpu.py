"""Runs the measurements that need a GPU, in one script of less than twelve minutes; needs torch and transformers only.

    python -m engine.bench.gpu --out gpu.json
    python -m engine.bench.gpu --model FOLDER --draft FOLDER
    python -m engine.bench.gpu --table gpu.json
    python -m engine.bench.gpu --share gpu.json

The script runs the parts of ``SCRIPT`` one after another. After ten minutes it starts no further part, and prints the
names of the parts that are left out. After twelve minutes it ends itself, even if a measurement is still running.
``--part`` runs a single part in its full size.

Each figure is written to the file as soon as it is measured, with the date and the device. Before measuring, the script
checks that it can write the file. ``--table`` prints all figures as Markdown. ``--share`` prints all figures as the
text of an issue on GitHub, but sends nothing.

An error ends its part and is recorded. After some errors, such as an illegal memory access, a process can no longer use
the GPU. Then a new process takes the place of this process and runs the remaining parts.

The models are stand-ins (``engine.bench.synthetic_weights``): a trained small pair grown into the sizes of real models,
with vocabularies of their sizes. Their text and acceptance are those of the small pair. Their weights, KV and
arithmetic cost as much as those of the real models. Several decoding loops (rows) are measured. Each row first decodes
an answer that is not measured, in which passes are recorded as CUDA graphs. The note of a row says whether its tokens
equal those of plain decoding. Because the small pair's acceptance is not that of real models, the row ``hierarchical``
is measured again with set acceptance rates (``rows.set_acceptance``), which its name says. ``--model`` and ``--draft``
name a real pair, which is measured with its own acceptance and gets its own file.

Parts:
    resident   rows with all KV on the device, greedily and at temperature 0.6 with top-p 0.9
    passes     verifications of several lengths, replayed and launched one by one, and matrix products of these lengths
    spilled    rows with all KV in host memory
    checks     CUDA graphs while a book's KV is saved, decoding on a full GPU, and how much memory can be pinned
    pair       rows of the real pair that --model and --draft name
    kernels    copy bandwidth, speed of a matrix product, attention kernels, each checked against the plain path, and
               products with the weights of GGUF files
    reading    reading 128K tokens, then two questions
    two_cards  the 7B with all KV in host memory, on one GPU with one bus and on two GPUs with two
    gqa        8B at 128K, with KV on the device and in host memory, compared with transformers' offloaded cache
    contexts   contexts from 8K to 512K
    middle     passes over the retrieval cache with the stored weights, and with a copy in 4 bits
    graphs     rows with and without CUDA graphs, and how often a round waits for the GPU
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import logging
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from engine.bench import card_products
from engine.bench.peers import generate
from engine.bench.report import (
    STAND_IN,
    Figure,
    Measurement,
    add_figures,
    as_they_come,
    figure_table,
    machine,
    results_of,
)
from engine.bench.rows import Bench
from engine.bench.synthetic_weights import named, synthetic_pair
from engine.bench.workloads import DRAFT, SAMPLE, TARGET
from engine.config import GRAPHS, GREEDY, EngineConfig
from engine.decode import prefill
from engine.decode.rounds import pass_ms
from engine.devices import answers, empty_caches, pin
from engine.document import Document, Page
from engine.errors import ResourceError
from engine.events import AnswerDone, BookRead
from engine.kv.full import FullCache, retry_with_spill
from engine.kv.offload import Placement
from engine.model import graphs
from engine.model.kernels import Kernel, cuda
from engine.model.kv_shape import Split
from engine.model.products import linear
from engine.model.products.quantized import Linear4, Linear8
from engine.model.products.tiled import multiplies_tiles, tiled
from engine.plan import planner, probe
from engine.plan.memory_budget import PINNED_SHARE, Share
from engine.plan.planner import Resources
from engine.plan.probe import bus_rate, copy_rate, matrix_rate
from engine.prompt import Question
from engine.session import Session

_QUERIES = (1, 8, 64)
_KEYS = (32_768, 131_072)
_GB = 1e9
# Seconds after which no new measurement begins. A running measurement may continue until ``END_S``.
LIMIT_S = 600
END_S = 700
"""Seconds after which the script ends itself, even if a measurement is still running because of a slow bus, a compiler
or a driver that hangs.
"""
# Seconds from ``END_S`` until the process is ended by force, in case a driver blocks all threads of Python.
_HELD_S = 20
# If a context must be cut to fit the memory, its new length is a multiple of this number of tokens.
_STEP = 4096
# Number of tokens of the context window that are reserved for answers.
_ANSWERS = 1024
# Bytes of the first piece of host memory that the script tries to pin. Each further piece is twice as large.
_FIRST_PIN = 1 << 30
# Maximum number of pieces of host memory that the script tries to pin.
_PINS = 5
# Number of calls of a kernel that are recorded as one CUDA graph.
_CALLS = 10
# Number of timed replays of a CUDA graph. The fastest replay counts.
_TIMES = 3
# Bytes of each tensor with which ``_checks`` fills a GPU. torch takes a segment of 20 MiB for a tensor of 1 to 10 MiB,
# so two tensors of 8 MiB would leave a fifth of it free. Tensors of 16 MiB fill the memory, and still fit into the gaps
# that are left when a layer's keys are spilled.
_PIECE = 1 << 24
# Seconds between two exports of all KV in ``_kept_again_and_again``.
_KEEP_S = 0.01


@dataclass(frozen=True)
class Sizes:
    """The model's shape, the context length and other sizes for one of the ``PARTS`` of the script. Tests use tiny
    values.
    """

    shape: str
    context: int
    tokens: int
    budget: int = 4096
    device: str = "cuda"
    temperatures: tuple[float, ...] = (0.0,)
    acceptances: tuple[float, ...] = ()


# Temperatures of most rows: greedy, and the temperature of TriForce's tables
_BOTH = (0.0, 0.6)
# Acceptance rates that are set, because the acceptance of stand-in weights is not that of real models
_ACCEPTANCES = (0.8, 0.9, 0.95)
# Numbers of tokens in the passes that the part ``passes`` times
_LENGTHS = (1, 2, 4, 8, 16, 32, 64)
USUAL = {
    "resident": Sizes("llama-2-7b", 122_880, 64, temperatures=_BOTH, acceptances=_ACCEPTANCES),
    "passes": Sizes("llama-3.1-8b", 32_768, 0),
    "spilled": Sizes("llama-2-7b", 122_880, 24, temperatures=_BOTH, acceptances=_ACCEPTANCES),
    "checks": Sizes("llama-3.1-8b", 8_192, 64),
    "pair": Sizes("", 32_768, 64, temperatures=_BOTH),
    "kernels": Sizes("llama-3.1-8b", 131_072, 0),
    "two_cards": Sizes("llama-2-7b", 32_768, 32),
    "gqa": Sizes("llama-3.1-8b", 130_048, 128),
    "reading": Sizes("llama-3.1-8b", 130_048, 32),
    "contexts": Sizes("llama-3.1-8b", 524_288, 64),
    "middle": Sizes("llama-3.1-8b", 32_768, 128),
    "graphs": Sizes("llama-2-7b", 32_768, 128),
}
PARTS = tuple(USUAL)
SCRIPT = (
    ("resident", USUAL["resident"]),
    ("resident", replace(USUAL["resident"], shape="llama-3.1-8b")),
    ("passes", USUAL["passes"]),
    ("spilled", USUAL["spilled"]),
    ("checks", USUAL["checks"]),
    ("pair", USUAL["pair"]),
    ("kernels", USUAL["kernels"]),
    ("two_cards", USUAL["two_cards"]),
)
"""The parts that the script runs, the most informative part first; none of them measures what another one does. A
context is cut if its KV does not fit in memory.
"""


@dataclass(frozen=True)
class RealPair:
    """The folders of real models, for the part ``pair``. The app's folders of settings of GGUF files are such folders
    too.
    """

    model: str
    draft: str | None = None

    def session(self, sizes: Sizes) -> Session:
        """Load the models."""
        return Session.load(EngineConfig(model=self.model, draft=self.draft, device=sizes.device))


def measure(part: str, sizes: Sizes, book: Path, pair: RealPair | None = None) -> Iterator[Figure]:
    """Measure all figures of one of the ``PARTS`` of the script.

    Args:
        pair: the models of the part ``pair``.
    """
    if part == "kernels":
        yield from _kernels(sizes)
        return
    if part == "two_cards":
        yield from _two_cards(sizes, book)
        return
    with _bench(sizes, book, None, pair) as bench:
        sizes = _cut_to_memory(bench, part, sizes)
        layers = bench.session.full.shape.layers
        whole = Placement.resident(layers)
        placements = {"resident": whole, "pair": whole, "spilled": Placement.spread(layers, 0, layers)}
        if part == "passes":
            yield from _passes(bench, sizes)
        if part == "reading":
            yield from _reading(bench.session, book, sizes)
        if part == "checks":
            yield from _checks(bench, sizes)
        if part == "contexts":
            yield from _contexts(bench, sizes)
        if part == "middle":
            yield from _middle(bench, sizes)
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
        yield Figure("kernels", "host memory to device", bus_rate(device, probe.COPY_BYTES) / _GB, "GB/s")
    yield Figure("kernels", "matrix product", matrix_rate(device, dtype) / 1e12, "TFLOP/s", note="bfloat16")
    for heads, group in ((8, 4), (32, 1)):
        for keys in [count for count in _KEYS if count <= sizes.context]:
            for queries in _QUERIES:
                yield from _attention(device, dtype, heads, group, keys, queries, rate)
    if device.type == "cuda":
        yield from card_products.figures(device, rate, _recorded_ms)


def _attention(
    device: torch.device, dtype: torch.dtype, heads: int, group: int, keys: int, queries: int, rate: float
) -> Iterator[Figure]:
    # bytes that one call reads: keys and values with a head_dim of 128
    moved = 2 * heads * keys * 128 * dtype.itemsize
    for name in cuda.installed():
        what = f"{name}: {queries} queries, {keys:,} keys, {heads} KV heads, group {group}"
        try:
            ms = cuda.measure(name, device, dtype, heads, 128, keys, queries * group, timed=_replayed_ms)
        except Exception as error:  # noqa: BLE001 - a kernel that does not compile must not hide the others
            yield Figure("kernels", what, f"{type(error).__name__}: {error}"[:200], "")
            continue
        if ms is None:
            yield Figure("kernels", what, "does not run here, or is wrong", "")
        else:
            share = moved / (ms / 1000.0) / rate
            note = f"{share:.0%} of the copy rate; as the plain path says"
            yield Figure("kernels", what, ms, "ms", "80 % of copy", note)


def _checks(bench: Bench, sizes: Sizes) -> Iterator[Figure]:
    """Check the replay of CUDA graphs while all KV is exported, decoding on a full GPU, and how much memory can be
    pinned. Notes say whether the tokens are the same as under ordinary conditions.
    """
    session, device = bench.session, bench.session.target.device
    session.full.place(Placement.resident(session.target.num_layers), session.target.window)
    bench.prefill(sizes.context)
    case = bench.workloads.cases("prose", sizes.context)[0]
    own = session.config
    # With fixed numbers of proposals, the CUDA graphs of all levels are replayed.
    bench.reshape(replace(own, num_draft_tokens=3, num_pending_tokens=8))
    # These answers are not compared, because a pass rounds differently while its CUDA graph is recorded
    for _ in range(2):
        bench.warm("hierarchical", case, 0.0)
    expected = bench.decode("hierarchical", case, 0.0).tokens
    with _kept_again_and_again(session.full, sizes.context) as times:
        decoded = bench.decode("hierarchical", case, 0.0).tokens
    for level, replays in session.hierarchy.recorded().items():
        state = "; ended by an error or a difference, see the log" if replays.off else ""
        what = f"recorded passes while a reading is kept: {level}"
        note = f"kept {times()} times meanwhile; {_same(decoded, expected)}{state}"
        yield Figure("checks", what, replays.replayed, "passes", "", note)
    bench.reshape(own)
    expected = bench.decode("plain", case, 0.0).tokens
    if device.type != "cuda":
        return
    layer = sizes.context * session.full.shape.bytes_per_token // session.target.num_layers
    torch.cuda.empty_cache()
    pieces = (torch.cuda.mem_get_info(device)[0] + 2 * layer) // _PIECE
    held = retry_with_spill(
        session.full, lambda: [torch.ones(_PIECE, dtype=torch.uint8, device=device) for _ in range(pieces)]
    )
    note = _same(bench.decode("plain", case, 0.0).tokens, expected)
    spilled = len(session.full.placement.spilled)
    held.clear()  # kept until here, so that the answer was decoded on a full card
    yield Figure("checks", "a card that is full: layers that made room", spilled, "layers", "", note)
    yield Figure("checks", "host memory that is pinned in one piece", _pinned(device) / _GB, "GB", "", "0: not at all")


def _passes(bench: Bench, sizes: Sizes) -> Iterator[Figure]:
    """Time verifications of several lengths, with and without CUDA graphs, and matrix products of these lengths."""
    session, own = bench.session, bench.session.config
    session.full.place(Placement.resident(session.full.shape.layers), sizes.context + _ANSWERS)
    bench.prefill(sizes.context)
    case = bench.workloads.cases("prose", sizes.context)[0]
    for setting in GRAPHS:
        bench.reshape(replace(own, graphs=setting))
        bench.start(case)
        for _ in session.hierarchy.record_ahead(case.prompt):
            pass
        context = bench.context_of(case, 0.0, 1.0)
        for count in _LENGTHS:
            before = _replayed(session)
            spent = [pass_ms(context.backend, session.full, context.tokens, count, None) for _ in range(_TIMES)]
            note = "replayed" if _replayed(session) - before == _TIMES else "launched one by one"
            what = f"graphs {setting}: a verification of {count} tokens after {sizes.context:,}"
            yield Figure("passes", what, min(spent), "ms", "", note)
    bench.reshape(own)
    yield from _products(session)


def _replayed(session: Session) -> int:
    """Number of verifications that have been replayed."""
    replays = session.hierarchy.recorded().get("verify")
    return replays.replayed if replays else 0


def _products(session: Session) -> Iterator[Figure]:
    """Time products of the size of a layer's largest matrix, in the dtype of activations and with quantized weights."""
    device, dtype, config = session.target.device, session.target.dtype, session.target.config
    whole = linear(torch.randn(config.intermediate_size, config.hidden_size, device=device).to(dtype), None)
    layers: dict[str, Any] = {str(dtype).removeprefix("torch."): whole}
    if dtype is torch.bfloat16 and multiplies_tiles(device):
        layers |= {"4 bits": tiled(Linear4(whole)), "8 bits": tiled(Linear8(whole))}
    for name, layer in layers.items():
        if layer is None:
            continue
        held = sum(each.nbytes for each in (*layer.parameters(), *layer.buffers()))
        for count in _LENGTHS:
            x = torch.randn(count, config.hidden_size, device=device).to(dtype)
            ms = _recorded_ms(device, partial(_repeated, layer, x)) / _CALLS
            what = f"product of {count} tokens with {config.intermediate_size:,} x {config.hidden_size:,}, {name}"
            yield Figure("passes", what, ms, "ms", "", f"{held / ms / 1e6:,.0f} GB/s")


def _repeated(layer: Callable[[torch.Tensor], object], x: torch.Tensor) -> None:
    for _ in range(_CALLS):
        layer(x)


def _replayed_ms(kernel: Kernel, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> float:
    """Return the milliseconds of one call of a kernel. Several calls are recorded together (``_recorded_ms``)."""

    def work() -> None:
        for _ in range(_CALLS):
            kernel(q, k, v, q.shape[3] ** -0.5)

    return _recorded_ms(q.device, work) / _CALLS


def _recorded_ms(device: torch.device, work: Callable[[], object]) -> float:
    """Return the milliseconds of ``work``, recorded as one CUDA graph and replayed, so that launches by the host do not
    count.
    """
    recorder = graphs.recorder_for(device)
    replay = work if recorder is None else recorder.record(work)
    timer = recorder or graphs.CudaRecorder(device)
    replay()
    ms = min(timer.milliseconds(replay) for _ in range(_TIMES))
    timer.forget()
    return ms


@contextmanager
def _kept_again_and_again(full: FullCache, tokens: int) -> Iterator[Callable[[], int]]:
    """Export all KV repeatedly on a thread, as saving a book's snapshot does. Yields a function that returns the number
    of exports so far.
    """
    ended, times = threading.Event(), 0

    def work() -> None:
        nonlocal times
        while not ended.wait(_KEEP_S):
            for layer in range(full.shape.layers):
                full.export(layer, 0, tokens)
            times += 1

    thread = threading.Thread(target=work, name="trifold-keeper")
    thread.start()
    try:
        yield lambda: times
    finally:
        ended.set()
        thread.join()


def _pinned(device: torch.device) -> int:
    """Return the bytes of the largest piece of host memory that the system pins; 0 if it pins none of the pieces."""
    most = 0
    for size in (_FIRST_PIN << step for step in range(_PINS)):
        if size > PINNED_SHARE * psutil.virtual_memory().available:
            break
        if not pin(torch.empty(size, dtype=torch.uint8), device):
            break
        most = size
    return most


def _two_cards(sizes: Sizes, book: Path) -> Iterator[Figure]:
    """Measure rows with all KV in host memory: on one GPU, and with the layers on two GPUs, which have two buses."""
    cards = [torch.device(sizes.device, index) for index in range(2)]
    if torch.cuda.device_count() < len(cards):
        yield Figure("two_cards", "not measured: there is one card", 0, "")
        return
    count = named(sizes.shape).num_hidden_layers
    halves = [Share(count - count // 2, count - count // 2), Share(count // 2, count // 2)]
    split = planner.layout_of(halves, cards).split
    expected: list[int] = []
    for name, layout in (("one card", None), ("two cards", split)):
        yield from _on_cards(name, layout, sizes, book, expected)


def _on_cards(name: str, layout: Split | None, sizes: Sizes, book: Path, expected: list[int]) -> Iterator[Figure]:
    """Measure rows with all KV in host memory. Notes compare each answer with the tokens ``expected``. If this list is
    empty, the first answer's tokens are added to it.
    """
    with _bench(sizes, book, layout) as bench:
        layers = bench.session.full.shape.layers
        bench.session.full.place(Placement.spread(layers, 0, layers), bench.session.target.window)
        bench.prefill(sizes.context)
        case = bench.workloads.cases("prose", sizes.context)[0]
        for row in ("plain", "hierarchical_lookup"):
            # This answer is not measured, because passes are recorded as CUDA graphs and costs are learned during it
            bench.warm(row, case, 0.0)
            run = bench.decode(row, case, 0.0)
            expected += run.tokens if not expected else []
            what = f"{name}: {row}, {sizes.context:,} tokens, all KV in memory"
            note = f"{STAND_IN}; {_same(run.tokens, expected)}"
            yield Figure("two_cards", what, run.ms_per_token, "ms/token", "", note)


def _same(found: Sequence[int], expected: Sequence[int]) -> str:
    """Describe whether two answers are equal, or at which token they first differ. In half precision two answers may
    differ, because passes of different lengths round differently.
    """
    at = next((at for at, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), None)
    return "identical" if at is None else f"differs at {at}"


def _placed(bench: Bench, part: str, name: str, placement: Placement, sizes: Sizes) -> Iterator[Figure]:
    """Put each layer's KV into the tier that ``placement`` names, read the book, and run every row of the bench."""
    session = bench.session
    session.full.crop(0)
    session.full.place(placement, sizes.context + _ANSWERS)
    began = time.perf_counter()
    bench.prefill(sizes.context)
    seconds = time.perf_counter() - began
    yield Figure(part, f"{name}: reading {sizes.context:,} tokens", seconds, "s")
    for result in bench.one_by_one(sizes.context, sizes.acceptances):
        yield _decoded(part, name, result)
        if result.row == "plain" and name != "spilled":
            read = session.target.bytes_read_by_step + session.full.kv_bytes().total
            floor = read / copy_rate(session.target.device) * 1000.0
            what = f"{name}: plain step over memory's floor, T={result.temperature}"
            yield Figure(part, what, result.ms_per_token / floor, "x", "1.25x", f"{read / _GB:.2f} GB at the copy rate")
    spilled = len(session.full.placement.spilled)
    if name != "spilled" and spilled:
        yield Figure(part, f"{name}: layers for which there was no room", spilled, "layers")
    if part == "gqa" and name == "spilled" and session.target.device.type == "cuda":
        yield _offloaded(bench, sizes)


def _decoded(part: str, name: str, result: Measurement) -> Figure:
    targets = {"resident": "3.5x", "spilled": "12x"} if part in ("resident", "spilled") else {}
    ratio = f"{result.ratio_to_plain:.2f}x of plain" if result.ratio_to_plain else ""
    same = {True: "identical to plain", False: f"differs at {result.first_difference}", None: ""}[
        result.identical_to_plain
    ]
    rate = result.settings.get("acceptance")
    given = "" if rate is None else f", acceptance set to {rate}"
    what = f"{name}: {result.row}, {result.context:,} tokens, T={result.temperature}{given}"
    weights = "" if part == "pair" else STAND_IN
    note = f"{weights}; " * bool(weights) + ", ".join(filter(None, [ratio, same]))
    return Figure(part, what, result.ms_per_token, "ms/token", targets.get(name, ""), note, _details(result))


def _details(result: Measurement) -> dict[str, float | None]:
    """The rates, the tokens a round and the time of each level that explain the time of a row."""
    acceptance = result.acceptance
    rates = {
        "middle level's tokens, accepted of judged": acceptance["retrieval_judged"],
        "drafted tokens at the full level, accepted of judged": acceptance["drafted_judged"],
        "drafted tokens at the middle level, accepted of proposed": acceptance["middle"],
        "copied tokens, accepted of proposed": acceptance["lookup"],
        "tokens a round": result.mean_acceptance_length,
    }
    return rates | {f"{stage} ms a token": ms for stage, ms in result.time_split.items()}


def _offloaded(bench: Bench, sizes: Sizes) -> Figure:
    session = bench.session
    prompt = bench.ids[: sizes.context]
    session.full.crop(min(session.full.length, sizes.context - 1))
    greedy = {"temperature": 0.0, "top_p": 1.0, "seed": 1}
    run = generate("hf_offloaded", session.target, None, session.full, prompt, 12, None, greedy)
    return Figure("gqa", "transformers generate, offloaded cache", run.ms_per_token, "ms/token", "beside ours")


def _reading(session: Session, book: Path, sizes: Sizes) -> Iterator[Figure]:
    """Measure the time of reading a book, and the time to the first token of two questions about it."""
    text = _long_enough(session, book.read_text(encoding="utf-8"), sizes.context)
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
        *_, done = session.ask(
            Question("What is said about the light?", sampling=replace(GREEDY, max_tokens=sizes.tokens))
        )
        if isinstance(done, AnswerDone) and done.figures.ttft_s is not None:
            yield Figure("reading", f"{number} question, time to first token", done.figures.ttft_s, "s", "1 s")


def _contexts(bench: Bench, sizes: Sizes) -> Iterator[Figure]:
    session, context = bench.session, 8192
    session.full.place(Placement.resident(session.full.shape.layers), sizes.context + _ANSWERS)
    while context <= sizes.context:
        yield from (_decoded("contexts", "resident", result) for result in bench.one_by_one(context))
        context *= 2


def _middle(bench: Bench, sizes: Sizes) -> Iterator[Figure]:
    """Measure rows twice: with passes over the retrieval cache that use the weights as stored, and with passes that use
    a copy of the weights in 4 bits.
    """
    session, own = bench.session, bench.session.config
    session.full.place(Placement.resident(session.full.shape.layers), sizes.context + _ANSWERS)
    for middle in ("stored", "4bit"):
        bench.reshape(replace(own, middle=middle))
        if middle == "4bit" and not session.hierarchy.middle.bits:
            yield Figure("middle", "a copy in 4 bits", "none: this device or dtype has no product for it", "")
            break
        for result in bench.one_by_one(sizes.context):
            yield _decoded("middle", f"middle {middle}", result)
            stage = f"middle {middle}: {result.row}, its middle level for a token"
            yield Figure("middle", stage, result.time_split["middle"], "ms", note=STAND_IN)
    bench.reshape(own)


def _graphs(bench: Bench, sizes: Sizes) -> Iterator[Figure]:
    """Measure rows with and without recording passes as CUDA graphs (the settings in ``GRAPHS``). Also count replayed
    passes, and how often a round waits for the GPU.
    """
    session, own = bench.session, bench.session.config
    session.full.place(Placement.resident(session.full.shape.layers), sizes.context + _ANSWERS)
    for setting in GRAPHS:
        bench.reshape(replace(own, graphs=setting))
        for result in bench.one_by_one(sizes.context):
            yield _decoded("graphs", f"graphs {setting}", result)
            for stage in ("draft", "middle"):
                what = f"graphs {setting}: {result.row}, {stage}"
                yield Figure("graphs", what, result.time_split[stage], "ms/token", note=STAND_IN)
        for level, replays in session.hierarchy.recorded().items():
            state = "ended by an error or a difference, see the log" if replays.off else ""
            yield Figure("graphs", f"graphs {setting}: replays, {level}", replays.replayed, "passes", note=state)
        if session.target.device.type == "cuda":
            yield _waits(bench, sizes, setting)
    bench.reshape(own)


def _waits(bench: Bench, sizes: Sizes, setting: str) -> Figure:
    """Count how often a round of the row ``hierarchical`` waits for the GPU, on average over one answer. For this,
    torch is set to give a warning at each wait, and the warnings are counted.
    """
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
    return Figure("graphs", f"graphs {setting}: waits for the GPU in a round", per_round, "", "", note)


# Setting up ----------------------------------------------------------------------------------------------------


@contextmanager
def _bench(sizes: Sizes, book: Path, split: Split | None = None, pair: RealPair | None = None) -> Iterator[Bench]:
    """Make a bench on stand-in models, or on a real pair. Before that, free the memory of the previous bench, whose
    objects may still be alive in reference cycles.
    """
    _give_back()
    with closing(pair.session(sizes) if pair else _session(sizes, sizes.context + _STEP, split)) as session:
        text = _long_enough(session, book.read_text(encoding="utf-8"), sizes.context)
        yield Bench(session, _ids(session, text), _options(sizes))


def _give_back() -> None:
    """Collect garbage, and free the device memory that torch has cached."""
    gc.collect()
    empty_caches()


def _cut_to_memory(bench: Bench, part: str, sizes: Sizes) -> Sizes:
    """Shorten the context, if necessary, so that its KV fits into the memory that the part uses (device, or device and
    host).

    Raises:
        ResourceError: not even ``_STEP`` tokens fit.
    """
    session = bench.session
    free = planner.free_resources(session.target.device, session.config)
    spilled = Resources(free.device, free.host)
    wanted = spilled if part in ("spilled", "reading", "gqa") else Resources(free.device)
    longest = planner.longest_context(session.full.shape, session.target.window, wanted) - _ANSWERS
    if longest >= sizes.context:
        return sizes
    context = longest // _STEP * _STEP
    if context < _STEP:
        raise ResourceError(
            f"Next to the weights there is only room for {max(0, longest):,} tokens.", "Close other programs."
        )
    return replace(sizes, context=context)


def _session(sizes: Sizes, window: int, split: Split | None = None) -> Session:
    config = EngineConfig(
        model=TARGET,
        draft=DRAFT,
        context=window,
        device=sizes.device,
        retrieval_budget=min(sizes.budget, sizes.context // 4),
    )
    return Session(config, *synthetic_pair(config, sizes.shape, split=split))


def _long_enough(session: Session, text: str, tokens: int) -> str:
    """Cut the text to about ``tokens`` tokens. If the text is shorter, it is repeated before it is cut."""
    per_token = len(text) / max(1, len(session.tokenizer.words(text)))
    wanted = int(0.98 * tokens * per_token)
    return (text * (1 + wanted // len(text)))[:wanted]


def _ids(session: Session, text: str) -> Sequence[int]:
    document = Document("Bench", "", (Page(1, "1", text + text[: len(text) // 8]),), "text", "")
    return session.tokenizer.book(document, session.tokenizer.format_for("Bench")).ids


def _options(sizes: Sizes) -> argparse.Namespace:
    return argparse.Namespace(
        context=[sizes.context],
        tokens=sizes.tokens,
        temperature=list(sizes.temperatures),
        top_p=0.9,
        top_k=None,
        repetition_penalty=None,
        rows=["plain", "hierarchical", "hierarchical_lookup"],
        workloads=["prose"],
        repeats=1,
        questions=1,
        seed=1,
        quiet=False,
        never_slower=None,
    )


def run(
    part: str,
    sizes: Sizes,
    book: Path,
    out: Path,
    label: str = "",
    is_over: Callable[[], bool] = lambda: False,
    here: dict[str, Any] | None = None,
    pair: RealPair | None = None,
) -> None:
    """Measure one of the ``PARTS`` of the script. Write each figure to the file when it is measured, and print all
    figures at the end. The part ``pair`` has a file of its own beside ``out``.

    Args:
        label: name under which the figures are stored in the file; "" uses ``part``.
        is_over: returns whether the time for all parts is over. It is called after each figure.
        here: description of the machine from ``report.machine``; if it is None, this function is called.
        pair: the models of the part ``pair``.
    """
    figures: list[Figure] = []
    results: dict[str, Any] = {"runs": []}
    here, model = here or machine(), f"shape {sizes.shape}, {STAND_IN}"
    if pair is not None:
        out = out.with_name(f"{out.stem}-pair{out.suffix}")
        model = " and ".join(Path(name).name for name in (pair.model, pair.draft) if name)
    with closing(as_they_come(measure(part, sizes, book, pair), part)) as measured:
        for figure in measured:
            figures.append(figure)
            if over := is_over():
                figures.append(Figure(part, "the rest", "left out, the time is over", ""))
            results = add_figures(out, label or part, model, figures, here)
            if over:
                break
    sys.stdout.write(figure_table({"runs": results["runs"][-1:]}) + "\n")


def _end() -> None:
    """End this process at once. No figures are lost, because each is written to the file when it is measured."""
    sys.stdout.write("The time is over. What was measured until now is in the file.\n")
    sys.stdout.flush()
    os._exit(0)


def run_script(
    book: Path,
    out: Path,
    clock: Callable[[], float] = time.monotonic,
    timer: Callable[[float, Callable[[], None]], threading.Timer] = threading.Timer,
    first: int = 0,
    used: float = 0.0,
    pair: RealPair | None = None,
) -> None:
    """Run the parts of ``SCRIPT`` one after another, until ``LIMIT_S`` seconds have passed. After ``END_S`` seconds the
    process ends in any case.

    Args:
        first: index of the first part to run.
        used: seconds that earlier processes of this script have taken.
        pair: the models of the part ``pair``, which is left out without them.
    """
    began, end = clock() - used, timer(max(0.0, END_S - used), _end)
    end.daemon = True
    end.start()
    faulthandler.dump_traceback_later(max(1.0, END_S + _HELD_S - used), exit=True, file=sys.__stderr__ or 2)
    try:
        _run_parts(book, out, lambda: clock() - began, first, pair)
    finally:
        faulthandler.cancel_dump_traceback_later()
        end.cancel()


def _run_parts(book: Path, out: Path, used: Callable[[], float], first: int, pair: RealPair | None) -> None:
    here = machine()
    for index, (part, sizes) in enumerate(SCRIPT[first:], start=first):
        label = ", ".join(filter(None, [part, sizes.shape, f"{sizes.context:,} tokens"]))
        if used() > LIMIT_S:
            sys.stdout.write(f"{label}: left out, the time is over. Alone: --part {part}\n")
            continue
        if part == "pair" and pair is None:
            sys.stdout.write(f"{label}: left out, --model and --draft name no models.\n")
            continue
        run(part, sizes, book, out, label, lambda: used() > LIMIT_S, here, pair if part == "pair" else None)
        if index + 1 < len(SCRIPT) and torch.cuda.is_initialized() and not answers(torch.device("cuda")):
            _restart(book, out, index + 1, used(), pair)


def _restart(book: Path, out: Path, first: int, used: float, pair: RealPair | None) -> None:
    """Replace this process by a new one, which runs the part ``first`` and all later parts. Done only when necessary,
    because the new process takes some 10 seconds to import torch and transformers.
    """
    sys.stdout.write("The card answers this process no more. A new process runs the parts that are left.\n")
    sys.stdout.flush()
    given = ["--book", str(book), "--out", str(out), "--first", str(first), "--used", f"{used:.1f}"]
    if pair is not None:
        given += ["--model", pair.model, *(["--draft", pair.draft] if pair.draft else [])]
    os.execv(sys.executable, [sys.executable, "-m", "engine.bench.gpu", *given])


def shared_text(results: dict[str, Any]) -> str:
    """Return all figures as the text of an issue, which a person may then send."""
    cards = ", ".join(dict.fromkeys(run["machine"]["gpu"] or "no GPU" for run in results["runs"]))
    return (
        f"Title: Measured on {cards}\n\n"
        f"Made by `python -m engine.bench.gpu`. The weights are stand-ins of the named shapes.\n\n"
        f"{figure_table(results)}\n"
        "Nothing of this has been sent: paste it into a new issue if you want to share it.\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or print figures as the command line asks."""
    parser = argparse.ArgumentParser(prog="python -m engine.bench.gpu", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--part", choices=PARTS, help="measure this alone, in its full size")
    parser.add_argument("--model", metavar="FOLDER", help="a real model, measured in the part pair with its own file")
    parser.add_argument("--draft", metavar="FOLDER", help="its draft model")
    parser.add_argument("--book", type=Path, default=SAMPLE, help="a text; repeated where it is too short")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="file of results; parts are added to it")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print a file of results as Markdown")
    parser.add_argument("--share", type=Path, metavar="FILE", help="print it as the text of an issue; sends nothing")
    # ``_restart`` passes the options --first and --used to the new process
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--used", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for file, words in ((options.table, figure_table), (options.share, shared_text)):
        if file:
            sys.stdout.write(words(json.loads(file.read_text(encoding="utf-8"))) + "\n")
            return 0
    if not torch.cuda.is_available():
        parser.error("torch sees no NVIDIA GPU here")
    if not options.book.is_file():
        parser.error(f"there is no text {options.book}")
    try:  # check before measuring that the file can be written, so that no figures are lost
        results_of(options.out)
        with tempfile.TemporaryFile(dir=options.out.absolute().parent):
            pass
    except (OSError, ValueError) as error:
        parser.error(f"{options.out} cannot take the figures ({error}): name another file with --out")
    pair = RealPair(options.model, options.draft) if options.model else None
    if options.part == "pair" and pair is None:
        parser.error("name the models of the pair with --model and --draft")
    if options.part:
        run(options.part, USUAL[options.part], options.book, options.out, pair=pair if options.part == "pair" else None)
    else:
        run_script(options.book, options.out, first=options.first, used=options.used, pair=pair)
    return 0


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    sys.exit(main())
