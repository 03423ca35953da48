"""Bytes of real models on real cards, by the planner's arithmetic: the table in engine/README.md, and that it is true.

python -m tests.engine.gpu.test_bytes
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from engine.config import EngineConfig
from engine.kv.offload import Tier
from engine.model.decoder import kv_shape_of
from engine.plan import planner
from engine.plan.memory_budget import CHUNK, MEMORY_SHARE, DeviceRoom, share_layers
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


def row(pair: str, card: str, memory: int, rate: float, bus: float, count: int) -> str:
    """One line of the table."""
    model, draft = PAIRS[pair]
    devices = [torch.device("cuda", index) for index in range(count)]
    size, taken = planner.model_bytes(CONFIG, model, draft, devices[0])
    free = memory * GIB - CONTEXT_BYTES
    rooms = [DeviceRoom(free, 0 if index else taken) for index in range(count)]
    layout = planner.layout_of(share_layers(model.num_hidden_layers, size, rooms), devices)
    kv = replace(kv_shape_of(model, torch.bfloat16, devices[0]), split=layout.split).indexed(CHUNK)
    # The retrieval cache is there before a book is; its mean keys come with the book.
    retrieval = size.beside - WINDOW * kv.index_bytes_per_token // kv.layers
    held = planner.weights_by_device(layout, kv.layers, size, taken)
    used = [weights + part.layers * retrieval for weights, part in zip(held, kv.parts, strict=True)]
    left = [max(0, int((free - bytes_) * MEMORY_SHARE)) for bytes_ in used]
    resources = planner.Resources(left[0], 10**12, 0, tuple(left[1:]))
    plan = planner.plan(kv, BOOK, resources)
    name = f"| {pair} | {card} |"
    if plan is None:
        return f"{name} does not fit | | | | |"
    host = plan.placement.count(Tier.HOST)
    in_host = len(layout.in_host)
    moved = plan.kv.host + in_host * size.weights
    read = plan.kv.total + kv.layers * size.weights
    ms = max(read / (rate * GB), moved / (bus * GB * len(kv.parts))) * 1000
    spare = sum(free - bytes_ for bytes_ in used) - plan.kv.device - plan.staging - BOOK * kv.index_bytes_per_token
    return (
        f"{name} {kv.layers - in_host} + {in_host} | {kv.layers - host} + {host} | {spare / GB:.1f} GB | "
        f"{moved / GB:.1f} GB | {ms:.0f} ms |"
    )


def table() -> Iterator[str]:
    """The whole of it."""
    yield "| models | card | weights: layers on card + in memory | KV: the same | left | moved | time |"
    yield "|---|---|---|---|---|---|---|"
    for pair in PAIRS:
        for card in CARDS:
            yield row(pair, *card)


def test_the_table_is_what_the_planner_says() -> None:
    text = (ROOT / "engine" / "README.md").read_text(encoding="utf-8")
    for line in table():
        assert line in text, line


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

    sys.stdout.write("\n".join(table()) + "\n")
