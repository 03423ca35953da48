"""Bytes of real models on real cards, by the planner's arithmetic, and what a round of one of them takes by that: the
tables in engine/docs/gpus.md and the goal's in engine/README.md, and that they are true.

python -m tests.engine.gpu.test_bytes
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from engine.config import EngineConfig
from engine.decode.tuning import TUNING
from engine.kv.offload import Tier
from engine.model import graphs
from engine.model.architectures import embedding_parameters, estimate_parameters
from engine.model.attention import Seen, attend_seen
from engine.model.expected import kv_shape_of
from engine.model.kernels import cuda, plain
from engine.model.kv_shape import KvShape
from engine.model.products.quantized import Linear4, Linear8
from engine.model.products.tiled import tiled
from engine.plan import planner
from engine.plan.cost_model import MIN_BUDGET
from engine.plan.memory_budget import (
    CHUNK,
    RETRIEVAL_TAIL,
    DeviceRoom,
    LayerBytes,
    Share,
    fitting_budget,
    retrieval_bytes,
    share_layers,
    usable,
)
from engine.plan.round_model import LAUNCH_US, Pass, Rates, RoundModel
from tests.engine.gpu.counting import DRAFTED, GPU, PASSES, RoundCalls, load_once, round_calls
from tests.engine.gpu.simulated_cuda import Gpu, simulated_cuda
from tests.house import ROOT

BOOK, WINDOW = 120_000, 131_072
GB, GIB = 1e9, 2**30
CONTEXT_BYTES = int(0.5 * GIB)  # of CUDA itself on every card
CONFIG = EngineConfig(model="m", context=WINDOW)
# Name, GB of memory, and GB per second of its memory and of its bus as published; how many of them.
CARDS = (
    ("RTX 4060", 8, 272, 15.8, 1),
    ("RTX 4070", 12, 504, 31.5, 1),
    ("RTX 4080", 16, 717, 31.5, 1),
    ("RTX 4090", 24, 1008, 31.5, 1),
    ("two RTX 4090", 24, 1008, 31.5, 2),
    ("RTX 6000 Ada", 48, 960, 31.5, 1),
    ("H200", 141, 4800, 63.0, 1),
)


def shape(width: int, inner: int, layers: int, heads: int, kv: int, dim: int, words: int, *, tied: bool = False) -> Any:
    """What of a model's configuration bytes depend on."""
    return SimpleNamespace(
        model_type="llama",
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        head_dim=dim,
        vocab_size=words,
        tie_word_embeddings=tied,
        dtype=torch.bfloat16,
        max_position_embeddings=WINDOW,
    )


PAIRS = {
    "Llama-3.1-8B + 1B": (
        shape(4096, 14336, 32, 32, 8, 128, 128_256),
        shape(2048, 8192, 16, 32, 8, 64, 128_256, tied=True),
    ),
    "Llama-2-7B-128K + 68M": (
        shape(4096, 11008, 32, 32, 32, 128, 32_000),
        shape(768, 3072, 2, 12, 12, 64, 32_000),
    ),
    "Qwen3-8B + 0.6B": (
        shape(4096, 12288, 36, 32, 8, 128, 151_936),
        shape(1024, 3072, 28, 16, 8, 128, 151_936, tied=True),
    ),
}


@dataclass(frozen=True)
class Fit:
    """What the planner says of a model and its book on cards of one kind. ``spare`` are bytes that stay free; ``fits``:
    whether what waits nowhere else has room."""

    kv: KvShape
    size: LayerBytes
    layout: planner.Layout
    plan: planner.MemoryPlan
    spare: int
    fits: bool
    budget: int

    @property
    def waiting(self) -> int:
        """Bytes of weights in host memory."""
        return int(len(self.layout.in_host) * self.size.weights * self.size.copied_share)

    @property
    def moved(self) -> int:
        """Bytes that come over the bus for a verification."""
        return self.plan.kv.host + self.waiting


def fit(config: EngineConfig, model: Any, draft: Any, memory: int, count: int, budget: int = MIN_BUDGET) -> Fit | None:
    """Where a book lies; None if it does not fit. ``budget``: of the retrieval cache, where it has room."""
    devices = [torch.device("cuda", index) for index in range(count)]
    size, taken = planner.model_bytes(config, model, draft, devices[0])
    free = memory * GIB - CONTEXT_BYTES
    rooms = [DeviceRoom(free, 0 if index else taken) for index in range(count)]
    shares = share_layers(model.num_hidden_layers, size, rooms)
    layout, fits = planner.layout_of(shares, devices), all(map(Share.fits, shares, [size] * count, rooms))
    kv = replace(kv_shape_of(model, torch.bfloat16, devices[0]), split=layout.split)
    kv = kv.stored_as(config.kv).indexed(CHUNK)
    # The retrieval cache and a copy are there before a book is; its mean keys come with the book.
    beside = size.other_caches - WINDOW * kv.index_bytes_per_token // kv.layers
    held = planner.weights_by_device(layout, kv.layers, size, taken)
    used = [weights + part.layers * beside for weights, part in zip(held, kv.parts, strict=True)]
    sizes = [planner._size(part) for part in kv.parts]
    used = [bytes_ - retrieval_bytes(part, MIN_BUDGET) for bytes_, part in zip(used, sizes, strict=True)]
    rooms_left = [usable(free - bytes_) for bytes_ in used]
    budget = fitting_budget(sizes, budget, MIN_BUDGET, BOOK, rooms_left, 10**12, 0)
    used = [bytes_ + retrieval_bytes(part, budget) for bytes_, part in zip(used, sizes, strict=True)]
    left = [max(0, usable(free - bytes_)) for bytes_ in used]
    plan = planner.plan(kv, BOOK, planner.Resources(left[0], 10**12, 0, tuple(left[1:])))
    if plan is None:
        return None
    spare = sum(free - bytes_ for bytes_ in used) - plan.kv.device - plan.staging - BOOK * kv.index_bytes_per_token
    return Fit(kv, size, layout, plan, spare, fits, budget)


def row(pair: str, card: str, memory: int, rate: float, bus: float, count: int) -> str:
    """One line of the table."""
    name = f"| {pair} | {card} |"
    found = fit(CONFIG, *PAIRS[pair], memory, count)
    if found is None:
        return f"{name} does not fit | | | | |"
    kv, plan, weights = found.kv, found.plan, found.size.weights
    host = plan.placement.count(Tier.HOST)
    in_host, moved = len(found.layout.in_host), found.moved
    read = plan.kv.total + kv.layers * weights
    ms = max(read / (rate * GB), moved / (bus * GB * len(kv.parts))) * 1000
    return (
        f"{name} {kv.layers - in_host} + {in_host} | {kv.layers - host} + {host} | {found.spare / GB:.1f} GB | "
        f"{moved / GB:.1f} GB | {ms:.0f} ms |"
    )


def table() -> Iterator[str]:
    """The whole of it."""
    yield "| models | card | weights: layers on card + in memory | KV: the same | left | moved | time |"
    yield "|---|---|---|---|---|---|---|"
    for pair in PAIRS:
        for card in CARDS:
            yield row(pair, *card)


# A middle level in 4 bits -------------------------------------------------------------------------------------------

LLAMA = "Llama-3.1-8B + 1B"
SHOWN = (0.8, 0.9, 0.95)
"""Kept shares of the middle level's tokens."""
BITS_IN_WORDS = {"stored": "bfloat16", "4bit": "4 bits"}


def calls(*, recorded: bool = False, spilled: bool = False) -> RoundCalls:
    """Of the pair, with 32 and 16 layers, by what one layer more adds. Of two spilled ones each keeps its buffer."""
    layers = ((3, 1), (4, 2)) if spilled else ((1, 1), (2, 2))
    more_layers = 32 - layers[0][0]
    few, more = (
        round_calls(each, middle="4bit", spilled=range(each[0] if spilled else 0), recorded=recorded) for each in layers
    )
    return RoundCalls(
        few.draft + (more.draft - few.draft) * 15,
        few.middle + (more.middle - few.middle) * more_layers,
        few.verify + (more.verify - few.verify) * more_layers,
    )


def calls_table(plain: RoundCalls, spilled: RoundCalls, replayed: RoundCalls) -> Iterator[str]:
    """Launches and waits of the parts of a round and of the whole."""
    yield "| part of a round | launches | replayed | waits |"
    yield "|---|---|---|---|"
    for name, one, other in (
        (f"{DRAFTED} drafted tokens", plain.draft, replayed.draft),
        ("a middle pass, in bfloat16 or 4 bits", plain.middle, replayed.middle),
        ("a verification, KV on the card", plain.verify, replayed.verify),
        ("a verification, KV in memory", spilled.verify, spilled.verify),
        (f"a round: {PASSES} middle passes and a verification, KV on the card", plain.whole, replayed.whole),
    ):
        yield f"| {name} | {one.launches:,} | {other.launches:,} | {one.waits} |"


def verification(found: Fit, model: Any) -> Pass:
    """A pass over all weights and KV, of one token or a few, whose launches are not counted."""
    read = found.kv.layers * found.size.weights + head_bytes(model) + found.plan.kv.total
    return Pass(read, found.moved)


def head_bytes(model: Any) -> int:
    return int(model.vocab_size * model.hidden_size * 2)


def round_model(found: Fit, pair: str, rates: Rates, *, drafts: bool = True, copied: int = 0) -> RoundModel:
    """The passes of a pair; ``copied`` bytes has a layer's copy for the middle level, where there is one."""
    model, draft = PAIRS[pair]
    read = found.kv.layers * (copied or found.size.weights) + head_bytes(model)
    read += (found.budget + RETRIEVAL_TAIL) * found.kv.compute_bytes_per_token
    middle = Pass(read, 0 if copied else found.waiting)
    drafted = Pass(2 * estimate_parameters(draft)) if drafts else None
    return RoundModel(rates, drafted, middle, verification(found, model), TUNING.most_draft)


def middle_row(card: str, middle: str, *, drafts: bool, spilled: RoundCalls, replayed: RoundCalls) -> str:
    """One line of the table of middle levels."""
    _, memory, rate, bus, count = next(each for each in CARDS if each[0] == card)
    model, draft = PAIRS[LLAMA]
    config = replace(CONFIG, middle=middle)
    found = fit(config, model, draft if drafts else None, memory, count)
    words = BITS_IN_WORDS[middle]
    name = f"| {card} | {'1B' if drafts else 'none'} | {words} |"
    without = fit(CONFIG, model, draft if drafts else None, memory, count)
    if found is None or without is None or not found.fits or bool(found.waiting) != bool(without.waiting):
        return f"{name} refused: no room for the copy | | | | | | |"
    alone = fit(CONFIG, model, None, memory, count)
    assert alone is not None
    copied = found.size.other_caches - alone.size.other_caches if middle == "4bit" else 0
    rates = Rates(rate * GB, bus * GB)
    passes = round_model(found, LLAMA, rates, drafts=drafts, copied=copied)
    plain_ms = verification(alone, model).ms(rates)
    gains, launches = [], 0
    for kept in SHOWN:
        speed = passes.speed(kept, plain_ms)
        best = speed.plan
        gains.append(f"{best.passes} x {best.draft}: {speed.round_ms:.0f} ms, {speed.gain:.1f}x")
        drafted = max(1, best.passes) * best.draft * replayed.draft.launches // DRAFTED
        verify = spilled.verify if found.plan.kv.host else replayed.verify
        launches = max(launches, drafted + best.passes * replayed.middle.launches + verify.launches)
    host = found.plan.placement.count(Tier.HOST)
    return (
        f"{name} {found.kv.layers - host} + {host} | {passes.middle.device_bytes / GB:.1f} GB, "
        f"{passes.middle.ms(rates):.1f} ms | "
        f"{found.moved / GB:.1f} GB, {passes.plain_ms:.0f} ms | {' | '.join(gains)} | "
        + ("not counted |" if found.waiting else f"{launches * LAUNCH_US / 1000:.0f} ms |")
    )


def middle_table(spilled: RoundCalls, replayed: RoundCalls) -> Iterator[str]:
    """Llama-3.1-8B with and without a copy in 4 bits."""
    kept = " | ".join(f"kept {each:.2f}" for each in SHOWN)
    yield f"| card | draft | middle level | KV layers | a middle pass | a verification | {kept} | launching |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for card in ("RTX 4070", "RTX 4090", "H200"):
        for drafts in (True, False):
            for middle in ("stored", "4bit"):
                yield middle_row(card, middle, drafts=drafts, spilled=spilled, replayed=replayed)


# The cases that others have published ---------------------------------------------------------------------------------

H100 = ("H100", 80, 3350, 63.0, 1)


@dataclass(frozen=True)
class Published:
    """A case that others have published, with the milliseconds of a token that were wanted here."""

    pair: str
    card: tuple[str, int, int, float, int]
    middle: str
    measured: str
    wanted: float
    kv: str = "model"

    @property
    def name(self) -> str:
        return f"{self.card[0]}{', KV in 8 bits' if self.kv == '8bit' else ''}"

    def rounds(self) -> RoundModel:
        _, memory, rate, bus, count = self.card
        config = replace(CONFIG, kv=self.kv)
        found = fit(replace(config, middle=self.middle), *PAIRS[self.pair], memory, count, MIDDLE)
        without = fit(config, *PAIRS[self.pair], memory, count, MIDDLE)
        assert found is not None
        assert without is not None
        copied = found.size.other_caches - without.size.other_caches
        return round_model(found, self.pair, Rates(rate * GB, bus * GB, count), copied=copied)

    def said(self) -> str:
        """A plain step and a token."""
        made = self.rounds()
        fast, slow = made.token_ms()
        gains = f"{made.plain_ms / slow:.1f} to {made.plain_ms / fast:.1f}x"
        return f"{made.plain_ms:,.0f} ms | {fast:.1f} to {slow:.1f} ms, {gains}"


PUBLISHED = (
    Published("Llama-2-7B-128K + 68M", CARDS[3], "stored", "312 ms (TriForce)", 160),
    Published("Llama-2-7B-128K + 68M", CARDS[3], "stored", "312 ms (TriForce)", 160, "8bit"),
    Published("Llama-2-7B-128K + 68M", CARDS[4], "stored", "108 ms (TriForce)", 75),
    Published("Llama-2-7B-128K + 68M", CARDS[4], "stored", "108 ms (TriForce)", 75, "8bit"),
    Published("Llama-3.1-8B + 1B", H100, "stored", "2.31x on an A100 (TriForce)", 4.5),
    Published("Llama-3.1-8B + 1B", H100, "4bit", "2.31x on an A100 (TriForce)", 4.5),
)
MIDDLE = 4096
"""Tokens of the retrieval budget, as in the paper."""


def published_table() -> Iterator[str]:
    """Plain steps, tokens as a range over what is kept, and the first word, beside what was published and wanted."""
    yield "| models | card | middle level | plain step | a token, speculating | first word | published | wanted |"
    yield "|---|---|---|---|---|---|---|---|"
    for each in PUBLISHED:
        yield (
            f"| {each.pair} | {each.name} | {BITS_IN_WORDS[each.middle]} | {each.said()} | "
            f"{each.rounds().first_word_s:.2g} s | {each.measured} | {each.wanted:g} ms |"
        )


def goal_table() -> Iterator[str]:
    """The same for the engine's README: by what the goal is missed."""
    yield "| models, card, middle level | plain | a token now | published | wanted | reached where it keeps |"
    yield "|---|---|---|---|---|---|"
    for each in PUBLISHED:
        kept = each.rounds().kept_for(each.wanted)
        where = "nowhere" if kept is None else f"{kept:.0%} or more"
        yield (
            f"| {each.pair}, {each.name}, {BITS_IN_WORDS[each.middle]} | {each.said()} | "
            f"{each.measured} | {each.wanted:g} ms | {where} |"
        )


# What single kernels read and write -----------------------------------------------------------------------------------


def touched(work: Callable[[], object], gpu: Gpu) -> int:
    """Bytes that the simulated card's kernels read and write for it, the second time."""
    work()
    before = gpu.touched
    work()
    return gpu.touched - before


def kernel_bytes() -> dict[str, tuple[float, ...]]:
    """Before and now: of a score of a masked row, and of a weight in each format, for one row."""
    rows, keys, width = 8, 2048, 512
    found = {}
    with simulated_cuda("eager") as gpu, torch.no_grad():
        q, k, v = (torch.zeros(1, 1, count, 128, dtype=torch.bfloat16, device=GPU) for count in (rows, keys, keys))
        seen = Seen(torch.ones(rows, keys, dtype=torch.bool, device=GPU))
        both = (lambda: plain(q, k, v, 1.0, seen.keys), lambda: attend_seen(q, k, v, 1.0, seen))
        cuda.takes_masks(GPU, torch.bfloat16, 1, 128)
        found["scores"] = tuple((touched(work, gpu) - k.nbytes - v.nbytes) / (rows * keys) for work in both)
        x = torch.zeros(1, width, dtype=torch.bfloat16, device=GPU)
        for name, kind in (("4bit", Linear4), ("8bit", Linear8)):
            held = kind(nn.Linear(width, width, bias=False, dtype=torch.bfloat16)).to(GPU)
            made = tiled(held)
            assert made is not None
            ways = (lambda held=held: held(x), lambda made=made: made(x))
            found[name] = tuple(touched(work, gpu) / width**2 for work in ways)
    return found


def mends_table() -> Iterator[str]:
    """What passes of real shapes read and write by that, and how long it takes."""
    bytes_of = kernel_bytes()
    yield "| | card | by the plain way | now |"
    yield "|---|---|---|---|"
    llama2, llama3 = PAIRS["Llama-2-7B-128K + 68M"][0], PAIRS[LLAMA][0]
    kv = kv_shape_of(llama2, torch.bfloat16, GPU)
    keys, rows = MIDDLE + RETRIEVAL_TAIL, 8
    scores = llama2.num_attention_heads * kv.layers * rows * keys
    cases = [("attention of a recorded middle pass of 8 tokens, Llama-2-7B", CARDS[3])]
    read = [tuple(scores * each + keys * kv.compute_bytes_per_token for each in bytes_of["scores"])]
    blocks = estimate_parameters(llama3) - embedding_parameters(llama3)
    for name in ("4bit", "8bit"):
        cases.append((f"weights of a plain step, Llama-3.1-8B with `--weights {name}`", CARDS[1]))
        read.append(tuple(blocks * each + head_bytes(llama3) for each in bytes_of[name]))
    for (what, (card, _, rate, _, _)), each in zip(cases, read, strict=True):
        cells = (f"{count / GB:.1f} GB, {1000 * Rates(rate * GB).pass_s(count):.0f} ms" for count in each)
        yield f"| {what} | {card} | {' | '.join(cells)} |"


def all_tables() -> Iterator[str]:
    """What the document has."""
    spilled, replayed = calls(spilled=True), calls(recorded=True)
    yield from table()
    yield ""
    yield from published_table()
    yield ""
    yield from mends_table()
    yield ""
    yield from middle_table(spilled, replayed)
    yield ""
    yield from calls_table(calls(), spilled, replayed)


def test_the_tables_are_what_the_planner_says_and_what_is_counted() -> None:
    text = (ROOT / "engine" / "docs" / "gpus.md").read_text(encoding="utf-8")
    for line in all_tables():
        assert line in text, line
    text = (ROOT / "engine" / "README.md").read_text(encoding="utf-8")
    for line in goal_table():
        assert line in text, line


def test_launches_do_not_depend_on_width() -> None:
    narrow, wide = (round_calls((3, 1), middle="4bit", spilled=(1,), head_dim=dim) for dim in (16, 32))
    assert narrow == wide


@pytest.mark.skipif(not os.environ.get("TRIFOLD_LONG"), reason="half a minute: TRIFOLD_LONG=1")
@pytest.mark.parametrize("spilled", [False, True])
def test_each_layer_adds_the_same(spilled: bool) -> None:
    assert calls(spilled=spilled) == round_calls((32, 16), middle="4bit", spilled=range(32 if spilled else 0))


def test_a_model_in_8_bits_takes_less() -> None:
    model, draft = PAIRS["Llama-3.1-8B + 1B"]
    card = torch.device("cuda", 0)
    whole, _ = planner.model_bytes(CONFIG, model, draft, card)
    small, _ = planner.model_bytes(replace(CONFIG, weights="8bit", kv="8bit"), model, draft, card)
    assert 0.5 <= small.weights / whole.weights < 0.55
    assert 0.5 < small.kv / whole.kv < 0.55
    assert small.buffer == whole.buffer


if __name__ == "__main__":
    import sys

    torch.set_num_threads(1)
    graphs.RECORD_AFTER = 3  # as in the tests
    load_once()
    sys.stdout.write("\n".join([*all_tables(), "", *goal_table()]) + "\n")
